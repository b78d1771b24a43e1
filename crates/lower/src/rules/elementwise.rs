//! Elementwise operators: unary, binary, comparisons, selection, activations.

use flambeau_ir::{
    self as ir, Add, BitwiseInvert, In, LogicalNot, Multiply, Node, NotEqual, Power, Round, Square, Subtract, Tid, Where,
};
use flambeau_tensor::DType;

use super::{RuleRow, one, ops, row};
use crate::{Arg, Call, Item, Lower, Operand, Refuse, lower::NEW, result_type};

type Items = Result<Vec<Item>, Refuse>;

/// Rule of a node `x → out`, computed in the result's type.
macro_rules! unary {
    ($node:ident) => {
        |cx, call| {
            let x = call.tensor("self")?;
            let x = cx.cast(x, call.out(0)?.dtype)?;
            one(cx.emit(ir::$node { x: In(x), out: NEW })?)
        }
    };
}

/// Rule of a node `a, b → out`, computed in the result's type.
macro_rules! binary {
    ($node:ident) => {
        |cx, call| {
            let dtype = call.out(0)?.dtype;
            let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
            one(cx.emit(ir::$node { a: In(a), b: In(b), out: NEW })?)
        }
    };
}

/// Rule of a node `a, b → bool` that compares in the promoted type of the operands.
macro_rules! comparison {
    ($node:ident) => {
        |cx, call| {
            let dtype = promoted(cx, call, &["self", "other"])?;
            let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
            one(cx.emit(ir::$node { a: In(a), b: In(b), out: NEW })?)
        }
    };
}

/// Rule of a node that reads operands of any type as truth values.
macro_rules! logical {
    ($node:ident) => {
        |cx, call| {
            let (a, b) = (call.tensor("self")?, call.tensor("other")?);
            one(cx.emit(ir::$node { a: In(a), b: In(b), out: NEW })?)
        }
    };
}

/// PyTorch's promotion over the named arguments.
pub(super) fn promoted(cx: &Lower, call: &Call, params: &[&str]) -> Result<DType, Refuse> {
    let operand = |param: &&str| match call.arg(param) {
        Some(arg) => Ok(Operand::of(cx, arg)),
        None => Err(Refuse::Missing((*param).to_owned())),
    };
    let operands = params.iter().map(operand).collect::<Result<Vec<_>, _>>()?;
    Ok(result_type(&operands))
}

/// `b * alpha`, for the operators that scale their second operand.
fn scaled(cx: &mut Lower, call: &Call, b: Tid, dtype: DType) -> Result<Tid, Refuse> {
    let alpha = call.float_or("alpha", 1.0)?;
    if alpha == 1.0 {
        return Ok(b);
    }
    let alpha = cx.number(alpha, dtype)?;
    cx.emit(Multiply { a: In(b), b: In(alpha), out: NEW })
}

fn add(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
    let b = scaled(cx, call, b, dtype)?;
    one(cx.emit(Add { a: In(a), b: In(b), out: NEW })?)
}

fn sub(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
    let b = scaled(cx, call, b, dtype)?;
    one(cx.emit(Subtract { a: In(a), b: In(b), out: NEW })?)
}

fn rsub(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
    let a = scaled(cx, call, a, dtype)?;
    one(cx.emit(Subtract { a: In(b), b: In(a), out: NEW })?)
}

fn pow(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let exponent = match call.arg("exponent") {
        Some(Arg::Tensor(_)) => None,
        _ => call.float_or("exponent", 1.0).ok(),
    };
    let a = cx.operand(call, "self", dtype)?;
    if exponent == Some(2.0) {
        return one(cx.emit(Square { x: In(a), out: NEW })?);
    }
    // PyTorch takes roots, which are NaN for minus infinity, but not in f16.
    match exponent {
        Some(0.5) if matches!(dtype, DType::F32 | DType::BF16) => return one(ops::sqrt(cx, a)?),
        Some(-0.5) if matches!(dtype, DType::F32 | DType::BF16) => return one(ops::rsqrt(cx, a)?),
        _ => {}
    }
    let b = cx.operand(call, "exponent", dtype)?;
    let power = cx.emit(Power { a: In(a), b: In(b), out: NEW })?;
    if dtype.is_float() || matches!(dtype, DType::U8 | DType::Bool) || exponent.is_some_and(|e| e >= 0.0) {
        return one(power);
    }
    one(inverse_powers(cx, a, b, power)?)
}

/// Negative powers of integers: zero unless the base is 1 or -1.
fn inverse_powers(cx: &mut Lower, a: Tid, b: Tid, power: Tid) -> Result<Tid, Refuse> {
    let [zero, unit, two] = [0.0, 1.0, 2.0].map(|v| ops::number_like(cx, a, v));
    let (zero, unit) = (zero?, unit?);
    let magnitude = ops::abs(cx, a)?;
    let (inverse, is_unit) = (ops::lt(cx, b, zero)?, ops::eq(cx, magnitude, unit)?);
    let odd = ops::remainder(cx, b, two?)?;
    let even = ops::eq(cx, odd, zero)?;
    let own = ops::select(cx, even, unit, a)?;
    let applies = ops::logical_and(cx, inverse, is_unit)?;
    ops::select(cx, applies, own, power)
}

