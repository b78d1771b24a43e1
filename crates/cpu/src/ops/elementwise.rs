//! Nodes that compute each element from the operands' elements at the same place.

use flambeau_ir as ir;
use flambeau_kernels::{
    elementwise::{map, map_float, select, zip, zip_float},
    math::{Unary, unary},
};
use flambeau_tensor::{Bool, DType};

use super::{
    bits_dtype,
    copy::{bits, cast},
    float_dtype, int_dtype,
    int_math::Int,
};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// A float function of the operand in the result's type.
fn float_function(cx: &mut Cx<'_>, op: Unary, x: ir::In, out: ir::Out) -> Result<()> {
    let spec = cx.out(out)?;
    let x = cx.get(x)?;
    let x = cast(cx, &x, spec.dtype)?;
    let mut y = cx.alloc(spec.dtype, &spec.shape)?;
    float_dtype!(spec.dtype, T => Ok(unary::<T, T>(&cx.pool(), op, &x.view()?, &mut y.view_mut()?)?))?;
    cx.put(out, y);
    Ok(())
}

macro_rules! float_functions {
    ($($node:ident: $op:ident;)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            float_function(cx, Unary::$op, self.x, self.out)
        }
    })* };
}

float_functions! {
    Silu: Silu;
    Sigmoid: Sigmoid;
    Tanh: Tanh;
    Rsqrt: Rsqrt;
    Log: Log;
    Exp: Exp;
    Sin: Sin;
    Cos: Cos;
    Tan: Tan;
    Arcsin: Asin;
    Arccos: Acos;
    Arctan: Atan;
    Sinh: Sinh;
    Cosh: Cosh;
    Arcsinh: Asinh;
    Arccosh: Acosh;
    Arctanh: Atanh;
    Log2: Log2;
    Log10: Log10;
    Log1p: Log1p;
    Erf: Erf;
    Expm1: Expm1;
    Reciprocal: Reciprocal;
    Sqrt: Sqrt;
}

impl Eval for ir::Gelu {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let op = if self.approximate == "tanh" { Unary::GeluTanh } else { Unary::Gelu };
        float_function(cx, op, self.x, self.out)
    }
}

/// A function that keeps the element type.
trait Keep: Copy + Sync {
    fn float(self, x: f32) -> f32;
    fn int<T: Int>(self, x: T) -> T;
    /// Bools pass through unless the function says otherwise.
    fn bool(self, x: bool) -> Result<bool> {
        Ok(x)
    }
}

fn keep(cx: &mut Cx<'_>, x: ir::In, out: ir::Out, f: impl Keep) -> Result<()> {
    let x = cx.get(x)?;
    let mut y = cx.alloc_out(out)?;
    let pool = cx.pool();
    match x.dtype {
        DType::Bool => {
            let table = [f.bool(false)?, f.bool(true)?];
            map::<Bool, Bool, _>(&pool, &x.view()?, &mut y.view_mut()?, |v| table[usize::from(v.get())].into())?;
        }
        d if d.is_float() => {
            float_dtype!(d, T => Ok(map_float::<T, T, _>(&pool, &x.view()?, &mut y.view_mut()?, |v| f.float(v))?))?;
        }
        d => int_dtype!(d, T => Ok(map::<T, T, _>(&pool, &x.view()?, &mut y.view_mut()?, |v| f.int(v))?))?,
    }
    cx.put(out, y);
    Ok(())
}

macro_rules! keep_nodes {
    ($($node:ident: |$x:ident| $float:expr, $int:expr, $bool:expr;)*) => { $(
        impl Eval for ir::$node {
            fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
                #[derive(Clone, Copy)]
                struct F;
                impl Keep for F {
                    #[inline(always)]
                    fn float(self, $x: f32) -> f32 { $float }
                    #[inline(always)]
                    fn int<T: Int>(self, $x: T) -> T { $int }
                    fn bool(self, $x: bool) -> Result<bool> { $bool }
                }
                keep(cx, self.x, self.out, F)
            }
        }
    )* };
}

