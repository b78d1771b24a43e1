//! Nodes that compute each element from the operands' elements at the same place.

use flambeau_ir as ir;
use flambeau_kernels::{
    Pool,
    elementwise::{
        erased::{Floats, Ints, compare_floats, map_ints, zip_ints},
        map_float, select, zip_float,
    },
    math::Unary,
};
use flambeau_tensor::DType;
use smallvec::{SmallVec, smallvec};

use super::{
    bits_dtype,
    copy::{as_bits, bits},
    float_dtype,
    int_math::Int,
};
use crate::{
    array::Array,
    error::{OpError, Result},
    machine::Context,
    obstacle::Prepared,
    plan::{Fusible, MemRef, Planner},
    prepare::Prepare,
};

/// The element type in which a node reads its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reads {
    /// The result's type.
    AsResult,
    /// The common type of all operands, numbers in any case.
    Common,
    Bool,
}

/// A loop over all places: operands, result.
type Run = fn(&Pool, &[Array], &mut Array) -> Result<()>;

/// How the elements are computed.
enum Loop {
    /// A floating-point result, in a pass that other nodes may join.
    Fused(Fusible),
    /// Like `Fused` for a floating-point result; a separate loop for others.
    FusedFloats(Fusible, Run),
    Alone(Run),
}

/// An element-by-element computation: its operands, their types, and the loop over the elements.
struct Pointwise {
    ins: SmallVec<[ir::In; 3]>,
    out: ir::Out,
    reads: Reads,
    each: Loop,
}

impl Pointwise {
    /// The element type in which operands of these types are read, the result having type `out`.
    fn operand_type(&self, types: &[DType], out: DType) -> DType {
        match self.reads {
            Reads::AsResult => out,
            Reads::Bool => DType::Bool,
            Reads::Common => match types.iter().copied().reduce(ir::promote) {
                None | Some(DType::Bool) => DType::U8,
                Some(common) => common,
            },
        }
    }

    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let spec = p.spec(self.out)?;
        let run = match self.each {
            Loop::Fused(op) => return p.fuse(op, &self.ins, self.out),
            Loop::FusedFloats(op, _) if spec.dtype.is_float() => return p.fuse(op, &self.ins, self.out),
            Loop::FusedFloats(_, run) | Loop::Alone(run) => run,
        };
        let mut ins = p.operands(&self.ins)?;
        let types: SmallVec<[DType; 3]> = ins.iter().map(|x| x.array.dtype).collect();
        let read_as = self.operand_type(&types, spec.dtype);
        // One loop for all floats: these functions cost more than their operands' conversion.
        let computed_in = |dtype: DType| if spec.dtype.is_float() { DType::F32 } else { dtype };
        for x in &mut ins {
            let rounded = p.in_type(x.clone(), read_as)?;
            *x = p.in_type(rounded, computed_in(read_as))?;
        }
        let ins: SmallVec<[&MemRef; 3]> = ins.iter().collect();
        let y = p.call(&ins, (computed_in(spec.dtype), &spec.shape), move |cx, ins, y| run(&cx.pool, ins, y))?;
        let y = p.in_type(y, spec.dtype)?;
        p.put(self.out, y);
        Ok(())
    }
}

/// A node that consists of one [`Pointwise`].
trait Simple {
    fn parts(&self) -> Pointwise;
}

macro_rules! simple_nodes {
    ($($node:ident)*) => { $(impl Prepare for ir::$node {
        fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
            self.parts().prepare(p)
        }
    })* };
}

simple_nodes! {
    Floor Ceil Trunc Square Abs Neg Sign BitwiseInvert
    Add Subtract Multiply Maximum Minimum FloorDivide Remainder Power BitwiseAnd BitwiseOr BitwiseXor
    Divide Atan2 LogAddExp
    Less LessEqual Greater GreaterEqual Equal NotEqual
    LogicalAnd LogicalOr LogicalNot
}

/// A function of floats, computed in `f32`.
fn function(x: ir::In, out: ir::Out, op: Unary) -> Pointwise {
    Pointwise { ins: smallvec![x], out, reads: Reads::AsResult, each: Loop::Fused(Fusible::Function(op)) }
}

macro_rules! float_function {
    ($name:ident) => {
        impl Prepare for ir::$name {
            fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
                function(self.x, self.out, Unary::$name).prepare(p)
            }
        }
    };
}
ir::for_each_float_function!(float_function);
float_function!(Silu);

