//! Requests for responses in the form of chat completions.

use serde_json::{Map, Value as Json, json};

use crate::{
    error::{ApiError, Result},
    json::{Fields, wrong},
};

/// Fields that both forms have.
const SAME: [&str; 8] =
    ["temperature", "top_p", "stream", "parallel_tool_calls", "cache_prompt", "seed", "chat_template_kwargs", "top_logprobs"];

/// Fields that change no result.
const HARMLESS: [&str; 8] = [
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options",
    "user",
];

/// Fields of the request that the response repeats.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    pub(super) instructions: Json,
    pub(super) metadata: Json,
    pub(super) tools: Json,
    pub(super) tool_choice: Json,
    pub(super) parallel_tool_calls: Json,
}

/// The request in the form of chat completions, and what its response repeats.
///
/// # Errors
/// A field is wrong, or refers to state that the server does not keep; the error names it.
pub(crate) fn to_chat(mut fields: Fields) -> Result<(Fields, Echo)> {
    let mut map = Map::new();
    for name in SAME {
        map.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    map.extend(fields.take("max_output_tokens").map(|value| ("max_completion_tokens".to_owned(), value)));
    let (instructions, metadata) = (fields.text("instructions")?, fields.take("metadata"));
    map.insert("messages".into(), messages(instructions.as_deref(), fields.take("input"))?.into());
    let tools = fields.list("tools")?.unwrap_or_default();
    if !tools.is_empty() {
        map.insert("tools".into(), tools.iter().enumerate().map(tool).collect::<Result<_>>()?);
    }
    let choice = fields.take("tool_choice");
    if let Some(choice) = &choice {
        map.insert("tool_choice".into(), tool_choice(choice));
    }
    format(&mut fields, &mut map)?;
    reasoning(&mut fields, &mut map)?;
    check_rest(&mut fields)?;
    fields.finish(&HARMLESS)?;
    let echo = Echo {
        instructions: instructions.into(),
        metadata: metadata.unwrap_or_else(|| json!({})),
        tools: tools.into(),
        tool_choice: choice.unwrap_or_else(|| "auto".into()),
        parallel_tool_calls: map.get("parallel_tool_calls").cloned().unwrap_or_else(|| true.into()),
    };
    Ok((Fields::of(map), echo))
}

/// Checks fields that only accept the default behaviour.
fn check_rest(fields: &mut Fields) -> Result<()> {
    for (name, plain) in [("truncation", json!("disabled")), ("background", json!(false))] {
        if let Some(value) = fields.take(name).filter(|value| *value != plain) {
            return Err(ApiError::unsupported(name, format!("`{name}` {value} is not supported")));
        }
    }
    let included = fields.list("include")?.unwrap_or_default();
    match included.iter().find(|what| **what != "reasoning.encrypted_content") {
        Some(what) => Err(ApiError::unsupported("include", format!("`include` of {what} is not supported"))),
        None => Ok(()),
    }
}

fn tool((i, tool): (usize, &Json)) -> Result<Json> {
    if tool["type"] != "function" {
        let param = format!("tools[{i}].type");
        return Err(ApiError::unsupported(&param, format!("`{param}` {} is not supported: only functions are", tool["type"])));
    }
    let function = json!({ "name": tool["name"], "description": tool["description"], "parameters": tool["parameters"] });
    Ok(json!({ "type": "function", "function": function }))
}

fn tool_choice(choice: &Json) -> Json {
    if choice["type"] == "function" {
        json!({ "type": "function", "function": { "name": choice["name"] } })
    } else {
        choice.clone()
    }
}

fn format(fields: &mut Fields, map: &mut Map<String, Json>) -> Result<()> {
    let mut text = fields.object("text")?.unwrap_or_default();
    if let Some(format) = text.remove("format").filter(|format| !format.is_null()) {
        let told = if format["type"] == "json_schema" {
            json!({ "type": "json_schema", "json_schema": { "name": format["name"], "schema": format["schema"] } })
        } else {
            format
        };
        map.insert("response_format".into(), told);
    }
    match text.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => Err(ApiError::unsupported(&format!("text.{name}"), format!("`text.{name}` is not supported"))),
        None => Ok(()),
    }
}

