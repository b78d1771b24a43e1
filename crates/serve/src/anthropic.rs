//! `/v1/messages`, Anthropic's protocol. Requests are converted to OpenAI's format first.

mod blocks;
mod request;
mod tools;

use std::time::Duration;

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value as Json, json};

pub(crate) use self::request::{ResponseOptions, to_count, to_openai};
use crate::{
    answer::{Choice, Finish},
    error::{ApiError, Result},
    ids::unique_id,
    model::Handle,
    openai::chat::ChatRequest,
    reply::{self, Events, Frames, ResponseBuilder},
    time::rfc3339,
    tools::Delta,
    worker::JobUpdate,
};

/// An error in Anthropic's format.
fn error_json(error: &ApiError) -> Json {
    let kind = match error.status {
        StatusCode::BAD_REQUEST => "invalid_request_error",
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        _ => "api_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.message } })
}

/// Response to a failed request.
pub(crate) fn refuse(error: ApiError) -> Response {
    let body = reply::json(&error_json(&error)).into_body();
    let (head, _) = error.into_response().into_parts();
    Response::from_parts(head, body)
}

/// A header that Anthropic's clients send.
pub(crate) const VERSION: &str = "anthropic-version";

/// An entry of `/v1/models` in Anthropic's format.
pub(crate) fn model(entry: &Json) -> Json {
    let created = Duration::from_secs(entry["created"].as_u64().unwrap_or_default());
    json!({
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": rfc3339(created),
        "lifecycle": "active",
        "max_input_tokens": entry["context_length"],
    })
}

/// `/v1/models` in Anthropic's format.
pub(crate) fn models(entries: &Json) -> Json {
    let list: Vec<Json> = entries.as_array().into_iter().flatten().map(model).collect();
    let [first, last] = [list.first(), list.last()].map(|entry| entry.map(|entry| entry["id"].clone()));
    json!({ "data": list, "has_more": false, "first_id": first, "last_id": last })
}

/// Builds the response to a request from its updates.
#[derive(Debug)]
pub(crate) struct MessageAnswer {
    id: String,
    model: Handle,
    options: ResponseOptions,
    choice: Choice,
    stops: Vec<String>,
    prompt_tokens: usize,
    has_begun: bool,
    /// Finished blocks; the last one may be open.
    blocks: Vec<Block>,
    is_open: bool,
}

/// Placeholder signature of thoughts. Clients require a value; nothing checks it.
const SIGNATURE: &str = "unsigned";

/// A block of content.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Block {
    Thinking(String),
    Text(String),
    Call { id: String, name: String, arguments: String },
}

impl Block {
    /// The block at its start or end.
    fn to_json(&self, is_whole: bool) -> Json {
        match self {
            Block::Thinking(text) => {
                let (text, signature) = if is_whole { (text.as_str(), SIGNATURE) } else { ("", "") };
                json!({ "type": "thinking", "thinking": text, "signature": signature })
            }
            Block::Text(text) => json!({ "type": "text", "text": if is_whole { text } else { "" } }),
            Block::Call { id, name, arguments } => {
                // Arguments that were cut off are invalid JSON.
                let input = serde_json::from_str(arguments).ok().filter(|_| is_whole).unwrap_or_else(|| json!({}));
                json!({ "type": "tool_use", "id": id, "name": name, "input": input })
            }
        }
    }
}

impl MessageAnswer {
    pub(crate) fn new(
        request: &ChatRequest,
        model: Handle,
        prompt: &str,
        prompt_tokens: usize,
        options: ResponseOptions,
    ) -> MessageAnswer {
        MessageAnswer {
            id: unique_id("msg_"),
            options,
            choice: Choice::new(request.reader(prompt)),
            stops: request.params.stop.clone(),
            prompt_tokens,
            has_begun: false,
            blocks: Vec::new(),
            is_open: false,
            model,
        }
    }

