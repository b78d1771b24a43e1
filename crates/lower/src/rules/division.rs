//! Quotients rounded to integers, remainders, and shifts.

use flambeau_ir::{Clip, Divide, In, Round, Tid, Trunc};
use flambeau_tensor::DType;

use super::{
    RuleRow,
    activation::input,
    one,
    ops::{self, Emitted},
    row,
};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

fn operands(cx: &mut Lower, call: &Call, dtype: DType) -> Result<(Tid, Tid), Refuse> {
    Ok((cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?))
}

/// Whether exactly one of two numbers is negative.
fn signs_differ(cx: &mut Lower, a: Tid, b: Tid) -> Emitted {
    let zero = ops::number_like(cx, a, 0.0)?;
    match cx.graph().scalar(b) {
        Some(known) if known >= 0.0 => ops::lt(cx, a, zero),
        Some(_) => ops::ge(cx, a, zero),
        None => {
            let (a, b) = (ops::lt(cx, a, zero)?, ops::lt(cx, b, zero)?);
            ops::ne(cx, a, b)
        }
    }
}

/// Whether the remainder is not zero and the signs of `a` and `b` differ.
fn leaves_other_sign(cx: &mut Lower, rest: Tid, a: Tid, b: Tid) -> Emitted {
    let zero = ops::number_like(cx, rest, 0.0)?;
    let (rest, differ) = (ops::ne(cx, rest, zero)?, signs_differ(cx, a, b)?);
    ops::logical_and(cx, rest, differ)
}

/// The remainder with the sign of `a`.
fn rest(cx: &mut Lower, a: Tid, b: Tid) -> Emitted {
    if !cx.spec(a).dtype.is_float() {
        let rest = ops::remainder(cx, a, b)?;
        let other = leaves_other_sign(cx, rest, a, b)?;
        let moved = ops::sub(cx, rest, b)?;
        return ops::select(cx, other, moved, rest);
    }
    // The remainder of the magnitudes is exact.
    let abs_a = ops::abs(cx, a)?;
    let abs_b = match cx.graph().scalar(b) {
        Some(known) => ops::number_like(cx, b, known.abs())?,
        None => ops::abs(cx, b)?,
    };
    let rest = ops::remainder(cx, abs_a, abs_b)?;
    let sign = ops::sign(cx, a)?;
    ops::mul(cx, sign, rest)
}

fn fmod(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = operands(cx, call, call.out(0)?.dtype)?;
    one(rest(cx, a, b)?)
}

/// The largest integer not above the exact quotient. Computed from the exact remainder, because a
/// float quotient may round up to an integer.
fn floor_quotient(cx: &mut Lower, a: Tid, b: Tid) -> Emitted {
    if !cx.spec(a).dtype.is_float() {
        return ops::floor_div(cx, a, b);
    }
    let (zero, rest) = (ops::number_like(cx, a, 0.0)?, rest(cx, a, b)?);
    let multiple = ops::sub(cx, a, rest)?;
    let whole = ops::div(cx, multiple, b)?;
    let other = leaves_other_sign(cx, rest, rest, b)?;
    let below = ops::add_number(cx, whole, -1.0)?;
    let whole = ops::select(cx, other, below, whole)?;
    let rounded = cx.emit(Round { x: In(whole), out: NEW, decimals: 0 })?;
    // A zero takes the sign of the quotient; division by zero leaves no remainder.
    let quotient = ops::div(cx, a, b)?;
    let signed = ops::mul(cx, quotient, zero)?;
    let vanishes = ops::eq(cx, whole, zero)?;
    let result = ops::select(cx, vanishes, signed, rounded)?;
    if cx.graph().scalar(b).is_some_and(|known| known != 0.0) {
        return Ok(result);
    }
    let by_zero = ops::eq(cx, b, zero)?;
    ops::select(cx, by_zero, quotient, result)
}

/// The integer quotient rounded toward zero: the floor quotient, plus one where a remainder exists
/// and the signs differ.
fn trunc_quotient(cx: &mut Lower, a: Tid, b: Tid) -> Emitted {
    let whole = ops::floor_div(cx, a, b)?;
    let dtype = cx.spec(a).dtype;
    if matches!(dtype, DType::U8 | DType::U32 | DType::Bool) {
        return Ok(whole);
    }
    let multiple = ops::mul(cx, whole, b)?;
    let rest = ops::sub(cx, a, multiple)?;
    let other = leaves_other_sign(cx, rest, a, b)?;
    let step = cx.cast(other, dtype)?;
    ops::add(cx, whole, step)
}

fn floor_divide(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = operands(cx, call, ops::wide(call.out(0)?.dtype))?;
    one(floor_quotient(cx, a, b)?)
}

