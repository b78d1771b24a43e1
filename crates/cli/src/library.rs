//! Entry points for the Python package and the C interface. They find, export and load engines and
//! models by the commands' flags.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clap::{Args, FromArgMatches};
use flambeau::{
    compile,
    engine::{Engine, KvCacheConfig},
    runners::{
        embed::Embedder,
        llm::Model,
        speech::{Settings, SpeechModel},
    },
    text::{ChatTemplate, Tokenizer},
    zoo,
};

use crate::{
    commands::{compile::QuantizeArgs, embed, transcribe},
    engine::EngineArgs,
    failure, kv_cache,
    language_model::{LanguageModelArgs, Loaded},
};

/// A language model with what turns texts into tokens.
#[derive(Debug)]
pub struct LanguageModel {
    pub model: Model,
    pub tokenizer: Tokenizer,
    /// How conversations become prompts, if the model has a template.
    pub template: Option<ChatTemplate>,
}

/// An engine that may measure.
#[derive(Args)]
struct Measured {
    #[command(flatten)]
    engine: EngineArgs,
    /// Measure the time of each node.
    #[arg(long)]
    profile: bool,
}

/// The engine that flags such as `--engine` and `--threads` choose. With `--profile` it measures
/// the time of each node.
///
/// # Errors
/// A flag is wrong, or the engine is not there.
pub fn engine(flags: &[String]) -> Result<Arc<dyn Engine>> {
    let args = parse::<Measured>(flags)?;
    args.engine.engine(args.profile)
}

/// The cache of a program that leaves it to its host, by the text of `--kv-cache`.
///
/// # Errors
/// The text has another form.
pub fn kv_cache(text: &str) -> Result<KvCacheConfig> {
    kv_cache::parse(text)
}

/// Loads a language model by the flags of `flambeau generate` that concern models, the model itself
/// included.
///
/// # Errors
/// A flag is wrong, or the model is not there, cannot be exported, or is of another kind.
pub fn language_model(flags: &[String], engine: &Arc<dyn Engine>) -> Result<LanguageModel> {
    let args = parse::<LanguageModelArgs>(flags)?;
    let Loaded { model, text, .. } = args.load_on(zoo::Logits::default(), engine)?;
    let template = text.template.context("the chat template")?;
    Ok(LanguageModel { model, tokenizer: text.tokenizer, template })
}

/// Loads a text encoder by the flags of `flambeau embed` that concern models.
///
/// # Errors
/// As [`language_model`].
pub fn encoder(flags: &[String], engine: &Arc<dyn Engine>) -> Result<(Embedder, Tokenizer)> {
    embed::load(&parse::<embed::ModelFlags>(flags)?, engine)
}

/// Loads a model of speech by the flags of `flambeau transcribe` that concern models.
///
/// # Errors
/// As [`language_model`].
pub fn speech_model(flags: &[String], engine: &Arc<dyn Engine>) -> Result<(SpeechModel, Tokenizer)> {
    transcribe::load(&parse::<transcribe::ModelFlags>(flags)?, engine)
}

/// How to transcribe, by the flags of `flambeau transcribe` about speech.
///
/// # Errors
/// A flag is wrong.
pub fn speech_settings(flags: &[String]) -> Result<Settings> {
    Ok(parse::<transcribe::SpeechArgs>(flags)?.settings())
}

/// How to quantize, by the flags of `flambeau compile`.
///
/// # Errors
/// A flag is wrong.
pub fn compile_options(flags: &[String]) -> Result<compile::Options> {
    parse::<QuantizeArgs>(flags)?.options()
}

/// The messages of an error and its causes, and advice in a line of its own.
pub fn message(error: &anyhow::Error) -> String {
    failure::with_hint(error)
}

/// The flags of a group, without a command around them.
fn parse<T: Args + FromArgMatches>(flags: &[String]) -> Result<T> {
    let command = T::augment_args(clap::Command::new("flambeau").no_binary_name(true).disable_help_flag(true));
    let matches = command.try_get_matches_from(flags);
    let parsed = matches.and_then(|matches| T::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let text = error.render().to_string();
        let text = text.split("\n\n").next().unwrap_or_default().trim();
        anyhow!("{}", text.strip_prefix("error: ").unwrap_or(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(list: &[&str]) -> Vec<String> {
        list.iter().map(|flag| (*flag).to_owned()).collect()
    }

    #[test]
    fn engines_are_chosen_by_flags() {
        assert_eq!(engine(&flags(&["--engine", "cpu", "--threads", "2"])).unwrap().name(), "cpu");
        let refused = engine(&flags(&["--engine", "tpu"])).err().unwrap();
        assert!(message(&refused).contains("tpu"), "{refused}");
    }

    #[test]
    fn a_wrong_scheme_is_refused_with_the_known_ones() {
        let refused = compile_options(&flags(&["--qlinear", "9w"])).unwrap_err();
        assert!(message(&refused).contains("9w"), "{refused}");
        assert!(compile_options(&flags(&["--qlinear", "4w", "--group-size", "64"])).unwrap().linear.is_some());
    }

    #[test]
    fn speech_settings_are_those_of_the_command() {
        let settings = speech_settings(&flags(&["--language", "fr", "--word-timestamps", "--beam-size", "3"])).unwrap();
        assert_eq!((settings.language.as_deref(), settings.words, settings.search.beam_size), (Some("fr"), true, 3));
    }
}
