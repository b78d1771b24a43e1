//! Sparse vectors of texts (SPLADE): the logits of a masked language model, pooled over tokens.

use flambeau_tensor::DType;

use super::{Hidden, Parts, sentence::SparsePooling};
use crate::{Result, builder::Val};

/// A head that gives logits of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sparse {
    pub(crate) hidden: Hidden,
    /// The projection to logits. Without this tensor, the table of tokens serves.
    pub(crate) weight: &'static str,
    pub(crate) bias: Option<&'static str>,
    pub(crate) pooling: SparsePooling,
}

impl Parts<'_> {
    /// Vectors [b, vocab], in f32, from `x` [b, s, width]: `log(1 + max(x, 0))` of logits.
    pub(super) fn sparse_vector(&mut self, x: &Val, is_text: &Val, sparse: &Sparse) -> Result<Val> {
        let (vocab, width) = (self.c.vocab, self.c.width);
        let y = self.hidden(x, &sparse.hidden)?;
        let name = if self.w.has(sparse.weight) { sparse.weight } else { self.c.embedding.table };
        let source = self.w.source(name, &[vocab, width])?;
        let weight = self.w.matrix(name, &source)?;
        let bias = sparse.bias.map(|bias| self.w.vector(bias, vocab)).transpose()?;
        let b = &mut self.w.b;
        let logits = b.linear(&y, &weight, bias.as_ref());
        let is_padding = b.not(is_text);
        let is_padding = b.unsqueeze(&is_padding, 2);
        let logits = b.masked_fill(&logits, &is_padding, 0.0);
        let SparsePooling { sums, twice } = sparse.pooling;
        // The logarithm grows with the logit, so the largest one may be chosen first.
        let chosen = if sums { logits } else { b.largest_over(&logits, 1) };
        let chosen = b.cast(&chosen, DType::F32);
        let positive = b.relu(&chosen);
        let mut vector = b.log1p(&positive);
        if twice {
            vector = b.log1p(&vector);
        }
        Ok(if sums { b.sum_over(&vector, 1) } else { vector })
    }
}
