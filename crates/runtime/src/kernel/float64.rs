//! Kernels on 64-bit floats, which graphs do not have: plain loops, for the few calls that models leave outside of delegates.

use std::f64::consts::{LN_2, LN_10};

use flambeau_lower::Arg;
use flambeau_tensor::{DType, Tensor, cast};

use super::{
    call::Call,
    data::{broadcast, common_shape},
};
use crate::OperatorError;

/// A function of two elements.
type Pairwise = Box<dyn Fn(f64, f64) -> f64>;

/// The elements that a reduction sees at once, and where they stand.
#[derive(Clone, Debug, Default)]
struct Line {
    values: Vec<f64>,
    places: Vec<usize>,
}

impl Call<'_> {
    /// A tensor, or a number as one of rank 0, in 64-bit floats.
    fn operand(&self, name: &'static str) -> Result<Tensor, OperatorError> {
        match self.arg(name) {
            Some(Arg::Tensor(_)) => Ok(cast(self.tensor(name)?, DType::F64)?),
            _ => Ok(Tensor::from_slice(&[self.number(name)?], &[])?),
        }
    }

    /// The result in 64-bit floats; truth values are 0 and 1.
    pub(super) fn eval_float64(&self) -> Result<Tensor, OperatorError> {
        let name = self.name();
        if matches!(name, "_to_copy" | "to" | "clone") {
            return self.operand("self");
        }
        if let Some(f) = unary(name) {
            let x = self.operand("self")?;
            return made(&floats(&x)?.iter().map(|&v| f(v)).collect::<Vec<_>>(), x.shape());
        }
        if let Some(f) = self.binary(name)? {
            let right = if self.arg("exponent").is_some() { "exponent" } else { "other" };
            let (a, b) = (self.operand("self")?, self.operand(right)?);
            let shape = common_shape(a.shape(), b.shape())?;
            let (a, b) = (broadcast(&a, &shape)?, broadcast(&b, &shape)?);
            return made(&floats(&a)?.iter().zip(floats(&b)?).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>(), &shape);
        }
        let x = self.operand("self")?;
        match name {
            "sum" => self.fold(&x, |line| line.iter().sum()),
            "mean" => self.fold(&x, |line| line.iter().sum::<f64>() / line.len() as f64),
            "prod" => self.fold(&x, |line| line.iter().product()),
            "amax" => self.fold(&x, |line| line.iter().copied().fold(f64::NEG_INFINITY, larger)),
            "amin" => self.fold(&x, |line| -line.iter().map(|v| -v).fold(f64::NEG_INFINITY, larger)),
            "_softmax" | "softmax" => self.along(&x, |line| {
                let most = line.iter().copied().fold(f64::NEG_INFINITY, larger);
                let powers: Vec<f64> = line.iter().map(|v| (v - most).exp()).collect();
                let total: f64 = powers.iter().sum();
                powers.into_iter().map(|p| p / total).collect()
            }),
            "_log_softmax" | "log_softmax" => self.along(&x, |line| {
                let most = line.iter().copied().fold(f64::NEG_INFINITY, larger);
                let total = line.iter().map(|v| (v - most).exp()).sum::<f64>().ln() + most;
                line.iter().map(|v| v - total).collect()
            }),
            "cumsum" => self.along(&x, |line| {
                let add = |total: &mut f64, v: &f64| {
                    *total += v;
                    Some(*total)
                };
                line.iter().scan(0.0, add).collect()
            }),
            _ => Err(OperatorError::NoFloat64),
        }
    }

    /// Two operands at a time.
    fn binary(&self, name: &str) -> Result<Option<Pairwise>, OperatorError> {
        let alpha = if self.arg("alpha").is_some() { self.number("alpha")? } else { 1.0 };
        let truth = |holds: bool| f64::from(u8::from(holds));
        let f: Pairwise = match name {
            "add" => Box::new(move |a, b| a + alpha * b),
            "sub" => Box::new(move |a, b| a - alpha * b),
            "rsub" => Box::new(move |a, b| b - alpha * a),
            "mul" => Box::new(|a, b| a * b),
            "div" => match self.arg("rounding_mode") {
                Some(Arg::Str(mode)) if mode == "floor" => Box::new(|a, b| (a / b).floor()),
                Some(Arg::Str(_)) => Box::new(|a, b| (a / b).trunc()),
                _ => Box::new(|a, b| a / b),
            },
            "floor_divide" => Box::new(|a, b| (a / b).floor()),
            "fmod" => Box::new(|a, b| a % b),
            "remainder" => Box::new(|a, b| if a % b != 0.0 && (a % b < 0.0) != (b < 0.0) { a % b + b } else { a % b }),
            "pow" => Box::new(f64::powf),
            "atan2" => Box::new(f64::atan2),
            "maximum" => Box::new(larger),
            "minimum" => Box::new(|a, b| -larger(-a, -b)),
            "eq" => Box::new(move |a, b| truth(a == b)),
            "ne" => Box::new(move |a, b| truth(a != b)),
            "lt" => Box::new(move |a, b| truth(a < b)),
            "le" => Box::new(move |a, b| truth(a <= b)),
            "gt" => Box::new(move |a, b| truth(a > b)),
            "ge" => Box::new(move |a, b| truth(a >= b)),
            _ => return Ok(None),
        };
        Ok(Some(f))
    }

    /// One value for each line over the reduced axes.
    fn fold(&self, x: &Tensor, f: impl Fn(&[f64]) -> f64) -> Result<Tensor, OperatorError> {
        let axes = self.axes(x.rank())?;
        let keep = self.flag("keepdim");
        let lines = lines(x, &axes)?;
        let kept = |(i, &n): (usize, &usize)| match (axes.contains(&i), keep) {
            (false, _) => Some(n),
            (true, true) => Some(1),
            (true, false) => None,
        };
        let shape: Vec<usize> = x.shape().iter().enumerate().filter_map(kept).collect();
        made(&lines.iter().map(|line| f(&line.values)).collect::<Vec<_>>(), &shape)
    }

    /// As many values for each line along an axis.
    fn along(&self, x: &Tensor, f: impl Fn(&[f64]) -> Vec<f64>) -> Result<Tensor, OperatorError> {
        let axes: Vec<usize> = self.axes(x.rank())?.into_iter().take(1).collect();
        let mut out = vec![0.0; x.numel()];
        for line in lines(x, &axes)? {
            for (value, at) in f(&line.values).into_iter().zip(line.places) {
                out[at] = value;
            }
        }
        made(&out, x.shape())
    }
}

