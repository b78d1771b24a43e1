//! The loop: prefill, sample, stop, stream.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use flambeau_runtime::Sampling;
use flambeau_text::{Sampler, SamplingParams, StopMatcher, Tokenizer};

use super::{
    draw::Draw,
    model::{LanguageModel, PIPELINE_DEPTH},
};
use crate::{Error, Result};

/// What to generate.
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
    /// Steps in which the model judged tokens that a draft had guessed.
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
    pub stats: Stats,
}

/// Continues a prompt. The model keeps what its caches held before: [`LanguageModel::reset`] begins anew.
///
/// `on_text` gets the text piece by piece; `now` is the time since any fixed moment; `cancelled` is looked at between steps.
///
/// # Errors
/// The prompt is empty or does not fit the context, a parameter is out of range, or the model fails.
pub fn generate(
    model: &mut LanguageModel,
    tokenizer: &Tokenizer,
    request: &Request,
    now: &dyn Fn() -> Duration,
    cancelled: &AtomicBool,
    on_text: &mut dyn FnMut(&str),
) -> Result<Generation> {
    let start = now();
    let mut run = Run::new(tokenizer, request)?;
    model.cancel();
    check_room(model, request.prompt.len())?;
    let before = model.position();
    let mut stats = Stats { prompt_tokens: request.prompt.len(), ..Stats::default() };
    let source = run.prefill(model, cancelled)?;
    stats.prefill = now().saturating_sub(start);
    let Some(mut source) = source else { return run.end(FinishReason::Cancelled, stats, on_text) };
    let mut first = start;
    let finish = loop {
        if cancelled.load(Ordering::Relaxed) {
            break FinishReason::Cancelled;
        }
        if run.ids.len() >= request.max_new_tokens {
            break FinishReason::Length;
        }
        let id = run.next(model, &mut source)?;
        let is_last = run.ids.len() + 1 == request.max_new_tokens;
        let is_full = model.room() == Some(0) && model.in_flight() == 0 && !source.has_more();
        if stats.first_token.is_none() {
            first = now();
            stats.first_token = Some(first.saturating_sub(start));
            if matches!(source, Source::Engine) {
                stats.prefill = first.saturating_sub(start);
            }
        }
        if run.push(id, on_text)? {
            break FinishReason::Stop;
        }
        if is_last {
            break FinishReason::Length;
        }
        if is_full {
            break FinishReason::Context;
        }
        match &mut source {
            Source::Logits(logits) => model.step_into(&[id], logits)?,
            Source::Program { token, draw } => {
                *draw = draw.next();
                *token = model.step_drawn(&[id], *draw)?;
            }
            Source::Guesses(tokens) => {
                if tokens.is_empty() {
                    stats.rounds += 1;
                    tokens.extend(model.speculate(id)?);
                }
            }
            Source::Engine => {}
        }
    };
    model.cancel();
    // Guesses that the model agreed with may lie in the caches beyond the end of the text.
    model.go_back(before + request.prompt.len() + run.ids.len());
    stats.decode = if stats.first_token.is_some() { now().saturating_sub(first) } else { Duration::ZERO };
    run.end(finish, stats, on_text)
}

/// Where the next token comes from.
enum Source {
    /// It is sampled here.
    Logits(Vec<f32>),
    /// The program has drawn it.
    Program { token: u32, draw: Draw },
    /// It was guessed, and the model agrees; the oldest comes first.
    Guesses(VecDeque<u32>),
    /// The engine samples it, and starts the next step before the host reads it.
    Engine,
}

impl Source {
    /// Whether there are tokens that need no further step.
    fn has_more(&self) -> bool {
        matches!(self, Source::Guesses(tokens) if !tokens.is_empty())
    }
}

fn check_room(model: &LanguageModel, prompt: usize) -> Result<()> {
    match model.room() {
        _ if prompt == 0 => Err(Error::EmptyPrompt),
        Some(room) if prompt > room => {
            Err(Error::PromptTooLong { prompt: prompt + model.position(), context: room + model.position() })
        }
        _ => Ok(()),
    }
}

/// The state of one generation.
struct Run<'a> {
    tokenizer: &'a Tokenizer,
    request: &'a Request,
    sampler: Sampler,
    stream: flambeau_text::DetokenizeStream,
    stops: StopMatcher,
    history: Vec<u32>,
    ids: Vec<u32>,
    text: String,
}

