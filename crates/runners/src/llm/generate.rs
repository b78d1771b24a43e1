//! Request and result of a generation, and the loop for a caller that waits for its end.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use flambeau_text::{Constraint, SamplingParams, Tokenizer};

use super::{
    generator::{Generator, Step},
    sequence::Sequence,
};
use crate::Result;

/// A request for text.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids that the caches hold already, as far as repetition penalties count them.
    pub before: Vec<u32>,
    /// Most tokens to generate; the context may end earlier.
    pub max_new_tokens: usize,
    pub sampling: SamplingParams,
    /// Texts that end generation and are not part of the result.
    pub stop: Vec<String>,
    /// Token ids that end generation, besides the tokenizer's.
    pub stop_ids: Vec<u32>,
    /// Whether token ids that end generation are treated as any other.
    pub ignore_eos: bool,
    /// Whether steps tell how likely tokens were, and how many of the likeliest tokens they list.
    pub logprobs: Option<usize>,
    /// Which tokens may follow, from the beginning of the answer on.
    pub constraint: Option<Constraint>,
    /// Whether what followed the last tokens before is guessed to follow again, so that a step may give several tokens: prompt lookup. It
    /// pays where texts repeat their prompts, and changes no token but by the rounding of steps of several tokens.
    pub prompt_lookup: bool,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            prompt: Vec::new(),
            before: Vec::new(),
            max_new_tokens: 128,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            constraint: None,
            prompt_lookup: false,
        }
    }
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its text, or a stop text came.
    Stop,
    /// The requested number of tokens is reached.
    Length,
    /// The model's caches are full.
    Context,
    /// The caller asked for it.
    Cancelled,
}

/// Numbers about a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    pub prompt_tokens: usize,
    /// Tokens that were sampled, one that ended the text included.
    pub generated_tokens: usize,
    /// Steps in which the model judged tokens that were guessed.
    pub rounds: usize,
    /// From the beginning to the logits after the prompt's last token.
    pub prefill: Duration,
    /// From the beginning to the first token.
    pub first_token: Option<Duration>,
    /// From the first token to the end.
    pub decode: Duration,
}

impl Stats {
    /// Prompt tokens per second.
    pub fn prefill_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prefill)
    }

    /// Generated tokens per second, not counting the first one, which the prefill pays for.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

/// The outcome of a generation.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Text without the prompt, without special tokens, and without the stop text.
    pub text: String,
    /// Ids that were sampled, one that ended the text included.
    pub ids: Vec<u32>,
    pub finish: FinishReason,
    /// Which of the request's stop texts ended it, if one did.
    pub stop: Option<usize>,
    pub stats: Stats,
}

/// Continues a sequence with a prompt. What the sequence held before stays: [`Sequence::reset`] begins anew.
///
/// `on_text` gets the text piece by piece; `now` is the time since any fixed moment; `cancelled` is looked at between steps.
///
/// # Errors
/// The prompt is empty or does not fit the context, a parameter is out of range, or the model fails.
pub fn generate(
    sequence: &mut Sequence,
    tokenizer: &Tokenizer,
    request: &Request,
    now: &dyn Fn() -> Duration,
    cancelled: &AtomicBool,
    on_text: &mut dyn FnMut(&str),
) -> Result<Generation> {
    let mut generator = Generator::new(sequence, tokenizer, request.clone(), now)?;
    drive(&mut generator, cancelled, on_text, &mut |generator| generator.step(sequence, now))?;
    Ok(generator.end(sequence, now))
}

/// Takes steps until the generation has ended or the caller cancels it.
pub(super) fn drive(
    generator: &mut Generator,
    cancelled: &AtomicBool,
    on_text: &mut dyn FnMut(&str),
    step: &mut dyn FnMut(&mut Generator) -> Result<Step>,
) -> Result<()> {
    loop {
        let done = if cancelled.load(Ordering::Relaxed) { generator.cancel() } else { step(generator) }?;
        if !done.text.is_empty() {
            on_text(&done.text);
        }
        if done.finish.is_some() {
            return Ok(());
        }
    }
}
