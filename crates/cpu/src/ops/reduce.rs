//! Nodes that combine the elements along some axes.

use flambeau_ir as ir;
use flambeau_tensor::{Bool, DType, Shape};

use super::{
    copy::{cast, cast_into, contiguous},
    int_dtype,
    int_math::Int,
    shape::axis_of,
};
use crate::{
    array::Array,
    cx::{Cx, OutSpec},
    error::{OpError, Result},
    eval::Eval,
};

/// Elements that one task reads.
const GRAIN: usize = 1 << 14;

/// `x` as rows of the reduced elements, `[outer, n]`, row-major, in `dtype`; `n` comes with it.
pub(crate) fn rows(cx: &mut Cx<'_>, x: &Array, axes: &[usize], dtype: DType) -> Result<(Array, usize)> {
    let kept = (0..x.rank()).filter(|i| !axes.contains(i));
    let perm: Shape = kept.chain((0..x.rank()).filter(|i| axes.contains(i))).collect();
    let x = x.permute(&perm);
    let n = x.shape[x.rank() - axes.len()..].iter().product();
    let x = cast(cx, &x, dtype)?;
    Ok((contiguous(cx, x)?, n))
}

/// The axes that a reduction names; all of them if it names none.
fn axes_of(axes: &[i32], rank: usize) -> Result<Shape> {
    if axes.is_empty() {
        return Ok((0..rank).collect());
    }
    axes.iter().map(|&a| axis_of(a.into(), rank)).collect()
}

/// `out[i] = f(row i)`, rows of `n` elements.
fn fold<T: flambeau_tensor::Element, R: flambeau_tensor::Element>(
    cx: &Cx<'_>,
    x: &Array,
    n: usize,
    out: &mut Array,
    f: impl Fn(&[T]) -> R + Sync,
) -> Result<()> {
    let (from, grain) = (x.slice::<T>()?, (GRAIN / n.max(1)).max(1));
    cx.pool().run_chunks(out.slice_mut::<R>()?, grain, |task, chunk| {
        for (i, slot) in chunk.iter_mut().enumerate() {
            let row = task * grain + i;
            *slot = f(&from[row * n..(row + 1) * n]);
        }
    });
    Ok(())
}

/// Folds rows of f32 and rounds once to the result's type.
fn fold_float(cx: &mut Cx<'_>, x: &Array, axes: &[usize], spec: &OutSpec, f: impl Fn(&[f32]) -> f32 + Sync) -> Result<Array> {
    let (x, n) = rows(cx, x, axes, DType::F32)?;
    let mut y = cx.alloc(DType::F32, &spec.shape)?;
    fold(cx, &x, n, &mut y, f)?;
    cx.free(x);
    cast(cx, &y, spec.dtype)
}

/// Sum in sixteen interleaved parts: fast, and more accurate than one.
pub(crate) fn sum(row: &[f32]) -> f32 {
    let (chunks, tail) = row.as_chunks::<16>();
    let mut parts = [0.0f32; 16];
    for chunk in chunks {
        parts.iter_mut().zip(chunk).for_each(|(p, v)| *p += v);
    }
    parts.iter_mut().zip(tail).for_each(|(p, v)| *p += v);
    parts.iter().sum()
}

/// The larger element; NaN if there is one.
pub(crate) fn maximum(row: &[f32]) -> f32 {
    row.iter().fold(f32::NEG_INFINITY, |m, &v| if m.is_nan() || m > v { m } else { v })
}

fn minimum(row: &[f32]) -> f32 {
    row.iter().fold(f32::INFINITY, |m, &v| if m.is_nan() || m < v { m } else { v })
}

fn squared_deviations(row: &[f32]) -> f32 {
    let mean = sum(row) / row.len() as f32;
    let squares: Vec<f32> = row.iter().map(|v| (v - mean) * (v - mean)).collect();
    sum(&squares)
}

fn variance(row: &[f32], ddof: i32) -> f32 {
    squared_deviations(row) / (row.len() as f32 - ddof as f32).max(0.0)
}

fn log_sum_exp(row: &[f32]) -> f32 {
    let top = maximum(row);
    if top.is_infinite() || top.is_nan() {
        return top;
    }
    let terms: Vec<f32> = row.iter().map(|v| (v - top).exp()).collect();
    top + sum(&terms).ln()
}

