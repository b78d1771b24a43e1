//! Nodes that compute each element from the operands' elements at the same place.

use flambeau_ir as ir;
use flambeau_kernels::{
    Pool,
    elementwise::{
        erased::{Floats, Ints, compare_floats, map_ints, zip_ints},
        map_float, select, zip_float,
    },
    math::{Unary, unary},
};
use flambeau_tensor::DType;
use smallvec::{SmallVec, smallvec};

use super::{
    bits_dtype,
    copy::{bits, cast},
    float_dtype,
    int_math::Int,
};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// The element type in which a node reads its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reads {
    /// That of its result.
    AsResult,
    /// That of the operand.
    AsIs,
    /// The common type of all operands, numbers in any case.
    Common,
    Bool,
}

/// A loop over all places: operands, result.
type Run = fn(&Pool, &[&Array], &mut Array) -> Result<()>;

/// What a node computes at each place: its operands, how it reads them, and the loop over the places.
pub(crate) struct Pointwise {
    pub(crate) ins: SmallVec<[ir::In; 3]>,
    pub(crate) out: ir::Out,
    pub(crate) reads: Reads,
    /// What it is, if it is a float function.
    pub(crate) function: Option<Unary>,
    pub(crate) run: Run,
}

impl Pointwise {
    /// The element type in which operand `i` of these types is read, the result having type `out`.
    pub(crate) fn operand_type(&self, types: &[DType], i: usize, out: DType) -> DType {
        match self.reads {
            Reads::AsResult => out,
            Reads::AsIs => types[i],
            Reads::Bool => DType::Bool,
            Reads::Common => match types.iter().copied().reduce(ir::promote) {
                None | Some(DType::Bool) => DType::U8,
                Some(common) => common,
            },
        }
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let found = self.ins.iter().map(|&x| cx.get(x)).collect::<Result<SmallVec<[Array; 3]>>>()?;
        let types: SmallVec<[DType; 3]> = found.iter().map(|x| x.dtype).collect();
        let mut ins: SmallVec<[Array; 3]> = SmallVec::new();
        for (i, x) in found.iter().enumerate() {
            ins.push(cast(cx, x, self.operand_type(&types, i, spec.dtype))?);
        }
        let mut y = cx.alloc(spec.dtype, &spec.shape)?;
        let refs: SmallVec<[&Array; 3]> = ins.iter().collect();
        (self.run)(&cx.pool(), &refs, &mut y)?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// A node that is nothing but a [`Pointwise`].
trait Simple {
    fn parts(&self) -> Pointwise;
}

macro_rules! simple_nodes {
    ($($node:ident)*) => {
        $(impl Eval for ir::$node {
            fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
                self.parts().eval(cx)
            }
        })*

        /// What the node computes at each place, if that is all it does.
        pub(crate) fn pointwise(node: &ir::Node) -> Option<Pointwise> {
            match node {
                $(ir::Node::$node(n) => Some(n.parts()),)*
                _ => None,
            }
        }
    };
}

simple_nodes! {
    Silu Sigmoid Tanh Rsqrt Log Exp Sin Cos Tan Arcsin Arccos Arctan Sinh Cosh Arcsinh Arccosh Arctanh Log2 Log10 Log1p Erf Expm1
    Reciprocal Sqrt Gelu
    Floor Ceil Trunc Square Abs Neg Sign BitwiseInvert
    Add Subtract Multiply Maximum Minimum FloorDivide Remainder Power BitwiseAnd BitwiseOr BitwiseXor
    Divide Atan2 LogAddExp
    Less LessEqual Greater GreaterEqual Equal NotEqual
    LogicalAnd LogicalOr LogicalNot
}

/// A float function of the operand in the result's type.
fn float_function(pool: &Pool, op: Unary, x: &Array, y: &mut Array) -> Result<()> {
    float_dtype!(y.dtype, T => Ok(unary::<T>(pool, op, &x.view()?, &mut y.view_mut()?)?))
}

macro_rules! float_functions {
    ($($node:ident: $op:ident;)*) => { $(impl Simple for ir::$node {
        fn parts(&self) -> Pointwise {
            let run = |pool: &Pool, ins: &[&Array], y: &mut Array| float_function(pool, Unary::$op, ins[0], y);
            Pointwise { ins: smallvec![self.x], out: self.out, reads: Reads::AsResult, function: Some(Unary::$op), run }
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

impl Simple for ir::Gelu {
    fn parts(&self) -> Pointwise {
        let (op, run): (_, Run) = match self.approximate.as_str() {
            "tanh" => (Unary::GeluTanh, |pool, ins, y| float_function(pool, Unary::GeluTanh, ins[0], y)),
            _ => (Unary::Gelu, |pool, ins, y| float_function(pool, Unary::Gelu, ins[0], y)),
        };
        Pointwise { ins: smallvec![self.x], out: self.out, reads: Reads::AsResult, function: Some(op), run }
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

fn keep(pool: &Pool, x: &Array, y: &mut Array, f: impl Keep) -> Result<()> {
    match x.dtype {
        DType::Bool => {
            let table = [f.bool(false)?, f.bool(true)?];
            map_ints(pool, &x.any()?, &mut y.any_mut()?, &|block| {
                block.iter_mut().for_each(|v| *v = table[usize::from(*v != 0)].into());
            })?;
        }
        d if d.is_float() => {
            float_dtype!(d, T => Ok(map_float::<T, T, _>(pool, &x.view()?, &mut y.view_mut()?, |v| f.float(v))?))?;
        }
        _ => map_ints(pool, &x.any()?, &mut y.any_mut()?, &|block| block.iter_mut().for_each(|v| *v = f.int(*v)))?,
    }
    Ok(())
}

macro_rules! keep_nodes {
    ($($node:ident: |$x:ident| $float:expr, $int:expr, $bool:expr;)*) => { $(
        impl Simple for ir::$node {
            fn parts(&self) -> Pointwise {
                #[derive(Clone, Copy)]
                struct F;
                impl Keep for F {
                    #[inline(always)]
                    fn float(self, $x: f32) -> f32 { $float }
                    #[inline(always)]
                    fn int<T: Int>(self, $x: T) -> T { $int }
                    fn bool(self, $x: bool) -> Result<bool> { $bool }
                }
                let run = |pool: &Pool, ins: &[&Array], y: &mut Array| keep(pool, ins[0], y, F);
                Pointwise { ins: smallvec![self.x], out: self.out, reads: Reads::AsIs, function: None, run }
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
        if self.decimals >= 0 || x.dtype.is_float() {
            let mut y = cx.alloc_out(self.out)?;
            keep(&cx.pool(), &x, &mut y, f)?;
            cx.put(self.out, y);
            return Ok(());
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

/// `y = f(a, b)`, all of one type.
fn pair(pool: &Pool, a: &Array, b: &Array, y: &mut Array, f: impl Pair) -> Result<()> {
    match y.dtype {
        d if d.is_float() => float_dtype!(d, T => {
            Ok(zip_float::<T, T, T, _>(pool, &a.view()?, &b.view()?, &mut y.view_mut()?, |a, b| f.float(a, b))?)
        })?,
        DType::Bool => zip_ints(pool, &a.any()?, &b.any()?, &mut y.any_mut()?, &|a, b| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = f.bool(*a != 0, *b != 0).into());
        })?,
        _ => zip_ints(pool, &a.any()?, &b.any()?, &mut y.any_mut()?, &|a, b| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = f.int(*a, *b));
        })?,
    }
    Ok(())
}

macro_rules! pair_nodes {
    ($($node:ident: |$a:ident, $b:ident| $float:expr, $int:expr, $bool:expr;)*) => { $(
        impl Simple for ir::$node {
            fn parts(&self) -> Pointwise {
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
                let run = |pool: &Pool, ins: &[&Array], y: &mut Array| pair(pool, ins[0], ins[1], y, F);
                Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::AsResult, function: None, run }
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

/// `y = f(a, b)`, all of one floating type.
fn float_pair(pool: &Pool, a: &Array, b: &Array, y: &mut Array, f: impl Fn(f32, f32) -> f32 + Sync) -> Result<()> {
    float_dtype!(y.dtype, T => Ok(zip_float::<T, T, T, _>(pool, &a.view()?, &b.view()?, &mut y.view_mut()?, f)?))
}

macro_rules! float_pair_nodes {
    ($($node:ident: $f:expr;)*) => { $(impl Simple for ir::$node {
        fn parts(&self) -> Pointwise {
            let run = |pool: &Pool, ins: &[&Array], y: &mut Array| float_pair(pool, ins[0], ins[1], y, $f);
            Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::AsResult, function: None, run }
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
    fn test<T: PartialOrd>(self, a: &T, b: &T) -> bool;
}

fn compare(pool: &Pool, a: &Array, b: &Array, y: &mut Array, f: impl Compare) -> Result<()> {
    let (is_float, a, b, mut y) = (a.dtype.is_float(), a.any()?, b.any()?, y.any_mut()?);
    if is_float {
        let test = |a: &Floats, b: &Floats, y: &mut Ints| {
            y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = f.test(a, b).into());
        };
        return Ok(compare_floats(pool, &a, &b, &mut y, &test)?);
    }
    Ok(zip_ints(pool, &a, &b, &mut y, &|a, b| a.iter_mut().zip(b).for_each(|(a, b)| *a = f.test(&*a, b).into()))?)
}

macro_rules! compare_nodes {
    ($($node:ident: $op:tt;)*) => { $(
        impl Simple for ir::$node {
            fn parts(&self) -> Pointwise {
                #[derive(Clone, Copy)]
                struct F;
                impl Compare for F {
                    #[inline(always)]
                    fn test<T: PartialOrd>(self, a: &T, b: &T) -> bool { a $op b }
                }
                let run = |pool: &Pool, ins: &[&Array], y: &mut Array| compare(pool, ins[0], ins[1], y, F);
                Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::Common, function: None, run }
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

fn logical(pool: &Pool, a: &Array, b: &Array, y: &mut Array, f: impl Fn(bool, bool) -> bool + Sync) -> Result<()> {
    let f = |a: &mut Ints, b: &Ints| a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a != 0, *b != 0).into());
    Ok(zip_ints(pool, &a.any()?, &b.any()?, &mut y.any_mut()?, &f)?)
}

impl Simple for ir::LogicalAnd {
    fn parts(&self) -> Pointwise {
        let run = |pool: &Pool, ins: &[&Array], y: &mut Array| logical(pool, ins[0], ins[1], y, |a, b| a & b);
        Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::Bool, function: None, run }
    }
}

impl Simple for ir::LogicalOr {
    fn parts(&self) -> Pointwise {
        let run = |pool: &Pool, ins: &[&Array], y: &mut Array| logical(pool, ins[0], ins[1], y, |a, b| a | b);
        Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::Bool, function: None, run }
    }
}

impl Simple for ir::LogicalNot {
    fn parts(&self) -> Pointwise {
        let run = |pool: &Pool, ins: &[&Array], y: &mut Array| logical(pool, ins[0], ins[0], y, |a, _| !a);
        Pointwise { ins: smallvec![self.x], out: self.out, reads: Reads::Bool, function: None, run }
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
                d if d.is_float() => float_dtype!(d, T => {
                    Ok(zip_float::<T, T, T, _>(&pool, &y.view()?, &bound.view()?, &mut next.view_mut()?, |a, b| {
                        if a.is_nan() || (if is_min { a > b } else { a < b }) { a } else { b }
                    })?)
                })?,
                _ => zip_ints(&pool, &y.any()?, &bound.any()?, &mut next.any_mut()?, &|a, b| {
                    a.iter_mut().zip(b).for_each(|(a, b)| *a = if is_min { (*a).max(*b) } else { (*a).min(*b) });
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
