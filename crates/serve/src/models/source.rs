//! Models to serve: loaded ones, and those that are loaded on demand.

use std::fmt;

use flambeau::runners::{embed::Classifier, llm::AdapterFacts};
use serde_json::{Value as Json, json};

use crate::{audio::NewSpeechModel, embeddings::NewEncoder, model::NewModel};

/// A model of any kind to serve.
#[derive(Debug)]
pub enum AnyModel {
    /// It continues texts and answers in conversations.
    Language(Box<NewModel>),
    /// It makes vectors of texts, or gives scores of texts and pairs of texts.
    Encoder(NewEncoder),
    /// It transcribes recordings.
    Speech(NewSpeechModel),
}

impl AnyModel {
    pub(super) fn names(&self) -> (&str, &[String]) {
        match self {
            AnyModel::Language(model) => (&model.name, &model.aliases),
            AnyModel::Encoder(model) => (&model.name, &model.aliases),
            AnyModel::Speech(model) => (&model.name, &model.aliases),
        }
    }

    pub(super) fn adapters(&self) -> Vec<AdapterFacts> {
        match self {
            AnyModel::Language(model) => model.model.metadata().adapters.clone(),
            AnyModel::Encoder(_) | AnyModel::Speech(_) => Vec::new(),
        }
    }

    pub(super) fn kind(&self) -> ModelKind {
        match self {
            AnyModel::Language(_) => ModelKind::Language,
            AnyModel::Encoder(model) if Classifier::is_in(&model.program) => ModelKind::Classifier,
            AnyModel::Encoder(_) => ModelKind::Encoder,
            AnyModel::Speech(model) => ModelKind::Speech { recordings: model.running.saturating_add(model.waiting) },
        }
    }
}

impl From<NewModel> for AnyModel {
    fn from(model: NewModel) -> AnyModel {
        AnyModel::Language(Box::new(model))
    }
}

impl From<NewEncoder> for AnyModel {
    fn from(model: NewEncoder) -> AnyModel {
        AnyModel::Encoder(model)
    }
}

impl From<NewSpeechModel> for AnyModel {
    fn from(model: NewSpeechModel) -> AnyModel {
        AnyModel::Speech(model)
    }
}

/// Kind of a model, known before it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// It continues texts and answers in conversations.
    Language,
    /// It makes vectors of texts.
    Encoder,
    /// It gives scores of texts, or of pairs of texts.
    Classifier,
    /// It transcribes recordings, with these numbers running and waiting.
    Speech {
        /// Recordings that are transcribed or wait.
        recordings: usize,
    },
}

impl ModelKind {
    /// Hint for a request of the wrong kind.
    pub(super) fn advice(self) -> &'static str {
        match self {
            ModelKind::Language => "answers conversations, at /v1/chat/completions",
            ModelKind::Encoder => "makes vectors of texts, at /v1/embeddings",
            ModelKind::Classifier => "gives scores of texts, at /v1/rerank and /v1/classify",
            ModelKind::Speech { .. } => "transcribes recordings, at /v1/audio/transcriptions",
        }
    }

    /// Entry in `/v1/models` of a model that was never loaded.
    pub(super) fn capabilities(self) -> Json {
        match self {
            ModelKind::Language => json!({ "completion": true }),
            ModelKind::Encoder => json!({ "embedding": true }),
            ModelKind::Classifier => json!({ "classification": true }),
            ModelKind::Speech { .. } => json!({ "transcription": true }),
        }
    }
}

/// Loads a model, again and again, and says why it cannot.
pub type Loader = Box<dyn Fn() -> Result<AnyModel, String> + Send + Sync>;

/// An on-demand model: loaded at its first request, unloaded while idle.
pub struct ModelOnDemand {
    /// The model's public name.
    pub name: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    pub kind: ModelKind,
    /// Adapters of a language model, which are models by their names too.
    pub adapters: Vec<AdapterFacts>,
    pub load: Loader,
}

impl fmt::Debug for ModelOnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelOnDemand").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// A model to serve: preloaded, or loaded on demand.
#[derive(Debug)]
pub enum ModelSource {
    Loaded(AnyModel),
    OnDemand(ModelOnDemand),
}

impl<M: Into<AnyModel>> From<M> for ModelSource {
    fn from(model: M) -> ModelSource {
        ModelSource::Loaded(model.into())
    }
}

impl From<ModelOnDemand> for ModelSource {
    fn from(model: ModelOnDemand) -> ModelSource {
        ModelSource::OnDemand(model)
    }
}
