//! `/api`, Ollama's protocol. Requests are converted to chat completions.

mod answer;
mod embed;
mod models;
mod request;

use std::time::Instant;

use axum::{
    Extension,
    body::Body,
    extract::State,
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
};
use serde_json::{Value as Json, json};

use self::answer::{OllamaAnswer, ReplyKind};
use crate::{
    app::{App, AppState, Prepared, prepare},
    error::{ApiError, Result},
    gaps::Gap,
    hosted::HostedTools,
    http::body,
    json::Fields,
    keys::Caller,
    model::Handle,
    openai::{HARMLESS, params::Params},
    openapi::{BodyKind, Routes},
    reply,
};

/// Prefix of the paths with errors in Ollama's format.
pub(crate) const ROOT: &str = "/api/";

/// The implemented version of Ollama's protocol. Clients query it to detect features.
const VERSION: &str = "0.13.0";

/// Adds the protocol's routes.
pub(crate) fn add(routes: Routes) -> Routes {
    let messages = || json!({ "model": "", "messages": [{ "role": "user", "content": "" }] });
    let chat_body = BodyKind::Read(messages, |fields, _| drop(request::chat(fields)));
    let text = BodyKind::Read(|| json!({ "model": "", "prompt": "a" }), |fields, _| drop(request::generate(fields, true)));
    let (named, any) = (BodyKind::Object(&["model"]), BodyKind::Object(&[]));
    routes
        .get("/api/version", "The version of Ollama's protocol", async || reply::json(&json!({ "version": VERSION })))
        .get("/api/tags", "The models in Ollama's form", models::tags)
        .get("/api/ps", "The models that are loaded, in Ollama's form", models::ps)
        .post("/api/show", "A model in Ollama's form", named, models::show)
        .post("/api/pull", "Looks for a model of the server", named, models::pull)
        .post("/api/chat", "Answers a conversation in Ollama's form", chat_body, chat)
        .post("/api/generate", "Answers or continues a text in Ollama's form", text, generate)
        .post("/api/embed", "Vectors of texts in Ollama's form", BodyKind::Object(&["model", "input"]), embed::embed)
        .post("/api/embeddings", "The vector of a text in Ollama's form", BodyKind::Object(&["model", "prompt"]), embed::embed_one)
        .post("/api/create", "Is refused: requests change no models", any, unchangeable)
        .post("/api/copy", "Is refused: requests change no models", any, unchangeable)
        .post("/api/push", "Is refused: requests change no models", any, unchangeable)
        .delete("/api/delete", "Is refused: requests change no models", unchangeable)
        .post("/api/blobs/{digest}", "Is refused: requests change no models", BodyKind::None, unchangeable)
}

async fn unchangeable() -> Response {
    let message = "the models of this server are those of its command line, and cannot be changed by requests";
    refuse(ApiError::new(StatusCode::NOT_IMPLEMENTED, "invalid_request_error", None, message))
}

/// Response to a failed request.
pub(crate) fn refuse(error: ApiError) -> Response {
    let body = reply::json(&error_json(&error)).into_body();
    let (head, _) = error.into_response().into_parts();
    Response::from_parts(head, body)
}

fn error_json(error: &ApiError) -> Json {
    json!({ "error": error.message })
}

/// Parses a request's fields and its model name.
///
/// # Errors
/// Fails if the body is invalid or names no model.
async fn read(app: &App, request: Request<Body>) -> Result<(Fields, String)> {
    let body = body::read_untyped(request, &app.config).await?;
    let mut fields = app.parse(body).await?;
    let name = fields.text("model")?.or(fields.text("name")?).filter(|name| !name.is_empty());
    Ok((fields, name.ok_or_else(|| ApiError::value("model", "model is required"))?))
}

/// Removes the default tag from a model name that has no tag of its own.
fn untagged<'a>(app: &App, name: &'a str) -> &'a str {
    match name.strip_suffix(":latest") {
        Some(plain) if app.models.describe_one(name).is_err() => plain,
        _ => name,
    }
}

/// A model error in the words that clients match.
fn named(mut error: ApiError, name: &str) -> ApiError {
    if error.status == StatusCode::NOT_FOUND {
        error.message = format!("model '{name}' not found");
    }
    error
}

async fn chat(State(app): AppState, Extension(caller): Extension<Caller>, request: Request<Body>) -> Response {
    answer(&app, caller, request, ReplyKind::Chat).await.unwrap_or_else(refuse)
}

async fn generate(State(app): AppState, Extension(caller): Extension<Caller>, request: Request<Body>) -> Response {
    answer(&app, caller, request, ReplyKind::Text).await.unwrap_or_else(refuse)
}

async fn answer(app: &App, caller: Caller, request: Request<Body>, form: ReplyKind) -> Result<Response> {
    let (fields, name) = read(app, request).await?;
    let began = Instant::now();
    if request::unloads(&fields) {
        app.models.unload(untagged(app, &name)).map_err(|error| named(error, &name))?;
        return Ok(reply::json(&answer::unloaded(form, &name)));
    }
    let handle = app.models.find(Some(untagged(app, &name))).await.map_err(|error| named(error, &name))?;
    let loading = began.elapsed();
    let model = handle.clone();
    let work = move || {
        let fields = match form {
            ReplyKind::Chat => request::chat(fields)?,
            ReplyKind::Text => request::generate(fields, handle.template_source().is_some())?,
        };
        let begin = |model, tokens| OllamaAnswer::new(form, name, model, tokens, (began, loading));
        match fields {
            request::OllamaTask::Nothing => Ok(Err(begin(handle, 0).loaded())),
            request::OllamaTask::Conversation(fields) => {
                let hosted = HostedTools::new(false);
                prepare(fields, handle, 1, hosted, |request, model, prompt, tokens| {
                    begin(model, tokens).reading(request.reader(prompt), request.params.logprobs.is_some())
                })
                .map(Ok)
            }
            request::OllamaTask::Text { prompt, suffix, rest } => continue_text(prompt, suffix, rest, handle, begin).map(Ok),
        }
    };
    match app.offload(work).await? {
        Ok(prepared) => app.reply(&model, caller, prepared).await,
        Err(loaded) => Ok(reply::json(&loaded)),
    }
}

/// Prepares a text completion, with a suffix if given.
fn continue_text(
    prompt: String,
    suffix: Option<String>,
    mut fields: Fields,
    model: Handle,
    begin: impl FnOnce(Handle, usize) -> OllamaAnswer,
) -> Result<Prepared<OllamaAnswer>> {
    let streams = fields.flag("stream")?.unwrap_or(true);
    let mut params = Params::read(&mut fields, &model, 1)?;
    params.logprobs = fields.flag("logprobs")?.filter(|wanted| *wanted).map(|_| 0);
    if let Some(top) = fields.count("top_logprobs", 0..=20)? {
        params.logprobs = params.logprobs.map(|_| top);
    }
    fields.finish(HARMLESS)?;
    let ids = match suffix {
        Some(suffix) => model.fill(&Gap::new(prompt, suffix), "suffix", &mut params)?,
        None => model.encode(&prompt, true, "prompt")?,
    };
    let jobs = params.jobs(&ids, &model);
    let answer = begin(model, ids.len()).reading(crate::tools::AnswerReader::plain(), params.logprobs.is_some());
    Ok(Prepared { streams, jobs, answer, dropped: Vec::new() })
}
