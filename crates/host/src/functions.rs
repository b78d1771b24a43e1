//! Functions of numbers that nodes would take too many steps for: computed in 64 bits, element by
//! element.

mod bessel;
mod gamma;
mod polynomials;

use flambeau_tensor::{DType, DTypeClass, Tensor, cast};

use crate::{
    Call, Error, Kernel,
    arrays::{broadcast, common_shape},
    call::Argument,
};

type Results = Result<Vec<Tensor>, Error>;

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel::new("aten::frexp", frexp),
    Kernel::new("aten::gcd", |call| integers(call, gcd)),
    Kernel::new("aten::igamma", |call| pairs(call, "self", "other", gamma::lower_share)),
    Kernel::new("aten::igammac", |call| pairs(call, "self", "other", gamma::upper_share)),
    Kernel::new("aten::lcm", |call| integers(call, lcm)),
    Kernel::new("aten::nextafter", nextafter),
    Kernel::new("aten::polygamma", polygamma),
    Kernel::new("aten::special_airy_ai", |call| each(call, "x", bessel::airy)),
    Kernel::new("aten::special_bessel_j0", |call| each(call, "self", libm::j0)),
    Kernel::new("aten::special_bessel_j1", |call| each(call, "self", libm::j1)),
    Kernel::new("aten::special_bessel_y0", |call| each(call, "self", libm::y0)),
    Kernel::new("aten::special_bessel_y1", |call| each(call, "self", libm::y1)),
    Kernel::new("aten::special_chebyshev_polynomial_t", |call| polynomial(call, polynomials::chebyshev_t)),
    Kernel::new("aten::special_chebyshev_polynomial_u", |call| polynomial(call, polynomials::chebyshev_u)),
    Kernel::new("aten::special_chebyshev_polynomial_v", |call| polynomial(call, polynomials::chebyshev_v)),
    Kernel::new("aten::special_chebyshev_polynomial_w", |call| polynomial(call, polynomials::chebyshev_w)),
    Kernel::new("aten::special_gammainc", |call| pairs(call, "self", "other", gamma::lower_share)),
    Kernel::new("aten::special_gammaincc", |call| pairs(call, "self", "other", gamma::upper_share)),
    Kernel::new("aten::special_hermite_polynomial_h", |call| polynomial(call, polynomials::hermite_h)),
    Kernel::new("aten::special_hermite_polynomial_he", |call| polynomial(call, polynomials::hermite_he)),
    Kernel::new("aten::special_laguerre_polynomial_l", |call| polynomial(call, polynomials::laguerre)),
    Kernel::new("aten::special_legendre_polynomial_p", |call| polynomial(call, polynomials::legendre)),
    Kernel::new("aten::special_modified_bessel_k0", |call| each(call, "self", |x| bessel::k(0.0, x))),
    Kernel::new("aten::special_modified_bessel_k1", |call| each(call, "self", |x| bessel::k(1.0, x))),
    Kernel::new("aten::special_polygamma", polygamma),
    Kernel::new("aten::special_scaled_modified_bessel_k0", |call| each(call, "x", |x| bessel::scaled_k(0.0, x))),
    Kernel::new("aten::special_scaled_modified_bessel_k1", |call| each(call, "x", |x| bessel::scaled_k(1.0, x))),
    Kernel::new("aten::special_shifted_chebyshev_polynomial_t", |call| {
        polynomial(call, |x, n| polynomials::chebyshev_t(2.0 * x - 1.0, n))
    }),
    Kernel::new("aten::special_shifted_chebyshev_polynomial_u", |call| {
        polynomial(call, |x, n| polynomials::chebyshev_u(2.0 * x - 1.0, n))
    }),
    Kernel::new("aten::special_shifted_chebyshev_polynomial_v", |call| {
        polynomial(call, |x, n| polynomials::chebyshev_v(2.0 * x - 1.0, n))
    }),
    Kernel::new("aten::special_shifted_chebyshev_polynomial_w", |call| {
        polynomial(call, |x, n| polynomials::chebyshev_w(2.0 * x - 1.0, n))
    }),
    Kernel::new("aten::special_spherical_bessel_j0", |call| each(call, "x", bessel::spherical_j0)),
    Kernel::new("aten::special_zeta", |call| pairs(call, "self", "other", gamma::zeta)),
];

