//! `flambeau conformance`: case folders, each a program with inputs and expected outputs.

mod case;
mod checkpoint;
mod classifier;
mod embedding;
mod session;
mod speech;
mod tagger;

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    panic::{self, AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde_json::json;

use self::{
    case::{Case, FailedCall, Outcome},
    session::SessionCase,
};
use crate::{
    count::positive,
    engine::{EngineArgs, EngineName, cores},
    failure, files, progress,
};

/// Run case folders and compare their outputs with the expected ones
///
/// A case folder is one of: case.json, input.bin, expected_output.bin and a program; a checkpoint
/// with tokens.bin and expected_logits.bin; a checkpoint with audio.wav and its transcript; a
/// checkpoint with embeddings.bin, vectors of texts; session.json, a program, and inputs and
/// outputs of successive calls. The last line is
/// `N passed, N failed, N skipped`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flambeau conformance cases/ops --from pte --jobs 2 --filter softmax")]
pub(crate) struct Args {
    /// Folder with case folders at any depth, or one case folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Program to run: the .pte file, the .pt2 file as compiled now, or the checkpoint as
    /// exported now in f32
    #[arg(long, value_name = "FORMAT", default_value = "pte")]
    from: case::ProgramFormat,

    /// Cases that run at the same time, one per core by default
    #[arg(short, long, value_name = "N", value_parser = positive)]
    jobs: Option<usize>,

    /// Only cases whose name contains this text; repeat it for more
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,

    /// File with names of cases expected to fail, one a line; an expected failure that passes
    /// counts as failed
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,

    #[command(flatten)]
    engine: EngineArgs,

    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
}

struct Done {
    name: String,
    family: String,
    outcome: Outcome,
    seconds: f64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut folders = Vec::new();
    find_cases(&args.folder, 0, &mut folders)?;
    let name = |folder: &Path| folder.strip_prefix(&args.folder).unwrap_or(folder).display().to_string();
    let mut cases: Vec<(String, PathBuf)> = folders.into_iter().map(|f| (name(&f), f)).collect();
    if let [(only, _)] = &mut cases[..]
        && only.is_empty()
    {
        *only = args.folder.file_name().map_or_else(|| "case".into(), |n| n.to_string_lossy().into_owned());
    }
    if cases.is_empty() {
        bail!("{} holds no case folder (one with a case.json or a session.json)", args.folder.display());
    }
    cases.retain(|(name, _)| args.filter.is_empty() || args.filter.iter().any(|text| name.contains(text.as_str())));
    if cases.is_empty() {
        bail!("no case below {} has `{}` in its name", args.folder.display(), args.filter.join("` or `"));
    }
    cases.sort();
    let expected = args.expect.as_deref().map(read_expected).transpose()?.unwrap_or_default();
    let mut done = run_all(args, &cases)?;
    for case in &mut done {
        if expected.contains(&case.name) {
            case.outcome = match &case.outcome {
                failed @ (Outcome::Failed(_) | Outcome::FailedCalls(_)) => {
                    Outcome::Skipped(format!("expected to fail: {}", failed.reason()))
                }
                Outcome::Passed(_) => Outcome::Failed("it is expected to fail, and passes".into()),
                other => other.clone(),
            };
        }
    }
    report(args, &done)
}

/// Folders with a `case.json` or a `session.json`, in any depth up to a bound.
fn find_cases(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    const MAX_DEPTH: usize = 8;
    if folder.join("case.json").is_file() || folder.join(session::FILE).is_file() {
        found.push(folder.to_owned());
        return Ok(());
    }
    if depth == MAX_DEPTH {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            find_cases(&path, depth + 1, found)?;
        }
    }
    Ok(())
}

