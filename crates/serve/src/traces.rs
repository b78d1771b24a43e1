//! OpenTelemetry traces of requests, by the semantic conventions for generative AI. They never
//! contain prompts or answers.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use axum::http::{HeaderMap, Method, StatusCode};
use flambeau::runners::llm::{FinishReason, Generation, Job};
use opentelemetry::{
    Array, Context, KeyValue, StringValue, Value,
    propagation::TextMapPropagator,
    trace::{Span as _, SpanKind, Status, Tracer, TracerProvider},
};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider, Span},
};
use tokio::task_local;

/// Path of a collector that receives traces.
const PATH: &str = "/v1/traces";

/// Timeout for the collector.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a collector's response in bytes.
const MAX_ANSWER: u64 = 64 << 10;

task_local! {
    /// Span of the current task's request.
    static CURRENT: Option<Arc<RequestSpan>>;
}

/// Span of the current task's request, if any.
pub(crate) fn current() -> Option<Arc<RequestSpan>> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// Runs work as part of a request's span.
pub(crate) async fn within<T>(span: Option<Arc<RequestSpan>>, work: impl Future<Output = T>) -> T {
    CURRENT.scope(span, work).await
}

/// Exports spans to a collector.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    address: SocketAddr,
}

impl Traces {
    /// Traces of the server at `address`, exported to a URL. The path `/v1/traces` is appended
    /// unless present.
    ///
    /// # Errors
    /// Fails if the URL is invalid or a thread cannot start.
    pub(crate) fn new(endpoint: &str, address: SocketAddr) -> Result<Traces, String> {
        if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
            return Err("expected a URL, such as http://127.0.0.1:4318".to_owned());
        }
        let base = endpoint.trim_end_matches('/');
        let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(url)
            .with_timeout(TIMEOUT)
            .build();
        let exporter = exporter.map_err(|error| error.to_string())?;
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        let tracer = provider.tracer("flambeau");
        Ok(Traces { provider, tracer, address })
    }

    /// Starts a request's span in the trace named by its headers. Paths that run no model have no
    /// span.
    pub(crate) fn begin(&self, method: &Method, path: &str, headers: &HeaderMap) -> Option<Arc<RequestSpan>> {
        let operation = operation(path).filter(|_| *method == Method::POST)?;
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let attributes = vec![
            KeyValue::new("gen_ai.operation.name", operation),
            KeyValue::new("gen_ai.provider.name", "flambeau"),
            KeyValue::new("http.request.method", method.as_str().to_owned()),
            KeyValue::new("url.path", path.to_owned()),
            KeyValue::new("server.address", self.address.ip().to_string()),
            KeyValue::new("server.port", i64::from(self.address.port())),
        ];
        let builder = self.tracer.span_builder(operation).with_kind(SpanKind::Server).with_attributes(attributes);
        let span = builder.start_with_context(&self.tracer, &parent);
        Some(Arc::new(RequestSpan { operation, began: Instant::now(), state: Mutex::new(State { span, sums: Sums::default() }) }))
    }

    /// Exports the remaining spans.
    pub(crate) fn close(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!("the last traces may be lost: {error}");
        }
    }
}

/// The service name, which OpenTelemetry's variables may override.
fn resource() -> Resource {
    let detected = Resource::builder().build();
    let name = detected.get(&"service.name".into()).map(|name| name.to_string());
    let builder = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    match name {
        Some(name) if !name.starts_with("unknown_service") => builder.build(),
        _ => builder.with_service_name("flambeau").build(),
    }
}

/// Operation name of a path, from OpenTelemetry's conventions where one exists.
fn operation(path: &str) -> Option<&'static str> {
    Some(match path {
        "/v1/chat/completions" | "/v1/responses" | "/v1/messages" | "/api/chat" => "chat",
        "/v1/completions" | "/infill" | "/api/generate" => "text_completion",
        "/v1/embeddings" | "/api/embed" | "/api/embeddings" => "embeddings",
        "/v1/rerank" | "/rerank" | "/v1/reranking" | "/reranking" | "/v2/rerank" => "rerank",
        "/v1/audio/transcriptions" => "transcription",
        "/v1/audio/translations" => "translation",
        _ => return None,
    })
}

/// Span of a request. It ends with the request and its jobs.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    operation: &'static str,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    span: Span,
    sums: Sums,
}

/// Totals over a request's jobs.
#[derive(Debug, Default)]
struct Sums {
    jobs: usize,
    finishes: Vec<&'static str>,
    /// Prompt tokens, shared by the jobs, and cached tokens.
    input: usize,
    cached: usize,
    output: usize,
    queued: Option<Duration>,
    first_token: Option<Duration>,
    error: Option<String>,
}

