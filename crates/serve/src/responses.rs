//! `/v1/responses`, OpenAI's newer conversation protocol. Requests are converted to chat
//! completions. A request carries its whole conversation or continues a stored response.

mod item;
mod items;
mod request;
mod routes;
mod tools;

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Value as Json, json};

use self::{
    item::{Item, Kind},
    tools::{CallForm, custom_input},
};
pub(crate) use self::{
    request::{Echo, to_chat},
    routes::{cancel, delete, get, input_items},
};
use crate::{
    answer::{Choice, Finish},
    error::{ApiError, Result},
    ids::unique_id,
    keys::Caller,
    model::{Handle, now},
    openai::chat::ChatRequest,
    reply::{self, Events, Frames, ResponseBuilder},
    response_store::ResponseStore,
    tools::Delta,
    worker::JobUpdate,
};

/// Stored responses that a caller may continue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past<'a> {
    pub(crate) store: &'a ResponseStore,
    pub(crate) owner: Caller,
}

impl Past<'_> {
    /// Items of the conversation up to a response.
    fn conversation(&self, id: &str) -> Result<Vec<Json>> {
        let missing = || {
            let message = format!("the previous response {id:?} is not kept here");
            ApiError::coded("previous_response_id", "previous_response_not_found", message)
        };
        self.store.conversation(self.owner, id).ok_or_else(missing)
    }

    /// The item with the referenced ID.
    fn item(&self, param: &str, id: &Json) -> Result<Json> {
        let found = id.as_str().and_then(|id| self.store.item(self.owner, id));
        found.ok_or_else(|| ApiError::value(&format!("{param}.id"), format!("the item {id} is not kept here")))
    }
}

/// Builds the response to a request from its updates.
#[derive(Debug)]
pub(crate) struct ResponseAnswer {
    store: Arc<ResponseStore>,
    owner: Caller,
    id: String,
    created: u64,
    model: Handle,
    echo: Echo,
    choice: Choice,
    prompt_tokens: usize,
    /// Output items so far; the last one may be open.
    items: Vec<Item>,
    is_open: bool,
    /// Sequence number of the next event.
    sequence: usize,
}

