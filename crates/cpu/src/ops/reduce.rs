//! Nodes that combine the elements along some axes.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_kernels::{Pool, elementwise, order, reduce};
use flambeau_tensor::{Bool, DType, Shape};

use super::{float_dtype, wide, wide_dtype};
use crate::{
    array::Array,
    error::{OpError, Result},
    obstacle::Prepared,
    plan::{MemRef, Planner},
    prepare::Prepare,
};

/// The axes that a reduction names; all of them if it names none.
fn axes_of(axes: &[i32], rank: usize) -> Result<Shape> {
    if axes.is_empty() {
        return Ok((0..rank).collect());
    }
    Ok(axes.iter().map(|&a| axis_of(a, rank)).collect::<Result<_, _>>()?)
}

/// Reduces `x` and rounds or cuts once to the type that the rule inferred.
macro_rules! reductions {
    ($($node:ident: $kernel:path;)*) => { $(impl Prepare for ir::$node {
        fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
            let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
            let axes = axes_of(&self.axes, x.array.rank())?;
            let through = wide(x.array.dtype);
            let x = p.in_type(x, through)?;
            let y = p.call(&[&x], (through, &spec.shape), move |cx, ins, y| {
                wide_dtype!(ins[0].dtype, T => Ok($kernel(&cx.pool, &ins[0].view::<T>()?, &axes, y.slice_mut()?)?))
            })?;
            let y = p.in_type(y, spec.dtype)?;
            p.put(self.out, y);
            Ok(())
        }
    })* };
}

reductions! {
    Sum: reduce::sum;
    Prod: reduce::prod;
    Max: reduce::max;
    Min: reduce::min;
}

macro_rules! logical_reductions {
    ($($node:ident: $kernel:path;)*) => { $(impl Prepare for ir::$node {
        fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
            let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
            let axes = axes_of(&self.axes, x.array.rank())?;
            let x = p.in_type(x, DType::Bool)?;
            let y = p.call(&[&x], (DType::Bool, &spec.shape), move |cx, ins, y| {
                Ok($kernel(&cx.pool, &ins[0].view::<Bool>()?, &axes, y.slice_mut()?)?)
            })?;
            p.put(self.out, y);
            Ok(())
        }
    })* };
}

logical_reductions! {
    Any: reduce::any;
    All: reduce::all;
}

impl Prepare for ir::Mean {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
        let axes = axes_of(&self.axes, x.array.rank())?;
        let x = p.in_type(x, spec.dtype)?;
        let y = p.call(
            &[&x],
            (spec.dtype, &spec.shape),
            move |cx, ins, y| float_dtype!(y.dtype, T => Ok(reduce::mean::<T>(&cx.pool, &ins[0].view()?, &axes, y.slice_mut()?)?)),
        )?;
        p.put(self.out, y);
        Ok(())
    }
}

/// Reduces `x` in f32 and rounds once to the type that the rule inferred.
fn in_f32(
    p: &mut Planner<'_>,
    (x, axes, out): (ir::In, &[i32], ir::Out),
    f: impl Fn(&Pool, &Array, &[usize], &mut [f32]) -> Result<()> + Send + 'static,
) -> Prepared {
    let (x, spec) = (p.operand(x)?, p.spec(out)?);
    let axes = axes_of(axes, x.array.rank())?;
    let x = p.in_type(x, DType::F32)?;
    let y = p.call(&[&x], (DType::F32, &spec.shape), move |cx, ins, y| f(&cx.pool, &ins[0], &axes, y.slice_mut()?))?;
    let y = p.in_type(y, spec.dtype)?;
    p.put(out, y);
    Ok(())
}

impl Prepare for ir::Var {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let ddof = self.ddof;
        in_f32(p, (self.x, &self.axes, self.out), move |pool, x, axes, y| Ok(reduce::var::<f32>(pool, &x.view()?, axes, ddof, y)?))
    }
}

