//! Running totals: `Cumsum`, and loops over slices where no node exists.

use flambeau_ir::{In, InOut, Node, Out, Scan, Spec, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Origin, Refuse};

type Items = Result<Vec<Item>, Refuse>;

/// Results of one step of a loop's body.
pub(super) struct LoopStep {
    /// Next values of the carried tensors, in order.
    pub(super) carry: Vec<Tid>,
    /// Values collected from this step.
    pub(super) collect: Vec<Tid>,
}

/// A loop over the slices of tensors along an axis, with an open body.
#[derive(Debug)]
pub struct Loop {
    originals: Vec<Tid>,
    axis: usize,
    steps: Expr,
    chain: u32,
    /// One slice of each tensor, without the axis.
    pub sliced: Vec<Tid>,
    /// Tensors carried from step to step.
    pub carried: Vec<Tid>,
}

impl Loop {
    /// Opens a loop over `axis` of `originals`, with carried tensors that start as `init`. Calls
    /// lowered until [`Loop::end`] form its body.
    ///
    /// # Errors
    /// Fails without originals, or if the first one lacks the axis.
    pub fn begin(cx: &mut Lower, originals: &[Tid], axis: usize, init: &[Tid]) -> Result<Loop, Refuse> {
        let steps = originals.first().and_then(|&t| cx.spec(t).dims.get(axis).cloned());
        let Some(steps) = steps else { return crate::call::unsupported("a loop over an axis that the tensor lacks") };
        let sliced: Vec<Tid> = originals.iter().map(|&t| without_axis(cx, t, axis)).collect();
        let carried: Vec<Tid> = init.iter().map(|&t| blank(cx, t)).collect();
        for (&from, &to) in init.iter().zip(&carried) {
            cx.copy(from, to)?;
        }
        let chain = cx.open_chain();
        Ok(Loop { originals: originals.to_vec(), axis, steps, chain, sliced, carried })
    }

    /// Abandons the loop; its body stays empty.
    pub fn abandon(self, cx: &mut Lower) {
        cx.close_chain();
    }

    /// Closes the body, which computed the next carried values and the values to collect.
    ///
    /// Returns the slots of the collected tensors: the steps' values stacked along the axis. The
    /// last carried values are in [`Loop::carried`].
    ///
    /// # Errors
    /// Fails if the body does not compute a value, or if the originals have different numbers of
    /// slices.
    pub fn end(&self, cx: &mut Lower, carry: &[Tid], collect: &[Tid]) -> Result<Vec<Tid>, Refuse> {
        let outputs: Vec<Tid> = collect.iter().map(|&t| blank(cx, t)).collect();
        // One value may be a carried tensor's next value and another's current value, so all are
        // read before any is written.
        let mut next = carry.to_vec();
        for t in next.iter_mut().filter(|t| self.carried.contains(t)) {
            let held = blank(cx, *t);
            cx.copy(*t, held)?;
            *t = held;
        }
        let pairs = collect.iter().zip(&outputs).chain(next.iter().zip(&self.carried));
        let copied = pairs.into_iter().try_for_each(|(&from, &to)| cx.copy(from, to));
        cx.close_chain();
        copied?;
        cx.emit_all(Node::Scan(Scan {
            originals: self.originals.iter().map(|&t| In(t)).collect(),
            sliced: self.sliced.iter().map(|&t| Out(t)).collect(),
            outputs: outputs.iter().map(|&t| InOut(t)).collect(),
            carry: self.carried.iter().map(|&t| InOut(t)).collect(),
            body_chain_idx: flambeau_ir::ChainId(self.chain),
            scan_axis: self.axis as i32,
        }))?;
        for &t in &outputs {
            let mut spec = cx.spec(t).clone();
            spec.dims.insert(self.axis.min(spec.dims.len()), self.steps.clone());
            cx.set_spec(t, spec);
        }
        Ok(outputs)
    }
}

/// Runs `body(slices, carried)` for each index of `axis` of `originals`.
///
/// Returns the last carried values, and each collected tensor's values stacked along `axis`.
pub(super) fn scan(
    cx: &mut Lower,
    originals: &[Tid],
    axis: usize,
    init: &[Tid],
    body: impl FnOnce(&mut Lower, &[Tid], &[Tid]) -> Result<LoopStep, Refuse>,
) -> Result<(Vec<Tid>, Vec<Tid>), Refuse> {
    let frame = Loop::begin(cx, originals, axis, init)?;
    match body(cx, &frame.sliced, &frame.carried) {
        Ok(step) => {
            let outputs = frame.end(cx, &step.carry, &step.collect)?;
            Ok((frame.carried, outputs))
        }
        Err(reason) => {
            frame.abandon(cx);
            Err(reason)
        }
    }
}

fn without_axis(cx: &mut Lower, t: Tid, axis: usize) -> Tid {
    let mut spec = cx.spec(t).clone();
    if axis < spec.rank() {
        spec.dims.remove(axis);
    }
    cx.slot(spec, Origin::Node)
}

