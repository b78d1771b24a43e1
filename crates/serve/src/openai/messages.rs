//! Converts messages of a conversation for templates.

use serde_json::{Map, Value as Json, json};

use crate::{
    error::{ApiError, Result},
    json::wrong,
};

/// Validates messages in OpenAI's format and converts them for templates: content becomes text,
/// `developer` becomes `system`, and call arguments become objects.
///
/// # Errors
/// The error names the message and the problem.
pub(crate) fn read(list: Vec<Json>) -> Result<Vec<Json>> {
    if list.is_empty() {
        return Err(ApiError::value("messages", "`messages` must not be empty"));
    }
    list.into_iter().enumerate().map(|(i, message)| one(&format!("messages[{i}]"), message)).collect()
}

fn one(param: &str, message: Json) -> Result<Json> {
    let Json::Object(mut message) = message else { return Err(wrong(param, "an object", &message)) };
    let role = message.get("role").and_then(Json::as_str).unwrap_or_default().to_owned();
    match role.as_str() {
        "developer" => _ = message.insert("role".into(), "system".into()),
        "system" | "user" | "assistant" | "tool" => {}
        _ => {
            let roles = "one of system, developer, user, assistant and tool";
            return Err(wrong(&format!("{param}.role"), roles, message.get("role").unwrap_or(&Json::Null)));
        }
    }
    let calls = if role == "assistant" { calls(param, &mut message)? } else { false };
    let thoughts = if role == "assistant" { thoughts(&mut message) } else { None };
    let content = match message.remove("content").unwrap_or(Json::Null) {
        Json::Null if calls || thoughts.is_some() => String::new(),
        content => text(&format!("{param}.content"), content)?,
    };
    if let Some(thoughts) = thoughts {
        // gpt-oss's template accepts calls with text or with `thinking`, but not with both.
        let names = if calls && !content.is_empty() { &THOUGHTS[..2] } else { &THOUGHTS };
        message.extend(names.iter().map(|name| ((*name).to_owned(), thoughts.clone())));
    }
    message.insert("content".into(), content.into());
    message.retain(|_, value| !value.is_null());
    Ok(Json::Object(message))
}

/// Field names for thoughts, in clients and templates.
const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Takes an answer's thoughts from the first non-empty field.
fn thoughts(message: &mut Map<String, Json>) -> Option<Json> {
    let found = THOUGHTS.map(|name| message.shift_remove(name));
    found.into_iter().flatten().find(|thoughts| thoughts.is_string())
}

/// Content as one text.
fn text(param: &str, content: Json) -> Result<String> {
    let parts = match content {
        Json::String(text) => return Ok(text),
        Json::Array(parts) => parts,
        other => return Err(wrong(param, "a text or a list of parts", &other)),
    };
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text" | "input_text" | "output_text"), Some(part)) => text.push_str(part),
            (Some(kind), _) if !["text", "input_text", "output_text"].contains(&kind) => {
                let message = format!("`{param}[{i}]` is of type {kind:?}, and the model takes text only");
                return Err(ApiError::unsupported(&format!("{param}[{i}].type"), message));
            }
            _ => return Err(wrong(&format!("{param}[{i}]"), "a part with a `type` and its `text`", part)),
        }
    }
    Ok(text)
}

/// Parses call arguments into objects; returns whether there are calls.
fn calls(param: &str, message: &mut Map<String, Json>) -> Result<bool> {
    let Some(calls) = message.get_mut("tool_calls").filter(|calls| !calls.is_null()) else { return Ok(false) };
    let param = format!("{param}.tool_calls");
    let Json::Array(calls) = calls else { return Err(wrong(&param, "a list", calls)) };
    for (i, call) in calls.iter_mut().enumerate() {
        let param = format!("{param}[{i}].function");
        let Some(function) = call.get_mut("function").and_then(Json::as_object_mut) else {
            return Err(ApiError::value(&param, format!("`{param}` must be an object")));
        };
        if !function.get("name").is_some_and(Json::is_string) {
            return Err(ApiError::value(&param, format!("`{param}.name` must be a text")));
        }
        let arguments = function.entry("arguments").or_insert_with(|| json!({}));
        if let Json::String(text) = arguments {
            // Invalid JSON stays text, as the model wrote it.
            let parsed = if text.trim().is_empty() { Ok(json!({})) } else { serde_json::from_str(text) };
            *arguments = parsed.unwrap_or_else(|_| Json::String(std::mem::take(text)));
        }
    }
    Ok(!calls.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_templates_want_them() {
        let messages = json!([
            { "role": "developer", "content": "be brief", "name": null },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" } },
                { "id": "2", "type": "function", "function": { "name": "f", "arguments": "no json" } },
            ] },
            { "role": "tool", "tool_call_id": "1", "content": "2" },
        ]);
        let Json::Array(list) = messages else { unreachable!() };
        let read = read(list).unwrap();
        assert_eq!(read[0], json!({ "role": "system", "content": "be brief" }));
        assert_eq!(read[1]["content"], "ab");
        assert_eq!(read[2]["content"], "");
        assert_eq!(read[2]["tool_calls"][0]["function"]["arguments"], json!({ "x": 1 }));
        assert_eq!(read[2]["tool_calls"][1]["function"]["arguments"], "no json");
        assert_eq!(read[3]["tool_call_id"], "1");
    }

    #[test]
    fn thoughts_reach_templates_by_each_name() {
        for name in THOUGHTS {
            let read = read(vec![json!({ "role": "assistant", "content": null, name: "hm" })]).unwrap();
            assert!(THOUGHTS.iter().all(|name| read[0][*name] == "hm") && read[0]["content"] == "", "{read:?}");
        }
        let calls = json!([{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } }]);
        let both = json!({ "role": "assistant", "content": "I look", "reasoning": "hm", "tool_calls": calls });
        let read = read(vec![both]).unwrap();
        assert_eq!((&read[0]["reasoning_content"], &read[0]["thinking"]), (&json!("hm"), &Json::Null));
    }

    #[test]
    fn what_is_no_message_is_named() {
        let param = |message: Json| read(vec![message]).unwrap_err().param.unwrap_or_default();
        assert_eq!(param(json!("x")), "messages[0]");
        assert_eq!(param(json!({ "role": "narrator", "content": "x" })), "messages[0].role");
        assert_eq!(param(json!({ "role": "user" })), "messages[0].content");
        assert_eq!(param(json!({ "role": "user", "content": [{ "type": "image_url" }] })), "messages[0].content[0].type");
        assert_eq!(param(json!({ "role": "user", "content": [{ "text": "x" }] })), "messages[0].content[0]");
        assert_eq!(param(json!({ "role": "assistant", "tool_calls": [{}] })), "messages[0].tool_calls[0].function");
        assert!(read(Vec::new()).is_err());
    }
}
