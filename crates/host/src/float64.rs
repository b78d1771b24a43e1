//! Kernels on 64-bit floats, which graphs do not support. They are plain loops for the few calls
//! outside of delegates.

use std::f64::consts::{LN_2, LN_10};

use flambeau_tensor::{DType, Tensor, cast};

use crate::{
    Call, Error, For, Kernel,
    arrays::{broadcast, common_shape},
    call::Argument,
};

type Results = Result<Vec<Tensor>, Error>;

/// Truth values are 0 and 1.
pub(crate) const KERNELS: &[Kernel] = &[
    float64("aten::_log_softmax", |call| call.along(log_softmax)),
    float64("aten::_softmax", |call| call.along(softmax)),
    float64("aten::_to_copy", |call| call.each(|x| x)),
    float64("aten::abs", |call| call.each(f64::abs)),
    float64("aten::acos", |call| call.each(f64::acos)),
    float64("aten::acosh", |call| call.each(f64::acosh)),
    float64("aten::add", |call| call.weighted(|a, b, alpha| a + alpha * b)),
    float64("aten::amax", |call| call.fold(most)),
    float64("aten::amin", |call| call.fold(|line| -line.iter().map(|v| -v).fold(f64::NEG_INFINITY, larger))),
    float64("aten::asin", |call| call.each(f64::asin)),
    float64("aten::asinh", |call| call.each(f64::asinh)),
    float64("aten::atan", |call| call.each(f64::atan)),
    float64("aten::atan2", |call| call.pairs(f64::atan2)),
    float64("aten::atanh", |call| call.each(f64::atanh)),
    float64("aten::ceil", |call| call.each(f64::ceil)),
    float64("aten::clone", |call| call.each(|x| x)),
    float64("aten::cos", |call| call.each(f64::cos)),
    float64("aten::cosh", |call| call.each(f64::cosh)),
    float64("aten::cumsum", |call| call.along(cumsum)),
    float64("aten::div", |call| match call.text("rounding_mode") {
        Some("floor") => call.pairs(|a, b| (a / b).floor()),
        Some(_) => call.pairs(|a, b| (a / b).trunc()),
        None => call.pairs(|a, b| a / b),
    }),
    float64("aten::eq", |call| call.pairs(|a, b| truth(a == b))),
    float64("aten::exp", |call| call.each(f64::exp)),
    float64("aten::expm1", |call| call.each(f64::exp_m1)),
    float64("aten::floor", |call| call.each(f64::floor)),
    float64("aten::floor_divide", |call| call.pairs(|a, b| (a / b).floor())),
    float64("aten::fmod", |call| call.pairs(|a, b| a % b)),
    float64("aten::ge", |call| call.pairs(|a, b| truth(a >= b))),
    float64("aten::gt", |call| call.pairs(|a, b| truth(a > b))),
    float64("aten::isinf", |call| call.each(|x| truth(x.is_infinite()))),
    float64("aten::isnan", |call| call.each(|x| truth(x.is_nan()))),
    float64("aten::le", |call| call.pairs(|a, b| truth(a <= b))),
    float64("aten::log", |call| call.each(f64::ln)),
    float64("aten::log10", |call| call.each(|x| x.ln() / LN_10)),
    float64("aten::log1p", |call| call.each(f64::ln_1p)),
    float64("aten::log2", |call| call.each(|x| x.ln() / LN_2)),
    float64("aten::log_softmax", |call| call.along(log_softmax)),
    float64("aten::logical_not", |call| call.each(|x| truth(x == 0.0))),
    float64("aten::lt", |call| call.pairs(|a, b| truth(a < b))),
    float64("aten::maximum", |call| call.pairs(larger)),
    float64("aten::mean", |call| call.fold(|line| line.iter().sum::<f64>() / line.len() as f64)),
    float64("aten::minimum", |call| call.pairs(|a, b| -larger(-a, -b))),
    float64("aten::mul", |call| call.pairs(|a, b| a * b)),
    float64("aten::ne", |call| call.pairs(|a, b| truth(a != b))),
    float64("aten::neg", |call| call.each(|x| -x)),
    float64("aten::pow", |call| call.pairs(f64::powf)),
    float64("aten::prod", |call| call.fold(|line| line.iter().product())),
    float64("aten::reciprocal", |call| call.each(f64::recip)),
    float64("aten::relu", |call| call.each(|x| if x < 0.0 { 0.0 } else { x })),
    float64("aten::remainder", |call| call.pairs(remainder)),
    float64("aten::round", |call| call.each(f64::round_ties_even)),
    float64("aten::rsqrt", |call| call.each(|x| 1.0 / x.sqrt())),
    float64("aten::rsub", |call| call.weighted(|a, b, alpha| b - alpha * a)),
    float64("aten::sigmoid", |call| call.each(|x| 1.0 / (1.0 + (-x).exp()))),
    float64("aten::sign", |call| call.each(|x| if x == 0.0 { 0.0 } else { x.signum() })),
    float64("aten::sin", |call| call.each(f64::sin)),
    float64("aten::sinh", |call| call.each(f64::sinh)),
    float64("aten::softmax", |call| call.along(softmax)),
    float64("aten::sqrt", |call| call.each(f64::sqrt)),
    float64("aten::square", |call| call.each(|x| x * x)),
    float64("aten::sub", |call| call.weighted(|a, b, alpha| a - alpha * b)),
    float64("aten::sum", |call| call.fold(|line| line.iter().sum())),
    float64("aten::tan", |call| call.each(f64::tan)),
    float64("aten::tanh", |call| call.each(f64::tanh)),
    float64("aten::to", |call| call.each(|x| x)),
    float64("aten::trunc", |call| call.each(f64::trunc)),
];

