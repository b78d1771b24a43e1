//! Rare elementwise functions, trapezoidal integrals, and window functions.

use flambeau_ir::{In, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow,
    activation::input,
    elementwise::promoted,
    one,
    ops::{self, Emitted, polynomial},
    row,
    shape::slice_axis,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// The two operands in the result's type.
fn operands(cx: &mut Lower, call: &Call) -> Result<(Tid, Tid), Refuse> {
    let dtype = call.out(0)?.dtype;
    Ok((cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?))
}

/// Whether each element is negative, including minus zero, which only its reciprocal reveals.
fn is_negative(cx: &mut Lower, x: Tid) -> Emitted {
    let zero = ops::number_like(cx, x, 0.0)?;
    let below = ops::lt(cx, x, zero)?;
    if !cx.spec(x).dtype.is_float() {
        return Ok(below);
    }
    let inverse = cx.emit(flambeau_ir::Reciprocal { x: In(x), out: NEW })?;
    let inverse_below = ops::lt(cx, inverse, zero)?;
    ops::logical_or(cx, below, inverse_below)
}

fn signbit(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).dtype == DType::Bool {
        let dims = cx.spec(x).dims.to_vec();
        return one(ops::full(cx, 0.0, &dims, DType::Bool)?);
    }
    one(is_negative(cx, x)?)
}

/// The magnitude of `self` with the sign of `other`.
fn copysign(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = operands(cx, call)?;
    let magnitude = ops::abs(cx, a)?;
    let negated = ops::neg(cx, magnitude)?;
    let negative = is_negative(cx, b)?;
    one(ops::select(cx, negative, negated, magnitude)?)
}

/// 0 below zero, 1 above, and the given value at zero.
fn heaviside(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (x, values) = (cx.operand(call, "self", dtype)?, cx.operand(call, "values", dtype)?);
    let zero = ops::number_like(cx, x, 0.0)?;
    let (above, at) = (ops::gt(cx, x, zero)?, ops::eq(cx, x, zero)?);
    let step = cx.cast(above, dtype)?;
    one(ops::select(cx, at, values, step)?)
}

/// `|a - b| <= atol + rtol |b|`, or equal.
fn isclose(cx: &mut Lower, call: &Call) -> Items {
    let (rtol, atol) = (call.float_or("rtol", 1e-5)?, call.float_or("atol", 1e-8)?);
    let dtype = promoted(cx, call, &["self", "other"])?;
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
    let mut close = ops::eq(cx, a, b)?;
    if call.bool_or("equal_nan", false)? && dtype.is_float() {
        let (a_nan, b_nan) = (ops::ne(cx, a, a)?, ops::ne(cx, b, b)?);
        let both = ops::logical_and(cx, a_nan, b_nan)?;
        close = ops::logical_or(cx, close, both)?;
    }
    if rtol == 0.0 && atol == 0.0 {
        return one(close);
    }
    let (a, b) = (cx.cast(a, DType::F32)?, cx.cast(b, DType::F32)?);
    let apart = ops::sub(cx, a, b)?;
    let apart = ops::abs(cx, apart)?;
    let scale = ops::abs(cx, b)?;
    let allowed = ops::mul_number(cx, scale, rtol)?;
    let allowed = ops::add_number(cx, allowed, atol)?;
    let near = ops::le(cx, apart, allowed)?;
    // An infinite distance never counts as close.
    let infinite = ops::number_like(cx, apart, f64::INFINITY)?;
    let finite = ops::lt(cx, apart, infinite)?;
    let near = ops::logical_and(cx, near, finite)?;
    one(ops::logical_or(cx, close, near)?)
}

/// `self * 2^other`.
fn ldexp(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = operands(cx, call)?;
    let two = ops::number_like(cx, b, 2.0)?;
    let scale = ops::power(cx, two, b)?;
    one(ops::mul(cx, a, scale)?)
}

fn float_power(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "exponent", dtype)?);
    one(ops::power(cx, a, b)?)
}

/// The angle of a real number: 0 or pi.
fn angle(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let (zero, pi) = (ops::number_like(cx, x, 0.0)?, ops::number_like(cx, x, std::f64::consts::PI)?);
    let (below, nan) = (ops::lt(cx, x, zero)?, ops::ne(cx, x, x)?);
    let turned = ops::select(cx, below, pi, zero)?;
    one(ops::select(cx, nan, x, turned)?)
}

