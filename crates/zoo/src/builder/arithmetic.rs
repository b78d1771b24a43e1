//! Arithmetic, element by element.

use flambeau_pt2::Argument;
use flambeau_tensor::DType;

use super::{
    Builder, Val,
    ops::{arg, broadcast, dtype, float, int, tensor},
};

impl Builder {
    pub(super) fn unary(&mut self, target: &str, x: &Val) -> Val {
        self.call(target, vec![tensor("self", x)], x.dtype, x.dims.clone())
    }

    pub(super) fn binary(&mut self, target: &str, a: &Val, b: &Val) -> Val {
        let dims = broadcast(&a.dims, &b.dims);
        self.call(target, vec![tensor("self", a), tensor("other", b)], a.dtype, dims)
    }

    fn with_number(&mut self, target: &str, x: &Val, number: f64) -> Val {
        self.call(target, vec![tensor("self", x), float("other", number)], x.dtype, x.dims.clone())
    }

    /// `a + b`, broadcast.
    pub(crate) fn add(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.add.Tensor", a, b)
    }

    /// `a * b`, broadcast.
    pub(crate) fn mul(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.mul.Tensor", a, b)
    }

    /// `a / b`, broadcast.
    pub(crate) fn div(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.div.Tensor", a, b)
    }

    /// The larger of `a` and `b`, broadcast.
    pub(crate) fn maximum(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.maximum.default", a, b)
    }

    /// `a - b`, broadcast.
    pub(crate) fn sub(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.sub.Tensor", a, b)
    }

    /// `x + number`, or `x` itself for 0.
    pub(crate) fn shift(&mut self, x: &Val, number: f64) -> Val {
        if number == 0.0 { x.clone() } else { self.with_number("aten.add.Tensor", x, number) }
    }

    /// `x * factor`, or `x` itself for 1.
    pub(crate) fn scale(&mut self, x: &Val, factor: f64) -> Val {
        if factor == 1.0 { x.clone() } else { self.with_number("aten.mul.Tensor", x, factor) }
    }

    /// `x / divisor`, or `x` itself for 1.
    pub(crate) fn divide(&mut self, x: &Val, divisor: f64) -> Val {
        if divisor == 1.0 { x.clone() } else { self.with_number("aten.div.Tensor", x, divisor) }
    }

    pub(crate) fn tanh(&mut self, x: &Val) -> Val {
        self.unary("aten.tanh.default", x)
    }

    /// `cap * tanh(x / cap)`.
    pub(crate) fn soft_cap(&mut self, x: &Val, cap: f64) -> Val {
        let x = self.divide(x, cap);
        let x = self.tanh(&x);
        self.scale(&x, cap)
    }

    pub(crate) fn relu(&mut self, x: &Val) -> Val {
        self.unary("aten.relu.default", x)
    }

    pub(crate) fn sin(&mut self, x: &Val) -> Val {
        self.unary("aten.sin.default", x)
    }

    pub(crate) fn cos(&mut self, x: &Val) -> Val {
        self.unary("aten.cos.default", x)
    }

    /// Non-negative `x mod divisor` of integers.
    pub(crate) fn remainder(&mut self, x: &Val, divisor: i64) -> Val {
        self.call("aten.remainder.Scalar", vec![tensor("self", x), int("other", divisor)], x.dtype, x.dims.clone())
    }

    /// `x` clamped to bounds. An infinite bound means none.
    pub(crate) fn clamp(&mut self, x: &Val, low: f64, high: f64) -> Val {
        let bound = |name: &str, value: f64| if value.is_finite() { float(name, value) } else { arg(name, Argument::None) };
        let inputs = vec![tensor("self", x), bound("min", low), bound("max", high)];
        self.call("aten.clamp.default", inputs, x.dtype, x.dims.clone())
    }

    pub(crate) fn abs(&mut self, x: &Val) -> Val {
        self.unary("aten.abs.default", x)
    }

    /// The nearest integer, ties to even.
    pub(crate) fn round(&mut self, x: &Val) -> Val {
        self.unary("aten.round.default", x)
    }

    /// `x * sigmoid(x)`.
    pub(crate) fn silu(&mut self, x: &Val) -> Val {
        self.unary("aten.silu.default", x)
    }

    /// The Gaussian unit, by its tanh approximation or by erf.
    pub(crate) fn gelu(&mut self, x: &Val, by_tanh: bool) -> Val {
        let approximate = arg("approximate", Argument::String(if by_tanh { "tanh" } else { "none" }.into()));
        self.call("aten.gelu.default", vec![tensor("self", x), approximate], x.dtype, x.dims.clone())
    }

    pub(crate) fn sigmoid(&mut self, x: &Val) -> Val {
        self.unary("aten.sigmoid.default", x)
    }

    pub(crate) fn sqrt(&mut self, x: &Val) -> Val {
        self.unary("aten.sqrt.default", x)
    }

    pub(crate) fn expm1(&mut self, x: &Val) -> Val {
        self.unary("aten.expm1.default", x)
    }

    pub(crate) fn floor(&mut self, x: &Val) -> Val {
        self.unary("aten.floor.default", x)
    }

    pub(crate) fn log(&mut self, x: &Val) -> Val {
        self.unary("aten.log.default", x)
    }

    /// `log(1 + x)`.
    pub(crate) fn log1p(&mut self, x: &Val) -> Val {
        self.unary("aten.log1p.default", x)
    }

    pub(crate) fn exp(&mut self, x: &Val) -> Val {
        self.unary("aten.exp.default", x)
    }

    /// `log(1 + exp(x))`.
    pub(crate) fn softplus(&mut self, x: &Val) -> Val {
        self.unary("aten.softplus.default", x)
    }

    /// `x` cast to another type, or `x` itself if it has this type.
    pub(crate) fn cast(&mut self, x: &Val, to: DType) -> Val {
        if x.dtype == to {
            return x.clone();
        }
        self.call("aten.to.dtype", vec![tensor("self", x), dtype("dtype", to)], to, x.dims.clone())
    }
}
