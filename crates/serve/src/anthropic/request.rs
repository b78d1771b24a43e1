//! Converts Anthropic's requests to OpenAI's format.

use serde_json::{Map, Value as Json, json};

use super::{blocks::add_message, tools};
use crate::{
    error::{ApiError, Result},
    hosted::HostedTools,
    json::{Fields, wrong},
};

/// Fields that both protocols share or that have no effect.
const SAME: [&str; 6] = ["temperature", "top_p", "top_k", "stream", "cache_prompt", "seed"];

/// Ignored fields: pricing, region and data retention.
const HARMLESS: [&str; 14] = [
    "anthropic_version",
    "betas",
    "billing_policy",
    "cache_control",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
    "anthropic_beta",
];

/// Edits of earlier turns. Each applies only above a prompt length, and is optional.
const EDITS: [&str; 3] = ["clear_tool_uses_20250919", "clear_thinking_20251015", "compact_20260112"];

/// Properties of a request that shape its response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseOptions {
    /// Whether the response omits thoughts.
    pub(super) omits_thoughts: bool,
    /// Whether the response lists the edits of earlier turns.
    pub(super) lists_edits: bool,
}

impl ResponseOptions {
    /// Response to a token count request.
    pub(crate) fn count(self, tokens: usize) -> Json {
        let mut count = json!({ "input_tokens": tokens });
        if self.lists_edits {
            count["context_management"] = json!({ "original_input_tokens": tokens });
        }
        count
    }
}

/// Converts a request to OpenAI's format and returns the properties that shape its response.
///
/// # Errors
/// A field is wrong or has no counterpart; the error names it.
pub(crate) fn to_openai(mut fields: Fields, hosted: &mut HostedTools) -> Result<(Fields, ResponseOptions)> {
    let tokens = fields.take("max_tokens").ok_or_else(|| ApiError::value("max_tokens", "`max_tokens` is missing"))?;
    let mut map = Map::new();
    for name in SAME {
        map.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    map.insert("max_tokens".into(), tokens);
    map.extend(fields.take("stop_sequences").map(|stop| ("stop".to_owned(), stop)));
    let options = conversation(fields, hosted, &mut map)?;
    Ok((Fields::of(map), options))
}

/// Converts a token count request, which has only the fields of a conversation, to OpenAI's format.
///
/// # Errors
/// As [`to_openai`].
pub(crate) fn to_count(fields: Fields, hosted: &mut HostedTools) -> Result<(Fields, ResponseOptions)> {
    let mut map = Map::new();
    let options = conversation(fields, hosted, &mut map)?;
    Ok((Fields::of(map), options))
}

/// Takes the fields of the conversation and of the response format; rejects all others.
fn conversation(mut fields: Fields, hosted: &mut HostedTools, map: &mut Map<String, Json>) -> Result<ResponseOptions> {
    map.insert("messages".into(), messages(&mut fields, hosted)?.into());
    if is_unfinished(&map["messages"]) {
        map.insert("continue_final_message".into(), true.into());
    }
    let tools = tools::to_openai(&fields.list("tools")?.unwrap_or_default(), hosted)?;
    choice(fields.object("tool_choice")?, !tools.is_empty(), map)?;
    if !tools.is_empty() {
        map.insert("tools".into(), tools.into());
    }
    if fields.list("mcp_servers")?.is_some_and(|servers| !servers.is_empty()) {
        hosted.drop_tool("mcp_servers", "mcp_servers")?;
    }
    let mut variables = Map::new();
    let omits_thoughts = thinking(fields.object("thinking")?, &mut variables)?;
    output(&mut fields, &mut variables, map)?;
    if !variables.is_empty() {
        map.insert("chat_template_kwargs".into(), variables.into());
    }
    let lists_edits = edits(fields.object("context_management")?)?;
    fields.finish(&HARMLESS)?;
    Ok(ResponseOptions { omits_thoughts, lists_edits })
}

fn messages(fields: &mut Fields, hosted: &mut HostedTools) -> Result<Vec<Json>> {
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        messages.push(json!({ "role": "system", "content": system }));
    }
    let list = fields.list("messages")?.ok_or_else(|| ApiError::value("messages", "`messages` is missing"))?;
    for (i, message) in list.iter().enumerate() {
        add_message(&format!("messages[{i}]"), message, &mut messages, hosted)?;
    }
    Ok(messages)
}