fn reasoning(fields: &mut Fields, map: &mut Map<String, Json>) -> Result<()> {
    let Some(reasoning) = fields.object("reasoning")? else { return Ok(()) };
    if let Some(effort) = reasoning.get("effort").filter(|effort| !effort.is_null()) {
        map.insert("reasoning_effort".into(), effort.clone());
    }
    Ok(())
}

/// The conversation: instructions, and a text or a list of items.
fn messages(instructions: Option<&str>, input: Option<Json>) -> Result<Vec<Json>> {
    let mut messages: Vec<Json> = instructions.iter().map(|text| json!({ "role": "system", "content": text })).collect();
    match input {
        None => return Err(ApiError::value("input", "`input` is missing")),
        Some(Json::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Json::Array(items)) => {
            for (i, item) in items.into_iter().enumerate() {
                add_item(&format!("input[{i}]"), &item, &mut messages)?;
            }
        }
        Some(other) => return Err(wrong("input", "a text or a list of items", &other)),
    }
    Ok(messages)
}

fn add_item(param: &str, item: &Json, out: &mut Vec<Json>) -> Result<()> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => out.push(json!({ "role": item["role"], "content": item["content"] })),
        // The model's own thoughts are not repeated to it.
        "reasoning" => {}
        "function_call" => {
            let function = json!({ "name": item["name"], "arguments": item["arguments"] });
            let call = json!({ "id": item["call_id"], "type": "function", "function": function });
            match out.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) => match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                },
                None => out.push(json!({ "role": "assistant", "content": "", "tool_calls": [call] })),
            }
        }
        "function_call_output" => {
            out.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": item["output"] }));
        }
        kind => {
            let param = format!("{param}.type");
            return Err(ApiError::unsupported(&param, format!("`{param}` {kind:?} is not supported")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(body: Json) -> Result<(Fields, Echo)> {
        to_chat(Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn items_become_messages() {
        let body = json!({
            "instructions": "be brief", "max_output_tokens": 7, "reasoning": { "effort": "none", "summary": "auto" },
            "text": { "format": { "type": "json_schema", "name": "n", "schema": { "type": "object" }, "strict": true } },
            "input": [
                { "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
                { "type": "reasoning", "id": "rs_1", "summary": [] },
                { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" },
                { "type": "function_call", "call_id": "2", "name": "f", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "1", "output": "r" },
            ],
        });
        let (mut fields, echo) = convert(body).unwrap();
        let messages = fields.list("messages").unwrap().unwrap();
        let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(messages[2]["tool_calls"].as_array().unwrap().len(), 2);
        assert_eq!(fields.take("response_format").unwrap()["json_schema"]["schema"], json!({ "type": "object" }));
        assert_eq!((fields.take("max_completion_tokens"), fields.take("reasoning_effort")), (Some(json!(7)), Some(json!("none"))));
        assert_eq!((echo.instructions, echo.tool_choice), (json!("be brief"), json!("auto")));
    }

    #[test]
    fn what_is_not_kept_is_named() {
        let param = |more: Json| {
            let mut body = json!({ "input": "a" });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            convert(body).unwrap_err().param.unwrap()
        };
        assert_eq!(param(json!({ "previous_response_id": "resp_1" })), "previous_response_id");
        assert_eq!(param(json!({ "input": null })), "input");
        assert_eq!(param(json!({ "input": [{ "type": "item_reference" }] })), "input[0].type");
        assert_eq!(param(json!({ "truncation": "auto" })), "truncation");
        assert_eq!(param(json!({ "background": true })), "background");
        assert_eq!(param(json!({ "tools": [{ "type": "web_search" }] })), "tools[0].type");
        assert_eq!(param(json!({ "text": { "verbosity": "low" } })), "text.verbosity");
        assert_eq!(param(json!({ "include": ["message.output_text.logprobs"] })), "include");
    }
}
