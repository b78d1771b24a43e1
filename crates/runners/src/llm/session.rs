//! A model that answers one prompt after the other, of which most begin as the last one did.

use std::{sync::atomic::AtomicBool, time::Duration};

use flambeau_text::Tokenizer;

use super::{
    generate::{Generation, Request, generate},
    model::LanguageModel,
    prefix::CachedTokens,
};
use crate::{Error, Result};

/// A loaded model that knows which tokens its caches hold.
#[derive(Debug)]
pub struct Session {
    model: LanguageModel,
    cached: CachedTokens,
}

impl Session {
    /// A session on a model, whose caches are emptied.
    pub fn new(mut model: LanguageModel) -> Session {
        model.reset();
        Session { model, cached: CachedTokens::default() }
    }

    /// The model behind the session.
    pub fn model(&self) -> &LanguageModel {
        &self.model
    }

    /// What the caches hold.
    pub fn cached(&self) -> &CachedTokens {
        &self.cached
    }

    /// As [`generate`], for a request whose prompt is the whole text from its beginning: what the caches hold of it is not computed
    /// again. [`Stats::prompt_tokens`](super::Stats::prompt_tokens) counts the tokens that were.
    ///
    /// # Errors
    /// As [`generate`]. The session can be used again.
    pub fn generate(
        &mut self,
        tokenizer: &Tokenizer,
        mut request: Request,
        now: &dyn Fn() -> Duration,
        cancelled: &AtomicBool,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Generation> {
        let prompt = std::mem::take(&mut request.prompt);
        let refill = self.cached.refill(&prompt, self.model.can_go_back());
        let kept = self.model.go_back(refill.keep);
        self.cached.set(prompt[..kept].iter().copied(), kept);
        (request.before, request.prompt) = (prompt[..kept].to_vec(), refill.feed);
        let done = generate(&mut self.model, tokenizer, &request, now, cancelled, on_text);
        match &done {
            Ok(generation) => self.cached.set(prompt.into_iter().chain(generation.ids.iter().copied()), self.model.position()),
            Err(Error::PromptTooLong { .. } | Error::EmptyPrompt) => {}
            Err(_) => {
                self.model.reset();
                self.cached.clear();
            }
        }
        done
    }
}
