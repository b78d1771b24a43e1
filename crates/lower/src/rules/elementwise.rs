//! Elementwise operators: unary, binary, comparisons, selection, activations.

use flambeau_ir::{
    Abs, Add, Arccos, Arccosh, Arcsin, Arcsinh, Arctan, Arctanh, Atan2, BitwiseAnd, BitwiseInvert, BitwiseOr, BitwiseXor, Ceil,
    Cos, Cosh, Divide, Equal, Erf, Exp, Expm1, Floor, Greater, GreaterEqual, In, Less, LessEqual, Log, Log1p, Log2, Log10,
    LogAddExp, LogicalAnd, LogicalNot, LogicalOr, Maximum, Minimum, Multiply, Neg, Node, NotEqual, Power, Reciprocal, Remainder,
    Round, Rsqrt, Sigmoid, Sign, Sin, Sinh, Sqrt, Square, Subtract, Tan, Tanh, Tid, Trunc, Where,
};
use flambeau_tensor::{DType, DTypeClass};

use super::{RuleRow, one, ops, row};
use crate::{Arg, Call, Item, Lower, Operand, Refuse, call::unsupported, lower::NEW, result_type};

type Items = Result<Vec<Item>, Refuse>;

/// Nodes `x → out` that compute in the type of the result.
macro_rules! unary {
    ($($name:ident => $node:ident),* $(,)?) => { $(
        fn $name(cx: &mut Lower, call: &Call) -> Items {
            let x = call.tensor("self")?;
            let x = cx.cast(x, call.out(0)?.dtype)?;
            one(cx.emit($node { x: In(x), out: NEW })?)
        }
    )* };
}

unary! {
    abs => Abs, acos => Arccos, acosh => Arccosh, asin => Arcsin, asinh => Arcsinh, atan => Arctan, atanh => Arctanh, ceil => Ceil,
    cos => Cos, cosh => Cosh, erf => Erf, exp => Exp, expm1 => Expm1, floor => Floor, log => Log, log10 => Log10, log1p => Log1p,
    log2 => Log2, neg => Neg, reciprocal => Reciprocal, rsqrt => Rsqrt, sigmoid => Sigmoid, sign => Sign, sin => Sin,
    sinh => Sinh, sqrt => Sqrt, square => Square, tan => Tan, tanh => Tanh, trunc => Trunc,
}

/// Nodes `a, b → out` that compute in the type of the result.
macro_rules! binary {
    ($($name:ident => $node:ident),* $(,)?) => { $(
        fn $name(cx: &mut Lower, call: &Call) -> Items {
            let dtype = call.out(0)?.dtype;
            let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
            one(cx.emit($node { a: In(a), b: In(b), out: NEW })?)
        }
    )* };
}

binary! {
    atan2 => Atan2, bitwise_and => BitwiseAnd, bitwise_or => BitwiseOr, bitwise_xor => BitwiseXor, divide => Divide,
    logaddexp => LogAddExp, maximum => Maximum, minimum => Minimum, multiply => Multiply,
    remainder => Remainder,
}

/// Nodes `a, b → bool` that compare in the promoted type of the operands.
macro_rules! comparison {
    ($($name:ident => $node:ident),* $(,)?) => { $(
        fn $name(cx: &mut Lower, call: &Call) -> Items {
            let dtype = promoted(cx, call, &["self", "other"])?;
            let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
            one(cx.emit($node { a: In(a), b: In(b), out: NEW })?)
        }
    )* };
}

comparison! {
    eq => Equal, ge => GreaterEqual, gt => Greater, le => LessEqual, lt => Less, ne => NotEqual,
}

/// Nodes that see their operands as truth values, whatever their types.
macro_rules! logical {
    ($($name:ident => $node:ident),* $(,)?) => { $(
        fn $name(cx: &mut Lower, call: &Call) -> Items {
            let (a, b) = (call.tensor("self")?, call.tensor("other")?);
            one(cx.emit($node { a: In(a), b: In(b), out: NEW })?)
        }
    )* };
}

logical! { logical_and => LogicalAnd, logical_or => LogicalOr }

/// PyTorch's promotion over the named arguments.
pub(super) fn promoted(cx: &Lower, call: &Call, params: &[&str]) -> Result<DType, Refuse> {
    let mut operands = Vec::new();
    for param in params {
        operands.push(match call.arg(param) {
            Some(Arg::Tensor(t)) if cx.spec(*t).rank() == 0 => Operand::ZeroDim(cx.spec(*t).dtype),
            Some(Arg::Tensor(t)) => Operand::Tensor(cx.spec(*t).dtype),
            Some(Arg::Bool(_)) => Operand::Number(DTypeClass::Bool),
            Some(Arg::Int(_)) => Operand::Number(DTypeClass::Integer),
            Some(_) => Operand::Number(DTypeClass::Float),
            None => return Err(Refuse::Missing((*param).to_owned())),
        });
    }
    Ok(result_type(&operands))
}

