//! Functions of the gamma family in 64 bits.

use std::f64::consts::PI;

/// More terms than this mean that a series does not converge.
const MAX_TERMS: usize = 100_000;

/// Even Bernoulli numbers over the factorials of their indices, from the second on.
const BERNOULLI: [f64; 8] = [
    1.0 / 12.0,
    -1.0 / 720.0,
    1.0 / 30_240.0,
    -1.0 / 1_209_600.0,
    1.0 / 47_900_160.0,
    -691.0 / 1_307_674_368_000.0,
    1.0 / 74_724_249_600.0,
    -3617.0 / 10_670_622_842_880_000.0,
];

/// Hurwitz's zeta function, the sum of `(q + n)^-s` over `n` from 0 on: by its first terms and the
/// formula of Euler and Maclaurin.
pub(super) fn zeta(s: f64, q: f64) -> f64 {
    /// From here on, the formula is exact in 64 bits.
    const FAR: f64 = 12.0;
    if s == 1.0 {
        return f64::INFINITY;
    }
    if s.is_nan() || q.is_nan() || s < 1.0 {
        return f64::NAN;
    }
    if q <= 0.0 {
        if q == q.floor() {
            return f64::INFINITY;
        }
        if s != s.floor() || q < -(MAX_TERMS as f64) {
            return f64::NAN;
        }
    }
    let (mut total, mut at) = (0.0, q);
    while at < FAR {
        total += at.powf(-s);
        at += 1.0;
    }
    let power = at.powf(-s);
    total += power * at / (s - 1.0) + 0.5 * power;
    let mut factor = s * power / at;
    for (k, number) in BERNOULLI.iter().enumerate() {
        total += number * factor;
        let next = s + 2.0 * k as f64;
        factor *= (next + 1.0) * (next + 2.0) / (at * at);
    }
    total
}

/// The `n`-th derivative of the digamma function, `n` from 1 on. PyTorch's first derivative of f32
/// rounds the angle of its mirror formula, so that poles have finite values.
pub(super) fn polygamma(n: f64, x: f64, is_single: bool) -> f64 {
    if n == 1.0 && x < 0.5 {
        let angle = if is_single { f64::from(std::f32::consts::PI * x as f32) } else { PI * x };
        let sine = angle.sin();
        return PI * PI / (sine * sine) - zeta(2.0, 1.0 - x);
    }
    let sign = if n % 2.0 == 0.0 { -1.0 } else { 1.0 };
    sign * libm::lgamma(n + 1.0).exp() * zeta(n + 1.0, x)
}

/// `x^a e^-x / Γ(a)`.
fn front(a: f64, x: f64) -> f64 {
    (a * x.ln() - x - libm::lgamma(a)).exp()
}

/// The lower share by its power series, for `x < a + 1`.
fn by_series(a: f64, x: f64) -> f64 {
    let (mut term, mut total) = (1.0 / a, 1.0 / a);
    for n in 1..MAX_TERMS {
        term *= x / (a + n as f64);
        total += term;
        if term.abs() < total.abs() * f64::EPSILON {
            break;
        }
    }
    total * front(a, x)
}

/// The upper share by its continued fraction, for `x >= a + 1`.
fn by_fraction(a: f64, x: f64) -> f64 {
    /// In the place of a divisor that vanishes.
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut value = d;
    for n in 1..MAX_TERMS {
        let n = n as f64;
        let numerator = -n * (n - a);
        b += 2.0;
        let away = |v: f64| if v.abs() < TINY { TINY } else { v };
        d = 1.0 / away(numerator * d + b);
        c = away(b + numerator / c);
        value *= c * d;
        if (c * d - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    value * front(a, x)
}

/// The lower regularized incomplete gamma function at the edges of its domain.
fn at_edges(a: f64, x: f64) -> Option<f64> {
    match () {
        () if x.is_nan() || a.is_nan() || x < 0.0 || a < 0.0 => Some(f64::NAN),
        () if a == 0.0 => Some(if x > 0.0 { 1.0 } else { f64::NAN }),
        () if x == 0.0 => Some(0.0),
        () if a.is_infinite() => Some(if x.is_infinite() { f64::NAN } else { 0.0 }),
        () if x.is_infinite() => Some(1.0),
        () => None,
    }
}

/// The lower regularized incomplete gamma function.
pub(super) fn lower_share(a: f64, x: f64) -> f64 {
    at_edges(a, x).unwrap_or_else(|| if x < a + 1.0 { by_series(a, x) } else { 1.0 - by_fraction(a, x) })
}

/// The upper regularized incomplete gamma function.
pub(super) fn upper_share(a: f64, x: f64) -> f64 {
    at_edges(a, x).map_or_else(|| if x < a + 1.0 { 1.0 - by_series(a, x) } else { by_fraction(a, x) }, |lower| 1.0 - lower)
}
