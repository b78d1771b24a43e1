//! `/v1/responses`, OpenAI's later form of a conversation. Requests are brought into the form of
//! chat completions and read as such. Nothing is kept from one response to the next: a request
//! brings its whole conversation.

mod request;

use axum::response::Response;
use serde_json::{Value as Json, json};

pub(crate) use self::request::{Echo, to_chat};
use crate::{
    answer::{Choice, Delta, Finish, id},
    error::{ApiError, Result},
    model::{Handle, now},
    openai::chat::ChatRequest,
    reply::{self, Events, Frames, Whole},
    worker::JobUpdate,
};

/// The answer to a request, as it comes.
#[derive(Debug)]
pub(crate) struct ResponseAnswer {
    id: String,
    created: u64,
    model: Handle,
    echo: Echo,
    choice: Choice,
    prompt_tokens: usize,
    /// The items so far; the last one may be open.
    items: Vec<Item>,
    is_open: bool,
    /// Number of the next event.
    sequence: usize,
}

/// An item of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    id: String,
    /// Thoughts, text or arguments.
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
}

impl Item {
    fn part(&self) -> Json {
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
    }

    fn to_json(&self, status: &str) -> Json {
        let is_whole = status != "in_progress";
        match &self.kind {
            Kind::Reasoning => {
                let content = if is_whole { json!([{ "type": "reasoning_text", "text": self.text }]) } else { json!([]) };
                json!({ "id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status })
            }
            Kind::Message => {
                let content = if is_whole { json!([self.part()]) } else { json!([]) };
                json!({ "id": self.id, "type": "message", "role": "assistant", "content": content, "status": status })
            }
            Kind::Call { call_id, name } => {
                let text = &self.text;
                json!({ "id": self.id, "type": "function_call", "call_id": call_id, "name": name, "arguments": text, "status": status })
            }
        }
    }
}

impl ResponseAnswer {
    pub(crate) fn new(request: &ChatRequest, model: Handle, prompt: &str, prompt_tokens: usize, echo: Echo) -> ResponseAnswer {
        ResponseAnswer {
            id: id("resp_"),
            created: now(),
            echo,
            choice: Choice::new(request.reader(prompt)),
            prompt_tokens,
            items: Vec::new(),
            is_open: false,
            sequence: 0,
            model,
        }
    }

    fn status(&self) -> &'static str {
        match self.choice.finish {
            None => "in_progress",
            Some(Finish::Length) => "incomplete",
            Some(Finish::Stop | Finish::Calls) => "completed",
        }
    }

    /// The response as far as it is.
    fn to_json(&self) -> Json {
        let status = self.status();
        let incomplete = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let usage = self.choice.finish.map(|_| {
            json!({
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": { "cached_tokens": self.choice.cached, "cache_write_tokens": 0 },
                "output_tokens": self.choice.tokens,
                "output_tokens_details": { "reasoning_tokens": self.choice.thinking_tokens },
                "total_tokens": self.prompt_tokens + self.choice.tokens,
            })
        });
        let last = self.items.len().saturating_sub(1);
        let whole = |at: usize| if at == last { status } else { "completed" };
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": incomplete,
            "instructions": self.echo.instructions,
            "metadata": self.echo.metadata,
            "model": self.model.name,
            "output": self.items.iter().enumerate().map(|(at, item)| item.to_json(whole(at))).collect::<Json>(),
            "parallel_tool_calls": self.echo.parallel_tool_calls,
            "tool_choice": self.echo.tool_choice,
            "tools": self.echo.tools,
            "store": false,
            "usage": usage,
        })
    }

    /// Writes an event with its number.
    fn tell(&mut self, name: &str, mut data: Json, frames: &mut Frames) {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        frames.event(name, &data);
    }

    /// Writes an event about the last item, in its only part if it has parts.
    fn tell_of_item(&mut self, name: &str, mut data: Json, frames: &mut Frames) {
        let Some(item) = self.items.last() else { return };
        data["item_id"] = item.id.as_str().into();
        data["output_index"] = (self.items.len() - 1).into();
        if !matches!(item.kind, Kind::Call { .. }) {
            data["content_index"] = 0.into();
        }
        self.tell(name, data, frames);
    }

    fn open(&mut self, item: Item, frames: &mut Frames) {
        self.close("completed", frames);
        let (told, has_part) = (item.to_json("in_progress"), item.kind == Kind::Message);
        let part = item.part();
        self.items.push(item);
        self.is_open = true;
        self.tell("response.output_item.added", json!({ "output_index": self.items.len() - 1, "item": told }), frames);
        if has_part {
            self.tell_of_item("response.content_part.added", json!({ "part": part }), frames);
        }
    }

    fn close(&mut self, status: &str, frames: &mut Frames) {
        let Some(item) = self.items.last().filter(|_| self.is_open).cloned() else { return };
        self.is_open = false;
        match &item.kind {
            Kind::Reasoning => self.tell_of_item("response.reasoning_text.done", json!({ "text": item.text }), frames),
            Kind::Message => {
                self.tell_of_item("response.output_text.done", json!({ "text": item.text, "logprobs": [] }), frames);
                self.tell_of_item("response.content_part.done", json!({ "part": item.part() }), frames);
            }
            Kind::Call { name, .. } => {
                let whole = json!({ "arguments": item.text, "name": name });
                self.tell_of_item("response.function_call_arguments.done", whole, frames);
            }
        }
        let told = json!({ "output_index": self.items.len() - 1, "item": item.to_json(status) });
        self.tell("response.output_item.done", told, frames);
    }

    fn add(&mut self, delta: Delta, frames: &mut Frames) {
        let (kind, text) = match delta {
            Delta::Thinking(text) => (Kind::Reasoning, text),
            Delta::Content(text) => (Kind::Message, text),
            Delta::Call { id: call_id, name, .. } => {
                let item = Item { id: id("fc_"), text: String::new(), kind: Kind::Call { call_id, name } };
                return self.open(item, frames);
            }
            Delta::Arguments { text, .. } => {
                if let Some(item) = self.items.last_mut() {
                    item.text.push_str(&text);
                }
                return self.tell_of_item("response.function_call_arguments.delta", json!({ "delta": text }), frames);
            }
        };
        if !self.is_open || self.items.last().is_none_or(|item| item.kind != kind) {
            let prefix = if kind == Kind::Message { "msg_" } else { "rs_" };
            self.open(Item { id: id(prefix), text: String::new(), kind: kind.clone() }, frames);
        }
        if let Some(item) = self.items.last_mut() {
            item.text.push_str(&text);
        }
        match kind {
            Kind::Message => self.tell_of_item("response.output_text.delta", json!({ "delta": text, "logprobs": [] }), frames),
            _ => self.tell_of_item("response.reasoning_text.delta", json!({ "delta": text }), frames),
        }
    }
}

impl Whole for ResponseAnswer {
    type Update = JobUpdate;

    fn take(&mut self, update: JobUpdate) -> Result<bool> {
        self.update(update, &mut Frames::default())
    }

    fn into_response(self) -> Response {
        reply::json(&self.to_json())
    }
}

impl Events for ResponseAnswer {
    type Update = JobUpdate;
    type Whole = ResponseAnswer;

    fn whole(self) -> ResponseAnswer {
        self
    }

    fn begin(&mut self, frames: &mut Frames) {
        for name in ["response.created", "response.in_progress"] {
            self.tell(name, json!({ "response": self.to_json() }), frames);
        }
    }

    fn update(&mut self, (_, update): JobUpdate, frames: &mut Frames) -> Result<bool> {
        let mut deltas = Vec::new();
        self.choice.take(update, &mut deltas)?;
        deltas.into_iter().for_each(|delta| self.add(delta, frames));
        Ok(self.choice.finish.is_some())
    }

    fn end(&mut self, frames: &mut Frames) {
        let status = self.status();
        self.close(status, frames);
        self.tell(&format!("response.{status}"), json!({ "response": self.to_json() }), frames);
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.event("error", &error.to_json());
    }
}
