//! Elementwise arithmetic that takes more than one node.

use flambeau_tensor::DType;

use super::{
    RuleRow,
    activation::input,
    one,
    ops::{self, Emitted},
    row,
};
use crate::{Arg, Call, Item, Lower, Refuse, lower::NEW};
use flambeau_ir::{Clip, In, Int, Roll, Tid};

type Items = Result<Vec<Item>, Refuse>;

/// The operands `self` and `other` in the result's type.
fn operands(cx: &mut Lower, call: &Call) -> Result<(Tid, Tid), Refuse> {
    let dtype = call.out(0)?.dtype;
    Ok((cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?))
}

/// Multiplies by a number argument; an absent one is 1.
fn factor(cx: &mut Lower, call: &Call, x: Tid, param: &str) -> Emitted {
    ops::mul_number(cx, x, call.float_or(param, 1.0)?)
}

fn addcmul(cx: &mut Lower, call: &Call) -> Items {
    let dtype = ops::wide(call.out(0)?.dtype);
    let [x, a, b] = ["self", "tensor1", "tensor2"].map(|p| cx.operand(call, p, dtype));
    let product = ops::mul(cx, a?, b?)?;
    let product = factor(cx, call, product, "value")?;
    one(ops::add(cx, x?, product)?)
}

fn addcdiv(cx: &mut Lower, call: &Call) -> Items {
    let dtype = ops::wide(call.out(0)?.dtype);
    let [x, a, b] = ["self", "tensor1", "tensor2"].map(|p| cx.operand(call, p, dtype));
    let quotient = ops::div(cx, a?, b?)?;
    let quotient = factor(cx, call, quotient, "value")?;
    one(ops::add(cx, x?, quotient)?)
}

/// `self + weight * (end - self)`.
fn lerp(cx: &mut Lower, call: &Call) -> Items {
    let dtype = ops::wide(call.out(0)?.dtype);
    let [x, end, weight] = ["self", "end", "weight"].map(|p| cx.operand(call, p, dtype));
    let (x, weight) = (x?, weight?);
    let way = ops::sub(cx, end?, x)?;
    let step = ops::mul(cx, way, weight)?;
    one(ops::add(cx, x, step)?)
}

/// `m sqrt(1 + (n / m)^2)` with `m` the larger magnitude: squares of the operands would overflow.
fn hypot(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = operands(cx, call)?;
    let (a, b) = (ops::abs(cx, a)?, ops::abs(cx, b)?);
    let (most, least) = (ops::maximum(cx, a, b)?, ops::minimum(cx, a, b)?);
    let ratio = ops::div(cx, least, most)?;
    let squared = ops::square(cx, ratio)?;
    let grown = ops::add_number(cx, squared, 1.0)?;
    let root = ops::sqrt(cx, grown)?;
    let length = ops::mul(cx, most, root)?;
    // The ratio is undefined where both are zero or one is infinite, even if the other is NaN.
    let (zero, infinite) = (ops::number_like(cx, most, 0.0)?, ops::number_like(cx, most, f64::INFINITY)?);
    let vanishes = ops::eq(cx, most, zero)?;
    let length = ops::select(cx, vanishes, most, length)?;
    let (a, b) = (ops::eq(cx, a, infinite)?, ops::eq(cx, b, infinite)?);
    let diverges = ops::logical_or(cx, a, b)?;
    one(ops::select(cx, diverges, infinite, length)?)
}

fn exp2(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let two = ops::number_like(cx, x, 2.0)?;
    one(ops::power(cx, two, x)?)
}

fn frac(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let whole = ops::trunc(cx, x)?;
    one(ops::sub(cx, x, whole)?)
}

/// Largest finite value of a floating type.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(f32::from_bits(0x7f7f_0000)),
        _ => f64::from(f32::MAX),
    }
}

fn nan_to_num(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let dtype = cx.spec(x).dtype;
    if !dtype.is_float() {
        return one(x);
    }
    let nan = ops::number_like(cx, x, call.float_or("nan", 0.0)?)?;
    let is_nan = ops::ne(cx, x, x)?;
    let (posinf, neginf) = (call.float_opt("posinf")?, call.float_opt("neginf")?);
    let finite = match (posinf, neginf) {
        (None, None) => ops::clip(cx, x, -largest(dtype), largest(dtype))?,
        _ => {
            let top = replace(cx, x, x, f64::INFINITY, posinf.unwrap_or_else(|| largest(dtype)))?;
            replace(cx, x, top, f64::NEG_INFINITY, neginf.unwrap_or_else(|| -largest(dtype)))?
        }
    };
    one(ops::select(cx, is_nan, nan, finite)?)
}