/// `b * alpha` for the operators that scale their second operand.
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

fn floor_divide(cx: &mut Lower, call: &Call) -> Items {
    let dtype = ops::wide(call.out(0)?.dtype);
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
    one(ops::floor_div(cx, a, b)?)
}

fn div_mode(cx: &mut Lower, call: &Call) -> Items {
    // PyTorch rounds the quotient of two tensors of halves before it cuts it, and only that one.
    let number = call.tensor("other").map_or(true, |t| cx.spec(t).rank() == 0);
    let cuts = call.str_or("rounding_mode", "")? == "trunc";
    let dtype = if cuts && !number { call.out(0)?.dtype } else { ops::wide(call.out(0)?.dtype) };
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
    match call.str_or("rounding_mode", "")? {
        "" => one(cx.emit(Divide { a: In(a), b: In(b), out: NEW })?),
        "floor" => one(ops::floor_div(cx, a, b)?),
        "trunc" if dtype.is_float() => {
            let quotient = cx.emit(Divide { a: In(a), b: In(b), out: NEW })?;
            one(cx.emit(Trunc { x: In(quotient), out: NEW })?)
        }
        "trunc" => one(trunc_divide_integers(cx, a, b)?),
        other => unsupported(format!("rounding mode {other:?}")),
    }
}

/// `|a| // |b|` with the sign of the true quotient; exact for every integer but the most negative one.
fn trunc_divide_integers(cx: &mut Lower, a: Tid, b: Tid) -> Result<Tid, Refuse> {
    let (abs_a, abs_b) = (cx.emit(Abs { x: In(a), out: NEW })?, cx.emit(Abs { x: In(b), out: NEW })?);
    let magnitude = ops::floor_div(cx, abs_a, abs_b)?;
    let (sign_a, sign_b) = (cx.emit(Sign { x: In(a), out: NEW })?, cx.emit(Sign { x: In(b), out: NEW })?);
    let sign = cx.emit(Multiply { a: In(sign_a), b: In(sign_b), out: NEW })?;
    cx.emit(Multiply { a: In(magnitude), b: In(sign), out: NEW })
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
    let b = cx.operand(call, "exponent", dtype)?;
    let power = cx.emit(Power { a: In(a), b: In(b), out: NEW })?;
    if dtype.is_float() || matches!(dtype, DType::U8 | DType::Bool) || exponent.is_some_and(|e| e >= 0.0) {
        return one(power);
    }
    one(inverse_powers(cx, a, b, power)?)
}

