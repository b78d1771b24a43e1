//! `flambeau bench`: speed of prompt processing and of generation.

use std::{path::PathBuf, process::ExitCode, time::Instant};

use anyhow::{Result, bail};
use flambeau::{
    runners::llm::{LanguageModel, ModelOptions},
    runtime::Program,
};
use serde_json::{Value as Json, json};

use crate::{engine::EngineArgs, failure::usage, files};

/// Measure the speed of a language model
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flambeau bench smollm2.pte -p 512 -n 128 -r 5 --threads 2 --json")]
pub(crate) struct Args {
    /// Program of the model
    #[arg(value_name = "FILE.pte")]
    program: PathBuf,

    /// Tokens of the prompt; 0 leaves the test out
    #[arg(short = 'p', long = "prompt-tokens", value_name = "N", default_value_t = 512)]
    prompt: usize,

    /// Tokens to generate; 0 leaves the test out
    #[arg(short = 'n', long = "generation-tokens", value_name = "N", default_value_t = 128)]
    generate: usize,

    /// Measured repetitions of each test, after one that is not measured
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5)]
    repetitions: usize,

    /// Most tokens that one step of the prompt takes
    #[arg(long, value_name = "N")]
    prefill_chunk: Option<usize>,

    #[command(flatten)]
    engine: EngineArgs,

    /// Print a JSON array instead of lines
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.repetitions == 0 {
        return Err(usage("--repetitions must be at least 1"));
    }
    let program = Program::open(&args.program)?;
    let options = ModelOptions { chunk: args.prefill_chunk, ..ModelOptions::default() };
    let mut model = LanguageModel::load(&program, &args.engine.engine(false)?, &options)?;
    if let Some(room) = model.room()
        && room < args.prompt.max(args.generate)
    {
        bail!("a test of {} tokens does not fit the model's context of {room}", args.prompt.max(args.generate));
    }
    let vocab = model.metadata().vocab.unwrap_or(1000).clamp(1, 1 << 31) as u32;
    let tokens: Vec<u32> = (0..args.prompt as u32).map(|i| i.wrapping_mul(7919) % vocab.min(1000)).collect();
    let mut rows = Vec::new();
    if args.prompt > 0 {
        let rates = measure(args.repetitions, args.prompt, &mut || {
            model.reset();
            let chunk = model.chunk();
            tokens.chunks(chunk).try_for_each(|chunk| model.step(chunk).map(|_| ())).map_err(Into::into)
        })?;
        rows.push(row(args, format!("pp{}", args.prompt), rates));
    }
    if args.generate > 0 {
        let rates = measure(args.repetitions, args.generate, &mut || {
            model.reset();
            (0..args.generate).try_for_each(|i| model.step(&[i as u32 % vocab.min(1000)]).map(|_| ())).map_err(Into::into)
        })?;
        rows.push(row(args, format!("tg{}", args.generate), rates));
    }
    if args.json {
        files::print_json(&Json::Array(rows))?;
    } else {
        for row in &rows {
            let number = |key: &str| row[key].as_f64().unwrap_or_default();
            let (median, min, max) = (number("tps_median"), number("tps_min"), number("tps_max"));
            let test = row["test"].as_str().unwrap_or_default();
            files::print_line(format_args!("{test:<8} {median:>10.2} tokens/s  (min {min:.2}, max {max:.2})"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Tokens per second of each repetition, in ascending order.
fn measure(repetitions: usize, tokens: usize, test: &mut dyn FnMut() -> Result<()>) -> Result<Vec<f64>> {
    test()?;
    let mut rates = Vec::with_capacity(repetitions.min(1 << 16));
    for _ in 0..repetitions {
        let start = Instant::now();
        test()?;
        rates.push(tokens as f64 / start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE));
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates)
}

fn row(args: &Args, test: String, rates: Vec<f64>) -> Json {
    json!({
        "test": test,
        "tps_median": median(&rates),
        "tps_min": rates.first(),
        "tps_max": rates.last(),
        "engine": args.engine.engine,
        "threads": args.engine.thread_count(),
    })
}

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some((sorted.get(middle - 1)? + upper) / 2.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_between_the_middle_two() {
        assert_eq!((median(&[]), median(&[1.0, 2.0, 9.0]), median(&[1.0, 2.0, 4.0, 9.0])), (None, Some(2.0), Some(3.0)));
    }
}