    fn head(&self) -> Json {
        let mut head = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model.name,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": self.usage(),
        });
        if self.options.lists_edits {
            head["context_management"] = json!({ "applied_edits": [] });
        }
        head
    }

    fn usage(&self) -> Json {
        json!({
            "input_tokens": self.prompt_tokens - self.choice.cached.min(self.prompt_tokens),
            "cache_read_input_tokens": self.choice.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": self.choice.tokens,
            "service_tier": "standard",
        })
    }

    fn stop_text(&self) -> Option<&str> {
        self.stops.get(self.choice.stop?).map(String::as_str)
    }

    fn stop_reason(&self) -> &'static str {
        match self.choice.finish {
            Some(Finish::Calls) => "tool_use",
            Some(Finish::Length) => "max_tokens",
            _ if self.stop_text().is_some() => "stop_sequence",
            _ => "end_turn",
        }
    }

    fn index(&self) -> usize {
        self.blocks.len() - 1
    }

    fn open(&mut self, block: Block, frames: &mut Frames) {
        self.close(frames);
        self.blocks.push(block);
        self.is_open = true;
        let begun = self.blocks[self.index()].to_json(false);
        frames
            .event("content_block_start", &json!({ "type": "content_block_start", "index": self.index(), "content_block": begun }));
    }

    fn close(&mut self, frames: &mut Frames) {
        if std::mem::take(&mut self.is_open) {
            if let Some(Block::Thinking(_)) = self.blocks.last() {
                let delta = json!({ "type": "signature_delta", "signature": SIGNATURE });
                frames
                    .event("content_block_delta", &json!({ "type": "content_block_delta", "index": self.index(), "delta": delta }));
            }
            frames.event("content_block_stop", &json!({ "type": "content_block_stop", "index": self.index() }));
        }
    }

    fn add(&mut self, delta: Delta, frames: &mut Frames) {
        match (&delta, self.blocks.last()) {
            (Delta::Thinking(_), Some(Block::Thinking(_))) | (Delta::Content(_), Some(Block::Text(_))) => {}
            (Delta::Thinking(_), _) => self.open(Block::Thinking(String::new()), frames),
            (Delta::Content(_), _) => self.open(Block::Text(String::new()), frames),
            (Delta::Call { id, name, .. }, _) => {
                let (id, name) = (id.clone(), name.clone());
                return self.open(Block::Call { id, name, arguments: String::new() }, frames);
            }
            (Delta::Arguments { .. }, _) => {}
        }
        let told = match (delta, self.blocks.last_mut()) {
            (Delta::Thinking(_), Some(Block::Thinking(_))) if self.options.omits_thoughts => return,
            (Delta::Thinking(text), Some(Block::Thinking(all))) => {
                all.push_str(&text);
                json!({ "type": "thinking_delta", "thinking": text })
            }
            (Delta::Content(text), Some(Block::Text(all))) => {
                all.push_str(&text);
                json!({ "type": "text_delta", "text": text })
            }
            (Delta::Arguments { text, .. }, Some(Block::Call { arguments, .. })) => {
                arguments.push_str(&text);
                json!({ "type": "input_json_delta", "partial_json": text })
            }
            _ => return,
        };
        frames.event("content_block_delta", &json!({ "type": "content_block_delta", "index": self.index(), "delta": told }));
    }
}

impl ResponseBuilder for MessageAnswer {
    type Update = JobUpdate;

    fn take(&mut self, update: JobUpdate) -> Result<bool> {
        self.update(update, &mut Frames::default())
    }

    fn into_response(self) -> Response {
        let mut message = self.head();
        message["content"] = self.blocks.iter().map(|block| block.to_json(true)).collect();
        message["stop_reason"] = self.stop_reason().into();
        message["stop_sequence"] = self.stop_text().into();
        reply::json(&message)
    }
}

impl Events for MessageAnswer {
    type Update = JobUpdate;
    type ResponseBuilder = MessageAnswer;

    fn builder(self) -> MessageAnswer {
        self
    }

    fn begin(&mut self, _: &mut Frames) {}

    fn update(&mut self, (_, update): JobUpdate, frames: &mut Frames) -> Result<bool> {
        let mut deltas = Vec::new();
        self.choice.take(update, &mut deltas)?;
        if !std::mem::replace(&mut self.has_begun, true) {
            // The first update states the number of cached prompt tokens.
            frames.event("message_start", &json!({ "type": "message_start", "message": self.head() }));
        }
        deltas.into_iter().for_each(|delta| self.add(delta, frames));
        Ok(self.choice.finish.is_some())
    }

    fn end(&mut self, frames: &mut Frames) {
        self.close(frames);
        let delta = json!({ "stop_reason": self.stop_reason(), "stop_sequence": self.stop_text() });
        frames.event("message_delta", &json!({ "type": "message_delta", "delta": delta, "usage": self.usage() }));
        frames.event("message_stop", &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.event("error", &error_json(error));
    }
}
