//! Views and concatenation.

use flambeau_pt2::Argument;
use flambeau_tensor::Expr;

use super::{
    Builder, Int, Val,
    ops::{arg, float, int, size, tensor, tensors},
};

impl Builder {
    /// Reshapes `x`.
    pub(crate) fn reshape(&mut self, x: &Val, sizes: &[Int]) -> Val {
        let shape = arg("shape", Argument::SymInts(sizes.iter().map(|s| s.arg.clone()).collect()));
        let dims = sizes.iter().map(|s| s.expr.clone()).collect();
        self.call("aten.reshape.default", vec![tensor("self", x), shape], x.dtype, dims)
    }

    /// Exchanges two axes.
    pub(crate) fn transpose(&mut self, x: &Val, a: usize, b: usize) -> Val {
        let mut dims = x.dims.clone();
        dims.swap(a, b);
        let inputs = vec![tensor("self", x), int("dim0", a as i64), int("dim1", b as i64)];
        self.call("aten.transpose.int", inputs, x.dtype, dims)
    }

    /// Inserts an axis of size 1.
    pub(crate) fn unsqueeze(&mut self, x: &Val, axis: usize) -> Val {
        let mut dims = x.dims.clone();
        dims.insert(axis, Expr::Int(1));
        self.call("aten.unsqueeze.default", vec![tensor("self", x), int("dim", axis as i64)], x.dtype, dims)
    }

    /// Slice `start..end` of an axis.
    pub(crate) fn slice(&mut self, x: &Val, axis: usize, start: &Int, end: &Int) -> Val {
        let mut dims = x.dims.clone();
        dims[axis] = end.expr.clone() - start.expr.clone();
        let inputs = vec![tensor("self", x), int("dim", axis as i64), size("start", start), size("end", end)];
        self.call("aten.slice.Tensor", inputs, x.dtype, dims)
    }

    /// Every `step`th element of the last axis from `start` on.
    pub(crate) fn every(&mut self, x: &Val, start: usize, step: usize) -> Val {
        let axis = x.dims.len() - 1;
        let mut dims = x.dims.clone();
        dims[axis] = Expr::Int((x.dim(axis).saturating_sub(start)).div_ceil(step) as i64);
        let end = int("end", i64::MAX);
        let inputs = vec![tensor("self", x), int("dim", axis as i64), int("start", start as i64), end, int("step", step as i64)];
        self.call("aten.slice.Tensor", inputs, x.dtype, dims)
    }

    /// Splits the last axis into parts of these sizes.
    pub(crate) fn split<const N: usize>(&mut self, x: &Val, sizes: [usize; N]) -> [Val; N] {
        let mut start = 0;
        sizes.map(|size| {
            let from = start;
            start += size;
            self.slice(x, x.dims.len() - 1, &from.into(), &start.into())
        })
    }

    /// Selects one index of an axis, which is removed.
    pub(crate) fn select(&mut self, x: &Val, axis: usize, index: i64) -> Val {
        let mut dims = x.dims.clone();
        dims.remove(axis);
        self.call("aten.select.int", vec![tensor("self", x), int("dim", axis as i64), int("index", index)], x.dtype, dims)
    }

    /// The last position of `x` [1, s, ..], as [1, 1, ..].
    pub(crate) fn last_position(&mut self, x: &Val) -> Val {
        let last = self.select(x, 1, -1);
        self.unsqueeze(&last, 1)
    }

    /// `x` with `count` zeros behind its last axis.
    pub(crate) fn pad_last(&mut self, x: &Val, count: usize) -> Val {
        let mut dims = x.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = last.clone() + Expr::Int(count as i64);
        }
        let inputs = vec![tensor("self", x), arg("pad", Argument::Ints(vec![0, count as i64])), float("value", 0.0)];
        self.call("aten.constant_pad_nd.default", inputs, x.dtype, dims)
    }

    /// Concatenates `a` and `b` along an axis.
    pub(crate) fn concatenate(&mut self, a: &Val, b: &Val, axis: usize) -> Val {
        self.concatenate_all(a, &[b], axis)
    }

    /// Concatenates `first` and `others` along an axis.
    pub(crate) fn concatenate_all(&mut self, first: &Val, others: &[&Val], axis: usize) -> Val {
        let mut dims = first.dims.clone();
        for other in others {
            dims[axis] = dims[axis].clone() + other.dims[axis].clone();
        }
        let list: Vec<&Val> = std::iter::once(first).chain(others.iter().copied()).collect();
        self.call("aten.cat.default", vec![tensors("tensors", &list), int("dim", axis as i64)], first.dtype, dims)
    }
}
