//! Request tools, and their calls as output items.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::{
    error::{ApiError, Result},
    hosted::HostedTools,
};

/// Kind of output item for a tool's calls. The model sees all tools as functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum CallForm {
    #[default]
    Function,
    /// A function in this namespace.
    Grouped(String),
    /// A custom tool with free text.
    Custom,
    /// A local shell command as a list of words.
    LocalShell,
    /// Shell commands.
    Shell,
    /// A file edit.
    Patch,
}

/// Kinds of calls by tool name; absent names are functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallForms(BTreeMap<String, CallForm>);

impl CallForms {
    pub(super) fn of(&self, name: &str) -> CallForm {
        self.0.get(name).cloned().unwrap_or_default()
    }
}

/// Converts tools to functions of chat completions, with the kinds of their calls.
///
/// # Errors
/// Fails on a hosted tool if the server rejects them.
pub(super) fn to_functions(tools: &[Json], hosted: &mut HostedTools) -> Result<(Vec<Json>, CallForms)> {
    let (mut functions, mut forms) = (Vec::new(), CallForms::default());
    for (i, tool) in tools.iter().enumerate() {
        let param = format!("tools[{i}]");
        if tool["type"] == "namespace" {
            let group = tool["name"].as_str().unwrap_or_default();
            for (j, member) in tool["tools"].as_array().into_iter().flatten().enumerate() {
                if let Some((function, _)) = function(&format!("{param}.tools[{j}]"), member, hosted)? {
                    forms.0.insert(name_of(&function), CallForm::Grouped(group.to_owned()));
                    functions.push(json!({ "type": "function", "function": function }));
                }
            }
        } else if let Some((function, form)) = function(&param, tool, hosted)? {
            forms.0.insert(name_of(&function), form);
            functions.push(json!({ "type": "function", "function": function }));
        }
    }
    Ok((functions, forms))
}

fn name_of(function: &Json) -> String {
    function["name"].as_str().unwrap_or_default().to_owned()
}

/// Converts a tool to a function; `None` if it was dropped.
fn function(param: &str, tool: &Json, hosted: &mut HostedTools) -> Result<Option<(Json, CallForm)>> {
    let words = || json!({ "type": "array", "items": { "type": "string" } });
    let made = |name: &str, description: &str, properties: Json, required: &[&str]| {
        let parameters = json!({ "type": "object", "properties": properties, "required": required });
        json!({ "name": name, "description": description, "parameters": parameters })
    };
    let kind = tool["type"].as_str().unwrap_or_default();
    Ok(Some(match kind {
        "function" => {
            let function = json!({ "name": tool["name"], "description": tool["description"], "parameters": tool["parameters"] });
            (without_nulls(function), CallForm::Function)
        }
        "custom" => {
            let name = tool["name"].as_str().ok_or_else(|| ApiError::value(param, format!("`{param}.name` must be a text")))?;
            let properties = json!({ "input": { "type": "string" } });
            (made(name, &custom_description(tool), properties, &["input"]), CallForm::Custom)
        }
        "local_shell" => {
            let properties = json!({
                "command": words(), "working_directory": { "type": "string" }, "timeout_ms": { "type": "integer" },
                "env": { "type": "object", "additionalProperties": { "type": "string" } },
            });
            (
                made(kind, "Runs a command on the user's machine. `command` lists its words.", properties, &["command"]),
                CallForm::LocalShell,
            )
        }
        "shell" if ["", "local"].contains(&tool["environment"]["type"].as_str().unwrap_or_default()) => {
            let properties = json!({
                "commands": words(), "timeout_ms": { "type": "integer" }, "max_output_length": { "type": "integer" },
            });
            (made(kind, "Runs commands in a shell of the user's machine.", properties, &["commands"]), CallForm::Shell)
        }
        "apply_patch" => {
            let kinds = ["create_file", "update_file", "delete_file"];
            let properties = json!({ "type": { "enum": kinds }, "path": { "type": "string" }, "diff": { "type": "string" } });
            (
                made(kind, "Creates, changes or deletes a file. `diff` is in the V4A format.", properties, &["type", "path"]),
                CallForm::Patch,
            )
        }
        _ => {
            hosted.drop_tool(&format!("{param}.type"), kind)?;
            return Ok(None);
        }
    }))
}

/// Description of a free-text tool, including its grammar.
fn custom_description(tool: &Json) -> String {
    let description = tool["description"].as_str().unwrap_or_default();
    let format = &tool["format"];
    match (format["definition"].as_str(), format["syntax"].as_str()) {
        (Some(definition), syntax) => {
            let syntax = if syntax == Some("regex") { "regular expression" } else { "Lark grammar" };
            format!("{description}\n\nThe input must match this {syntax}:\n{definition}").trim_start().to_owned()
        }
        _ => description.to_owned(),
    }
}

/// Converts the tool choice, which may remove functions.
pub(super) fn choose(choice: &Json, functions: &mut Vec<Json>) -> Json {
    let named = |name: &Json| json!({ "type": "function", "function": { "name": name } });
    match choice["type"].as_str() {
        Some("function" | "custom") => named(&choice["name"]),
        Some("local_shell" | "shell" | "apply_patch") => named(&choice["type"]),
        Some("allowed_tools") => {
            let allowed = choice["tools"].as_array().map_or(&[][..], Vec::as_slice);
            let is_allowed = |name: &Json| allowed.iter().any(|tool| tool["name"] == *name || tool["type"] == *name);
            functions.retain(|tool| is_allowed(&tool["function"]["name"]));
            choice["mode"].clone()
        }
        _ => choice.clone(),
    }
}

/// A call as an output item. `arguments` are JSON, unless the call was cut off or is still open.
pub(super) fn call_item(form: &CallForm, id: &str, call_id: &str, name: &str, arguments: &str, status: &str) -> Json {
    let parsed: Map<String, Json> = serde_json::from_str(arguments).unwrap_or_default();
    let rest = match form {
        CallForm::Function => json!({ "type": "function_call", "name": name, "arguments": arguments }),
        CallForm::Grouped(group) => {
            json!({ "type": "function_call", "name": name, "arguments": arguments, "namespace": group })
        }
        CallForm::Custom => json!({ "type": "custom_tool_call", "name": name, "input": custom_input(arguments) }),
        CallForm::LocalShell => {
            let action = with(json!({ "type": "exec", "command": [], "env": {} }), parsed);
            json!({ "type": "local_shell_call", "action": action })
        }
        CallForm::Shell => {
            let action = with(json!({ "commands": [], "timeout_ms": null, "max_output_length": null }), parsed);
            json!({ "type": "shell_call", "action": action })
        }
        CallForm::Patch => json!({ "type": "apply_patch_call", "operation": parsed }),
    };
    with(rest, [("id", id), ("call_id", call_id), ("status", status)].map(|(name, value)| (name.to_owned(), value.into())))
}

/// Adds entries to an object.
fn with(mut object: Json, entries: impl IntoIterator<Item = (String, Json)>) -> Json {
    if let Json::Object(map) = &mut object {
        map.extend(entries);
    }
    object
}

/// Removes `null` entries from an object.
pub(super) fn without_nulls(mut object: Json) -> Json {
    if let Json::Object(map) = &mut object {
        map.retain(|_, value| !value.is_null());
    }
    object
}

/// Free text in a call's arguments.
pub(super) fn custom_input(arguments: &str) -> String {
    let parsed: Json = serde_json::from_str(arguments).unwrap_or_default();
    parsed["input"].as_str().unwrap_or_default().to_owned()
}