impl Prepare for ir::Gelu {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let op = if self.approximate == "tanh" { Unary::GeluTanh } else { Unary::Gelu };
        function(self.x, self.out, op).prepare(p)
    }
}

/// A function on integer and boolean elements that keeps the element type.
trait KeepExact: Copy + Sync {
    fn int<T: Int>(self, x: T) -> T;
    /// Bools pass through unless the function says otherwise.
    fn bool(self, x: bool) -> Result<bool> {
        Ok(x)
    }
}

/// A function that keeps the element type, floats being `f32`.
trait Keep: KeepExact {
    fn float(self, x: f32) -> f32;
}

fn keep_exact(pool: &Pool, x: &Array, y: &mut Array, f: impl KeepExact) -> Result<()> {
    match x.dtype {
        DType::Bool => {
            let table = [f.bool(false)?, f.bool(true)?];
            map_ints(pool, &x.any()?, &mut y.any_mut()?, &|block| {
                block.iter_mut().for_each(|v| *v = table[usize::from(*v != 0)].into());
            })?;
        }
        d if d.is_float() => return Err(OpError::DType(d)),
        _ => map_ints(pool, &x.any()?, &mut y.any_mut()?, &|block| block.iter_mut().for_each(|v| *v = f.int(*v)))?,
    }
    Ok(())
}

fn keep(pool: &Pool, x: &Array, y: &mut Array, f: impl Keep) -> Result<()> {
    if !x.dtype.is_float() {
        return keep_exact(pool, x, y, f);
    }
    Ok(map_float::<f32, f32, _>(pool, &x.view()?, &mut y.view_mut()?, |v| f.float(v))?)
}

/// Functions of a float, where nothing else computes them, of an integer and of a bool.
macro_rules! keep_nodes {
    ($($node:ident: |$x:ident| $float:tt, $int:expr, $bool:expr;)*) => { $(
        impl Simple for ir::$node {
            fn parts(&self) -> Pointwise {
                #[derive(Clone, Copy)]
                struct F;
                impl KeepExact for F {
                    #[inline(always)]
                    fn int<T: Int>(self, $x: T) -> T { $int }
                    fn bool(self, $x: bool) -> Result<bool> { $bool }
                }
                let each = keep_nodes!(@each F, $x, $float);
                Pointwise { ins: smallvec![self.x], out: self.out, reads: Reads::AsResult, each }
            }
        }
    )* };
    (@each $f:ident, $x:ident, [$op:ident]) => {
        Loop::FusedFloats(Fusible::$op, |pool, ins, y| keep_exact(pool, &ins[0], y, $f))
    };
    (@each $f:ident, $x:ident, none) => {
        Loop::Alone(|pool, ins, y| keep_exact(pool, &ins[0], y, $f))
    };
    (@each $f:ident, $x:ident, ($float:expr)) => {{
        impl Keep for $f {
            #[inline(always)]
            fn float(self, $x: f32) -> f32 { $float }
        }
        Loop::Alone(|pool, ins, y| keep(pool, &ins[0], y, $f))
    }};
}

keep_nodes! {
    Floor: |x| (x.floor()), x, Ok(x);
    Ceil: |x| (x.ceil()), x, Ok(x);
    Trunc: |x| (x.trunc()), x, Ok(x);
    Square: |x| [Multiply], x.mul(x), Ok(x);
    Abs: |x| [Abs], x.magnitude(), Ok(x);
    Neg: |x| [Neg], x.neg(), Err(no_bool(x));
    Sign: |x| (if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { 0.0 }), x.signum_of(), Ok(x);
    BitwiseInvert: |x| none, x.invert(), Ok(!x);
}

fn no_bool(_: bool) -> OpError {
    OpError::DType(DType::Bool)
}

/// To a number of decimal places; integers only change for negative numbers of them.
#[derive(Clone, Copy)]
struct RoundTo {
    scale: f32,
}

impl KeepExact for RoundTo {
    fn int<T: Int>(self, x: T) -> T {
        x
    }
}

impl Keep for RoundTo {
    #[inline(always)]
    fn float(self, x: f32) -> f32 {
        if self.scale == 1.0 { x.round_ties_even() } else { (x * self.scale).round_ties_even() * (1.0 / self.scale) }
    }
}

