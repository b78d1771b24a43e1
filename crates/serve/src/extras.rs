//! Endpoints of llama.cpp's server: tokens, prompts and properties.

use std::collections::BTreeMap;

use axum::{
    body::Body,
    extract::{Query, State},
    http::Request,
    response::Response,
};
use serde_json::{Value as Json, json};

use crate::{
    app::{App, AppState},
    error::{ApiError, Result},
    http::body,
    json::wrong,
    model::Handle,
    openai::{FINGERPRINT, HARMLESS, chat::Conversation},
    reply,
};

type Words = Query<BTreeMap<String, String>>;

/// `POST /tokenize`: returns the tokens of a text.
pub(crate) async fn tokenize(State(app): AppState, request: Request<Body>) -> Result<Response> {
    let (mut fields, model) = app.open(request).await?;
    let missing = || ApiError::value("content", "`content` is missing");
    let content = fields.text("content")?.ok_or_else(missing)?;
    let add_special = fields.flag("add_special")?.unwrap_or(false);
    let parse_special = fields.flag("parse_special")?.unwrap_or(true);
    let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    fields.finish(HARMLESS)?;
    let tokens = app.offload(move || {
        let tokenizer = &model.tokenizer;
        let ids = if parse_special { tokenizer.encode(&content, add_special) } else { tokenizer.encode_plain(&content) };
        let ids = ids.map_err(|error| ApiError::value("content", error.to_string()))?;
        let piece = |&id: &u32| json!({ "id": id, "piece": tokenizer.decode(&[id], false).unwrap_or_default() });
        Ok(if with_pieces { ids.iter().map(piece).collect::<Json>() } else { json!(ids) })
    });
    Ok(reply::json(&json!({ "tokens": tokens.await? })))
}

/// `POST /detokenize`: returns the text of tokens.
pub(crate) async fn detokenize(State(app): AppState, request: Request<Body>) -> Result<Response> {
    let (mut fields, model) = app.open(request).await?;
    let list = fields.list("tokens")?.ok_or_else(|| ApiError::value("tokens", "`tokens` is missing"))?;
    fields.finish(HARMLESS)?;
    let vocabulary = model.tokenizer.vocab_size();
    let id = |value: &Json| {
        let id = value.as_u64().filter(|&id| id < vocabulary as u64).map(|id| id as u32);
        id.ok_or_else(|| wrong("tokens", &format!("a list of token ids below {vocabulary}"), value))
    };
    let ids: Vec<u32> = list.iter().map(id).collect::<Result<_>>()?;
    let text =
        app.offload(move || model.tokenizer.decode(&ids, false).map_err(|error| ApiError::value("tokens", error.to_string())));
    Ok(reply::json(&json!({ "content": text.await? })))
}

/// `POST /apply-template`: renders the prompt of a conversation.
pub(crate) async fn apply_template(State(app): AppState, request: Request<Body>) -> Result<Response> {
    let (mut fields, model) = app.open(request).await?;
    let prompt = app.offload(move || {
        let conversation = Conversation::read(&mut fields, &model)?;
        fields.finish(HARMLESS)?;
        conversation.prompt(&model)
    });
    Ok(reply::json(&json!({ "prompt": prompt.await? })))
}

/// The model named by the query, or the first one.
async fn named(app: &App, words: &BTreeMap<String, String>) -> Result<Handle> {
    app.models.find(words.get("model").map(String::as_str).or_else(|| app.models.first())).await
}

/// `GET /lora-adapters`: lists the adapters with their default scales.
pub(crate) async fn adapters(State(app): AppState, Query(words): Words) -> Result<Response> {
    Ok(reply::json(&named(&app, &words).await?.lora.to_json()))
}

/// `POST /lora-adapters`: sets the default scales.
pub(crate) async fn set_adapters(State(app): AppState, Query(words): Words, request: Request<Body>) -> Result<Response> {
    let body = body::read(request, &app.config).await?;
    let list: Vec<Json> = serde_json::from_slice(&body)
        .map_err(|error| ApiError::invalid(format!("the request body is no list of adapters with `id` and `scale`: {error}")))?;
    let model = named(&app, &words).await?;
    model.lora.set(model.lora.read(&list)?);
    Ok(reply::json(&json!({ "success": true })))
}

/// `POST /v1/load_lora_adapter`, as vLLM has it: adapters are part of a program, so none is loaded
/// while the server runs.
pub(crate) async fn load_adapter(State(app): AppState, request: Request<Body>) -> Result<Response> {
    let (name, is_known) = adapter_name(&app, request).await?;
    if is_known {
        return Err(ApiError::coded("lora_name", "adapter_loaded", format!("the adapter {name:?} is loaded already")));
    }
    let message = format!("adapters are loaded with their model: start the server with --lora {name}=PATH");
    Err(ApiError::unsupported("lora_path", message))
}

/// `POST /v1/unload_lora_adapter`: adapters stay as long as their model.
pub(crate) async fn unload_adapter(State(app): AppState, request: Request<Body>) -> Result<Response> {
    let (name, is_known) = adapter_name(&app, request).await?;
    if !is_known {
        return Err(ApiError::no_model(&name));
    }
    Err(ApiError::unsupported("lora_name", format!("the adapter {name:?} is unloaded with its model, and not before")))
}

/// The adapter that a request names, and whether it is loaded.
async fn adapter_name(app: &App, request: Request<Body>) -> Result<(String, bool)> {
    let mut fields = app.parse(body::read(request, &app.config).await?).await?;
    let name = fields.text("lora_name")?.ok_or_else(|| ApiError::value("lora_name", "`lora_name` is missing"))?;
    let is_known = app.models.describe_one(&name).is_ok_and(|entry| !entry["parent"].is_null());
    Ok((name, is_known))
}

/// `GET /props`: returns a model's properties and default sampling settings.
pub(crate) async fn props(State(app): AppState, Query(words): Words) -> Result<Response> {
    let model = named(&app, &words).await?;
    let sampling = &model.sampling;
    Ok(reply::json(&json!({
        "model_alias": model.name,
        "total_slots": model.limits.running,
        "default_generation_settings": {
            "n_ctx": model.context,
            "params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repetition_penalty,
            },
        },
        "chat_template": model.template_source(),
        "bos_token": model.tokenizer.special().bos,
        "eos_token": model.tokenizer.special().eos,
        "modalities": { "vision": false, "audio": false },
        "build_info": FINGERPRINT,
    })))
}

/// `GET /slots`: returns the load of each loaded model.
pub(crate) async fn slots(State(app): AppState) -> Response {
    let slots = app.models.loaded().into_iter().map(|model| {
        let load = model.worker.metrics.load();
        json!({
            "model": model.name,
            "running": load.running,
            "waiting": load.waiting,
            "idle_sequences": load.idle,
            "tokens_in_flight": load.tokens,
            "kept_bytes": load.kept_bytes,
            "limits": {
                "running": model.limits.running,
                "waiting": model.limits.waiting,
                "sequences": model.limits.sequences,
                "tokens": model.limits.tokens,
                "kept_bytes": model.limits.kept_bytes,
            },
        })
    });
    reply::json(&slots.collect())
}
