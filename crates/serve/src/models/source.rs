//! Model sources: preloaded models and on-demand models.

use std::fmt;

use flambeau::runners::{
    embed::{Classifier, Tagger},
    llm::AdapterFacts,
};
use serde_json::{Value as Json, json};

use crate::{encoder::NewEncoder, model::NewModel, speech::NewSpeechModel};

/// A model of any kind to serve.
#[derive(Debug)]
pub enum AnyModel {
    /// A language model.
    Language(Box<NewModel>),
    /// A text encoder or classifier.
    Encoder(NewEncoder),
    /// A speech model.
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
            AnyModel::Encoder(model) if Classifier::is_in(&model.program) || Tagger::is_in(&model.program) => ModelKind::Classifier,
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

/// Kind of a model, known without loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// A language model.
    Language,
    /// A text encoder.
    Encoder,
    /// It gives scores of texts, of pairs of texts, or of tokens.
    Classifier,
    /// A speech model, with its limits of running and waiting recordings.
    Speech {
        /// Maximum number of running and waiting recordings.
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

/// Loader of a model, called at each load. The error tells why loading failed.
pub type Loader = Box<dyn Fn() -> Result<AnyModel, String> + Send + Sync>;

/// An on-demand model: loaded at its first request, unloaded when idle.
pub struct ModelOnDemand {
    /// The model's public name.
    pub name: String,
    /// Aliases.
    pub aliases: Vec<String>,
    pub kind: ModelKind,
    /// Adapters of a language model; their names also select the model.
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