impl Prepare for ir::Round {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let f = RoundTo { scale: 10f32.powi(self.decimals) };
        let x = p.operand(self.x)?;
        let dtype = x.array.dtype;
        let through = if self.decimals >= 0 && !dtype.is_float() { dtype } else { DType::F32 };
        let shape = x.array.shape.clone();
        let x = p.in_type(x, through)?;
        let y = p.call(&[&x], (through, &shape), move |cx, ins, y| keep(&cx.pool, &ins[0], y, f))?;
        let y = p.in_type(y, dtype)?;
        p.put(self.out, y);
        Ok(())
    }
}

/// A function of two operands in their common type, which is no float.
trait PairExact: Copy + Sync {
    fn int<T: Int>(self, a: T, b: T) -> T;
    fn bool(self, a: bool, b: bool) -> bool;
}

/// `y = f(a, b)`, all of one type.
fn pair_exact(pool: &Pool, [a, b]: [&Array; 2], y: &mut Array, f: impl PairExact) -> Result<()> {
    match y.dtype {
        DType::Bool => zip_ints(pool, &a.any()?, &b.any()?, &mut y.any_mut()?, &|a, b| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = f.bool(*a != 0, *b != 0).into());
        })?,
        d if d.is_float() => return Err(OpError::DType(d)),
        _ => zip_ints(pool, &a.any()?, &b.any()?, &mut y.any_mut()?, &|a, b| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = f.int(*a, *b));
        })?,
    }
    Ok(())
}

/// Functions of two floats, where nothing else computes them, of two integers and of two bools.
macro_rules! pair_nodes {
    ($($node:ident: |$a:ident, $b:ident| $float:tt, $int:expr, $bool:expr;)*) => { $(
        impl Simple for ir::$node {
            fn parts(&self) -> Pointwise {
                #[derive(Clone, Copy)]
                struct F;
                impl PairExact for F {
                    #[inline(always)]
                    fn int<T: Int>(self, $a: T, $b: T) -> T { $int }
                    #[inline(always)]
                    fn bool(self, $a: bool, $b: bool) -> bool { $bool }
                }
                let each = pair_nodes!(@each $a, $b, $float);
                Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::AsResult, each }
            }
        }
    )* };
    (@each $a:ident, $b:ident, [$op:ident]) => {
        Loop::FusedFloats(Fusible::$op, |pool, ins, y| pair_exact(pool, [&ins[0], &ins[1]], y, F))
    };
    (@each $a:ident, $b:ident, none) => {
        Loop::Alone(|pool, ins, y| pair_exact(pool, [&ins[0], &ins[1]], y, F))
    };
    (@each $a:ident, $b:ident, ($float:expr)) => {
        Loop::Alone(|pool, ins, y| {
            if y.dtype.is_float() {
                return float_pair(pool, [&ins[0], &ins[1]], y, |$a: f32, $b: f32| $float);
            }
            pair_exact(pool, [&ins[0], &ins[1]], y, F)
        })
    };
}

pair_nodes! {
    Add: |a, b| [Add], a.add(b), a | b;
    Subtract: |a, b| [Subtract], a.sub(b), a ^ b;
    Multiply: |a, b| [Multiply], a.mul(b), a & b;
    Maximum: |a, b| [Maximum], a.max(b), a | b;
    Minimum: |a, b| [Minimum], a.min(b), a & b;
    FloorDivide: |a, b| ((a / b).floor()), a.floor_div(b), a & b;
    Remainder: |a, b| (remainder(a, b)), a.floor_rem(b), a & !b;
    Power: |a, b| (a.powf(b)), a.power(b), a | !b;
    BitwiseAnd: |a, b| none, a.and(b), a & b;
    BitwiseOr: |a, b| none, a.or(b), a | b;
    BitwiseXor: |a, b| none, a.xor(b), a ^ b;
}

/// `y = f(a, b)`, all `f32`.
fn float_pair(pool: &Pool, [a, b]: [&Array; 2], y: &mut Array, f: impl Fn(f32, f32) -> f32 + Sync) -> Result<()> {
    Ok(zip_float::<f32, f32, f32, _>(pool, &a.view()?, &b.view()?, &mut y.view_mut()?, f)?)
}

