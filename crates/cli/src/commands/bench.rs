//! `flambeau bench`: speed of language models and speech models.

mod speech;

use std::{fmt, panic::resume_unwind, path::PathBuf, process::ExitCode, time::Instant};

use anyhow::{Result, bail};
use flambeau::{
    engine::{Engine, FusedRegion, NodeByNode, Sampling, Steps},
    runners::llm::{Model, ModelOptions, PIPELINE_DEPTH, Sequence, TokenInput},
    zoo::Logits,
};
use serde_json::{Value as Json, json};

use crate::{
    count::positive,
    engine::EngineArgs,
    failure::usage,
    files,
    model::{Kind, ModelArgs, Opened},
    profile::ProfileArgs,
    progress,
};

/// Measure the speed of a language model or a speech model
///
/// One test per number. `pp512` feeds a prompt of 512 tokens. `tg128` generates 128 tokens one by
/// one, `tg128@d1024` after 1,024 tokens in the cache. `tg128@s8` generates 128 tokens for each of
/// 8 sequences at once, and adds up their rates. Engines that draw tokens themselves generate
/// greedily, the others are fed arbitrary tokens and give their
/// logits. Every test runs once unmeasured, then `--repetitions` times; the median counts.
///
/// A model of speech hears the first window of a recording (features, encoder), reads tokens one by
/// one (decoder) and, if it has its
/// tokenizer, transcribes the whole recording greedily; the real-time factor is the time that a
/// second takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau bench smollm2.pte -p 128,512 -n 128 -d 0,1024 -r 5 --threads 2 -o md\n  \
    flambeau bench unsloth/Qwen3-0.6B-GGUF:Q8_0 -n 64")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Prompt lengths to measure; 0 skips the test
    #[arg(short = 'p', long = "prompt-tokens", value_name = "N,..", value_delimiter = ',', default_value = "512")]
    prompts: Vec<usize>,

    /// Numbers of tokens to generate; 0 skips the test
    #[arg(short = 'n', long = "generation-tokens", value_name = "N,..", value_delimiter = ',', default_value = "128")]
    generate: Vec<usize>,

    /// Tokens in the KV cache before generation starts
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,

    /// Number of sequences that generate at once
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', default_value = "1", value_parser = positive)]
    sequences: Vec<usize>,

    /// Measured repetitions of each test, after one warm-up
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = positive)]
    repetitions: usize,

    /// Recording for a speech model; by default 30 seconds of intermittent tones
    #[arg(long, value_name = "FILE")]
    audio: Option<PathBuf>,

    /// Maximum number of prompt tokens per prefill step
    #[arg(long, value_name = "N", value_parser = positive)]
    prefill_chunk: Option<usize>,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    profile: ProfileArgs,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: Format,

    /// Same as `--output json`
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl Args {
    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A Markdown table
    Md,
    /// Comma-separated values with a header
    Csv,
    /// An array of JSON objects
    Json,
}

/// A test: prompt tokens, or tokens generated after a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Prompt(usize),
    Generate { tokens: usize, depth: usize, sequences: usize },
}

impl Test {
    /// Number of cache positions that the test needs.
    fn room(self) -> usize {
        match self {
            Test::Prompt(tokens) => tokens,
            Test::Generate { tokens, depth, .. } => tokens.saturating_add(depth),
        }
    }

    /// Number of tokens of all sequences.
    fn tokens(self) -> usize {
        match self {
            Test::Prompt(tokens) => tokens,
            Test::Generate { tokens, sequences, .. } => tokens.saturating_mul(sequences),
        }
    }

    fn sequences(self) -> usize {
        match self {
            Test::Prompt(_) => 1,
            Test::Generate { sequences, .. } => sequences,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Prompt(tokens) => write!(f, "pp{tokens}"),
            Test::Generate { tokens, depth, sequences } => {
                write!(f, "tg{tokens}")?;
                if *depth > 0 {
                    write!(f, "@d{depth}")?;
                }
                if *sequences > 1 { write!(f, "@s{sequences}") } else { Ok(()) }
            }
        }
    }
}

