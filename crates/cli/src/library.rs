//! Entry points for the Python package and the C interface. They find, export and load engines and
//! models by the commands' flags.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, anyhow};
use clap::{Args, FromArgMatches};
use flambeau::{
    compile,
    engine::{Clock, Engine, KvCacheConfig, LoadOptions},
    runners::{
        embed::{Classifier, Embedder},
        llm::{Adapters, Model},
        speech::{Settings, SpeechModel},
    },
    runtime::{Program, RunTrace, Value, verify},
    tensor::Tolerance,
    text::{ChatTemplate, Tokenizer},
    wire::{bundled::BundledProgram, etdump::EtDump},
    zoo,
};
use serde_json::Value as Json;

use crate::{
    commands::{
        self, embed, rerank,
        text_model::TextModelArgs,
        transcribe,
        verify::{by_value, expected, print::MethodVerdict},
    },
    engine::EngineArgs,
    failure, kv_cache,
    language_model::{LanguageModelArgs, Loaded},
    lora, mlx, profile,
    quantize::QuantizeArgs,
};

/// A language model with its tokenizer.
#[derive(Debug)]
pub struct LanguageModel {
    pub model: Model,
    pub tokenizer: Tokenizer,
    /// The chat template, if the model has one.
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

/// Names a folder with interfaces to MLX that were compiled ahead. The first call counts.
pub fn interfaces_in(folder: PathBuf) {
    mlx::interfaces_in(folder);
}

/// Creates the engine that flags such as `--engine` and `--threads` select. With `--profile` it
/// measures the time of each node.
///
/// # Errors
/// Fails if a flag is invalid or the engine is not available.
pub fn engine(flags: &[String]) -> Result<Arc<dyn Engine>> {
    let args = parse::<Measured>(flags)?;
    args.engine.engine(args.profile)
}

/// Like [`engine`], with a clock: the engine measures the time of each node.
///
/// # Errors
/// Fails as [`engine`] does.
pub fn measured_engine(flags: &[String], clock: Clock) -> Result<Arc<dyn Engine>> {
    parse::<Measured>(flags)?.engine.engine_with(Some(clock))
}

/// Runs of methods as an ETDump, which ExecuTorch's Inspector reads, with its debug buffer.
pub fn etdump(runs: &[RunTrace]) -> EtDump {
    profile::etdump::dump(runs)
}

/// Runs of methods as a trace for Perfetto.
///
/// # Errors
/// Only fails if memory runs out.
pub fn trace(runs: &[RunTrace]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    profile::trace::write(runs, &mut bytes)?;
    Ok(bytes)
}

/// Options of a verification.
#[derive(Debug, Default)]
pub struct Verification<'a> {
    /// Inputs of one run. Without them, `runs` random inputs are drawn from `seed`.
    pub inputs: Option<Vec<Value>>,
    pub runs: usize,
    pub seed: u32,
    /// Exclusive upper bound of random integers.
    pub bound: Option<u32>,
    /// Tolerance; `None` allows the rounding of each type.
    pub tolerance: Option<Tolerance>,
    /// Program to compare with, instead of the CPU engine.
    pub against: Option<&'a Program>,
    /// Cache of a program that leaves it to its host.
    pub kv_cache: Option<KvCacheConfig>,
}

/// Verdict of `flambeau verify --json` on a method.
///
/// # Errors
/// Fails if the method cannot run on the inputs, or not node by node.
pub fn verify(program: &Program, method: &str, tested: &Arc<dyn Engine>, how: Verification<'_>) -> Result<Json> {
    let cpu = flambeau::engines(None, false).get("cpu")?;
    let options = LoadOptions { kv_cache: how.kv_cache, ..LoadOptions::default() };
    let runs = match how.inputs {
        Some(inputs) => vec![inputs],
        None => {
            let mut loaded = program.method(method, tested, &options)?;
            commands::verify::random_runs(&mut loaded, how.runs.max(1), how.seed, how.bound)?
        }
    };
    let verdict = match how.against {
        Some(other) => {
            let record = |program: &Program| verify::record(program, method, &cpu, &runs, &options);
            by_value::programs((program, method), [&record(program)?, &record(other)?], how.tolerance)?
        }
        None => verify::check(program, method, [tested, &cpu], &runs, how.tolerance, &options)?,
    };
    Ok(MethodVerdict { method: method.to_owned(), runs: runs.len(), verdict, source: None }.json())
}