fn median(row: &[f32]) -> f32 {
    if row.iter().any(|v| v.is_nan()) {
        return f32::NAN;
    }
    let mut sorted = row.to_vec();
    sorted.sort_unstable_by(f32::total_cmp);
    let (high, odd) = (sorted.len() / 2, sorted.len() % 2 == 1);
    if odd { sorted[high] } else { 0.5 * (sorted[high - 1] + sorted[high]) }
}

macro_rules! float_reductions {
    ($($node:ident: |$self:ident, $row:ident| $f:expr;)*) => { $(impl Eval for ir::$node {
        fn eval(&$self, cx: &mut Cx<'_>) -> Result<()> {
            let (x, spec) = (cx.get($self.x)?, cx.out($self.out)?);
            let axes = axes_of(&$self.axes, x.rank())?;
            let y = fold_float(cx, &x, &axes, &spec, |$row| $f)?;
            cx.put($self.out, y);
            Ok(())
        }
    })* };
}

float_reductions! {
    Mean: |self, row| sum(row) / row.len() as f32;
    Var: |self, row| variance(row, self.ddof);
    Std: |self, row| variance(row, self.ddof).sqrt();
    Median: |self, row| median(row);
}

impl Eval for ir::LogSumExp {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (x, spec) = (cx.get(self.x)?, cx.out(self.out)?);
        let axes = self.axes.iter().map(|&a| axis_of(a.into(), x.rank())).collect::<Result<Shape>>()?;
        let y = if axes.is_empty() { cast(cx, &x, spec.dtype)? } else { fold_float(cx, &x, &axes, &spec, log_sum_exp)? };
        cx.put(self.out, y);
        Ok(())
    }
}

/// A reduction that integers take part in exactly.
fn exact<I: ExactFold>(
    cx: &mut Cx<'_>,
    (x, axes, out): (ir::In, &[i32], ir::Out),
    float: impl Fn(&[f32]) -> f32 + Sync,
    int: I,
) -> Result<()> {
    let (x, spec) = (cx.get(x)?, cx.out(out)?);
    let axes = axes_of(axes, x.rank())?;
    let y = if spec.dtype.is_float() {
        fold_float(cx, &x, &axes, &spec, float)?
    } else {
        // Bools take the place of their numbers; maxima and minima of them come back as bools.
        let through = if spec.dtype == DType::Bool { DType::U8 } else { spec.dtype };
        let (x, n) = rows(cx, &x, &axes, through)?;
        let mut y = cx.alloc(through, &spec.shape)?;
        int_dtype!(through, T => fold::<T, T>(cx, &x, n, &mut y, |row| int.fold(row)))?;
        cast(cx, &y, spec.dtype)?
    };
    cx.put(out, y);
    Ok(())
}

trait ExactFold: Copy + Sync {
    fn fold<T: Int>(self, row: &[T]) -> T;
}

macro_rules! exact_reductions {
    ($($node:ident: $float:expr, |$row:ident| $int:expr;)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            #[derive(Clone, Copy)]
            struct F;
            impl ExactFold for F {
                fn fold<T: Int>(self, $row: &[T]) -> T { $int }
            }
            exact(cx, (self.x, &self.axes, self.out), $float, F)
        }
    })* };
}

exact_reductions! {
    Sum: sum, |row| row.iter().fold(T::ZERO, |s, &v| s.add(v));
    Prod: |row| row.iter().product(), |row| row.iter().fold(T::ONE, |s, &v| s.mul(v));
    Max: maximum, |row| row.iter().copied().max().unwrap_or(T::ZERO);
    Min: minimum, |row| row.iter().copied().min().unwrap_or(T::ZERO);
}

fn quantify(cx: &mut Cx<'_>, x: ir::In, axes: &[i32], out: ir::Out, f: impl Fn(&[Bool]) -> bool + Sync) -> Result<()> {
    let (x, spec) = (cx.get(x)?, cx.out(out)?);
    let axes = axes_of(axes, x.rank())?;
    let (x, n) = rows(cx, &x, &axes, DType::Bool)?;
    let mut y = cx.alloc(DType::Bool, &spec.shape)?;
    fold::<Bool, Bool>(cx, &x, n, &mut y, |row| f(row).into())?;
    cx.put(out, y);
    Ok(())
}

impl Eval for ir::Any {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        quantify(cx, self.x, &self.axes, self.out, |row| row.iter().any(|b| b.get()))
    }
}

