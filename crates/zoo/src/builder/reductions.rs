//! Reductions and normalizations.

use flambeau_pt2::Argument;
use flambeau_tensor::{DType, Expr};

use super::{
    Builder, Val,
    ops::{arg, float, int, tensor},
};

impl Builder {
    /// Root-mean-square norm, in the type of `x` and computed in f32.
    pub(crate) fn rms_norm(&mut self, x: &Val, weight: Option<&Val>, eps: f64) -> Val {
        let shape = x.dims.last().and_then(Expr::as_int).into_iter().collect();
        let shape = arg("normalized_shape", Argument::Ints(shape));
        let weight = weight.map_or(arg("weight", Argument::None), |w| tensor("weight", w));
        self.call("aten.rms_norm.default", vec![tensor("input", x), shape, weight, float("eps", eps)], x.dtype, x.dims.clone())
    }

    /// Layer norm, in the type of `x` and computed in f32.
    pub(crate) fn layer_norm(&mut self, x: &Val, weight: Option<&Val>, bias: Option<&Val>, eps: f64) -> Val {
        let shape = arg("normalized_shape", Argument::Ints(x.dims.last().and_then(Expr::as_int).into_iter().collect()));
        let weight = weight.map_or(arg("weight", Argument::None), |w| tensor("weight", w));
        let bias = bias.map_or(arg("bias", Argument::None), |bias| tensor("bias", bias));
        let inputs = vec![tensor("input", x), shape, weight, bias, float("eps", eps)];
        self.call("aten.layer_norm.default", inputs, x.dtype, x.dims.clone())
    }

    /// Normalizes each channel of `x` [1, C, ..] by its mean and variance [C] from training, then
    /// scales and shifts it, in f32.
    pub(crate) fn batch_norm(&mut self, x: &Val, [mean, variance]: [&Val; 2], [weight, bias]: [&Val; 2], eps: f64) -> Val {
        let inputs = vec![
            tensor("input", x),
            tensor("weight", weight),
            tensor("bias", bias),
            tensor("running_mean", mean),
            tensor("running_var", variance),
            arg("training", Argument::Bool(false)),
            float("momentum", 0.1),
            float("eps", eps),
            arg("cudnn_enabled", Argument::Bool(false)),
        ];
        self.call("aten.batch_norm.default", inputs, x.dtype, x.dims.clone())
    }

    /// Normalizes `x` [1, C, ..] by the mean and variance of all its elements, then scales and
    /// shifts each channel, in f32.
    pub(crate) fn whole_norm(&mut self, x: &Val, [weight, bias]: [&Val; 2], eps: f64) -> Val {
        let inputs =
            vec![tensor("input", x), int("num_groups", 1), tensor("weight", weight), tensor("bias", bias), float("eps", eps)];
        self.call("aten.group_norm.default", inputs, x.dtype, x.dims.clone())
    }

    pub(crate) fn softmax(&mut self, x: &Val) -> Val {
        self.call("aten.softmax.int", vec![tensor("self", x), int("dim", -1)], x.dtype, x.dims.clone())
    }

    fn reduced(x: &Val) -> Vec<Expr> {
        let mut dims = x.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = Expr::Int(1);
        }
        dims
    }

    /// The mean over the last axis, which is kept with size 1.
    pub(crate) fn mean(&mut self, x: &Val) -> Val {
        let total = self.sum(x);
        self.divide(&total, x.dim(x.dims.len() - 1) as f64)
    }

    /// The sum over the last axis, which is kept with size 1.
    pub(crate) fn sum(&mut self, x: &Val) -> Val {
        let inputs = vec![tensor("self", x), arg("dim", Argument::Ints(vec![-1])), arg("keepdim", Argument::Bool(true))];
        self.call("aten.sum.dim_IntList", inputs, x.dtype, Self::reduced(x))
    }

    /// The largest element of the last axis, which is kept with size 1.
    pub(crate) fn largest(&mut self, x: &Val) -> Val {
        let inputs = vec![tensor("self", x), arg("dim", Argument::Ints(vec![-1])), arg("keepdim", Argument::Bool(true))];
        self.call("aten.amax.default", inputs, x.dtype, Self::reduced(x))
    }

    /// The sum over an axis, which is removed.
    pub(crate) fn sum_over(&mut self, x: &Val, axis: usize) -> Val {
        self.over("aten.sum.dim_IntList", x, axis)
    }

    /// The largest element along an axis, which is removed.
    pub(crate) fn largest_over(&mut self, x: &Val, axis: usize) -> Val {
        self.over("aten.amax.default", x, axis)
    }

    fn over(&mut self, target: &str, x: &Val, axis: usize) -> Val {
        let mut dims = x.dims.clone();
        dims.remove(axis);
        let inputs = vec![tensor("self", x), arg("dim", Argument::Ints(vec![axis as i64])), arg("keepdim", Argument::Bool(false))];
        self.call(target, inputs, x.dtype, dims)
    }

    /// The logarithm of the sum of exponentials over the last axis, which is kept with size 1.
    pub(crate) fn log_sum_exp(&mut self, x: &Val) -> Val {
        let inputs = vec![tensor("self", x), arg("dim", Argument::Ints(vec![-1])), arg("keepdim", Argument::Bool(true))];
        self.call("aten.logsumexp.default", inputs, x.dtype, Self::reduced(x))
    }

    /// The `k` largest elements of the last axis, and their indices.
    pub(crate) fn top(&mut self, x: &Val, k: usize) -> [Val; 2] {
        let mut dims = x.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = Expr::Int(k as i64);
        }
        self.call_pair("aten.topk.default", vec![tensor("self", x), int("k", k as i64)], [x.dtype, DType::I64], &dims)
    }
}
