//! `flambeau rm`: removes models and their programs from this machine.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Result, anyhow};
use serde_json::json;

use crate::{
    failure::hint,
    files,
    hub::{Hub, ModelName, Removal},
    memory::human,
    model::{program_name, repository_programs},
    shelf::programs::{self, CachedProgram},
};

/// Remove models from the Hugging Face cache, with the programs exported from them
///
/// Shows the sizes and asks for confirmation. ORG/NAME means all quantizations and revisions,
/// ORG/NAME:QUANT one file, and ORG/NAME@REVISION one revision. Files that other models use are
/// kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau rm unsloth/Qwen3-0.6B-GGUF:Q8_0\n  flambeau rm Qwen/Qwen3-0.6B --exports\n  \
    flambeau rm org/a org/b --yes")]
pub(crate) struct Args {
    /// Models named as in `flambeau list`, or programs named as in `flambeau cache`
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// Remove only the exported programs and keep the model's files
    #[arg(long)]
    exports: bool,

    /// Remove without confirmation
    #[arg(short, long)]
    yes: bool,

    /// Print a JSON list of the removed files
    #[arg(long)]
    json: bool,
}

/// Files selected by one name.
struct Found {
    name: String,
    removal: Option<Removal>,
    programs: Vec<CachedProgram>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let hub = Hub::from_environment();
    let programs = programs::list(&programs::folder()?);
    let found = args.names.iter().map(|name| find(args, &hub, &programs, name)).collect::<Result<Vec<_>>>()?;
    for found in &found {
        eprintln!("{}", found.describe());
    }
    if !args.yes && !confirm()? {
        eprintln!("nothing was removed");
        return Ok(ExitCode::FAILURE);
    }
    let mut list = Vec::new();
    for found in &found {
        if let Some(removal) = &found.removal {
            removal.run()?;
        }
        found.programs.iter().try_for_each(programs::remove)?;
        list.push(json!({ "name": found.name, "bytes": found.bytes(), "program_bytes": found.program_bytes() }));
    }
    if args.json {
        files::print_json(&list.into())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Found {
    fn bytes(&self) -> u64 {
        self.removal.as_ref().map_or(0, |removal| removal.bytes)
    }

    fn program_bytes(&self) -> u64 {
        self.programs.iter().map(|program| program.bytes).sum()
    }

    fn describe(&self) -> String {
        let count = self.programs.len();
        let programs = format!("{} in {count} {}", human(self.program_bytes()), if count == 1 { "program" } else { "programs" });
        match &self.removal {
            Some(removal) if count == 0 => format!("{}: {}", self.name, human(removal.bytes)),
            Some(removal) => format!("{}: {}, and {programs}", self.name, human(removal.bytes)),
            None => format!("{}: {programs}", self.name),
        }
    }
}

/// The files selected by a name.
fn find(args: &Args, hub: &Hub, programs: &[CachedProgram], text: &str) -> Result<Found> {
    let labelled = |is_meant: &dyn Fn(&str) -> bool| programs.iter().filter(|program| is_meant(&program.label)).cloned().collect();
    let own: Vec<CachedProgram> = labelled(&|label| label == text);
    let name = match ModelName::parse(text) {
        Err(_) if !own.is_empty() => return Ok(Found { name: text.to_owned(), removal: None, programs: own }),
        name => name?,
    };
    let revision = text.contains('@').then_some(name.revision.as_str());
    let removal = hub.removal(&name, revision)?;
    let labels: Vec<String> = match &removal {
        Some(removal) => {
            let gone = hub.held().into_iter().filter(|held| removal.takes(held));
            gone.map(|held| program_name(&held.name, held.model.selection.label().as_deref())).collect()
        }
        None => Vec::new(),
    };
    let is_all = name.tag.is_none() && revision.is_none();
    let is_meant =
        |label: &str| label == text || labels.iter().any(|own| own == label) || is_all && repository_programs(&name, label);
    let programs: Vec<CachedProgram> = labelled(&is_meant);
    let removal = removal.filter(|_| !args.exports);
    if removal.is_none() && programs.is_empty() {
        let what = if args.exports { "no exported programs" } else { "no files in the cache" };
        return Err(hint(
            anyhow!("{name} has {what}"),
            "`flambeau list` prints the names of models, and `flambeau cache` programs",
        ));
    }
    Ok(Found { name: name.to_string(), removal, programs })
}

/// Asks on the terminal; the default answer is no.
pub(crate) fn confirm() -> Result<bool> {
    eprint!("remove? [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
