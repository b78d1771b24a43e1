//! Routes and their handlers.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderValue, Request, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use flambeau::runners::llm::Job;
use serde_json::json;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::spawn_blocking,
    time::Instant,
};

use crate::{
    answer::id,
    anthropic::{self, MessageAnswer},
    audio,
    config::Config,
    embeddings,
    error::{ApiError, Result},
    extras,
    http::{
        body,
        guard::{Entry, Guard},
    },
    json::Fields,
    metrics::exposition,
    model::Handle,
    models::Models,
    openai::{chat::ChatRequest, completions::CompletionRequest},
    page,
    reply::{self, Events, Progress},
    responses::{self, ResponseAnswer},
    worker::JobUpdate,
};

/// State shared by all requests.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) guard: Guard,
    pub(crate) models: Models,
    pub(crate) stop: watch::Receiver<bool>,
    /// Places for work [beside the connections](App::aside).
    pub(crate) aside: Arc<Semaphore>,
    /// Places for recordings, from before their first byte until they are done.
    pub(crate) recordings: Arc<Semaphore>,
}

/// Most bodies and prompts that are read at the same time: each may take much memory while it is,
/// and all take time from the models.
pub(crate) const MAX_ASIDE: usize = 4;

type Shared = State<Arc<App>>;

/// Where errors have Anthropic's form.
const MESSAGES: &str = "/v1/messages";

pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new()
        .route("/health", get(async || reply::json(&json!({ "status": "ok" }))))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .route(MESSAGES, post(message))
        .route("/v1/responses", post(respond))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/audio/transcriptions", post(audio::transcribe))
        .route("/v1/audio/translations", post(audio::translate))
        .route("/tokenize", post(extras::tokenize))
        .route("/detokenize", post(extras::detokenize))
        .route("/apply-template", post(extras::apply_template))
        .route("/props", get(extras::props))
        .route("/slots", get(extras::slots));
    if app.config.metrics {
        router = router.route("/metrics", get(metrics));
    }
    if app.config.page {
        router = router.merge(page::routes());
    }
    let not_found = async || ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", None, "there is no such path");
    let not_allowed = async || {
        let message = "the path does not take this method";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", None, message)
    };
    let router = router.fallback(not_found).method_not_allowed_fallback(not_allowed);
    router.with_state(Arc::clone(&app)).layer(from_fn_with_state(app, enter))
}

/// Asks the guard, and gives each request a name.
async fn enter(State(app): Shared, request: Request<Body>, next: Next) -> Response {
    let began = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let origin = app.guard.origin(request.headers()).ok().flatten();
    let wanted = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = match app.guard.check(&request) {
        Ok(Entry::Granted) => next.run(request).await,
        Ok(Entry::Preflight) => StatusCode::NO_CONTENT.into_response(),
        Err(error) if path == MESSAGES => anthropic::refuse(error),
        Err(error) => error.into_response(),
    };
    let request_id = id("req_");
    // Only paths, and those escaped: what clients write is theirs.
    tracing::info!("{method} {path:?} {} in {} ms, {request_id}", response.status().as_u16(), began.elapsed().as_millis());
    let headers = response.headers_mut();
    app.guard.allow_origin(origin, wanted, headers);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        headers.insert("x-request-id", value);
    }
    response
}

async fn models(State(app): Shared) -> Response {
    let list = app.models.describe();
    reply::json(&json!({ "object": "list", "data": list }))
}

async fn model(State(app): Shared, name: Result<Path<String>, PathRejection>) -> Result<Response> {
    let Path(name) = name.map_err(|error| ApiError::value("model", error.body_text()))?;
    Ok(reply::json(&app.models.describe_one(&name)?))
}

async fn metrics(State(app): Shared) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], exposition(&app.models.metrics())).into_response()
}

impl App {
    /// The fields of a request and the model that it is for.
    ///
    /// # Errors
    /// The body is none, or names a model that is not here.
    pub(crate) async fn open(&self, request: Request<Body>) -> Result<(Fields, Handle)> {
        let body = body::read(request, &self.config).await?;
        let mut fields = self.aside(move || Fields::parse(&body)).await?;
        let name = fields.text("model")?;
        Ok((fields, self.models.find(name.as_deref()).await?))
    }

