//! Shared parts of chat completions and text completions.

use serde_json::{Value as Json, json};

use super::{
    FINGERPRINT,
    usage::{timings, usage},
};
use crate::{
    answer::Choice,
    ids::unique_id,
    model::{Handle, now},
    reply::Frames,
};

/// All answers to a request, built from updates.
#[derive(Debug)]
pub(crate) struct Answers {
    id: String,
    created: u64,
    pub(crate) model: Handle,
    pub(crate) choices: Vec<Choice>,
    /// Number of tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Whether a stream ends with the usage.
    pub(crate) include_usage: bool,
    pub(crate) has_logprobs: bool,
}

impl Answers {
    /// Creates empty answers; their ID starts with `prefix`. Streams omit usage and log
    /// probabilities by default.
    pub(crate) fn new(prefix: &str, model: Handle, choices: Vec<Choice>, prompt_tokens: usize) -> Answers {
        Answers { id: unique_id(prefix), created: now(), model, choices, prompt_tokens, include_usage: false, has_logprobs: false }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish.is_some())
    }

    /// A response or stream object with these choices.
    pub(crate) fn object(&self, kind: &str, choices: Json) -> Json {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        })
    }

    /// The whole response.
    pub(crate) fn whole(&self, kind: &str, choices: Json) -> Json {
        let mut response = self.object(kind, choices);
        response["usage"] = usage(self.prompt_tokens, &self.choices);
        response["timings"] = self.choices.first().map_or(Json::Null, timings);
        response
    }

    /// A stream chunk with this choice.
    pub(crate) fn chunk(&self, kind: &str, choice: Json) -> Json {
        let mut chunk = self.object(kind, json!([choice]));
        if self.include_usage {
            chunk["usage"] = Json::Null;
        }
        chunk
    }

    /// The end of the stream.
    pub(crate) fn end(&self, kind: &str, frames: &mut Frames) {
        if self.include_usage {
            let mut chunk = self.object(kind, json!([]));
            chunk["usage"] = usage(self.prompt_tokens, &self.choices);
            frames.data(&chunk);
        }
        frames.done();
    }
}
