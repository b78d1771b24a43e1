//! `flambeau inspect`: what is in a file.

mod archive;
mod data;
mod program;

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use serde_json::Value as Json;

use crate::{
    failure::hint,
    file_kind::{FileKind, unknown},
    files,
};

/// Show what is in a .pte, .ptd, .pt2 or GGUF file
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau inspect model.pte\n  flambeau inspect model.pte --nodes | less\n  \
    flambeau inspect model.gguf --json")]
pub(crate) struct Args {
    /// File to look into; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print every node of delegates, or every call of an archive
    #[arg(long)]
    nodes: bool,

    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// Contents of a file, as text lines and as JSON.
pub(crate) struct Description {
    lines: Vec<String>,
    json: Json,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let bytes = files::read(&args.file)?;
    let description = match FileKind::of(&bytes) {
        Some(FileKind::Program) => program::describe(bytes.clone(), args.nodes),
        Some(FileKind::Bundled) => program::describe_bundled(&bytes, args.nodes),
        Some(FileKind::Data) => data::describe_data(&bytes),
        Some(FileKind::Archive) => archive::describe(bytes.clone(), args.nodes),
        Some(FileKind::Gguf) => data::describe_gguf(bytes.clone()),
        Some(kind @ (FileKind::Ggml | FileKind::Nemo)) => {
            let told = anyhow::anyhow!("{} is {kind}, which is not described here", args.file.display());
            return Err(hint(told, kind.advice(&args.file)));
        }
        None => return Err(unknown(&args.file, &bytes)),
    };
    let description = description.with_context(|| args.file.display().to_string())?;
    if args.json {
        files::print_json(&description.json)?;
    } else {
        description.lines.iter().try_for_each(files::print_line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How often each name occurs, most frequent first.
fn histogram<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, usize)> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_insert(0) += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    counts
}

fn histogram_json(counts: &[(&str, usize)]) -> Json {
    counts.iter().map(|&(name, count)| (name.to_owned(), Json::from(count))).collect::<serde_json::Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_names_come_first() {
        assert_eq!(histogram(["b", "a", "c", "c"]), [("c", 2), ("a", 1), ("b", 1)]);
    }
}