/// Whether the last message is the start of the answer.
fn is_unfinished(messages: &Json) -> bool {
    let last = messages.as_array().and_then(|messages| messages.last());
    last.is_some_and(|last| last["role"] == "assistant" && last["tool_calls"].is_null())
}

fn choice(choice: Option<Map<String, Json>>, has_tools: bool, map: &mut Map<String, Json>) -> Result<()> {
    let Some(choice) = choice.map(Json::Object) else { return Ok(()) };
    let told = match (choice["type"].as_str(), &choice["name"]) {
        (Some(kind @ ("auto" | "none")), _) => json!(kind),
        (Some("any"), _) => json!("required"),
        (Some("tool"), name) => json!({ "type": "function", "function": { "name": name } }),
        _ => return Err(wrong("tool_choice", "of type auto, any, none or tool", &choice)),
    };
    map.insert("tool_choice".into(), told);
    if choice["disable_parallel_tool_use"] == true && has_tools {
        map.insert("parallel_tool_calls".into(), false.into());
    }
    Ok(())
}

/// Reads the thinking mode; returns whether the response omits thoughts.
fn thinking(thinking: Option<Map<String, Json>>, variables: &mut Map<String, Json>) -> Result<bool> {
    let Some(thinking) = thinking.map(Json::Object) else { return Ok(false) };
    let thinks = match thinking["type"].as_str() {
        Some("enabled" | "adaptive" | "between_tools") => true,
        Some("disabled") => false,
        _ => return Err(wrong("thinking", "of type enabled, adaptive or disabled", &thinking)),
    };
    variables.insert("enable_thinking".into(), thinks.into());
    Ok(thinking["display"] == "omitted")
}

/// Reads the response format and the effort. Templates without an effort setting ignore it.
fn output(fields: &mut Fields, variables: &mut Map<String, Json>, map: &mut Map<String, Json>) -> Result<()> {
    let mut config = Fields::of(fields.object("output_config")?.unwrap_or_default());
    if let Some(effort) = config.text("effort")? {
        // Templates know three steps.
        let effort = if ["xhigh", "max"].contains(&effort.as_str()) { "high".to_owned() } else { effort };
        variables.insert("reasoning_effort".into(), effort.into());
    }
    let format = config.object("format")?.or(fields.object("output_format")?);
    if let Some(format) = format.map(Json::Object) {
        if format["type"] != "json_schema" {
            return Err(wrong("output_config.format", "of type json_schema", &format));
        }
        let schema = json!({ "name": "answer", "schema": format["schema"] });
        map.insert("response_format".into(), json!({ "type": "json_schema", "json_schema": schema }));
    }
    config.finish(&["task_budget"]).map_err(|error| error.inside("output_config"))
}

