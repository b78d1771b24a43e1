//! `flambeau show`: facts about a model.

use std::{path::Path, process::ExitCode, time::SystemTime};

use anyhow::{Result, anyhow};
use serde_json::json;

use super::list;
use crate::{
    failure::hint,
    file_kind::FileKind,
    files,
    hub::{CachedModel, Hub, ModelName},
    memory::human,
    shelf::{ago, facts::Facts, programs},
};

/// Show facts about a model: family, weights, context, licence, size and place
///
/// For the contents of a program or a GGUF file, `flambeau inspect` shows more.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau show unsloth/Qwen3-0.6B-GGUF:Q8_0\n  flambeau show ./smollm2 --json")]
pub(crate) struct Args {
    /// Model folder, GGUF file, or name of a model in the local Hugging Face cache
    #[arg(value_name = "MODEL")]
    model: String,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let path = Path::new(&args.model);
    if FileKind::of_file(path) == Some(FileKind::Program) {
        return Err(hint(
            anyhow!("{} is a program", path.display()),
            format!("`flambeau inspect {}` shows what is in it", path.display()),
        ));
    }
    if path.exists() {
        let facts = Facts::of(path);
        if args.json {
            let mut json = facts.to_json();
            json["path"] = json!(path);
            files::print_json(&json)?;
        } else {
            print(&facts)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let held = find(&args.model)?;
    let programs = programs::list(&programs::folder()?);
    if args.json {
        files::print_json(&list::to_json(&held, &programs))?;
        return Ok(ExitCode::SUCCESS);
    }
    files::print_line(format!("name          {}", held.name))?;
    print(&Facts::of(&held.model.path()))?;
    let count = held.model.selection.files.len();
    files::print_line(format!("size          {} in {count} {}", human(held.bytes), if count == 1 { "file" } else { "files" }))?;
    files::print_line(format!("programs      {}", human(list::program_bytes(&held, &programs))))?;
    if let Some(time) = held.fetched {
        files::print_line(format!("fetched       {}", ago(time, SystemTime::now())))?;
    }
    files::print_line(format!("path          {}", held.model.path().display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The model of the cache that a name means.
fn find(text: &str) -> Result<CachedModel> {
    let name = ModelName::of_no_file(text)?;
    let hub = Hub::from_environment();
    let missing = || hint(anyhow!("{name} is not in the local cache"), format!("`flambeau pull {text}` fetches it"));
    let model = hub.cached(&name)?.ok_or_else(missing)?;
    hub.held().into_iter().find(|held| held.model == model).ok_or_else(missing)
}

fn print(facts: &Facts) -> Result<()> {
    let lines = [
        ("family", facts.family.clone()),
        ("parameters", facts.parameters.map(count)),
        ("weights", facts.weights.clone()),
        ("context", facts.context.map(|tokens| format!("{tokens} tokens"))),
        ("licence", facts.licence.clone()),
        ("chat", Some(if facts.has_template { "has a template" } else { "no template" }.to_owned())),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            files::print_line(format!("{name:12}  {value}"))?;
        }
    }
    Ok(())
}

/// A number of weights as model names have it.
fn count(number: u64) -> String {
    match number {
        1_000_000_000.. => format!("{:.1} B", number as f64 / 1e9),
        1_000_000.. => format!("{:.0} M", number as f64 / 1e6),
        _ => number.to_string(),
    }
}
