//! A generation as a state machine that prefills, samples, stops and streams, one step at a time.

use std::{collections::VecDeque, time::Duration};

use flambeau_runtime::Sampling;
use flambeau_text::{Constraint, DetokenizeStream, Sampler, SamplingParams, StopMatcher, Tokenizer, likeliest, log_probabilities};

use super::{
    generate::{FinishReason, Generation, Request, Stats},
    lookup::Lookup,
    sampling_inputs::SamplingInputs,
    sequence::{PIPELINE_DEPTH, Sequence, TokenInput},
};
use crate::{Error, Result};

/// State of a generation between two steps. It owns no sequence: each step receives the sequence to
/// continue.
#[derive(Debug)]
pub struct Generator {
    tokenizer: Tokenizer,
    request: Request,
    sampler: Sampler,
    stream: DetokenizeStream,
    stops: StopMatcher,
    /// All tokens: earlier tokens of the sequence, the prompt, and generated tokens.
    history: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    /// Number of prompt tokens fed to the sequence.
    processed: usize,
    /// Length of the sequence before the prompt.
    before: usize,
    /// Number of tokens at the beginning that stay when the context is full; `None` ends the text.
    kept: Option<usize>,
    /// Number of generated tokens in the prompt, since the text was shortened.
    reread: usize,
    source: Source,
    /// Buffer for the logits of tokens allowed by the constraint.
    allowed: Vec<f32>,
    finish: Option<FinishReason>,
    stats: Stats,
    /// Times of the start and of the first token.
    began: Duration,
    first: Duration,
}

/// Result of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationStep {
    /// Text that is final now.
    pub text: String,
    /// The chosen token; `None` for a step that fed prompt tokens.
    pub token: Option<u32>,
    /// Log probabilities of the token, if requested.
    pub logprobs: Option<Logprobs>,
    /// Reason for the generation's end, once it has ended.
    pub finish: Option<FinishReason>,
}

/// Natural log probabilities of a token, before bias, penalties and temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Log probability of the chosen token.
    pub chosen: f32,
    /// Log probabilities of the likeliest tokens, best first.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    fn new(logits: &[f32], id: u32, count: usize) -> Logprobs {
        let mut ids = likeliest(logits, count);
        ids.push(id);
        let mut values = log_probabilities(logits, &ids);
        let chosen = values.pop().unwrap_or(f32::NEG_INFINITY);
        Logprobs { chosen, top: ids.into_iter().zip(values).collect() }
    }
}

/// Source of the next token.
#[derive(Debug)]
enum Source {
    /// The host samples from these logits.
    Logits(Vec<f32>),
    /// The program samples.
    Program(SamplingInputs),
    /// The host samples from logits of several tokens, with draft tokens from the text or a draft
    /// model.
    Lookup(Lookup),
    /// Verified draft tokens, oldest first.
    Guesses(VecDeque<u32>),
    /// The engine samples, and starts the next step before the host reads the token.
    Engine,
}

impl Generator {
    /// Appends a prompt to the sequence and starts generating. The sequence keeps its earlier
    /// tokens; [`Sequence::reset`] clears them.
    ///
    /// `now` returns the time since a fixed moment.
    ///
    /// # Errors
    /// Fails if the prompt is empty or exceeds the context, if a parameter is out of range, or if
    /// other adapters computed the earlier tokens.
    pub fn new(sequence: &mut Sequence, tokenizer: &Tokenizer, request: Request, now: &dyn Fn() -> Duration) -> Result<Generator> {
        let began = now();
        let sampler = Sampler::new(request.sampling.clone())?;
        let stops = StopMatcher::new(&request.stop)?;
        sequence.cancel();
        if sequence.position() > 0 && *sequence.adapters() != request.adapters {
            return Err(Error::OtherAdapters);
        }
        sequence.set_adapters(&request.adapters)?;
        check_room(sequence, request.prompt.len())?;
        let history = [request.before.as_slice(), &request.prompt].concat();
        let bos = usize::from(tokenizer.bos_id().is_some_and(|bos| history.first() == Some(&bos)));
        Ok(Generator {
            kept: request.shift.map(|keep| keep.saturating_add(bos).min(history.len())),
            stream: tokenizer.stream(true).including(&request.shown_ids),
            tokenizer: tokenizer.clone(),
            history,
            source: Source::of(sequence, &request)?,
            stats: Stats { prompt_tokens: request.prompt.len(), ..Stats::default() },
            request,
            sampler,
            stops,
            ids: Vec::new(),
            text: String::new(),
            allowed: Vec::new(),
            processed: 0,
            before: sequence.position(),
            reread: 0,
            finish: None,
            began,
            first: began,
        })
    }

