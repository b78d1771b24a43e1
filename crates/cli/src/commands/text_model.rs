//! Models that read whole texts: encoders and classifiers.

use std::{path::PathBuf, sync::Arc};

use anyhow::Result;
use flambeau::{
    engine::Engine,
    runners::embed::{Classifier, Embedder},
    runtime::Program,
    text::Tokenizer,
};

use crate::{engine::EngineArgs, model::ModelArgs, tokenizer};

/// A model of whole texts and how it is loaded.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TextModelArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// tokenizer.json or the folder that holds it; by default the program's own, or the one beside
    /// it
    #[arg(long, value_name = "PATH", alias = "tokenizer-path")]
    tokenizer: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

impl TextModelArgs {
    /// Loads a text encoder on an engine.
    pub(crate) fn encoder(&self, engine: &Arc<dyn Engine>) -> Result<(Embedder, Tokenizer)> {
        let opened = self.model.open_encoder(self.engine.threads)?;
        let tokenizer = self.tokenizer(&opened)?;
        Ok((Embedder::load(&opened.0, engine)?, tokenizer))
    }

    /// Loads a classifier of texts on an engine.
    pub(crate) fn classifier(&self, engine: &Arc<dyn Engine>) -> Result<(Classifier, Tokenizer)> {
        let opened = self.model.open_classifier(self.engine.threads)?;
        let tokenizer = self.tokenizer(&opened)?;
        Ok((Classifier::load(&opened.0, engine)?, tokenizer))
    }

    fn tokenizer(&self, (program, path): &(Program, PathBuf)) -> Result<Tokenizer> {
        Ok(tokenizer::find(program, path, self.tokenizer.as_deref())?.tokenizer)
    }
}
