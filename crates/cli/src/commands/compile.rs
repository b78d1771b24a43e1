//! `flambeau compile`: archives of `torch.export` to a program.

mod check;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    compile::{self, Options, Output, Report, Scheme, SchemeName, Ties},
    pt2::{Archive, Exported},
};

use crate::{disk, engine::EngineArgs, failure::usage, file_kind::FileKind, files, memory, outputs, progress, recipe};

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

/// How float weights are quantized.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct QuantizeArgs {
    /// Quantize weights of linear layers: 2w, 3w, 4w, 5w, 6w, 8w, nvfp4, mxfp4, mxfp8 or none
    #[arg(long, value_name = "SCHEME")]
    qlinear: Option<String>,

    /// Quantize embedding tables, with the same schemes
    #[arg(long, value_name = "SCHEME")]
    qembedding: Option<String>,

    /// Quantization group size, weights that share a scale: 32, 64 or 128
    #[arg(long, value_name = "N", alias = "qlinear-group-size")]
    group_size: Option<u32>,

    /// Quantize by a recipe: default, sensitive, speech, or a TOML file
    #[arg(long, value_name = "NAME|FILE.toml", conflicts_with_all = ["qlinear", "qembedding", "group_size"])]
    recipe: Option<String>,
}

impl QuantizeArgs {
    pub(crate) fn options(&self) -> Result<Options> {
        if let Some(recipe) = &self.recipe {
            return recipe::options(recipe);
        }
        let scheme = |name: &Option<String>| {
            let name = name.as_deref().filter(|&name| name != "none");
            name.map(|name| Scheme::from_name(name, self.group_size)).transpose().map_err(|e| usage(e.to_string()))
        };
        let options = Options { linear: scheme(&self.qlinear)?, embedding: scheme(&self.qembedding)?, ..Options::default() };
        if self.group_size.is_some() && options.linear.is_none() && options.embedding.is_none() {
            return Err(usage("--group-size needs --qlinear or --qembedding"));
        }
        Ok(options)
    }

    /// The quantization of a named recipe.
    pub(crate) fn of_recipe(name: &str) -> QuantizeArgs {
        QuantizeArgs { qlinear: None, qembedding: None, group_size: None, recipe: Some(name.into()) }
    }

    /// Floats as they are.
    pub(crate) fn floats() -> QuantizeArgs {
        QuantizeArgs { qlinear: Some("none".into()), qembedding: None, group_size: None, recipe: None }
    }

    /// A flag that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let flags = [
            (self.qlinear.is_some(), "--qlinear"),
            (self.qembedding.is_some(), "--qembedding"),
            (self.group_size.is_some(), "--group-size"),
            (self.recipe.is_some(), "--recipe"),
        ];
        flags.into_iter().find_map(|(given, flag)| given.then_some(flag))
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
    let recipe = args.quantize.recipe.as_deref().map(Path::new);
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

/// Writes a program with a progress bar, and tells its size and how long it took.
pub(crate) fn write_program(output: &Output<'_>, path: &Path, start: Instant) -> Result<()> {
    let writer = output.writer()?;
    if !files::is_standard(path) && !files::is_special(path) {
        let advice = "-o or --cache-dir takes another folder, and `flambeau cache clear` removes exported programs";
        disk::admit(&path.display().to_string(), writer.data_size(), path.parent().unwrap_or(Path::new("")), advice)?;
    }
    let bar = progress::bytes(writer.data_size());
    let size = files::write(path, |out| Ok(writer.write(&mut bar.wrap_write(out)).map_err(compile::Error::from)?))?;
    bar.finish_and_clear();
    let peak = memory::peak().map(|peak| format!(", peak memory {}", memory::human(peak))).unwrap_or_default();
    eprintln!("wrote {} ({}) in {:.1} s{peak}", path.display(), memory::human(size), start.elapsed().as_secs_f64());
    Ok(())
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