impl Prepare for ir::Std {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let ddof = self.ddof;
        in_f32(p, (self.x, &self.axes, self.out), move |pool, x, axes, y| {
            reduce::var::<f32>(pool, &x.view()?, axes, ddof, y)?;
            elementwise::map_in_place(pool, y, f32::sqrt);
            Ok(())
        })
    }
}

impl Prepare for ir::LogSumExp {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        if !self.axes.is_empty() {
            return in_f32(p, (self.x, &self.axes, self.out), |pool, x, axes, y| {
                Ok(reduce::logsumexp::<f32>(pool, &x.view()?, axes, y)?)
            });
        }
        let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
        let y = p.in_type(x, spec.dtype)?;
        p.put(self.out, y);
        Ok(())
    }
}

/// The middle of a sorted row, or the mean of its two middle elements; NaN, which sorts last, wins.
fn middle(row: &[f32]) -> f32 {
    let (high, odd) = (row.len() / 2, row.len() % 2 == 1);
    match row {
        [.., last] if last.is_nan() => f32::NAN,
        _ if odd => row[high],
        _ => 0.5 * (row[high - 1] + row[high]),
    }
}

/// The rows of `x` sorted.
fn sorted(p: &mut Planner<'_>, x: &MemRef) -> Prepared<MemRef> {
    p.call(&[x], (DType::F32, &x.array.shape), |cx, ins, y| Ok(order::sort::<f32>(&cx.pool, &ins[0].view()?, 1, y.slice_mut()?)?))
}

impl Prepare for ir::Median {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
        let rank = x.array.rank();
        let axes = axes_of(&self.axes, rank)?;
        let kept = (0..rank).filter(|i| !axes.contains(i));
        let perm: Shape = kept.chain((0..rank).filter(|i| axes.contains(i))).collect();
        let n: usize = axes.iter().map(|&a| x.array.shape[a]).product();
        if n == 0 {
            return Err(OpError::value("there is no middle among no elements").into());
        }
        let mut rows = p.rows_in_type(x.seen(x.array.permute(&perm)), DType::F32)?;
        rows.array.set_shape(&[rows.array.numel() / n, n]);
        let rows = sorted(p, &rows)?;
        let y = p.call(&[&rows], (DType::F32, &spec.shape), move |_, ins, y| {
            let middles = ins[0].slice::<f32>()?.chunks(n).map(middle);
            y.slice_mut::<f32>()?.iter_mut().zip(middles).for_each(|(y, m)| *y = m);
            Ok(())
        })?;
        let y = p.in_type(y, spec.dtype)?;
        p.put(self.out, y);
        Ok(())
    }
}

macro_rules! arg_reductions {
    ($($node:ident: $kernel:path;)*) => { $(impl Prepare for ir::$node {
        fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
            let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
            let axis = axis_of(self.axis, x.array.rank())?;
            let through = wide(x.array.dtype);
            let x = p.in_type(x, through)?;
            let y = p.call(&[&x], (spec.dtype, &spec.shape), move |cx, ins, y| {
                wide_dtype!(ins[0].dtype, T => Ok($kernel(&cx.pool, &ins[0].view::<T>()?, &[axis], y.slice_mut()?)?))
            })?;
            p.put(self.out, y);
            Ok(())
        }
    })* };
}

arg_reductions! {
    Argmax: reduce::argmax;
    Argmin: reduce::argmin;
}

impl Prepare for ir::Cumsum {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
        let axis = axis_of(self.axis, x.array.rank())?;
        let form = (self.reverse, self.inclusive);
        let through = wide(x.array.dtype);
        let x = p.in_type(x, through)?;
        let y = p.call(&[&x], (through, &spec.shape), move |cx, ins, y| {
            wide_dtype!(ins[0].dtype, T => Ok(order::cumsum::<T>(&cx.pool, &ins[0].view()?, axis, form, y.slice_mut()?)?))
        })?;
        let y = p.in_type(y, spec.dtype)?;
        p.put(self.out, y);
        Ok(())
    }
}
