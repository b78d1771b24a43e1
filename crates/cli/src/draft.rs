//! The flag that says how tokens are guessed.

use anyhow::Result;
use flambeau::{runners::llm::Model, zoo};

use crate::failure::hint;

/// Where guesses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Draft {
    /// What followed the last tokens where they stood in the text before: prompt lookup
    Ngram,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DraftArgs {
    /// Speculative decoding: guess tokens, and let one step of the model judge several; for texts that repeat their prompts, as edits of code do
    #[arg(long, value_name = "KIND")]
    draft: Option<Draft>,
}

impl DraftArgs {
    /// Whether guesses come from the text.
    pub(crate) fn looks_up(&self) -> bool {
        self.draft == Some(Draft::Ngram)
    }

    /// What a program has to compute.
    pub(crate) fn logits(&self) -> zoo::Logits {
        if self.looks_up() { zoo::Logits::All } else { zoo::Logits::Last }
    }

    /// Refuses a model that cannot judge guesses, if there will be some.
    pub(crate) fn check(&self, model: &Model) -> Result<()> {
        if !self.looks_up() {
            return Ok(());
        }
        let judges = model.sequence()?.check_judges();
        judges.map_err(|error| {
            hint(error, "`flambeau export --all-logits` writes programs that can; without --draft, any program runs")
        })
    }
}