fn div_mode(cx: &mut Lower, call: &Call) -> Items {
    // PyTorch rounds the quotient to half precision before truncation only if `other` has dims.
    let number = call.tensor("other").map_or(true, |t| cx.spec(t).rank() == 0);
    let cuts = call.str_or("rounding_mode", "")? == "trunc";
    let dtype = if cuts && !number { call.out(0)?.dtype } else { ops::wide(call.out(0)?.dtype) };
    let (a, b) = operands(cx, call, dtype)?;
    match call.str_or("rounding_mode", "")? {
        "" => one(cx.emit(Divide { a: In(a), b: In(b), out: NEW })?),
        "floor" => one(floor_quotient(cx, a, b)?),
        "trunc" if dtype.is_float() => {
            let quotient = cx.emit(Divide { a: In(a), b: In(b), out: NEW })?;
            one(cx.emit(Trunc { x: In(quotient), out: NEW })?)
        }
        "trunc" => one(trunc_quotient(cx, a, b)?),
        other => unsupported(format!("rounding mode {other:?}")),
    }
}

/// Number of bits of a type without its sign bit.
fn magnitude_bits(dtype: DType) -> i64 {
    8 * dtype.size() as i64 - i64::from(!matches!(dtype, DType::U8 | DType::U32))
}

/// A number of bits to shift by, cut to the type as PyTorch cuts it.
fn shift_number(call: &Call, dtype: DType) -> Result<i64, Refuse> {
    let n = call.int("other")?;
    Ok(match dtype {
        DType::U8 => i64::from(n as u8),
        DType::I8 => i64::from(n as i8),
        DType::I16 => i64::from(n as i16),
        DType::I32 => i64::from(n as i32),
        DType::U32 => i64::from(n as u32),
        _ => n,
    })
}

/// `x 2^n`, which wraps; 0 where `n` is negative or at least the width.
fn left_shift(cx: &mut Lower, call: &Call) -> Items {
    let (x, dtype) = (input(cx, call)?, call.out(0)?.dtype);
    let scale = match call.arg("other") {
        Some(Arg::Int(_)) => {
            let shift = u32::try_from(shift_number(call, dtype)?).ok().filter(|&n| i64::from(n) < 8 * dtype.size() as i64);
            cx.integer(shift.map_or(0, |n| 1_i64 << n), dtype)?
        }
        _ => {
            let shift = cx.operand(call, "other", dtype)?;
            let two = ops::number_like(cx, shift, 2.0)?;
            ops::power(cx, two, shift)?
        }
    };
    one(ops::mul(cx, x, scale)?)
}

/// `x / 2^n` toward minus infinity; 0 or -1 where `n` is negative or at least the width.
fn right_shift(cx: &mut Lower, call: &Call) -> Items {
    let (x, dtype) = (input(cx, call)?, call.out(0)?.dtype);
    let bits = magnitude_bits(dtype);
    let most = cx.integer(1_i64 << (bits - 1), dtype)?;
    let gone = |cx: &mut Lower| {
        let top = ops::floor_div(cx, x, most)?;
        let two = ops::number_like(cx, x, 2.0)?;
        ops::floor_div(cx, top, two)
    };
    if let Some(Arg::Int(_)) = call.arg("other") {
        let shift = shift_number(call, dtype)?;
        if !(0..bits).contains(&shift) {
            return one(gone(cx)?);
        }
        let scale = cx.integer(1_i64 << shift, dtype)?;
        return one(ops::floor_div(cx, x, scale)?);
    }
    let shift = cx.operand(call, "other", dtype)?;
    let (low, high) = (cx.integer(0, dtype)?, cx.integer(bits - 1, dtype)?);
    let near = cx.emit(Clip { x: In(shift), out: NEW, a_min: Some(In(low)), a_max: Some(In(high)) })?;
    let two = ops::number_like(cx, shift, 2.0)?;
    let scale = ops::power(cx, two, near)?;
    let shifted = ops::floor_div(cx, x, scale)?;
    let (is_near, gone) = (ops::eq(cx, shift, near)?, gone(cx)?);
    one(ops::select(cx, is_near, shifted, gone)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.__lshift__.Scalar", left_shift),
    row("aten.__lshift__.Tensor", left_shift),
    row("aten.__rshift__.Scalar", right_shift),
    row("aten.__rshift__.Tensor", right_shift),
    row("aten.bitwise_left_shift.Scalar_Tensor", left_shift),
    row("aten.bitwise_left_shift.Tensor", left_shift),
    row("aten.bitwise_left_shift.Tensor_Scalar", left_shift),
    row("aten.bitwise_right_shift.Scalar_Tensor", right_shift),
    row("aten.bitwise_right_shift.Tensor", right_shift),
    row("aten.bitwise_right_shift.Tensor_Scalar", right_shift),
    row("aten.div.Scalar_mode", div_mode),
    row("aten.div.Tensor_mode", div_mode),
    row("aten.divide.Scalar_mode", div_mode),
    row("aten.divide.Tensor_mode", div_mode),
    row("aten.floor_divide.Scalar", floor_divide),
    row("aten.floor_divide.default", floor_divide),
    row("aten.fmod.Scalar", fmod),
    row("aten.fmod.Tensor", fmod),
];
