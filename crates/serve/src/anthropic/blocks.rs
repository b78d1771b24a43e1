//! Converts messages of content blocks to OpenAI's format.

use serde_json::{Value as Json, json};

use crate::{
    error::{ApiError, Result},
    hosted::HostedTools,
    json::wrong,
};

/// Appends a message. Its blocks may become several messages in OpenAI's format, tool results
/// first. Blocks of hosted tools go to `hosted`.
///
/// # Errors
/// Names the role or block that is wrong or not supported.
pub(super) fn add_message(param: &str, message: &Json, out: &mut Vec<Json>, hosted: &mut HostedTools) -> Result<()> {
    let role = message["role"].as_str().filter(|role| ["user", "assistant", "system"].contains(role));
    let role = role.ok_or_else(|| wrong(&format!("{param}.role"), "user, assistant or system", &message["role"]))?;
    let blocks = match &message["content"] {
        Json::Array(blocks) => blocks,
        text => {
            out.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
    };
    let (mut content, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for (i, block) in blocks.iter().enumerate() {
        let param = format!("{param}.content[{i}]");
        match block["type"].as_str() {
            Some("thinking") => thoughts.push_str(block["thinking"].as_str().unwrap_or_default()),
            Some("redacted_thinking") => {}
            Some("tool_use") if role == "assistant" => {
                let function = json!({ "name": block["name"], "arguments": block["input"] });
                calls.push(json!({ "id": block["id"], "type": "function", "function": function }));
            }
            Some("tool_result") if role == "user" => {
                let content = result(&format!("{param}.content"), block)?;
                out.push(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": content }));
            }
            Some(kind) if is_hosted(kind) => hosted.drop_tool(&format!("{param}.type"), kind)?,
            _ => content.push_str(&text(&param, block)?),
        }
    }
    if role == "user" && content.is_empty() && out.last().is_some_and(|last| last["role"] == "tool") {
        return Ok(());
    }
    let mut made = json!({ "role": role, "content": content });
    if !thoughts.is_empty() {
        made["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        made["tool_calls"] = calls.into();
    }
    out.push(made);
    Ok(())
}

/// Whether a block is a call of a hosted tool, or its result.
fn is_hosted(kind: &str) -> bool {
    matches!(kind, "server_tool_use" | "mcp_tool_use" | "container_upload")
        || kind != "tool_result" && kind.ends_with("_tool_result")
}

/// The result of a call as text. Templates have no field for a failed call.
fn result(param: &str, block: &Json) -> Result<String> {
    let content = match &block["content"] {
        Json::Null => String::new(),
        content => texts(param, content)?,
    };
    Ok(if block["is_error"] == true { format!("Error: {content}") } else { content })
}

/// Text of a string or of a list of blocks.
fn texts(param: &str, content: &Json) -> Result<String> {
    match content {
        Json::String(text) => Ok(text.clone()),
        Json::Array(blocks) => blocks.iter().enumerate().map(|(i, block)| text(&format!("{param}[{i}]"), block)).collect(),
        other => Err(wrong(param, "a text or a list of blocks", other)),
    }
}

/// Text of a block. Documents and search results are wrapped in tags.
fn text(param: &str, block: &Json) -> Result<String> {
    match block["type"].as_str() {
        Some("text") => Ok(block["text"].as_str().ok_or_else(|| wrong(param, "a block with its `text`", block))?.to_owned()),
        Some("document") => {
            let attributes = [("title", &block["title"]), ("context", &block["context"])];
            Ok(between_tags("document", &attributes, &document(param, &block["source"])?))
        }
        Some("search_result") => {
            let attributes = [("source", &block["source"]), ("title", &block["title"])];
            Ok(between_tags("search_result", &attributes, &texts(&format!("{param}.content"), &block["content"])?))
        }
        // The field `tools` defines the tool.
        Some("tool_reference") => Ok(block["tool_name"].as_str().unwrap_or_default().to_owned()),
        _ => {
            let message = format!("`{param}` of type {} is not supported: the model takes text only", block["type"]);
            Err(ApiError::unsupported(param, message))
        }
    }
}

/// The text of a document.
fn document(param: &str, source: &Json) -> Result<String> {
    let param = format!("{param}.source");
    match (source["type"].as_str(), &source["data"]) {
        (Some("text"), Json::String(data)) => Ok(data.clone()),
        (Some("text"), other) => Err(wrong(&format!("{param}.data"), "a text", other)),
        (Some("content"), _) => texts(&format!("{param}.content"), &source["content"]),
        _ => {
            let message = format!("`{param}` of type {} is not supported: documents must be text", source["type"]);
            Err(ApiError::unsupported(&param, message))
        }
    }
}

fn between_tags(tag: &str, attributes: &[(&str, &Json)], text: &str) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('"', "&quot;");
    let attributes = attributes.iter().filter_map(|(name, value)| Some(format!(" {name}=\"{}\"", escaped(value.as_str()?))));
    format!("<{tag}{}>\n{text}\n</{tag}>\n", attributes.collect::<String>())
}
