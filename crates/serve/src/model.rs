//! A served model: its tokenizer and template, and the thread that computes.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use flambeau::{
    runners::llm::{Adapters, DiskCache, Limits, Model, Scheduler},
    text::{ChatTemplate, GrammarCompiler, SamplingParams, Tokenizer},
};
use serde_json::{Value as Json, json};

use crate::{
    error::{ApiError, Result},
    gaps::Infill,
    lora::Lora,
    metrics::Metrics,
    tools::{ControlTokens, ToolFormat},
    worker::Worker,
};

/// A model to serve.
#[derive(Debug)]
pub struct NewModel {
    /// The model's public name.
    pub name: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    pub model: Model,
    pub tokenizer: Tokenizer,
    /// How conversations become prompts; without it, only text is continued. Or why the model's
    /// template cannot be used, which requests with
    /// conversations are then told.
    pub template: Result<Option<ChatTemplate>, String>,
    /// How tokens are drawn where a request does not say.
    pub sampling: SamplingParams,
    pub limits: Limits,
    /// Whether models think before they answer where a request does not say.
    pub thinks: bool,
    /// Whether tokens are guessed from the text so far, which not every model allows
    /// ([`check_judges`](flambeau::runners::llm::Model::check_judges)).
    pub prompt_lookup: bool,
}

/// A model behind its thread.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) tokenizer: Tokenizer,
    template: Result<Option<ChatTemplate>, String>,
    /// How the model calls tools, or why it cannot.
    tool_format: Result<ToolFormat, &'static str>,
    control_tokens: OnceLock<ControlTokens>,
    pub(crate) sampling: SamplingParams,
    pub(crate) thinks: bool,
    pub(crate) prompt_lookup: bool,
    pub(crate) context: Option<usize>,
    /// Bytes of the program's files.
    program_bytes: usize,
    pub(crate) limits: Limits,
    pub(crate) stop_ids: Vec<u32>,
    /// The control tokens of gaps in texts, if the model has some.
    pub(crate) infill: Option<Infill>,
    pub(crate) worker: Worker,
    pub(crate) lora: Lora,
    /// Made when the first request asks for a form.
    grammars: OnceLock<Result<GrammarCompiler, String>>,
}

/// Bound above the bytes of any token in known vocabularies; the longest are runs of blanks.
const MAX_TOKEN_BYTES: usize = 256;

impl Served {
    /// Starts the model's thread, which counts on `metrics` and keeps texts on the disk if there is
    /// a folder for them.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(new: NewModel, metrics: Arc<Metrics>, disk: Option<DiskCache>) -> std::io::Result<Served> {
        let NewModel { name, model, tokenizer, template, sampling, limits, thinks, prompt_lookup, .. } = new;
        let context = model.context();
        let lora = Lora::new(model.metadata().adapters.clone());
        let program_bytes = model.program_bytes();
        let stop_ids = model.metadata().eos.clone();
        let (text, bounds) = (tokenizer.clone(), limits.clone());
        let scheduler = move || {
            let scheduler = Scheduler::new(model.clone(), text.clone(), bounds.clone());
            disk.iter().fold(scheduler, Scheduler::with_disk)
        };
        let worker = Worker::start(&name, scheduler, metrics)?;
        let usable = template.as_ref().ok().and_then(Option::as_ref);
        let tool_format = usable.map_or(Err("cannot be used"), ToolFormat::of);
        let infill = Infill::of(&tokenizer);
        let grammars = OnceLock::new();
        Ok(Served {
            name,
            tokenizer,
            template,
            tool_format,
            control_tokens: OnceLock::new(),
            sampling,
            thinks,
            prompt_lookup,
            context,
            program_bytes,
            limits,
            stop_ids,
            infill,
            worker,
            lora,
            grammars,
        })
    }

    /// The template.
    ///
    /// # Errors
    /// The model has none, or one that cannot be used.
    pub(crate) fn template(&self) -> Result<&ChatTemplate> {
        let refused = match &self.template {
            Ok(Some(template)) => return Ok(template),
            Ok(None) => format!("the model {:?} has no chat template", self.name),
            Err(error) => format!("the chat template of {:?} cannot be used: {error}", self.name),
        };
        Err(ApiError::invalid(format!("{refused}; /v1/completions continues text")))
    }

    /// How the model calls tools.
    ///
    /// # Errors
    /// Its template shows no calls, or calls in no known format.
    pub(crate) fn tool_format(&self) -> Result<ToolFormat> {
        let refused = |reason| ApiError::unsupported("tools", format!("the chat template of {:?} {reason}", self.name));
        self.tool_format.map_err(refused)
    }

    /// The model's control tokens.
    pub(crate) fn control_tokens(&self) -> &ControlTokens {
        self.control_tokens.get_or_init(|| ControlTokens::of(&self.tokenizer))
    }

    /// The text of the template, if it can be used.
    pub(crate) fn template_source(&self) -> Option<&str> {
        self.template.as_ref().ok()?.as_ref().map(ChatTemplate::source)
    }

    /// Whether the template knows of thoughts.
    fn thinks_in_template(&self) -> bool {
        let names = ["enable_thinking", "reasoning_effort", "reasoning_content"];
        self.template_source().is_some_and(|source| names.iter().any(|name| source.contains(name)))
    }

    /// The tokens of a prompt, which the field `param` holds.
    ///
    /// # Errors
    /// It cannot fit the context, or cannot be written as tokens.
    pub(crate) fn encode(&self, text: &str, add_special: bool, param: &str) -> Result<Vec<u32>> {
        self.check_bytes(text.len())?;
        let ids = if add_special { self.tokenizer.encode_prompt(text) } else { self.tokenizer.encode(text, false) };
        ids.map_err(|error| ApiError::value(param, error.to_string()))
    }

    /// Checks the length of a prompt in bytes before it is encoded: encoding takes some hundred
    /// times the memory of the text.
    ///
    /// # Errors
    /// The prompt cannot fit the context.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<()> {
        match self.context.filter(|context| bytes > context.saturating_mul(MAX_TOKEN_BYTES)) {
            Some(context) => {
                let message = format!("the prompt has {bytes} bytes, and the model's context holds {context} tokens");
                Err(ApiError::too_long(message))
            }
            None => Ok(()),
        }
    }

    /// Builds the constraints of answers.
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

    /// Its entry in `/v1/models`.
    pub(crate) fn facts(&self) -> Json {
        json!({
            "capabilities": {
                "chat": self.template_source().is_some(),
                "completion": true,
                "tools": self.tool_format.is_ok(),
                "tool_format": self.tool_format.ok().map(|found| found.format.name),
                "insert": self.infill.is_some(),
                "thinking": self.thinks_in_template(),
            },
            "context_length": self.context,
            "size": self.program_bytes,
        })
    }
}

/// A loaded model in the hands of a request.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    served: Arc<Served>,
    /// Name of the model or of its adapter.
    pub(crate) name: String,
    /// Index of the adapter.
    adapter: Option<usize>,
}

impl Handle {
    /// The model itself.
    pub(crate) fn base(served: Arc<Served>) -> Handle {
        Handle { name: served.name.clone(), served, adapter: None }
    }

    /// The model with one of its adapters.
    pub(crate) fn with_adapter(self, adapter: Option<(usize, String)>) -> Handle {
        match adapter {
            Some((at, name)) => Handle { name, adapter: Some(at), ..self },
            None => self,
        }
    }

    /// The adapters for a request that does not set their scales itself.
    pub(crate) fn adapters(&self) -> Adapters {
        self.lora.chosen(self.adapter)
    }
}

impl Deref for Handle {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
