//! `flambeau list`: the models on this machine.

use std::{process::ExitCode, time::SystemTime};

use anyhow::Result;
use serde_json::json;

use crate::{
    files,
    hub::{CachedModel, Hub, KNOWN},
    memory::human,
    model::program_name,
    shelf::{
        ago,
        facts::Facts,
        programs::{self, CachedProgram},
        seconds, table,
    },
};

/// List the runnable models in this machine's Hugging Face cache
///
/// Columns: the name that every command accepts, the model's family, the type and size of its
/// weights, the size of its exported programs, and the time of the download.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau list\n  flambeau list qwen --json\n  flambeau list --known")]
pub(crate) struct Args {
    /// Only models whose names contain this text, ignoring case
    #[arg(value_name = "TEXT")]
    text: Option<String>,

    /// List the short names of well-known models and their repositories instead
    #[arg(long)]
    known: bool,

    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let is_wanted = |name: &str| args.text.as_ref().is_none_or(|text| name.to_lowercase().contains(&text.to_lowercase()));
    if args.known {
        let known = KNOWN.iter().filter(|(name, repository)| is_wanted(name) || is_wanted(repository));
        if args.json {
            files::print_json(&known.map(|(name, repository)| json!({ "name": name, "repository": repository })).collect())?;
        } else {
            table(&["NAME", "REPOSITORY"], known.map(|(name, repository)| vec![(*name).to_owned(), (*repository).to_owned()]))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let programs = programs::list(&programs::folder()?);
    let held: Vec<CachedModel> =
        Hub::from_environment().held().into_iter().filter(|held| is_wanted(&held.name.to_string())).collect();
    if args.json {
        files::print_json(&held.iter().map(|held| to_json(held, &programs)).collect())?;
    } else {
        if held.is_empty() && args.text.is_some() {
            eprintln!("no model in the cache has a name with {:?}", args.text.as_deref().unwrap_or_default());
        } else if held.is_empty() {
            eprintln!("the cache has no models; `flambeau pull NAME` downloads one");
        }
        table(&["NAME", "FAMILY", "WEIGHTS", "SIZE", "PROGRAMS", "FETCHED"], held.iter().map(|held| row(held, &programs)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Total size of a model's programs in bytes.
pub(crate) fn program_bytes(held: &CachedModel, programs: &[CachedProgram]) -> u64 {
    let label = program_name(&held.name, held.model.selection.label().as_deref());
    programs.iter().filter(|program| program.label == label).map(|program| program.bytes).sum()
}

fn row(held: &CachedModel, programs: &[CachedProgram]) -> Vec<String> {
    let facts = Facts::of(&held.model.path());
    let unknown = || "-".to_owned();
    let exported = program_bytes(held, programs);
    let size = if held.is_complete { human(held.bytes) } else { format!("{} (incomplete)", human(held.bytes)) };
    vec![
        held.name.to_string(),
        facts.family.unwrap_or_else(unknown),
        facts.weights.unwrap_or_else(unknown),
        size,
        if exported > 0 { human(exported) } else { unknown() },
        held.fetched.map_or_else(unknown, |time| ago(time, SystemTime::now())),
    ]
}

pub(crate) fn to_json(held: &CachedModel, programs: &[CachedProgram]) -> serde_json::Value {
    let mut json = json!({
        "name": held.name.to_string(),
        "repository": held.name.repository(),
        "revision": held.name.revision,
        "path": held.model.path(),
        "bytes": held.bytes,
        "is_complete": held.is_complete,
        "program_bytes": program_bytes(held, programs),
        "fetched": held.fetched.map(seconds),
    });
    if let (Some(json), serde_json::Value::Object(facts)) = (json.as_object_mut(), Facts::of(&held.model.path()).to_json()) {
        json.extend(facts);
    }
    json
}
