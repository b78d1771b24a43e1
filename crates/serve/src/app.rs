//! Server state, and the path from a request to jobs and a response.

use std::sync::Arc;

use axum::{body::Body, extract::State, http::Request, response::Response};
use bytes::Bytes;
use flambeau::runners::{embed::Tokens, llm::Job};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::spawn_blocking,
    time::Instant,
};

use crate::{
    config::Config,
    encoder::ServedEncoder,
    error::{ApiError, Result},
    hosted::HostedTools,
    http::{body, guard::Guard},
    json::Fields,
    keys::Caller,
    metrics::add,
    model::Handle,
    models::Models,
    openai::chat::ChatRequest,
    rates::Rates,
    reply::{self, Events, Progress},
    response_store::ResponseStore,
    storage::Store,
    traces::{self, Traces},
    worker::{JobUpdate, Submitter},
};

/// The server's state, as handlers receive it.
pub(crate) type AppState = State<Arc<App>>;

/// Maximum number of bodies and prompts parsed at the same time. Parsing takes memory and delays
/// the models.
const MAX_OFFLOADED: usize = 4;

/// Bodies above this size are read one at a time.
const LARGE_BODY: usize = 1 << 20;

/// Names the hosted tools that were left out of a request.
const DROPPED_TOOLS: &str = "x-flambeau-dropped-tools";

/// State shared by all requests.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) guard: Guard,
    pub(crate) models: Models,
    pub(crate) responses: Arc<ResponseStore>,
    /// Files and batches, if a folder is configured.
    pub(crate) batches: Option<Arc<Store>>,
    /// Traces, if a collector is configured.
    pub(crate) traces: Option<Arc<Traces>>,
    pub(crate) rates: Rates,
    pub(crate) stop: watch::Receiver<bool>,
    /// Permits for [blocking work](App::offload).
    pub(crate) offload: Arc<Semaphore>,
    /// Permit to read a large body.
    large_body: Arc<Semaphore>,
    /// Permits for recordings, held from before the upload until the end of the transcription.
    recordings: Arc<Semaphore>,
}

impl App {
    /// Creates the state.
    pub(crate) fn new(
        config: Config,
        guard: Guard,
        models: Models,
        stop: watch::Receiver<bool>,
        batches: Option<Arc<Store>>,
        traces: Option<Arc<Traces>>,
    ) -> App {
        let places = models.recordings().min(Semaphore::MAX_PERMITS);
        App {
            guard,
            models,
            stop,
            rates: Rates::new(config.requests_per_minute, config.tokens_per_minute),
            responses: Arc::new(ResponseStore::new(config.response_bytes)),
            batches,
            traces,
            config,
            offload: Arc::new(Semaphore::new(MAX_OFFLOADED)),
            large_body: Arc::new(Semaphore::new(1)),
            recordings: Arc::new(Semaphore::new(places)),
        }
    }

    /// Acquires a permit for a recording.
    ///
    /// # Errors
    /// No model transcribes, or no permit is free.
    pub(crate) fn recording_permit(&self) -> Result<OwnedSemaphorePermit> {
        if self.models.recordings() == 0 {
            return Err(ApiError::missing("this server has no model that transcribes recordings"));
        }
        let busy = |_| ApiError::busy("as many recordings as the server takes are waiting already");
        Arc::clone(&self.recordings).try_acquire_owned().map_err(busy)
    }

    /// Parses a request's body and finds its model.
    ///
    /// # Errors
    /// Fails if the body is invalid or names an unknown model.
    pub(crate) async fn open(&self, request: Request<Body>) -> Result<(Fields, Handle)> {
        let mut fields = self.parse(body::read(request, &self.config).await?).await?;
        let name = fields.text("model")?;
        Ok((fields, self.models.find(name.as_deref()).await?))
    }

    /// The fields of a body.
    ///
    /// # Errors
    /// It is no JSON object.
    pub(crate) async fn parse(&self, body: Bytes) -> Result<Fields> {
        let place = match body.len() > LARGE_BODY {
            true => Arc::clone(&self.large_body).acquire_owned().await.ok(),
            false => None,
        };
        self.offload(move || {
            let _place = place;
            Fields::parse(&body)
        })
        .await
    }