impl RequestSpan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Trace ID in hexadecimal.
    pub(crate) fn trace_id(&self) -> String {
        self.state().span.span_context().trace_id().to_string()
    }

    /// Sets the requested model.
    pub(crate) fn ask(&self, model: &str) {
        let mut state = self.state();
        state.span.update_name(format!("{} {model}", self.operation));
        for name in ["gen_ai.request.model", "gen_ai.response.model"] {
            state.span.set_attribute(KeyValue::new(name, model.to_owned()));
        }
    }

    /// Sets the request's language model jobs.
    pub(crate) fn submit(&self, model: &str, jobs: &[Job]) {
        self.ask(model);
        let Some(Job { request, .. }) = jobs.first() else { return };
        let mut state = self.state();
        state.sums.jobs = jobs.len();
        let sampling = &request.sampling;
        let mut set = |name: &'static str, value: Value| state.span.set_attribute(KeyValue::new(name, value));
        set("gen_ai.request.temperature", f64::from(sampling.temperature).into());
        set("gen_ai.request.top_p", f64::from(sampling.top_p).into());
        set("gen_ai.request.frequency_penalty", f64::from(sampling.frequency_penalty).into());
        set("gen_ai.request.presence_penalty", f64::from(sampling.presence_penalty).into());
        if let Ok(most) = i64::try_from(request.max_new_tokens) {
            set("gen_ai.request.max_tokens", most.into());
        }
        if sampling.top_k > 0 {
            set("gen_ai.request.top_k", (sampling.top_k as i64).into());
        }
        if jobs.len() > 1 {
            set("gen_ai.request.choice.count", (jobs.len() as i64).into());
        }
        if !request.stop.is_empty() {
            set("gen_ai.request.stop_sequences", list(request.stop.iter().cloned()));
        }
    }

    /// Records the start of the first job, with its number of cached prompt tokens.
    pub(crate) fn start(&self, cached: usize) {
        let mut state = self.state();
        state.sums.queued.get_or_insert(self.began.elapsed());
        state.sums.cached = state.sums.cached.max(cached);
    }

    /// Records a token.
    pub(crate) fn step(&self) {
        self.state().sums.first_token.get_or_insert(self.began.elapsed());
    }

    /// Records the end of a job, with its number of cached prompt tokens.
    pub(crate) fn finish(&self, generation: &Generation, cached: usize) {
        let sums = &mut self.state().sums;
        sums.finishes.push(match generation.finish {
            FinishReason::Stop => "stop",
            FinishReason::Length | FinishReason::Context => "length",
            FinishReason::Cancelled => "cancelled",
        });
        sums.input = sums.input.max(cached + generation.stats.prompt_tokens);
        sums.output += generation.stats.generated_tokens;
    }

    /// Sets the number of input tokens.
    pub(crate) fn read(&self, tokens: usize) {
        self.state().sums.input = tokens;
    }

    /// Records a failure during the answer.
    pub(crate) fn fail(&self, kind: &str) {
        self.state().sums.error.get_or_insert_with(|| kind.to_owned());
    }

    /// Sets the response status.
    pub(crate) fn respond(&self, status: StatusCode) {
        self.state().span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_client_error() || status.is_server_error() {
            self.fail(status.as_str());
        }
        if status.is_server_error() {
            self.state().span.set_status(Status::error(""));
        }
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let State { span, sums } = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut set = |name: &'static str, value: Value| span.set_attribute(KeyValue::new(name, value));
        if sums.input > 0 {
            set("gen_ai.usage.input_tokens", (sums.input as i64).into());
        }
        if sums.jobs > 0 {
            set("gen_ai.usage.output_tokens", (sums.output as i64).into());
            set("gen_ai.usage.cache_read.input_tokens", (sums.cached as i64).into());
            set("gen_ai.response.finish_reasons", list(sums.finishes.iter().map(|&reason| reason.to_owned())));
        }
        let times = [("gen_ai.latency.time_in_queue", sums.queued), ("gen_ai.latency.time_to_first_token", sums.first_token)];
        for (name, time) in times {
            if let Some(time) = time {
                set(name, time.as_secs_f64().into());
            }
        }
        // A client that leaves takes its jobs along.
        let error = sums.error.take().or_else(|| (sums.finishes.len() < sums.jobs).then(|| "cancelled".to_owned()));
        if let Some(error) = error {
            set("error.type", error.into());
        }
        span.end();
    }
}

fn list(texts: impl Iterator<Item = String>) -> Value {
    Value::Array(Array::String(texts.map(StringValue::from).collect()))
}

/// HTTP client of the collector. It blocks, on the exporter's own thread.
#[derive(Debug)]
struct Collector {
    agent: ureq::Agent,
    /// Whether the last export failed; limits the log to one message.
    is_failing: AtomicBool,
}

impl Collector {
    fn new() -> Collector {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        Collector { agent: config.build().into(), is_failing: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, mut body) = self.agent.run(request.map(|body| body.to_vec()))?.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }

    fn note(&self, problem: Option<String>) {
        let was_failing = self.is_failing.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !was_failing => tracing::warn!("the collector does not take traces: {problem}"),
            None if was_failing => tracing::info!("the collector takes traces again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.send(request);
        self.note(match &sent {
            Ok(response) => (!response.status().is_success()).then(|| format!("status {}", response.status())),
            Err(error) => Some(error.to_string()),
        });
        Ok(sent?)
    }
}
