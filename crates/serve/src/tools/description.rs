//! Tools for chat templates without support for tools: messages describe them.

use flambeau::text::message;
use serde_json::{Value as Json, json};

use super::detect::ToolFormat;

/// Place of the tool description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptionPlace {
    /// The system message.
    System,
    /// The first user message, because the template takes no system message.
    User,
    /// The field `tools` of the system message, as JSON text, for Phi-4-mini's template.
    Field,
}

const BEFORE: &str = "You can call these functions, described by one JSON object a line:";
const AFTER: &str = "To call a function, write its name and arguments as JSON between tags, and nothing after them:\n\
    <tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"KEY\": \"VALUE\"}}\n</tool_call>\n\
    The result follows between <tool_response> and </tool_response>. Answer in plain text if you need no function.";

impl ToolFormat {
    /// Adds tool descriptions to the messages and converts results to user messages. Calls are
    /// already part of the texts.
    pub(super) fn describe_tools(place: DescriptionPlace, messages: Vec<Json>, tools: Option<&[Json]>) -> Vec<Json> {
        let mut messages = if place == DescriptionPlace::Field { messages } else { results_as_text(messages) };
        let Some(tools) = tools.filter(|tools| !tools.is_empty()) else { return messages };
        if place == DescriptionPlace::Field {
            if messages.first().is_none_or(|message| message["role"] != "system") {
                messages.insert(0, message("system", ""));
            }
            let functions: Vec<&Json> = tools.iter().map(|tool| &tool["function"]).collect();
            messages[0]["tools"] = json!(functions).to_string().into();
            return messages;
        }
        let lines: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
        let description = format!("{BEFORE}\n{}\n{AFTER}", lines.join("\n"));
        let (role, found) = match place {
            DescriptionPlace::System => ("system", messages.first_mut().filter(|message| message["role"] == "system")),
            DescriptionPlace::User | DescriptionPlace::Field => {
                ("user", messages.iter_mut().find(|message| message["role"] == "user"))
            }
        };
        let Some(found) = found else {
            messages.insert(0, message(role, &description));
            return messages;
        };
        let text = found["content"].as_str().unwrap_or_default();
        let parts = if place == DescriptionPlace::System { [text, &description] } else { [&description, text] };
        found["content"] = parts.join("\n\n").into();
        messages
    }
}

/// Converts results to user messages; consecutive results are merged.
fn results_as_text(messages: Vec<Json>) -> Vec<Json> {
    let mut out: Vec<Json> = Vec::with_capacity(messages.len());
    let mut follows = false;
    for message in messages {
        let is_result = message["role"] == "tool";
        if !is_result {
            out.push(message);
        } else {
            let text = format!("<tool_response>\n{}\n</tool_response>", message["content"].as_str().unwrap_or_default());
            match out.last_mut().filter(|_| follows) {
                Some(last) => last["content"] = format!("{}\n{text}", last["content"].as_str().unwrap_or_default()).into(),
                None => out.push(json!({ "role": "user", "content": text })),
            }
        }
        follows = is_result;
    }
    out
}
