//! Speculative decoding with a smaller draft model. The larger model verifies the draft tokens, as
//! in [prompt lookup](super::lookup).

use flambeau_text::{argmax, log_probabilities};

use super::{prefix::common, sequence::Sequence};
use crate::Result;

/// Minimum probability of a draft token. A draft ends at a less likely token, which would be
/// rejected too often.
const LEAST_SURE: f32 = 0.4;

/// A sequence of the draft model, which follows the text of the larger model.
#[derive(Debug)]
pub(super) struct DraftModel {
    sequence: Sequence,
    /// Tokens in the sequence's caches.
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl DraftModel {
    pub(super) fn new(sequence: Sequence) -> DraftModel {
        DraftModel { sequence, ids: Vec::new(), logits: Vec::new() }
    }

    /// Predicts up to `most` tokens after `text`; none if they exceed the context.
    ///
    /// # Errors
    /// Fails if the draft model fails; its sequence is then empty.
    pub(super) fn guess(&mut self, text: &[u32], most: usize) -> Result<Vec<u32>> {
        let fits = self.sequence.model().context().is_none_or(|context| text.len() + most <= context);
        if most == 0 || text.is_empty() || !fits {
            return Ok(Vec::new());
        }
        self.continue_text(text, most).inspect_err(|_| {
            self.sequence.reset();
            self.ids.clear();
        })
    }

    fn continue_text(&mut self, text: &[u32], most: usize) -> Result<Vec<u32>> {
        // Removes rejected tokens, but feeds at least the last token, because its logits are
        // needed.
        let kept = self.sequence.truncate(common(&self.ids, text).min(text.len() - 1));
        self.ids.truncate(kept);
        let chunk = self.sequence.chunk();
        for part in text[kept..].chunks(chunk) {
            self.feed(part)?;
        }
        let mut guesses = Vec::with_capacity(most);
        while let Some((token, _)) = argmax(&self.logits)
            && log_probabilities(&self.logits, &[token])[0] >= LEAST_SURE.ln()
        {
            guesses.push(token);
            if guesses.len() == most {
                break;
            }
            self.feed(&[token])?;
        }
        Ok(guesses)
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        self.sequence.step_into(tokens, &mut self.logits)?;
        self.ids.extend_from_slice(tokens);
        Ok(())
    }
}
