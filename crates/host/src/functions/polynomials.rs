//! Orthogonal polynomials by their recurrences, in 64 bits.

/// Degrees beyond which results of PyTorch in 32 bits are not numbers.
const MAX_HERMITE: i64 = 128;

/// The `n`-th polynomial of a recurrence that begins with 1 and `first`. `next` receives the degree
/// and the two preceding polynomials, latest first.
fn recurrence(n: i64, first: f64, next: impl Fn(f64, f64, f64) -> f64) -> f64 {
    let (mut before, mut value) = (1.0, first);
    if n == 0 {
        return before;
    }
    for k in 2..=n {
        (before, value) = (value, next(k as f64, value, before));
        if value.is_nan() {
            break;
        }
    }
    value
}

pub(super) fn chebyshev_t(x: f64, n: i64) -> f64 {
    if x.abs() < 1.0 {
        return (n as f64 * x.acos()).cos();
    }
    recurrence(n, x, |_, p, q| 2.0 * x * p - q)
}

pub(super) fn chebyshev_u(x: f64, n: i64) -> f64 {
    recurrence(n, 2.0 * x, |_, p, q| 2.0 * x * p - q)
}

pub(super) fn chebyshev_v(x: f64, n: i64) -> f64 {
    recurrence(n, 2.0 * x - 1.0, |_, p, q| 2.0 * x * p - q)
}

pub(super) fn chebyshev_w(x: f64, n: i64) -> f64 {
    recurrence(n, 2.0 * x + 1.0, |_, p, q| 2.0 * x * p - q)
}

pub(super) fn hermite_h(x: f64, n: i64) -> f64 {
    if n > MAX_HERMITE {
        return f64::NAN;
    }
    recurrence(n, 2.0 * x, |k, p, q| 2.0 * x * p - 2.0 * (k - 1.0) * q)
}

pub(super) fn hermite_he(x: f64, n: i64) -> f64 {
    if n > MAX_HERMITE {
        return f64::NAN;
    }
    recurrence(n, x, |k, p, q| x * p - (k - 1.0) * q)
}

pub(super) fn laguerre(x: f64, n: i64) -> f64 {
    recurrence(n, 1.0 - x, |k, p, q| ((2.0 * k - 1.0 - x) * p - (k - 1.0) * q) / k)
}

pub(super) fn legendre(x: f64, n: i64) -> f64 {
    recurrence(n, x, |k, p, q| ((2.0 * k - 1.0) * x * p - (k - 1.0) * q) / k)
}
