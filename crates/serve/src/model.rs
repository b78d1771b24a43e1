//! A model that is served: its text side, and the thread that computes.

use std::{
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use flambeau::{
    runners::llm::{Limits, Model},
    text::{ChatTemplate, GrammarCompiler, SamplingParams, Tokenizer},
};
use serde_json::{Value as Json, json};

use crate::{
    audio::{NewSpeechModel, ServedSpeech},
    embeddings::{NewEncoder, ServedEncoder},
    error::{ApiError, Result},
    metrics::Metrics,
    tools::Form,
    worker::Worker,
};

/// A model to serve.
#[derive(Debug)]
pub struct NewModel {
    /// What clients call it.
    pub name: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    pub model: Model,
    pub tokenizer: Tokenizer,
    /// How conversations become prompts; without it, only text is continued.
    pub template: Option<ChatTemplate>,
    /// How tokens are drawn where a request does not say.
    pub sampling: SamplingParams,
    pub limits: Limits,
    /// Whether models think before they answer where a request does not say.
    pub thinks: bool,
    /// Whether tokens are guessed from the text so far, which not every model allows ([`check_judges`](flambeau::runners::llm::Sequence::check_judges)).
    pub prompt_lookup: bool,
}

/// A model of any kind to serve.
#[derive(Debug)]
pub enum AnyModel {
    /// It continues texts and answers in conversations.
    Language(Box<NewModel>),
    /// It makes vectors of texts.
    Encoder(NewEncoder),
    /// It transcribes recordings.
    Speech(NewSpeechModel),
}

impl AnyModel {
    /// Recordings that it transcribes or lets wait.
    pub(crate) fn recordings(&self) -> usize {
        match self {
            AnyModel::Speech(model) => model.running.saturating_add(model.waiting),
            AnyModel::Language(_) | AnyModel::Encoder(_) => 0,
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

/// A model behind its thread.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) tool_form: Option<Form>,
    pub(crate) sampling: SamplingParams,
    pub(crate) thinks: bool,
    pub(crate) prompt_lookup: bool,
    pub(crate) context: Option<usize>,
    pub(crate) limits: Limits,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) worker: Worker,
    /// Made when the first request asks for a form.
    grammars: OnceLock<Result<GrammarCompiler, String>>,
}

/// More bytes than a token of any known vocabulary stands for; the longest are runs of blanks.
const MAX_TOKEN_BYTES: usize = 256;

impl Served {
    pub(crate) fn start(new: NewModel) -> std::io::Result<Served> {
        let NewModel { name, aliases, model, tokenizer, template, sampling, limits, thinks, prompt_lookup } = new;
        let context = model.context();
        let stop_ids = model.metadata().eos.clone();
        let worker = Worker::start(&name, model, tokenizer.clone(), limits.clone())?;
        let tool_form = template.as_ref().and_then(|template| Form::of(template.source()));
        let created = now();
        let grammars = OnceLock::new();
        Ok(Served {
            name,
            aliases,
            created,
            tokenizer,
            template,
            tool_form,
            sampling,
            thinks,
            prompt_lookup,
            context,
            limits,
            stop_ids,
            worker,
            grammars,
        })
    }

    /// The template.
    ///
    /// # Errors
    /// The model has none.
    pub(crate) fn template(&self) -> Result<&ChatTemplate> {
        let missing =
            || ApiError::invalid(format!("the model {:?} has no chat template; /v1/completions continues text", self.name));
        self.template.as_ref().ok_or_else(missing)
    }

    /// The tokens of a prompt, which the field `param` holds.
    ///
    /// # Errors
    /// It cannot fit the context, or cannot be written as tokens.
    pub(crate) fn encode(&self, text: &str, add_special: bool, param: &str) -> Result<Vec<u32>> {
        // Encoding takes some hundred times the memory of the text, and is not begun in vain.
        if let Some(context) = self.context.filter(|context| text.len() > context.saturating_mul(MAX_TOKEN_BYTES)) {
            let message = format!("the prompt has {} bytes, and the model's context holds {context} tokens", text.len());
            return Err(ApiError::too_long(message));
        }
        self.tokenizer.encode(text, add_special).map_err(|error| ApiError::value(param, error.to_string()))
    }

    /// What makes answers have a form.
    ///
    /// # Errors
    /// The model's tokens do not allow that; `param` asked for it.
    pub(crate) fn grammars(&self, param: &str) -> Result<&GrammarCompiler> {
        let compiler = self.grammars.get_or_init(|| {
            let mut ends = self.stop_ids.clone();
            ends.extend(self.tokenizer.eos_ids().iter().filter(|id| !self.stop_ids.contains(id)));
            GrammarCompiler::new(&self.tokenizer, &ends).map_err(|error| error.to_string())
        });
        compiler
            .as_ref()
            .map_err(|error| ApiError::unsupported(param, format!("`{param}` is not supported by {:?}: {error}", self.name)))
    }

    /// An entry of `/v1/models`.
    pub(crate) fn describe(&self) -> Json {
        let capabilities = json!({
            "chat": self.template.is_some(),
            "completion": true,
            "tools": self.tool_form.is_some(),
        });
        let mut entry = entry(&self.name, &self.aliases, self.created, capabilities);
        entry["context_length"] = self.context.into();
        entry
    }
}

/// An entry of `/v1/models` for a model of any kind.
pub(crate) fn entry(name: &str, aliases: &[String], created: u64, capabilities: Json) -> Json {
    json!({
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "flambeau",
        "aliases": aliases,
        "capabilities": capabilities,
    })
}

/// Whether clients that write `wanted` mean the model of these names.
pub(crate) fn is_called(name: &str, aliases: &[String], wanted: &str) -> bool {
    name == wanted || aliases.iter().any(|alias| alias == wanted)
}

/// The models of a server.
#[derive(Clone, Debug)]
pub(crate) struct Models {
    all: Arc<Vec<Served>>,
    encoders: Arc<Vec<ServedEncoder>>,
    speech: Arc<Vec<ServedSpeech>>,
}

impl Models {
    /// Starts the threads of all models.
    ///
    /// # Errors
    /// One cannot be loaded, or the system has no thread left.
    pub(crate) fn start(models: Vec<AnyModel>) -> std::io::Result<Models> {
        let (mut all, mut encoders, mut speech) = (Vec::new(), Vec::new(), Vec::new());
        for model in models {
            match model {
                AnyModel::Language(model) => all.push(Served::start(*model)?),
                AnyModel::Encoder(model) => encoders.push(ServedEncoder::start(model)?),
                AnyModel::Speech(model) => speech.push(ServedSpeech::start(model)?),
            }
        }
        Ok(Models { all: Arc::new(all), encoders: Arc::new(encoders), speech: Arc::new(speech) })
    }

    /// The entries of `/v1/models`.
    pub(crate) fn describe(&self) -> Json {
        let others = self.encoders.iter().map(ServedEncoder::describe).chain(self.speech.iter().map(ServedSpeech::describe));
        self.all.iter().map(Served::describe).chain(others).collect()
    }

    /// The entry of one model.
    ///
    /// # Errors
    /// Nobody is called so.
    pub(crate) fn describe_one(&self, name: &str) -> Result<Json> {
        let encoder = || self.encoders.iter().find(|model| model.is_called(name)).map(ServedEncoder::describe);
        let speech = self.speech.iter().find(|model| model.is_called(name)).map(ServedSpeech::describe);
        speech.or_else(encoder).map_or_else(|| Ok(self.find(Some(name))?.describe()), Ok)
    }

    /// What each model counts.
    pub(crate) fn metrics(&self) -> Vec<(&str, &Metrics)> {
        let speech = self.speech.iter().map(|model| (model.name.as_str(), model.metrics()));
        let encoders = self.encoders.iter().map(|model| (model.name.as_str(), model.metrics()));
        self.all.iter().map(|model| (model.name.as_str(), &*model.worker.metrics)).chain(encoders).chain(speech).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Served> {
        self.all.iter()
    }

    /// The first of them.
    pub(crate) fn first(&self) -> Option<&Served> {
        self.all.first()
    }

    /// The model of speech of that name; without a name, the only one.
    ///
    /// # Errors
    /// Nobody is called so, or there are several; or the model is one of language.
    pub(crate) fn find_speech(&self, name: Option<&str>) -> Result<&ServedSpeech> {
        match (name, self.speech.as_slice()) {
            (None, [only]) => Ok(only),
            (None, _) => Err(unnamed()),
            (Some(name), all) => all.iter().find(|model| model.is_called(name)).ok_or_else(|| match self.find(Some(name)) {
                Ok(_) => ApiError::value("model", format!("the model {name:?} does not transcribe")),
                Err(error) => error,
            }),
        }
    }

    /// The text encoder of that name; without a name, the only one.
    ///
    /// # Errors
    /// Nobody is called so, or there are several; or the model is of another kind.
    pub(crate) fn find_encoder(&self, name: Option<&str>) -> Result<&ServedEncoder> {
        match (name, self.encoders.as_slice()) {
            (None, [only]) => Ok(only),
            (None, _) => Err(unnamed()),
            (Some(name), all) => all.iter().find(|model| model.is_called(name)).ok_or_else(|| match self.describe_one(name) {
                Ok(_) => ApiError::value("model", format!("the model {name:?} makes no vectors of texts")),
                Err(error) => error,
            }),
        }
    }

    /// The language model of that name; without a name, the only one.
    ///
    /// # Errors
    /// Nobody is called so, or there are several; or the model is of another kind.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<Handle> {
        let at = match (name, self.all.len()) {
            (None, 1) => Some(0),
            (None, _) => return Err(unnamed()),
            (Some(name), _) => self.all.iter().position(|model| is_called(&model.name, &model.aliases, name)),
        };
        match at {
            Some(at) => Ok(Handle { models: self.clone(), at }),
            None => {
                let name = name.unwrap_or_default();
                let other = |what: &str| ApiError::value("model", format!("the model {name:?} {what}"));
                Err(match () {
                    () if self.speech.iter().any(|model| model.is_called(name)) => {
                        other("transcribes recordings, at /v1/audio/transcriptions")
                    }
                    () if self.encoders.iter().any(|model| model.is_called(name)) => {
                        other("makes vectors of texts, at /v1/embeddings")
                    }
                    () => ApiError::no_model(name),
                })
            }
        }
    }
}

fn unnamed() -> ApiError {
    ApiError::value("model", "`model` must name one of the models; GET /v1/models lists them")
}

/// One of the models.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    models: Models,
    at: usize,
}

impl std::ops::Deref for Handle {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.models.all[self.at]
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
