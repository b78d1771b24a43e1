//! Complex numbers of tensors, and kernels that take them apart or put them together.

use flambeau_tensor::{AlignedBytes, DType, Tensor, cast};
use rustfft::num_complex::Complex64;

use crate::{Call, Error, For, Kernel, arrays};

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel::new("aten::_conj", |call| call.each_complex(|z| z.conj())),
    Kernel::new("aten::_conj_physical", |call| call.each_complex(|z| z.conj())),
    Kernel::new("aten::_to_copy", |call| call.each_complex(|z| z)).on(For::Complex),
    Kernel::new("aten::abs", |call| Ok(vec![real(call.tensor("self")?, |z| z.norm())?])).on(For::Complex),
    Kernel::new("aten::acos", |call| call.each_complex(|z| z.acos())).on(For::Complex),
    Kernel::new("aten::acosh", |call| call.each_complex(|z| z.acosh())).on(For::Complex),
    Kernel::new("aten::add", |call| call.pairs_complex(|a, b, alpha| a + alpha * b)).on(For::Complex),
    Kernel::new("aten::angle", |call| Ok(vec![real(call.tensor("self")?, |z| z.arg())?])).on(For::Complex),
    Kernel::new("aten::asin", |call| call.each_complex(|z| z.asin())).on(For::Complex),
    Kernel::new("aten::asinh", |call| call.each_complex(|z| z.asinh())).on(For::Complex),
    Kernel::new("aten::atan", |call| call.each_complex(|z| z.atan())).on(For::Complex),
    Kernel::new("aten::atanh", |call| call.each_complex(|z| z.atanh())).on(For::Complex),
    Kernel::new("aten::complex", |call| call.of_two(Complex64::new, ["real", "imag"])),
    Kernel::new("aten::conj_physical", |call| call.each_complex(|z| z.conj())),
    Kernel::new("aten::cos", |call| call.each_complex(|z| z.cos())).on(For::Complex),
    Kernel::new("aten::cosh", |call| call.each_complex(|z| z.cosh())).on(For::Complex),
    Kernel::new("aten::cumprod", running_product).on(For::Complex),
    Kernel::new("aten::div", |call| call.pairs_complex(|a, b, _| a / b)).on(For::Complex),
    Kernel::new("aten::eq", |call| call.compare_complex(|a, b| a == b)).on(For::Complex),
    Kernel::new("aten::exp", |call| call.each_complex(|z| z.exp())).on(For::Complex),
    Kernel::new("aten::expm1", |call| call.each_complex(|z| z.exp() - 1.0)).on(For::Complex),
    Kernel::new("aten::log", |call| call.each_complex(|z| z.ln())).on(For::Complex),
    Kernel::new("aten::log10", |call| call.each_complex(|z| z.log10())).on(For::Complex),
    Kernel::new("aten::log1p", |call| call.each_complex(|z| (z + 1.0).ln())).on(For::Complex),
    Kernel::new("aten::log2", |call| call.each_complex(|z| z.log2())).on(For::Complex),
    Kernel::new("aten::mul", |call| call.pairs_complex(|a, b, _| a * b)).on(For::Complex),
    Kernel::new("aten::ne", |call| call.compare_complex(|a, b| a != b)).on(For::Complex),
    Kernel::new("aten::neg", |call| call.each_complex(|z| -z)).on(For::Complex),
    Kernel::new("aten::polar", |call| call.of_two(Complex64::from_polar, ["abs", "angle"])),
    Kernel::new("aten::pow", |call| call.pairs_complex(|a, b, _| if b.im == 0.0 { a.powf(b.re) } else { a.powc(b) }))
        .on(For::Complex),
    Kernel::new("aten::prod", product).on(For::Complex),
    Kernel::new("aten::reciprocal", |call| call.each_complex(|z| z.inv())).on(For::Complex),
    Kernel::new("aten::rsqrt", |call| call.each_complex(|z| z.sqrt().inv())).on(For::Complex),
    Kernel::new("aten::sgn", |call| call.each_complex(sign)).on(For::Complex),
    Kernel::new("aten::sigmoid", |call| call.each_complex(|z| ((-z).exp() + 1.0).inv())).on(For::Complex),
    Kernel::new("aten::sin", |call| call.each_complex(|z| z.sin())).on(For::Complex),
    Kernel::new("aten::sinh", |call| call.each_complex(|z| z.sinh())).on(For::Complex),
    Kernel::new("aten::sqrt", |call| call.each_complex(|z| z.sqrt())).on(For::Complex),
    Kernel::new("aten::square", |call| call.each_complex(|z| z * z)).on(For::Complex),
    Kernel::new("aten::sub", |call| call.pairs_complex(|a, b, alpha| a - alpha * b)).on(For::Complex),
    Kernel::new("aten::tan", |call| call.each_complex(|z| z.tan())).on(For::Complex),
    Kernel::new("aten::tanh", |call| call.each_complex(|z| z.tanh())).on(For::Complex),
    Kernel::new("aten::view_as_complex", whole),
    Kernel::new("aten::view_as_complex_copy", whole),
    Kernel::new("aten::view_as_real", |call| Ok(vec![parts(call.tensor("self")?)?])),
    Kernel::new("aten::view_as_real_copy", |call| Ok(vec![parts(call.tensor("self")?)?])),
];