impl<'a> Run<'a> {
    fn new(tokenizer: &'a Tokenizer, request: &'a Request) -> Result<Run<'a>> {
        Ok(Run {
            tokenizer,
            request,
            sampler: Sampler::new(request.sampling.clone())?,
            stream: tokenizer.stream(true),
            stops: StopMatcher::new(&request.stop)?,
            history: [request.before.as_slice(), &request.prompt].concat(),
            ids: Vec::new(),
            text: String::new(),
        })
    }

    /// How the engine samples the next token; `None` if that depends on more than the logits.
    fn sampling(&mut self) -> Option<Sampling> {
        let uniform = self.sampler.draw_elsewhere()?;
        let &SamplingParams { temperature, top_k, top_p, min_p, .. } = self.sampler.params();
        Some(Sampling { temperature, top_k, top_p, min_p, uniform })
    }

    /// Feeds the prompt; `None` if the caller cancels.
    fn prefill(&mut self, model: &mut LanguageModel, cancelled: &AtomicBool) -> Result<Option<Source>> {
        if model.draws_tokens() {
            return self.prefill_drawn(model, cancelled);
        }
        let guesses = self.request.sampling.is_greedy() && model.can_speculate();
        let mut sampling = if !guesses && model.can_pipeline() { self.sampling() } else { None };
        let mut logits = Vec::new();
        let mut chunks = self.request.prompt.chunks(model.chunk()).peekable();
        while let Some(chunk) = chunks.next() {
            if cancelled.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if let Some(sampling) = sampling.take_if(|_| chunks.peek().is_none()) {
                model.submit(chunk, sampling)?;
                return Ok(Some(Source::Engine));
            }
            model.step_into(chunk, &mut logits)?;
        }
        if guesses {
            let first = self.sampler.sample(&logits, &self.history)?;
            return Ok(Some(Source::Guesses([first].into())));
        }
        Ok(Some(Source::Logits(logits)))
    }

    /// The same for a program that draws tokens itself; what it draws ahead of the prompt's end is dropped.
    fn prefill_drawn(&mut self, model: &mut LanguageModel, cancelled: &AtomicBool) -> Result<Option<Source>> {
        let draw = model.first_draw(&self.request.sampling)?;
        let mut drawn = None;
        for chunk in self.request.prompt.chunks(model.chunk()) {
            if cancelled.load(Ordering::Relaxed) {
                return Ok(None);
            }
            drawn = Some(model.step_drawn(chunk, draw)?);
        }
        Ok(drawn.map(|token| Source::Program { token, draw }))
    }

    /// The next token. An engine that samples gets the following steps first: up to [`PIPELINE_DEPTH`], but only one before the
    /// first token, which must not wait.
    fn next(&mut self, model: &mut LanguageModel, source: &mut Source) -> Result<u32> {
        match source {
            Source::Guesses(tokens) => Ok(tokens.pop_front().expect("a round gives tokens")),
            Source::Logits(logits) => Ok(self.sampler.sample(logits, &self.history)?),
            Source::Program { token, .. } => Ok(*token),
            Source::Engine => {
                let taken = self.ids.len();
                let most = (self.request.max_new_tokens - taken).min(1 + PIPELINE_DEPTH.min(1 + taken));
                while model.in_flight() < most
                    && model.room() != Some(0)
                    && let Some(sampling) = self.sampling()
                {
                    model.submit_next(sampling)?;
                }
                model.receive()
            }
        }
    }

    /// Takes a token and shows its text; true if it ends the text.
    fn push(&mut self, id: u32, on_text: &mut dyn FnMut(&str)) -> Result<bool> {
        self.ids.push(id);
        self.history.push(id);
        let ends = self.tokenizer.is_eos(id) || self.request.stop_ids.contains(&id);
        if ends && !self.request.ignore_eos {
            return Ok(true);
        }
        let piece = self.stream.push(id)?;
        let step = self.stops.push(&piece);
        self.show(&step.text, on_text);
        Ok(step.stopped.is_some())
    }

    fn show(&mut self, text: &str, on_text: &mut dyn FnMut(&str)) {
        if !text.is_empty() {
            self.text.push_str(text);
            on_text(text);
        }
    }

    /// Shows what was held back, and sums up.
    fn end(mut self, finish: FinishReason, mut stats: Stats, on_text: &mut dyn FnMut(&str)) -> Result<Generation> {
        let rest = self.stream.finish()?;
        let step = self.stops.push(&rest);
        self.show(&step.text, on_text);
        if self.stops.stopped().is_none() {
            let held = self.stops.finish();
            self.show(&held, on_text);
        }
        stats.generated_tokens = self.ids.len();
        Ok(Generation { text: self.text, ids: self.ids, finish, stats })
    }
}
