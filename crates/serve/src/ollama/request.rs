//! Converts Ollama's requests to chat completions.

use serde_json::{Map, Value as Json, json};

use crate::{
    error::{ApiError, Result},
    json::{Fields, wrong},
};

/// Purpose of a request.
#[derive(Debug)]
pub(super) enum OllamaTask {
    /// Loads the model.
    Nothing,
    /// Answers a conversation.
    Conversation(Fields),
    /// Completes a text, up to `suffix` if given.
    Text { prompt: String, suffix: Option<String>, rest: Fields },
}

/// Ignored machine options.
const MACHINE: [&str; 14] = [
    "f16_kv",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_ctx",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "penalize_newline",
    "use_mlock",
    "use_mmap",
    "vocab_only",
    "embedding_only",
];

/// Ignored options, if they have these values.
const NEUTRAL: [(&str, f64); 3] = [("mirostat", 0.0), ("tfs_z", 1.0), ("typical_p", 1.0)];

/// Options with the same name in both protocols.
const SAME: [&str; 7] = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"];

/// Parses a chat request.
///
/// # Errors
/// The error names the invalid or unsupported field.
pub(super) fn chat(mut fields: Fields) -> Result<OllamaTask> {
    let messages = fields.list("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Ok(OllamaTask::Nothing);
    }
    let mut map = Map::new();
    map.insert("messages".into(), history(messages)?.into());
    map.extend(fields.take("tools").map(|tools| ("tools".to_owned(), tools)));
    common(fields, &mut map)?;
    Ok(OllamaTask::Conversation(Fields::of(map)))
}

/// Parses a request to answer or complete a text. It becomes a conversation if the model has a
/// template.
///
/// # Errors
/// The error names the invalid or unsupported field.
pub(super) fn generate(mut fields: Fields, has_template: bool) -> Result<OllamaTask> {
    let prompt = fields.text("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        return Ok(OllamaTask::Nothing);
    }
    no_images(&fields.take("images").unwrap_or_default())?;
    if fields.text("template")?.is_some_and(|text| !text.is_empty()) {
        return Err(ApiError::unsupported("template", "`template` is not supported: the model's own is used"));
    }
    let suffix = fields.text("suffix")?.filter(|text| !text.is_empty());
    if fields.list("context")?.is_some_and(|tokens| !tokens.is_empty()) {
        return Err(ApiError::unsupported("context", "`context` is not supported: /api/chat takes a whole conversation"));
    }
    let system = fields.text("system")?.filter(|text| !text.is_empty());
    let is_raw = fields.flag("raw")?.unwrap_or(false) || !has_template || suffix.is_some();
    let mut map = Map::new();
    if is_raw {
        if system.is_some() {
            return Err(ApiError::unsupported("system", "`system` needs a chat template, which is not used here"));
        }
        common(fields, &mut map)?;
        for name in ["response_format", "chat_template_kwargs"] {
            if map.remove(name).is_some() {
                return Err(ApiError::unsupported(name, "`format` and `think` are not supported for the continuation of a text"));
            }
        }
        return Ok(OllamaTask::Text { prompt, suffix, rest: Fields::of(map) });
    }
    let mut messages: Vec<Json> = system.iter().map(|text| json!({ "role": "system", "content": text })).collect();
    messages.push(json!({ "role": "user", "content": prompt }));
    map.insert("messages".into(), messages.into());
    common(fields, &mut map)?;
    Ok(OllamaTask::Conversation(Fields::of(map)))
}

/// Whether a request without a prompt unloads the model.
pub(super) fn unloads(fields: &Fields) -> bool {
    let is_empty = |name: &str| match fields.get(name) {
        None => true,
        Some(value) => value.as_str().is_some_and(str::is_empty) || value.as_array().is_some_and(Vec::is_empty),
    };
    let is_over = match fields.get("keep_alive") {
        Some(Json::Number(time)) => time.as_f64() == Some(0.0),
        Some(Json::String(time)) => time.trim_end_matches(char::is_alphabetic) == "0",
        _ => false,
    };
    is_over && is_empty("prompt") && is_empty("messages")
}

