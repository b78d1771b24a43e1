//! Heads that give scores of a text or a pair of texts: classifiers, and answers of a language
//! model.

use flambeau_tensor::DType;

use super::{DenseActivation, Parts, Pooling};
use crate::{CheckpointTensor, Result, builder::Val};

/// A head that gives scores.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scores {
    /// How the vectors of a text become one. `None` gives scores to each token.
    pub(crate) pooling: Option<Pooling>,
    /// A layer between pooling and scores.
    pub(crate) hidden: Option<Hidden>,
    /// Whether pooling follows that layer.
    pub(crate) pools_late: bool,
    pub(crate) weights: ScoreWeights,
    /// Name of each score.
    pub(crate) labels: Vec<String>,
}

/// A layer of a head, as wide as the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hidden {
    pub(crate) module: &'static str,
    pub(crate) bias: bool,
    pub(crate) activation: DenseActivation,
    /// The norm after the layer, if there is one.
    pub(crate) norm: Option<&'static str>,
}

/// Weights of the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScoreWeights {
    Module {
        name: &'static str,
        bias: bool,
    },
    /// The logit of one token minus the logit of another.
    Tokens {
        yes: u32,
        no: u32,
    },
    /// The same with a module that holds only the rows of both tokens.
    Answers {
        head: &'static str,
    },
}

impl Parts<'_> {
    /// Scores [b, labels] of texts, or [b, s, labels] of tokens, in f32, from `x` [b, s, width].
    pub(super) fn scores(&mut self, x: &Val, is_text: &Val, scores: &Scores) -> Result<Val> {
        let mut x = match (&scores.hidden, scores.pools_late) {
            (Some(hidden), true) => self.hidden(x, hidden)?,
            _ => x.clone(),
        };
        if let Some(pooling) = scores.pooling {
            self.w.b.enter("pooling");
            x = self.w.b.cast(&x, DType::F32);
            x = self.pooled(&x, is_text, pooling);
            x = self.w.b.cast(&x, self.dtype);
        }
        let x = match (&scores.hidden, scores.pools_late) {
            (Some(hidden), false) => self.hidden(&x, hidden)?,
            _ => x,
        };
        let logits = match scores.weights {
            ScoreWeights::Module { name, bias } => self.w.gate(&x, name, scores.labels.len(), bias)?,
            ScoreWeights::Tokens { yes, no } => {
                let name = self.c.head.filter(|name| self.w.has(name)).unwrap_or(self.c.embedding.table);
                let source = self.w.source(name, &[self.c.vocab, self.c.width])?.rows(name, vec![yes as usize, no as usize])?;
                self.margin(&x, &source)?
            }
            ScoreWeights::Answers { head } => {
                let source = self.w.source(&format!("{head}.weight"), &[2, self.c.width])?;
                self.margin(&x, &source)?
            }
        };
        Ok(self.w.b.cast(&logits, DType::F32))
    }

    pub(super) fn hidden(&mut self, x: &Val, hidden: &Hidden) -> Result<Val> {
        let y = self.w.linear(x, hidden.module, self.c.width, hidden.bias)?;
        let y = hidden.activation.apply(&mut self.w.b, &y);
        hidden.norm.map_or_else(|| Ok(y.clone()), |norm| self.w.norm(&y, norm, self.c.norm))
    }

    /// The first logit of `answers` [2, width] minus the second, [b, 1].
    fn margin(&mut self, x: &Val, answers: &CheckpointTensor) -> Result<Val> {
        let logits = self.w.project_gate(x, "lm_head", "lm_head.answers.weight", answers, false)?;
        let [yes, no] = self.w.b.split(&logits, [1, 1]);
        Ok(self.w.b.sub(&yes, &no))
    }
}