/// `value` where `x` equals `what`, `y` elsewhere.
fn replace(cx: &mut Lower, x: Tid, y: Tid, what: f64, value: f64) -> Emitted {
    let (what, value) = (ops::number_like(cx, x, what)?, ops::number_like(cx, x, value)?);
    let hit = ops::eq(cx, x, what)?;
    ops::select(cx, hit, value, y)
}

/// Compares with an infinity; for integers the answer is constant.
fn against_infinity(
    cx: &mut Lower,
    call: &Call,
    compare: fn(&mut Lower, Tid, Tid) -> Emitted,
    bound: f64,
    magnitude: bool,
) -> Items {
    let x = call.tensor("self")?;
    if !cx.spec(x).dtype.is_float() {
        let dims = cx.spec(x).dims.to_vec();
        let finite = f64::from(u8::from(magnitude && bound > 0.0));
        return one(ops::full(cx, finite, &dims, DType::Bool)?);
    }
    let bound = ops::number_like(cx, x, bound)?;
    let y = if magnitude { ops::abs(cx, x)? } else { x };
    one(compare(cx, y, bound)?)
}

fn isfinite(cx: &mut Lower, call: &Call) -> Items {
    against_infinity(cx, call, ops::lt, f64::INFINITY, true)
}

fn isposinf(cx: &mut Lower, call: &Call) -> Items {
    against_infinity(cx, call, ops::eq, f64::INFINITY, false)
}

fn isneginf(cx: &mut Lower, call: &Call) -> Items {
    against_infinity(cx, call, ops::eq, f64::NEG_INFINITY, false)
}

/// `self * log(other)`, 0 where `self` is 0 unless `other` is NaN.
fn product_with_log(cx: &mut Lower, call: &Call, log: fn(&mut Lower, Tid) -> Emitted) -> Items {
    let (x, y) = operands(cx, call)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    let (is_zero, is_number) = (ops::eq(cx, x, zero)?, ops::eq(cx, y, y)?);
    let vanishes = ops::logical_and(cx, is_zero, is_number)?;
    let log = log(cx, y)?;
    let product = ops::mul(cx, x, log)?;
    one(ops::select(cx, vanishes, zero, product)?)
}

fn xlogy(cx: &mut Lower, call: &Call) -> Items {
    product_with_log(cx, call, ops::log)
}

fn xlog1py(cx: &mut Lower, call: &Call) -> Items {
    product_with_log(cx, call, |cx, y| cx.emit(flambeau_ir::Log1p { x: In(y), out: NEW }))
}

/// `log2(2^a + 2^b)`.
fn logaddexp2(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = operands(cx, call)?;
    let ln2 = std::f64::consts::LN_2;
    let (a, b) = (ops::mul_number(cx, a, ln2)?, ops::mul_number(cx, b, ln2)?);
    let natural = ops::logaddexp(cx, a, b)?;
    one(ops::div_number(cx, natural, ln2)?)
}

/// The larger or smaller of two elements; a number takes precedence over NaN.
fn number_first(cx: &mut Lower, call: &Call, pick: fn(&mut Lower, Tid, Tid) -> Emitted) -> Items {
    let (a, b) = operands(cx, call)?;
    let picked = pick(cx, a, b)?;
    if !cx.spec(a).dtype.is_float() {
        return one(picked);
    }
    let (a_nan, b_nan) = (ops::ne(cx, a, a)?, ops::ne(cx, b, b)?);
    let picked = ops::select(cx, b_nan, a, picked)?;
    one(ops::select(cx, a_nan, b, picked)?)
}

fn fmax(cx: &mut Lower, call: &Call) -> Items {
    number_first(cx, call, ops::maximum)
}

fn fmin(cx: &mut Lower, call: &Call) -> Items {
    number_first(cx, call, ops::minimum)
}

/// `sin(pi x) / (pi x)`, 1 at 0.
fn sinc(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let (zero, unit) = (ops::number_like(cx, x, 0.0)?, ops::number_like(cx, x, 1.0)?);
    let angle = ops::mul_number(cx, x, std::f64::consts::PI)?;
    let sine = ops::sin(cx, angle)?;
    let ratio = ops::div(cx, sine, angle)?;
    let at_zero = ops::eq(cx, x, zero)?;
    one(ops::select(cx, at_zero, unit, ratio)?)
}

