//! Loads models of every kind for the server.

use std::sync::Arc;

use anyhow::{Result, bail};
use flambeau::{
    engine::Engine,
    runners::llm::{AdapterFacts, Limits, Metadata, Model},
};
use flambeau_serve::{AnyModel, ModelKind, NewEncoder, NewModel, NewSpeechModel};

use super::sampling::DefaultsArgs;
use crate::{
    count::positive,
    draft::DraftArgs,
    engine::EngineName,
    failure::hint,
    file_kind::LockArgs,
    language_model::LoadArgs,
    memory,
    model::{ExportArgs, Kind, ModelArgs, Opened},
    prompt::TemplateArgs,
    shift::ShiftArgs,
};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LoadingArgs {
    /// Maximum number of running requests per model; at most two recordings per speech model
    #[arg(help_heading = "Scheduling", long, value_name = "N", default_value_t = 4, value_parser = positive, alias = "np", alias = "max-seqs")]
    pub(crate) parallel: usize,

    /// Maximum number of sequences per model that stay loaded with earlier texts; by default twice
    /// --parallel
    #[arg(help_heading = "Scheduling", long, value_name = "N", value_parser = positive, alias = "prompt-cache-size")]
    pub(crate) sequences: Option<usize>,

    /// Maximum memory for the caches of all sequences of a model in MiB; by default half of the
    /// free memory, shared by the models
    #[arg(help_heading = "Scheduling", long, value_name = "N", value_parser = positive)]
    pub(crate) cache_memory: Option<usize>,

    /// Memory limit of the prompt cache in MiB, shared by all models: a prompt with a cached prefix
    /// computes only the rest. 0 disables it; by default a quarter of the free memory, at most 8
    /// GiB
    #[arg(help_heading = "Scheduling", long, value_name = "N", alias = "cram")]
    pub(crate) cache_ram: Option<usize>,

    /// Maximum total length of a model's running requests in tokens: prompts and longest answers
    #[arg(help_heading = "Scheduling", long, value_name = "N", value_parser = positive)]
    pub(crate) max_tokens_in_flight: Option<usize>,

    #[command(flatten)]
    pub(crate) defaults: DefaultsArgs,

    /// Enable thinking by default, if the template supports it; requests may override it
    #[arg(long)]
    pub(crate) think: bool,

    #[command(flatten)]
    pub(crate) template: TemplateArgs,

    #[command(flatten)]
    pub(crate) shift: ShiftArgs,

    #[command(flatten)]
    pub(crate) draft: DraftArgs,

    #[command(flatten)]
    pub(crate) load: LoadArgs,

    #[command(flatten)]
    pub(crate) lock: LockArgs,

    #[command(flatten)]
    pub(crate) export: ExportArgs,
}

/// Prompt tokens per step on a CPU. It limits how long a prompt delays other answers.
const CPU_CHUNK: usize = 128;

/// Concurrent transcriptions per speech model: with two, a short recording need not wait for a long
/// one. Each takes memory.
const RECORDINGS: usize = 2;

const MIB: usize = 1 << 20;

/// Memory for snapshots of idle texts in bytes.
const MOST_KEPT: u64 = 8 << 30;

/// Loading settings: the flags, and values that commands derive from them.
#[derive(Clone, Debug)]
pub(crate) struct Loading {
    pub(crate) args: LoadingArgs,
    /// Aliases of each model.
    pub(crate) aliases: Vec<String>,
    /// Maximum number of waiting requests per model.
    pub(crate) queue: usize,
    /// Maximum number of loaded models, at least 1.
    pub(crate) models: usize,
}

impl Loading {
    /// The model's file, and its kind.
    pub(crate) fn open(&self, model: &ModelArgs) -> Result<Opened> {
        model.open_any(self.args.draft.logits(), self.args.load.engine.threads)
    }

    /// Kind and adapters of an on-demand model.
    pub(crate) fn describe(&self, model: &ModelArgs) -> Result<(ModelKind, Vec<AdapterFacts>)> {
        let opened = self.open(model)?;
        let kind = match opened.kind {
            Kind::Language => ModelKind::Language,
            Kind::Encoder => ModelKind::Encoder,
            Kind::Classifier | Kind::Tagger => ModelKind::Classifier,
            Kind::Speech => ModelKind::Speech { recordings: self.args.parallel.min(RECORDINGS).saturating_add(self.queue) },
        };
        Ok((kind, Metadata::of(&opened.program).adapters))
    }

    /// Location of a model, with its flags.
    pub(crate) fn model(&self, name: &str) -> ModelArgs {
        ModelArgs::new(name, self.args.lock, &self.args.export).with_overrides(self.args.load.given())
    }

