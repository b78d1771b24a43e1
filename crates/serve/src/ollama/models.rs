//! Models in Ollama's format.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, extract::State, http::Request, response::Response};
use flambeau::text::SamplingParams;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use super::{named, read, refuse, untagged};
use crate::{app::App, error::Result, reply, time::rfc3339};

/// `GET /api/tags`: lists all models.
pub(super) async fn tags(State(app): State<Arc<App>>) -> Response {
    let list = app.models.describe();
    reply::json(&json!({ "models": list.as_array().into_iter().flatten().map(tag).collect::<Vec<_>>() }))
}

/// `GET /api/ps`: lists the loaded models.
pub(super) async fn ps(State(app): State<Arc<App>>) -> Response {
    /// Unix time in seconds that clients display as "forever".
    const FOREVER: Duration = Duration::from_secs(11_000_000_000);
    let list = app.models.describe();
    let loaded = list.as_array().into_iter().flatten().filter(|entry| entry["status"]["value"] == "loaded");
    let describe = |entry: &Json| {
        let mut model = tag(entry);
        model["expires_at"] = rfc3339(FOREVER).into();
        model["size_vram"] = 0.into();
        model["context_length"] = entry["context_length"].clone();
        model
    };
    reply::json(&json!({ "models": loaded.map(describe).collect::<Vec<_>>() }))
}

/// The name with a tag, as Ollama's names have.
fn tagged(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { format!("{name}:latest") }
}

/// Converts an entry of `/v1/models` to a list entry.
fn tag(entry: &Json) -> Json {
    let name = tagged(entry["id"].as_str().unwrap_or_default());
    let size = entry["size"].as_u64().unwrap_or_default();
    let digest: String = Sha256::digest(format!("{name} {size}")).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": name,
        "model": name,
        "modified_at": modified(entry),
        "size": size,
        "digest": digest,
        "details": details(entry),
        "capabilities": capabilities(entry),
    })
}

fn modified(entry: &Json) -> String {
    rfc3339(Duration::from_secs(entry["created"].as_u64().unwrap_or_default()))
}

fn details(entry: &Json) -> Json {
    json!({
        "parent_model": "",
        "format": "pte",
        "family": FAMILY,
        "families": [FAMILY],
        "parameter_size": "",
        "quantization_level": "",
        "context_length": entry["context_length"],
    })
}

/// Placeholder: programs do not state the model's family.
const FAMILY: &str = "flambeau";

fn capabilities(entry: &Json) -> Vec<&'static str> {
    let known = [
        ("completion", "completion"),
        ("tools", "tools"),
        ("thinking", "thinking"),
        ("insert", "insert"),
        ("embedding", "embedding"),
    ];
    let has = |name: &str| entry["capabilities"][name] == true;
    known.into_iter().filter(|(own, _)| has(own)).map(|(_, name)| name).collect()
}

/// `POST /api/show`: returns a model's properties without loading it.
pub(super) async fn show(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    describe(&app, request).await.unwrap_or_else(refuse)
}

async fn describe(app: &App, request: Request<Body>) -> Result<Response> {
    let (_, name) = read(app, request).await?;
    let entry = app.models.describe_one(untagged(app, &name)).map_err(|error| named(error, &name))?;
    let loaded = app.models.loaded().into_iter().find(|model| entry["id"] == *model.name);
    let (template, parameters) = match &loaded {
        Some(model) => (model.template_source().unwrap_or_default(), parameters(&model.sampling)),
        None => ("", String::new()),
    };
    let mut info = json!({ "general.architecture": FAMILY });
    for (own, length) in [("context_length", "context_length"), ("embedding_length", "embedding_length")] {
        info[format!("{FAMILY}.{length}")] = entry[own].clone();
    }
    Ok(reply::json(&json!({
        "license": "",
        "modelfile": format!("FROM {}\n", entry["id"].as_str().unwrap_or_default()),
        "parameters": parameters,
        "template": template,
        "details": details(&entry),
        "model_info": info,
        "capabilities": capabilities(&entry),
        "modified_at": modified(&entry),
    })))
}

/// Default sampling settings, one per line.
fn parameters(sampling: &SamplingParams) -> String {
    let SamplingParams { temperature, top_k, top_p, min_p, repetition_penalty, .. } = sampling;
    format!("temperature {temperature}\ntop_k {top_k}\ntop_p {top_p}\nmin_p {min_p}\nrepeat_penalty {repetition_penalty}")
}

/// `POST /api/pull`: succeeds if the model is present. The server downloads nothing.
pub(super) async fn pull(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    match find(&app, request).await {
        Ok(true) => reply::lines(&[json!({ "status": "pulling manifest" }), json!({ "status": "success" })]),
        Ok(false) => reply::json(&json!({ "status": "success" })),
        Err(error) => refuse(error),
    }
}

/// Checks that the requested model exists; returns whether to stream.
async fn find(app: &App, request: Request<Body>) -> Result<bool> {
    let (mut fields, name) = read(app, request).await?;
    app.models.describe_one(untagged(app, &name)).map_err(|mut error| {
        error.message = format!("model '{name}' not found: this server pulls no models, which its command line names");
        error
    })?;
    Ok(fields.flag("stream")?.unwrap_or(true))
}