/// Names, one a line; `#` begins a comment.
fn read_expected(path: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let names = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn run_all(args: &Args, cases: &[(String, PathBuf)]) -> Result<Vec<Done>> {
    let jobs = args.jobs.unwrap_or_else(cores).clamp(1, cases.len().max(1));
    let threads = args.engine.threads.unwrap_or_else(|| (cores() / jobs).max(1));
    // Workers with engines of their own would contend for one device.
    let shared = if args.engine.engine == EngineName::Mlx { Some(args.engine.engine(false)?) } else { None };
    let bar = progress::count(cases.len() as u64);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(cases.len())));
    let quiet = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = std::thread::scope(|scope| {
        let work = || -> Result<()> {
            let engine = match &shared {
                Some(engine) => std::sync::Arc::clone(engine),
                None => EngineArgs { threads: Some(threads), ..args.engine.clone() }.engine(false)?,
            };
            while let Some((name, folder)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                bar.set_message(name.clone());
                let start = Instant::now();
                let (family, outcome) = run_one(folder, args.from, &engine);
                let case = Done { name: name.clone(), family, outcome, seconds: start.elapsed().as_secs_f64() };
                done.lock().unwrap_or_else(|e| e.into_inner()).push(case);
                bar.inc(1);
            }
            Ok(())
        };
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().unwrap_or_else(|p| bail!("a worker died: {}", panic_text(&*p))))
    });
    panic::set_hook(quiet);
    bar.finish_and_clear();
    result?;
    let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    done.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(done)
}

fn run_one(folder: &Path, from: case::ProgramFormat, engine: &std::sync::Arc<dyn flambeau::engine::Engine>) -> (String, Outcome) {
    let unread = |error: anyhow::Error| ("?".into(), Outcome::Failed(failure::text(&error)));
    if folder.join(session::FILE).is_file() {
        return match SessionCase::read(folder) {
            Ok(case) => (case.family().to_owned(), outcome(|| case.run(from, engine))),
            Err(error) => unread(error),
        };
    }
    match Case::read(folder) {
        Ok(case) => (case.family.clone(), outcome(|| case.run(from, engine))),
        Err(error) => unread(error),
    }
}

/// Runs a case; an error or a panic is a failure.
fn outcome(run: impl FnOnce() -> Result<Outcome>) -> Outcome {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::Failed(failure::text(&error)),
        Err(payload) => Outcome::Failed(format!("panicked: {}", panic_text(&*payload))),
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}

fn report(args: &Args, done: &[Done]) -> Result<ExitCode> {
    let count = |name: &str| done.iter().filter(|case| case.outcome.name() == name).count();
    let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
    let code = if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        let case = |c: &Done| {
            let call = |c: &FailedCall| json!({ "call": c.call, "method": c.method, "reason": c.reason });
            let calls: Vec<_> = c.outcome.failed_calls().iter().map(call).collect();
            json!({ "name": c.name, "family": c.family, "outcome": c.outcome.name(), "reason": c.outcome.reason(),
                    "failed_calls": calls, "seconds": c.seconds })
        };
        let cases: Vec<_> = done.iter().map(case).collect();
        files::print_json(&json!({ "cases": cases, "passed": passed, "failed": failed, "skipped": skipped }))?;
        return Ok(code);
    }
    let mut families: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for case in done {
        *families.entry(&case.family).or_default().entry(case.outcome.name()).or_default() += 1;
        let reasons = match &case.outcome {
            Outcome::Failed(reason) => vec![reason.clone()],
            other => other.failed_calls().iter().map(FailedCall::to_string).collect(),
        };
        for reason in reasons {
            files::print_line(format_args!("FAILED {}: {}", case.name, reason.replace('\n', " ")))?;
        }
    }
    let width = families.keys().map(|f| f.chars().count()).max().unwrap_or(0).max("family".len());
    files::print_line(format_args!("{:<width$} {:>7} {:>7} {:>7}", "family", "passed", "failed", "skipped"))?;
    for (family, counts) in &families {
        let n = |name| counts.get(name).copied().unwrap_or(0);
        files::print_line(format_args!("{family:<width$} {:>7} {:>7} {:>7}", n("passed"), n("failed"), n("skipped")))?;
    }
    files::print_line(format_args!("{passed} passed, {failed} failed, {skipped} skipped"))?;
    Ok(code)
}
