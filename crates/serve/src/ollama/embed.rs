//! Embeddings in Ollama's format.

use std::{sync::Arc, time::Instant};

use axum::{Extension, body::Body, extract::State, http::Request, response::Response};
use serde_json::{Map, Value as Json, json};

use super::{named, read, refuse, untagged};
use crate::{
    app::App,
    embeddings::{Vectors, compute},
    error::{ApiError, Result},
    json::Fields,
    keys::Caller,
    reply,
};

/// `POST /api/embed`: returns a vector for each text.
pub(super) async fn embed(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, request: Request<Body>) -> Response {
    many(&app, caller, request).await.unwrap_or_else(refuse)
}

/// `POST /api/embeddings`: the older endpoint for one text.
pub(super) async fn embed_one(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Response {
    one(&app, caller, request).await.unwrap_or_else(refuse)
}

async fn many(app: &App, caller: Caller, request: Request<Body>) -> Result<Response> {
    let began = Instant::now();
    let (mut fields, name) = read(app, request).await?;
    let input = fields.take("input").unwrap_or_else(|| json!([]));
    let model = app.models.find_encoder(Some(untagged(app, &name))).await.map_err(|error| named(error, &name))?;
    let loading = began.elapsed();
    // Clients load a model by a request without a text.
    let has_text = input.as_array().is_none_or(|list| !list.is_empty()) && input != "";
    let Vectors { list, tokens } =
        if has_text { compute(app, caller, model, to_openai(fields, input)?).await? } else { Vectors::default() };
    Ok(reply::json(&json!({
        "model": name,
        "embeddings": list,
        "total_duration": began.elapsed().as_nanos() as u64,
        "load_duration": loading.as_nanos() as u64,
        "prompt_eval_count": tokens,
    })))
}

async fn one(app: &App, caller: Caller, request: Request<Body>) -> Result<Response> {
    let (mut fields, name) = read(app, request).await?;
    let prompt = fields.text("prompt")?.ok_or_else(|| ApiError::value("prompt", "`prompt` is missing"))?;
    let model = app.models.find_encoder(Some(untagged(app, &name))).await.map_err(|error| named(error, &name))?;
    let vectors = compute(app, caller, model, to_openai(fields, prompt.into())?).await?;
    Ok(reply::json(&json!({ "embedding": vectors.list.first() })))
}

/// Converts the request to OpenAI's format. Long texts are truncated by default.
fn to_openai(mut fields: Fields, input: Json) -> Result<Fields> {
    let mut map = Map::new();
    map.insert("input".into(), input);
    map.insert("truncate".into(), fields.flag("truncate")?.unwrap_or(true).into());
    map.extend(fields.take("dimensions").map(|count| ("dimensions".to_owned(), count)));
    // Options say how text is generated, and on what machine.
    fields.finish(&["keep_alive", "options"])?;
    Ok(Fields::of(map))
}
