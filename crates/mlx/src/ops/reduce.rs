//! Nodes that reduce axes, and running sums.

use flambeau_ir::{
    self as ir,
    infer::{axis_of, run::OutSpec},
};
use flambeau_tensor::DType;

use super::shape::Window;
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    ffi::{ArgReduce, Array, Axes, Binary, Order, Reduce, Unary},
    rows::{One, Rows},
    values::{Slot, cast},
};

/// The axes as indices from the front; all if the list is empty.
fn axes_of(axes: &[i32], rank: usize) -> Result<Axes> {
    if axes.is_empty() {
        return Ok((0..rank as i64).collect());
    }
    axes.iter().map(|&a| Ok(axis_of(a, rank)? as i64)).collect()
}

/// Sums of half precision run in f32, as PyTorch's do.
fn accumulator(x: DType, out: DType) -> DType {
    let d = if x.is_float() { x } else { out };
    if matches!(d, DType::F16 | DType::BF16) { DType::F32 } else { d }
}

/// `x` reduced through `through`; a rank-0 operand is a vector of one element.
fn reduce(x: &Slot, op: Reduce, axes: &[i32], keepdims: bool, (through, ddof): (DType, i32), out: &OutSpec) -> Result<Array> {
    let y = cast(x, through)?;
    if out.shape.contains(&0) {
        return Ok(Array::full(y.api(), &out.shape, 0.0, out.dtype)?);
    }
    // MLX's CPU backend does not return from a reduction of an empty operand with turned axes.
    let y = if x.shape.contains(&0) { Array::full(y.api(), &x.shape, 0.0, through)? } else { y };
    if x.rank() == 0 {
        return Ok(y.reshape(&[1])?.reduce(op, &[0], false, ddof)?);
    }
    let y = y.reduce(op, &axes_of(axes, x.rank())?, keepdims, ddof)?;
    Ok(y.reshape(&out.shape)?)
}

/// Rows of a reduction that leaves the first axis.
fn reduced(x: ir::In, axes: &[i32], one: One<'_>) -> Option<Rows> {
    Rows::of([x]).filter(|_| !axes.is_empty() && axes.iter().all(|&axis| one.is_inner(axis.into(), x)))
}

macro_rules! sums {
    ($($node:ident: $($ddof:ident)?;)*) => { $(impl Eval for ir::$node {
        fn rows(&self, one: One<'_>) -> Option<Rows> {
            reduced(self.x, &self.axes, one)
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let (x, out) = (cx.get(self.x)?, cx.out(self.out)?);
            let ddof = 0 $(+ self.$ddof)?;
            let through = accumulator(x.dtype, out.dtype);
            let y = reduce(&x, Reduce::$node, &self.axes, self.keepdims, (through, ddof), &out)?;
            cx.put(self.out, y)
        }
    })* };
}

sums! {
    Sum: ;
    Prod: ;
    Mean: ;
    Var: ddof;
    Std: ddof;
}

macro_rules! extremes {
    ($($node:ident)*) => { $(impl Eval for ir::$node {
        fn rows(&self, one: One<'_>) -> Option<Rows> {
            reduced(self.x, &self.axes, one)
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let (x, out) = (cx.get(self.x)?, cx.out(self.out)?);
            let y = reduce(&x, Reduce::$node, &self.axes, self.keepdims, (x.dtype, 0), &out)?;
            cx.put(self.out, y)
        }
    })* };
}

extremes!(Max Min);

macro_rules! truths {
    ($($node:ident)*) => { $(impl Eval for ir::$node {
        fn rows(&self, one: One<'_>) -> Option<Rows> {
            reduced(self.x, &self.axes, one)
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let (x, out) = (cx.get(self.x)?, cx.out(self.out)?);
            let y = reduce(&x, Reduce::$node, &self.axes, self.keepdims, (DType::Bool, 0), &out)?;
            cx.put(self.out, y)
        }
    })* };
}

truths!(Any All);

impl Eval for ir::LogSumExp {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        reduced(self.x, &self.axes, one)
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (x, out) = (cx.get(self.x)?, cx.out(self.out)?);
        let y = if self.axes.is_empty() {
            cast(&x, out.dtype)?
        } else {
            reduce(&x, Reduce::LogSumExp, &self.axes, self.keepdims, (accumulator(x.dtype, out.dtype), 0), &out)?
        };
        cx.put(self.out, y)
    }
}

