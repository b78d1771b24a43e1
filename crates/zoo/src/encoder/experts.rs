//! Mixtures of experts in an encoder: a softmax router, and experts without a gate.

use flambeau_tensor::DType;

use super::Parts;
use crate::{
    CheckpointTensor, Error, Result,
    builder::{Int, Val},
    source::{Read, swapped},
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
        let up = self.up(e, path)?;
        let wide = self.w.b.gather_matmul(&rows, &up, &chosen);
        let wide = self.activated(&wide, e.activation);
        let down = self.down(e, path)?;
        let made = self.w.b.gather_matmul(&wide, &down, &chosen);
        let made = self.w.b.reshape(&made, &[tokens, e.chosen.into(), width.clone()]);
        let shares = self.w.b.unsqueeze(&shares, 2);
        let made = self.w.b.mul(&made, &shares);
        let sum = self.w.b.sum_over(&made, 1);
        let sum = self.w.b.reshape(&sum, &[b, s, width]);
        if !e.bias {
            return Ok(sum);
        }
        let bias = self.w.plain(&format!("{path}.experts.bias"), &[self.c.width])?;
        Ok(self.w.b.add(&sum, &bias))
    }

    /// The first matrices [experts, width, inner] of products with rows from the left.
    fn up(&mut self, e: &Experts, path: &str) -> Result<Val> {
        let name = format!("{path}.experts.up_proj");
        let source = match self.listed(&name, [e.count, e.width, self.c.width])? {
            Some(source) => source,
            None => self.stacked(e, &format!("{path}.experts.mlp.w1"))?,
        };
        let weights = self.w.matrix(&name, &source)?;
        Ok(self.w.b.transpose(&weights, 1, 2))
    }

    /// The matrices of a GGUF file [experts, outputs, inputs].
    fn listed(&self, module: &str, shape: [usize; 3]) -> Result<Option<CheckpointTensor>> {
        let name = format!("{module}.weight");
        if self.w.has(&name) { self.w.source(&name, &shape).map(Some) } else { Ok(None) }
    }

    /// Matrices [experts, inner, width], which the checkpoint stores one below the other.
    fn stacked(&self, e: &Experts, name: &str) -> Result<CheckpointTensor> {
        let total = e.count * e.width;
        let each = |i: usize| self.w.part(name, [total, self.c.width], i * e.width, e.width);
        let parts = (0..e.count).map(each).collect::<Result<Vec<_>>>()?;
        CheckpointTensor::stack(name, &parts.iter().map(|part| vec![part]).collect::<Vec<_>>())
    }

    /// The second matrices [experts, inner, width] of products with rows from the left.
    fn down(&mut self, e: &Experts, path: &str) -> Result<Val> {
        let rows = format!("{path}.experts.down_proj");
        if let Some(source) = self.listed(&rows, [e.count, self.c.width, e.width])? {
            let weights = self.w.matrix(&rows, &source)?;
            return Ok(self.w.b.transpose(&weights, 1, 2));
        }
        let name = format!("{path}.experts.mlp.w2");
        let Read::Plain(weight) = self.stacked(e, &name)?.read(&name, self.dtype, None)? else {
            return Err(Error::tensor(&name, "floats", "a quantized tensor"));
        };
        let weights = self.w.b.parameter(&rows, swapped(weight));
        Ok(self.w.b.transpose(&weights, 1, 2))
    }
}
