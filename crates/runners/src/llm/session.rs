//! A sequence that answers one prompt after the other, of which most begin as the last one did.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::AtomicBool,
    time::Duration,
};

use flambeau_runtime::Outcome;
use flambeau_text::Tokenizer;

use super::{
    generate::{Generation, Request, drive},
    generator::{Generator, Step},
    prefix::CachedTokens,
    sequence::{Feed, Sequence},
    snapshot::Snapshot,
};
use crate::{Error, Result};

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

    /// Tokens in the caches.
    pub fn cached(&self) -> &CachedTokens {
        &self.cached
    }

    /// Forgets what the caches hold.
    pub fn reset(&mut self) {
        self.sequence.reset();
        self.cached.clear();
    }

    /// A copy of what the caches hold of the first `tokens` tokens, as [`Sequence::snapshot`] makes it.
    ///
    /// # Errors
    /// As [`Sequence::snapshot`].
    pub fn snapshot(&mut self, tokens: usize) -> Result<Option<Snapshot>> {
        self.sequence.snapshot(tokens)
    }

    /// Puts a snapshot of a text that begins with `ids` into the place of what the caches hold, as [`Sequence::restore`] does.
    ///
    /// # Errors
    /// As [`Sequence::restore`]; the session is then empty.
    pub fn restore(&mut self, snapshot: &Snapshot, ids: &[u32]) -> Result<()> {
        self.cached.clear();
        let kept = self.sequence.restore(snapshot, ids.len())?;
        self.cached.set(ids.iter().copied(), kept);
        Ok(())
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

    /// [`step`](Self::step) of several generations, each beside its session; outcomes are in their order. Those that ask for the logits
    /// after one token [step together](Sequence::step_each). A generation that fails or panics leaves the others alone; a session that
    /// panicked is not to be used again.
    pub fn step_each(steps: &mut [(&mut Session, &mut Generator)], now: &dyn Fn() -> Duration) -> Vec<Outcome<Step, Error>> {
        let mut feeds: Vec<Feed<'_>> = Vec::with_capacity(steps.len());
        let mut is_fed = Vec::with_capacity(steps.len());
        for (session, generator) in steps.iter_mut() {
            let feed = generator.feed(&mut session.sequence);
            is_fed.push(feed.is_some());
            feeds.extend(feed);
        }
        let mut fed = Sequence::step_each(&mut feeds).into_iter();
        let outcomes = steps.iter_mut().zip(is_fed).map(|((session, generator), is_fed)| {
            let Some(fed) = is_fed.then(|| fed.next()).flatten() else {
                return catch_unwind(AssertUnwindSafe(|| session.step(generator, now)));
            };
            let fed = fed?;
            let choose = || fed.and_then(|()| generator.choose(&mut session.sequence, None, now)).inspect_err(|_| session.reset());
            catch_unwind(AssertUnwindSafe(choose))
        });
        outcomes.collect()
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