/// Checks the requested edits of earlier turns; returns whether there are any. The server applies
/// none.
fn edits(management: Option<Map<String, Json>>) -> Result<bool> {
    let Some(management) = management.map(Json::Object) else { return Ok(false) };
    for (i, edit) in management["edits"].as_array().into_iter().flatten().enumerate() {
        if !edit["type"].as_str().is_some_and(|kind| EDITS.contains(&kind)) {
            let param = format!("context_management.edits[{i}].type");
            return Err(ApiError::unsupported(&param, format!("`{param}` {} is not supported", edit["type"])));
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(body: &Json, drops: bool) -> Result<(Fields, ResponseOptions, Vec<String>)> {
        let mut hosted = HostedTools::new(drops);
        let (fields, options) = to_openai(Fields::parse(body.to_string().as_bytes()).unwrap(), &mut hosted)?;
        Ok((fields, options, hosted.dropped()))
    }

    fn convert(body: Json) -> Result<Fields> {
        ask(&body, false).map(|(fields, ..)| fields)
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
        assert_eq!(param(json!({ "tools": [{ "type": "web_search_20260209", "name": "web_search" }] })), "tools[0].type");
        assert_eq!(param(json!({ "mcp_servers": [{ "type": "url" }] })), "mcp_servers");
        assert_eq!(param(json!({ "messages": [{ "role": "narrator", "content": "x" }] })), "messages[0].role");
        assert_eq!(param(json!({ "output_config": { "tone": "x" } })), "output_config.tone");
        let edits = json!({ "edits": [{ "type": "clear_thinking_20251015" }, { "type": "forget" }] });
        assert_eq!(param(json!({ "context_management": edits })), "context_management.edits[1].type");
        let pdf = json!([{ "type": "document", "source": { "type": "base64", "media_type": "application/pdf", "data": "" } }]);
        assert_eq!(param(json!({ "messages": [{ "role": "user", "content": pdf }] })), "messages[0].content[0].source");
        let image = json!([{ "role": "user", "content": [{ "type": "image" }] }]);
        assert_eq!(param(json!({ "messages": image })), "messages[0].content[0]");
    }

    #[test]
    fn what_agents_send_is_taken() {
        let body = json!({
            "max_tokens": 9, "cache_control": { "type": "ephemeral" }, "inference_geo": "eu", "speed": "standard", "diagnostics": {},
            "system": [{ "type": "text", "text": "be brief", "cache_control": { "type": "ephemeral", "ttl": "1h" } }],
            "thinking": { "type": "adaptive", "display": "omitted" },
            "output_config": { "effort": "max", "format": { "type": "json_schema", "schema": { "type": "object" } } },
            "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
            "tools": [
                { "name": "f", "input_schema": { "type": "object" }, "cache_control": {}, "strict": true, "eager_input_streaming": true,
                  "defer_loading": false, "input_examples": [] },
                { "type": "bash_20250124", "name": "bash" },
                { "type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100 },
                { "type": "memory_20250818", "name": "memory" },
                { "type": "web_search_20260209", "name": "web_search" },
            ],
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "a", "cache_control": { "type": "ephemeral" } }] },
                { "role": "system", "content": [{ "type": "text", "text": "the user is in a hurry" }] },
                { "role": "assistant", "content": [
                    { "type": "server_tool_use", "id": "1", "name": "web_search", "input": {} },
                    { "type": "web_search_tool_result", "tool_use_id": "1", "content": [] },
                    { "type": "text", "text": "So" },
                ] },
            ],
        });
        assert_eq!(ask(&body, false).unwrap_err().param.as_deref(), Some("messages[2].content[0].type"));
        let (mut fields, options, dropped) = ask(&body, true).unwrap();
        assert_eq!(options, ResponseOptions { omits_thoughts: true, lists_edits: true });
        assert_eq!(dropped, ["server_tool_use", "web_search_tool_result", "web_search_20260209"]);
        let tools = fields.list("tools").unwrap().unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["f", "bash", "str_replace_based_edit_tool", "memory"]);
        assert!(tools.iter().all(|tool| tool["function"]["parameters"]["type"] == "object"));
        assert_eq!(fields.take("response_format").unwrap()["json_schema"]["schema"], json!({ "type": "object" }));
        assert_eq!(fields.take("chat_template_kwargs").unwrap(), json!({ "enable_thinking": true, "reasoning_effort": "high" }));
        assert_eq!(fields.take("continue_final_message"), Some(json!(true)));
        let messages = fields.list("messages").unwrap().unwrap();
        assert_eq!(messages[2], json!({ "role": "system", "content": "the user is in a hurry" }));
    }

    #[test]
    fn documents_and_failed_calls_are_text() {
        let content = json!([
            { "type": "document", "title": "a \"b\"", "source": { "type": "text", "media_type": "text/plain", "data": "one" }, "citations": { "enabled": true } },
            { "type": "document", "source": { "type": "content", "content": [{ "type": "text", "text": "two" }] } },
            { "type": "search_result", "source": "x", "title": "y", "content": [{ "type": "text", "text": "three" }] },
            { "type": "text", "text": "sum up" },
        ]);
        let failed = json!([{ "type": "tool_result", "tool_use_id": "1", "is_error": true, "content": [{ "type": "text", "text": "no file" }] }]);
        let list = json!([{ "role": "user", "content": content }, { "role": "user", "content": failed }]);
        let mut fields = convert(json!({ "max_tokens": 1, "messages": list })).unwrap();
        let messages = fields.list("messages").unwrap().unwrap();
        assert_eq!(
            messages[0]["content"],
            "<document title=\"a &quot;b&quot;\">\none\n</document>\n<document>\ntwo\n</document>\n\
             <search_result source=\"x\" title=\"y\">\nthree\n</search_result>\nsum up"
        );
        assert_eq!(messages[1], json!({ "role": "tool", "tool_call_id": "1", "content": "Error: no file" }));
    }
}