const fn float64(name: &'static str, run: fn(&Call<'_>) -> Results) -> Kernel {
    Kernel::new(name, run).on(For::Float64)
}

impl Call<'_> {
    /// A tensor, or a number as one of rank 0, in 64-bit floats.
    pub(crate) fn operand(&self, name: &'static str) -> Result<Tensor, Error> {
        match self.arg(name) {
            Some(Argument::Tensor(_)) => Ok(cast(self.tensor(name)?, DType::F64)?),
            _ => Ok(Tensor::from_slice(&[self.number(name)?], &[])?),
        }
    }

    /// A function of each element.
    pub(crate) fn each(&self, f: impl Fn(f64) -> f64) -> Results {
        let x = self.operand("self")?;
        tensor_of(&floats(&x)?.iter().map(|&v| f(v)).collect::<Vec<_>>(), x.shape())
    }

    /// A function of two operands at a time.
    pub(crate) fn pairs(&self, f: impl Fn(f64, f64) -> f64) -> Results {
        let right = if self.arg("exponent").is_some() { "exponent" } else { "other" };
        let (a, b) = (self.operand("self")?, self.operand(right)?);
        let shape = common_shape(a.shape(), b.shape())?;
        let (a, b) = (broadcast(&a, &shape)?, broadcast(&b, &shape)?);
        tensor_of(&floats(&a)?.iter().zip(floats(&b)?).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>(), &shape)
    }

    /// A function of two operands at a time and of `alpha`.
    fn weighted(&self, f: impl Fn(f64, f64, f64) -> f64) -> Results {
        let alpha = self.number_or("alpha", 1.0)?;
        self.pairs(|a, b| f(a, b, alpha))
    }

    /// One value for each line over the reduced axes.
    pub(crate) fn fold(&self, f: impl Fn(&[f64]) -> f64) -> Results {
        let x = self.operand("self")?;
        let (values, shape) = self.folded(floats(&x)?, x.shape(), f)?;
        tensor_of(&values, &shape)
    }

    /// As many values for each line along an axis.
    pub(crate) fn along(&self, f: impl Fn(&[f64]) -> Vec<f64>) -> Results {
        let x = self.operand("self")?;
        tensor_of(&self.mapped(floats(&x)?, x.shape(), f)?, x.shape())
    }
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn remainder(a: f64, b: f64) -> f64 {
    if a % b != 0.0 && (a % b < 0.0) != (b < 0.0) { a % b + b } else { a % b }
}

fn most(line: &[f64]) -> f64 {
    line.iter().copied().fold(f64::NEG_INFINITY, larger)
}

fn softmax(line: &[f64]) -> Vec<f64> {
    let most = most(line);
    let powers: Vec<f64> = line.iter().map(|v| (v - most).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.into_iter().map(|p| p / total).collect()
}

fn log_softmax(line: &[f64]) -> Vec<f64> {
    let most = most(line);
    let total = line.iter().map(|v| (v - most).exp()).sum::<f64>().ln() + most;
    line.iter().map(|v| v - total).collect()
}

fn cumsum(line: &[f64]) -> Vec<f64> {
    let add = |total: &mut f64, v: &f64| {
        *total += v;
        Some(*total)
    };
    line.iter().scan(0.0, add).collect()
}

/// The larger one; NaN before numbers.
pub(crate) fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

pub(crate) fn floats(x: &Tensor) -> Result<&[f64], Error> {
    Ok(x.as_slice::<f64>()?)
}

pub(crate) fn tensor_of(values: &[f64], shape: &[usize]) -> Results {
    Ok(vec![Tensor::from_slice(values, shape)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::testing::run;

    fn check(target: &str, args: &[Argument], shape: &[usize], expected: &[f64]) {
        let found = run(target, args, &[]).unwrap_or_else(|e| panic!("{target}: {e}")).remove(0);
        assert_eq!((found.shape(), found.as_slice::<f64>().unwrap()), (shape, expected), "{target}");
    }

    #[test]
    fn numbers_keep_64_bits() {
        let x = Tensor::from_slice(&[1.0 + f64::EPSILON, -2.0, 3.0, 4.0], &[2, 2]).unwrap();
        let own = || Argument::Tensor(x.clone());
        let int = Argument::Int;
        check("aten.neg.default", &[own()], &[2, 2], &[-1.0 - f64::EPSILON, 2.0, -3.0, -4.0]);
        check("aten.sub.Tensor", &[own(), int(1), Argument::None], &[2, 2], &[f64::EPSILON, -3.0, 2.0, 3.0]);
        check("aten.sum.dim_IntList", &[own(), Argument::Ints(vec![0])], &[2], &[4.0 + f64::EPSILON, 2.0]);
        check("aten.amin.default", &[own(), Argument::None], &[], &[-2.0]);
        check("aten.cumsum.default", &[own(), int(-1)], &[2, 2], &[1.0 + f64::EPSILON, f64::EPSILON - 1.0, 3.0, 7.0]);
        check("aten.gt.Scalar", &[own(), Argument::Float(1.0)], &[2, 2], &[1.0, 0.0, 1.0, 1.0]);
    }
}