fn bitwise_not(cx: &mut Lower, call: &Call) -> Items {
    let x = In(call.tensor("self")?);
    let node: Node =
        if call.out(0)?.dtype == DType::Bool { LogicalNot { x, out: NEW }.into() } else { BitwiseInvert { x, out: NEW }.into() };
    one(cx.emit(node)?)
}

fn logical_not(cx: &mut Lower, call: &Call) -> Items {
    one(cx.emit(LogicalNot { x: In(call.tensor("self")?), out: NEW })?)
}

fn logical_xor(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = (cx.operand(call, "self", DType::Bool)?, cx.operand(call, "other", DType::Bool)?);
    one(cx.emit(NotEqual { a: In(a), b: In(b), out: NEW })?)
}

fn isnan(cx: &mut Lower, call: &Call) -> Items {
    let x = In(call.tensor("self")?);
    one(cx.emit(NotEqual { a: x, b: x, out: NEW })?)
}

fn isinf(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if !cx.spec(x).dtype.is_float() {
        return one(ops::ne(cx, x, x)?);
    }
    let inf = ops::number_like(cx, x, f64::INFINITY)?;
    let magnitude = ops::abs(cx, x)?;
    one(ops::eq(cx, magnitude, inf)?)
}

fn round(cx: &mut Lower, call: &Call) -> Items {
    let decimals = call.int_or("decimals", 0)? as i32;
    one(cx.emit(Round { x: In(call.tensor("self")?), out: NEW, decimals })?)
}

fn where_self(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let condition = In(call.tensor("condition")?);
    let (x, y) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
    one(cx.emit(Where { condition, x: In(x), y: In(y), out: NEW })?)
}

