//! Nodes that combine the elements along some axes.

use flambeau_ir as ir;
use flambeau_kernels::{
    Pool, elementwise, order,
    reduce::{self, Numeric},
};
use flambeau_tensor::{DType, Element, Shape};

use super::{
    any_dtype,
    copy::{cast, contiguous},
    float_dtype,
    shape::axis_of,
};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// The axes that a reduction names; all of them if it names none.
fn axes_of(axes: &[i32], rank: usize) -> Result<Shape> {
    if axes.is_empty() {
        return Ok((0..rank).collect());
    }
    axes.iter().map(|&a| axis_of(a.into(), rank)).collect()
}

/// Reduces `x` as it is into the type that the rule inferred.
macro_rules! exact_reductions {
    ($($node:ident: $kernel:path;)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let x = cx.get(self.x)?;
            let axes = axes_of(&self.axes, x.rank())?;
            let mut y = cx.alloc_out(self.out)?;
            any_dtype!(x.dtype, T => Ok($kernel(&cx.pool(), &x.view::<T>()?, &axes, y.slice_mut()?)?))?;
            cx.put(self.out, y);
            Ok(())
        }
    })* };
}

exact_reductions! {
    Sum: reduce::sum;
    Prod: reduce::prod;
    Max: reduce::max;
    Min: reduce::min;
    Any: reduce::any;
    All: reduce::all;
}

impl Eval for ir::Mean {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (x, spec) = (cx.get(self.x)?, cx.out(self.out)?);
        let axes = axes_of(&self.axes, x.rank())?;
        let x = cast(cx, &x, spec.dtype)?;
        let mut y = cx.alloc(spec.dtype, &spec.shape)?;
        float_dtype!(spec.dtype, T => Ok(reduce::mean::<T>(&cx.pool(), &x.view()?, &axes, y.slice_mut()?)?))?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// Reduces `x` in f32 and rounds once to the type that the rule inferred.
fn in_f32(
    cx: &mut Cx<'_>,
    (x, axes, out): (ir::In, &[i32], ir::Out),
    f: impl FnOnce(&Pool, &Array, &[usize], &mut [f32]) -> Result<()>,
) -> Result<()> {
    let (x, spec) = (cx.get(x)?, cx.out(out)?);
    let axes = axes_of(axes, x.rank())?;
    let x = cast(cx, &x, DType::F32)?;
    let mut y = cx.alloc(DType::F32, &spec.shape)?;
    f(&cx.pool(), &x, &axes, y.slice_mut()?)?;
    let y = cast(cx, &y, spec.dtype)?;
    cx.put(out, y);
    Ok(())
}

impl Eval for ir::Var {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        in_f32(cx, (self.x, &self.axes, self.out), |pool, x, axes, y| Ok(reduce::var::<f32>(pool, &x.view()?, axes, self.ddof, y)?))
    }
}

impl Eval for ir::Std {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        in_f32(cx, (self.x, &self.axes, self.out), |pool, x, axes, y| {
            reduce::var::<f32>(pool, &x.view()?, axes, self.ddof, y)?;
            elementwise::map_in_place(pool, y, f32::sqrt);
            Ok(())
        })
    }
}

impl Eval for ir::LogSumExp {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        if self.axes.is_empty() {
            let (x, spec) = (cx.get(self.x)?, cx.out(self.out)?);
            let y = cast(cx, &x, spec.dtype)?;
            cx.put(self.out, y);
            return Ok(());
        }
        in_f32(cx, (self.x, &self.axes, self.out), |pool, x, axes, y| Ok(reduce::logsumexp::<f32>(pool, &x.view()?, axes, y)?))
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

impl Eval for ir::Median {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (x, spec) = (cx.get(self.x)?, cx.out(self.out)?);
        let axes = axes_of(&self.axes, x.rank())?;
        let kept = (0..x.rank()).filter(|i| !axes.contains(i));
        let perm: Shape = kept.chain((0..x.rank()).filter(|i| axes.contains(i))).collect();
        let n: usize = axes.iter().map(|&a| x.shape[a]).product();
        if n == 0 {
            return Err(OpError::value("there is no middle among no elements"));
        }
        let x = cast(cx, &x.permute(&perm), DType::F32)?;
        let mut rows = contiguous(cx, x)?;
        rows.set_shape(&[rows.numel() / n, n]);
        let mut sorted = cx.alloc(DType::F32, &rows.shape)?;
        order::sort::<f32>(&cx.pool(), &rows.view()?, 1, sorted.slice_mut()?)?;
        let mut y = cx.alloc(DType::F32, &spec.shape)?;
        let middles = sorted.slice::<f32>()?.chunks(n).map(middle);
        y.slice_mut::<f32>()?.iter_mut().zip(middles).for_each(|(y, m)| *y = m);
        let y = cast(cx, &y, spec.dtype)?;
        cx.put(self.out, y);
        Ok(())
    }
}

macro_rules! arg_reductions {
    ($($node:ident: $kernel:path;)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let x = cx.get(self.x)?;
            let axis = axis_of(self.axis.into(), x.rank())?;
            let mut y = cx.alloc_out(self.out)?;
            any_dtype!(x.dtype, T => Ok($kernel(&cx.pool(), &x.view::<T>()?, &[axis], y.slice_mut()?)?))?;
            cx.put(self.out, y);
            Ok(())
        }
    })* };
}

arg_reductions! {
    Argmax: reduce::argmax;
    Argmin: reduce::argmin;
}

/// Running sums of one type, in the type of its sums.
fn running<T: Numeric>(cx: &mut Cx<'_>, x: &Array, axis: usize, (reverse, inclusive): (bool, bool)) -> Result<Array> {
    let mut y = cx.alloc(T::Sum::DTYPE, &x.shape)?;
    order::cumsum::<T>(&cx.pool(), &x.view()?, axis, (reverse, inclusive), y.slice_mut()?)?;
    Ok(y)
}

impl Eval for ir::Cumsum {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (x, spec) = (cx.get(self.x)?, cx.out(self.out)?);
        let axis = axis_of(self.axis.into(), x.rank())?;
        let y = any_dtype!(x.dtype, T => running::<T>(cx, &x, axis, (self.reverse, self.inclusive)))?;
        let y = cast(cx, &y, spec.dtype)?;
        cx.put(self.out, y);
        Ok(())
    }
}