/// `-x ln(x)`: 0 at 0, minus infinity below.
fn entr(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let (zero, lowest) = (ops::number_like(cx, x, 0.0)?, ops::number_like(cx, x, f64::NEG_INFINITY)?);
    let (at, below) = (ops::eq(cx, x, zero)?, ops::lt(cx, x, zero)?);
    let log = ops::log(cx, x)?;
    let product = ops::mul(cx, x, log)?;
    let curve = ops::neg(cx, product)?;
    let curve = ops::select(cx, at, zero, curve)?;
    one(ops::select(cx, below, lowest, curve)?)
}

/// All ones: every element of a real tensor is real.
fn isreal(cx: &mut Lower, call: &Call) -> Items {
    let dims = cx.spec(call.tensor("self")?).dims.to_vec();
    one(ops::full(cx, 1.0, &dims, DType::Bool)?)
}

/// Polynomial in `w = -ln(1 - x²) - 2.5` for `w < 2.5`, highest power first; the tail uses
/// `w = √(-ln(1 - x²)) - 3`. Source: Giles, "Approximating the erfinv function", 2010 (7 units in
/// the last place of f32).
const ERFINV_CENTER: [f64; 9] = [
    2.810_226_36e-8,
    3.432_739_39e-7,
    -3.523_387_7e-6,
    -4.391_506_54e-6,
    2.185_808_7e-4,
    -1.253_725_03e-3,
    -4.177_681_64e-3,
    0.246_640_727,
    1.501_409_41,
];
const ERFINV_TAIL: [f64; 9] = [
    -2.002_142_57e-4,
    1.009_505_58e-4,
    1.349_343_22e-3,
    -3.673_428_44e-3,
    5.739_507_73e-3,
    -7.622_461_3e-3,
    9.438_870_47e-3,
    1.001_674_06,
    2.832_976_82,
];

/// `erfinv(x) / x` for `w = -ln(1 - x²)` below 5.
pub(super) fn erfinv_center(cx: &mut Lower, w: Tid) -> Emitted {
    let shifted = ops::add_number(cx, w, -2.5)?;
    polynomial(cx, shifted, &ERFINV_CENTER)
}

/// The inverse of the error function: infinite at 1 and -1, NaN beyond them.
fn erfinv(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "self", DType::F32)?;
    // Near ±1, the product keeps digits that the square loses.
    let (below, above) = (ops::number_minus(cx, 1.0, x)?, ops::add_number(cx, x, 1.0)?);
    let product = ops::mul(cx, below, above)?;
    let log = ops::log(cx, product)?;
    let distance = ops::neg(cx, log)?;
    let center = erfinv_center(cx, distance)?;
    let root = ops::sqrt(cx, distance)?;
    let shifted = ops::add_number(cx, root, -3.0)?;
    let tail = polynomial(cx, shifted, &ERFINV_TAIL)?;
    let (limit, end) = (ops::number_like(cx, x, 5.0)?, ops::number_like(cx, x, f64::INFINITY)?);
    let is_center = ops::lt(cx, distance, limit)?;
    let slope = ops::select(cx, is_center, center, tail)?;
    let is_end = ops::eq(cx, distance, end)?;
    let slope = ops::select(cx, is_end, end, slope)?;
    one(ops::mul(cx, x, slope)?)
}

/// The entries of an axis without the last, and without the first.
fn neighbours(cx: &mut Lower, t: Tid, axis: usize) -> Result<[Tid; 2], Refuse> {
    let n = cx.spec(t).dims[axis].clone();
    let last = n.clone() - Expr::Int(1);
    Ok([slice_axis(cx, t, axis, &Expr::Int(0), &last, 1)?, slice_axis(cx, t, axis, &Expr::Int(1), &n, 1)?])
}

/// Values of an integral, with optional points. Integers stay integers; their sums and products
/// wrap around.
struct Curve {
    y: Tid,
    x: Option<Tid>,
    axis: usize,
}

