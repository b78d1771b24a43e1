//! The flag for speculative decoding.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use flambeau::{
    engine::Engine,
    runners::llm::{Model, ModelOptions},
    text::Tokenizer,
    zoo,
};

use crate::{
    failure::hint,
    file_kind::LockArgs,
    model::{ExportArgs, ModelArgs},
    tokenizer,
};

/// Name of prompt lookup.
const NGRAM: &str = "ngram";

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DraftArgs {
    /// Speculative decoding: draft tokens and verify several in one step of the model. `ngram`
    /// continues the last tokens as they continued earlier in the text (prompt lookup), which suits
    /// code edits; anything else names a smaller model with the same vocabulary
    #[arg(long, value_name = "ngram|MODEL", alias = "model-draft")]
    draft: Option<String>,
}

impl DraftArgs {
    /// Whether drafts come from the text.
    pub(crate) fn looks_up(&self) -> bool {
        self.draft.as_deref() == Some(NGRAM)
    }

    /// Logits that the program must compute.
    pub(crate) fn logits(&self) -> zoo::Logits {
        if self.draft.is_some() { zoo::Logits::All } else { zoo::Logits::Last }
    }

    /// The model with its draft source. Fails if the model cannot verify drafts, or if the draft
    /// model has another vocabulary.
    pub(crate) fn attach(
        &self,
        model: Model,
        tokenizer: &Tokenizer,
        engine: &Arc<dyn Engine>,
        threads: Option<usize>,
        lock: LockArgs,
    ) -> Result<Model> {
        let advise = |error: anyhow::Error| {
            hint(error, "`flambeau export --all-logits` writes programs that can; without --draft, any program runs")
        };
        let Some(draft) = self.draft.as_deref() else { return Ok(model) };
        model.check_judges().map_err(|error| advise(error.into()))?;
        if draft == NGRAM {
            return Ok(model);
        }
        let place = || format!("--draft {draft}");
        let smaller = ModelArgs::new(draft, lock, &ExportArgs::default());
        let (program, path) = smaller.open(zoo::Logits::Last, threads).with_context(place)?;
        let own = tokenizer::find(&program, &path, None).with_context(place)?.tokenizer;
        let vocabulary = tokenizer.vocab_size().max(own.vocab_size());
        let differs = |id: &u32| tokenizer.id_to_token(*id) != own.id_to_token(*id);
        if let Some(id) = (0..vocabulary as u32).find(differs) {
            bail!("--draft {draft} has other tokens than the model, such as {id}: it has to be of the same family");
        }
        let draft = Model::load(&program, engine, &ModelOptions::default()).with_context(place)?;
        model.with_draft(&draft).with_context(place)
    }
}