    /// Whether the next step feeds prompt tokens.
    pub fn is_reading(&self) -> bool {
        self.unread() > 0
    }

    /// Number of prompt tokens not fed yet.
    pub fn unread(&self) -> usize {
        self.request.prompt.len() - self.processed
    }

    /// All tokens: earlier tokens of the sequence, the prompt, and generated tokens.
    pub fn history(&self) -> &[u32] {
        &self.history
    }

    /// Takes one step of the model: feeds a chunk of the prompt, or generates one token. The step
    /// with the prompt's last chunk also returns the first token, unless the engine samples tokens.
    ///
    /// # Errors
    /// Fails if the model or the tokenizer fails. The generation is then over, and the sequence
    /// must not be continued.
    pub fn step(&mut self, sequence: &mut Sequence, now: &dyn Fn() -> Duration) -> Result<GenerationStep> {
        self.go_on(sequence, now).map_err(|error| match error {
            Error::Text(flambeau_text::Error::NoCandidate { found }) if self.request.constraint.is_none() => {
                Error::NoLogits { found, dtype: sequence.metadata().dtype }
            }
            other => other,
        })
    }

    fn go_on(&mut self, sequence: &mut Sequence, now: &dyn Fn() -> Duration) -> Result<GenerationStep> {
        if self.finish.is_some() {
            return Ok(GenerationStep { finish: self.finish, ..GenerationStep::default() });
        }
        let drawn = if self.is_reading() {
            let drawn = self.read(sequence)?;
            if self.is_reading() {
                return Ok(GenerationStep::default());
            }
            if self.stats.first_token.is_none() {
                self.stats.prefill = now().saturating_sub(self.began);
            }
            if self.request.max_new_tokens == 0 {
                return self.end_with(String::new(), None, FinishReason::Length);
            }
            if matches!(self.source, Source::Engine) {
                return Ok(GenerationStep::default());
            }
            drawn
        } else {
            self.advance(sequence, now)?
        };
        self.choose(sequence, drawn, now)
    }

    /// The token that the next step feeds, if the step needs nothing else from the model. The
    /// caller may then [feed it](Sequence::step_each) and call [`choose`](Self::choose).
    pub(super) fn feed<'a>(&'a mut self, sequence: &'a mut Sequence) -> Option<TokenInput<'a>> {
        if self.finish.is_some() || self.is_reading() {
            return None;
        }
        match (&mut self.source, self.ids.last()) {
            (Source::Logits(logits), Some(&token)) => Some(TokenInput { sequence, token, logits }),
            _ => None,
        }
    }

