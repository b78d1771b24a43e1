//! Nodes that move elements without computing: views where strides can express the result, copies
//! elsewhere.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_kernels::Pool;
use flambeau_tensor::Shape;
use smallvec::SmallVec;

use super::copy::{cast_into, copy_into, fill, with_region};
use crate::{
    array::Array,
    error::{OpError, Result},
    obstacle::{Dynamic, Obstacle, Prepared},
    plan::{MemRef, Planner},
    prepare::Prepare,
};

impl Prepare for ir::Noop {
    fn prepare(&self, _: &mut Planner<'_>) -> Prepared {
        Ok(())
    }
}

impl Prepare for ir::IdCopy {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let x = p.get(self.x)?;
        p.put(self.out, x);
        Ok(())
    }
}

impl Prepare for ir::Contiguous {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let x = p.operand(self.x)?;
        // Nodes read any strides, so rows that are whole need no copy: a slice of a long cache
        // stays a view.
        let has_rows = x.array.shape.iter().zip(&x.array.strides).next_back().is_none_or(|(&d, &s)| s == 1 || d == 1);
        let is_spread = x.array.strides.contains(&0);
        let x = if has_rows && !is_spread { x } else { p.contiguous(x)? };
        p.put(self.out, x);
        Ok(())
    }
}

macro_rules! reshapes {
    ($($node:ident)*) => { $(impl Prepare for ir::$node {
        fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
            let (x, shape) = (p.operand(self.x)?, p.spec(self.out)?.shape);
            let y = p.reshaped(x, &shape)?;
            p.put(self.out, y);
            Ok(())
        }
    })* };
}
reshapes!(Reshape ExpandDims Squeeze);

impl Prepare for ir::Transpose {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        if matches!(self.perm[..], [1, 0] | [-1, -2]) && p.transposed_matrix(self.x, self.out)? {
            return Ok(());
        }
        let x = p.operand(self.x)?;
        let perm = self.perm.iter().map(|&axis| axis_of(axis, x.array.rank())).collect::<Result<Shape, _>>()?;
        p.put(self.out, x.seen(x.array.permute(&perm)));
        Ok(())
    }
}

impl Prepare for ir::BroadcastTo {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, shape) = (p.operand(self.x)?, p.spec(self.out)?.shape);
        let refuse = || OpError::value(format!("{:?} does not broadcast to {shape:?}", x.array.shape));
        p.put(self.out, x.seen(x.array.broadcast(&shape).ok_or_else(refuse)?));
        Ok(())
    }
}

impl Prepare for ir::AsStrided {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, shape) = (p.operand(self.x)?, p.spec(self.out)?.shape);
        let strides = self.strides.iter().map(|&s| Ok(p.int(s)? as isize)).collect::<Prepared<flambeau_kernels::Strides>>()?;
        let (mut low, mut high) = (i128::from(self.offset), i128::from(self.offset));
        for (&d, &s) in shape.iter().zip(&strides) {
            let span = (d as i128 - 1) * s as i128;
            if span < 0 { low += span } else { high += span }
        }
        let (n, is_empty) = (x.array.numel(), shape.contains(&0));
        if !is_empty && (low < 0 || high >= n as i128) {
            return Err(OpError::value(format!("elements {low} to {high} of a tensor of {n} are asked for")).into());
        }
        let x = p.contiguous(x)?;
        let offset = if is_empty { 0 } else { x.array.offset + self.offset as usize };
        p.put(self.out, x.seen(x.array.restrided(shape, strides, offset)));
        Ok(())
    }
}

/// First index of a slice of `count` entries: ends wrap once and clamp.
pub(crate) fn slice_start(start: i64, n: usize, step: i32) -> usize {
    let n = n as i64;
    let start = if start < 0 { start + n } else { start };
    start.clamp(0, if step > 0 { n } else { (n - 1).max(0) }) as usize
}