/// A tensor operand, or a number as one of rank 0, in that type.
fn operand(call: &Call<'_>, name: &'static str, dtype: DType) -> Result<Tensor, Error> {
    match call.arg(name) {
        Some(Argument::Tensor(t)) => Ok(cast(t, dtype)?),
        Some(Argument::Int(v)) => Ok(cast(&Tensor::scalar(*v), dtype)?),
        _ => Ok(cast(&Tensor::scalar(call.number(name)?), dtype)?),
    }
}

fn each(call: &Call<'_>, name: &'static str, f: fn(f64) -> f64) -> Results {
    let x = operand(call, name, DType::F64)?;
    let values: Vec<f64> = x.as_slice::<f64>()?.iter().map(|&v| f(v)).collect();
    Ok(vec![Tensor::from_slice(&values, x.shape())?])
}

/// Both operands, in that type, in their common shape.
fn operands(call: &Call<'_>, names: [&'static str; 2], dtype: DType) -> Result<[Tensor; 2], Error> {
    let (a, b) = (operand(call, names[0], dtype)?, operand(call, names[1], dtype)?);
    let shape = common_shape(a.shape(), b.shape())?;
    Ok([broadcast(&a, &shape)?, broadcast(&b, &shape)?])
}

fn pairs(call: &Call<'_>, left: &'static str, right: &'static str, f: fn(f64, f64) -> f64) -> Results {
    let [a, b] = operands(call, [left, right], DType::F64)?;
    let values: Vec<f64> = a.as_slice::<f64>()?.iter().zip(b.as_slice::<f64>()?).map(|(&a, &b)| f(a, b)).collect();
    Ok(vec![Tensor::from_slice(&values, a.shape())?])
}

/// `f` of integers in the type of the result. As in PyTorch, numbers are cut to this type.
fn integers(call: &Call<'_>, f: fn(i64, i64) -> i64) -> Results {
    let dtype = call.results.first().copied().filter(|d| d.class() == DTypeClass::Integer).unwrap_or(DType::I64);
    let [a, b] = operands(call, ["self", "other"], dtype)?;
    let (a, b) = (cast(&a, DType::I64)?, cast(&b, DType::I64)?);
    let values: Vec<i64> = a.as_slice::<i64>()?.iter().zip(b.as_slice::<i64>()?).map(|(&a, &b)| f(a, b)).collect();
    Ok(vec![Tensor::from_slice(&values, a.shape())?])
}

/// A polynomial of a degree that each element states; negative ones give 0.
fn polynomial(call: &Call<'_>, f: fn(f64, i64) -> f64) -> Results {
    let [x, n] = operands(call, ["x", "n"], DType::F64)?;
    let one = |(&x, &n): (&f64, &f64)| if n <= -1.0 { 0.0 } else { f(x, n as i64) };
    let values: Vec<f64> = x.as_slice::<f64>()?.iter().zip(n.as_slice::<f64>()?).map(one).collect();
    Ok(vec![Tensor::from_slice(&values, x.shape())?])
}

/// The `n`-th derivative of the digamma function, `n` from 1 on.
fn polygamma(call: &Call<'_>) -> Results {
    let n = call.number("n")?;
    let is_single = call.tensor("self")?.dtype() != DType::F64;
    let x = operand(call, "self", DType::F64)?;
    let values: Vec<f64> = x.as_slice::<f64>()?.iter().map(|&x| gamma::polygamma(n, x, is_single)).collect();
    Ok(vec![Tensor::from_slice(&values, x.shape())?])
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a as i64
}

fn lcm(a: i64, b: i64) -> i64 {
    match gcd(a, b) {
        0 => 0,
        divisor => (a / divisor).wrapping_mul(b).wrapping_abs(),
    }
}

/// Mantissas in `[0.5, 1)` and the powers of two that go with them.
fn frexp(call: &Call<'_>) -> Results {
    let x = operand(call, "self", DType::F64)?;
    let parts: Vec<(f64, i32)> = x.as_slice::<f64>()?.iter().map(|&v| libm::frexp(v)).collect();
    let (mantissas, exponents): (Vec<f64>, Vec<i32>) =
        parts.into_iter().map(|(m, e)| if m.is_finite() { (m, e) } else { (m, 0) }).unzip();
    Ok(vec![Tensor::from_slice(&mantissas, x.shape())?, Tensor::from_slice(&exponents, x.shape())?])
}

