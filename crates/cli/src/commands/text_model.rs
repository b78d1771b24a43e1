//! Models that read whole texts: encoders and classifiers.

use std::{io, path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use flambeau::{
    engine::Engine,
    runners::embed::{Classifier, Embedder, Tagger},
    runtime::Program,
    text::Tokenizer,
};

use crate::{
    engine::EngineArgs,
    failure::usage,
    model::{Kind, ModelArgs, Opened},
    tokenizer,
};

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

    /// Loads a classifier of texts or of tokens on an engine.
    pub(crate) fn labeller(&self, engine: &Arc<dyn Engine>) -> Result<(Labeller, Tokenizer)> {
        let Opened { program, path, kind } = self.model.open_labeller(self.engine.threads)?;
        let labeller = match kind {
            Kind::Tagger => Labeller::OfTokens(Tagger::load(&program, engine)?),
            _ => Labeller::OfTexts(Classifier::load(&program, engine)?),
        };
        let tokenizer = self.tokenizer(&(program, path))?;
        Ok((labeller, tokenizer))
    }

    fn tokenizer(&self, (program, path): &(Program, PathBuf)) -> Result<Tokenizer> {
        Ok(tokenizer::find(program, path, self.tokenizer.as_deref())?.tokenizer)
    }
}

/// A classifier by what it gives labels to.
pub(crate) enum Labeller {
    OfTexts(Classifier),
    OfTokens(Tagger),
}

/// The texts, with the lines of stdin in the place of `-`.
pub(crate) fn texts(given: &[String]) -> Result<Vec<String>> {
    if given.iter().filter(|text| *text == "-").count() > 1 {
        return Err(usage("stdin can be read only once: `-` stands for all of its lines"));
    }
    let mut texts = Vec::with_capacity(given.len());
    for text in given {
        if text == "-" {
            for line in io::stdin().lines() {
                texts.push(line.context("stdin")?);
            }
        } else {
            texts.push(text.clone());
        }
    }
    Ok(texts)
}