type Results = Result<Vec<Tensor>, Error>;

impl Call<'_> {
    /// The element type of the first result, which is complex.
    pub(crate) fn complex_result(&self) -> DType {
        self.results.first().copied().filter(|d| d.part().is_some()).unwrap_or(DType::C64)
    }

    /// A tensor or a number as complex numbers, with its shape.
    fn complex_operand(&self, name: &'static str) -> Result<Tensor, Error> {
        match self.tensor(name) {
            Ok(x) => Ok(x.clone()),
            Err(_) => Ok(Tensor::from_slice(&[self.number(name)?], &[])?),
        }
    }

    fn each_complex(&self, f: impl Fn(Complex64) -> Complex64) -> Results {
        let x = self.tensor("self")?;
        let values: Vec<Complex64> = numbers(x)?.into_iter().map(f).collect();
        Ok(vec![tensor_of(&values, x.shape(), self.complex_result())?])
    }

    fn pairs_complex(&self, f: impl Fn(Complex64, Complex64, f64) -> Complex64) -> Results {
        let alpha = self.number_or("alpha", 1.0)?;
        let (values, shape) = self.pairs_of(|a, b| f(a, b, alpha))?;
        Ok(vec![tensor_of(&values, &shape, self.complex_result())?])
    }

    fn compare_complex(&self, f: impl Fn(Complex64, Complex64) -> bool) -> Results {
        let (truth, shape) = self.pairs_of(|a, b| u8::from(f(a, b)))?;
        Ok(vec![cast(&Tensor::from_slice(&truth, &shape)?, DType::Bool)?])
    }

    /// `f` of both operands, broadcast to one shape.
    fn pairs_of<T>(&self, f: impl Fn(Complex64, Complex64) -> T) -> Result<(Vec<T>, Vec<usize>), Error> {
        let right = if self.arg("exponent").is_some() { "exponent" } else { "other" };
        let (a, b) = (self.complex_operand("self")?, self.complex_operand(right)?);
        let shape = arrays::common_shape(a.shape(), b.shape())?;
        let (a, b) = (numbers(&arrays::broadcast(&a, &shape)?)?, numbers(&arrays::broadcast(&b, &shape)?)?);
        Ok((a.into_iter().zip(b).map(|(a, b)| f(a, b)).collect(), shape))
    }

    /// Complex numbers of two real operands.
    fn of_two(&self, f: impl Fn(f64, f64) -> Complex64, names: [&'static str; 2]) -> Results {
        let (a, b) = (self.tensor(names[0])?, self.tensor(names[1])?);
        let shape = arrays::common_shape(a.shape(), b.shape())?;
        let wide = |x: &Tensor| -> Result<Tensor, Error> { Ok(cast(&arrays::broadcast(x, &shape)?, DType::F64)?) };
        let (a, b) = (wide(a)?, wide(b)?);
        let values: Vec<Complex64> = a.as_slice::<f64>()?.iter().zip(b.as_slice::<f64>()?).map(|(&a, &b)| f(a, b)).collect();
        Ok(vec![tensor_of(&values, &shape, self.complex_result())?])
    }
}

/// The elements, real ones with an imaginary part of zero.
pub(crate) fn numbers(x: &Tensor) -> Result<Vec<Complex64>, Error> {
    if x.dtype().part().is_none() {
        return Ok(cast(x, DType::F64)?.as_slice()?.iter().map(|&re| Complex64::new(re, 0.0)).collect());
    }
    let parts = cast(&parts(x)?, DType::F64)?;
    Ok(parts.as_slice::<f64>()?.chunks_exact(2).map(|z| Complex64::new(z[0], z[1])).collect())
}

/// The number of length 1 with the same angle; 0 for 0.
fn sign(z: Complex64) -> Complex64 {
    let length = z.norm();
    if length == 0.0 { Complex64::ZERO } else { z / length }
}

/// A tensor of these numbers in a complex element type.
pub(crate) fn tensor_of(values: &[Complex64], shape: &[usize], dtype: DType) -> Result<Tensor, Error> {
    let part = dtype.part().ok_or(Error::NotComplex(dtype))?;
    let parts: Vec<f64> = values.iter().flat_map(|z| [z.re, z.im]).collect();
    let parts = cast(&Tensor::from_slice(&parts, &[parts.len()])?, part)?;
    Ok(Tensor::new(dtype, shape, parts.bytes().clone())?)
}