/// Takes the fields shared by both endpoints; rejects all others.
fn common(mut fields: Fields, map: &mut Map<String, Json>) -> Result<()> {
    map.insert("stream".into(), fields.flag("stream")?.unwrap_or(true).into());
    for name in ["logprobs", "top_logprobs"] {
        map.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    match fields.take("format") {
        None => {}
        Some(Json::String(format)) if format.is_empty() => {}
        Some(Json::String(format)) if format == "json" => {
            _ = map.insert("response_format".into(), json!({ "type": "json_object" }))
        }
        Some(schema @ Json::Object(_)) => {
            let schema = json!({ "name": "answer", "schema": schema });
            map.insert("response_format".into(), json!({ "type": "json_schema", "json_schema": schema }));
        }
        Some(other) => return Err(wrong("format", "json or a JSON schema", &other)),
    }
    match fields.take("think") {
        None => {}
        Some(Json::Bool(thinks)) => _ = map.insert("chat_template_kwargs".into(), json!({ "enable_thinking": thinks })),
        Some(Json::String(effort)) => {
            let variables = json!({ "enable_thinking": true, "reasoning_effort": effort });
            map.insert("chat_template_kwargs".into(), variables);
        }
        Some(other) => return Err(wrong("think", "true, false, low, medium or high", &other)),
    }
    options(fields.object("options")?.unwrap_or_default(), map)?;
    fields.finish(&["keep_alive", "shift", "truncate"])
}

fn options(options: Map<String, Json>, map: &mut Map<String, Json>) -> Result<()> {
    let mut options = Fields::of(options);
    for name in SAME {
        map.extend(options.take(name).map(|value| (name.to_owned(), value)));
    }
    map.extend(options.take("stop").map(|stop| ("stop".to_owned(), stop)));
    map.extend(options.take("seed").map(|seed| ("seed".to_owned(), seed)));
    // Negative numbers stand for no limit.
    for (name, own) in [("num_predict", "max_tokens"), ("repeat_last_n", "repeat_last_n")] {
        let value = options.take(name).filter(|value| value.as_i64().is_none_or(|count| count >= 0));
        map.extend(value.map(|value| (own.to_owned(), value)));
    }
    for (name, neutral) in NEUTRAL {
        if let Some(value) = options.take(name).filter(|value| value.as_f64() != Some(neutral)) {
            return Err(ApiError::unsupported(&format!("options.{name}"), format!("`options.{name}` {value} is not supported")));
        }
    }
    for name in ["mirostat_eta", "mirostat_tau"] {
        options.take(name);
    }
    options.finish(&MACHINE).map_err(|error| error.inside("options"))
}

fn no_images(images: &Json) -> Result<()> {
    match images {
        Json::Array(list) if !list.is_empty() => Err(ApiError::unsupported("images", "the model takes text only")),
        _ => Ok(()),
    }
}

/// Converts messages to OpenAI's format. Calls get IDs, and results get the IDs of their calls.
fn history(messages: Vec<Json>) -> Result<Vec<Json>> {
    let mut list = Vec::with_capacity(messages.len());
    // Ids and names of calls without a result so far.
    let mut open: Vec<(String, String)> = Vec::new();
    for (i, mut message) in messages.into_iter().enumerate() {
        if !message.is_object() {
            return Err(wrong(&format!("messages[{i}]"), "an object", &message));
        }
        no_images(&message["images"].take())?;
        let thoughts = message["thinking"].take();
        if !thoughts.is_null() {
            message["reasoning_content"] = thoughts;
        }
        for (j, call) in message.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten().enumerate() {
            let id = call["id"].as_str().map_or_else(|| format!("call_{i}_{j}"), str::to_owned);
            let name = call["function"]["name"].as_str().unwrap_or_default().to_owned();
            *call =
                json!({ "id": id, "type": "function", "function": { "name": name, "arguments": call["function"]["arguments"] } });
            open.push((id, name));
        }
        if message["role"] == "tool" {
            let name = message["tool_name"].take();
            let given = message["tool_call_id"].as_str().map(str::to_owned);
            let place =
                open.iter().position(|(id, called)| given.as_ref().map_or(name.is_null() || name == **called, |given| given == id));
            let id = place.map(|place| open.remove(place).0).or(given);
            message["tool_call_id"] = id.into();
            message["name"] = name;
        }
        if let Some(message) = message.as_object_mut() {
            message.retain(|_, value| !value.is_null());
            message.entry("content").or_insert_with(|| "".into());
        }
        list.push(message);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &Json) -> Fields {
        Fields::parse(body.to_string().as_bytes()).unwrap()
    }

    fn conversation(asked: Result<OllamaTask>) -> Fields {
        match asked.unwrap() {
            OllamaTask::Conversation(fields) => fields,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn conversations_come_out_in_openais_form() {
        let call = |name: &str, arguments: Json| json!({ "function": { "name": name, "arguments": arguments } });
        let body = json!({
            "messages": [
                { "role": "user", "content": "a", "images": [] },
                { "role": "assistant", "thinking": "hm", "tool_calls": [call("f", json!({ "x": 1 })), call("g", json!({}))] },
                { "role": "tool", "tool_name": "g", "content": "2" },
                { "role": "tool", "tool_name": "f", "content": "1" },
            ],
            "tools": [{ "type": "function", "function": { "name": "f", "parameters": {} } }],
            "format": { "type": "object" }, "think": "low", "keep_alive": "5m",
            "options": { "num_predict": 5, "num_ctx": 4096, "repeat_last_n": -1, "temperature": 0.5, "stop": ["x"], "mirostat": 0, "seed": 3 },
        });
        let mut fields = conversation(chat(fields(&body)));
        let messages = fields.list("messages").unwrap().unwrap();
        let id = |call: usize| &messages[1]["tool_calls"][call]["id"];
        assert_eq!((&messages[2]["tool_call_id"], &messages[3]["tool_call_id"]), (id(1), id(0)));
        assert_eq!((&messages[1]["reasoning_content"], &messages[1]["content"]), (&json!("hm"), &json!("")));
        assert_eq!(fields.take("stream"), Some(json!(true)));
        assert_eq!((fields.take("max_tokens"), fields.take("repeat_last_n")), (Some(json!(5)), None));
        assert_eq!(fields.take("chat_template_kwargs").unwrap(), json!({ "enable_thinking": true, "reasoning_effort": "low" }));
        assert_eq!(fields.take("response_format").unwrap()["json_schema"]["schema"], json!({ "type": "object" }));
    }

    #[test]
    fn texts_are_answered_or_continued() {
        let body = json!({ "prompt": "a", "system": "s", "stream": false, "format": "" });
        let mut answered = conversation(generate(fields(&body), true));
        let roles: Vec<Json> = answered.list("messages").unwrap().unwrap().iter().map(|m| m["role"].clone()).collect();
        assert_eq!((roles, answered.take("stream")), (vec![json!("system"), json!("user")], Some(json!(false))));
        for (body, has_template) in [(json!({ "prompt": "a", "raw": true }), true), (json!({ "prompt": "a" }), false)] {
            assert!(
                matches!(generate(fields(&body), has_template), Ok(OllamaTask::Text { prompt, suffix: None, .. }) if prompt == "a")
            );
        }
        assert!(matches!(generate(fields(&json!({})), true), Ok(OllamaTask::Nothing)));
        for (keep_alive, expected) in
            [(json!(null), false), (json!(0), true), (json!("0s"), true), (json!("5m"), false), (json!(-1), false)]
        {
            assert_eq!(unloads(&fields(&json!({ "keep_alive": keep_alive }))), expected, "{keep_alive}");
            assert!(!unloads(&fields(&json!({ "keep_alive": keep_alive, "prompt": "a" }))));
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let param = |more: Json| {
            let mut body = json!({ "messages": [{ "role": "user", "content": "a" }] });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            chat(fields(&body)).unwrap_err().param.unwrap()
        };
        assert_eq!(param(json!({ "messages": [{ "role": "user", "content": "a", "images": ["aGk="] }] })), "images");
        assert_eq!(param(json!({ "options": { "mirostat": 2 } })), "options.mirostat");
        assert_eq!(param(json!({ "options": { "magic": 2 } })), "options.magic");
        assert_eq!(param(json!({ "think": 2 })), "think");
        assert_eq!(param(json!({ "format": 2 })), "format");
        assert_eq!(param(json!({ "magic": 2 })), "magic");
        let text = |more: Json| generate(fields(&more), true).unwrap_err().param.unwrap();
        assert_eq!(text(json!({ "prompt": "a", "template": "b" })), "template");
        assert_eq!(text(json!({ "prompt": "a", "context": [1] })), "context");
        assert_eq!(text(json!({ "prompt": "a", "raw": true, "system": "s" })), "system");
    }
}
