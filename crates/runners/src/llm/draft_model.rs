//! Guesses of a smaller model (speculative decoding), which the larger one judges as it judges those of [prompt lookup](super::lookup).

use flambeau_text::{argmax, log_probabilities};

use super::{prefix::common, sequence::Sequence};
use crate::Result;

/// A draft ends where the model that guesses is less sure of a token than this: it would be judged in vain too often.
const LEAST_SURE: f32 = 0.4;

/// A sequence of the model that guesses, which follows the text of the one that judges.
#[derive(Debug)]
pub(super) struct DraftModel {
    sequence: Sequence,
    /// The tokens that it holds.
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl DraftModel {
    pub(super) fn new(sequence: Sequence) -> DraftModel {
        DraftModel { sequence, ids: Vec::new(), logits: Vec::new() }
    }

    /// Up to `most` tokens that the model would say after `text`; none where they do not fit its context.
    ///
    /// # Errors
    /// The model fails. It begins anew then.
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
        // Wrong guesses are removed; the logits after the last token are needed.
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