/// Negative powers of integers are zero but for those of 1 and -1.
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
    row("aten.abs.default", abs),
    row("aten.acos.default", acos),
    row("aten.acosh.default", acosh),
    row("aten.add.Scalar", add),
    row("aten.add.Tensor", add),
    row("aten.__and__.Tensor", bitwise_and),
    row("aten.__and__.Scalar", bitwise_and),
    row("aten.__or__.Tensor", bitwise_or),
    row("aten.__or__.Scalar", bitwise_or),
    row("aten.__xor__.Tensor", bitwise_xor),
    row("aten.asin.default", asin),
    row("aten.asinh.default", asinh),
    row("aten.atan.default", atan),
    row("aten.atan2.default", atan2),
    row("aten.atanh.default", atanh),
    row("aten.bitwise_and.Scalar", bitwise_and),
    row("aten.bitwise_and.Tensor", bitwise_and),
    row("aten.bitwise_not.default", bitwise_not),
    row("aten.bitwise_or.Scalar", bitwise_or),
    row("aten.bitwise_or.Tensor", bitwise_or),
    row("aten.bitwise_xor.Scalar", bitwise_xor),
    row("aten.bitwise_xor.Tensor", bitwise_xor),
    row("aten.ceil.default", ceil),
    row("aten.cos.default", cos),
    row("aten.cosh.default", cosh),
    row("aten.div.Scalar", divide),
    row("aten.div.Scalar_mode", div_mode),
    row("aten.div.Tensor", divide),
    row("aten.div.Tensor_mode", div_mode),
    row("aten.eq.Scalar", eq),
    row("aten.eq.Tensor", eq),
    row("aten.erf.default", erf),
    row("aten.exp.default", exp),
    row("aten.expm1.default", expm1),
    row("aten.floor.default", floor),
    row("aten.floor_divide.default", floor_divide),
    row("aten.floor_divide.Scalar", floor_divide),
    row("aten.ge.Scalar", ge),
    row("aten.ge.Tensor", ge),
    row("aten.gt.Scalar", gt),
    row("aten.gt.Tensor", gt),
    row("aten.isinf.default", isinf),
    row("aten.isnan.default", isnan),
    row("aten.le.Scalar", le),
    row("aten.le.Tensor", le),
    row("aten.log.default", log),
    row("aten.log10.default", log10),
    row("aten.log1p.default", log1p),
    row("aten.log2.default", log2),
    row("aten.logaddexp.default", logaddexp),
    row("aten.logical_and.default", logical_and),
    row("aten.logical_not.default", logical_not),
    row("aten.logical_or.default", logical_or),
    row("aten.logical_xor.default", logical_xor),
    row("aten.lt.Scalar", lt),
    row("aten.lt.Tensor", lt),
    row("aten.masked_fill.Scalar", masked_fill),
    row("aten.masked_fill.Tensor", masked_fill),
    row("aten.max.other", maximum),
    row("aten.maximum.default", maximum),
    row("aten.min.other", minimum),
    row("aten.minimum.default", minimum),
    row("aten.mul.Scalar", multiply),
    row("aten.mul.Tensor", multiply),
    row("aten.ne.Scalar", ne),
    row("aten.ne.Tensor", ne),
    row("aten.neg.default", neg),
    row("aten.pow.Scalar", pow),
    row("aten.pow.Tensor_Scalar", pow),
    row("aten.pow.Tensor_Tensor", pow),
    row("aten.reciprocal.default", reciprocal),
    row("aten.remainder.Scalar", remainder),
    row("aten.remainder.Tensor", remainder),
    row("aten.round.decimals", round),
    row("aten.round.default", round),
    row("aten.rsqrt.default", rsqrt),
    row("aten.rsub.Scalar", rsub),
    row("aten.rsub.Tensor", rsub),
    row("aten.sigmoid.default", sigmoid),
    row("aten.sign.default", sign),
    row("aten.sin.default", sin),
    row("aten.sinh.default", sinh),
    row("aten.sqrt.default", sqrt),
    row("aten.square.default", square),
    row("aten.sub.Scalar", sub),
    row("aten.sub.Tensor", sub),
    row("aten.tan.default", tan),
    row("aten.tanh.default", tanh),
    row("aten.trunc.default", trunc),
    row("aten.where.Scalar", where_self),
    row("aten.where.ScalarOther", where_self),
    row("aten.where.ScalarSelf", where_self),
    row("aten.where.self", where_self),
    row("aten.__xor__.Scalar", bitwise_xor),
    row("aten.absolute.default", abs),
    row("aten.arccos.default", acos),
    row("aten.arccosh.default", acosh),
    row("aten.arcsin.default", asin),
    row("aten.arcsinh.default", asinh),
    row("aten.arctan.default", atan),
    row("aten.arctan2.default", atan2),
    row("aten.arctanh.default", atanh),
    row("aten.divide.Scalar", divide),
    row("aten.divide.Tensor", divide),
    row("aten.divide.Tensor_mode", div_mode),
    row("aten.fix.default", trunc),
    row("aten.greater.Scalar", gt),
    row("aten.greater.Tensor", gt),
    row("aten.greater_equal.Scalar", ge),
    row("aten.greater_equal.Tensor", ge),
    row("aten.less.Scalar", lt),
    row("aten.less.Tensor", lt),
    row("aten.less_equal.Scalar", le),
    row("aten.less_equal.Tensor", le),
    row("aten.multiply.Scalar", multiply),
    row("aten.multiply.Tensor", multiply),
    row("aten.negative.default", neg),
    row("aten.not_equal.Scalar", ne),
    row("aten.not_equal.Tensor", ne),
    row("aten.remainder.Scalar_Tensor", remainder),
    row("aten.sgn.default", sign),
    row("aten.special_erf.default", erf),
    row("aten.special_expit.default", sigmoid),
    row("aten.special_expm1.default", expm1),
    row("aten.special_log1p.default", log1p),
    row("aten.special_round.default", round),
    row("aten.subtract.Scalar", sub),
    row("aten.subtract.Tensor", sub),
    row("aten.true_divide.Scalar", divide),
    row("aten.true_divide.Tensor", divide),
    // The test operator that ExecuTorch's own kernel cases register.
    row("mlx_test.vadd.default", |cx, call| {
        let dtype = call.out(0)?.dtype;
        let (a, b) = (cx.operand(call, "a", dtype)?, cx.operand(call, "b", dtype)?);
        one(ops::add(cx, a, b)?)
    }),
];
