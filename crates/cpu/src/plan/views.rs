//! Nodes that cost nothing when the plan runs, or next to nothing: views, windows, and updates of buffers in place.

use flambeau_ir::{In, Index, Node, Out, SlotClass, Tid};
use flambeau_tensor::Shape;

use super::{
    Action, Layout, Rows, Update, Window,
    memref::MemRef,
    planner::{Planner, unplannable},
};
use crate::{
    array::Array,
    error::{OpError, Result},
    ops::{
        index::wrap,
        shape::{axis_of, slice_start},
    },
};

/// Follows a node that moves no element, or replaces part of a buffer. `false` if it is none, or its operands' sizes are open.
pub(super) fn lower(b: &mut Planner<'_>, node: &Node) -> Result<bool> {
    match node {
        Node::Noop(_) => Ok(true),
        Node::IdCopy(n) => id_copy(b, n.x, n.out),
        Node::Contiguous(n) => contiguous(b, n.x, n.out),
        Node::Reshape(n) => reshape(b, n.x, n.out),
        Node::ExpandDims(n) => reshape(b, n.x, n.out),
        Node::Squeeze(n) => reshape(b, n.x, n.out),
        Node::Transpose(n) => view(b, n.x, n.out, |x, _| {
            Ok(x.permute(&n.perm.iter().map(|&p| axis_of(p.into(), x.rank())).collect::<Result<Shape>>()?))
        }),
        Node::BroadcastTo(n) => view(b, n.x, n.out, |x, shape| x.broadcast(shape).ok_or_else(|| OpError::too_large(shape))),
        Node::Flip(n) => view(b, n.x, n.out, |x, _| {
            n.axes.iter().try_fold(x.clone(), |x, &axis| {
                let axis = axis_of(axis.into(), x.rank())?;
                let size = x.shape[axis];
                Ok(x.narrow(axis, size.saturating_sub(1), size, -1))
            })
        }),
        Node::Slice(n) => slice(b, n),
        Node::Split(n) => split(b, n),
        Node::Take(n) => match n.index {
            Index::Lit(index) => view(b, n.x, n.out, |x, _| {
                let axis = axis_of(n.axis.into(), x.rank())?;
                let index = index.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
                Ok(x.narrow(axis, wrap(index, x.shape[axis])?, 1, 1).drop_axis(axis))
            }),
            _ => Ok(false),
        },
        Node::SliceUpdate(n) => slice_update(b, n),
        Node::IndexCopy(n) => index_copy(b, n),
        _ => Ok(false),
    }
}

/// A result that is another view of its operand; `f` gets the operand and the result's shape.
fn view(b: &mut Planner<'_>, x: In, out: Out, f: impl Fn(&Array, &[usize]) -> Result<Array>) -> Result<bool> {
    let (Some(val), Some((_, shape))) = (b.fixed(x)?, b.spec(out)) else { return Ok(false) };
    if b.m.graph.slots.class(out.0) == Some(SlotClass::Buffer) {
        return Ok(false);
    }
    let seen = val.seen(f(&val.array, &shape)?);
    b.put(out, seen)?;
    Ok(true)
}

fn id_copy(b: &mut Planner<'_>, x: In, out: Out) -> Result<bool> {
    let val = b.get(x)?;
    if b.m.graph.slots.class(out.0) != Some(SlotClass::Buffer) {
        b.put(out, val)?;
        return Ok(true);
    }
    // Contents that were updated in place are already where they belong.
    let is_whole = val.is_in(out.0) && b.is_whole(&val, out.0);
    if is_whole {
        b.put_in_place(out, val);
    }
    Ok(is_whole)
}

fn contiguous(b: &mut Planner<'_>, x: In, out: Out) -> Result<bool> {
    let Some(val) = b.fixed(x)? else { return Ok(false) };
    let has_rows = val.array.shape.iter().zip(&val.array.strides).next_back().is_none_or(|(&d, &s)| s == 1 || d == 1);
    let val = if has_rows && !val.array.strides.contains(&0) { val } else { b.contiguous(val)? };
    b.put(out, val)?;
    Ok(true)
}

fn reshape(b: &mut Planner<'_>, x: In, out: Out) -> Result<bool> {
    let (Some(val), Some((_, shape))) = (b.fixed(x)?, b.spec(out)) else { return Ok(false) };
    if b.m.graph.slots.class(out.0) == Some(SlotClass::Buffer) {
        return Ok(false);
    }
    let val = reshaped(b, val, &shape)?;
    b.put(out, val)?;
    Ok(true)
}

/// The value in another shape with as many elements: a view, or else of a copy.
pub(super) fn reshaped(b: &mut Planner<'_>, val: MemRef, shape: &[usize]) -> Result<MemRef> {
    if let Some(array) = val.array.reshaped(shape) {
        return Ok(val.seen(array));
    }
    let mut copy = b.contiguous(val)?;
    copy.array.set_shape(shape);
    Ok(copy)
}

