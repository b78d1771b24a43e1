//! From a name on the command line to a language model that is ready to run.

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
    model::{Given, ModelArgs},
    tokenizer::{self, TextModel},
};

/// A model and how it is loaded.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LanguageModelArgs {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    how: LoadArgs,
}

/// How a model is loaded, whatever it is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// tokenizer.json or the folder that holds it; by default the program's own, or the one beside
    /// it
    #[arg(long, value_name = "PATH", alias = "tokenizer-path")]
    tokenizer: Option<PathBuf>,

    /// Method that computes logits
    #[arg(long, value_name = "NAME", alias = "method-name")]
    method: Option<String>,

    /// Most prompt tokens that one prefill step takes
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
    /// The model as the user calls it.
    pub(crate) fn name(&self) -> &str {
        self.model.name()
    }

    /// Threads of the CPU engine, where they are bounded.
    pub(crate) fn threads(&self) -> Option<usize> {
        self.how.engine.threads
    }

    /// Whether weights may leave memory.
    pub(crate) fn lock(&self) -> LockArgs {
        self.model.lock()
    }

    /// Loads the model; a checkpoint is exported first unless the cache has its program, which
    /// computes `logits`. With a clock the
    /// engine measures.
    pub(crate) fn load(&self, logits: zoo::Logits, clock: Option<Clock>) -> Result<Loaded> {
        self.load_with(logits, &|| self.how.engine.engine_with(clock.clone()))
    }

    /// As [`load`](Self::load), on an engine that is there already.
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

    /// Another model on the same engine, also with the logits of every token; weights are not
    /// quantized on the way.
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
        let (program, path) = model.beside(self.given()).open(logits, self.engine.threads)?;
        let text = self.tokenizer(&program, &path)?;
        let engine = engine()?;
        Ok(Loaded { model: self.model(&program, &engine)?, text, engine })
    }

    /// The language model of a program.
    pub(crate) fn model(&self, program: &Program, engine: &Arc<dyn Engine>) -> Result<Model> {
        Ok(Model::load(program, engine, &self.options())?)
    }

    /// The tokenizer of a program at `path`.
    pub(crate) fn tokenizer(&self, program: &Program, path: &Path) -> Result<TextModel> {
        tokenizer::find(program, path, self.tokenizer.as_deref())
    }

    /// Settings that replace those in the checkpoint.
    pub(crate) fn given(&self) -> Given {
        Given { tokenizer: self.tokenizer.is_some(), context: self.ctx_size }
    }

    /// Whether a tokenizer was named.
    pub(crate) fn tokenizer_is_given(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Bounds the steps where no flag does.
    pub(crate) fn default_chunk(&mut self, tokens: usize) {
        self.prefill_chunk.get_or_insert(tokens);
    }

    fn options(&self) -> ModelOptions {
        ModelOptions { method: self.method.clone(), chunk: self.prefill_chunk, context: self.ctx_size }
    }
}