impl Curve {
    fn new(cx: &mut Lower, call: &Call) -> Result<Curve, Refuse> {
        let params: &[&str] = if call.arg("x").is_some() { &["y", "x"] } else { &["y"] };
        let dtype = promoted(cx, call, params)?;
        let y = cx.operand(call, "y", dtype)?;
        let rank = cx.spec(y).rank();
        let axis = cx.axis(call, "dim", -1, rank)?;
        let x = call.arg("x").map(|_| cx.operand(call, "x", dtype)).transpose()?;
        let x = match x {
            Some(x) if cx.spec(x).rank() == 1 => Some(ops::along(cx, x, axis, rank)?),
            Some(x) if cx.spec(x).rank() != rank => return unsupported("points of another rank than the values"),
            x => x,
        };
        Ok(Curve { y, x, axis })
    }

    /// Twice the areas of the trapezoids between neighbours, in the result's type.
    fn areas(&self, cx: &mut Lower, call: &Call) -> Emitted {
        let [left, right] = neighbours(cx, self.y, self.axis)?;
        let mut areas = ops::add(cx, left, right)?;
        if let Some(x) = self.x {
            let [from, to] = neighbours(cx, x, self.axis)?;
            let widths = ops::sub(cx, to, from)?;
            areas = ops::mul(cx, areas, widths)?;
        }
        cx.cast(areas, call.out(0)?.dtype)
    }
}

/// Trapezoidal integral. With equally spaced points, the two ends count half.
fn trapezoid(cx: &mut Lower, call: &Call) -> Items {
    let (curve, dtype) = (Curve::new(cx, call)?, call.out(0)?.dtype);
    let axis = curve.axis;
    if curve.x.is_some() {
        let areas = curve.areas(cx, call)?;
        let total = ops::sum(cx, areas, &[axis], false)?;
        return one(ops::mul_number(cx, total, 0.5)?);
    }
    if cx.spec(curve.y).dims[axis].as_int() == Some(0) {
        return one(ops::full(cx, 0.0, &call.out(0)?.dims.clone(), dtype)?);
    }
    let (first, last) = (ops::take_one(cx, curve.y, 0, axis)?, ops::take_one(cx, curve.y, -1, axis)?);
    let ends = ops::add(cx, first, last)?;
    let ends = cx.cast(ends, dtype)?;
    let ends = ops::mul_number(cx, ends, 0.5)?;
    let wide = if dtype == cx.spec(curve.y).dtype { dtype } else { DType::I64 };
    let all = cx.cast(curve.y, wide)?;
    let all = ops::sum(cx, all, &[axis], false)?;
    let all = cx.cast(all, dtype)?;
    let rest = ops::sub(cx, all, ends)?;
    one(ops::mul_number(cx, rest, call.float_or("dx", 1.0)?)?)
}

fn cumulative_trapezoid(cx: &mut Lower, call: &Call) -> Items {
    let curve = Curve::new(cx, call)?;
    let areas = curve.areas(cx, call)?;
    let sums = ops::cumsum(cx, areas, curve.axis)?;
    let width = if curve.x.is_some() { 1.0 } else { call.float_or("dx", 1.0)? };
    one(ops::mul_number(cx, sums, width / 2.0)?)
}

/// A constant window. `at` takes an element's number and the period, which is never zero.
fn window(cx: &mut Lower, call: &Call, at: impl Fn(f64, f64) -> f64) -> Items {
    let n = call.int("window_length")?;
    if !(0..=1 << 24).contains(&n) {
        return unsupported(format!("a window of {n} elements"));
    }
    let period = if call.bool_or("periodic", true)? { n } else { n - 1 };
    let values: Vec<f32> = if n == 1 { vec![1.0] } else { (0..n).map(|i| at(i as f64, period as f64) as f32).collect() };
    let made = cx.floats("_window", &values, &[values.len()])?;
    one(cx.cast(made, call.out(0)?.dtype)?)
}

/// A window of cosines: `sum over k of a[k] cos(2 pi k n / N)`.
fn cosines(cx: &mut Lower, call: &Call, coefficients: &[f64]) -> Items {
    let term = |i: f64, period: f64, k: usize| (2.0 * std::f64::consts::PI * k as f64 * i / period).cos();
    window(cx, call, |i, period| coefficients.iter().enumerate().map(|(k, a)| a * term(i, period, k)).sum())
}

fn hann(cx: &mut Lower, call: &Call) -> Items {
    cosines(cx, call, &[0.5, -0.5])
}

fn hamming(cx: &mut Lower, call: &Call) -> Items {
    let (alpha, beta) = (call.float_or("alpha", 0.54)?, call.float_or("beta", 0.46)?);
    cosines(cx, call, &[alpha, -beta])
}

