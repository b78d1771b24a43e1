//! Routes and their handlers.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    anthropic::{self, MessageAnswer},
    app::{App, AppState, Prepared, prepare},
    audio, batch, embeddings,
    error::{ApiError, Result},
    extras,
    hosted::HostedTools,
    http::{
        guard::{Admission, METRICS},
        trace::trace_id,
    },
    ids::unique_id,
    infill,
    json::Fields,
    keys::Caller,
    metrics::exposition,
    model::Handle,
    ollama,
    openai::{chat::ChatRequest, completions::CompletionRequest},
    openapi::{BodyKind, Routes},
    page, realtime, reply, rerank,
    response_store::ResponseStore,
    responses::{self, Past, ResponseAnswer},
    traces,
};

/// Prefix of the paths with errors in Anthropic's format.
const MESSAGES: &str = "/v1/messages";
const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
const REQUEST_ID: &str = "x-request-id";

/// Routes behind the access checks.
pub(crate) fn plain(app: Arc<App>) -> Router {
    let mut routes = ollama::add(generating(describing(Routes::new())));
    routes = realtime::add(batch::add_message_batches(batch::add_batches(batch::add_files(routes))));
    if app.config.metrics {
        routes = routes.get(METRICS, "Metrics in Prometheus's format", metrics);
    }
    let (mut router, description) = routes.finish();
    let document = move |State(app): AppState| {
        let needs_key = app.config.keys.caller("").is_none();
        let document = description.to_json(app.models.loaded().first(), needs_key);
        async move { reply::json(&document) }
    };
    router = router.route("/openapi.json", get(document));
    if app.config.page {
        router = router.merge(page::routes());
    }
    let not_found = async |uri: Uri| {
        refuse(uri.path(), ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", None, "there is no such path"))
    };
    let not_allowed = async |uri: Uri| {
        let message = "the path does not take this method";
        refuse(uri.path(), ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", None, message))
    };
    let router = router.fallback(not_found).method_not_allowed_fallback(not_allowed);
    router.with_state(app)
}

/// The routes with the access checks.
pub(crate) fn guarded(routes: Router, app: Arc<App>) -> Router {
    routes.layer(from_fn_with_state(app, enter))
}

/// Adds routes that describe the server and its models.
fn describing(routes: Routes) -> Routes {
    let version = async || reply::json(&json!({ "version": env!("CARGO_PKG_VERSION") }));
    let content = BodyKind::Object(&["content"]);
    routes
        .get("/health", "Whether the server runs", async || reply::json(&json!({ "status": "ok" })))
        .get("/livez", "Whether the server runs", async || reply::text("ok".into()))
        .get("/ready", "Whether the server takes requests", ready)
        .get("/readyz", "Whether the server takes requests", ready)
        .get("/version", "The server's version", version)
        .get("/v1/models", "The models", models)
        .get("/v1/models/{*name}", "A model", model)
        .post("/tokenize", "The tokens of a text", content, extras::tokenize)
        .post("/detokenize", "The text of tokens", BodyKind::Object(&["tokens"]), extras::detokenize)
        .post("/apply-template", "The prompt of a conversation", BodyKind::Object(&["messages"]), extras::apply_template)
        .get("/props", "A model's template and defaults", extras::props)
        .get("/slots", "How busy the models are", extras::slots)
        .get("/lora-adapters", "A model's adapters and their scales", extras::adapters)
        .post("/v1/load_lora_adapter", "Loads an adapter", BodyKind::Object(&["lora_name", "lora_path"]), extras::load_adapter)
        .post("/v1/unload_lora_adapter", "Unloads an adapter", BodyKind::Object(&["lora_name"]), extras::unload_adapter)
        .post("/lora-adapters", "Sets the scales of a model's adapters", BodyKind::List(&["id", "scale"]), extras::set_adapters)
}

/// Adds routes that use the models.
fn generating(routes: Routes) -> Routes {
    let messages = || json!({ "messages": [{ "role": "user", "content": "" }] });
    let chat_body = BodyKind::Read(messages, |fields, model| drop(ChatRequest::read(fields, model, 1)));
    let text = BodyKind::Read(|| json!({ "prompt": "" }), |fields, model| drop(CompletionRequest::read(fields, model, 1)));
    let message_body = BodyKind::Read(
        || json!({ "messages": [{ "role": "user", "content": "" }], "max_tokens": 1 }),
        |fields, _| drop(anthropic::to_openai(fields, &mut HostedTools::new(false))),
    );
    let count = BodyKind::Read(messages, |fields, _| drop(anthropic::to_count(fields, &mut HostedTools::new(false))));
    let response = BodyKind::Read(
        || json!({ "input": "" }),
        |fields, _| {
            let past = Past { store: &ResponseStore::new(0), owner: Caller::default() };
            drop(responses::to_chat(fields, past, &mut HostedTools::new(false)));
        },
    );
    routes
        .post("/v1/chat/completions", "Answers a conversation", chat_body, chat)
        .post("/v1/completions", "Continues texts", text, complete)
        .post("/infill", "The text between two texts", infill::BODY, infill::infill)
        .post(MESSAGES, "Answers a conversation in Anthropic's form", message_body, message)
        .post(COUNT_TOKENS, "The number of tokens of a conversation", count, count_tokens)
        .post("/v1/responses", "Answers a conversation that may continue another", response, respond)
        .post("/v1/responses/input_tokens", "The number of tokens of a request", response, count_input)
        .get("/v1/responses/{id}", "A response that is kept", responses::get)
        .delete("/v1/responses/{id}", "Forgets a response", responses::delete)
        .get("/v1/responses/{id}/input_items", "The conversation that a response answers", responses::input_items)
        .post("/v1/responses/{id}/cancel", "Cancels a response in the background", BodyKind::None, responses::cancel)
        .post("/v1/embeddings", "Vectors of texts", BodyKind::Object(&["input"]), embeddings::embed)
        .post("/v1/rerank", "Documents by their relevance to a query", rerank::DOCUMENTS, rerank::rerank)
        .post("/rerank", "Documents by their relevance to a query", rerank::DOCUMENTS, rerank::rerank)
        .post("/v1/reranking", "Documents by their relevance to a query", rerank::DOCUMENTS, rerank::rerank)
        .post("/reranking", "Documents by their relevance to a query", rerank::DOCUMENTS, rerank::rerank)
        .post("/v2/rerank", "Documents by their relevance to a query, in Cohere's form", rerank::DOCUMENTS, rerank::rerank_cohere)
        .post("/v1/score", "The relevance of texts to texts", rerank::PAIRS, rerank::score)
        .post("/score", "The relevance of texts to texts", rerank::PAIRS, rerank::score)
        .post("/v1/classify", "Labels of texts", BodyKind::Object(&["input"]), rerank::classify)
        .post("/classify", "Labels of texts", BodyKind::Object(&["input"]), rerank::classify)
        .post("/v1/audio/transcriptions", "Transcribes a recording", BodyKind::Form, audio::transcribe)
        .post("/v1/audio/translations", "Transcribes a recording in English", BodyKind::Form, audio::translate)
}

/// Response to a failed request, in the format of the path's protocol.
fn refuse(path: &str, error: ApiError) -> Response {
    if path.starts_with(MESSAGES) {
        anthropic::refuse(error)
    } else if path.starts_with(ollama::ROOT) {
        ollama::refuse(error)
    } else {
        error.into_response()
    }
}

/// Authorizes the request and assigns its ID.
async fn enter(State(app): AppState, mut request: Request<Body>, next: Next) -> Response {
    let began = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let span = app.traces.as_ref().and_then(|traces| traces.begin(&method, &path, request.headers()));
    let trace_id = span.as_ref().map(|span| span.trace_id()).or_else(|| trace_id(request.headers()));
    let origin = app.guard.origin(request.headers()).ok().flatten();
    let request_id = own_id(request.headers()).unwrap_or_else(|| unique_id("req_"));
    let wanted = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = match app.guard.check(&request) {
        Ok(Admission::Granted(caller)) => {
            request.extensions_mut().insert(caller);
            traces::within(span.clone(), run_within_rates(&app, caller, request, next)).await
        }
        Ok(Admission::Preflight) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => refuse(&path, error),
    };
    if let Some(span) = span {
        span.respond(response.status());
    }
    // Logs show only the escaped path: queries and bodies are private.
    let (status, duration_ms) = (response.status().as_u16(), began.elapsed().as_millis() as u64);
    tracing::info!(%method, path, status, duration_ms, request_id, trace_id, "request");
    let headers = response.headers_mut();
    app.guard.allow_origin(origin, wanted, headers);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        if path.starts_with(MESSAGES) {
            headers.insert("request-id", value.clone());
        }
        headers.insert(REQUEST_ID, value);
    }
    response
}

/// Runs a request within its key's rate limits and adds rate limit headers. Only generating
/// requests count.
async fn run_within_rates(app: &App, caller: Caller, request: Request<Body>, next: Next) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    let path = request.uri().path().to_owned();
    let mut response = match app.rates.enter(caller) {
        Ok(()) => next.run(request).await,
        Err((error, wait)) => {
            let mut response = refuse(&path, error);
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, seconds.max(1).into());
            response
        }
    };
    app.rates.describe(caller, path.starts_with(MESSAGES), response.headers_mut());
    response
}

