//! `flambeau batch`: runs the requests of a file without a server.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use flambeau_serve::{BatchFile, BatchFileError, Config, ModelSource};

use super::serve::{
    loading::{Loading, LoadingArgs},
    names,
};
use crate::{
    failure::{INTERRUPTED, hint, usage},
    interrupt, progress,
};

/// Answer the requests of a file, without a server
///
/// Each line of IN is a request in the form of OpenAI's batches: {"custom_id": "a",
/// "method": "POST", "url": "/v1/chat/completions", "body": {...}}. Each line of OUT is an answer
/// with the `custom_id` of its request, or an error. Answers come in the order in which they end.
///
/// The same command continues an interrupted batch: it runs only requests without an answer in OUT.
/// Ctrl-C loses no finished answer.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau batch in.jsonl out.jsonl --model HuggingFaceTB/SmolLM2-135M-Instruct\n  \
    flambeau batch in.jsonl out.jsonl --model gpt-4o-mini=model-Q4_1.gguf --parallel 16")]
pub(crate) struct Args {
    /// File with one request per line
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// File for the results, one per line
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Program (.pte), model folder, GGUF file, or ORG/NAME on the Hugging Face hub. NAME=MODEL
    /// sets its name in requests; repeat it for more models
    #[arg(short, long = "model", value_name = "MODEL", required = true)]
    models: Vec<String>,

    /// Run failed requests again
    #[arg(long)]
    retry_failed: bool,

    #[command(flatten)]
    loading: LoadingArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let names = names(&args.models, &[], &args.loading)?;
    let config = Config { request_time: std::time::Duration::MAX, ..Config::default() };
    let batch = BatchFile::open(&args.input, &args.output, args.retry_failed, &config).map_err(explain)?;
    let before = batch.progress();
    if before.done() == before.total {
        return Ok(report(before));
    }
    if before.done() > 0 {
        eprintln!("{} of {} requests are done already", before.done(), before.total);
    }
    let stop = interrupt::flag()?;
    // As many wait as run, so that each step of the model has work.
    let at_once = args.loading.parallel.saturating_mul(2);
    let loading = Loading { args: args.loading.clone(), aliases: Vec::new(), queue: at_once, models: names.len() };
    let engine = args.loading.load.engine.engine(false)?;
    let mut models: Vec<ModelSource> = Vec::new();
    for (name, model) in names {
        models.push(loading.load(&name, &loading.model(model), &engine).with_context(|| name.clone())?.into());
    }
    let bar = progress::count(before.total as u64);
    bar.set_position(before.done() as u64);
    let after = batch.run(models, config, at_once, &stop, &mut |now| {
        bar.set_position(now.done() as u64);
        if now.failed > 0 {
            bar.set_message(format!("{} failed", now.failed));
        }
    })?;
    bar.finish_and_clear();
    if after.done() < after.total {
        eprintln!("{} of {} requests are done; the same command goes on with the rest", after.done(), after.total);
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(report(after))
}

/// Prints a batch's result counts. Failures are in the output file and in the exit code.
fn report(end: flambeau_serve::Progress) -> ExitCode {
    eprintln!("{} requests: {} answered, {} failed", end.total, end.answered, end.failed);
    if end.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn explain(error: BatchFileError) -> anyhow::Error {
    match error {
        BatchFileError::Input { .. } => usage(error.to_string()),
        BatchFileError::Foreign { .. } => hint(error, "another OUT keeps the answers of each IN apart"),
        error => error.into(),
    }
}
