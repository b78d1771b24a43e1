//! An embedding case: a tiny text encoder in its published form, texts, and their vectors.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, bail};
use flambeau::{
    engine::Engine,
    runners::embed::{Embedder, Tokens},
    tensor::{Tensor, Tolerance, compare},
    text::Tokenizer,
    zoo::{self, TokenizerSource},
};
use serde_json::Value as Json;

use super::{
    Outcome,
    checkpoint::{one, program_with, published},
};
use crate::tokenizer;

/// `case.json` of a text encoder.
pub(super) struct EmbeddingCase {
    tolerance: Tolerance,
    /// Texts whose tokens are checked; empty if the checkpoint has numbered tokens only.
    texts: Vec<String>,
    /// The tokens of each text.
    ids: Vec<Vec<u32>>,
    /// The prompt of each text that has one. The text begins with it.
    prompts: Vec<Option<String>>,
    pooling: String,
    is_normalized: bool,
}

impl EmbeddingCase {
    pub(super) fn read(json: &Json, tolerance: Tolerance) -> Result<EmbeddingCase> {
        let read = || -> Option<EmbeddingCase> {
            let ids = |list: &Json| list.as_array()?.iter().map(|id| id.as_u64()?.try_into().ok()).collect();
            let prompts = json["prompts"].as_array().map_or(&[][..], Vec::as_slice);
            Some(EmbeddingCase {
                tolerance,
                texts: json["texts"].as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>()?,
                ids: json["ids"].as_array()?.iter().map(ids).collect::<Option<_>>()?,
                prompts: prompts.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
                pooling: json["pooling"].as_str()?.to_owned(),
                is_normalized: json["normalized"].as_bool()?,
            })
        };
        read().context("case.json lacks texts, their ids, the pooling or whether vectors are normalized")
    }

    /// Exports the checkpoint in f32. Compares the vectors of all texts in one batch, and of each
    /// text alone, with the case.
    pub(super) fn run(&self, folder: &Path, engine: &Arc<dyn Engine>) -> Result<Outcome> {
        let checkpoint = published(folder)?;
        if !self.texts.is_empty() {
            self.check_tokens(&checkpoint)?;
        }
        let program = program_with(&checkpoint, &zoo::Options::default(), engine)?;
        let mut embedder = Embedder::load(&program, engine)?;
        if (embedder.pooling(), embedder.is_normalized()) != (self.pooling.as_str(), self.is_normalized) {
            bail!("pooling is {}, normalized {}", embedder.pooling(), embedder.is_normalized());
        }
        let texts = self.tokens(&embedder)?;
        let expected = one(folder, "embeddings.bin")?;
        let together = embedder.embed_tasks(&texts.iter().collect::<Vec<_>>())?.concat();
        let alone = texts.iter().map(|text| embedder.embed_tasks(&[text])).collect::<Result<Vec<_>, _>>()?.concat().concat();
        for (how, found) in [("together", together), ("alone", alone)] {
            let found = Tensor::from_slice(&found, &[texts.len(), embedder.dimension()])?;
            compare(&found, &expected, self.tolerance).with_context(|| format!("vectors of texts {how}"))?;
        }
        Ok(Outcome::Passed(Vec::new()))
    }

    /// The tokens of each text with the task of its prompt.
    fn tokens(&self, embedder: &Embedder) -> Result<Vec<Tokens>> {
        let tokens = |(at, ids): (usize, &Vec<u32>)| {
            let Some(name) = self.prompts.get(at).and_then(Option::as_ref) else { return Ok(Tokens::from(ids.clone())) };
            let prompt = embedder.prompts().named(name).with_context(|| format!("the model lacks the prompt {name}"))?;
            if self.texts.get(at).is_some_and(|text| !text.starts_with(&prompt.text)) {
                bail!("the prompt {name} is {:?}", prompt.text);
            }
            Ok(Tokens { task: prompt.task, ..Tokens::from(ids.clone()) })
        };
        self.ids.iter().enumerate().map(tokens).collect()
    }

    /// Compares the tokens of the texts with the case.
    fn check_tokens(&self, checkpoint: &Path) -> Result<()> {
        let tokenizer = match crate::checkpoint::open_path(checkpoint)?.tokenizer() {
            TokenizerSource::Gguf(vocab) => Tokenizer::from_gguf(vocab)?,
            _ => tokenizer::at(checkpoint)?.tokenizer,
        };
        for (text, ids) in self.texts.iter().zip(&self.ids) {
            let found = tokenizer.encode(text, true)?;
            if found != *ids {
                bail!("the tokens of {text:?} are {found:?}, expected {ids:?}");
            }
        }
        Ok(())
    }
}