macro_rules! float_pair_nodes {
    ($($node:ident: $each:expr;)*) => { $(impl Simple for ir::$node {
        fn parts(&self) -> Pointwise {
            Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::AsResult, each: $each }
        }
    })* };
}

float_pair_nodes! {
    Divide: Loop::Fused(Fusible::Divide);
    Atan2: Loop::Alone(|pool, ins, y| float_pair(pool, [&ins[0], &ins[1]], y, f32::atan2));
    LogAddExp: Loop::Alone(|pool, ins, y| float_pair(pool, [&ins[0], &ins[1]], y, log_add_exp));
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
                let each = Loop::Alone(|pool, ins, y| compare(pool, &ins[0], &ins[1], y, F));
                Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::Common, each }
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
        let each = Loop::Alone(|pool, ins, y| logical(pool, &ins[0], &ins[1], y, |a, b| a & b));
        Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::Bool, each }
    }
}

impl Simple for ir::LogicalOr {
    fn parts(&self) -> Pointwise {
        let each = Loop::Alone(|pool, ins, y| logical(pool, &ins[0], &ins[1], y, |a, b| a | b));
        Pointwise { ins: smallvec![self.a, self.b], out: self.out, reads: Reads::Bool, each }
    }
}

impl Simple for ir::LogicalNot {
    fn parts(&self) -> Pointwise {
        let each = Loop::Alone(|pool, ins, y| logical(pool, &ins[0], &ins[0], y, |a, _| !a));
        Pointwise { ins: smallvec![self.x], out: self.out, reads: Reads::Bool, each }
    }
}

impl Prepare for ir::Where {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let spec = p.spec(self.out)?;
        let (condition, x, y) = (p.operand(self.condition)?, p.operand(self.x)?, p.operand(self.y)?);
        let condition = p.in_type(condition, DType::Bool)?;
        let (x, y) = (p.in_type(x, spec.dtype)?, p.in_type(y, spec.dtype)?);
        let out = p.call(&[&condition, &x, &y], (spec.dtype, &spec.shape), |cx, ins, out| {
            let (x, y) = (bits(ins[1].clone()), bits(ins[2].clone()));
            as_bits(out, |out| {
                bits_dtype!(x.dtype, T => {
                    Ok(select::<T>(&cx.pool, &ins[0].view()?, &x.view()?, &y.view()?, &mut out.view_mut()?)?)
                })
            })
        })?;
        p.put(self.out, out);
        Ok(())
    }
}

/// `y = max(x, bound)`, or the smaller of them; NaN of `x` stays.
fn clip(cx: &mut Context, x: &Array, bound: &Array, y: &mut Array, is_min: bool) -> Result<()> {
    match y.dtype {
        d if d.is_float() => float_dtype!(d, T => {
            Ok(zip_float::<T, T, T, _>(&cx.pool, &x.view()?, &bound.view()?, &mut y.view_mut()?, |a, b| {
                if a.is_nan() || (if is_min { a > b } else { a < b }) { a } else { b }
            })?)
        }),
        _ => Ok(zip_ints(&cx.pool, &x.any()?, &bound.any()?, &mut y.any_mut()?, &|a, b| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = if is_min { (*a).max(*b) } else { (*a).min(*b) });
        })?),
    }
}

impl Prepare for ir::Clip {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let spec = p.spec(self.out)?;
        let (x, bounds) = (p.operand(self.x)?, [p.operand_opt(self.a_min)?, p.operand_opt(self.a_max)?]);
        let mut y = p.in_type(x, spec.dtype)?;
        for (bound, is_min) in bounds.into_iter().zip([true, false]) {
            let Some(bound) = bound else { continue };
            let bound = p.in_type(bound, spec.dtype)?;
            y = p.call(&[&y, &bound], (spec.dtype, &spec.shape), move |cx, ins, y| clip(cx, &ins[0], &ins[1], y, is_min))?;
        }
        p.put(self.out, y);
        Ok(())
    }
}

impl Prepare for ir::AsType {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let from = p.dtype(self.x)?;
        if from != self.scalar_type && from.is_float() && self.scalar_type.is_float() {
            return p.fuse(Fusible::Cast, &[self.x], self.out);
        }
        let x = p.operand(self.x)?;
        let y = p.in_type(x, self.scalar_type)?;
        p.put(self.out, y);
        Ok(())
    }
}