keep_nodes! {
    Floor: |x| x.floor(), x, Ok(x);
    Ceil: |x| x.ceil(), x, Ok(x);
    Trunc: |x| x.trunc(), x, Ok(x);
    Square: |x| x * x, x.mul(x), Ok(x);
    Abs: |x| x.abs(), x.magnitude(), Ok(x);
    Neg: |x| -x, x.neg(), Err(no_bool(x));
    Sign: |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { 0.0 }, x.signum_of(), Ok(x);
    BitwiseInvert: |x| x, x.invert(), Ok(!x);
}

fn no_bool(_: bool) -> OpError {
    OpError::DType(DType::Bool)
}

/// To a number of decimal places; integers only change for negative numbers of them.
#[derive(Clone, Copy)]
struct RoundTo {
    scale: f32,
}

impl Keep for RoundTo {
    #[inline(always)]
    fn float(self, x: f32) -> f32 {
        if self.scale == 1.0 { x.round_ties_even() } else { (x * self.scale).round_ties_even() * (1.0 / self.scale) }
    }
    fn int<T: Int>(self, x: T) -> T {
        x
    }
}

impl Eval for ir::Round {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let f = RoundTo { scale: 10f32.powi(self.decimals) };
        let x = cx.get(self.x)?;
        if self.decimals == 0 || x.dtype.is_float() {
            return keep(cx, self.x, self.out, f);
        }
        let wide = cast(cx, &x, DType::F32)?;
        let mut rounded = cx.alloc(DType::F32, &x.shape)?;
        map_float::<f32, f32, _>(&cx.pool(), &wide.view()?, &mut rounded.view_mut()?, |v| f.float(v))?;
        let y = cast(cx, &rounded, x.dtype)?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// A function of two operands in their common type.
trait Pair: Copy + Sync {
    fn float(self, a: f32, b: f32) -> f32;
    fn int<T: Int>(self, a: T, b: T) -> T;
    fn bool(self, a: bool, b: bool) -> bool;
}

/// `out = f(a, b)` in the result's type.
fn pair(cx: &mut Cx<'_>, a: ir::In, b: ir::In, out: ir::Out, f: impl Pair) -> Result<()> {
    let spec = cx.out(out)?;
    let (a, b) = (cx.get(a)?, cx.get(b)?);
    let (a, b) = (cast(cx, &a, spec.dtype)?, cast(cx, &b, spec.dtype)?);
    let mut y = cx.alloc(spec.dtype, &spec.shape)?;
    let pool = cx.pool();
    match spec.dtype {
        DType::Bool => {
            zip::<Bool, Bool, Bool, _>(&pool, &a.view()?, &b.view()?, &mut y.view_mut()?, |a, b| f.bool(a.get(), b.get()).into())?;
        }
        d if d.is_float() => float_dtype!(d, T => {
            Ok(zip_float::<T, T, T, _>(&pool, &a.view()?, &b.view()?, &mut y.view_mut()?, |a, b| f.float(a, b))?)
        })?,
        d => int_dtype!(d, T => {
            Ok(zip::<T, T, T, _>(&pool, &a.view()?, &b.view()?, &mut y.view_mut()?, |a, b| f.int(a, b))?)
        })?,
    }
    cx.put(out, y);
    Ok(())
}

macro_rules! pair_nodes {
    ($($node:ident: |$a:ident, $b:ident| $float:expr, $int:expr, $bool:expr;)*) => { $(
        impl Eval for ir::$node {
            fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
                #[derive(Clone, Copy)]
                struct F;
                impl Pair for F {
                    #[inline(always)]
                    fn float(self, $a: f32, $b: f32) -> f32 { $float }
                    #[inline(always)]
                    fn int<T: Int>(self, $a: T, $b: T) -> T { $int }
                    #[inline(always)]
                    fn bool(self, $a: bool, $b: bool) -> bool { $bool }
                }
                pair(cx, self.a, self.b, self.out, F)
            }
        }
    )* };
}