    /// Loads a model and detects its kind.
    pub(crate) fn load(&self, name: &str, model: &ModelArgs, engine: &Arc<dyn Engine>) -> Result<AnyModel> {
        let opened = self.open(model)?;
        Ok(match opened.kind {
            Kind::Language => {
                let new = self.load_language(name, &opened, engine)?;
                eprintln!("{name}: {}", describe(&new));
                new.into()
            }
            Kind::Encoder => {
                eprintln!("{name}: makes vectors of texts");
                self.load_encoder(name, &opened, engine)?.into()
            }
            Kind::Classifier => {
                eprintln!("{name}: gives scores of texts");
                self.load_encoder(name, &opened, engine)?.into()
            }
            Kind::Tagger => {
                eprintln!("{name}: finds entities in texts");
                self.load_encoder(name, &opened, engine)?.into()
            }
            Kind::Speech => {
                let new = self.load_speech(name, &opened, engine)?;
                eprintln!("{name}: transcribes {} recordings at a time", new.running);
                new.into()
            }
        })
    }

    fn load_language(&self, name: &str, opened: &Opened, engine: &Arc<dyn Engine>) -> Result<NewModel> {
        let args = &self.args;
        let mut how = args.load.clone();
        if args.load.engine.engine == EngineName::Cpu {
            how.default_chunk(CPU_CHUNK);
        }
        let mut text = how.tokenizer(&opened.program, &opened.path)?;
        args.template.apply(&mut text)?;
        let template = text.template.map_err(|error| error.to_string());
        if let Err(error) = &template {
            eprintln!("{name}: conversations are refused, since the chat template cannot be used: {error}");
        }
        let model = how.model(&opened.program, engine)?;
        let model = args.draft.attach(model, &text.tokenizer, engine, how.engine.threads, args.lock)?;
        Ok(NewModel {
            name: name.to_owned(),
            aliases: self.aliases.clone(),
            sampling: args.defaults.params(text.defaults.as_ref())?,
            tokenizer: text.tokenizer,
            template,
            limits: self.limits(&model)?,
            thinks: args.think,
            prompt_lookup: args.draft.looks_up(),
            shift: args.shift.shift(),
            model,
        })
    }

    fn load_encoder(&self, name: &str, opened: &Opened, engine: &Arc<dyn Engine>) -> Result<NewEncoder> {
        Ok(NewEncoder {
            name: name.to_owned(),
            aliases: self.aliases.clone(),
            program: opened.program.clone(),
            engine: Arc::clone(engine),
            tokenizer: self.args.load.tokenizer(&opened.program, &opened.path)?.tokenizer,
            requests: self.args.parallel.saturating_add(self.queue),
        })
    }

    fn load_speech(&self, name: &str, opened: &Opened, engine: &Arc<dyn Engine>) -> Result<NewSpeechModel> {
        Ok(NewSpeechModel {
            name: name.to_owned(),
            aliases: self.aliases.clone(),
            program: opened.program.clone(),
            engine: Arc::clone(engine),
            tokenizer: self.args.load.tokenizer(&opened.program, &opened.path)?.tokenizer,
            running: self.args.parallel.min(RECORDINGS),
            waiting: self.queue,
        })
    }

    /// Limits from the flags, reduced to the available memory.
    fn limits(&self, model: &Model) -> Result<Limits> {
        let args = &self.args;
        let models = self.models as u64;
        let share = memory::available().map(|free| free / 2 / models);
        let memory = args.cache_memory.map(|n| n.saturating_mul(MIB) as u64).or(share).unwrap_or(u64::MAX);
        let kept = share.map_or(0, |share| (share / 2).min(MOST_KEPT / models)) as usize;
        let kept_bytes = args.cache_ram.map_or(kept, |n| n.saturating_mul(MIB));
        let each = (model.sequence_bytes() as u64).max(1);
        let fit = usize::try_from(memory / each).unwrap_or(usize::MAX);
        if fit == 0 {
            let text = format!("the caches of a sequence take {}, and {} is there", memory::human(each), memory::human(memory));
            return Err(hint(anyhow::anyhow!(text), "a smaller --max-seq-len takes less; --cache-memory N allows more"));
        }
        let running = args.parallel.min(fit);
        if running < args.parallel {
            eprintln!("there is memory for {running} sequences of {}, and not for {}", memory::human(each), args.parallel);
        }
        let context = model.context().unwrap_or(usize::MAX);
        let tokens = args.max_tokens_in_flight.unwrap_or(running.saturating_mul(context));
        if tokens < 2 {
            bail!("--max-tokens-in-flight has no room for a prompt and a token");
        }
        let sequences = args.sequences.unwrap_or(args.parallel.saturating_mul(2)).clamp(running, fit);
        Ok(Limits { running, sequences, waiting: self.queue, tokens, kept_bytes })
    }
}

fn describe(model: &NewModel) -> String {
    let context =
        model.model.context().map_or_else(|| "a context of unknown length".into(), |n| format!("a context of {n} tokens"));
    let each = memory::human(model.model.sequence_bytes() as u64);
    let Limits { running, sequences, kept_bytes, .. } = model.limits;
    let kept = memory::human(kept_bytes as u64);
    format!("{context}, {running} requests at a time, up to {sequences} sequences of {each}, copies of up to {kept}")
}