/// A real number of each element.
fn real(x: &Tensor, f: impl Fn(Complex64) -> f64) -> Result<Tensor, Error> {
    let values: Vec<f64> = numbers(x)?.into_iter().map(f).collect();
    Ok(Tensor::from_slice(&values, x.shape())?)
}

/// Real and imaginary parts along a new last axis of two.
fn parts(x: &Tensor) -> Result<Tensor, Error> {
    let part = x.dtype().part().ok_or(Error::NotComplex(x.dtype()))?;
    let shape: Vec<usize> = x.shape().iter().copied().chain([2]).collect();
    Ok(Tensor::new(part, &shape, x.bytes().clone())?.aligned())
}

/// The product of each line over the reduced axes.
fn product(call: &Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (values, shape) = call.folded(&numbers(x)?, x.shape(), |line| line.iter().product())?;
    Ok(vec![tensor_of(&values, &shape, call.complex_result())?])
}

/// The products of each element with the elements before it, along an axis.
fn running_product(call: &Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let multiply = |total: &mut Complex64, value: &Complex64| {
        *total *= value;
        Some(*total)
    };
    let values = call.mapped(&numbers(x)?, x.shape(), |line| line.iter().scan(Complex64::ONE, multiply).collect())?;
    Ok(vec![tensor_of(&values, x.shape(), call.complex_result())?])
}

/// Complex numbers from their parts along the last axis.
fn whole(call: &Call<'_>) -> Results {
    let (x, dtype) = (call.tensor("self")?, call.complex_result());
    let (Some(part), [shape @ .., 2]) = (dtype.part(), x.shape()) else { return Err(Error::Matrix(x.shape().to_vec())) };
    let bytes = AlignedBytes::copy_of(cast(x, part)?.bytes()).into_bytes();
    Ok(vec![Tensor::new(dtype, shape, bytes)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Argument, call::testing::run};

    #[test]
    fn parts_and_numbers_are_the_same_elements() {
        let z = Tensor::from_slice(&[3.0f32, -4.0, 0.0, 2.0], &[2, 2]).unwrap();
        let one = |target, x: &Tensor, made| run(target, &[Argument::Tensor(x.clone())], &[made]).unwrap().remove(0);
        let z = one("aten.view_as_complex.default", &z, DType::C64);
        assert_eq!((z.dtype(), z.shape()), (DType::C64, &[2][..]));
        assert_eq!(one("aten.abs.default", &z, DType::F32).as_slice::<f64>().unwrap(), [5.0, 2.0]);
        let back = one("aten.view_as_real.default", &z, DType::F32);
        assert_eq!((back.shape(), back.as_slice::<f32>().unwrap()), (&[2, 2][..], &[3.0, -4.0, 0.0, 2.0][..]));
    }

    #[test]
    fn products_are_those_of_complex_numbers() {
        let z = Tensor::new(DType::C64, &[1], Tensor::from_slice(&[1.0f32, 2.0], &[2]).unwrap().bytes().clone()).unwrap();
        let args = [Argument::Tensor(z.clone()), Argument::Tensor(z)];
        let square = run("aten.mul.Tensor", &args, &[DType::C64]).unwrap().remove(0);
        assert_eq!(numbers(&square).unwrap(), [Complex64::new(-3.0, 4.0)]);
    }

    #[test]
    fn products_run_along_an_axis_or_over_all_elements() {
        let parts = Tensor::from_slice(&[1.0f32, 1.0, 2.0, 0.0, 0.0, 1.0, 3.0, 0.0], &[8]).unwrap();
        let z = Tensor::new(DType::C64, &[2, 2], parts.bytes().clone()).unwrap();
        let found = |target, args: &[Argument]| {
            let args = [&[Argument::Tensor(z.clone())], args].concat();
            let made = run(target, &args, &[DType::C64]).unwrap().remove(0);
            (made.shape().to_vec(), numbers(&made).unwrap())
        };
        let i = Complex64::new;
        assert_eq!(found("aten.prod.default", &[]), (vec![], vec![i(-6.0, 6.0)]));
        let keep = [Argument::Int(0), Argument::Bool(true)];
        assert_eq!(found("aten.prod.dim_int", &keep), (vec![1, 2], vec![i(-1.0, 1.0), i(6.0, 0.0)]));
        let (shape, running) = found("aten.cumprod.default", &[Argument::Int(1)]);
        assert_eq!((shape, running), (vec![2, 2], vec![i(1.0, 1.0), i(2.0, 2.0), i(0.0, 1.0), i(0.0, 3.0)]));
    }

    #[test]
    fn kernels_of_real_numbers_take_no_complex_ones() {
        let found = |target, dtype| crate::kernel_for(flambeau_aten::schema(target).unwrap(), &[dtype, dtype]).is_some();
        assert!(found("aten.linalg_inv.default", DType::F32) && found("aten.sin.default", DType::C64));
        assert!(!found("aten.linalg_inv.default", DType::C64));
    }
}
