//! The complementary error functions and the normal distribution, in f32, accurate to a few units
//! in the last place.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

use flambeau_ir::{Erf, In, Tid};
use flambeau_tensor::DType;

use super::{
    RuleRow, one,
    ops::{self, Emitted, polynomial},
    row,
    special::erfinv_center,
};
use crate::{Call, Item, Lower, Refuse, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Polynomial for `(1 + 2x) erfcx(x)` in `(x - 4) / (x + 4)`, for `x >= 0`.
const ERFCX: [f64; 12] = [
    -2.462_805_4e-4,
    -3.659_084_3e-4,
    5.076_291e-3,
    -1.661_734_7e-2,
    3.714_649_8e-2,
    -6.611_786e-2,
    9.373_753e-2,
    -1.010_882_56e-1,
    6.809_666e-2,
    1.538_384_3e-2,
    -1.396_211_1e-1,
    1.232_995,
];

/// Polynomial for `y` with `erfc(y) = 2p`, in `√(-ln(4p (1 - p))) - 3.35` from -1.15 to 1.15.
const NDTRI_NEAR: [f64; 9] = [
    -1.068_387_4e-5,
    1.865_149e-5,
    3.331_615e-5,
    -2.146_784_4e-4,
    7.489_748_5e-4,
    -2.121_593e-3,
    3.968_037e-3,
    1.006_365_3,
    3.184_440_4,
];

/// The same in `√(-ln(4p (1 - p))) - 7.45` from -2.95 to 2.95.
const NDTRI_FAR: [f64; 9] = [
    7.211_72e-9,
    -4.846_804e-8,
    1.671_394_6e-7,
    -8.359_061e-7,
    3.259_893_2e-6,
    1.409_175_7e-5,
    -4.981_445_4e-4,
    1.008_140_2,
    7.322_785,
];

fn wide_input(cx: &mut Lower, call: &Call) -> Emitted {
    cx.operand(call, "self", DType::F32)
}

/// `e^(sign x²)` for `x >= 0`. The square is split into an exact part and a small remainder.
fn exp_square(cx: &mut Lower, x: Tid, sign: f64) -> Emitted {
    let scaled = ops::mul_number(cx, x, 16.0)?;
    let whole = ops::trunc(cx, scaled)?;
    let high = ops::mul_number(cx, whole, 1.0 / 16.0)?;
    let (rest, sum) = (ops::sub(cx, x, high)?, ops::add(cx, x, high)?);
    let low = ops::mul(cx, rest, sum)?;
    let high = ops::square(cx, high)?;
    let (high, low) = (ops::mul_number(cx, high, sign)?, ops::mul_number(cx, low, sign)?);
    let (high, low) = (ops::exp(cx, high)?, ops::exp(cx, low)?);
    ops::mul(cx, high, low)
}

/// `e^(x²) erfc(x)` for `x >= 0`.
fn scaled_tail(cx: &mut Lower, x: Tid) -> Emitted {
    /// From here on, the fraction rounds to 1 in f32.
    const LARGE: f64 = 1e30;
    let large = ops::number_like(cx, x, LARGE)?;
    let bounded = ops::minimum(cx, x, large)?;
    let (below, above) = (ops::add_number(cx, bounded, -4.0)?, ops::add_number(cx, bounded, 4.0)?);
    let part = ops::div(cx, below, above)?;
    let value = polynomial(cx, part, &ERFCX)?;
    let twice = ops::mul_number(cx, x, 2.0)?;
    let divisor = ops::add_number(cx, twice, 1.0)?;
    ops::div(cx, value, divisor)
}

/// `1 - erf(x)`, without the cancellation of the difference at large `x`.
pub(super) fn erfc_of(cx: &mut Lower, x: Tid) -> Emitted {
    /// From here on, the result underflows f32.
    const VANISHED: f64 = 11.0;
    let magnitude = ops::abs(cx, x)?;
    let end = ops::number_like(cx, x, VANISHED)?;
    let bounded = ops::minimum(cx, magnitude, end)?;
    let (power, tail) = (exp_square(cx, bounded, -1.0)?, scaled_tail(cx, bounded)?);
    let tail = ops::mul(cx, power, tail)?;
    let (zero, half) = (ops::number_like(cx, x, 0.0)?, ops::number_like(cx, x, 0.5)?);
    let negative = ops::lt(cx, x, zero)?;
    let rest = ops::number_minus(cx, 2.0, tail)?;
    let outer = ops::select(cx, negative, rest, tail)?;
    let erf = cx.emit(Erf { x: In(x), out: NEW })?;
    let inner = ops::number_minus(cx, 1.0, erf)?;
    let is_inner = ops::lt(cx, magnitude, half)?;
    ops::select(cx, is_inner, inner, outer)
}

fn erfcx_of(cx: &mut Lower, x: Tid) -> Emitted {
    let magnitude = ops::abs(cx, x)?;
    let tail = scaled_tail(cx, magnitude)?;
    // Beyond 10, the power of the square is infinite.
    let end = ops::number_like(cx, x, 10.0)?;
    let bounded = ops::minimum(cx, magnitude, end)?;
    let power = exp_square(cx, bounded, 1.0)?;
    let twice = ops::mul_number(cx, power, 2.0)?;
    let mirrored = ops::sub(cx, twice, tail)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    let negative = ops::lt(cx, x, zero)?;
    ops::select(cx, negative, mirrored, tail)
}

fn erfc(cx: &mut Lower, call: &Call) -> Items {
    let x = wide_input(cx, call)?;
    one(erfc_of(cx, x)?)
}

fn erfcx(cx: &mut Lower, call: &Call) -> Items {
    let x = wide_input(cx, call)?;
    one(erfcx_of(cx, x)?)
}

/// The cumulative distribution function of the normal distribution.
fn ndtr(cx: &mut Lower, call: &Call) -> Items {
    let x = wide_input(cx, call)?;
    let scaled = ops::mul_number(cx, x, -FRAC_1_SQRT_2)?;
    let tail = erfc_of(cx, scaled)?;
    one(ops::mul_number(cx, tail, 0.5)?)
}

/// The logarithm of the normal distribution's cumulative distribution function.
fn log_ndtr(cx: &mut Lower, call: &Call) -> Items {
    let x = wide_input(cx, call)?;
    let scaled = ops::mul_number(cx, x, FRAC_1_SQRT_2)?;
    let tail = erfc_of(cx, scaled)?;
    let beyond = ops::mul_number(cx, tail, -0.5)?;
    let upper = ops::log1p(cx, beyond)?;
    let mirrored = ops::neg(cx, scaled)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    let mirrored = ops::maximum(cx, mirrored, zero)?;
    let share = scaled_tail(cx, mirrored)?;
    let share = ops::mul_number(cx, share, 0.5)?;
    let (log, square) = (ops::log(cx, share)?, ops::square(cx, scaled)?);
    let lower = ops::sub(cx, log, square)?;
    let edge = ops::number_like(cx, x, -1.0)?;
    let is_lower = ops::lt(cx, x, edge)?;
    one(ops::select(cx, is_lower, lower, upper)?)
}

/// The inverse of the normal distribution's cumulative distribution function: infinite at 0 and 1,
/// NaN outside.
fn ndtri(cx: &mut Lower, call: &Call) -> Items {
    let p = wide_input(cx, call)?;
    let twice = ops::mul_number(cx, p, 2.0)?;
    let (x, rest) = (ops::add_number(cx, twice, -1.0)?, ops::number_minus(cx, 2.0, twice)?);
    let product = ops::mul(cx, twice, rest)?;
    let log = ops::log(cx, product)?;
    let distance = ops::neg(cx, log)?;
    let slope = erfinv_center(cx, distance)?;
    let center = ops::mul(cx, x, slope)?;

    let zero = ops::number_like(cx, x, 0.0)?;
    let positive = ops::maximum(cx, distance, zero)?;
    let root = ops::sqrt(cx, positive)?;
    let (near, far) = (ops::add_number(cx, root, -3.35)?, ops::add_number(cx, root, -7.45)?);
    let (near, far) = (polynomial(cx, near, &NDTRI_NEAR)?, polynomial(cx, far, &NDTRI_FAR)?);
    let edge = ops::number_like(cx, root, 4.5)?;
    let is_near = ops::lt(cx, root, edge)?;
    let tail = ops::select(cx, is_near, near, far)?;
    let end = ops::number_like(cx, distance, f64::INFINITY)?;
    let is_end = ops::eq(cx, distance, end)?;
    let tail = ops::select(cx, is_end, end, tail)?;
    let mirrored = ops::neg(cx, tail)?;
    let below = ops::lt(cx, x, zero)?;
    let tail = ops::select(cx, below, mirrored, tail)?;

    let limit = ops::number_like(cx, distance, 5.0)?;
    let is_tail = ops::ge(cx, distance, limit)?;
    let value = ops::select(cx, is_tail, tail, center)?;
    one(ops::mul_number(cx, value, SQRT_2)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.erfc.default", erfc),
    row("aten.special_erfc.default", erfc),
    row("aten.special_erfcx.default", erfcx),
    row("aten.special_log_ndtr.default", log_ndtr),
    row("aten.special_ndtr.default", ndtr),
    row("aten.special_ndtri.default", ndtri),
];
