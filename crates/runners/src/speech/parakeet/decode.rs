//! Greedy tokens of a window, with their positions.

use flambeau_tensor::Tensor;
use flambeau_text::{argmax, log_probabilities};

use super::{
    Parakeet,
    model::{self, Transducer},
    unfit,
};
use crate::Result;

/// A token and its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedToken {
    pub id: u32,
    /// Position in the encoder's output.
    pub frame: usize,
    /// Positions that the token spans. A transducer predicts them, and CTC counts the token's
    /// repetitions. It is 0 if the next token may start at the same position.
    pub duration: usize,
    /// 0 if the program does not return it.
    pub log_probability: f32,
}

/// Receives each row of logits with its position during decoding.
pub type Trace<'a> = &'a mut dyn FnMut(usize, &[f32]);

impl Parakeet {
    /// The most likely tokens for the encoder's output [1, positions, ..].
    ///
    /// # Errors
    /// A method fails, or no logit is a number.
    pub fn decode(&mut self, made: &Tensor, trace: Trace<'_>) -> Result<Vec<TimedToken>> {
        if self.is_ctc() { self.by_ctc(made, trace) } else { self.by_transducer(made, trace) }
    }

    /// Takes each position's most likely token. Repetitions merge unless a blank separates them.
    fn by_ctc(&self, made: &Tensor, trace: Trace<'_>) -> Result<Vec<TimedToken>> {
        let (values, width) = model::rows(made)?;
        let (mut tokens, mut before): (Vec<TimedToken>, _) = (Vec::new(), self.blank);
        for (frame, row) in values.chunks_exact(width).enumerate() {
            trace(frame, row);
            let id = best(row)?;
            match tokens.last_mut() {
                Some(last) if id == before && id != self.blank => last.duration += 1,
                _ if id == self.blank => {}
                _ => tokens.push(TimedToken { id, frame, duration: 1, log_probability: log_probabilities(row, &[id])[0] }),
            }
            before = id;
        }
        Ok(tokens)
    }

    /// Decodes greedily with the transducer (Graves 2012; durations: Xu et al. 2023). Blanks and
    /// tokens with a duration advance the position. Other tokens stay at it, up to a limit.
    fn by_transducer(&mut self, made: &Tensor, trace: Trace<'_>) -> Result<Vec<TimedToken>> {
        let (blank, vocab) = (self.blank, self.vocab);
        let Some(transducer) = &mut self.transducer else { return Err(unfit("it has no method `joint`")) };
        let positions = made.shape()[1];
        let (mut frame, mut staying) = (0, 0);
        let (mut tokens, mut logits) = (Vec::new(), Vec::new());
        let mut state = transducer.begin(blank)?;
        while frame < positions {
            let chosen = transducer.join(made, frame, &state, &mut logits)?;
            let (id, duration, log_probability) = match chosen {
                Some([token, duration]) => (token as u32, duration, 0.0),
                None => {
                    trace(frame, &logits);
                    transducer.best(&logits, vocab)?
                }
            };
            if id == blank {
                (frame, staying) = (frame + duration.max(1), 0);
                continue;
            }
            tokens.push(TimedToken { id, frame, duration, log_probability });
            state = transducer.predict(state, id)?;
            staying = if duration == 0 { staying + 1 } else { 0 };
            frame += duration;
            if staying >= transducer.most_symbols {
                (frame, staying) = (frame + 1, 0);
            }
        }
        Ok(tokens)
    }
}

impl Transducer {
    /// The most likely token, its duration and its log-probability, from the logits of tokens and
    /// durations.
    fn best(&self, logits: &[f32], vocab: usize) -> Result<(u32, usize, f32)> {
        if logits.len() != vocab + self.durations.len() {
            return Err(unfit(format!("it gives {} logits for {vocab} tokens", logits.len())));
        }
        let (of_tokens, of_durations) = logits.split_at(vocab);
        let id = best(of_tokens)?;
        let duration = if of_durations.is_empty() { 0 } else { self.durations[best(of_durations)? as usize] };
        Ok((id, duration, log_probabilities(of_tokens, &[id])[0]))
    }
}

fn best(row: &[f32]) -> Result<u32> {
    argmax(row).map(|(id, _)| id).ok_or_else(|| unfit("none of its logits is a number"))
}
