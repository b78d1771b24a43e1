//! `/v1/embeddings`: vectors of texts.

mod answer;
pub(crate) mod request;

use std::sync::Arc;

use axum::{Extension, body::Body, extract::State, http::Request, response::Response};
use flambeau::runners::embed::{Tokens, shorten};

pub use self::answer::EmbeddingList;
use self::{answer::VectorFormat, request::EmbeddingRequest};
use crate::{
    app::App,
    encoder::ServedEncoder,
    error::{ApiError, Result},
    http::body,
    json::Fields,
    keys::Caller,
    reply,
};

/// A text encoder or classifier to serve.
#[derive(Clone)]
pub struct NewEncoder {
    /// The model's public name.
    pub name: String,
    /// Aliases.
    pub aliases: Vec<String>,
    pub program: Program,
    pub engine: Arc<dyn Engine>,
    pub tokenizer: Tokenizer,
    /// Maximum number of running and waiting requests, at least 1.
    pub requests: usize,
}

impl std::fmt::Debug for NewEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewEncoder").field("name", &self.name).field("requests", &self.requests).finish_non_exhaustive()
    }
}

/// A text encoder or classifier with its thread.
#[derive(Debug)]
pub(crate) struct ServedEncoder {
    pub(crate) name: String,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) worker: EncoderWorker,
    /// Permits for requests, held from tokenization to the response.
    places: Arc<Semaphore>,
}

impl ServedEncoder {
    /// Loads the model and starts its thread, which updates `metrics`.
    ///
    /// # Errors
    /// Fails as [`EncoderWorker::start`] does.
    pub(crate) fn start(new: NewEncoder, metrics: Arc<Metrics>) -> std::io::Result<ServedEncoder> {
        let NewEncoder { name, program, engine, tokenizer, requests, .. } = new;
        let worker = EncoderWorker::start(&name, program, engine, metrics)?;
        let places = Arc::new(Semaphore::new(requests.clamp(1, Semaphore::MAX_PERMITS)));
        Ok(ServedEncoder { name, tokenizer, worker, places })
    }

    /// The model's entry in `/v1/models`.
    pub(crate) fn facts(&self) -> Json {
        if let Some(scoring) = &self.worker.facts.scoring {
            return json!({
                "capabilities": { "rerank": scoring.ranks(), "classification": true },
                "context_length": scoring.max_tokens(),
                "labels": scoring.labels(),
            });
        }
        if let Some(tagging) = &self.worker.facts.tagging {
            return json!({
                "capabilities": { "token_classification": true },
                "context_length": tagging.max_tokens(),
                "labels": tagging.labels(),
            });
        }
        json!({
            "capabilities": { "embedding": true },
            "context_length": self.worker.facts.max_tokens,
            "embedding_length": self.worker.facts.dimension,
            "prompts": self.worker.facts.prompts.texts().keys().collect::<Vec<_>>(),
        })
    }

    /// Acquires a permit for a request, held until its response.
    ///
    /// # Errors
    /// Fails if too many requests wait.
    pub(crate) fn place(&self) -> Result<OwnedSemaphorePermit> {
        let busy = |_| ApiError::busy("as many requests as the model takes are waiting already");
        Arc::clone(&self.places).try_acquire_owned().map_err(busy)
    }

    /// Computes the vector or the scores of each text.
    ///
    /// # Errors
    /// Fails if the request times out or the worker fails.
    pub(crate) async fn rows(
        &self,
        app: &App,
        caller: Caller,
        texts: Vec<Tokens>,
        place: OwnedSemaphorePermit,
    ) -> Result<Vec<Vec<f32>>> {
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        add(&self.worker.metrics.prompt_tokens, tokens);
        if let Some(span) = traces::current() {
            span.ask(&self.name);
            span.read(tokens);
        }
        if let Some(meter) = app.rates.meter(caller) {
            meter.add_tokens(tokens);
        }
        app.progress(self.worker.submit(texts, place)?).next().await?
    }
}

/// Vectors of texts, with the number of tokens.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    pub(crate) list: Vec<Vec<f32>>,
    pub(crate) tokens: usize,
}

/// Computes the requested vectors and returns the requested encoding.
///
/// # Errors
/// Fails if the request is invalid or too many requests wait.
async fn compute_in_form(app: &App, caller: Caller, model: &Arc<ServedEncoder>, fields: Fields) -> Result<(Vectors, VectorFormat)> {
    let place = model.place()?;
    let encoder = Arc::clone(model);
    let EmbeddingRequest { texts, form, dimensions } =
        app.aside(move || EmbeddingRequest::read(fields, &encoder.tokenizer, &encoder.worker.facts)).await?;
    let tokens = texts.iter().map(|text| text.ids.len()).sum();
    let mut list = model.rows(app, caller, texts, place).await?;
    if let Some(size) = dimensions {
        list.iter_mut().for_each(|vector| shorten(vector, size));
    }
    Ok((Vectors { list, tokens }, form))
}

/// Computes the vectors of a request in OpenAI's format.
///
/// # Errors
/// Fails as [`compute_in_form`] does.
pub(crate) async fn compute(app: &App, caller: Caller, model: Arc<ServedEncoder>, fields: Fields) -> Result<Vectors> {
    compute_in_form(app, caller, &model, fields).await.map(|(vectors, _)| vectors)
}

/// `POST /v1/embeddings`: returns a vector for each text.
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response> {
    let body = body::read(request, &app.config).await?;
    let mut fields = app.parse(body).await?;
    let model = app.models.find_encoder(fields.text("model")?.as_deref()).await?;
    let (Vectors { list, tokens }, form) = compute_in_form(&app, caller, &model, fields).await?;
    let work = move || {
        serde_json::to_string(&EmbeddingList::new(&model.name, &list, form, tokens))
            .map_err(|_| ApiError::internal("the answer cannot be written"))
    };
    Ok(reply::json_text(app.aside(work).await?))
}