/// The client's request ID, if it is short and safe to log.
fn own_id(headers: &HeaderMap) -> Option<String> {
    const MAX_BYTES: usize = 128;
    let given = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fits = (1..=MAX_BYTES).contains(&given.len()) && given.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| given.to_owned())
}

/// Readiness check. The server starts to listen after its models are loaded.
async fn ready(State(app): AppState) -> Result<Response> {
    if *app.stop.borrow() {
        return Err(ApiError::unavailable("shutting_down", "the server is stopping"));
    }
    Ok(reply::json(&json!({ "status": "ready" })))
}

async fn models(State(app): AppState, headers: HeaderMap) -> Response {
    let list = app.models.describe();
    if headers.contains_key(anthropic::VERSION) {
        return reply::json(&anthropic::models(&list));
    }
    reply::json(&json!({ "object": "list", "data": list }))
}

async fn model(State(app): AppState, headers: HeaderMap, name: Result<Path<String>, PathRejection>) -> Response {
    let name = name.map_err(|error| ApiError::value("model", error.body_text()));
    let found = name.and_then(|Path(name)| app.models.describe_one(&name));
    match (found, headers.contains_key(anthropic::VERSION)) {
        (Ok(entry), true) => reply::json(&anthropic::model(&entry)),
        (Ok(entry), false) => reply::json(&entry),
        (Err(error), true) => anthropic::refuse(error),
        (Err(error), false) => error.into_response(),
    }
}

