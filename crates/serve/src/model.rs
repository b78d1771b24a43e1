//! A served language model: tokenizer, template and worker thread.

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
    /// Aliases.
    pub aliases: Vec<String>,
    pub model: Model,
    pub tokenizer: Tokenizer,
    /// The chat template, or the reason why it is unusable, which chat requests then report.
    /// `None`: the model only completes text.
    pub template: Result<Option<ChatTemplate>, String>,
    /// Default sampling settings.
    pub sampling: SamplingParams,
    pub limits: Limits,
    /// Whether models think by default.
    pub thinks: bool,
    /// Whether prompt lookup drafts tokens; not every model supports it
    /// ([`check_judges`](flambeau::runners::llm::Model::check_judges)).
    pub prompt_lookup: bool,
    /// Whether answers continue when the context is full, and how many tokens of the prompt stay:
    /// [`Request::shift`](flambeau::runners::llm::Request::shift).
    pub shift: Option<usize>,
}

/// A language model with its thread.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) tokenizer: Tokenizer,
    template: Result<Option<ChatTemplate>, String>,
    /// The model's tool format, or the reason why it has none.
    tool_format: Result<ToolFormat, &'static str>,
    control_tokens: OnceLock<ControlTokens>,
    pub(crate) sampling: SamplingParams,
    pub(crate) thinks: bool,
    pub(crate) prompt_lookup: bool,
    pub(crate) shift: Option<usize>,
    pub(crate) context: Option<usize>,
    /// Size of the program's files in bytes.
    program_bytes: usize,
    pub(crate) limits: Limits,
    pub(crate) stop_ids: Vec<u32>,
    /// The model's fill-in-the-middle tokens, if any.
    pub(crate) infill: Option<Infill>,
    pub(crate) worker: Worker,
    pub(crate) lora: Lora,
    /// Grammar compiler, created on first use.
    grammars: OnceLock<Result<GrammarCompiler, String>>,
}

/// Upper bound of the bytes of any token in known vocabularies; the longest tokens are runs of
/// blanks.
const MAX_TOKEN_BYTES: usize = 256;

impl Served {
    /// Starts the model's thread, which updates `metrics` and caches prompts on disk if a folder is
    /// given.
    ///
    /// # Errors
    /// Fails if the thread cannot start.
    pub(crate) fn start(new: NewModel, metrics: Arc<Metrics>, disk: Option<DiskCache>) -> std::io::Result<Served> {
        let NewModel { name, model, tokenizer, template, sampling, limits, thinks, prompt_lookup, shift, .. } = new;
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
            shift,
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

    /// The chat template.
    ///
    /// # Errors
    /// Fails if the model has no usable template.
    pub(crate) fn template(&self) -> Result<&ChatTemplate> {
        let refused = match &self.template {
            Ok(Some(template)) => return Ok(template),
            Ok(None) => format!("the model {:?} has no chat template", self.name),
            Err(error) => format!("the chat template of {:?} cannot be used: {error}", self.name),
        };
        Err(ApiError::invalid(format!("{refused}; /v1/completions continues text")))
    }

    /// The model's tool format.
    ///
    /// # Errors
    /// Fails if the template shows no calls or an unknown format.
    pub(crate) fn tool_format(&self) -> Result<ToolFormat> {
        let refused = |reason| ApiError::unsupported("tools", format!("the chat template of {:?} {reason}", self.name));
        self.tool_format.map_err(refused)
    }

    /// The model's control tokens.
    pub(crate) fn control_tokens(&self) -> &ControlTokens {
        self.control_tokens.get_or_init(|| ControlTokens::of(&self.tokenizer))
    }

    /// Source of the template, if it is usable.
    pub(crate) fn template_source(&self) -> Option<&str> {
        self.template.as_ref().ok()?.as_ref().map(ChatTemplate::source)
    }

    /// Whether the template supports thoughts.
    fn thinks_in_template(&self) -> bool {
        let names = ["enable_thinking", "reasoning_effort", "reasoning_content"];
        self.template_source().is_some_and(|source| names.iter().any(|name| source.contains(name)))
    }

    /// Tokenizes a prompt; `param` names its field.
    ///
    /// # Errors
    /// Fails if the prompt exceeds the context or cannot be encoded.
    pub(crate) fn encode(&self, text: &str, add_special: bool, param: &str) -> Result<Vec<u32>> {
        self.check_bytes(text.len())?;
        let ids = if add_special { self.tokenizer.encode_prompt(text) } else { self.tokenizer.encode(text, false) };
        ids.map_err(|error| ApiError::value(param, error.to_string()))
    }

    /// Checks a prompt's length in bytes before tokenization, which takes several hundred times the
    /// memory of the text.
    ///
    /// # Errors
    /// Fails if the prompt exceeds the context.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<()> {
        match self.context.filter(|context| bytes > context.saturating_mul(MAX_TOKEN_BYTES)) {
            Some(context) => {
                let message = format!("the prompt has {bytes} bytes, and the model's context holds {context} tokens");
                Err(ApiError::too_long(message))
            }
            None => Ok(()),
        }
    }

    /// The grammar compiler.
    ///
    /// # Errors
    /// Fails if the model's vocabulary does not support constraints; the error names `param`.
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

    /// The model's entry in `/v1/models`.
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

/// A loaded model, in use by a request.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    served: Arc<Served>,
    /// Requested name: the model's or the adapter's.
    pub(crate) name: String,
    /// Index of the requested adapter.
    adapter: Option<usize>,
}

impl Handle {
    /// The model without an adapter.
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

    /// Adapter scales for requests that set none.
    pub(crate) fn adapters(&self) -> Adapters {
        self.lora.request_scales(self.adapter)
    }
}

impl Deref for Handle {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

/// Unix time in seconds.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
