//! `flambeau template`: prompts and tool calls of a model's chat template.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, anyhow};
use flambeau::{
    runtime::Program,
    text::{ChatTemplate, SpecialTokens, Tokenizer},
    zoo::TokenizerSource,
};
use flambeau_serve::TemplateProbe;
use serde_json::{Map, Value as Json, json};

use crate::{
    checkpoint,
    failure::usage,
    file_kind::FileKind,
    files,
    hub::{Hub, ModelName},
    tokenizer,
};

/// Show how a model's chat template writes prompts and calls tools
///
/// Without --messages and --parse, prints the format of tool calls that `flambeau serve` finds by
/// rendering calls. The command needs no weights.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau template ./Qwen3-0.6B\n  flambeau template chat_template.jinja --json\n  \
    flambeau template model.gguf --messages '[{\"role\": \"user\", \"content\": \"Hi\"}]'\n  \
    flambeau template model.pte --tools tools.json --parse \"$(cat answer.txt)\"")]
pub(crate) struct Args {
    /// Program (.pte), model folder, GGUF file, template (.jinja), or ORG/NAME in the cache of the
    /// Hugging Face hub
    #[arg(value_name = "MODEL|FILE")]
    model: String,

    /// Conversation to write as a prompt, in OpenAI's form: a JSON list, or the file that holds it
    #[arg(long, value_name = "JSON")]
    messages: Option<String>,

    /// Tools of the conversation, in OpenAI's form: a JSON list, or the file that holds it
    #[arg(long, value_name = "JSON")]
    tools: Option<String>,

    /// Further variables of the template: a JSON object, or the file that holds it
    #[arg(long, value_name = "JSON")]
    variables: Option<String>,

    /// Answer of a model to parse; `-` is stdin
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    parse: Option<String>,

    /// Print one JSON object with all results
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let template = find(&args.model)?;
    let probe = TemplateProbe::new(&template);
    let tools = list("--tools", args.tools.as_deref())?;
    let messages = list("--messages", args.messages.as_deref())?;
    let prompt = match &messages {
        Some(messages) => Some(prompt(&probe, messages, tools.clone(), args.variables.as_deref())?),
        None => None,
    };
    let answer = match &args.parse {
        Some(text) => {
            let text = if text == "-" { String::from_utf8(files::read(Path::new("-"))?.to_vec())? } else { text.clone() };
            let (prompt, before) = (prompt.as_deref().unwrap_or_default(), messages.as_deref().unwrap_or_default());
            Some(probe.message(prompt, before, tools.as_deref().unwrap_or_default(), &text).map_err(|error| anyhow!(error))?)
        }
        None => None,
    };
    if args.json {
        let mut all = probe.facts();
        all["prompt"] = json!(prompt);
        all["message"] = json!(answer);
        files::print_json(&all)?;
    } else if prompt.is_none() && answer.is_none() {
        facts(&probe.facts())?;
    } else {
        if let Some(prompt) = prompt.filter(|_| answer.is_none()) {
            files::print_bytes(prompt.as_bytes())?;
        }
        if let Some(answer) = answer {
            files::print_json(&answer)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn prompt(probe: &TemplateProbe<'_>, messages: &[Json], tools: Option<Vec<Json>>, variables: Option<&str>) -> Result<String> {
    let variables = match variables.map(|given| value("--variables", given)).transpose()? {
        None => Map::new(),
        Some(Json::Object(variables)) => variables,
        Some(_) => return Err(usage("--variables takes a JSON object")),
    };
    probe.prompt(messages.to_vec(), tools, variables).map_err(|error| anyhow!(error))
}

/// Prints the facts of a template in lines.
fn facts(facts: &Json) -> Result<()> {
    if let Some(format) = facts["tool_format"].as_str() {
        files::print_line(format!("tool calls: {format}"))?;
        let several = if facts["parallel_calls"] == true { "several" } else { "one" };
        files::print_line(format!("calls in a message: {several}"))?;
        files::print_line(format!("arguments: {}", facts["arguments"].as_str().unwrap_or_default()))?;
        files::print_line(format!("shown by: {}", facts["shown_by"].as_str().unwrap_or_default()))
    } else {
        files::print_line(format!("tool calls: none ({})", facts["reason"].as_str().unwrap_or_default()))
    }
}

/// A JSON list that is given as it is, or in a file.
fn list(flag: &str, given: Option<&str>) -> Result<Option<Vec<Json>>> {
    match given.map(|given| value(flag, given)).transpose()? {
        None => Ok(None),
        Some(Json::Array(list)) => Ok(Some(list)),
        Some(_) => Err(usage(format!("{flag} takes a JSON list"))),
    }
}

fn value(flag: &str, given: &str) -> Result<Json> {
    let is_json = given.trim_start().starts_with(['[', '{']);
    let bytes = if is_json { given.as_bytes().to_vec() } else { files::read(Path::new(given)).context(flag.to_owned())?.to_vec() };
    serde_json::from_slice(&bytes).map_err(|error| usage(format!("{flag} is no JSON: {error}")))
}

/// The template of a model or file.
fn find(model: &str) -> Result<ChatTemplate> {
    let path = &resolve(model)?;
    let missing = || anyhow!("{model} has no chat template");
    if path.extension().is_some_and(|extension| extension == "jinja") {
        let source = fs::read_to_string(path).context("cannot read the template")?;
        let special = SpecialTokens { bos: Some("<s>".into()), eos: Some("</s>".into()), ..SpecialTokens::default() };
        return Ok(ChatTemplate::new(&source, &special)?);
    }
    let found = match FileKind::of_file(path) {
        Some(FileKind::Program) => tokenizer::find(&Program::open(path)?, path, None)?.template?,
        Some(FileKind::Gguf) => match checkpoint::open_path(path)?.tokenizer() {
            TokenizerSource::Gguf(vocab) => match &vocab.chat_template {
                Some(source) => Some(ChatTemplate::new(source, Tokenizer::from_gguf(vocab)?.special())?),
                None => None,
            },
            _ => None,
        },
        _ => tokenizer::at(path)?.template?,
    };
    found.ok_or_else(missing)
}

/// The folder or file of a model: the path itself, or its place in the hub's cache.
pub(crate) fn resolve(model: &str) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_owned());
    }
    let name = ModelName::of_no_file(model)?;
    let cached = Hub::from_environment().cached(&name)?;
    cached.map(|model| model.path()).ok_or_else(|| checkpoint::missing(model))
}