fn blackman(cx: &mut Lower, call: &Call) -> Items {
    cosines(cx, call, &[0.42, -0.5, 0.08])
}

/// A triangle from 0 to 1 and back.
fn bartlett(cx: &mut Lower, call: &Call) -> Items {
    window(cx, call, |i, period| 1.0 - (2.0 * i / period - 1.0).abs())
}

/// `I0(beta sqrt(1 - t²)) / I0(beta)` for `t` from -1 to 1.
fn kaiser(cx: &mut Lower, call: &Call) -> Items {
    /// Beyond it, the function `I0` leaves the range of f64.
    const MAX_BETA: f64 = 700.0;
    let beta = call.float_or("beta", 12.0)?;
    if beta.is_nan() || beta.abs() > MAX_BETA {
        return unsupported(format!("a Kaiser window of shape {beta}"));
    }
    window(cx, call, |i, period| {
        let t = 2.0 * i / period - 1.0;
        bessel_i0(beta * (1.0 - t * t).max(0.0).sqrt()) / bessel_i0(beta)
    })
}

/// The frequencies of a transform's results in cycles a unit: `0, 1, ..`, divided by `n d`. The
/// second half is negative if the transform is of complex numbers.
fn frequencies(cx: &mut Lower, call: &Call, both_signs: bool) -> Items {
    let (n, d) = (call.int("n")?, call.float_or("d", 1.0)?);
    if !(0..=1 << 24).contains(&n) {
        return unsupported(format!("the frequencies of {n} elements"));
    }
    let scale = (1.0 / (n as f64 * d)) as f32;
    let range = if both_signs { 0..n } else { 0..n / 2 + 1 };
    let signed = |i: i64| if both_signs && 2 * i >= n { i - n } else { i };
    let values: Vec<f32> = range.map(|i| signed(i) as f32 * scale).collect();
    let made = cx.floats("_frequencies", &values, &[values.len()])?;
    one(cx.cast(made, call.out(0)?.dtype)?)
}

/// The modified Bessel function `I0`, by its power series.
fn bessel_i0(x: f64) -> f64 {
    let (mut sum, mut term, mut k) = (1.0, 1.0, 0.0);
    while term > sum * f64::EPSILON {
        k += 1.0;
        term *= (x / 2.0 / k).powi(2);
        sum += term;
    }
    sum
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.angle.default", angle),
    row("aten.bartlett_window.default", bartlett),
    row("aten.bartlett_window.periodic", bartlett),
    row("aten.blackman_window.default", blackman),
    row("aten.blackman_window.periodic", blackman),
    row("aten.copysign.Scalar", copysign),
    row("aten.copysign.Tensor", copysign),
    row("aten.cumulative_trapezoid.dx", cumulative_trapezoid),
    row("aten.cumulative_trapezoid.x", cumulative_trapezoid),
    row("aten.erfinv.default", erfinv),
    row("aten.float_power.Scalar", float_power),
    row("aten.float_power.Tensor_Scalar", float_power),
    row("aten.float_power.Tensor_Tensor", float_power),
    row("aten.hamming_window.default", hamming),
    row("aten.hamming_window.periodic", hamming),
    row("aten.hamming_window.periodic_alpha", hamming),
    row("aten.hamming_window.periodic_alpha_beta", hamming),
    row("aten.fft_fftfreq.default", |cx, call| frequencies(cx, call, true)),
    row("aten.fft_rfftfreq.default", |cx, call| frequencies(cx, call, false)),
    row("aten.hann_window.default", hann),
    row("aten.hann_window.periodic", hann),
    row("aten.heaviside.default", heaviside),
    row("aten.isclose.default", isclose),
    row("aten.isreal.default", isreal),
    row("aten.kaiser_window.beta", kaiser),
    row("aten.kaiser_window.default", kaiser),
    row("aten.kaiser_window.periodic", kaiser),
    row("aten.ldexp.Tensor", ldexp),
    row("aten.signbit.default", signbit),
    row("aten.special_entr.default", entr),
    row("aten.special_erfinv.default", erfinv),
    row("aten.trapezoid.dx", trapezoid),
    row("aten.trapezoid.x", trapezoid),
    row("aten.trapz.dx", trapezoid),
    row("aten.trapz.x", trapezoid),
];
