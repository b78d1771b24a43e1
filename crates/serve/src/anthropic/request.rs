//! Anthropic's requests in OpenAI's form.

use serde_json::{Map, Value as Json, json};

use crate::{
    error::{ApiError, Result},
    json::{Fields, wrong},
};

/// Fields of both protocols, or without effect.
const SAME: [&str; 6] = ["temperature", "top_p", "top_k", "stream", "cache_prompt", "seed"];

/// The request in OpenAI's form.
///
/// # Errors
/// A field is wrong or has no counterpart; the error names it.
pub(crate) fn to_openai(mut fields: Fields) -> Result<Fields> {
    let mut map = Map::new();
    for name in SAME {
        map.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    let tokens = fields.take("max_tokens").ok_or_else(|| ApiError::value("max_tokens", "`max_tokens` is missing"))?;
    map.insert("max_tokens".into(), tokens);
    map.extend(fields.take("stop_sequences").map(|stop| ("stop".to_owned(), stop)));
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        messages.push(json!({ "role": "system", "content": system }));
    }
    let list = fields.list("messages")?.ok_or_else(|| ApiError::value("messages", "`messages` is missing"))?;
    for (i, message) in list.into_iter().enumerate() {
        add_message(&format!("messages[{i}]"), message, &mut messages)?;
    }
    map.insert("messages".into(), messages.into());
    if let Some(tools) = fields.list("tools")? {
        map.insert("tools".into(), tools.iter().enumerate().map(tool).collect::<Result<_>>()?);
    }
    choice(fields.object("tool_choice")?, &mut map)?;
    thinking(fields.object("thinking")?, &mut map)?;
    fields.finish(&["metadata", "service_tier"])?;
    Ok(Fields::of(map))
}

fn tool((i, tool): (usize, &Json)) -> Result<Json> {
    if tool["type"].as_str().is_some_and(|kind| kind != "custom") {
        let param = format!("tools[{i}].type");
        return Err(ApiError::unsupported(&param, format!("`{param}` {} is not supported", tool["type"])));
    }
    let function = json!({ "name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"] });
    Ok(json!({ "type": "function", "function": function }))
}

fn choice(choice: Option<Map<String, Json>>, map: &mut Map<String, Json>) -> Result<()> {
    let Some(choice) = choice.map(Json::Object) else { return Ok(()) };
    let told = match (choice["type"].as_str(), &choice["name"]) {
        (Some(kind @ ("auto" | "none")), _) => json!(kind),
        (Some("any"), _) => json!("required"),
        (Some("tool"), name) => json!({ "type": "function", "function": { "name": name } }),
        _ => return Err(wrong("tool_choice", "of type auto, any, none or tool", &choice)),
    };
    map.insert("tool_choice".into(), told);
    if choice["disable_parallel_tool_use"] == true {
        map.insert("parallel_tool_calls".into(), false.into());
    }
    Ok(())
}

fn thinking(thinking: Option<Map<String, Json>>, map: &mut Map<String, Json>) -> Result<()> {
    let Some(thinking) = thinking.map(Json::Object) else { return Ok(()) };
    let thinks = match thinking["type"].as_str() {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        _ => return Err(wrong("thinking", "of type enabled or disabled", &thinking)),
    };
    map.insert("chat_template_kwargs".into(), json!({ "enable_thinking": thinks }));
    Ok(())
}

/// Adds a message. Its blocks may become several messages in OpenAI's form, tool results first.
fn add_message(param: &str, message: Json, out: &mut Vec<Json>) -> Result<()> {
    let role = message["role"].as_str().filter(|role| ["user", "assistant"].contains(role));
    let role = role.ok_or_else(|| wrong(&format!("{param}.role"), "user or assistant", &message["role"]))?.to_owned();
    let blocks = match &message["content"] {
        Json::Array(blocks) => blocks,
        text => {
            out.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
    };
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for (i, block) in blocks.iter().enumerate() {
        let param = format!("{param}.content[{i}]");
        match block["type"].as_str() {
            Some("text") => text.push_str(block["text"].as_str().ok_or_else(|| wrong(&param, "a block with its `text`", block))?),
            Some("thinking") => thoughts.push_str(block["thinking"].as_str().unwrap_or_default()),
            Some("redacted_thinking") => {}
            Some("tool_use") if role == "assistant" => {
                let function = json!({ "name": block["name"], "arguments": block["input"] });
                calls.push(json!({ "id": block["id"], "type": "function", "function": function }));
            }
            Some("tool_result") if role == "user" => {
                let content = if block["content"].is_null() { json!("") } else { block["content"].clone() };
                out.push(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": content }));
            }
            _ => {
                let message = format!("`{param}` of type {} is not supported: the model takes text only", block["type"]);
                return Err(ApiError::unsupported(&param, message));
            }
        }
    }
    if role == "user" && text.is_empty() && out.last().is_some_and(|last| last["role"] == "tool") {
        return Ok(());
    }
    let mut made = json!({ "role": role, "content": text });
    if !thoughts.is_empty() {
        made["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        made["tool_calls"] = calls.into();
    }
    out.push(made);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(body: Json) -> Result<Fields> {
        to_openai(Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn conversations_come_out_in_openais_form() {
        let body = json!({
            "max_tokens": 9, "system": [{ "type": "text", "text": "be brief" }], "stop_sequences": ["x"], "metadata": { "user_id": "u" },
            "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
            "thinking": { "type": "enabled", "budget_tokens": 1024 },
            "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": [{ "type": "thinking", "thinking": "hm" }, { "type": "tool_use", "id": "1", "name": "f", "input": { "k": 1 } }] },
                { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "1", "content": "r" }, { "type": "text", "text": "b" }] },
            ],
        });
        let mut fields = convert(body).unwrap();
        let messages = fields.list("messages").unwrap().unwrap();
        let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
        assert_eq!(
            (&messages[2]["reasoning_content"], &messages[2]["tool_calls"][0]["function"]["arguments"]),
            (&json!("hm"), &json!({ "k": 1 }))
        );
        assert_eq!((&messages[3]["content"], &messages[4]["content"]), (&json!("r"), &json!("b")));
        assert_eq!(fields.take("tools").unwrap()[0]["function"]["parameters"], json!({ "type": "object" }));
        assert_eq!(fields.take("tool_choice").unwrap(), json!({ "type": "function", "function": { "name": "f" } }));
        assert_eq!(fields.take("parallel_tool_calls").unwrap(), json!(false));
        assert_eq!(fields.take("chat_template_kwargs").unwrap(), json!({ "enable_thinking": true }));
    }

    #[test]
    fn what_has_no_counterpart_is_named() {
        let param = |more: Json| {
            let mut body = json!({ "max_tokens": 1, "messages": [] });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            convert(body).unwrap_err().param.unwrap()
        };
        assert_eq!(param(json!({ "max_tokens": null })), "max_tokens");
        assert_eq!(param(json!({ "n": 2 })), "n");
        assert_eq!(param(json!({ "tool_choice": { "type": "x" } })), "tool_choice");
        assert_eq!(param(json!({ "tools": [{ "type": "bash_20250124", "name": "bash" }] })), "tools[0].type");
        assert_eq!(param(json!({ "messages": [{ "role": "system", "content": "x" }] })), "messages[0].role");
        let image = json!([{ "role": "user", "content": [{ "type": "image" }] }]);
        assert_eq!(param(json!({ "messages": image })), "messages[0].content[0]");
    }
}
