//! Products of rows with the matrices of selected experts.

use super::Writer;
use crate::{
    CheckpointTensor, Error, Result,
    builder::Val,
    source::{Read, swapped},
};

impl Writer<'_> {
    /// The matrices [E, rows, cols] of all experts, which the tensor `name` holds one below the
    /// other.
    pub(crate) fn flat_experts(&self, name: &str, [count, rows, cols]: [usize; 3]) -> Result<CheckpointTensor> {
        Ok(self.source(name, &[count * rows, cols])?.with_shape(vec![count, rows, cols]))
    }

    /// Rows [n, k or 1, 1, in] times the matrices [E, out, in] of the `chosen` experts [n, k].
    /// Returns [n, k, 1, out].
    pub(crate) fn selected_product(&mut self, x: &Val, chosen: &Val, name: &str, source: &CheckpointTensor) -> Result<Val> {
        let weights = self.matrix(name, source)?;
        let weights = self.b.transpose(&weights, 1, 2);
        Ok(self.b.gather_matmul(x, &weights, chosen))
    }

    /// As [`selected_product`](Self::selected_product), for matrices of floats [E, in, out]. The
    /// program uses [E, out, in].
    pub(crate) fn column_product(&mut self, x: &Val, chosen: &Val, name: &str, source: &CheckpointTensor) -> Result<Val> {
        let Read::Plain(weight) = source.read(name, self.dtype, None)? else {
            return Err(Error::tensor(name, "floats", "a quantized tensor"));
        };
        let weights = self.b.parameter(name, swapped(weight));
        let weights = self.b.transpose(&weights, 1, 2);
        Ok(self.b.gather_matmul(x, &weights, chosen))
    }

    /// The sum [n, d] of experts' results [n, k, d], times `weights` [n, k].
    pub(crate) fn sum_of_experts(&mut self, results: &Val, weights: Option<&Val>) -> Val {
        let Some(weights) = weights else { return self.b.sum_over(results, 1) };
        let weights = self.b.unsqueeze(weights, 2);
        let weighted = self.b.mul(results, &weights);
        self.b.sum_over(&weighted, 1)
    }
}
