//! Infill responses in llama.cpp's format.

use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::{
    answer::{Choice, Finish},
    error::{ApiError, Result},
    model::Handle,
    openai::usage::timings,
    reply::{self, Events, Frames, ResponseBuilder},
    tools::{AnswerReader, Delta},
    worker::JobUpdate,
};

/// Builds the response to a request from its updates.
#[derive(Debug)]
pub(super) struct InfillAnswer {
    model: Handle,
    choice: Choice,
    prompt_tokens: usize,
    stops: Vec<String>,
    /// The text so far, unless it is streamed.
    text: String,
}

impl InfillAnswer {
    pub(super) fn new(model: Handle, prompt_tokens: usize, stops: Vec<String>) -> InfillAnswer {
        InfillAnswer { model, choice: Choice::new(AnswerReader::plain()), prompt_tokens, stops, text: String::new() }
    }

    /// Applies an update and returns its new text.
    fn piece(&mut self, (_, update): JobUpdate) -> Result<String> {
        let mut deltas = Vec::new();
        self.choice.take(update, &mut deltas)?;
        Ok(deltas.into_iter().filter_map(|delta| if let Delta::Content(text) = delta { Some(text) } else { None }).collect())
    }

    /// The final object. `text` is the whole text, or empty after a stream.
    fn last(&self, text: &str) -> Json {
        let stopping_word = self.choice.stop.and_then(|stop| self.stops.get(stop));
        let stop_type = match (self.choice.finish, stopping_word) {
            (Some(Finish::Length), _) => "limit",
            (_, Some(_)) => "word",
            _ => "eos",
        };
        json!({
            "content": text,
            "stop": true,
            "stop_type": stop_type,
            "stopping_word": stopping_word.map_or("", String::as_str),
            "model": self.model.name,
            "tokens_predicted": self.choice.tokens,
            "tokens_evaluated": self.prompt_tokens,
            "tokens_cached": self.choice.cached,
            "truncated": false,
            "generation_settings": { "n_ctx": self.model.context },
            "timings": timings(&self.choice),
        })
    }
}

impl ResponseBuilder for InfillAnswer {
    type Update = JobUpdate;

    fn take(&mut self, update: JobUpdate) -> Result<bool> {
        let piece = self.piece(update)?;
        self.text.push_str(&piece);
        Ok(self.choice.finish.is_some())
    }

    fn into_response(self) -> Response {
        reply::json(&self.last(&self.text))
    }
}

impl Events for InfillAnswer {
    type Update = JobUpdate;
    type ResponseBuilder = InfillAnswer;

    fn builder(self) -> InfillAnswer {
        self
    }

    fn begin(&mut self, _: &mut Frames) {}

    fn update(&mut self, update: JobUpdate, frames: &mut Frames) -> Result<bool> {
        let piece = self.piece(update)?;
        if !piece.is_empty() {
            frames.data(&json!({ "content": piece, "stop": false }));
        }
        Ok(self.choice.finish.is_some())
    }

    fn end(&mut self, frames: &mut Frames) {
        frames.data(&self.last(""));
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.data(&error.to_json());
    }
}