pair_nodes! {
    Add: |a, b| a + b, a.add(b), a | b;
    Subtract: |a, b| a - b, a.sub(b), a ^ b;
    Multiply: |a, b| a * b, a.mul(b), a & b;
    Maximum: |a, b| if a.is_nan() || a > b { a } else { b }, a.max(b), a | b;
    Minimum: |a, b| if a.is_nan() || a < b { a } else { b }, a.min(b), a & b;
    FloorDivide: |a, b| (a / b).floor(), a.floor_div(b), a & b;
    Remainder: |a, b| remainder(a, b), a.floor_rem(b), a & !b;
    Power: |a, b| a.powf(b), a.power(b), a | !b;
    BitwiseAnd: |a, b| no_bits(a, b), a.and(b), a & b;
    BitwiseOr: |a, b| no_bits(a, b), a.or(b), a | b;
    BitwiseXor: |a, b| no_bits(a, b), a.xor(b), a ^ b;
}

/// Floats have no bit operations; the rule refuses them.
#[inline(always)]
fn no_bits(_: f32, _: f32) -> f32 {
    f32::NAN
}

/// `out = f(a, b)` in the result's type, which is floating whatever the operands are.
fn float_pair(cx: &mut Cx<'_>, (a, b): (ir::In, ir::In), out: ir::Out, f: impl Fn(f32, f32) -> f32 + Sync) -> Result<()> {
    let spec = cx.out(out)?;
    let (a, b) = (cx.get(a)?, cx.get(b)?);
    let (a, b) = (cast(cx, &a, spec.dtype)?, cast(cx, &b, spec.dtype)?);
    let mut y = cx.alloc(spec.dtype, &spec.shape)?;
    float_dtype!(spec.dtype, T => {
        Ok(zip_float::<T, T, T, _>(&cx.pool(), &a.view()?, &b.view()?, &mut y.view_mut()?, f)?)
    })?;
    cx.put(out, y);
    Ok(())
}

macro_rules! float_pair_nodes {
    ($($node:ident: $f:expr;)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            float_pair(cx, (self.a, self.b), self.out, $f)
        }
    })* };
}

float_pair_nodes! {
    Divide: |a, b| a / b;
    Atan2: f32::atan2;
    LogAddExp: log_add_exp;
}

/// `a mod b` with the sign of `b`.
#[inline(always)]
fn remainder(a: f32, b: f32) -> f32 {
    let r = a % b;
    if r != 0.0 && ((r < 0.0) != (b < 0.0)) { r + b } else { r }
}

#[inline(always)]
fn log_add_exp(a: f32, b: f32) -> f32 {
    let (high, low) = if a > b { (a, b) } else { (b, a) };
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else if low == f32::NEG_INFINITY || high == f32::INFINITY {
        high
    } else {
        high + (low - high).exp().ln_1p()
    }
}

/// A comparison of two operands in their common type.
trait Compare: Copy + Sync {
    fn test<T: PartialOrd>(self, a: T, b: T) -> bool;
}

fn compare(cx: &mut Cx<'_>, a: ir::In, b: ir::In, out: ir::Out, f: impl Compare) -> Result<()> {
    let (a, b) = (cx.get(a)?, cx.get(b)?);
    let common = match ir::promote(a.dtype, b.dtype) {
        DType::Bool => DType::U8,
        d => d,
    };
    let (a, b) = (cast(cx, &a, common)?, cast(cx, &b, common)?);
    let mut y = cx.alloc_out(out)?;
    flambeau_tensor::with_dtype!(common, T in [U8, I8, I16, I32, I64, U32, F16, BF16, F32] => {
        Ok(zip::<T, T, Bool, _>(&cx.pool(), &a.view()?, &b.view()?, &mut y.view_mut()?, |a, b| f.test(a, b).into())?)
    }, else => Err(OpError::DType(common)))?;
    cx.put(out, y);
    Ok(())
}

