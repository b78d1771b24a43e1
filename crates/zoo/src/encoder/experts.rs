//! Mixtures of experts in an encoder: a softmax router, and experts without a gate.

use flambeau_tensor::DType;

use super::Parts;
use crate::{
    CheckpointTensor, Result,
    builder::{Int, Val},
    spec::Experts,
};

impl Parts<'_> {
    /// Output of the selected experts for `x` [b, s, width], plus their shared bias, if any.
    pub(super) fn experts(&mut self, x: &Val, e: &Experts, path: &str) -> Result<Val> {
        let [b, s] = self.sizes.clone();
        let (tokens, width) = (self.w.b.mul_int(&b, &s), Int::from(self.c.width));
        let rows = self.w.b.reshape(x, &[tokens.clone(), width.clone()]);
        let logits = self.w.gate(&rows, &format!("{path}.{}", e.router.module), e.count, e.router.bias)?;
        let logits = self.w.b.cast(&logits, DType::F32);
        let shares = self.w.b.softmax(&logits);
        let [shares, chosen] = self.w.b.top(&shares, e.chosen);
        let shares = self.w.b.cast(&shares, self.dtype);
        self.w.b.enter(format!("{path}.experts"));
        let rows = self.w.b.reshape(&rows, &[tokens.clone(), 1.into(), 1.into(), width.clone()]);
        let wide = self.up(&rows, &chosen, e, path)?;
        let wide = self.activated(&wide, e.activation);
        let made = self.down(&wide, &chosen, e, path)?;
        let made = self.w.b.reshape(&made, &[tokens, e.chosen.into(), width.clone()]);
        let sum = self.w.sum_of_experts(&made, Some(&shares));
        let sum = self.w.b.reshape(&sum, &[b, s, width]);
        if !e.bias {
            return Ok(sum);
        }
        let bias = self.w.plain(&format!("{path}.experts.bias"), &[self.c.width])?;
        Ok(self.w.b.add(&sum, &bias))
    }

    /// Rows [n, 1, 1, width] times the first matrices of the `chosen` experts, [n, k, 1, inner].
    fn up(&mut self, rows: &Val, chosen: &Val, e: &Experts, path: &str) -> Result<Val> {
        let (name, shape) = (format!("{path}.experts.up_proj"), [e.count, e.width, self.c.width]);
        let source = match self.stored_apart(&name, shape)? {
            Some(source) => source,
            None => self.w.flat_experts(&format!("{path}.experts.mlp.w1"), shape)?,
        };
        self.w.selected_product(rows, chosen, &name, &source)
    }

    /// Rows [n, k, 1, inner] times the second matrices of the `chosen` experts, [n, k, 1, width].
    fn down(&mut self, rows: &Val, chosen: &Val, e: &Experts, path: &str) -> Result<Val> {
        let name = format!("{path}.experts.down_proj");
        if let Some(source) = self.stored_apart(&name, [e.count, self.c.width, e.width])? {
            return self.w.selected_product(rows, chosen, &name, &source);
        }
        let source = self.w.flat_experts(&format!("{path}.experts.mlp.w2"), [e.count, e.width, self.c.width])?;
        self.w.column_product(rows, chosen, &name, &source)
    }

    /// The matrices [experts, outputs, inputs] of a module, which GGUF files hold.
    fn stored_apart(&self, module: &str, shape: [usize; 3]) -> Result<Option<CheckpointTensor>> {
        let name = format!("{module}.weight");
        if self.w.has(&name) { self.w.source(&name, &shape).map(Some) } else { Ok(None) }
    }
}
