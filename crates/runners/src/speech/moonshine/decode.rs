//! The greedy text of a window.

use flambeau_text::{argmax, log_probabilities};

use super::{Moonshine, unfit};
use crate::Result;

/// Decoded text.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoding {
    /// The text, without its start and end tokens.
    pub tokens: Vec<u32>,
    /// Whether the model ended the text.
    pub is_ended: bool,
    /// Mean over the tokens, including the end token.
    pub mean_log_probability: f32,
}

impl Moonshine {
    /// Decodes the most likely text of the current window, with at most `most` tokens.
    ///
    /// # Errors
    /// The method fails, or no logit is a number.
    pub fn decode(&mut self, most: usize) -> Result<Decoding> {
        let (mut tokens, mut sum, mut is_ended) = (Vec::new(), 0.0, false);
        let (mut next, mut logits) = (self.start(), Vec::new());
        self.restart();
        while tokens.len() < most && self.position() < self.context() {
            self.step(&[next], &mut logits)?;
            next = argmax(&logits).ok_or_else(|| unfit("none of its logits is a number"))?.0;
            sum += log_probabilities(&logits, &[next])[0];
            is_ended = self.is_end(next);
            if is_ended {
                break;
            }
            tokens.push(next);
        }
        let mean_log_probability = sum / (tokens.len() + usize::from(is_ended)).max(1) as f32;
        Ok(Decoding { tokens, is_ended, mean_log_probability })
    }
}