/// `x` with the reduced axes joined into a last one, sorted along it, and its length.
fn sorted_rows(x: &Slot, axes: &[i32], through: DType) -> Result<(Array, usize)> {
    let reduced = axes_of(axes, x.rank())?;
    let kept: Vec<usize> = (0..x.rank()).filter(|&i| !reduced.contains(&(i as i64))).collect();
    let perm: Axes = kept.iter().map(|&i| i as i64).chain(reduced.iter().copied()).collect();
    let length: usize = reduced.iter().map(|&i| x.shape[i as usize]).product();
    let mut shape: Vec<usize> = kept.iter().map(|&i| x.shape[i]).collect();
    shape.push(length);
    let rows = cast(x, through)?.transpose(&perm)?.reshape(&shape)?;
    Ok((rows.order(Order::Sort, -1)?, length))
}

/// Entry `at` of the last axis.
fn column(rows: &Array, at: usize) -> Result<Array> {
    let (_, shape) = rows.spec()?;
    let last = shape.len() - 1;
    Ok(Window::whole(&shape).narrow(last, at, 1, 1).of(rows)?.squeeze(&[last as i64])?)
}

impl Eval for ir::Median {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (x, out) = (cx.get(self.x)?, cx.out(self.out)?);
        let through = accumulator(x.dtype, out.dtype);
        let through = if through.is_float() { through } else { DType::F32 };
        let (rows, length) = sorted_rows(&x, &self.axes, through)?;
        if length == 0 {
            return Err(OpError::value("there is no middle of nothing"));
        }
        let middle = column(&rows, length / 2)?;
        let middle = if length % 2 == 1 {
            middle
        } else {
            let sum = column(&rows, length / 2 - 1)?.binary(Binary::Add, &middle)?;
            sum.binary(Binary::Multiply, &cx.scalar(0.5, through)?)?
        };
        // NaN sorts last, and makes the whole row NaN.
        let last = column(&rows, length - 1)?;
        let y = last.unary(Unary::IsNan)?.choose(&last, &middle)?.reshape(&out.shape)?;
        cx.put(self.out, y)
    }
}

fn arg_reduce(cx: &mut Cx<'_>, op: ArgReduce, (x, out): (ir::In, ir::Out), axis: i32, keepdims: bool) -> Result<()> {
    let (x, spec) = (cx.get(x)?, cx.out(out)?);
    let axis = axis_of(axis, x.rank())? as i32;
    if spec.shape.contains(&0) {
        let y = Array::full(cx.api(), &spec.shape, 0.0, spec.dtype)?;
        return cx.put(out, y);
    }
    let op_of = |values: &Array| values.arg_reduce(op, axis, keepdims);
    let y = if x.dtype.is_float() {
        // The first NaN wins: it is the first largest of "is not a number", if there is one.
        let is_nan = x.array.unary(Unary::IsNan)?.cast(DType::U8)?;
        let first_nan = is_nan.arg_reduce(ArgReduce::Max, axis, keepdims)?;
        let any = x.array.unary(Unary::IsNan)?.reduce(Reduce::Any, &[axis.into()], keepdims, 0)?;
        any.choose(&first_nan, &op_of(&x.array)?)?
    } else if x.dtype == DType::Bool {
        op_of(&x.array.cast(DType::U8)?)?
    } else {
        op_of(&x.array)?
    };
    let y = y.reshape(&spec.shape)?;
    cx.put(out, y)
}

impl Eval for ir::Argmax {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        arg_reduce(cx, ArgReduce::Max, (self.x, self.out), self.axis, self.keepdims)
    }
}

impl Eval for ir::Argmin {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        arg_reduce(cx, ArgReduce::Min, (self.x, self.out), self.axis, self.keepdims)
    }
}

impl Eval for ir::Cumsum {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (x, out) = (cx.get(self.x)?, cx.out(self.out)?);
        let axis = axis_of(self.axis, x.rank())? as i32;
        let y = cast(&x, accumulator(out.dtype, out.dtype))?.cumsum(axis, self.reverse, self.inclusive)?;
        cx.put(self.out, y)
    }
}
