//! Converts earlier calls to the shape that a template takes.

use serde_json::{Value as Json, json};

use super::{detect::ToolFormat, format::Ids, write::Call};

/// Number of calls in a conversation.
pub(crate) fn calls(messages: &[Json]) -> usize {
    messages.iter().filter_map(|message| message["tool_calls"].as_array()).map(Vec::len).sum()
}

impl ToolFormat {
    /// Converts calls, results and tools to the shape that the template takes.
    ///
    /// Templates may require one call per message, arguments as JSON text, or IDs of a certain
    /// form. Other templates get everything as text.
    pub(crate) fn history(&self, messages: Vec<Json>, tools: Option<Vec<Json>>) -> (Vec<Json>, Option<Vec<Json>>) {
        let mut messages = if self.several { messages } else { divide(messages) };
        self.name_calls(&mut messages);
        if self.no_text {
            messages = split_texts_from_calls(messages);
        }
        if self.is_written {
            name_results(&mut messages);
            messages.iter_mut().for_each(|message| self.write_calls(message));
        }
        if self.text_arguments {
            let calls = messages.iter_mut().filter_map(|message| message.get_mut("tool_calls")?.as_array_mut()).flatten();
            for arguments in calls.filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
                if !arguments.is_string() {
                    *arguments = arguments.to_string().into();
                }
            }
        }
        match self.description {
            Some(place) => (ToolFormat::describe_tools(place, messages, tools.as_deref()), None),
            None => (messages, tools),
        }
    }

    /// Writes a message's calls into its text.
    fn write_calls(&self, message: &mut Json) {
        let Some(message) = message.as_object_mut() else { return };
        let Some(Json::Array(calls)) = message.remove("tool_calls") else { return };
        let call = |call: &Json| Call {
            name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
            id: call["id"].as_str().unwrap_or_default().to_owned(),
            arguments: call["function"]["arguments"].as_object().cloned().unwrap_or_default(),
        };
        let written = self.format.write(&calls.iter().map(call).collect::<Vec<_>>());
        let text = message.get("content").and_then(Json::as_str).unwrap_or_default();
        let line = if text.is_empty() { "" } else { "\n" };
        message.insert("content".to_owned(), format!("{text}{line}{written}").into());
    }

    /// Gives calls IDs of the format, and gives results the IDs of their calls.
    fn name_calls(&self, messages: &mut [Json]) {
        let mut renamed: Vec<(Json, String)> = Vec::new();
        let mut count = 0;
        for message in messages {
            for call in message.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten() {
                let fitting = match self.format.ids {
                    Ids::Free | Ids::Written => None,
                    Ids::Nine => nine(&call["id"], count),
                    Ids::Counted => Some(format!("functions.{}:{count}", call["function"]["name"].as_str().unwrap_or_default())),
                };
                count += 1;
                if let (Some(id), Some(call)) = (fitting, call.as_object_mut()) {
                    renamed.push((call.insert("id".to_owned(), id.as_str().into()).unwrap_or_default(), id));
                }
            }
            if message["role"] == "tool"
                && let Some((_, id)) = renamed.iter().rev().find(|(old, _)| *old == message["tool_call_id"])
            {
                message["tool_call_id"] = id.as_str().into();
            }
        }
    }
}

/// Adds function names to results. Without names, templates find the function by its call.
fn name_results(messages: &mut [Json]) {
    let mut names: Vec<(Json, Json)> = Vec::new();
    for message in messages {
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        names.extend(calls.map(|call| (call["id"].clone(), call["function"]["name"].clone())));
        if message["role"] == "tool"
            && message["name"].is_null()
            && let Some((_, name)) = names.iter().rev().find(|(id, _)| *id == message["tool_call_id"])
        {
            message["name"] = name.clone();
        }
    }
}

/// Replaces an ID by one of nine letters or digits.
fn nine(id: &Json, count: usize) -> Option<String> {
    let fits = |id: &str| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if id.as_str().is_some_and(fits) { None } else { Some(format!("call{count:05}")) }
}

/// Moves the text of a message with calls into a message before it.
fn split_texts_from_calls(messages: Vec<Json>) -> Vec<Json> {
    let mut out = Vec::with_capacity(messages.len());
    for mut message in messages {
        if message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty()) {
            let text = message["content"].take();
            if text.as_str().is_some_and(|text| !text.is_empty()) {
                out.push(json!({ "role": "assistant", "content": text }));
            }
        }
        out.push(message);
    }
    out
}

/// Splits messages of several calls into one message per call, each followed by its result.
fn divide(messages: Vec<Json>) -> Vec<Json> {
    let mut out: Vec<Json> = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        if calls.len() < 2 {
            out.push(message);
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = messages.next_if(|next| next["role"] == "tool") {
            results.push(result);
        }
        for (number, call) in calls.into_iter().enumerate() {
            // Results without an id come in the order of their calls.
            let named = results.iter().position(|result| result["tool_call_id"] == call["id"]);
            message["tool_calls"] = json!([call]);
            out.push(message.clone());
            if number == 0 {
                message["content"] = "".into();
            }
            if !results.is_empty() {
                out.push(results.remove(named.unwrap_or(0)));
            }
        }
        out.extend(results);
    }
    out
}
