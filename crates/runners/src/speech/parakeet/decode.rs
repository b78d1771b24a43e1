//! Greedy tokens of a window, with the positions at which they were heard.

use flambeau_tensor::Tensor;
use flambeau_text::{argmax, log_probabilities};

use super::{
    Parakeet,
    model::{self, Transducer},
    unfit,
};
use crate::Result;

/// A token, and where it was heard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedToken {
    pub id: u32,
    /// Position of the encoder's output.
    pub frame: usize,
    /// Positions that it takes: by its own estimate, or by CTC those that say it. None where a token without a duration left its
    /// position to the next one.
    pub duration: usize,
    /// 0 where the program does not tell.
    pub log_probability: f32,
}

/// Sees each row of logits with its position as it is decoded.
pub type Trace<'a> = &'a mut dyn FnMut(usize, &[f32]);

impl Parakeet {
    /// The likeliest tokens of what the encoder made [1, positions, ..].
    ///
    /// # Errors
    /// A method fails, or no logit is a number.
    pub fn decode(&mut self, made: &Tensor, trace: Trace<'_>) -> Result<Vec<TimedToken>> {
        if self.is_ctc() { self.by_ctc(made, trace) } else { self.by_transducer(made, trace) }
    }

    /// Each position's likeliest token; repetitions are one, and the blank between them parts them.
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

    /// The transducer's greedy path (Graves 2012, and Xu et al. 2023 for durations): the blank goes on to a later position, and so does a
    /// token with a duration. Tokens without one stay, up to a limit.
    fn by_transducer(&mut self, made: &Tensor, trace: Trace<'_>) -> Result<Vec<TimedToken>> {
        let (blank, vocab) = (self.blank, self.vocab);
        let Some(transducer) = &mut self.transducer else { return Err(unfit("it has no method `joint`")) };
        let positions = made.shape()[1];
        let (mut frame, mut staying) = (0, 0);
        let (mut tokens, mut logits) = (Vec::new(), Vec::new());
        let mut heard = transducer.begin(blank)?;
        while frame < positions {
            let chosen = transducer.join(made, frame, &heard, &mut logits)?;
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
            heard = transducer.hear(heard, id)?;
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
    /// The likeliest token by logits of tokens and durations, the duration that it takes, and the token's log-probability.
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