async fn metrics(State(app): AppState) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], exposition(&app.models.metrics())).into_response()
}

async fn chat(State(app): AppState, Extension(caller): Extension<Caller>, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let (handle, most) = (model.clone(), app.config.choices);
    let hosted = HostedTools::new(false);
    let prepared = app.offload(move || prepare(fields, handle, most, hosted, ChatRequest::answer)).await?;
    app.reply(&model, caller, prepared).await
}

async fn message(State(app): AppState, Extension(caller): Extension<Caller>, request: Request<Body>) -> Response {
    answer_message(&app, caller, request).await.unwrap_or_else(anthropic::refuse)
}

async fn answer_message(app: &App, caller: Caller, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let (handle, mut hosted) = (model.clone(), HostedTools::new(app.config.drop_hosted_tools));
    let work = move || {
        let (fields, options) = anthropic::to_openai(fields, &mut hosted)?;
        let answer = |request: &_, model, prompt: &_, tokens| MessageAnswer::new(request, model, prompt, tokens, options);
        prepare(fields, handle, 1, hosted, answer)
    };
    let prepared = app.offload(work).await?;
    app.reply(&model, caller, prepared).await
}

async fn count_tokens(State(app): AppState, request: Request<Body>) -> Response {
    count_message(&app, request).await.unwrap_or_else(anthropic::refuse)
}

async fn count_message(app: &App, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let mut hosted = HostedTools::new(app.config.drop_hosted_tools);
    let work = move || {
        let (fields, options) = anthropic::to_count(fields, &mut hosted)?;
        Ok(options.count(count_prompt(fields, &model)?))
    };
    Ok(reply::json(&app.offload(work).await?))
}

async fn respond(State(app): AppState, Extension(caller): Extension<Caller>, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let (handle, mut hosted) = (model.clone(), HostedTools::new(app.config.drop_hosted_tools));
    let store = Arc::clone(&app.responses);
    let work = move || {
        let (fields, echo) = responses::to_chat(fields, Past { store: &store, owner: caller }, &mut hosted)?;
        let answer =
            |request: &_, model, prompt: &_, tokens| ResponseAnswer::new(request, model, prompt, tokens, echo, (store, caller));
        prepare(fields, handle, 1, hosted, answer)
    };
    let prepared = app.offload(work).await?;
    app.reply(&model, caller, prepared).await
}

async fn count_input(State(app): AppState, Extension(caller): Extension<Caller>, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let (store, mut hosted) = (Arc::clone(&app.responses), HostedTools::new(app.config.drop_hosted_tools));
    let work = move || {
        let (fields, _) = responses::to_chat(fields, Past { store: &store, owner: caller }, &mut hosted)?;
        count_prompt(fields, &model)
    };
    let tokens = app.offload(work).await?;
    Ok(reply::json(&json!({ "object": "response.input_tokens", "input_tokens": tokens })))
}

/// Prompt tokens of a conversation.
fn count_prompt(fields: Fields, model: &Handle) -> Result<usize> {
    let request = ChatRequest::read(fields, model, 1)?;
    let prompt = request.conversation.prompt(model)?;
    Ok(model.encode(&prompt, false, "messages")?.len())
}

async fn complete(State(app): AppState, Extension(caller): Extension<Caller>, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let (handle, most) = (model.clone(), app.config.choices);
    let work = move || {
        let request = CompletionRequest::read(fields, &handle, most)?;
        let (jobs, answer) = request.prepare(handle)?;
        Ok(Prepared { streams: request.stream, jobs, answer, dropped: Vec::new() })
    };
    let prepared = app.offload(work).await?;
    app.reply(&model, caller, prepared).await
}
