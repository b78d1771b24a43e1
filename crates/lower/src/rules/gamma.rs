//! The logarithm of the gamma function and its derivative, in f32, accurate to a few units in the
//! last place.

use std::f64::consts::PI;

use flambeau_ir::{In, Round, Tid};
use flambeau_tensor::DType;

use super::{
    RuleRow, one,
    ops::{self, Emitted, polynomial},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Polynomial for `ln Γ(1 + t) / t`, for `t` from -0.5 to 0.5.
const LGAMMA_1: [f64; 14] = [
    1.662_927_9e-1,
    -1.776_828_8e-1,
    4.527_798e-2,
    -5.055_401_5e-2,
    1.070_867_1e-1,
    -1.187_445_8e-1,
    1.248_726_4e-1,
    -1.433_744_7e-1,
    1.695_843_5e-1,
    -2.074_143_6e-1,
    2.705_803_8e-1,
    -4.006_852e-1,
    8.224_67e-1,
    -5.772_157e-1,
];

/// Polynomial for `ln Γ(2.25 + t) / (0.25 + t)`, for `t` from -0.75 to 0.75.
const LGAMMA_2: [f64; 11] = [
    -1.799_251_4e-5,
    4.463_262_3e-5,
    -8.429_839e-5,
    2.174_072_9e-4,
    -5.907_984e-4,
    1.616_427_4e-3,
    -4.662_562e-3,
    1.468_816_7e-2,
    -5.429_540_6e-2,
    2.922_384_4e-1,
    4.994_868_6e-1,
];

/// Polynomial for `ln Γ(5.5 + t)`, for `t` from -2.5 to 2.5.
const LGAMMA_5: [f64; 12] = [
    -1.344_614_6e-9,
    8.339_128e-9,
    -2.739_059_6e-8,
    1.827_220_9e-7,
    -1.440_090_8e-6,
    1.025_541_2e-5,
    -7.743_266e-5,
    6.536_392e-4,
    -6.601_503_6e-3,
    9.967_127e-2,
    1.611_093_2,
    3.957_814,
];

/// Stirling's series of `ln Γ(x)` in `1 / x²`, without its factor `1 / x`.
const STIRLING: [f64; 4] = [-1.0 / 1680.0, 1.0 / 1260.0, -1.0 / 360.0, 1.0 / 12.0];

/// The series of `ln x - 1 / 2x - ψ(x)` in `1 / x²`, without its factor `1 / x²`.
const DIGAMMA: [f64; 4] = [-1.0 / 240.0, 1.0 / 252.0, -1.0 / 120.0, 1.0 / 12.0];

/// `number < limit ? a : b`.
fn select_below(cx: &mut Lower, number: Tid, limit: f64, a: Tid, b: Tid) -> Emitted {
    let limit = ops::number_like(cx, number, limit)?;
    let is_below = ops::lt(cx, number, limit)?;
    ops::select(cx, is_below, a, b)
}

/// `ln Γ(x)` for `x >= 0.5`.
fn log_gamma_right(cx: &mut Lower, x: Tid) -> Emitted {
    let (from_1, from_2) = (ops::add_number(cx, x, -1.0)?, ops::add_number(cx, x, -2.0)?);
    let near_1 = polynomial(cx, from_1, &LGAMMA_1)?;
    let near_1 = ops::mul(cx, near_1, from_1)?;
    let at = ops::add_number(cx, x, -2.25)?;
    let near_2 = polynomial(cx, at, &LGAMMA_2)?;
    let near_2 = ops::mul(cx, near_2, from_2)?;
    let at = ops::add_number(cx, x, -5.5)?;
    let middle = polynomial(cx, at, &LGAMMA_5)?;

    let inverse = ops::reciprocal(cx, x)?;
    let square = ops::square(cx, inverse)?;
    let series = polynomial(cx, square, &STIRLING)?;
    let series = ops::mul(cx, series, inverse)?;
    let (log, shifted) = (ops::log(cx, x)?, ops::add_number(cx, x, -0.5)?);
    // (x - 0.5) (ln x - 1) loses fewer digits than (x - 0.5) ln x - x.
    let less = ops::add_number(cx, log, -1.0)?;
    let power = ops::mul(cx, shifted, less)?;
    let far = ops::add(cx, power, series)?;
    let far = ops::add_number(cx, far, 0.5 * (2.0 * PI).ln() - 0.5)?;

    let value = select_below(cx, x, 8.0, middle, far)?;
    let value = select_below(cx, x, 3.0, near_2, value)?;
    select_below(cx, x, 1.5, near_1, value)
}

/// The signed distance of `x` from the nearest whole number, which is exact.
fn distance(cx: &mut Lower, x: Tid) -> Emitted {
    let whole = cx.emit(Round { x: In(x), out: NEW, decimals: 0 })?;
    ops::sub(cx, x, whole)
}

/// `ln |Γ(x)|`: infinite at whole numbers up to 0 and at ±infinity.
fn log_gamma(cx: &mut Lower, x: Tid) -> Emitted {
    let (mirrored, next) = (ops::number_minus(cx, 1.0, x)?, ops::add_number(cx, x, 1.0)?);
    let own = select_below(cx, x, 0.5, next, x)?;
    let right = select_below(cx, x, 0.0, mirrored, own)?;
    let right = log_gamma_right(cx, right)?;
    let log = ops::log(cx, x)?;
    let between = ops::sub(cx, right, log)?;

    // Γ(x) Γ(1 - x) = π / sin(πx)
    let part = distance(cx, x)?;
    let part = ops::abs(cx, part)?;
    let angle = ops::mul_number(cx, part, PI)?;
    let sine = ops::sin(cx, angle)?;
    let log = ops::log(cx, sine)?;
    let rest = ops::number_minus(cx, PI.ln(), log)?;
    let left = ops::sub(cx, rest, right)?;

    let value = select_below(cx, x, 0.5, between, right)?;
    let value = select_below(cx, x, 0.0, left, value)?;
    let (magnitude, end) = (ops::abs(cx, x)?, ops::number_like(cx, x, f64::INFINITY)?);
    let is_end = ops::eq(cx, magnitude, end)?;
    ops::select(cx, is_end, end, value)
}

fn lgamma(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "self", DType::F32)?;
    one(log_gamma(cx, x)?)
}