    /// Runs long work, such as tokenizing a long prompt, on a blocking thread.
    ///
    /// # Errors
    /// Fails as `work` does, or if `work` panics.
    pub(crate) async fn offload<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let failed = || ApiError::internal("an internal error ended the request");
        let place = Arc::clone(&self.offload).acquire_owned().await.map_err(|_| failed())?;
        let work = move || {
            let _place = place;
            work()
        };
        spawn_blocking(work).await.unwrap_or_else(|_| Err(failed()))
    }

    /// Responds to a request with an event stream or a single body.
    ///
    /// # Errors
    /// Fails if the jobs are rejected, or if generation fails before a single body is complete.
    pub(crate) async fn reply<A>(&self, model: &Handle, caller: Caller, prepared: Prepared<A>) -> Result<Response>
    where
        A: Events<Update = JobUpdate>,
    {
        let Prepared { streams, jobs, answer, dropped } = prepared;
        let mut response = reply::respond(self.submit(model, caller, jobs).await?, answer, streams).await?;
        if let Some(value) = Some(dropped.join(", ")).filter(|list| !list.is_empty()).and_then(|list| list.try_into().ok()) {
            response.headers_mut().insert(DROPPED_TOOLS, value);
        }
        Ok(response)
    }

    /// Submits jobs.
    ///
    /// # Errors
    /// Fails if the scheduler rejects them.
    async fn submit(&self, model: &Handle, caller: Caller, jobs: Vec<Job>) -> Result<Progress<JobUpdate>> {
        let (running, waiting) = (model.limits.running, model.limits.waiting);
        // With several keys, one key may take at most half of the queue.
        let waiting = if self.config.keys.are_several() { waiting.div_ceil(2) } else { waiting };
        let most = running.saturating_add(waiting);
        if jobs.len() > most {
            // A retry would fail, too.
            return Err(ApiError::value("n", format!("the request asks for {} answers, and the server takes {most}", jobs.len())));
        }
        let span = traces::current();
        if let Some(span) = &span {
            span.submit(&model.name, &jobs);
        }
        let submitter = Submitter { caller, most_jobs: most, meter: self.rates.meter(caller), span };
        Ok(self.progress(model.worker.submit(submitter, jobs).await?))
    }

    /// Computes the vector or the scores of each text with an encoder or classifier.
    ///
    /// # Errors
    /// Fails if the request times out or the worker fails.
    pub(crate) async fn rows(
        &self,
        model: &ServedEncoder,
        caller: Caller,
        texts: Vec<Tokens>,
        place: OwnedSemaphorePermit,
    ) -> Result<Vec<Vec<f32>>> {
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        add(&model.worker.metrics.prompt_tokens, tokens);
        if let Some(span) = traces::current() {
            span.ask(&model.name);
            span.read(tokens);
        }
        if let Some(meter) = self.rates.meter(caller) {
            meter.add_tokens(tokens);
        }
        self.progress(model.worker.submit(texts, place)?).next().await?
    }

    /// Waits for a result within the request's timeout.
    pub(crate) fn progress<U>(&self, updates: mpsc::Receiver<U>) -> Progress<U> {
        Progress { updates, deadline: Instant::now() + self.config.longest_request(), stop: self.stop.clone() }
    }
}

/// Jobs of a request and the writer of its response.
pub(crate) struct Prepared<A> {
    pub(crate) streams: bool,
    pub(crate) jobs: Vec<Job>,
    pub(crate) answer: A,
    /// Ignored hosted tools.
    pub(crate) dropped: Vec<String>,
}

/// Parses a chat request and renders its prompt. Hosted tools are already removed.
///
/// # Errors
/// Fails if the request is invalid; the error names the field.
pub(crate) fn prepare<A>(
    fields: Fields,
    model: Handle,
    most_choices: usize,
    hosted: HostedTools,
    answer: impl FnOnce(&ChatRequest, Handle, &str, usize) -> A,
) -> Result<Prepared<A>> {
    let mut request = ChatRequest::read(fields, &model, most_choices)?;
    let prompt = request.conversation.prompt(&model)?;
    request.constrain(&model, &prompt)?;
    let ids = model.encode(&prompt, false, "messages")?;
    let jobs = request.params.jobs(&ids, &model);
    let answer = answer(&request, model, &prompt, ids.len());
    Ok(Prepared { streams: request.stream, jobs, answer, dropped: hosted.dropped() })
}