fn masked_fill(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (mask, x) = (In(call.tensor("mask")?), cx.operand(call, "self", dtype)?);
    let value = cx.operand(call, "value", dtype)?;
    one(cx.emit(Where { condition: mask, x: In(value), y: In(x), out: NEW })?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.abs.default", unary!(Abs)),
    row("aten.acos.default", unary!(Arccos)),
    row("aten.acosh.default", unary!(Arccosh)),
    row("aten.add.Scalar", add),
    row("aten.add.Tensor", add),
    row("aten.__and__.Tensor", binary!(BitwiseAnd)),
    row("aten.__and__.Scalar", binary!(BitwiseAnd)),
    row("aten.__or__.Tensor", binary!(BitwiseOr)),
    row("aten.__or__.Scalar", binary!(BitwiseOr)),
    row("aten.__xor__.Tensor", binary!(BitwiseXor)),
    row("aten.asin.default", unary!(Arcsin)),
    row("aten.asinh.default", unary!(Arcsinh)),
    row("aten.atan.default", unary!(Arctan)),
    row("aten.atan2.default", binary!(Atan2)),
    row("aten.atanh.default", unary!(Arctanh)),
    row("aten.bitwise_and.Scalar", binary!(BitwiseAnd)),
    row("aten.bitwise_and.Scalar_Tensor", binary!(BitwiseAnd)),
    row("aten.bitwise_and.Tensor", binary!(BitwiseAnd)),
    row("aten.bitwise_not.default", bitwise_not),
    row("aten.bitwise_or.Scalar", binary!(BitwiseOr)),
    row("aten.bitwise_or.Scalar_Tensor", binary!(BitwiseOr)),
    row("aten.bitwise_or.Tensor", binary!(BitwiseOr)),
    row("aten.bitwise_xor.Scalar", binary!(BitwiseXor)),
    row("aten.bitwise_xor.Scalar_Tensor", binary!(BitwiseXor)),
    row("aten.bitwise_xor.Tensor", binary!(BitwiseXor)),
    row("aten.ceil.default", unary!(Ceil)),
    row("aten.cos.default", unary!(Cos)),
    row("aten.cosh.default", unary!(Cosh)),
    row("aten.div.Scalar", binary!(Divide)),
    row("aten.div.Tensor", binary!(Divide)),
    row("aten.eq.Scalar", comparison!(Equal)),
    row("aten.eq.Tensor", comparison!(Equal)),
    row("aten.erf.default", unary!(Erf)),
    row("aten.exp.default", unary!(Exp)),
    row("aten.expm1.default", unary!(Expm1)),
    row("aten.floor.default", unary!(Floor)),
    row("aten.ge.Scalar", comparison!(GreaterEqual)),
    row("aten.ge.Tensor", comparison!(GreaterEqual)),
    row("aten.gt.Scalar", comparison!(Greater)),
    row("aten.gt.Tensor", comparison!(Greater)),
    row("aten.isinf.default", isinf),
    row("aten.isnan.default", isnan),
    row("aten.le.Scalar", comparison!(LessEqual)),
    row("aten.le.Tensor", comparison!(LessEqual)),
    row("aten.log.default", unary!(Log)),
    row("aten.log10.default", unary!(Log10)),
    row("aten.log1p.default", unary!(Log1p)),
    row("aten.log2.default", unary!(Log2)),
    row("aten.logaddexp.default", binary!(LogAddExp)),
    row("aten.logical_and.default", logical!(LogicalAnd)),
    row("aten.logical_not.default", logical_not),
    row("aten.logical_or.default", logical!(LogicalOr)),
    row("aten.logical_xor.default", logical_xor),
    row("aten.lt.Scalar", comparison!(Less)),
    row("aten.lt.Tensor", comparison!(Less)),
    row("aten.masked_fill.Scalar", masked_fill),
    row("aten.masked_fill.Tensor", masked_fill),
    row("aten.max.other", binary!(Maximum)),
    row("aten.maximum.default", binary!(Maximum)),
    row("aten.min.other", binary!(Minimum)),
    row("aten.minimum.default", binary!(Minimum)),
    row("aten.mul.Scalar", binary!(Multiply)),
    row("aten.mul.Tensor", binary!(Multiply)),
    row("aten.ne.Scalar", comparison!(NotEqual)),
    row("aten.ne.Tensor", comparison!(NotEqual)),
    row("aten.neg.default", unary!(Neg)),
    row("aten.pow.Scalar", pow),
    row("aten.pow.Tensor_Scalar", pow),
    row("aten.pow.Tensor_Tensor", pow),
    row("aten.reciprocal.default", unary!(Reciprocal)),
    row("aten.remainder.Scalar", binary!(Remainder)),
    row("aten.remainder.Tensor", binary!(Remainder)),
    row("aten.round.decimals", round),
    row("aten.round.default", round),
    row("aten.rsqrt.default", unary!(Rsqrt)),
    row("aten.rsub.Scalar", rsub),
    row("aten.rsub.Tensor", rsub),
    row("aten.sigmoid.default", unary!(Sigmoid)),
    row("aten.sign.default", unary!(Sign)),
    row("aten.sin.default", unary!(Sin)),
    row("aten.sinh.default", unary!(Sinh)),
    row("aten.sqrt.default", unary!(Sqrt)),
    row("aten.square.default", unary!(Square)),
    row("aten.sub.Scalar", sub),
    row("aten.sub.Tensor", sub),
    row("aten.tan.default", unary!(Tan)),
    row("aten.tanh.default", unary!(Tanh)),
    row("aten.trunc.default", unary!(Trunc)),
    row("aten.where.Scalar", where_self),
    row("aten.where.ScalarOther", where_self),
    row("aten.where.ScalarSelf", where_self),
    row("aten.where.self", where_self),
    row("aten.__xor__.Scalar", binary!(BitwiseXor)),
    row("aten.absolute.default", unary!(Abs)),
    row("aten.arccos.default", unary!(Arccos)),
    row("aten.arccosh.default", unary!(Arccosh)),
    row("aten.arcsin.default", unary!(Arcsin)),
    row("aten.arcsinh.default", unary!(Arcsinh)),
    row("aten.arctan.default", unary!(Arctan)),
    row("aten.arctan2.default", binary!(Atan2)),
    row("aten.arctanh.default", unary!(Arctanh)),
    row("aten.divide.Scalar", binary!(Divide)),
    row("aten.divide.Tensor", binary!(Divide)),
    row("aten.fix.default", unary!(Trunc)),
    row("aten.greater.Scalar", comparison!(Greater)),
    row("aten.greater.Tensor", comparison!(Greater)),
    row("aten.greater_equal.Scalar", comparison!(GreaterEqual)),
    row("aten.greater_equal.Tensor", comparison!(GreaterEqual)),
    row("aten.less.Scalar", comparison!(Less)),
    row("aten.less.Tensor", comparison!(Less)),
    row("aten.less_equal.Scalar", comparison!(LessEqual)),
    row("aten.less_equal.Tensor", comparison!(LessEqual)),
    row("aten.multiply.Scalar", binary!(Multiply)),
    row("aten.multiply.Tensor", binary!(Multiply)),
    row("aten.negative.default", unary!(Neg)),
    row("aten.not_equal.Scalar", comparison!(NotEqual)),
    row("aten.not_equal.Tensor", comparison!(NotEqual)),
    row("aten.remainder.Scalar_Tensor", binary!(Remainder)),
    row("aten.sgn.default", unary!(Sign)),
    row("aten.special_erf.default", unary!(Erf)),
    row("aten.special_expit.default", unary!(Sigmoid)),
    row("aten.special_expm1.default", unary!(Expm1)),
    row("aten.special_log1p.default", unary!(Log1p)),
    row("aten.special_round.default", round),
    row("aten.subtract.Scalar", sub),
    row("aten.subtract.Tensor", sub),
    row("aten.true_divide.Scalar", binary!(Divide)),
    row("aten.true_divide.Tensor", binary!(Divide)),
    // The test operator that ExecuTorch's own kernel cases register.
    row("mlx_test.vadd.default", |cx, call| {
        let dtype = call.out(0)?.dtype;
        let (a, b) = (cx.operand(call, "a", dtype)?, cx.operand(call, "b", dtype)?);
        one(ops::add(cx, a, b)?)
    }),
];
