//! A served speech model.

mod worker;

use std::sync::Arc;

use flambeau::{engine::Engine, runtime::Program, text::Tokenizer};

use self::worker::SpeechWorker;
pub(crate) use self::worker::{LiveSound, Source, SpeechUpdate};
use crate::metrics::Metrics;

/// A speech model to serve.
#[derive(Clone)]
pub struct NewSpeechModel {
    /// The model's public name.
    pub name: String,
    /// Aliases.
    pub aliases: Vec<String>,
    pub program: Program,
    pub engine: Arc<dyn Engine>,
    pub tokenizer: Tokenizer,
    /// Maximum number of concurrent transcriptions, at least 1. Each has its own copy of the
    /// model's state.
    pub running: usize,
    /// Maximum number of waiting recordings.
    pub waiting: usize,
}

impl std::fmt::Debug for NewSpeechModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSpeechModel").field("name", &self.name).field("running", &self.running).finish_non_exhaustive()
    }
}

/// A speech model with its worker threads.
#[derive(Debug)]
pub(crate) struct ServedSpeech {
    pub(crate) name: String,
    pub(crate) worker: SpeechWorker,
}

impl ServedSpeech {
    /// Loads the model and starts its threads, which update `metrics`.
    ///
    /// Fails as [`SpeechWorker::start`] does.
    pub(crate) fn start(new: NewSpeechModel, metrics: Arc<Metrics>) -> std::io::Result<ServedSpeech> {
        Ok(ServedSpeech { name: new.name.clone(), worker: SpeechWorker::start(new, metrics)? })
    }
}