impl Eval for ir::All {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        quantify(cx, self.x, &self.axes, self.out, |row| row.iter().all(|b| b.get()))
    }
}

/// Place of the first element that beats all before it; a NaN beats all numbers.
fn first_best<T: Copy>(row: &[T], beats: impl Fn(T, T) -> bool) -> u32 {
    let mut best = 0;
    for (i, &v) in row.iter().enumerate().skip(1) {
        if beats(v, row[best]) {
            best = i;
        }
    }
    best as u32
}

fn arg(cx: &mut Cx<'_>, x: ir::In, axis: i32, out: ir::Out, largest: bool) -> Result<()> {
    let (x, spec) = (cx.get(x)?, cx.out(out)?);
    let axis = axis_of(axis.into(), x.rank())?;
    let is_float = x.dtype.is_float();
    let (x, n) = rows(cx, &x, &[axis], if is_float { DType::F32 } else { DType::I64 })?;
    if n == 0 {
        return Err(OpError::value("there is no element to choose"));
    }
    let mut y = cx.alloc(DType::U32, &spec.shape)?;
    let float = |v: f32, best: f32| !best.is_nan() && (v.is_nan() || if largest { v > best } else { v < best });
    if is_float {
        fold::<f32, u32>(cx, &x, n, &mut y, |row| first_best(row, float))?;
    } else {
        fold::<i64, u32>(cx, &x, n, &mut y, |row| first_best(row, |v, best| if largest { v > best } else { v < best }))?;
    }
    cx.put(out, y);
    Ok(())
}

impl Eval for ir::Argmax {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        arg(cx, self.x, self.axis, self.out, true)
    }
}

impl Eval for ir::Argmin {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        arg(cx, self.x, self.axis, self.out, false)
    }
}

/// A row-major copy of `x` in `dtype` with `axis` innermost, which its user may write; and how to see it in the old order.
pub(crate) fn axis_last(cx: &mut Cx<'_>, x: &Array, axis: usize, dtype: DType) -> Result<(Array, Shape)> {
    let last = x.rank() - 1;
    let perm: Shape = (0..x.rank()).filter(|&i| i != axis).chain([axis]).collect();
    let back: Shape = (0..x.rank()).map(|i| if i == axis { last } else { i - usize::from(i > axis) }).collect();
    let x = x.permute(&perm);
    let mut rows = cx.alloc(dtype, &x.shape)?;
    cast_into(&cx.pool(), &x, &mut rows)?;
    Ok((rows, back))
}

/// Calls `f` on every row of `n` elements, in parallel.
pub(crate) fn each_row<T: flambeau_tensor::Element>(
    cx: &Cx<'_>,
    x: &mut Array,
    n: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    let grain = (GRAIN / n).max(1);
    cx.pool().run_chunks(x.slice_mut::<T>()?, grain * n, |task, chunk| {
        chunk.chunks_mut(n).enumerate().for_each(|(i, row)| f(task * grain + i, row));
    });
    Ok(())
}

fn running<T: Copy>(row: &mut [T], zero: T, reverse: bool, inclusive: bool, add: impl Fn(T, T) -> T) {
    let mut total = zero;
    let mut step = |v: &mut T| {
        let next = add(total, *v);
        *v = if inclusive { next } else { total };
        total = next;
    };
    if reverse { row.iter_mut().rev().for_each(&mut step) } else { row.iter_mut().for_each(&mut step) }
}

impl Eval for ir::Cumsum {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (x, spec) = (cx.get(self.x)?, cx.out(self.out)?);
        let axis = axis_of(self.axis.into(), x.rank())?;
        let (n, reverse, inclusive) = (x.shape[axis], self.reverse, self.inclusive);
        let through = if spec.dtype.is_float() { DType::F32 } else { spec.dtype };
        let (mut y, back) = axis_last(cx, &x, axis, through)?;
        if spec.dtype.is_float() {
            each_row::<f32>(cx, &mut y, n, |_, row| running(row, 0.0, reverse, inclusive, |a, b| a + b))?;
        } else {
            int_dtype!(through, T => each_row::<T>(cx, &mut y, n, |_, row| running(row, T::ZERO, reverse, inclusive, Int::add)))?;
        }
        let y = cast(cx, &y, spec.dtype)?.permute(&back);
        cx.put(self.out, y);
        Ok(())
    }
}
