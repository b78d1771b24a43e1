//! Bessel functions in 64 bits that the libm crate lacks.

use std::f64::consts::{FRAC_PI_4, PI};

/// `e^x K(x)` of that order: the integral of `e^(-x (cosh t - 1)) cosh(order t)` over `t >= 0`. The
/// trapezoids' error vanishes with the step faster than any power.
pub(super) fn scaled_k(order: f64, x: f64) -> f64 {
    const STEP: f64 = 1.0 / 16.0;
    /// `e^-END` is nothing beside 1.
    const END: f64 = 745.0;
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::INFINITY;
    }
    let mut total = 0.5;
    let mut t = STEP;
    loop {
        // cosh t - 1, without the digits that the difference loses.
        let rise = 2.0 * (0.5 * t).sinh().powi(2);
        if x * rise - order * t > END {
            return total * STEP;
        }
        total += (-x * rise).exp() * (order * t).cosh();
        t += STEP;
    }
}

/// `K(x)` of that order.
pub(super) fn k(order: f64, x: f64) -> f64 {
    scaled_k(order, x) * (-x).exp()
}

/// `sin(x) / x`.
pub(super) fn spherical_j0(x: f64) -> f64 {
    match x {
        x if x.is_infinite() => 0.0,
        0.0 => 1.0,
        x => x.sin() / x,
    }
}

/// Airy's function: by its power series near 0, by `K` of order 1/3 to the right, by its asymptotic
/// series to the left.
pub(super) fn airy(x: f64) -> f64 {
    match x {
        x if x.is_nan() || x.is_infinite() => f64::NAN,
        x if x > 2.0 => (x / 3.0).sqrt() / PI * k(1.0 / 3.0, 2.0 / 3.0 * x.powf(1.5)),
        x if x >= -8.0 => airy_series(x),
        x => airy_far(-x),
    }
}

fn airy_series(x: f64) -> f64 {
    /// The function and its derivative, with the sign changed, at 0.
    const VALUE: f64 = 0.355_028_053_887_817_2;
    const SLOPE: f64 = 0.258_819_403_792_806_8;
    let cube = x * x * x;
    let (mut even, mut odd) = (1.0, x);
    let (mut f, mut g) = (even, odd);
    for n in 1..200 {
        let n = 3.0 * f64::from(n);
        even *= cube / (n * (n - 1.0));
        odd *= cube / (n * (n + 1.0));
        (f, g) = (f + even, g + odd);
        if even.abs() + odd.abs() < f64::EPSILON * (f.abs() + g.abs()) * 1e-3 {
            break;
        }
    }
    VALUE * f - SLOPE * g
}

/// At `-x`, for large `x`.
fn airy_far(x: f64) -> f64 {
    let z = 2.0 / 3.0 * x.powf(1.5);
    let (mut term, mut parts) = (1.0, [1.0, 0.0]);
    for n in 1..16 {
        let k = f64::from(n);
        let next = term * (6.0 * k - 5.0) * (6.0 * k - 1.0) / (72.0 * k * z);
        if next.abs() > term.abs() {
            break;
        }
        term = next;
        // Signs change every two terms.
        parts[n as usize % 2] += if n % 4 < 2 { term } else { -term };
    }
    let angle = z - FRAC_PI_4;
    (angle.cos() * parts[0] + angle.sin() * parts[1]) / (PI.sqrt() * x.powf(0.25))
}
