//! From the vectors of tokens to the vector of a text: modules of sentence-transformers.

use flambeau_tensor::DType;

use super::Parts;
use crate::builder::Val;

/// Lower bound of a vector's length, as in `torch.nn.functional.normalize`.
const SHORTEST: f64 = 1e-12;

/// Conversion of token vectors to a text vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    pub(crate) pooling: Pooling,
    /// Whether vectors are scaled to length 1.
    pub(crate) normalizes: bool,
    /// Largest number of tokens of a text, including special tokens, if stated.
    pub(crate) max_tokens: Option<usize>,
}

impl Default for Sentence {
    /// Default of sentence-transformers for a folder without this setting.
    fn default() -> Sentence {
        Sentence { pooling: Pooling::Mean, normalizes: false, max_tokens: None }
    }
}

/// Reduction of the vectors of all tokens to one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The first token's vector.
    Cls,
    Mean,
    /// The largest value of each element.
    Max,
}

impl Pooling {
    /// Name in sentence-transformers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pooling::Cls => "cls",
            Pooling::Mean => "mean",
            Pooling::Max => "max",
        }
    }
}

impl Parts<'_> {
    /// The vectors [b, width] of texts, in f32, from `x` [b, s, width].
    pub(super) fn text_vector(&mut self, x: &Val, is_text: &Val) -> Val {
        let x = self.w.b.cast(x, DType::F32);
        let pooled = self.pooled(&x, is_text);
        if self.c.sentence.normalizes { self.normalized(&pooled) } else { pooled }
    }

    /// Pools the vectors [b, s, width] of text tokens, as marked by `is_text` [b, s], to one vector
    /// [b, width].
    fn pooled(&mut self, x: &Val, is_text: &Val) -> Val {
        let b = &mut self.w.b;
        match self.c.sentence.pooling {
            Pooling::Cls => b.select(x, 1, 0),
            Pooling::Mean => {
                let weight = b.cast(is_text, DType::F32);
                let count = b.sum(&weight);
                let weight = b.unsqueeze(&weight, 2);
                let x = b.mul(x, &weight);
                let sum = b.sum_over(&x, 1);
                b.div(&sum, &count)
            }
            Pooling::Max => {
                let is_padding = b.not(is_text);
                let is_padding = b.unsqueeze(&is_padding, 2);
                let x = b.masked_fill(x, &is_padding, f64::NEG_INFINITY);
                b.largest_over(&x, 1)
            }
        }
    }

    /// `x` [b, width] with rows scaled to length 1.
    fn normalized(&mut self, x: &Val) -> Val {
        let b = &mut self.w.b;
        let squares = b.mul(x, x);
        let sum = b.sum(&squares);
        let length = b.sqrt(&sum);
        let length = b.clamp(&length, SHORTEST, f64::INFINITY);
        b.div(x, &length)
    }
}
