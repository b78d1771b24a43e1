//! A served text encoder or classifier.

mod worker;

use std::sync::Arc;

use flambeau::{engine::Engine, runtime::Program, text::Tokenizer};
use serde_json::{Value as Json, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::worker::EncoderWorker;
pub(crate) use self::worker::Facts;
use crate::{
    error::{ApiError, Result},
    metrics::Metrics,
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
}
