//! A sequence that answers one prompt after the other, of which most begin as the last one did.

use std::{sync::atomic::AtomicBool, time::Duration};

use flambeau_text::Tokenizer;

use super::{
    generate::{Generation, Request, drive},
    generator::{Generator, Step},
    prefix::CachedTokens,
    sequence::Sequence,
};
use crate::Result;

/// A sequence that knows which tokens its caches hold.
#[derive(Debug)]
pub struct Session {
    sequence: Sequence,
    cached: CachedTokens,
}

impl Session {
    /// A session on a sequence, which is emptied.
    pub fn new(mut sequence: Sequence) -> Session {
        sequence.reset();
        Session { sequence, cached: CachedTokens::default() }
    }

    /// The sequence behind the session.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// What the caches hold.
    pub fn cached(&self) -> &CachedTokens {
        &self.cached
    }

    /// Forgets what the caches hold.
    pub fn reset(&mut self) {
        self.sequence.reset();
        self.cached.clear();
    }

    /// Begins a generation whose prompt is the whole text from its beginning: what the caches hold of it is not computed again.
    /// [`Stats::prompt_tokens`](super::Stats::prompt_tokens) counts the tokens that are.
    ///
    /// # Errors
    /// As [`Generator::new`]. The session can be used again.
    pub fn begin(&mut self, tokenizer: &Tokenizer, mut request: Request, now: &dyn Fn() -> Duration) -> Result<Generator> {
        let prompt = std::mem::take(&mut request.prompt);
        let reusable = self.cached.reusable(&prompt, self.sequence.model().can_truncate());
        let kept = self.sequence.truncate(reusable);
        self.cached.set(prompt[..kept].iter().copied(), kept);
        (request.before, request.prompt) = (prompt[..kept].to_vec(), prompt[kept..].to_vec());
        Generator::new(&mut self.sequence, tokenizer, request, now)
    }

    /// Takes a step of the generation that [began](Self::begin) last.
    ///
    /// # Errors
    /// As [`Generator::step`]. The session is then empty.
    pub fn step(&mut self, generator: &mut Generator, now: &dyn Fn() -> Duration) -> Result<Step> {
        generator.step(&mut self.sequence, now).inspect_err(|_| self.reset())
    }

    /// Sums up the generation that [began](Self::begin) last, and keeps its text in the caches.
    pub fn end(&mut self, generator: Generator, now: &dyn Fn() -> Duration) -> Generation {
        let tokens = generator.history().to_vec();
        let generation = generator.end(&mut self.sequence, now);
        self.cached.set(tokens, self.sequence.position());
        generation
    }

    /// As [`generate`](super::generate), for a request as [`begin`](Self::begin) takes it.
    ///
    /// # Errors
    /// As [`generate`](super::generate). The session can be used again.
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
