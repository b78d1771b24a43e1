//! Converts response requests to chat completions.

use serde_json::{Map, Value as Json, json};

use super::{
    Past,
    items::{self, Messages},
    tools::{self, CallForms},
};
use crate::{
    error::{ApiError, Result},
    hosted::HostedTools,
    json::{Fields, wrong},
    response_store::stored_item,
};

/// Fields shared by both protocols.
const SAME: [&str; 7] = ["temperature", "top_p", "stream", "parallel_tool_calls", "cache_prompt", "seed", "top_logprobs"];

/// Ignored fields.
const HARMLESS: [&str; 10] = [
    "context_management",
    "max_tool_calls",
    "metadata",
    "moderation",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "stream_options",
    "user",
];

/// Fields that the response echoes, with their defaults.
fn repeated(fields: &Fields) -> Map<String, Json> {
    let defaults = [
        ("instructions", Json::Null),
        ("max_output_tokens", Json::Null),
        ("max_tool_calls", Json::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("prompt_cache_key", Json::Null),
        ("reasoning", json!({ "effort": null, "summary": null })),
        ("safety_identifier", Json::Null),
        ("temperature", Json::Null),
        ("text", json!({ "format": { "type": "text" } })),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_p", Json::Null),
        ("truncation", json!("disabled")),
        ("user", Json::Null),
    ];
    defaults.into_iter().map(|(name, default)| (name.to_owned(), fields.get(name).cloned().unwrap_or(default))).collect()
}

/// Properties of a request that shape its response.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    /// Echoed fields.
    pub(super) fields: Map<String, Json>,
    pub(super) forms: CallForms,
    /// ID of the continued response.
    pub(super) previous: Option<String>,
    /// The request's own items, if the response is stored.
    pub(super) input: Option<Vec<Json>>,
}

/// Converts the request and returns the properties that shape its response.
///
/// # Errors
/// The error names a field that is invalid or refers to an unknown response.
pub(crate) fn to_chat(mut fields: Fields, past: Past<'_>, hosted: &mut HostedTools) -> Result<(Fields, Echo)> {
    let repeated = repeated(&fields);
    let mut map = Map::new();
    for name in SAME {
        map.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    map.extend(fields.take("max_output_tokens").map(|value| ("max_completion_tokens".to_owned(), value)));
    let mut messages = Messages::new(fields.text("instructions")?.as_deref());
    let previous = fields.text("previous_response_id")?;
    for item in previous.as_deref().map_or_else(|| Ok(Vec::new()), |id| past.conversation(id))? {
        messages.add("previous_response_id", &item, hosted)?;
    }
    let mut input = items::list(fields.take("input"))?;
    for (i, item) in input.iter_mut().enumerate() {
        let param = format!("input[{i}]");
        if item["type"] == "item_reference" {
            *item = past.item(&param, &item["id"])?;
        }
        messages.add(&param, item, hosted)?;
    }
    let stores = fields.flag("store")?.unwrap_or(true) && past.store.keeps();
    let input = stores.then(|| input.into_iter().map(stored_item).collect());
    map.insert("messages".into(), messages.finish().into());
    let (mut functions, forms) = tools::to_functions(&fields.list("tools")?.unwrap_or_default(), hosted)?;
    if let Some(choice) = fields.take("tool_choice") {
        map.insert("tool_choice".into(), tools::choose(&choice, &mut functions));
    }
    if !functions.is_empty() {
        map.insert("tools".into(), functions.into());
    }
    let mut variables = Map::new();
    text(&mut fields, &mut variables, &mut map)?;
    reasoning(&mut fields, &mut variables)?;
    variables.extend(fields.object("chat_template_kwargs")?.unwrap_or_default());
    map.insert("chat_template_kwargs".into(), variables.into());
    check_rest(&mut fields)?;
    fields.finish(&HARMLESS)?;
    Ok((Fields::of(map), Echo { fields: repeated, forms, previous, input }))
}

/// Checks fields that only accept the default behaviour.
fn check_rest(fields: &mut Fields) -> Result<()> {
    for (name, plain) in [("truncation", json!("disabled")), ("background", json!(false))] {
        if let Some(value) = fields.take(name).filter(|value| *value != plain) {
            return Err(ApiError::unsupported(name, format!("`{name}` {value} is not supported")));
        }
    }
    // All other parts belong to hosted tools and images, which no response has.
    let included = fields.list("include")?.unwrap_or_default();
    match included.iter().find(|what| **what == "message.output_text.logprobs") {
        Some(what) => Err(ApiError::unsupported("include", format!("`include` of {what} is not supported"))),
        None => Ok(()),
    }
}

/// Reads the text format and the verbosity. Templates without a verbosity setting ignore it.
fn text(fields: &mut Fields, variables: &mut Map<String, Json>, map: &mut Map<String, Json>) -> Result<()> {
    let mut text = fields.object("text")?.unwrap_or_default();
    if let Some(format) = text.remove("format").filter(|format| !format.is_null()) {
        let told = if format["type"] == "json_schema" {
            json!({ "type": "json_schema", "json_schema": { "name": format["name"], "schema": format["schema"] } })
        } else {
            format
        };
        map.insert("response_format".into(), told);
    }
    match text.remove("verbosity").unwrap_or_default() {
        Json::Null => {}
        Json::String(verbosity) => _ = variables.insert("verbosity".into(), verbosity.into()),
        other => return Err(wrong("text.verbosity", "low, medium or high", &other)),
    }
    match text.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => Err(ApiError::unsupported(&format!("text.{name}"), format!("`text.{name}` is not supported"))),
        None => Ok(()),
    }
}