impl Prepare for ir::Slice {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let x = p.operand(self.x)?;
        let axis = axis_of(p.int(self.axis)?, x.array.rank())?;
        let y = match (p.known(self.start)?, p.known(self.stop)?, usize::try_from(self.step)) {
            (Some(start), Some(_), _) => {
                let count = p.spec(self.out)?.shape[axis];
                let start = slice_start(start, x.array.shape[axis], self.step);
                x.seen(x.array.narrow(axis, start, count, self.step as isize))
            }
            (_, _, Ok(step)) => p.window(&x, axis, (self.start, self.stop), step)?,
            // Backwards from a position known only at run time.
            _ => return Err(Obstacle::Dynamic(Dynamic::Integer)),
        };
        p.put(self.out, y);
        Ok(())
    }
}

impl Prepare for ir::Flip {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let x = p.operand(self.x)?;
        let mut y = x.array.clone();
        for &axis in &self.axes {
            let axis = axis_of(axis, y.rank())?;
            let n = y.shape[axis];
            y = y.narrow(axis, n.saturating_sub(1), n, -1);
        }
        p.put(self.out, x.seen(y));
        Ok(())
    }
}

impl Prepare for ir::Split {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let x = p.operand(self.x)?;
        let axis = axis_of(self.axis, x.array.rank())?;
        let counts = self.outs.iter().map(|&out| Ok(p.spec(out)?.shape[axis])).collect::<Prepared<Shape>>()?;
        let mut start = 0;
        for (&out, &count) in self.outs.iter().zip(&counts) {
            p.put(out, x.seen(x.array.narrow(axis, start, count, 1)));
            start += count;
        }
        Ok(())
    }
}

/// Writes the parts side by side along `axis` of `out`, each as wide as it is.
pub(crate) fn join(pool: &Pool, parts: &[Array], axis: usize, out: &mut Array) -> Result<()> {
    let mut start = 0;
    for part in parts {
        let count = part.shape[axis];
        with_region(out, &[(axis, start, count, 1)], |region| cast_into(pool, part, region))?;
        start += count;
    }
    Ok(())
}

fn joined(p: &mut Planner<'_>, parts: &[MemRef], axis: usize, out: ir::Out) -> Prepared {
    let spec = p.spec(out)?;
    let parts: SmallVec<[&MemRef; 4]> = parts.iter().collect();
    let y = p.call(&parts, (spec.dtype, &spec.shape), move |cx, parts, y| join(&cx.pool, parts, axis, y))?;
    p.put(out, y);
    Ok(())
}

impl Prepare for ir::Concatenate {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let parts = p.operands(&self.tensors)?;
        match &parts[..] {
            [only] => {
                p.put(self.out, only.clone());
                Ok(())
            }
            _ => {
                let axis = axis_of(self.axis, p.spec(self.out)?.shape.len())?;
                joined(p, &parts, axis, self.out)
            }
        }
    }
}

impl Prepare for ir::Stack {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let mut parts = p.operands(&self.tensors)?;
        let axis = axis_of(self.axis, p.spec(self.out)?.shape.len())?;
        for part in &mut parts {
            part.array.shape.insert(axis, 1);
            part.array.strides.insert(axis, 0);
        }
        joined(p, &parts, axis, self.out)
    }
}

/// `x` `[d0, d1, ..]` with each axis `i` seen as `[before[i], d_i, after[i]]`, repeated along the
/// outer two.
fn repeated(p: &mut Planner<'_>, x: &MemRef, before: &[usize], after: &[usize], out: ir::Out) -> Prepared {
    let spec = p.spec(out)?;
    let lead = spec.shape.len() - x.array.rank();
    let (mut shape, mut view) = (Shape::new(), x.array.clone());
    (view.shape, view.strides) = (Shape::new(), Default::default());
    for i in 0..spec.shape.len() {
        let (d, s) = i.checked_sub(lead).map_or((1, 0), |j| (x.array.shape[j], x.array.strides[j]));
        for (n, size, stride) in [(before[i], 1, 0), (d, d, s), (after[i], 1, 0)] {
            shape.push(n);
            view.shape.push(size);
            view.strides.push(stride);
        }
    }
    let mut y = p.call(&[&x.seen(view)], (spec.dtype, &shape), |cx, ins, y| copy_into(&cx.pool, &ins[0], y))?;
    y.array.set_shape(&spec.shape);
    p.put(out, y);
    Ok(())
}