    /// Second half of a step, after the model returned logits or has `drawn` a token.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub(super) fn choose(
        &mut self,
        sequence: &mut Sequence,
        drawn: Option<u32>,
        now: &dyn Fn() -> Duration,
    ) -> Result<GenerationStep> {
        let id = self.next(sequence, drawn)?;
        self.note_time(now);
        let logprobs = self.request.logprobs.zip(self.source.logits()).map(|(count, logits)| Logprobs::new(logits, id, count));
        Ok(GenerationStep { logprobs, ..self.take(sequence, id)? })
    }

    /// Ends the generation early and returns the withheld text.
    ///
    /// # Errors
    /// Fails if the tokenizer fails.
    pub fn cancel(&mut self) -> Result<GenerationStep> {
        match self.finish {
            Some(_) => Ok(GenerationStep { finish: self.finish, ..GenerationStep::default() }),
            None => self.end_with(String::new(), None, FinishReason::Cancelled),
        }
    }

    /// Finishes the generation and returns its result. Removes tokens after the end of the text
    /// from the sequence.
    pub fn end(mut self, sequence: &mut Sequence, now: &dyn Fn() -> Duration) -> Generation {
        sequence.truncate(self.before + self.request.prompt.len() + self.ids.len() - self.reread);
        match self.stats.first_token {
            Some(_) => self.stats.decode = now().saturating_sub(self.first),
            None if self.is_reading() => self.stats.prefill = now().saturating_sub(self.began),
            None => {}
        }
        self.stats.generated_tokens = self.ids.len();
        let finish = self.finish.unwrap_or(FinishReason::Cancelled);
        Generation { text: self.text, ids: self.ids, finish, stop: self.stops.stopped(), stats: self.stats }
    }

    /// Feeds a chunk of the prompt; returns the token after it if the program samples. Tokens
    /// sampled before the prompt's end are dropped.
    fn read(&mut self, sequence: &mut Sequence) -> Result<Option<u32>> {
        let end = self.request.prompt.len().min(self.processed + sequence.model().chunk());
        let is_last = end == self.request.prompt.len();
        let sampling = if is_last && matches!(self.source, Source::Engine) { self.sampling() } else { None };
        let chunk = &self.request.prompt[self.processed..end];
        self.processed = end;
        match (&mut self.source, sampling) {
            (Source::Program(sampling), _) => return sequence.step_sampled(chunk, *sampling).map(Some),
            (Source::Logits(logits) | Source::Lookup(Lookup { logits, .. }), _) => sequence.step_into(chunk, logits)?,
            (Source::Engine, Some(sampling)) => sequence.submit(chunk, sampling)?,
            (Source::Engine, None) => sequence.step_into(chunk, &mut Vec::new())?,
            (Source::Guesses(tokens), _) => {
                let logits = sequence.step(chunk)?;
                if is_last {
                    tokens.push_back(self.sampler.sample(&logits, &self.history)?);
                }
            }
        }
        Ok(None)
    }

    /// Feeds the last token if the next one needs a step of its own; returns the next token if the
    /// program samples.
    fn advance(&mut self, sequence: &mut Sequence, now: &dyn Fn() -> Duration) -> Result<Option<u32>> {
        let Some(&last) = self.ids.last() else { return Ok(None) };
        match &mut self.source {
            Source::Logits(logits) => sequence.step_into(&[last], logits)?,
            Source::Program(sampling) => {
                *sampling = sampling.next();
                return sequence.step_sampled(&[last], *sampling).map(Some);
            }
            Source::Lookup(lookup) => {
                if !lookup.advance() {
                    let left = self.request.max_new_tokens - self.ids.len();
                    let most = sequence.most_guesses().min(left - 1);
                    let guesses = if sequence.has_guesser() {
                        let width = lookup.width(most, now());
                        sequence.guess(&self.history, width)?
                    } else {
                        lookup.guess(&self.history, most)
                    };
                    self.stats.rounds += usize::from(!guesses.is_empty());
                    sequence.judge(last, &guesses, &mut lookup.logits)?;
                    lookup.begin(guesses);
                }
            }
            Source::Guesses(tokens) if tokens.is_empty() => {
                self.stats.rounds += 1;
                tokens.extend(sequence.speculate(last)?);
            }
            Source::Guesses(_) | Source::Engine => {}
        }
        Ok(None)
    }

    /// Returns the next token. For an engine that samples, submits further steps first: up to
    /// [`PIPELINE_DEPTH`], but only one before the first token, to return it early.
    fn next(&mut self, sequence: &mut Sequence, drawn: Option<u32>) -> Result<u32> {
        match &mut self.source {
            Source::Guesses(tokens) => Ok(tokens.pop_front().expect("a round gives tokens")),
            Source::Logits(logits) => {
                sample(&mut self.sampler, logits, &self.history, &mut self.request.constraint, &mut self.allowed)
            }
            Source::Lookup(lookup) => {
                let id = sample(&mut self.sampler, lookup.row(), &self.history, &mut self.request.constraint, &mut self.allowed)?;
                let wrong = lookup.choose(id);
                if wrong > 0 {
                    sequence.truncate(sequence.position() - wrong);
                }
                Ok(id)
            }
            Source::Program(_) => Ok(drawn.expect("every step of such a program draws a token")),
            Source::Engine => {
                let taken = self.ids.len();
                let most = (self.request.max_new_tokens - taken).min(1 + PIPELINE_DEPTH.min(1 + taken));
                while sequence.in_flight() < most
                    && sequence.room() != Some(0)
                    && let Some(sampling) = self.sampling()
                {
                    sequence.submit_next(sampling)?;
                }
                sequence.receive()
            }
        }
    }

    /// Sampling parameters for the engine; `None` if sampling depends on more than the logits.
    fn sampling(&mut self) -> Option<Sampling> {
        let uniform = self.sampler.next_uniform()?;
        let &SamplingParams { temperature, top_k, top_p, min_p, .. } = self.sampler.params();
        Some(Sampling { temperature, top_k, top_p, min_p, uniform })
    }

    fn note_time(&mut self, now: &dyn Fn() -> Duration) {
        if self.stats.first_token.is_none() {
            self.first = now();
            let time = self.first.saturating_sub(self.began);
            self.stats.first_token = Some(time);
            if matches!(self.source, Source::Engine) {
                self.stats.prefill = time;
            }
        }
    }

    /// Adds a token: its text, and the reason if it is the last one.
    fn take(&mut self, sequence: &mut Sequence, id: u32) -> Result<GenerationStep> {
        self.ids.push(id);
        self.history.push(id);
        let is_end = self.tokenizer.is_eos(id) || self.request.stop_ids.contains(&id);
        if is_end && !self.request.ignore_eos {
            return self.end_with(String::new(), Some(id), FinishReason::Stop);
        }
        if let Some(constraint) = self.request.constraint.as_mut().filter(|_| !is_end) {
            constraint.accept(id)?;
        }
        let shown = self.stops.push(&self.stream.push(id)?);
        let is_full = sequence.room() == Some(0) && sequence.in_flight() == 0 && !self.source.has_more();
        let finish = match () {
            () if shown.stopped.is_some() => FinishReason::Stop,
            () if self.ids.len() >= self.request.max_new_tokens => FinishReason::Length,
            () if is_full && !self.shift(sequence) => FinishReason::Context,
            () => {
                self.text.push_str(&shown.text);
                return Ok(GenerationStep { text: shown.text, token: Some(id), ..GenerationStep::default() });
            }
        };
        self.end_with(shown.text, Some(id), finish)
    }

    /// Shortens a text that fills the context. The next steps compute the newer half of the text
    /// behind its kept beginning again, as for a new prompt. False if the request does not allow
    /// that, or if there is nothing to drop.
    fn shift(&mut self, sequence: &mut Sequence) -> bool {
        let Some(kept) = self.kept else { return false };
        // The last token is not in the caches yet.
        let held = sequence.position();
        let dropped = held.saturating_sub(kept) / 2;
        if dropped == 0 || self.history.len() != held + 1 {
            return false;
        }
        self.history.drain(kept..kept + dropped);
        match &mut self.source {
            Source::Lookup(lookup) => lookup.begin(Vec::new()),
            Source::Program(sampling) => *sampling = sampling.next(),
            Source::Logits(_) | Source::Guesses(_) | Source::Engine => {}
        }
        self.before = sequence.truncate(kept);
        self.request.prompt = self.history[self.before..].to_vec();
        self.processed = 0;
        self.reread = self.ids.len();
        true
    }

    /// The last step: returns the withheld text after `text`.
    fn end_with(&mut self, mut text: String, token: Option<u32>, finish: FinishReason) -> Result<GenerationStep> {
        let rest = self.stream.finish()?;
        text.push_str(&self.stops.push(&rest).text);
        if self.stops.stopped().is_none() {
            text.push_str(&self.stops.finish());
        }
        self.text.push_str(&text);
        self.finish = Some(finish);
        Ok(GenerationStep { text, token, logprobs: None, finish: self.finish })
    }
}