/// Reads the effort. Templates without an effort setting ignore it.
fn reasoning(fields: &mut Fields, variables: &mut Map<String, Json>) -> Result<()> {
    match fields.object("reasoning")?.and_then(|mut reasoning| reasoning.remove("effort")) {
        None | Some(Json::Null) => {}
        Some(Json::String(effort)) => {
            variables.insert("enable_thinking".into(), (effort != "none").into());
            variables.insert("reasoning_effort".into(), effort.into());
        }
        Some(other) => return Err(wrong("reasoning.effort", "a text", &other)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{keys::Caller, response_store::ResponseStore};

    fn ask(body: &Json, drops: bool) -> Result<(Fields, Echo, Vec<String>)> {
        let mut hosted = HostedTools::new(drops);
        let store = ResponseStore::new(1 << 20);
        let past = Past { store: &store, owner: Caller::default() };
        let (fields, echo) = to_chat(Fields::parse(body.to_string().as_bytes()).unwrap(), past, &mut hosted)?;
        Ok((fields, echo, hosted.dropped()))
    }

    fn convert(body: Json) -> Result<(Fields, Echo)> {
        ask(&body, false).map(|(fields, echo, _)| (fields, echo))
    }

    #[test]
    fn items_become_messages() {
        let body = json!({
            "instructions": "be brief", "max_output_tokens": 7, "reasoning": { "effort": "none", "summary": "auto" },
            "include": ["reasoning.encrypted_content"], "store": false, "prompt_cache_key": "k",
            "text": { "format": { "type": "json_schema", "name": "n", "schema": { "type": "object" }, "strict": true }, "verbosity": "low" },
            "input": [
                { "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
                { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
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
        assert_eq!(messages[2]["reasoning_content"], "hm");
        assert_eq!(fields.take("response_format").unwrap()["json_schema"]["schema"], json!({ "type": "object" }));
        let variables = json!({ "verbosity": "low", "enable_thinking": false, "reasoning_effort": "none" });
        assert_eq!((fields.take("max_completion_tokens"), fields.take("chat_template_kwargs")), (Some(json!(7)), Some(variables)));
        assert_eq!((&echo.fields["instructions"], &echo.fields["tool_choice"]), (&json!("be brief"), &json!("auto")));
        assert_eq!((&echo.fields["text"]["verbosity"], &echo.fields["temperature"]), (&json!("low"), &Json::Null));
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
        assert_eq!(param(json!({ "input": [{ "type": "item_reference" }] })), "input[0].id");
        assert_eq!(param(json!({ "truncation": "auto" })), "truncation");
        assert_eq!(param(json!({ "background": true })), "background");
        assert_eq!(param(json!({ "tools": [{ "type": "web_search" }] })), "tools[0].type");
        assert_eq!(param(json!({ "tools": [{ "type": "shell", "environment": { "type": "container_auto" } }] })), "tools[0].type");
        assert_eq!(param(json!({ "tools": [{ "type": "custom" }] })), "tools[0]");
        assert_eq!(param(json!({ "text": { "verbosity": 3 } })), "text.verbosity");
        assert_eq!(param(json!({ "input": [{ "type": "web_search_call" }] })), "input[0].type");
        assert_eq!(param(json!({ "include": ["message.output_text.logprobs"] })), "include");
    }

    /// Test data: a coding agent's tools and the calls of an earlier turn.
    #[test]
    fn tools_of_every_kind_are_functions() {
        let body = json!({
            "tools": [
                { "type": "function", "name": "f", "description": "d", "parameters": { "type": "object" }, "strict": false },
                { "type": "custom", "name": "patch", "description": "edits", "format": { "type": "grammar", "syntax": "lark", "definition": "start: X" } },
                { "type": "local_shell" }, { "type": "shell", "environment": { "type": "local" } }, { "type": "apply_patch" },
                { "type": "namespace", "name": "crm", "description": "c", "tools": [{ "type": "function", "name": "g", "parameters": {} }] },
                { "type": "web_search" },
            ],
            "tool_choice": { "type": "allowed_tools", "mode": "required", "tools": [{ "type": "custom", "name": "patch" }, { "type": "shell" }] },
            "input": [
                { "role": "developer", "content": "d" },
                { "type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "x\"y" },
                { "type": "custom_tool_call_output", "call_id": "1", "output": "done" },
                { "type": "local_shell_call", "id": "l", "call_id": "2", "status": "completed", "action": { "type": "exec", "command": ["ls"], "env": {} } },
                { "type": "local_shell_call_output", "id": "2", "output": "a.txt" },
                { "type": "shell_call", "call_id": "3", "action": { "commands": ["ls", "pwd"], "timeout_ms": null } },
                { "type": "shell_call_output", "call_id": "3", "output": [
                    { "stdout": "a", "stderr": "b", "outcome": { "type": "exit", "exit_code": 1 } },
                    { "stdout": "", "stderr": "", "outcome": { "type": "timeout" } },
                ] },
                { "type": "apply_patch_call", "call_id": "4", "operation": { "type": "delete_file", "path": "p" } },
                { "type": "apply_patch_call_output", "call_id": "4", "status": "failed", "output": "no file" },
            ],
        });
        let (mut fields, echo, dropped) = ask(&body, true).unwrap();
        assert_eq!(dropped, ["web_search"]);
        let functions = fields.list("tools").unwrap().unwrap();
        let names: Vec<&str> = functions.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!((names, fields.take("tool_choice")), (vec!["patch", "shell"], Some(json!("required"))));
        assert!(functions[0]["function"]["description"].as_str().unwrap().ends_with("Lark grammar:\nstart: X"));
        let messages = fields.list("messages").unwrap().unwrap();
        let call = |at: usize| {
            let call = &messages[at]["tool_calls"][0];
            assert_eq!(call["id"], messages[at + 1]["tool_call_id"]);
            (
                call["function"]["name"].as_str().unwrap(),
                &call["function"]["arguments"],
                messages[at + 1]["content"].as_str().unwrap(),
            )
        };
        assert_eq!(call(1), ("patch", &json!({ "input": "x\"y" }), "done"));
        assert_eq!(call(3), ("local_shell", &json!({ "command": ["ls"], "env": {} }), "a.txt"));
        assert_eq!(call(5), ("shell", &json!({ "commands": ["ls", "pwd"] }), "a\nb\n(exit code 1)\n(timed out)"));
        assert_eq!(call(7), ("apply_patch", &json!({ "type": "delete_file", "path": "p" }), "failed\nno file"));
        let item = |name: &str, arguments: &str| tools::call_item(&echo.forms.of(name), "i", "c", name, arguments, "completed");
        assert_eq!(item("g", "{}")["namespace"], "crm");
        assert_eq!(item("f", "{}")["type"], "function_call");
        assert_eq!(item("patch", "{\"input\": \"a\"}")["input"], "a");
        assert_eq!(
            item("local_shell", "{\"command\": [\"ls\"]}")["action"],
            json!({ "type": "exec", "command": ["ls"], "env": {} })
        );
        assert_eq!(item("shell", "{\"commands\": [\"ls\"]}")["action"]["commands"], json!(["ls"]));
        assert_eq!(item("apply_patch", "{\"path\": \"p\"}")["operation"], json!({ "path": "p" }));
    }
}