fn slice(b: &mut Planner<'_>, n: &flambeau_ir::Slice) -> Result<bool> {
    let (Some(val), Some(axis)) = (b.fixed(n.x)?, b.int(n.axis)) else { return Ok(false) };
    let axis = axis_of(axis, val.array.rank())?;
    if let (Some(start), Some(_), Some((_, shape))) = (b.int(n.start), b.int(n.stop), b.spec(n.out)) {
        let start = slice_start(start, val.array.shape[axis], n.step);
        let array = val.array.narrow(axis, start, shape[axis], n.step as isize);
        b.put(n.out, val.seen(array))?;
        return Ok(true);
    }
    let Some(step) = usize::try_from(n.step).ok().filter(|&s| s > 0) else { return Ok(false) };
    let mut array = val.array.clone();
    array.strides[axis] = array.strides[axis].wrapping_mul(step as isize);
    array.shape[axis] = 0;
    let number = b.window(&array);
    b.push(Action::Window(Window { number, of: val.array.clone(), axis, start: n.start, stop: n.stop, step }));
    b.put(n.out, MemRef { place: val.place, layout: Layout::Window(number), array })?;
    Ok(true)
}

fn split(b: &mut Planner<'_>, n: &flambeau_ir::Split) -> Result<bool> {
    let Some(val) = b.fixed(n.x)? else { return Ok(false) };
    let axis = axis_of(n.axis.into(), val.array.rank())?;
    let shapes: Option<Vec<_>> = n.outs.iter().map(|&out| b.spec(out)).collect();
    let Some(shapes) = shapes else { return Ok(false) };
    let mut start = 0;
    for (&out, (_, shape)) in n.outs.iter().zip(&shapes) {
        let array = val.array.narrow(axis, start, shape[axis], 1);
        b.put(out, val.seen(array))?;
        start += shape[axis];
    }
    Ok(true)
}

/// The buffer whose slot holds the whole of `dst`, if the update may happen there: nothing else shows it, and the result takes
/// the buffer's place at once or before anybody looks at the buffer again.
fn updated_buffer(b: &mut Planner<'_>, dst: In, out: Out) -> Result<Option<Tid>> {
    let val = b.get(dst)?;
    let super::memref::Place::Slot(buffer) = val.place else { return Ok(None) };
    let is_buffer = b.m.graph.slots.class(buffer) == Some(SlotClass::Buffer);
    if !is_buffer || !b.is_whole(&val, buffer) {
        return Ok(None);
    }
    if b.is_seen(buffer, &[buffer, dst.0, out.0]) || (out.0 != buffer && !b.is_replaced_next(buffer)) {
        return Ok(None);
    }
    // A second name of the old contents must not outlive them.
    if dst.0 != buffer && dst.0 != out.0 && !b.dies(dst.0) {
        return Ok(None);
    }
    Ok(Some(buffer))
}

fn bind_update(b: &mut Planner<'_>, buffer: Tid, dst: In, out: Out, update: Update, operands: &[&MemRef]) -> Result<bool> {
    let val = b.get(dst)?;
    b.push(Action::Update(update, operands.iter().map(|val| val.operand()).collect()));
    if out.0 == buffer {
        b.put_in_place(out, val);
    } else {
        b.put(out, val)?;
    }
    Ok(true)
}

fn slice_update(b: &mut Planner<'_>, n: &flambeau_ir::SliceUpdate) -> Result<bool> {
    let (Some(buffer), Some(axis)) = (updated_buffer(b, n.dst, n.out)?, b.int(n.axis)) else { return Ok(false) };
    let new = b.get(n.update)?;
    let Some(step) = usize::try_from(n.step).ok().filter(|&s| s > 0) else { return Ok(false) };
    if new.is_in(buffer) {
        return unplannable("a buffer is updated from itself");
    }
    let axis = axis_of(axis, b.get(n.dst)?.array.rank())?;
    let update = Update { buffer, axis, rows: Rows::Slice { start: n.start, stop: n.stop, step } };
    bind_update(b, buffer, n.dst, n.out, update, &[&new])
}

fn index_copy(b: &mut Planner<'_>, n: &flambeau_ir::IndexCopy) -> Result<bool> {
    let Some(buffer) = updated_buffer(b, n.dst, n.out)? else { return Ok(false) };
    let (new, list) = (b.get(n.update)?, b.get(n.indices)?);
    if new.is_in(buffer) || list.is_in(buffer) {
        return unplannable("a buffer is updated from itself");
    }
    let axis = axis_of(n.axis.into(), b.get(n.dst)?.array.rank())?;
    bind_update(b, buffer, n.dst, n.out, Update { buffer, axis, rows: Rows::Listed }, &[&new, &list])
}