fn blank(cx: &mut Lower, like: Tid) -> Tid {
    let spec: Spec = cx.spec(like).clone();
    cx.slot(spec, Origin::Node)
}

/// Copies a value into a slot that other chains read.
pub(super) fn copy(cx: &mut Lower, from: Tid, to: Tid) -> Result<(), Refuse> {
    cx.copy(from, to)
}

/// The operand in the first result's type, and its axis.
fn operand(cx: &mut Lower, call: &Call) -> Result<(Tid, usize), Refuse> {
    let x = cx.operand(call, "self", call.out(0)?.dtype)?;
    // PyTorch accepts axis 0 of a rank-0 tensor here.
    Ok((x, cx.axis(call, "dim", 0, cx.spec(x).rank().max(1))?))
}

/// A tensor filled with `value`, with the shape of one slice.
fn start(cx: &mut Lower, x: Tid, axis: usize, value: f64) -> Emitted {
    let mut spec = cx.spec(x).clone();
    spec.dims.remove(axis);
    ops::full(cx, value, &spec.dims, spec.dtype)
}

fn cumsum(cx: &mut Lower, call: &Call) -> Items {
    let (x, axis) = operand(cx, call)?;
    if cx.spec(x).rank() == 0 {
        return one(x);
    }
    one(ops::cumsum(cx, x, axis)?)
}

/// Combines the elements up to each one. Halves are carried in f32, like PyTorch's.
fn running(cx: &mut Lower, call: &Call, from: f64, combine: fn(&mut Lower, Tid, Tid) -> Emitted) -> Items {
    let (x, axis) = operand(cx, call)?;
    if cx.spec(x).rank() == 0 || cx.spec(x).numel().as_int() == Some(0) {
        return one(x);
    }
    let dtype = cx.spec(x).dtype;
    let x = if matches!(dtype, DType::F16 | DType::BF16) { cx.cast(x, DType::F32)? } else { x };
    let init = start(cx, x, axis, from)?;
    let (_, out) = scan(cx, &[x], axis, &[init], |cx, slices, carried| {
        let next = combine(cx, carried[0], slices[0])?;
        Ok(LoopStep { carry: vec![next], collect: vec![next] })
    })?;
    one(cx.cast(out[0], dtype)?)
}

fn cumprod(cx: &mut Lower, call: &Call) -> Items {
    running(cx, call, 1.0, ops::mul)
}

fn logcumsumexp(cx: &mut Lower, call: &Call) -> Items {
    running(cx, call, f64::NEG_INFINITY, ops::logaddexp)
}

/// Running extreme with the index of its last occurrence; NaN takes precedence over numbers.
fn running_extreme(cx: &mut Lower, call: &Call, at_least: fn(&mut Lower, Tid, Tid) -> Emitted, from: fn(DType) -> f64) -> Items {
    let (x, axis) = operand(cx, call)?;
    let rank = cx.spec(x).rank();
    if rank == 0 {
        return Ok(vec![Item::Tensor(x), Item::Tensor(cx.number(0.0, DType::I64)?)]);
    }
    let n = cx.spec(x).dims[axis].clone();
    let positions = ops::count(cx, &n, DType::I64)?;
    let positions = ops::along(cx, positions, axis, rank)?;
    let mut dims = cx.spec(x).dims.clone();
    dims.remove(axis);
    // Nodes fill from f32, which cannot represent the largest 64-bit integer.
    let best = cx.number(from(cx.spec(x).dtype), cx.spec(x).dtype)?;
    let best = super::shape::expand_to(cx, best, &dims)?;
    let at = ops::full(cx, 0.0, &dims, DType::I64)?;
    let (_, out) = scan(cx, &[x, positions], axis, &[best, at], |cx, slices, carried| {
        let (now, position, best, at) = (slices[0], slices[1], carried[0], carried[1]);
        let (newer, is_nan) = (at_least(cx, now, best)?, ops::ne(cx, now, now)?);
        let newer = ops::logical_or(cx, newer, is_nan)?;
        let (best, at) = (ops::select(cx, newer, now, best)?, ops::select(cx, newer, position, at)?);
        Ok(LoopStep { carry: vec![best, at], collect: vec![best, at] })
    })?;
    Ok(vec![Item::Tensor(out[0]), Item::Tensor(out[1])])
}

fn cummax(cx: &mut Lower, call: &Call) -> Items {
    running_extreme(cx, call, ops::ge, ops::lowest)
}

fn cummin(cx: &mut Lower, call: &Call) -> Items {
    running_extreme(cx, call, ops::le, ops::highest)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.cummax.default", cummax),
    row("aten.cummin.default", cummin),
    row("aten.cumprod.default", cumprod),
    row("aten.cumsum.default", cumsum),
    row("aten.logcumsumexp.default", logcumsumexp),
];
