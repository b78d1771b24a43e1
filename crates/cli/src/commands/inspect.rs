//! `flambeau inspect`: what is in a file.

mod archive;
mod data;
mod program;

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use serde_json::Value as Json;

use crate::files;

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

/// What a file holds: as lines for people, and as JSON.
pub(crate) struct Description {
    lines: Vec<String>,
    json: Json,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let bytes = files::read(&args.file)?;
    let kind = |at: usize, magic: &[u8]| bytes.get(at..at + magic.len()) == Some(magic);
    let description = if kind(4, b"ET12") {
        program::describe(bytes.clone(), args.nodes)
    } else if kind(4, b"FT01") {
        data::describe_data(&bytes)
    } else if kind(0, b"PK\x03\x04") {
        archive::describe(bytes.clone(), args.nodes)
    } else if kind(0, b"GGUF") {
        data::describe_gguf(bytes.clone())
    } else {
        bail!(
            "{}: neither a .pte, .ptd, .pt2 nor GGUF file; it begins with {:02x?}",
            args.file.display(),
            &bytes[..bytes.len().min(8)]
        );
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
