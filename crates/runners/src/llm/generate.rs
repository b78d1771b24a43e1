//! Request and result of a generation, and a blocking loop.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use flambeau_text::{Constraint, SamplingParams, Tokenizer};

use super::{
    adapters::Adapters,
    generator::{GenerationStep, Generator},
    sequence::Sequence,
};
use crate::Result;

/// A request for text generation.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids already in the caches, for repetition penalties.
    pub before: Vec<u32>,
    /// Adapters that compute the text. They must be those of the text in the caches.
    pub adapters: Adapters,
    /// Maximum number of tokens to generate; the context may end earlier, unless `shift` is set.
    pub max_new_tokens: usize,
    pub sampling: SamplingParams,
    /// Texts that end generation; excluded from the result.
    pub stop: Vec<String>,
    /// Token ids that end generation, in addition to the tokenizer's.
    pub stop_ids: Vec<u32>,
    /// Special tokens that are part of the text, as markers of thoughts and calls are.
    pub shown_ids: Vec<u32>,
    /// Whether token ids that end generation are treated as any other.
    pub ignore_eos: bool,
    /// Number of the likeliest tokens to list per step with log probabilities; `None` for no log
    /// probabilities.
    pub logprobs: Option<usize>,
    /// Constraint on the tokens of the answer.
    pub constraint: Option<Constraint>,
    /// Enables prompt lookup: it finds an earlier occurrence of the last tokens and drafts the
    /// tokens after it. A step may then yield several tokens. It is faster where texts repeat their
    /// prompts. Tokens only change by the rounding of multi-token steps.
    pub prompt_lookup: bool,
    /// Continues the text when the context is full. This many tokens of the prompt's beginning
    /// stay, and a BOS token. The older half of the others is dropped, and the rest is computed
    /// again as a new prompt. `None` ends the text.
    pub shift: Option<usize>,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            prompt: Vec::new(),
            before: Vec::new(),
            adapters: Adapters::default(),
            max_new_tokens: 128,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            stop_ids: Vec::new(),
            shown_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            constraint: None,
            prompt_lookup: false,
            shift: None,
        }
    }
}

/// Reason for the end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its text, or a stop text occurred.
    Stop,
    /// The requested number of tokens was reached.
    Length,
    /// The model's caches are full.
    Context,
    /// The caller cancelled the generation.
    Cancelled,
}

/// Statistics of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    pub prompt_tokens: usize,
    /// Number of sampled tokens, including one that ended the text.
    pub generated_tokens: usize,
    /// Number of steps that verified draft tokens.
    pub rounds: usize,
    /// Time from the start to the logits of the prompt's last token.
    pub prefill: Duration,
    /// Time from the start to the first token.
    pub first_token: Option<Duration>,
    /// Time from the first token to the end.
    pub decode: Duration,
}

impl Stats {
    /// Prompt tokens per second.
    pub fn prefill_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prefill)
    }

    /// Generated tokens per second, without the first token, which belongs to the prefill.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

/// Result of a generation.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Text without the prompt, without special tokens that are not kept, and without the stop
    /// text.
    pub text: String,
    /// Sampled ids, including one that ended the text.
    pub ids: Vec<u32>,
    pub finish: FinishReason,
    /// Index of the stop text that ended the generation, if any.
    pub stop: Option<usize>,
    pub stats: Stats,
}

/// Appends a prompt to a sequence and generates text. The sequence keeps its earlier tokens;
/// [`Sequence::reset`] clears them.
///
/// `on_text` receives the text piece by piece. `now` returns the time since a fixed moment.
/// `cancelled` is checked between steps.
///
/// # Errors
/// Fails if the prompt is empty or exceeds the context, if a parameter is out of range, or if the
/// model fails.
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

/// Takes steps until the generation ends or the caller cancels it.
pub(super) fn drive(
    generator: &mut Generator,
    cancelled: &AtomicBool,
    on_text: &mut dyn FnMut(&str),
    step: &mut dyn FnMut(&mut Generator) -> Result<GenerationStep>,
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
