//! `flambeau inspect`: shows the contents of a file.

mod archive;
mod data;
mod html;
mod modules;
mod program;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use flambeau::{pt2::Archive, runtime::Program, wire::bundled::read_bundled_program};
use serde_json::Value as Json;

use crate::{
    failure::hint,
    file_kind::{FileKind, unknown},
    files, outputs,
    source_map::SourceMap,
};

/// Show the contents of a .pte, .ptd, .pt2 or GGUF file
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau inspect model.pte\n  flambeau inspect model.pte --nodes | less\n  \
    flambeau inspect model.gguf --json\n  \
    flambeau inspect model.pte --html model.html --source model.pt2 --profile trace.json")]
pub(crate) struct Args {
    /// File to inspect; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print every node of delegates, or every call of an archive
    #[arg(long)]
    nodes: bool,

    /// Write a page for a browser, with the graph, the weights and the memory plan of a .pte file
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,

    /// Archive that the program was compiled from, to show the source line of each node on the page
    #[arg(long, value_name = "[METHOD=]FILE.pt2", requires = "html")]
    source: Vec<String>,

    /// Trace that `bench --trace` wrote, to show the time of each node on the page
    #[arg(long, value_name = "FILE.json", requires = "html")]
    profile: Option<PathBuf>,

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
    if let Some(out) = &args.html {
        write_page(args, out)?;
        return Ok(ExitCode::SUCCESS);
    }
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

/// Writes the page of a program.
fn write_page(args: &Args, out: &Path) -> Result<()> {
    let archives: Vec<(&str, &Path)> = args.source.iter().map(|text| named_archive(text)).collect();
    outputs::check(
        &[out],
        [args.file.as_path()].into_iter().chain(archives.iter().map(|(_, path)| *path)).chain(args.profile.as_deref()),
    )?;
    files::check_writable(out)?;
    let bytes = files::read(&args.file)?;
    let program = match FileKind::of(&bytes) {
        Some(FileKind::Bundled) => Program::from_bytes(read_bundled_program(&bytes)?.program)?,
        _ => FileKind::Program.expect(&args.file, || Ok(Program::from_bytes(bytes)?))?,
    };
    let engine = flambeau::engines(None, false).get("cpu")?;
    let mut sources = HashMap::new();
    for (method, path) in archives {
        let exported = FileKind::Archive.expect(path, || Ok(Archive::open(files::read(path)?)?.only_program()?))?;
        sources.insert(method.to_owned(), SourceMap::new(&program, method, &exported, &*engine)?);
    }
    let times = args.profile.as_deref().map(html::read_trace).transpose()?;
    let page = html::page(&program, &args.file, &sources, times.as_ref())?;
    files::write(out, |to| Ok(to.write_all(page.as_bytes())?))
}

/// `METHOD=FILE`, or a file of the method `forward`.
fn named_archive(text: &str) -> (&str, &Path) {
    let (method, path) = text.split_once('=').filter(|_| !Path::new(text).exists()).unwrap_or(("forward", text));
    (method, Path::new(path))
}

/// Number of occurrences of each name, most frequent first.
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