/// Runs a test case of a bundled program on an engine.
///
/// # Errors
/// Fails if the case is unknown, the method cannot run, or an output differs.
pub fn run_test_case(
    bundle: &BundledProgram,
    (method, number): (&str, usize),
    engine: &Arc<dyn Engine>,
    tolerance: Option<Tolerance>,
) -> Result<()> {
    let suite = bundle.suites.iter().find(|suite| suite.method == method);
    let case = suite.and_then(|suite| suite.cases.get(number)).with_context(|| format!("no test case {number} of `{method}`"))?;
    let mut loaded = Program::from_bytes(bundle.program.clone())?.method(method, engine, &LoadOptions::default())?;
    let outputs = loaded.run(&expected::case_inputs(&loaded, case)?)?;
    let wrong = expected::output_differences(&outputs, &case.expected_outputs, tolerance);
    match wrong.first() {
        Some((output, what)) => Err(anyhow!("test case {number} of `{method}`, output {output}: {what}")),
        None => Ok(()),
    }
}

/// Parses the text of `--kv-cache`.
///
/// # Errors
/// Fails if the text is malformed.
pub fn kv_cache(text: &str) -> Result<KvCacheConfig> {
    kv_cache::parse(text)
}

/// Loads a language model by the model flags of `flambeau generate`, including the model itself.
///
/// # Errors
/// Fails if a flag is invalid, or the model is missing, cannot be exported or is of another kind.
pub fn language_model(flags: &[String], engine: &Arc<dyn Engine>) -> Result<LanguageModel> {
    let args = parse::<LanguageModelArgs>(flags)?;
    let Loaded { model, text, .. } = args.load_on(zoo::Logits::default(), engine)?;
    let template = text.template.context("the chat template")?;
    Ok(LanguageModel { model, tokenizer: text.tokenizer, template })
}

/// Loads a text encoder by the model flags of `flambeau embed`.
///
/// # Errors
/// Fails as [`language_model`] does.
pub fn encoder(flags: &[String], engine: &Arc<dyn Engine>) -> Result<(Embedder, Tokenizer)> {
    parse::<TextModelArgs>(flags)?.encoder(engine)
}

/// A vector of each text, by the flags of `flambeau embed` for its vectors.
///
/// # Errors
/// A text is too long, or a flag is wrong or does not fit the model.
pub fn vectors(encoder: &mut Embedder, tokenizer: &Tokenizer, texts: &[String], flags: &[String]) -> Result<Vec<Vec<f32>>> {
    Ok(embed::vectors(encoder, tokenizer, texts, &parse::<embed::VectorArgs>(flags)?)?.0)
}

/// Loads a classifier of texts by the flags of `flambeau rerank` that concern models.
///
/// # Errors
/// As [`language_model`].
pub fn classifier(flags: &[String], engine: &Arc<dyn Engine>) -> Result<(Classifier, Tokenizer)> {
    parse::<TextModelArgs>(flags)?.classifier(engine)
}

/// The relevance of each document to a query, from 0 to 1. Some models judge by an instruction.
///
/// # Errors
/// The model cannot rank documents, or reads no instruction.
pub fn relevance(
    model: &mut Classifier,
    tokenizer: &Tokenizer,
    query: &str,
    documents: &[&str],
    instruction: Option<&str>,
) -> Result<Vec<f32>> {
    Ok(rerank::relevance(model, tokenizer, query, documents, instruction)?.0)
}

/// The adapters with these scales by name, all others left out.
///
/// # Errors
/// A name is unknown. The message lists the model's adapters.
pub fn adapters(model: &Model, scales: &[(&str, f32)]) -> Result<Adapters> {
    lora::choose(model, scales)
}

/// The adapters in a text such as `calm:0.5 facts`, or none of them for `none`.
///
/// # Errors
/// As [`adapters`].
pub fn adapters_by_text(model: &Model, text: &str) -> Result<Adapters> {
    lora::choose(model, &lora::scales(text))
}

/// Loads a model of speech by the flags of `flambeau transcribe` that concern models.
///
/// # Errors
/// Fails as [`language_model`] does.
pub fn speech_model(flags: &[String], engine: &Arc<dyn Engine>) -> Result<(SpeechModel, Tokenizer)> {
    transcribe::load(&parse::<transcribe::ModelFlags>(flags)?, engine)
}

/// Transcription settings from the flags of `flambeau transcribe`.
///
/// # Errors
/// Fails if a flag is invalid.
pub fn speech_settings(flags: &[String]) -> Result<Settings> {
    Ok(parse::<transcribe::SpeechArgs>(flags)?.settings())
}

/// Quantization settings from the flags of `flambeau compile`.
///
/// # Errors
/// Fails if a flag is invalid.
pub fn compile_options(flags: &[String]) -> Result<compile::Options> {
    parse::<QuantizeArgs>(flags)?.options()
}

/// The messages of an error and its causes, with advice on its own line.
pub fn message(error: &anyhow::Error) -> String {
    failure::with_hint(error)
}

/// Parses a group of flags without a command.
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
