//! A sequence that answers a series of prompts; most prompts extend the previous one.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::AtomicBool,
    time::Duration,
};

use flambeau_runtime::Outcome;
use flambeau_text::Tokenizer;

use super::{
    adapters::Text,
    generate::{Generation, Request, drive},
    generator::{GenerationStep, Generator},
    prefix::CachedTokens,
    sequence::{Sequence, TokenInput},
    snapshot::Snapshot,
};
use crate::{Error, Result};

/// A sequence with a record of the tokens in its caches.
#[derive(Debug)]
pub struct Session {
    sequence: Sequence,
    cached: CachedTokens,
}

impl Session {
    /// Creates a session on a sequence and empties the sequence.
    pub fn new(mut sequence: Sequence) -> Session {
        sequence.reset();
        Session { sequence, cached: CachedTokens::default() }
    }

    /// The session's sequence.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Tokens in the caches.
    pub fn cached(&self) -> &CachedTokens {
        &self.cached
    }

    /// Number of leading tokens of a text that need not be computed again.
    pub(super) fn reusable(&self, text: Text<'_>) -> usize {
        let is_own = self.sequence.adapters() == text.adapters;
        if is_own { self.cached.reusable(text.ids, self.sequence.model().can_truncate()) } else { 0 }
    }

    /// Empties the caches.
    pub fn reset(&mut self) {
        self.sequence.reset();
        self.cached.clear();
    }

    /// [`Sequence::snapshot`] of the first `tokens` tokens.
    ///
    /// # Errors
    /// As [`Sequence::snapshot`].
    pub fn snapshot(&mut self, tokens: usize) -> Result<Option<Snapshot>> {
        self.sequence.snapshot(tokens)
    }

    /// Replaces the caches' contents by a snapshot of a text that begins with `ids`, as
    /// [`Sequence::restore`] does.
    ///
    /// # Errors
    /// As [`Sequence::restore`]; the session is then empty.
    pub fn restore(&mut self, snapshot: &Snapshot, ids: &[u32]) -> Result<()> {
        self.cached.clear();
        let kept = self.sequence.restore(snapshot, ids.len())?;
        self.cached.set(ids.iter().copied(), kept);
        Ok(())
    }

    /// Starts a generation; its prompt is the whole text. The cached prefix of the prompt is not
    /// computed again. [`Stats::prompt_tokens`](super::Stats::prompt_tokens) counts only the
    /// computed tokens.
    ///
    /// # Errors
    /// As [`Generator::new`]. The session remains usable.
    pub fn begin(&mut self, tokenizer: &Tokenizer, mut request: Request, now: &dyn Fn() -> Duration) -> Result<Generator> {
        let prompt = std::mem::take(&mut request.prompt);
        let reusable = self.reusable(Text { adapters: &request.adapters, ids: &prompt });
        self.sequence.set_adapters(&request.adapters)?;
        let kept = self.sequence.truncate(reusable);
        self.cached.set(prompt[..kept].iter().copied(), kept);
        (request.before, request.prompt) = (prompt[..kept].to_vec(), prompt[kept..].to_vec());
        Generator::new(&mut self.sequence, tokenizer, request, now)
    }

    /// Takes a step of the generation that [`begin`](Self::begin) started last.
    ///
    /// # Errors
    /// As [`Generator::step`]. The session is then empty.
    pub fn step(&mut self, generator: &mut Generator, now: &dyn Fn() -> Duration) -> Result<GenerationStep> {
        generator.step(&mut self.sequence, now).inspect_err(|_| self.reset())
    }

    /// [`step`](Self::step) of several generations, each with its session; outcomes are in the same
    /// order. Generations that only need the logits after one token are
    /// [batched](Sequence::step_each). A generation that fails or panics does not affect the
    /// others. A session that panicked must not be used again.
    pub fn step_each(
        steps: &mut [(&mut Session, &mut Generator)],
        now: &dyn Fn() -> Duration,
    ) -> Vec<Outcome<GenerationStep, Error>> {
        let mut feeds: Vec<TokenInput<'_>> = Vec::with_capacity(steps.len());
        let mut is_fed = Vec::with_capacity(steps.len());
        for (session, generator) in steps.iter_mut() {
            let feed = generator.feed(&mut session.sequence);
            is_fed.push(feed.is_some());
            feeds.extend(feed);
        }
        let mut result = Sequence::step_each(&mut feeds).into_iter();
        let outcomes = steps.iter_mut().zip(is_fed).map(|((session, generator), is_fed)| {
            let Some(result) = is_fed.then(|| result.next()).flatten() else {
                return catch_unwind(AssertUnwindSafe(|| session.step(generator, now)));
            };
            let result = result?;
            let choose =
                || result.and_then(|()| generator.choose(&mut session.sequence, None, now)).inspect_err(|_| session.reset());
            catch_unwind(AssertUnwindSafe(choose))
        });
        outcomes.collect()
    }

    /// Finishes the generation that [`begin`](Self::begin) started last, and keeps its text in the
    /// caches.
    pub fn end(&mut self, generator: Generator, now: &dyn Fn() -> Duration) -> Generation {
        let tokens = generator.history().to_vec();
        let generation = generator.end(&mut self.sequence, now);
        self.cached.set(tokens, self.sequence.position());
        generation
    }

    /// [`generate`](super::generate) for a request to [`begin`](Self::begin).
    ///
    /// # Errors
    /// As [`generate`](super::generate). The session remains usable.
    pub fn generate(
        &mut self,
        tokenizer: &Tokenizer,
        request: Request,
        now: &dyn Fn() -> Duration,
        cancelled: &AtomicBool,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Generation> {
        let mut generator = self.begin(tokenizer, request, now)?;
        drive(&mut generator, cancelled, on_text, &mut |generator| self.step(generator, now))?;
        Ok(self.end(generator, now))
    }
}