fn deg2rad(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    one(ops::mul_number(cx, x, std::f64::consts::PI / 180.0)?)
}

fn rad2deg(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    one(ops::mul_number(cx, x, 180.0 / std::f64::consts::PI)?)
}

/// Cross product along an axis of size 3.
fn cross(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = operands(cx, call)?;
    let axis = match call.arg("dim") {
        Some(_) => cx.axis(call, "dim", -1, cx.spec(a).rank())?,
        None if call.target == "aten.linalg_cross.default" => cx.spec(a).rank().saturating_sub(1),
        None => {
            let three = cx.spec(a).dims.iter().position(|d| d.as_int() == Some(3));
            three.ok_or_else(|| Refuse::Unsupported("no axis has three elements".into()))?
        }
    };
    let mut turned = |x: Tid, by: i64| cx.emit(Roll { x: In(x), out: NEW, shift: vec![Int::Lit(by)], axes: vec![axis as i32] });
    let (a1, a2, b1, b2) = (turned(a, -1)?, turned(a, -2)?, turned(b, -1)?, turned(b, -2)?);
    let (left, right) = (ops::mul(cx, a1, b2)?, ops::mul(cx, a2, b1)?);
    one(ops::sub(cx, left, right)?)
}

/// Clips `self` to the named bounds, each a tensor or a number. Omits a numeric bound outside the
/// range of an integer type.
pub(super) fn bounded(cx: &mut Lower, call: &Call, params: [&str; 2]) -> Items {
    let dtype = call.out(0)?.dtype;
    let x = cx.operand(call, "self", dtype)?;
    let mut bound = |param: &str, beyond: fn(f64, DType) -> bool| {
        let number = match call.arg(param) {
            None => return Ok(None),
            Some(Arg::Int(e)) => e.as_int().map(|v| v as f64),
            Some(Arg::Float(v)) => Some(*v),
            Some(_) => None,
        };
        let needless = !dtype.is_float() && number.is_some_and(|v| beyond(v, dtype));
        if needless { Ok(None) } else { cx.operand(call, param, dtype).map(|t| Some(In(t))) }
    };
    let a_min = bound(params[0], |v, dtype| v <= ops::lowest(dtype))?;
    let a_max = bound(params[1], |v, dtype| v >= ops::highest(dtype))?;
    if a_min.is_none() && a_max.is_none() {
        return one(x);
    }
    one(cx.emit(Clip { x: In(x), out: NEW, a_min, a_max })?)
}

fn clamp(cx: &mut Lower, call: &Call) -> Items {
    bounded(cx, call, ["min", "max"])
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.addcdiv.default", addcdiv),
    row("aten.addcmul.default", addcmul),
    row("aten.clamp.Tensor", clamp),
    row("aten.clamp.default", clamp),
    row("aten.clamp_max.Tensor", clamp),
    row("aten.clamp_max.default", clamp),
    row("aten.clamp_min.Tensor", clamp),
    row("aten.clamp_min.default", clamp),
    row("aten.clip.Tensor", clamp),
    row("aten.clip.default", clamp),
    row("aten.cross.default", cross),
    row("aten.deg2rad.default", deg2rad),
    row("aten.exp2.default", exp2),
    row("aten.fmax.default", fmax),
    row("aten.fmin.default", fmin),
    row("aten.frac.default", frac),
    row("aten.hypot.default", hypot),
    row("aten.isfinite.default", isfinite),
    row("aten.isneginf.default", isneginf),
    row("aten.isposinf.default", isposinf),
    row("aten.lerp.Scalar", lerp),
    row("aten.lerp.Tensor", lerp),
    row("aten.linalg_cross.default", cross),
    row("aten.logaddexp2.default", logaddexp2),
    row("aten.nan_to_num.default", nan_to_num),
    row("aten.rad2deg.default", rad2deg),
    row("aten.sinc.default", sinc),
    row("aten.special_exp2.default", exp2),
    row("aten.special_sinc.default", sinc),
    row("aten.special_xlog1py.default", xlog1py),
    row("aten.special_xlog1py.other_scalar", xlog1py),
    row("aten.special_xlog1py.self_scalar", xlog1py),
    row("aten.special_xlogy.default", xlogy),
    row("aten.special_xlogy.other_scalar", xlogy),
    row("aten.special_xlogy.self_scalar", xlogy),
    row("aten.xlogy.Scalar_Other", xlogy),
    row("aten.xlogy.Scalar_Self", xlogy),
    row("aten.xlogy.Tensor", xlogy),
];