/// Speeds of a test in tokens per second, ascending.
struct Measured {
    test: Test,
    rates: Vec<f64>,
    /// The engine's execution plan, if available.
    steps: Option<Steps>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Opened { program, path, kind } = args.model.open_any(Logits::Last, args.engine.threads)?;
    if kind == Kind::Speech {
        return speech::run(args, &program, &path);
    }
    args.model.check_kind(kind, &[Kind::Language])?;
    if args.audio.is_some() {
        return Err(usage("--audio takes a model of speech"));
    }
    let tests: Vec<Test> = tests(args).filter(|test| test.tokens() > 0).collect();
    if tests.is_empty() {
        return Err(usage("nothing is left to measure: give -p or -n a number above 0"));
    }
    args.profile.check_writable(args.model.paths())?;
    let options = ModelOptions { chunk: args.prefill_chunk, ..ModelOptions::default() };
    let clock = args.profile.clock();
    let engine = args.engine.engine_with(clock.clone())?;
    let model = Model::load(&program, &engine, &options)?;
    if let Some((room, test)) = model.context().and_then(|room| Some((room, tests.iter().find(|t| t.room() > room)?))) {
        bail!("{test} takes {} positions, the model's context has {room}", test.room());
    }
    let most = tests.iter().map(|test| test.sequences()).max().unwrap_or(1);
    let mut sequences: Vec<Sequence> = (0..most).map(|_| model.sequence()).collect::<Result<_, _>>()?;
    args.profile.watch(&mut [sequences[0].method()], clock);
    let bar = progress::count((tests.len() * args.repetitions) as u64);
    let mut rows = Vec::new();
    for &test in &tests {
        bar.set_message(test.to_string());
        let before = sequences[0].method().steps().unwrap_or_default();
        let rates = measure(&mut sequences[..test.sequences()], test, args.repetitions, &mut || bar.inc(1))?;
        rows.push(Measured { test, rates, steps: sequences[0].method().steps().map(|steps| steps.since(&before)) });
    }
    bar.finish_and_clear();
    print(args, &*engine, &rows)?;
    args.profile.report(&mut [sequences[0].method()], &*engine, None)?;
    Ok(ExitCode::SUCCESS)
}

/// All combinations of the requested settings.
fn tests(args: &Args) -> impl Iterator<Item = Test> {
    let generate = args.generate.iter().flat_map(|&tokens| args.depth.iter().map(move |&depth| (tokens, depth)));
    let generate = generate
        .flat_map(|(tokens, depth)| args.sequences.iter().map(move |&sequences| Test::Generate { tokens, depth, sequences }));
    args.prompts.iter().map(|&n| Test::Prompt(n)).chain(generate)
}

/// Arbitrary token IDs that exist in every vocabulary.
fn token(model: &Sequence, i: usize) -> u32 {
    let vocab = model.metadata().vocab.unwrap_or(1000).clamp(1, 1000) as u32;
    (i as u32).wrapping_mul(7919) % vocab
}

fn feed(model: &mut Sequence, count: usize) -> Result<()> {
    let tokens: Vec<u32> = (0..count).map(|i| token(model, i)).collect();
    let chunk = model.chunk();
    tokens.chunks(chunk).try_for_each(|chunk| model.step(chunk).map(|_| ()))?;
    Ok(())
}

/// Generates `count` tokens with each sequence, as `flambeau generate` and `flambeau serve` do. If
/// the engine samples tokens, steps are submitted before earlier tokens are read. Otherwise all
/// sequences step together.
fn generate(models: &mut [Sequence], count: usize) -> Result<()> {
    if models.iter_mut().all(Sequence::can_pipeline) {
        return generate_pipelined(models, count);
    }
    let mut logits = vec![Vec::new(); models.len()];
    if let ([model], [logits]) = (&mut *models, &mut logits[..]) {
        return (0..count).try_for_each(|i| Ok(model.step_into(&[token(model, i)], logits)?));
    }
    for i in 0..count {
        let feeds = models.iter_mut().zip(&mut logits).enumerate();
        let mut feeds: Vec<TokenInput<'_>> =
            feeds.map(|(n, (model, logits))| TokenInput { token: token(model, i + n), sequence: model, logits }).collect();
        for outcome in Sequence::step_each(&mut feeds) {
            outcome.unwrap_or_else(|payload| resume_unwind(payload))?;
        }
    }
    Ok(())
}