/// `ln Γ` of `p` dimensions: a constant plus the sum of `ln Γ(x - j / 2)` for `j` below `p`.
fn multivariate(cx: &mut Lower, call: &Call) -> Items {
    /// Maximum number of dimensions; more would make too many nodes.
    const MAX_DIMENSIONS: i64 = 64;
    let p = call.int("p")?;
    if !(1..=MAX_DIMENSIONS).contains(&p) {
        return unsupported(format!("a multivariate gamma function of {p} dimensions"));
    }
    let x = cx.operand(call, "self", DType::F32)?;
    let mut total = log_gamma(cx, x)?;
    for j in 1..p {
        let shifted = ops::add_number(cx, x, -0.5 * j as f64)?;
        let term = log_gamma(cx, shifted)?;
        total = ops::add(cx, total, term)?;
    }
    one(ops::add_number(cx, total, PI.ln() * (p * (p - 1)) as f64 / 4.0)?)
}

/// The derivative of `ln Γ` for `x >= 0`: a series from 6 on; below 6, the recurrence down from
/// `x + 6`.
fn digamma_right(cx: &mut Lower, x: Tid) -> Emitted {
    let mut lost = ops::reciprocal(cx, x)?;
    for k in 1..6 {
        let shifted = ops::add_number(cx, x, f64::from(k))?;
        let inverse = ops::reciprocal(cx, shifted)?;
        lost = ops::add(cx, lost, inverse)?;
    }
    let next = ops::add_number(cx, x, 6.0)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    let (lost, at) = (select_below(cx, x, 6.0, lost, zero)?, select_below(cx, x, 6.0, next, x)?);
    let inverse = ops::reciprocal(cx, at)?;
    let square = ops::square(cx, inverse)?;
    let series = polynomial(cx, square, &DIGAMMA)?;
    let series = ops::mul(cx, series, square)?;
    let half = ops::mul_number(cx, inverse, 0.5)?;
    let log = ops::log(cx, at)?;
    let value = ops::sub(cx, log, half)?;
    let value = ops::sub(cx, value, series)?;
    ops::sub(cx, value, lost)
}

/// `ψ(x)`: NaN at negative whole numbers; at 0 infinite, with the sign opposite to the zero's.
fn digamma(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "self", DType::F32)?;
    let mirrored = ops::number_minus(cx, 1.0, x)?;
    let right = select_below(cx, x, 0.0, mirrored, x)?;
    let right = digamma_right(cx, right)?;

    // ψ(1 - x) - ψ(x) = π / tan(πx)
    let part = distance(cx, x)?;
    let angle = ops::mul_number(cx, part, PI)?;
    let (sine, cosine) = (ops::sin(cx, angle)?, ops::cos(cx, angle)?);
    let slope = ops::div(cx, cosine, sine)?;
    let slope = ops::mul_number(cx, slope, PI)?;
    let left = ops::sub(cx, right, slope)?;
    let value = select_below(cx, x, 0.0, left, right)?;

    let (zero, nan) = (ops::number_like(cx, x, 0.0)?, ops::number_like(cx, x, f64::NAN)?);
    let (is_whole, is_zero) = (ops::eq(cx, part, zero)?, ops::eq(cx, x, zero)?);
    let negative = ops::lt(cx, x, zero)?;
    let is_pole = ops::logical_and(cx, is_whole, negative)?;
    let value = ops::select(cx, is_pole, nan, value)?;
    let inverse = ops::reciprocal(cx, x)?;
    let pole = ops::neg(cx, inverse)?;
    one(ops::select(cx, is_zero, pole, value)?)
}

/// Derivatives of the digamma function; order 0 is the function itself.
fn polygamma(cx: &mut Lower, call: &Call) -> Items {
    match call.int("n")? {
        0 => digamma(cx, call),
        n => unsupported(format!("derivative {n} of the digamma function takes more nodes than a model has")),
    }
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.digamma.default", digamma),
    row("aten.lgamma.default", lgamma),
    row("aten.mvlgamma.default", multivariate),
    row("aten.polygamma.default", polygamma),
    row("aten.special_digamma.default", digamma),
    row("aten.special_gammaln.default", lgamma),
    row("aten.special_multigammaln.default", multivariate),
    row("aten.special_polygamma.default", polygamma),
    row("aten.special_psi.default", digamma),
];