/// The larger one; NaN before numbers.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

fn unary(name: &str) -> Option<fn(f64) -> f64> {
    Some(match name {
        "abs" => f64::abs,
        "acos" => f64::acos,
        "acosh" => f64::acosh,
        "asin" => f64::asin,
        "asinh" => f64::asinh,
        "atan" => f64::atan,
        "atanh" => f64::atanh,
        "ceil" => f64::ceil,
        "cos" => f64::cos,
        "cosh" => f64::cosh,
        "exp" => f64::exp,
        "expm1" => f64::exp_m1,
        "floor" => f64::floor,
        "log" => f64::ln,
        "log10" => |x| x.ln() / LN_10,
        "log1p" => f64::ln_1p,
        "log2" => |x| x.ln() / LN_2,
        "neg" => |x| -x,
        "reciprocal" => f64::recip,
        "relu" => |x| if x < 0.0 { 0.0 } else { x },
        "round" => f64::round_ties_even,
        "rsqrt" => |x| 1.0 / x.sqrt(),
        "sigmoid" => |x| 1.0 / (1.0 + (-x).exp()),
        "sign" => |x| if x == 0.0 { 0.0 } else { x.signum() },
        "sin" => f64::sin,
        "sinh" => f64::sinh,
        "sqrt" => f64::sqrt,
        "square" => |x| x * x,
        "tan" => f64::tan,
        "tanh" => f64::tanh,
        "trunc" => f64::trunc,
        "isnan" => |x| f64::from(u8::from(x.is_nan())),
        "isinf" => |x| f64::from(u8::from(x.is_infinite())),
        "logical_not" => |x| f64::from(u8::from(x == 0.0)),
        _ => return None,
    })
}

fn floats(x: &Tensor) -> Result<&[f64], OperatorError> {
    Ok(x.as_slice::<f64>()?)
}

fn made(values: &[f64], shape: &[usize]) -> Result<Tensor, OperatorError> {
    Ok(Tensor::from_slice(values, shape)?)
}

/// One line over `axes` for each place of the other axes, in their order.
fn lines(x: &Tensor, axes: &[usize]) -> Result<Vec<Line>, OperatorError> {
    let (values, shape) = (floats(x)?, x.shape());
    let kept = |a: &usize| !axes.contains(a);
    let count: usize = (0..shape.len()).filter(kept).map(|a| shape[a]).product();
    let mut lines = vec![Line::default(); count];
    for (i, &value) in values.iter().enumerate() {
        let (mut rest, mut line, mut unit) = (i, 0, 1);
        for a in (0..shape.len()).rev() {
            if kept(&a) {
                line += rest % shape[a] * unit;
                unit *= shape[a];
            }
            rest /= shape[a];
        }
        lines[line].values.push(value);
        lines[line].places.push(i);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use flambeau_ir::Tid;
    use flambeau_tensor::Expr;

    use super::*;

    fn check(target: &str, args: &[Arg], x: &Tensor, shape: &[usize], expected: &[f64]) {
        let call = Call::of(target, args, std::slice::from_ref(x));
        let found = call.eval_float64().unwrap_or_else(|e| panic!("{target}: {e}"));
        assert_eq!((found.shape(), found.as_slice::<f64>().unwrap()), (shape, expected), "{target}");
    }

    #[test]
    fn numbers_keep_64_bits() {
        let x = Tensor::from_slice(&[1.0 + f64::EPSILON, -2.0, 3.0, 4.0], &[2, 2]).unwrap();
        let own = || Arg::Tensor(Tid(0));
        let int = |v| Arg::Int(Expr::Int(v));
        check("aten.neg.default", &[own()], &x, &[2, 2], &[-1.0 - f64::EPSILON, 2.0, -3.0, -4.0]);
        check("aten.sub.Tensor", &[own(), int(1), Arg::None], &x, &[2, 2], &[f64::EPSILON, -3.0, 2.0, 3.0]);
        check("aten.sum.dim_IntList", &[own(), Arg::Ints(vec![Expr::Int(0)])], &x, &[2], &[4.0 + f64::EPSILON, 2.0]);
        check("aten.amin.default", &[own(), Arg::None], &x, &[], &[-2.0]);
        check("aten.cumsum.default", &[own(), int(-1)], &x, &[2, 2], &[1.0 + f64::EPSILON, f64::EPSILON - 1.0, 3.0, 7.0]);
        check("aten.gt.Scalar", &[own(), Arg::Float(1.0)], &x, &[2, 2], &[1.0, 0.0, 1.0, 1.0]);
    }
}
