//! Responses in Ollama's format: lines of JSON, or one object.

use std::time::{Duration, Instant};

use axum::response::Response;
use serde_json::{Value as Json, json};

use super::error_json;
use crate::{
    answer::{Choice, Finish},
    error::{ApiError, Result},
    model::Handle,
    openai::logprobs,
    reply::{self, Events, Frames, ResponseBuilder},
    time,
    tools::{AnswerReader, Delta},
    worker::JobUpdate,
};

/// Whether responses are chat messages or texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    Chat,
    Text,
}

/// A piece of an answer. Calls are not split.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Thinking(String),
    Content(String),
    Call(Json),
}

/// Builds the response to a request from its updates.
#[derive(Debug)]
pub(super) struct OllamaAnswer {
    form: ReplyKind,
    /// The model name in the request.
    name: String,
    model: Handle,
    choice: Choice,
    prompt_tokens: usize,
    began: Instant,
    loading: Duration,
    has_logprobs: bool,
    /// The open call with its arguments so far.
    call: Option<(String, String, String)>,
}

impl OllamaAnswer {
    pub(super) fn new(
        form: ReplyKind,
        name: String,
        model: Handle,
        prompt_tokens: usize,
        (began, loading): (Instant, Duration),
    ) -> OllamaAnswer {
        let choice = Choice::new(AnswerReader::plain());
        OllamaAnswer { form, name, model, choice, prompt_tokens, began, loading, has_logprobs: false, call: None }
    }

    /// Sets the reader of the answer's text.
    pub(super) fn reading(self, reader: AnswerReader, has_logprobs: bool) -> OllamaAnswer {
        OllamaAnswer { choice: Choice::new(reader), has_logprobs, ..self }
    }

    /// Response to a request that loads the model.
    pub(super) fn loaded(&self) -> Json {
        ended(object(self.form, &self.name, &[]), "load")
    }

    /// An object with these pieces.
    fn object(&self, pieces: &[Piece]) -> Json {
        object(self.form, &self.name, pieces)
    }

    /// The last object, with these pieces.
    fn last(&self, pieces: &[Piece]) -> Json {
        let reason = if self.choice.finish == Some(Finish::Length) { "length" } else { "stop" };
        let mut object = ended(self.object(pieces), reason);
        let stats = self.choice.stats.unwrap_or_default();
        let nanoseconds = |time: Duration| Json::from(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        object["total_duration"] = nanoseconds(self.began.elapsed());
        object["load_duration"] = nanoseconds(self.loading);
        object["prompt_eval_count"] = self.prompt_tokens.into();
        object["prompt_eval_duration"] = nanoseconds(stats.prefill);
        object["eval_count"] = self.choice.tokens.into();
        object["eval_duration"] = nanoseconds(stats.decode);
        object
    }

    /// Takes the unsent log probabilities.
    fn add_logprobs(&mut self, object: &mut Json) {
        if self.has_logprobs && !self.choice.logprobs.is_empty() {
            object["logprobs"] = logprobs::chat(&self.model.tokenizer, &self.choice.logprobs)["content"].take();
            self.choice.logprobs.clear();
        }
    }

    /// Applies an update and returns the pieces that it completes.
    fn pieces(&mut self, (_, update): JobUpdate) -> Result<Vec<Piece>> {
        let (mut deltas, mut pieces) = (Vec::new(), Vec::new());
        self.choice.take(update, &mut deltas)?;
        for delta in deltas {
            match delta {
                Delta::Arguments { text, .. } => {
                    if let Some((.., arguments)) = &mut self.call {
                        arguments.push_str(&text);
                    }
                    continue;
                }
                Delta::Thinking(text) => pieces.push(Piece::Thinking(text)),
                Delta::Content(text) => pieces.push(Piece::Content(text)),
                Delta::Call { id, name, .. } => {
                    pieces.extend(self.finish_call());
                    self.call = Some((id, name, String::new()));
                }
            }
        }
        if self.choice.finish.is_some() {
            pieces.extend(self.finish_call());
        }
        Ok(pieces)
    }

    /// The open call. A call cut off early has no valid arguments and is dropped.
    fn finish_call(&mut self) -> Option<Piece> {
        let (id, name, arguments) = self.call.take()?;
        let arguments: Json = serde_json::from_str(&arguments).ok().filter(Json::is_object)?;
        Some(Piece::Call(json!({ "id": id, "function": { "name": name, "arguments": arguments } })))
    }
}

/// An object with these pieces of an answer.
fn object(form: ReplyKind, name: &str, pieces: &[Piece]) -> Json {
    let (mut content, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Thinking(text) => thinking.push_str(text),
            Piece::Content(text) => content.push_str(text),
            Piece::Call(call) => calls.push(call.clone()),
        }
    }
    let mut object = json!({ "model": name, "created_at": time::now() });
    let holder = match form {
        ReplyKind::Chat => {
            object["message"] = json!({ "role": "assistant", "content": content });
            &mut object["message"]
        }
        ReplyKind::Text => {
            object["response"] = content.into();
            &mut object
        }
    };
    if !thinking.is_empty() {
        holder["thinking"] = thinking.into();
    }
    if !calls.is_empty() {
        holder["tool_calls"] = calls.into();
    }
    object["done"] = false.into();
    object
}

/// The last object of an answer.
fn ended(mut object: Json, reason: &str) -> Json {
    object["done"] = true.into();
    object["done_reason"] = reason.into();
    object
}

/// Response to a request that unloads the model.
pub(super) fn unloaded(form: ReplyKind, name: &str) -> Json {
    ended(object(form, name, &[]), "unload")
}

/// Collects the whole response.
#[derive(Debug)]
pub(super) struct WholeAnswer {
    answer: OllamaAnswer,
    pieces: Vec<Piece>,
}

impl ResponseBuilder for WholeAnswer {
    type Update = JobUpdate;

    fn take(&mut self, update: JobUpdate) -> Result<bool> {
        let pieces = self.answer.pieces(update)?;
        self.pieces.extend(pieces);
        Ok(self.answer.choice.finish.is_some())
    }

    fn into_response(mut self) -> Response {
        let mut object = self.answer.last(&self.pieces);
        self.answer.add_logprobs(&mut object);
        reply::json(&object)
    }
}

impl Events for OllamaAnswer {
    type Update = JobUpdate;
    type ResponseBuilder = WholeAnswer;

    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    fn builder(self) -> WholeAnswer {
        WholeAnswer { answer: self, pieces: Vec::new() }
    }

    fn begin(&mut self, _: &mut Frames) {}

    fn update(&mut self, update: JobUpdate, frames: &mut Frames) -> Result<bool> {
        for piece in self.pieces(update)? {
            let mut object = self.object(&[piece]);
            self.add_logprobs(&mut object);
            frames.line(&object);
        }
        Ok(self.choice.finish.is_some())
    }

    fn end(&mut self, frames: &mut Frames) {
        let mut object = self.last(&[]);
        self.add_logprobs(&mut object);
        frames.line(&object);
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.line(&error_json(error));
    }

    fn idle(&self, frames: &mut Frames) {
        frames.line(&self.object(&[]));
    }
}
