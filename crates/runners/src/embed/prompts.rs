//! Prompts of a text encoder, and the adapters that belong to them.

use std::collections::BTreeMap;

use flambeau_runtime::Program;

use super::texts::text;
use crate::{Error, Result, llm::AdapterFacts};

const PROMPTS: &str = "get_prompts";

/// The text before every text, and the adapter that reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    pub text: String,
    /// Index of the model's adapter. `None` is the model without adapters.
    pub task: Option<usize>,
}

impl From<String> for Prompt {
    /// A prompt for the model without adapters.
    fn from(text: String) -> Prompt {
        Prompt { text, task: None }
    }
}

/// The prompts of a text encoder by name, such as `query`. An adapter of the same name belongs to a
/// prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    texts: BTreeMap<String, String>,
    default: Option<String>,
    /// Names of the adapters in the program's order.
    adapters: Vec<String>,
}

impl Prompts {
    /// # Errors
    /// [`Error::NoEncoder`] if the program states them in another form.
    pub(super) fn read(program: &Program) -> Result<Prompts> {
        let texts = text(program, PROMPTS).map(|json| serde_json::from_str(&json));
        let texts = texts.transpose().map_err(|e| Error::NoEncoder(format!("`{PROMPTS}`: {e}")))?;
        Ok(Prompts {
            texts: texts.unwrap_or_default(),
            default: text(program, "get_default_prompt"),
            adapters: AdapterFacts::of(program).into_iter().map(|adapter| adapter.name).collect(),
        })
    }

    /// The texts by name.
    pub fn texts(&self) -> &BTreeMap<String, String> {
        &self.texts
    }

    /// Number of adapters.
    pub(super) fn adapters(&self) -> usize {
        self.adapters.len()
    }

    /// The prompt with this name.
    pub fn named(&self, name: &str) -> Option<Prompt> {
        let task = self.adapters.iter().position(|adapter| adapter == name);
        self.texts.get(name).map(|text| Prompt { text: text.clone(), task })
    }

    /// The default prompt, or an empty one.
    pub fn default_prompt(&self) -> Prompt {
        self.default.as_ref().and_then(|name| self.named(name)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_choose_the_adapters_of_their_name() {
        let texts = [("query", "find: "), ("plain", "")].map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        let adapters = ["passage", "query"].map(str::to_owned).into();
        let prompts = Prompts { texts, default: None, adapters };
        assert_eq!(prompts.named("query"), Some(Prompt { text: "find: ".into(), task: Some(1) }));
        assert_eq!((prompts.named("plain"), prompts.named("passage")), (Some(Prompt::default()), None));
        assert_eq!(prompts.default_prompt(), Prompt::default());
        let prompts = Prompts { default: Some("query".into()), ..prompts };
        assert_eq!(prompts.default_prompt().task, Some(1));
    }
}