impl ResponseAnswer {
    /// Creates an empty response. The store keeps it for `owner` if requested.
    pub(crate) fn new(
        request: &ChatRequest,
        model: Handle,
        prompt: &str,
        prompt_tokens: usize,
        echo: Echo,
        (store, owner): (Arc<ResponseStore>, Caller),
    ) -> ResponseAnswer {
        ResponseAnswer {
            store,
            owner,
            id: unique_id("resp_"),
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

    /// The response so far.
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
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": self.choice.finish.map(|_| now()),
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": incomplete,
            "model": self.model.name,
            "output": self.items.iter().enumerate().map(|(at, item)| item.to_json(whole(at))).collect::<Json>(),
            "previous_response_id": self.echo.previous,
            "service_tier": "default",
            "store": self.echo.input.is_some(),
            "usage": usage,
        });
        if let Some(response) = response.as_object_mut() {
            response.extend(self.echo.fields.clone());
        }
        response
    }

    /// The complete response, stored if requested.
    fn finish(&mut self) -> Json {
        let response = self.to_json();
        if let Some(input) = self.echo.input.take() {
            self.store.put(self.owner, self.echo.previous.clone(), input, response.clone());
        }
        response
    }

    /// Writes an event with its sequence number.
    fn emit(&mut self, name: &str, mut data: Json, frames: &mut Frames) {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        frames.event(name, &data);
    }

    /// Writes an event about the last item and its part, if it has one.
    fn emit_for_item(&mut self, name: &str, mut data: Json, frames: &mut Frames) {
        let Some(item) = self.items.last() else { return };
        data["item_id"] = item.id.as_str().into();
        data["output_index"] = (self.items.len() - 1).into();
        match item.kind {
            Kind::Reasoning { summarizes: true } => data["summary_index"] = 0.into(),
            Kind::Reasoning { .. } | Kind::Message => data["content_index"] = 0.into(),
            Kind::Call { .. } => {}
        }
        self.emit(name, data, frames);
    }

    /// Whether a summary of the thoughts is requested.
    fn summarizes(&self) -> bool {
        let wish = |name: &str| self.echo.fields.get("reasoning").and_then(|reasoning| reasoning.get(name)?.as_str());
        ["summary", "generate_summary"].into_iter().filter_map(wish).any(|wish| wish != "none")
    }

    fn open(&mut self, item: Item, frames: &mut Frames) {
        self.close("completed", frames);
        let (told, part, kind) = (item.to_json("in_progress"), item.part(), item.kind.clone());
        self.items.push(item);
        self.is_open = true;
        self.emit("response.output_item.added", json!({ "output_index": self.items.len() - 1, "item": told }), frames);
        match kind {
            Kind::Message => self.emit_for_item("response.content_part.added", json!({ "part": part }), frames),
            Kind::Reasoning { summarizes: true } => {
                self.emit_for_item("response.reasoning_summary_part.added", json!({ "part": part }), frames);
            }
            Kind::Reasoning { .. } | Kind::Call { .. } => {}
        }
    }

    fn close(&mut self, status: &str, frames: &mut Frames) {
        let Some(item) = self.items.last().filter(|_| self.is_open).cloned() else { return };
        self.is_open = false;
        match &item.kind {
            Kind::Reasoning { summarizes: false } => {
                self.emit_for_item("response.reasoning_text.done", json!({ "text": item.text }), frames);
            }
            Kind::Reasoning { summarizes: true } => {
                self.emit_for_item("response.reasoning_summary_text.done", json!({ "text": item.text }), frames);
                self.emit_for_item("response.reasoning_summary_part.done", json!({ "part": item.part() }), frames);
            }
            Kind::Message => {
                self.emit_for_item("response.output_text.done", json!({ "text": item.text, "logprobs": [] }), frames);
                self.emit_for_item("response.content_part.done", json!({ "part": item.part() }), frames);
            }
            Kind::Call { name, form: CallForm::Function | CallForm::Grouped(_), .. } => {
                let whole = json!({ "arguments": item.text, "name": name });
                self.emit_for_item("response.function_call_arguments.done", whole, frames);
            }
            Kind::Call { form: CallForm::Custom, .. } => {
                let input = custom_input(&item.text);
                self.emit_for_item("response.custom_tool_call_input.delta", json!({ "delta": input }), frames);
                self.emit_for_item("response.custom_tool_call_input.done", json!({ "input": input }), frames);
            }
            Kind::Call { .. } => {}
        }
        let told = json!({ "output_index": self.items.len() - 1, "item": item.to_json(status) });
        self.emit("response.output_item.done", told, frames);
    }

    fn add(&mut self, delta: Delta, frames: &mut Frames) {
        let (kind, text) = match delta {
            Delta::Thinking(text) => (Kind::Reasoning { summarizes: self.summarizes() }, text),
            Delta::Content(text) => (Kind::Message, text),
            Delta::Call { id: call_id, name, .. } => {
                let form = self.echo.forms.of(&name);
                return self.open(Item::new(Kind::Call { call_id, name, form }), frames);
            }
            Delta::Arguments { text, .. } => return self.add_arguments(text, frames),
        };
        if !self.is_open || self.items.last().is_none_or(|item| item.kind != kind) {
            self.open(Item::new(kind.clone()), frames);
        }
        if let Some(item) = self.items.last_mut() {
            item.text.push_str(&text);
        }
        match kind {
            Kind::Message => self.emit_for_item("response.output_text.delta", json!({ "delta": text, "logprobs": [] }), frames),
            Kind::Reasoning { summarizes: true } => {
                self.emit_for_item("response.reasoning_summary_text.delta", json!({ "delta": text }), frames);
            }
            _ => self.emit_for_item("response.reasoning_text.delta", json!({ "delta": text }), frames),
        }
    }

    /// Appends to a call's arguments. Calls of other kinds are sent when they are complete.
    fn add_arguments(&mut self, text: String, frames: &mut Frames) {
        let Some(item) = self.items.last_mut() else { return };
        item.text.push_str(&text);
        if let Kind::Call { form: CallForm::Function | CallForm::Grouped(_), .. } = item.kind {
            self.emit_for_item("response.function_call_arguments.delta", json!({ "delta": text }), frames);
        }
    }
}

impl ResponseBuilder for ResponseAnswer {
    type Update = JobUpdate;

    fn take(&mut self, update: JobUpdate) -> Result<bool> {
        self.update(update, &mut Frames::default())
    }

    fn into_response(mut self) -> Response {
        reply::json(&self.finish())
    }
}

impl Events for ResponseAnswer {
    type Update = JobUpdate;
    type ResponseBuilder = ResponseAnswer;

    fn builder(self) -> ResponseAnswer {
        self
    }

    fn begin(&mut self, frames: &mut Frames) {
        for name in ["response.created", "response.in_progress"] {
            self.emit(name, json!({ "response": self.to_json() }), frames);
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
        let response = self.finish();
        self.emit(&format!("response.{status}"), json!({ "response": response }), frames);
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        let mut told = error.to_json();
        for name in ["code", "message", "param"] {
            told[name] = told["error"][name].clone();
        }
        self.emit("error", told, frames);
    }
}