macro_rules! compare_nodes {
    ($($node:ident: $op:tt;)*) => { $(
        impl Eval for ir::$node {
            fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
                #[derive(Clone, Copy)]
                struct F;
                impl Compare for F {
                    #[inline(always)]
                    fn test<T: PartialOrd>(self, a: T, b: T) -> bool { a $op b }
                }
                compare(cx, self.a, self.b, self.out, F)
            }
        }
    )* };
}

compare_nodes! {
    Less: <;
    LessEqual: <=;
    Greater: >;
    GreaterEqual: >=;
    Equal: ==;
    NotEqual: !=;
}

fn logical(cx: &mut Cx<'_>, a: ir::In, b: ir::In, out: ir::Out, f: impl Fn(bool, bool) -> bool + Sync) -> Result<()> {
    let (a, b) = (cx.get(a)?, cx.get(b)?);
    let (a, b) = (cast(cx, &a, DType::Bool)?, cast(cx, &b, DType::Bool)?);
    let mut y = cx.alloc_out(out)?;
    zip::<Bool, Bool, Bool, _>(&cx.pool(), &a.view()?, &b.view()?, &mut y.view_mut()?, |a, b| f(a.get(), b.get()).into())?;
    cx.put(out, y);
    Ok(())
}

impl Eval for ir::LogicalAnd {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        logical(cx, self.a, self.b, self.out, |a, b| a & b)
    }
}

impl Eval for ir::LogicalOr {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        logical(cx, self.a, self.b, self.out, |a, b| a | b)
    }
}

impl Eval for ir::LogicalNot {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        logical(cx, self.x, self.x, self.out, |a, _| !a)
    }
}

impl Eval for ir::Where {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let (condition, x, y) = (cx.get(self.condition)?, cx.get(self.x)?, cx.get(self.y)?);
        let condition = cast(cx, &condition, DType::Bool)?;
        let (x, y) = (bits(cast(cx, &x, spec.dtype)?), bits(cast(cx, &y, spec.dtype)?));
        let mut out = bits(cx.alloc(spec.dtype, &spec.shape)?);
        bits_dtype!(out.dtype, T => {
            Ok(select::<T>(&cx.pool(), &condition.view()?, &x.view()?, &y.view()?, &mut out.view_mut()?)?)
        })?;
        out.dtype = spec.dtype;
        cx.put(self.out, out);
        Ok(())
    }
}

impl Eval for ir::Clip {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let x = cx.get(self.x)?;
        let mut y = cast(cx, &x, spec.dtype)?;
        for (bound, is_min) in [(self.a_min, true), (self.a_max, false)] {
            let Some(bound) = cx.get_opt(bound)? else { continue };
            let bound = cast(cx, &bound, spec.dtype)?;
            let mut next = cx.alloc(spec.dtype, &spec.shape)?;
            let pool = cx.pool();
            match spec.dtype {
                DType::Bool => zip::<Bool, Bool, Bool, _>(&pool, &y.view()?, &bound.view()?, &mut next.view_mut()?, |a, b| {
                    if is_min { a.get() | b.get() } else { a.get() & b.get() }.into()
                })?,
                d if d.is_float() => float_dtype!(d, T => {
                    Ok(zip_float::<T, T, T, _>(&pool, &y.view()?, &bound.view()?, &mut next.view_mut()?, |a, b| {
                        if a.is_nan() || (if is_min { a > b } else { a < b }) { a } else { b }
                    })?)
                })?,
                d => int_dtype!(d, T => {
                    Ok(zip::<T, T, T, _>(&pool, &y.view()?, &bound.view()?, &mut next.view_mut()?, |a, b| {
                        if is_min { a.max(b) } else { a.min(b) }
                    })?)
                })?,
            }
            cx.free(std::mem::replace(&mut y, next));
        }
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::AsType {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let y = cast(cx, &x, self.scalar_type)?;
        cx.put(self.out, y);
        Ok(())
    }
}