fn repeat_count(count: i64) -> Result<usize> {
    usize::try_from(count).map_err(|_| OpError::value("a repeat count is negative"))
}

impl Prepare for ir::Tile {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, rank) = (p.operand(self.x)?, p.spec(self.out)?.shape.len());
        let mut reps: Shape = Shape::from_elem(1, rank - self.reps.len().min(rank));
        for &count in &self.reps {
            reps.push(repeat_count(p.int(count)?)?);
        }
        repeated(p, &x, &reps, &Shape::from_elem(1, rank), self.out)
    }
}

impl Prepare for ir::Repeat {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let x = p.operand(self.x)?;
        let axis = axis_of(self.axis, x.array.rank())?;
        let mut after = Shape::from_elem(1, x.array.rank());
        after[axis] = repeat_count(p.int(self.repeats)?)?;
        repeated(p, &x, &Shape::from_elem(1, x.array.rank()), &after, self.out)
    }
}

impl Prepare for ir::Roll {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let mut x = p.operand(self.x)?;
        let axes = self.axes.iter().map(|&axis| axis_of(axis, x.array.rank())).collect::<Result<Shape, _>>()?;
        for (&axis, &shift) in axes.iter().zip(&self.shift) {
            let (dtype, shape) = (x.array.dtype, x.array.shape.clone());
            let n = shape[axis];
            if n > 0 {
                x = p.call(&[&x], (dtype, &shape), move |cx, ins, y| {
                    let s = cx.int(shift)?.rem_euclid(n as i64) as usize;
                    let parts = [ins[0].narrow(axis, n - s, s, 1), ins[0].narrow(axis, 0, n - s, 1)];
                    join(&cx.pool, &parts, axis, y)
                })?;
            }
        }
        p.put(self.out, x);
        Ok(())
    }
}

impl Prepare for ir::Pad {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
        let widths = self.pad_width.iter().map(|&w| p.int(w).map(|v| v.max(0) as usize)).collect::<Prepared<Shape>>()?;
        let y = if self.mode == "edge" {
            pad_edge(p, x, &widths)?
        } else {
            let window: Vec<_> = widths.chunks(2).zip(&x.array.shape).enumerate().map(|(i, (w, &d))| (i, w[0], d, 1)).collect();
            let value = self.constant_value;
            p.call(&[&x], (spec.dtype, &spec.shape), move |cx, ins, y| {
                fill(&cx.pool, value, y)?;
                with_region(y, &window, |region| copy_into(&cx.pool, &ins[0], region))
            })?
        };
        p.put(self.out, y);
        Ok(())
    }
}

/// `x` with its border repeated, axis by axis.
fn pad_edge(p: &mut Planner<'_>, mut x: MemRef, widths: &[usize]) -> Prepared<MemRef> {
    for (axis, w) in widths.chunks(2).enumerate() {
        let (n, &[before, after]) = (x.array.shape[axis], w) else { continue };
        if n == 0 && before + after > 0 {
            return Err(OpError::value("an empty axis has no edge to repeat").into());
        }
        let mut shape = x.array.shape.clone();
        shape[axis] += before + after;
        x = p.call(&[&x], (x.array.dtype, &shape), move |cx, ins, y| {
            let edge = |at: usize, count: usize| {
                let mut part = ins[0].narrow(axis, at, 1, 1);
                (part.shape[axis], part.strides[axis]) = (count, 0);
                part
            };
            let parts = [edge(0, before), ins[0].clone(), edge(n.saturating_sub(1), after)];
            join(&cx.pool, &parts, axis, y)
        })?;
    }
    Ok(x)
}