fn generate_pipelined(models: &mut [Sequence], count: usize) -> Result<()> {
    let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, uniform: 0.0 };
    for model in models.iter_mut() {
        model.submit(&[token(model, 0)], greedy)?;
    }
    for received in 0..count {
        for model in models.iter_mut() {
            while model.in_flight() < (count - received).min(1 + PIPELINE_DEPTH) {
                model.submit_next(greedy)?;
            }
            model.receive()?;
        }
    }
    Ok(())
}

/// Tokens per second of each repetition, ascending.
fn measure(models: &mut [Sequence], test: Test, repetitions: usize, done: &mut dyn FnMut()) -> Result<Vec<f64>> {
    let mut rates = Vec::with_capacity(repetitions.min(1 << 16));
    for repetition in 0..=repetitions {
        models.iter_mut().for_each(Sequence::reset);
        let start = match test {
            Test::Prompt(tokens) => {
                let start = Instant::now();
                models.iter_mut().try_for_each(|model| feed(model, tokens))?;
                start
            }
            Test::Generate { tokens, depth, .. } => {
                models.iter_mut().try_for_each(|model| feed(model, depth))?;
                let start = Instant::now();
                generate(models, tokens)?;
                start
            }
        };
        let rate = test.tokens() as f64 / start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        if repetition > 0 {
            rates.push(rate);
            done();
        }
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates)
}

fn print(args: &Args, engine: &dyn Engine, rows: &[Measured]) -> Result<()> {
    let (engine, threads) = (engine.name(), args.engine.thread_count());
    let format = args.format();
    match format {
        Format::Json => {
            let row = |m: &Measured| {
                json!({
                    "test": m.test.to_string(),
                    "tps_median": median(&m.rates),
                    "tps_min": m.rates.first(),
                    "tps_max": m.rates.last(),
                    "engine": engine,
                    "threads": threads,
                    "planned_steps": m.steps.as_ref().map(|steps| steps.planned),
                    "fused_regions": m.steps.as_ref().map(|steps| steps.regions.iter().map(fused).collect::<Json>()),
                    "node_by_node": m.steps.as_ref().map(|steps| steps.node_by_node.iter().map(waited).collect::<Json>()),
                })
            };
            return files::print_json(&rows.iter().map(row).collect::<Json>());
        }
        Format::Md => {
            files::print_line("| engine | threads | test | tokens/s, median | min | max |")?;
            files::print_line("|---|---:|---|---:|---:|---:|")?;
        }
        Format::Csv => files::print_line("engine,threads,test,tps_median,tps_min,tps_max")?,
    }
    for m in rows {
        let number = |rate: Option<f64>| format!("{:.2}", rate.unwrap_or_default());
        let cells = [engine.to_owned(), threads.to_string(), m.test.to_string()].into_iter();
        let numbers = [median(&m.rates), m.rates.first().copied(), m.rates.last().copied()].map(number);
        let cells: Vec<String> = cells.chain(numbers).collect();
        let line = if format == Format::Csv { cells.join(",") } else { format!("| {} |", cells.join(" | ")) };
        files::print_line(line)?;
    }
    Ok(())
}

/// Number of fused regions.
fn fused(region: &FusedRegion) -> Json {
    json!({ "form": region.form, "nodes": region.nodes, "count": region.count })
}

/// Number of nodes that run one by one.
fn waited(nodes: &NodeByNode) -> Json {
    json!({ "node": nodes.node, "why": nodes.why, "count": nodes.count })
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
    fn tests_are_named_for_what_they_measure() {
        let generate = |tokens, depth, sequences| Test::Generate { tokens, depth, sequences };
        let names = [
            (Test::Prompt(512), "pp512", 512, 512),
            (generate(8, 0, 1), "tg8", 8, 8),
            (generate(8, 64, 1), "tg8@d64", 72, 8),
            (generate(8, 0, 4), "tg8@s4", 8, 32),
            (generate(8, 64, 4), "tg8@d64@s4", 72, 32),
        ];
        for (test, name, room, tokens) in names {
            assert_eq!((test.to_string().as_str(), test.room(), test.tokens()), (name, room, tokens));
        }
    }

    #[test]
    fn the_median_of_an_even_count_is_between_the_middle_two() {
        assert_eq!((median(&[]), median(&[1.0, 2.0, 9.0]), median(&[1.0, 2.0, 4.0, 9.0])), (None, Some(2.0), Some(3.0)));
    }
}
