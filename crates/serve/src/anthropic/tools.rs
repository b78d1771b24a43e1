//! Converts a request's tools to OpenAI's format.

use serde_json::{Value as Json, json};

use crate::{error::Result, hosted::HostedTools};

/// Tools in OpenAI's format. Clients run them; hosted tools go to `hosted`.
///
/// # Errors
/// Fails on a hosted tool if the server rejects hosted tools.
pub(super) fn to_openai(tools: &[Json], hosted: &mut HostedTools) -> Result<Vec<Json>> {
    let mut list = Vec::with_capacity(tools.len());
    for (i, tool) in tools.iter().enumerate() {
        let kind = tool["type"].as_str().unwrap_or("custom");
        let function = if kind == "custom" { Some(custom(tool)) } else { client_tool(kind, tool) };
        match function {
            Some(function) => list.push(json!({ "type": "function", "function": function })),
            None => hosted.drop_tool(&format!("tools[{i}].type"), kind)?,
        }
    }
    Ok(list)
}

fn custom(tool: &Json) -> Json {
    let parameters = if tool["input_schema"].is_null() { json!({ "type": "object" }) } else { tool["input_schema"].clone() };
    let mut function = json!({ "name": tool["name"], "parameters": parameters });
    if !tool["description"].is_null() {
        function["description"] = tool["description"].clone();
    }
    function
}

/// Function definition of a tool with protocol-defined arguments. Clients send no schema for it.
fn client_tool(kind: &str, tool: &Json) -> Option<Json> {
    let (description, parameters) = match kind.rsplit_once('_')?.0 {
        "bash" => ("Runs a command in a shell that stays open, and returns its output.", bash()),
        "text_editor" => ("Views, creates and edits text files.", editor(kind)),
        "memory" => ("Keeps notes in files of the folder /memories, which outlive the conversation.", memory()),
        _ => return None,
    };
    Some(json!({ "name": tool["name"], "description": description, "parameters": parameters }))
}

fn bash() -> Json {
    json!({
        "type": "object",
        "properties": {
            "command": { "type": "string", "description": "The command to run." },
            "restart": { "type": "boolean", "description": "Whether to start the shell anew instead." },
        },
    })
}

fn text(description: &str) -> Json {
    json!({ "type": "string", "description": description })
}

fn range() -> Json {
    json!({ "type": "array", "items": { "type": "integer" }, "description": "First and last line to view; -1 is the file's end." })
}

fn editor(kind: &str) -> Json {
    let mut commands = vec!["view", "create", "str_replace", "insert"];
    if ["text_editor_20241022", "text_editor_20250124"].contains(&kind) {
        commands.push("undo_edit");
    }
    json!({
        "type": "object",
        "properties": {
            "command": { "type": "string", "enum": commands },
            "path": text("Path of the file or folder."),
            "file_text": text("Text of the file to create."),
            "old_str": text("Text to replace, which must occur once."),
            "new_str": text("Replacement, or the text to insert."),
            "insert_line": { "type": "integer", "description": "Line after which to insert; 0 is the file's start." },
            "insert_text": text("Text to insert."),
            "view_range": range(),
        },
        "required": ["command", "path"],
    })
}

fn memory() -> Json {
    json!({
        "type": "object",
        "properties": {
            "command": { "type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"] },
            "path": text("Path of the file or folder."),
            "file_text": text("Text of the file to create."),
            "old_str": text("Text to replace."),
            "new_str": text("Replacement."),
            "insert_line": { "type": "integer", "description": "Line at which to insert." },
            "insert_text": text("Text to insert."),
            "old_path": text("Path to rename."),
            "new_path": text("New path."),
            "view_range": range(),
        },
        "required": ["command"],
    })
}