impl Source {
    fn of(sequence: &mut Sequence, request: &Request) -> Result<Source> {
        let params = &request.sampling;
        if sequence.model().samples_tokens() {
            return Ok(Source::Program(sequence.sampling_inputs(request)?));
        }
        if request.prompt_lookup || sequence.has_guesser() {
            let lookup = if sequence.has_guesser() { Lookup::of_model() } else { Lookup::default() };
            return sequence.model().check_judges().map(|()| Source::Lookup(lookup));
        }
        if request.logprobs.is_some() || request.constraint.is_some() {
            return Ok(Source::Logits(Vec::new()));
        }
        if params.is_greedy() && sequence.can_speculate() {
            return Ok(Source::Guesses(VecDeque::new()));
        }
        let pipelines = !params.adjusts_logits() && sequence.can_pipeline();
        Ok(if pipelines { Source::Engine } else { Source::Logits(Vec::new()) })
    }

    /// Whether further tokens need no step.
    fn has_more(&self) -> bool {
        match self {
            Source::Guesses(tokens) => !tokens.is_empty(),
            Source::Lookup(lookup) => lookup.has_more(),
            Source::Logits(_) | Source::Program(_) | Source::Engine => false,
        }
    }

    /// Logits of the last chosen token, if the host has them.
    fn logits(&self) -> Option<&[f32]> {
        match self {
            Source::Logits(logits) => Some(logits),
            Source::Lookup(lookup) => Some(lookup.row()),
            Source::Program(_) | Source::Guesses(_) | Source::Engine => None,
        }
    }
}

/// Samples a token that the constraint allows; `allowed` is a buffer for its logits.
fn sample(
    sampler: &mut Sampler,
    logits: &[f32],
    history: &[u32],
    constraint: &mut Option<Constraint>,
    allowed: &mut Vec<f32>,
) -> Result<u32> {
    let Some(constraint) = constraint else { return Ok(sampler.sample(logits, history)?) };
    allowed.clear();
    allowed.extend_from_slice(logits);
    constraint.mask(allowed)?;
    Ok(sampler.sample(allowed, history)?)
}

fn check_room(sequence: &Sequence, prompt: usize) -> Result<()> {
    match sequence.room() {
        _ if prompt == 0 => Err(Error::EmptyPrompt),
        Some(room) if prompt > room => {
            Err(Error::PromptTooLong { prompt: prompt + sequence.position(), context: room + sequence.position() })
        }
        _ => Ok(()),
    }
}
