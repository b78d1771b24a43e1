//! Converts input items to chat messages.

use serde_json::{Value as Json, json};

use super::tools::without_nulls;
use crate::{
    error::{ApiError, Result},
    hosted::HostedTools,
    json::wrong,
};

/// Parses the items of a request. A string is a user message.
///
/// # Errors
/// Fails if the input is missing or neither a string nor a list.
pub(super) fn list(input: Option<Json>) -> Result<Vec<Json>> {
    match input {
        None => Err(ApiError::value("input", "`input` is missing")),
        Some(Json::String(text)) => Ok(vec![json!({ "type": "message", "role": "user", "content": text })]),
        Some(Json::Array(items)) => Ok(items),
        Some(other) => Err(wrong("input", "a text or a list of items", &other)),
    }
}

/// Messages under construction.
#[derive(Debug, Default)]
pub(super) struct Messages {
    list: Vec<Json>,
    /// Thoughts that precede the next assistant message.
    thoughts: String,
}

impl Messages {
    /// Starts a conversation, with instructions if given.
    pub(super) fn new(instructions: Option<&str>) -> Messages {
        let list = instructions.iter().map(|text| json!({ "role": "system", "content": text })).collect();
        Messages { list, thoughts: String::new() }
    }

    pub(super) fn finish(self) -> Vec<Json> {
        self.list
    }

    /// Appends an item. Items of hosted tools go to `hosted`.
    ///
    /// # Errors
    /// Fails on an unknown kind of item, or on a hosted tool if the server rejects them.
    pub(super) fn add(&mut self, param: &str, item: &Json, hosted: &mut HostedTools) -> Result<()> {
        match item["type"].as_str().unwrap_or("message") {
            "message" => self.message(item),
            "reasoning" => {
                // Clients may send the summary alone.
                let lists = [&item["content"], &item["summary"]];
                let list = lists.into_iter().filter_map(Json::as_array).find(|list| !list.is_empty());
                let parts = list.into_iter().flatten();
                parts.filter_map(|part| part["text"].as_str()).for_each(|text| self.thoughts.push_str(text));
            }
            "function_call" => self.call(item, &item["name"], item["arguments"].clone()),
            "custom_tool_call" => self.call(item, &item["name"], json!({ "input": item["input"] })),
            "local_shell_call" => {
                let mut action = item["action"].as_object().cloned().unwrap_or_default();
                action.remove("type");
                self.call(item, &json!("local_shell"), without_nulls(action.into()));
            }
            "shell_call" => self.call(item, &json!("shell"), without_nulls(item["action"].clone())),
            "apply_patch_call" => self.call(item, &json!("apply_patch"), item["operation"].clone()),
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
                self.output(item, item["output"].clone());
            }
            "shell_call_output" => self.output(item, shell_output(&item["output"]).into()),
            "apply_patch_call_output" => {
                let text = [&item["status"], &item["output"]].map(|part| part.as_str().unwrap_or_default());
                self.output(item, text.join("\n").trim().into());
            }
            kind if HOSTED.contains(&kind) => hosted.drop_tool(&format!("{param}.type"), kind)?,
            kind => {
                let param = format!("{param}.type");
                return Err(ApiError::unsupported(&param, format!("`{param}` {kind:?} is not supported")));
            }
        }
        Ok(())
    }

    fn message(&mut self, item: &Json) {
        let mut message = json!({ "role": item["role"], "content": item["content"] });
        self.think(&mut message);
        self.list.push(message);
    }

    /// Attaches pending thoughts to the assistant's message.
    fn think(&mut self, message: &mut Json) {
        let thoughts = std::mem::take(&mut self.thoughts);
        if message["role"] == "assistant" && !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.into();
        }
    }

    /// Appends a call to the assistant's message.
    fn call(&mut self, item: &Json, name: &Json, arguments: Json) {
        let function = json!({ "name": name, "arguments": arguments });
        let call = json!({ "id": call_id(item), "type": "function", "function": function });
        match self.list.last_mut().filter(|last| last["role"] == "assistant") {
            Some(last) => match last["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => last["tool_calls"] = json!([call]),
            },
            None => {
                let mut message = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
                self.think(&mut message);
                self.list.push(message);
            }
        }
    }

    fn output(&mut self, item: &Json, output: Json) {
        self.list.push(json!({ "role": "tool", "tool_call_id": call_id(item), "content": output }));
    }
}

/// Items of hosted tools, which have no text for the model.
const HOSTED: [&str; 12] = [
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// ID of a call. Outputs of the local shell use it as their own ID.
fn call_id(item: &Json) -> &Json {
    if item["call_id"].is_null() { &item["id"] } else { &item["call_id"] }
}

/// Output of shell commands with their exit codes.
fn shell_output(output: &Json) -> String {
    let one = |result: &Json| {
        let [out, error] = ["stdout", "stderr"].map(|name| result[name].as_str().unwrap_or_default());
        let end = match (result["outcome"]["type"].as_str(), &result["outcome"]["exit_code"]) {
            (Some("timeout"), _) => "(timed out)".to_owned(),
            (_, code) if code.is_number() => format!("(exit code {code})"),
            _ => String::new(),
        };
        [out, error, &end].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
    };
    match output {
        Json::Array(results) => results.iter().map(one).collect::<Vec<_>>().join("\n"),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}
