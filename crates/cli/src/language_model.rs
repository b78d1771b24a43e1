//! Loads a language model from its name on the command line.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Result;
use flambeau::{
    engine::{Clock, Engine},
    runners::llm::{Model, ModelOptions, Sequence},
    runtime::Program,
    zoo,
};

use crate::{
    count::positive,
    engine::{EngineArgs, EngineName},
    file_kind::LockArgs,
    memory,
    model::{ModelArgs, Overrides},
    tokenizer::{self, TextModel},
};

/// A model with its loading flags.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LanguageModelArgs {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    how: LoadArgs,
}

/// Flags for loading any language model.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// tokenizer.json or its folder; by default the program's own, or the one in the same folder
    #[arg(long, value_name = "PATH", alias = "tokenizer-path")]
    tokenizer: Option<PathBuf>,

    /// Method that computes logits
    #[arg(long, value_name = "NAME", alias = "method-name")]
    method: Option<String>,

    /// Maximum number of prompt tokens per prefill step
    #[arg(long, value_name = "N", value_parser = positive)]
    prefill_chunk: Option<usize>,

    /// Context length in tokens, prompt and answer together, for checkpoints (as --max-seq-len) and
    /// programs without KV caches of their own; by default the model's, limited by memory
    #[arg(short = 'c', long, value_name = "N", value_parser = positive, alias = "kv-max-capacity")]
    ctx_size: Option<usize>,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// A model with its tokenizer, on its engine.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) text: TextModel,
    pub(crate) engine: Arc<dyn Engine>,
}

impl LanguageModelArgs {
    /// The model's name as given by the user.
    pub(crate) fn name(&self) -> &str {
        self.model.name()
    }

    /// Number of threads of the CPU engine, if limited.
    pub(crate) fn threads(&self) -> Option<usize> {
        self.how.engine.threads
    }

    /// Whether weights may be swapped out.
    pub(crate) fn lock(&self) -> LockArgs {
        self.model.lock()
    }

    /// Loads the model. A checkpoint without a cached program is exported first, to compute
    /// `logits`. With a clock, the engine measures times.
    pub(crate) fn load(&self, logits: zoo::Logits, clock: Option<Clock>) -> Result<Loaded> {
        self.load_with(logits, &|| self.how.engine.engine_with(clock.clone()))
    }

    /// Like [`load`](Self::load), on an existing engine.
    pub(crate) fn load_on(&self, logits: zoo::Logits, engine: &Arc<dyn Engine>) -> Result<Loaded> {
        self.load_with(logits, &|| Ok(Arc::clone(engine)))
    }

    fn load_with(&self, logits: zoo::Logits, engine: &dyn Fn() -> Result<Arc<dyn Engine>>) -> Result<Loaded> {
        let loaded = self.how.load(&self.model, logits, engine)?;
        // An MLX device may have memory of its own, and knows its limit itself.
        if self.how.engine.engine == EngineName::Cpu {
            memory::admit_caches(loaded.model.sequence_bytes() as u64)?;
        }
        Ok(loaded)
    }

    /// Another model on the same engine, with logits of every token and unquantized weights.
    pub(crate) fn load_reference(&self, name: &str, engine: &Arc<dyn Engine>) -> Result<Sequence> {
        let program = self.model.open_reference(name, zoo::Logits::All, self.how.engine.threads)?;
        let model = Model::load(&program, engine, &self.how.options())?;
        let mut sequence = model.sequence()?;
        sequence.set_adapters(&model.default_adapters())?;
        Ok(sequence)
    }
}

impl LoadArgs {
    /// Loads a model on an engine. Calls `engine` once the program is available.
    pub(crate) fn load(
        &self,
        model: &ModelArgs,
        logits: zoo::Logits,
        engine: &dyn Fn() -> Result<Arc<dyn Engine>>,
    ) -> Result<Loaded> {
        let (program, path) = model.with_overrides(self.given()).open(logits, self.engine.threads)?;
        let text = self.tokenizer(&program, &path)?;
        let engine = engine()?;
        let loaded = self.model(&program, &engine)?;
        // The context of a program is chosen when it is exported, so `-c` cannot change it.
        let is_program = path == Path::new(model.name());
        if let (true, Some(asked), Some(own)) = (is_program, self.ctx_size, loaded.context())
            && asked != own
        {
            eprintln!("-c {asked} has no effect: {} was exported with a context of {own} tokens", path.display());
        }
        Ok(Loaded { model: loaded, text, engine })
    }

    /// The language model of a program.
    pub(crate) fn model(&self, program: &Program, engine: &Arc<dyn Engine>) -> Result<Model> {
        Ok(Model::load(program, engine, &self.options())?)
    }

    /// The tokenizer of a program at `path`.
    pub(crate) fn tokenizer(&self, program: &Program, path: &Path) -> Result<TextModel> {
        tokenizer::find(program, path, self.tokenizer.as_deref())
    }

    /// Settings that override the checkpoint's.
    pub(crate) fn given(&self) -> Overrides {
        Overrides { tokenizer: self.tokenizer.is_some(), context: self.ctx_size }
    }

    /// Whether a tokenizer flag is given.
    pub(crate) fn tokenizer_is_given(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Limits the step size unless a flag sets it.
    pub(crate) fn default_chunk(&mut self, tokens: usize) {
        self.prefill_chunk.get_or_insert(tokens);
    }

    fn options(&self) -> ModelOptions {
        ModelOptions { method: self.method.clone(), chunk: self.prefill_chunk, context: self.ctx_size }
    }
}
