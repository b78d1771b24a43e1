//! Comparisons and masks.

use flambeau_tensor::DType;

use super::{
    Builder, Val,
    ops::{broadcast, float, int, tensor},
};

impl Builder {
    /// Whether `x == number`, elementwise.
    pub(crate) fn equals(&mut self, x: &Val, number: i64) -> Val {
        self.call("aten.eq.Scalar", vec![tensor("self", x), int("other", number)], DType::Bool, x.dims.clone())
    }

    /// Whether `x >= number`, elementwise.
    pub(crate) fn at_least(&mut self, x: &Val, number: i64) -> Val {
        self.call("aten.ge.Scalar", vec![tensor("self", x), int("other", number)], DType::Bool, x.dims.clone())
    }

    /// Whether `x < number`, elementwise.
    pub(crate) fn below(&mut self, x: &Val, number: i64) -> Val {
        self.call("aten.lt.Scalar", vec![tensor("self", x), int("other", number)], DType::Bool, x.dims.clone())
    }

    /// Whether `a <= b`, broadcast.
    pub(crate) fn at_most(&mut self, a: &Val, b: &Val) -> Val {
        let dims = broadcast(&a.dims, &b.dims);
        self.call("aten.le.Tensor", vec![tensor("self", a), tensor("other", b)], DType::Bool, dims)
    }

    /// Whether `x <= number`, elementwise.
    pub(crate) fn at_most_number(&mut self, x: &Val, number: f64) -> Val {
        let inputs = vec![tensor("self", x), float("other", number)];
        self.call("aten.le.Scalar", inputs, DType::Bool, x.dims.clone())
    }

    pub(crate) fn and(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.logical_and.default", a, b)
    }

    pub(crate) fn or(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.logical_or.default", a, b)
    }

    pub(crate) fn not(&mut self, x: &Val) -> Val {
        self.unary("aten.logical_not.default", x)
    }

    /// `x` with `number` where `mask` is true. The mask is broadcast to `x`.
    pub(crate) fn masked_fill(&mut self, x: &Val, mask: &Val, number: f64) -> Val {
        let inputs = vec![tensor("self", x), tensor("mask", mask), float("value", number)];
        self.call("aten.masked_fill.Scalar", inputs, x.dtype, x.dims.clone())
    }

    /// `x` with `number` at the places `ids` of its last axis.
    pub(crate) fn scatter_last(&mut self, x: &Val, ids: &Val, number: f64) -> Val {
        let inputs = vec![tensor("self", x), int("dim", -1), tensor("index", ids), float("value", number)];
        self.call("aten.scatter.value", inputs, x.dtype, x.dims.clone())
    }
}
