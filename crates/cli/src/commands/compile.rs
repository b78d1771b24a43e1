//! `flambeau compile`: archives of `torch.export` to a program.

mod check;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    compile::{self, Report, Ties},
    pt2::{Archive, Exported},
};

use crate::{
    engine::EngineArgs, exporter::write_program, failure::usage, file_kind::FileKind, files, outputs, quantize::QuantizeArgs,
};

/// Compile .pt2 files of torch.export into a .pte file
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau compile model.pt2 -o model.pte --qlinear 4w --qembedding 8w\n  \
    flambeau compile --method encode=enc.pt2 --method decode=dec.pt2 -o model.pte\n  \
    flambeau compile model.pt2 --dry-run --report report.json\n  \
    flambeau compile model.pt2 --check")]
pub(crate) struct Args {
    /// Archive to compile; a single one becomes the method `forward`, several are named after their
    /// files
    #[arg(value_name = "IN.pt2")]
    inputs: Vec<PathBuf>,

    /// Program to write; `-` is stdout
    #[arg(short, long, value_name = "OUT.pte", required_unless_present_any = ["dry_run", "check"])]
    output: Option<PathBuf>,

    /// Compile FILE as the method NAME; repeat it for more
    #[arg(long = "method", value_name = "NAME=FILE")]
    methods: Vec<String>,

    #[command(flatten)]
    quantize: QuantizeArgs,

    /// Fail if a call cannot be delegated, instead of leaving it to ExecuTorch's portable kernels
    #[arg(long)]
    require_full: bool,

    /// Positions that sorting and selection give among equal elements: PyTorch's, for which some
    /// calls run outside of delegates, or any valid ones
    #[arg(long, value_name = "RULE", default_value = "pytorch")]
    ties: TieRule,

    /// Write no program; print what would become of each operator
    #[arg(long)]
    dry_run: bool,

    /// Write what became of every call, with its place in the source
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    check: check::CheckArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The positions of equal elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TieRule {
    Pytorch,
    Any,
}

impl From<TieRule> for Ties {
    fn from(rule: TieRule) -> Ties {
        match rule {
            TieRule::Pytorch => Ties::PyTorch,
            TieRule::Any => Ties::Any,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let mut options = args.quantize.options()?;
    options.require_full = args.require_full;
    options.ties = args.ties.into();
    options.threads = args.engine.threads;
    let files = named_files(args)?;
    let written: Vec<&Path> =
        [args.output.as_deref().filter(|_| !args.dry_run), args.report.as_deref()].into_iter().flatten().collect();
    let recipe = args.quantize.recipe().map(Path::new);
    outputs::check(&written, files.iter().map(|(_, path)| path.as_path()).chain(recipe))?;
    written.into_iter().try_for_each(files::check_writable)?;
    let engine = args.engine.engine(false)?;
    let programs: Vec<(String, PathBuf, Exported)> =
        files.into_iter().map(|(name, path)| read(&path).map(|program| (name, path, program))).collect::<Result<_>>()?;
    let methods: Vec<(&str, &Exported)> = programs.iter().map(|(name, _, program)| (name.as_str(), program)).collect();
    match compile::compile(&methods, &options, &*engine) {
        Ok(output) => {
            write_report(args, &output.report)?;
            if let Some(path) = args.output.as_deref().filter(|_| !args.dry_run) {
                write_program(&output, path, start)?;
            }
            if args.check.wanted() {
                let methods: Vec<(&str, &Path, &Exported)> = programs.iter().map(|(n, path, e)| (&**n, &**path, e)).collect();
                args.check.compare(&methods, &options, &engine)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(compile::Error::Refused { calls, report }) => {
            write_report(args, &report)?;
            Err(compile::Error::Refused { calls, report }.into())
        }
        Err(error) => Err(error.into()),
    }
}

fn named_files(args: &Args) -> Result<Vec<(String, PathBuf)>> {
    let mut list = Vec::new();
    for path in &args.inputs {
        let stem = || path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let name = if args.inputs.len() == 1 && args.methods.is_empty() { "forward".to_owned() } else { stem() };
        list.push((name, path.clone()));
    }
    for text in &args.methods {
        match text.split_once('=') {
            Some((name, file)) if !name.is_empty() && !file.is_empty() => list.push((name.to_owned(), file.into())),
            _ => return Err(usage(format!("--method {text}: expected NAME=FILE"))),
        }
    }
    if list.is_empty() {
        return Err(usage("no .pt2 file is given; see --help"));
    }
    for (i, (name, _)) in list.iter().enumerate() {
        if list.iter().take(i).any(|(other, _)| other == name) {
            return Err(usage(format!("two methods are called `{name}`; name them with --method NAME=FILE")));
        }
    }
    Ok(list)
}

fn read(path: &Path) -> Result<Exported> {
    FileKind::Archive.expect(path, || {
        let archive = Archive::open(files::read(path)?).with_context(|| path.display().to_string())?;
        archive.only_program().with_context(|| path.display().to_string())
    })
}

fn write_report(args: &Args, report: &Report) -> Result<()> {
    if let Some(path) = &args.report {
        files::write(path, |out| Ok(writeln!(out, "{:#}", report.to_json())?))?;
    }
    let to_stdout = args.output.as_deref().is_some_and(files::is_standard) && !args.dry_run;
    if args.json {
        if to_stdout {
            bail!("the program and the report cannot both go to stdout; use --report FILE.json");
        }
        return files::print_json(&report.to_json());
    }
    for method in &report.methods {
        if args.dry_run {
            files::print_line(method.table().trim_end())?;
        } else {
            eprintln!("method {}: {} calls, {} nodes", method.name, method.calls.len(), method.nodes);
            for call in method.converted() {
                eprintln!("note: {call}");
            }
        }
    }
    Ok(())
}
