//! Nodes that move elements without computing: views where strides can express the result, copies elsewhere.

use flambeau_ir as ir;
use flambeau_kernels::Pool;
use flambeau_tensor::{Shape, normalize_axis};

use super::copy::{cast_into, contiguous, copy_into, duplicate, fill};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// An axis that the rule has accepted.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Result<usize> {
    normalize_axis(axis, rank).ok_or_else(|| ir::InferError::Axis { axis, rank }.into())
}

/// Runs `f` on a region of `out`: `count` entries of each listed axis from `start`, `step` apart.
pub(crate) fn with_region<R>(
    out: &mut Array,
    window: &[(usize, usize, usize, usize)],
    f: impl FnOnce(&mut Array) -> Result<R>,
) -> Result<R> {
    let whole = (out.shape.clone(), out.strides.clone(), out.offset);
    for &(axis, start, count, step) in window {
        out.offset += if count > 0 { start * out.strides[axis].unsigned_abs() } else { 0 };
        out.shape[axis] = count;
        out.strides[axis] = out.strides[axis].wrapping_mul(step as isize);
    }
    let result = f(out);
    (out.shape, out.strides, out.offset) = whole;
    result
}

/// `x` in another shape with as many elements: a view, or else a copy.
pub(crate) fn reshape(cx: &mut Cx<'_>, x: &Array, shape: &[usize]) -> Result<Array> {
    match x.reshaped(shape) {
        Some(view) => Ok(view),
        None => Ok(Array::row_major(x.dtype, shape, duplicate(cx, x)?.data)),
    }
}

impl Eval for ir::Noop {
    const HAS_RULE: bool = false;
    fn eval(&self, _: &mut Cx<'_>) -> Result<()> {
        Ok(())
    }
}

impl Eval for ir::IdCopy {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        if self.x.0 != self.out.0 {
            let x = cx.take(self.x)?;
            cx.put(self.out, x);
        }
        Ok(())
    }
}

impl Eval for ir::Contiguous {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.take(self.x)?;
        // Nodes read any strides, so rows that are whole need no copy: a slice of a long cache stays a view.
        let has_rows = x.shape.iter().zip(&x.strides).next_back().is_none_or(|(&d, &s)| s == 1 || d == 1);
        let is_spread = x.strides.contains(&0);
        let x = if has_rows && !is_spread { x } else { contiguous(cx, x)? };
        cx.put(self.out, x);
        Ok(())
    }
}

macro_rules! reshapes {
    ($($node:ident)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let shape = cx.out(self.out)?.shape;
            let x = cx.take(self.x)?;
            let y = reshape(cx, &x, &shape)?;
            cx.put(self.out, y);
            Ok(())
        }
    })* };
}
reshapes!(Reshape ExpandDims Squeeze);

impl Eval for ir::Transpose {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.take(self.x)?;
        let perm = self.perm.iter().map(|&p| axis_of(p.into(), x.rank())).collect::<Result<Shape>>()?;
        cx.put(self.out, x.permute(&perm));
        Ok(())
    }
}

impl Eval for ir::BroadcastTo {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let shape = cx.out(self.out)?.shape;
        let x = cx.take(self.x)?;
        let y = x.broadcast(&shape).ok_or_else(|| OpError::value(format!("{:?} does not broadcast to {shape:?}", x.shape)))?;
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::AsStrided {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let shape = cx.out(self.out)?.shape;
        let x = cx.get(self.x)?;
        let x = contiguous(cx, x)?;
        let strides = self.strides.iter().map(|&s| Ok(cx.int(s)? as isize)).collect::<Result<flambeau_kernels::Strides>>()?;
        let (mut low, mut high) = (i128::from(self.offset), i128::from(self.offset));
        for (&d, &s) in shape.iter().zip(&strides) {
            let span = (d as i128 - 1) * s as i128;
            if span < 0 { low += span } else { high += span }
        }
        if !shape.contains(&0) && (low < 0 || high >= x.numel() as i128) {
            let n = x.numel();
            return Err(OpError::value(format!("elements {low} to {high} of a tensor of {n} are asked for")));
        }
        let offset = if shape.contains(&0) { 0 } else { x.offset + self.offset as usize };
        cx.put(self.out, x.restrided(shape, strides, offset));
        Ok(())
    }
}

/// First index of a slice of `count` entries: ends wrap once and clamp.
pub(crate) fn slice_start(start: i64, n: usize, step: i32) -> usize {
    let n = n as i64;
    let start = if start < 0 { start + n } else { start };
    start.clamp(0, if step > 0 { n } else { (n - 1).max(0) }) as usize
}

impl Eval for ir::Slice {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let shape = cx.out(self.out)?.shape;
        let (axis, start) = (cx.int(self.axis)?, cx.int(self.start)?);
        let x = cx.take(self.x)?;
        let axis = axis_of(axis, x.rank())?;
        let start = slice_start(start, x.shape[axis], self.step);
        let y = x.narrow(axis, start, shape[axis], self.step as isize);
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::Flip {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let mut x = cx.take(self.x)?;
        for &axis in &self.axes {
            let axis = axis_of(axis.into(), x.rank())?;
            let n = x.shape[axis];
            x = x.narrow(axis, n.saturating_sub(1), n, -1);
        }
        cx.put(self.out, x);
        Ok(())
    }
}

impl Eval for ir::Split {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let axis = axis_of(self.axis.into(), x.rank())?;
        let mut start = 0;
        for &out in &self.outs {
            let count = cx.out(out)?.shape[axis];
            cx.put(out, x.narrow(axis, start, count, 1));
            start += count;
        }
        Ok(())
    }
}