    /// Runs work that takes a while, such as a long prompt's tokens, beside the connections.
    ///
    /// # Errors
    /// As `work`, or it panics.
    pub(crate) async fn aside<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let failed = || ApiError::internal("an internal error ended the request");
        let place = Arc::clone(&self.aside).acquire_owned().await.map_err(|_| failed())?;
        let work = move || {
            let _place = place;
            work()
        };
        spawn_blocking(work).await.unwrap_or_else(|_| Err(failed()))
    }

    /// The answer to a request: a stream of events, or a whole one.
    ///
    /// # Errors
    /// The jobs are refused; a whole answer fails.
    async fn reply<A: Events<Update = JobUpdate>>(&self, model: &Handle, prepared: Prepared<A>) -> Result<Response> {
        let Prepared { streams, jobs, answer } = prepared;
        reply::respond(self.submit(model, jobs).await?, answer, streams).await
    }

    /// Submits jobs.
    ///
    /// # Errors
    /// They are refused.
    async fn submit(&self, model: &Handle, jobs: Vec<Job>) -> Result<Progress<JobUpdate>> {
        let most = model.limits.running.saturating_add(model.limits.waiting);
        if jobs.len() > most {
            // Coming back would not help.
            return Err(ApiError::value("n", format!("the request asks for {} answers, and the server takes {most}", jobs.len())));
        }
        Ok(self.progress(model.worker.submit(jobs).await?))
    }

    /// Result of a request within its timeout.
    pub(crate) fn progress<U>(&self, updates: mpsc::Receiver<U>) -> Progress<U> {
        Progress { updates, deadline: Instant::now() + self.config.longest_request(), stop: self.stop.clone() }
    }
}

/// A request's jobs, and how the answer to them is written.
struct Prepared<A> {
    streams: bool,
    jobs: Vec<Job>,
    answer: A,
}

/// Reads a request for an answer to a conversation, and writes its prompt.
fn prepare<A>(
    fields: Fields,
    model: Handle,
    most_choices: usize,
    answer: impl FnOnce(&ChatRequest, Handle, &str, usize) -> A,
) -> Result<Prepared<A>> {
    let mut request = ChatRequest::read(fields, &model, most_choices)?;
    let prompt = request.conversation.prompt(&model)?;
    request.constrain(&model, &prompt)?;
    let ids = model.encode(&prompt, false, "messages")?;
    let jobs = request.params.jobs(&ids, &model);
    Ok(Prepared { streams: request.stream, jobs, answer: answer(&request, model, &prompt, ids.len()) })
}

async fn chat(State(app): Shared, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let (handle, most) = (model.clone(), app.config.choices);
    let prepared = app.aside(move || prepare(fields, handle, most, ChatRequest::answer)).await?;
    app.reply(&model, prepared).await
}

async fn message(State(app): Shared, request: Request<Body>) -> Response {
    answer_message(&app, request).await.unwrap_or_else(anthropic::refuse)
}

async fn answer_message(app: &App, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let handle = model.clone();
    let prepared = app.aside(move || prepare(anthropic::to_openai(fields)?, handle, 1, MessageAnswer::new)).await?;
    app.reply(&model, prepared).await
}

async fn respond(State(app): Shared, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let handle = model.clone();
    let work = move || {
        let (fields, echo) = responses::to_chat(fields)?;
        prepare(fields, handle, 1, |request, model, prompt, tokens| ResponseAnswer::new(request, model, prompt, tokens, echo))
    };
    let prepared = app.aside(work).await?;
    app.reply(&model, prepared).await
}

async fn complete(State(app): Shared, request: Request<Body>) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let (handle, most) = (model.clone(), app.config.choices);
    let work = move || {
        let request = CompletionRequest::read(fields, &handle, most)?;
        let (jobs, answer) = request.prepare(handle)?;
        Ok(Prepared { streams: request.stream, jobs, answer })
    };
    let prepared = app.aside(work).await?;
    app.reply(&model, prepared).await
}