/// The next number from `self` towards `other` that the type of the result has.
fn nextafter(call: &Call<'_>) -> Results {
    let dtype = call.results.first().copied().unwrap_or(DType::F32);
    let [a, b] = operands(call, ["self", "other"], dtype)?;
    let (from, to) = (cast(&a, DType::F64)?, cast(&b, DType::F64)?);
    let size = dtype.size();
    let mut bytes = a.bytes().to_vec();
    for ((element, &from), &to) in bytes.chunks_exact_mut(size).zip(from.as_slice::<f64>()?).zip(to.as_slice::<f64>()?) {
        let mut wide = [0; 8];
        if from.is_nan() || to.is_nan() {
            let nan = cast(&Tensor::scalar(f64::NAN), dtype)?;
            element.copy_from_slice(nan.bytes());
            continue;
        }
        if from == to {
            let to = cast(&Tensor::scalar(to), dtype)?;
            element.copy_from_slice(to.bytes());
            continue;
        }
        wide[..size].copy_from_slice(element);
        // Bits of numbers of one sign are in the order of their magnitudes.
        let next = match (from == 0.0, (from < to) == (from > 0.0)) {
            (true, _) => 1 | u64::from(to < 0.0) << (8 * size - 1),
            (false, true) => u64::from_le_bytes(wide) + 1,
            (false, false) => u64::from_le_bytes(wide) - 1,
        };
        element.copy_from_slice(&next.to_le_bytes()[..size]);
    }
    Ok(vec![Tensor::new(dtype, a.shape(), bytes.into())?.aligned()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::testing::run;

    fn tensor(values: &[f64], dtype: DType) -> Argument {
        Argument::Tensor(cast(&Tensor::from_slice(values, &[values.len()]).unwrap(), dtype).unwrap())
    }

    fn check(target: &str, args: &[Argument], expected: &[f64]) {
        let found = cast(&run(target, args, &[DType::F32]).unwrap()[0], DType::F64).unwrap();
        for (a, b) in found.as_slice::<f64>().unwrap().iter().zip(expected) {
            assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{target}: {a} instead of {b}");
        }
    }

    #[test]
    fn functions_have_known_values() {
        let x = |values: &[f64]| tensor(values, DType::F64);
        check("aten.special_zeta.default", &[x(&[2.0, 3.0]), x(&[1.0, 2.0])], &[1.644934066848226, 0.202056903159594]);
        check("aten.polygamma.default", &[Argument::Int(1), x(&[1.0, 0.25])], &[1.644934066848226, 17.19732915450711]);
        let poles = tensor(&[-1.0, -2.0], DType::F32);
        check("aten.polygamma.default", &[Argument::Int(1), poles], &[1.2913694852497622e15, 3.2284237131244294e14]);
        check("aten.igamma.default", &[x(&[2.0, 0.5]), x(&[1.0, 4.0])], &[0.264241117657115, 0.995322265018953]);
        check("aten.igammac.default", &[x(&[2.0, 30.0]), x(&[1.0, 40.0])], &[0.735758882342885, 0.043228682151736]);
        check("aten.special_modified_bessel_k0.default", &[x(&[1.0, 0.001])], &[0.421024438240708, 7.023688800561831]);
        check(
            "aten.special_airy_ai.default",
            &[x(&[0.0, 1.0, -2.0, -9.0])],
            &[0.355028053887817, 0.135292416312881, 0.227407428201685, -0.022133721547341],
        );
        check("aten.special_legendre_polynomial_p.default", &[x(&[0.5, 0.3]), x(&[2.0, 3.0])], &[-0.125, -0.3825]);
        check("aten.special_hermite_polynomial_h.default", &[x(&[0.5]), x(&[3.0])], &[-5.0]);
    }

    #[test]
    fn integers_and_bits_are_exact() {
        let i = |values: &[f64]| tensor(values, DType::I64);
        check("aten.gcd.default", &[i(&[12.0, -9.0, 0.0]), i(&[18.0, 6.0, 5.0])], &[6.0, 3.0, 5.0]);
        check("aten.lcm.default", &[i(&[4.0, -9.0, 0.0]), i(&[6.0, 6.0, 5.0])], &[12.0, 18.0, 0.0]);
        check("aten.frexp.Tensor", &[tensor(&[8.0, -0.3, 0.0], DType::F32)], &[0.5, -0.6000000238418579, 0.0]);
        let up = f64::from(1.0f32.next_up());
        check(
            "aten.nextafter.default",
            &[tensor(&[1.0, 0.0, -1.0], DType::F32), tensor(&[2.0, -1.0, -1.0], DType::F32)],
            &[up, -1e-45, -1.0],
        );
    }
}