/// Writes the parts side by side along `axis` of `out`, each `count(part)` entries wide.
pub(crate) fn join(pool: &Pool, parts: &[Array], axis: usize, out: &mut Array) -> Result<()> {
    let mut start = 0;
    for part in parts {
        let count = part.shape[axis];
        with_region(out, &[(axis, start, count, 1)], |region| cast_into(pool, part, region))?;
        start += count;
    }
    Ok(())
}

impl Eval for ir::Concatenate {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let parts = self.tensors.iter().map(|&t| cx.get(t)).collect::<Result<Vec<_>>>()?;
        let y = match &parts[..] {
            [only] => only.clone(),
            _ => {
                let mut y = cx.alloc_out(self.out)?;
                let axis = axis_of(self.axis.into(), y.rank())?;
                join(&cx.pool(), &parts, axis, &mut y)?;
                y
            }
        };
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::Stack {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let mut parts = self.tensors.iter().map(|&t| cx.get(t)).collect::<Result<Vec<_>>>()?;
        let mut y = cx.alloc_out(self.out)?;
        let axis = axis_of(self.axis.into(), y.rank())?;
        for part in &mut parts {
            part.shape.insert(axis, 1);
            part.strides.insert(axis, 0);
        }
        join(&cx.pool(), &parts, axis, &mut y)?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// `x` `[d0, d1, ..]` with each axis `i` seen as `[before[i], d_i, after[i]]`, repeated along the outer two.
fn repeated(cx: &mut Cx<'_>, x: &Array, before: &[usize], after: &[usize], out: ir::Out) -> Result<()> {
    let mut y = cx.alloc_out(out)?;
    let lead = y.rank() - x.rank();
    let (mut shape, mut view) = (Shape::new(), x.clone());
    (view.shape, view.strides) = (Shape::new(), Default::default());
    for i in 0..y.rank() {
        let (d, s) = i.checked_sub(lead).map_or((1, 0), |j| (x.shape[j], x.strides[j]));
        for (n, size, stride) in [(before[i], 1, 0), (d, d, s), (after[i], 1, 0)] {
            shape.push(n);
            view.shape.push(size);
            view.strides.push(stride);
        }
    }
    let whole = y.shape.clone();
    y.set_shape(&shape);
    copy_into(&cx.pool(), &view, &mut y)?;
    y.set_shape(&whole);
    cx.put(out, y);
    Ok(())
}

impl Eval for ir::Tile {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let rank = cx.out(self.out)?.shape.len();
        let mut reps: Shape = Shape::from_elem(1, rank - self.reps.len().min(rank));
        for &r in &self.reps {
            reps.push(usize::try_from(cx.int(r)?).map_err(|_| OpError::value("a repeat count is negative"))?);
        }
        repeated(cx, &x, &reps, &Shape::from_elem(1, rank), self.out)
    }
}

impl Eval for ir::Repeat {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let axis = axis_of(self.axis.into(), x.rank())?;
        let mut after = Shape::from_elem(1, x.rank());
        after[axis] = usize::try_from(cx.int(self.repeats)?).map_err(|_| OpError::value("a repeat count is negative"))?;
        repeated(cx, &x, &Shape::from_elem(1, x.rank()), &after, self.out)
    }
}

impl Eval for ir::Roll {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let mut x = cx.get(self.x)?;
        for (&axis, &shift) in self.axes.iter().zip(&self.shift) {
            let (axis, shift) = (axis_of(axis.into(), x.rank())?, cx.int(shift)?);
            let n = x.shape[axis];
            if n == 0 {
                continue;
            }
            let s = shift.rem_euclid(n as i64) as usize;
            let mut y = cx.alloc(x.dtype, &x.shape)?;
            let parts = [x.narrow(axis, n - s, s, 1), x.narrow(axis, 0, n - s, 1)];
            join(&cx.pool(), &parts, axis, &mut y)?;
            cx.free(std::mem::replace(&mut x, y));
        }
        cx.put(self.out, x);
        Ok(())
    }
}

impl Eval for ir::Pad {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let widths = self.pad_width.iter().map(|&w| cx.int(w).map(|v| v.max(0) as usize)).collect::<Result<Shape>>()?;
        let x = cx.get(self.x)?;
        let y = if self.mode == "edge" { pad_edge(cx, x, &widths)? } else { pad_constant(cx, self, &x, &widths)? };
        cx.put(self.out, y);
        Ok(())
    }
}

/// `x` in the middle of the result, the rest filled.
fn pad_constant(cx: &mut Cx<'_>, node: &ir::Pad, x: &Array, widths: &[usize]) -> Result<Array> {
    let mut y = cx.alloc_out(node.out)?;
    let pool = cx.pool();
    fill(&pool, node.constant_value, &mut y)?;
    let window: Vec<_> = widths.chunks(2).zip(&x.shape).enumerate().map(|(i, (w, &d))| (i, w[0], d, 1)).collect();
    with_region(&mut y, &window, |region| copy_into(&pool, x, region))?;
    Ok(y)
}

fn pad_edge(cx: &mut Cx<'_>, mut x: Array, widths: &[usize]) -> Result<Array> {
    for (axis, w) in widths.chunks(2).enumerate() {
        let (n, &[before, after]) = (x.shape[axis], w) else { continue };
        if n == 0 && before + after > 0 {
            return Err(OpError::value("an empty axis has no edge to repeat"));
        }
        let edge = |at: usize, count: usize| {
            let mut part = x.narrow(axis, at, 1, 1);
            (part.shape[axis], part.strides[axis]) = (count, 0);
            part
        };
        let mut shape = x.shape.clone();
        shape[axis] += before + after;
        let mut y = cx.alloc(x.dtype, &shape)?;
        let parts = [edge(0, before), x.clone(), edge(n.saturating_sub(1), after)];
        join(&cx.pool(), &parts, axis, &mut y)?;
        x = y;
    }
    Ok(x)
}
