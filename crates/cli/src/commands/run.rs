//! `flambeau run`: runs a method on tensors from files.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;
use flambeau::{
    engine::{KvCacheConfig, LoadOptions},
    runtime::{Method, Value},
    tensor::{DType, Tensor, cast},
};
use serde_json::{Value as Json, json};

use crate::{
    count::positive,
    engine::EngineArgs,
    failure::{hint, usage},
    file_kind::ProgramArgs,
    files,
    hub::ModelName,
    inputs, kv_cache, outputs,
    profile::ProfileArgs,
    tensors,
};

/// Run a method of a .pte file on tensors from files
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flambeau run model.pte --input x.npy --input mask.npy -o y.safetensors")]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,

    /// Prompt, as other programs' `run` takes it; refused with advice.
    #[arg(hide = true, value_name = "PROMPT")]
    prompt: Vec<String>,

    /// Method to run
    #[arg(long, value_name = "NAME", default_value = "forward", alias = "method-name")]
    method: String,

    /// Input file: .bin, .npy, .npz or .safetensors; repeatable, `-` reads .bin from stdin
    #[arg(short, long = "input", value_name = "FILE")]
    inputs: Vec<PathBuf>,

    /// Output file: .bin, .npy, .npz or .safetensors; `-` writes .bin to stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// KV cache of programs without caches of their own: capacity,layers,kv_heads,head_dim[,dtype]
    #[arg(long, value_name = "SPEC", value_parser = kv_cache::parse)]
    kv_cache: Option<KvCacheConfig>,

    #[command(flatten)]
    engine: EngineArgs,

    /// Run N times and print the time of each run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    repeat: usize,

    #[command(flatten)]
    profile: ProfileArgs,

    /// Write the results of every node and call beside the ETDump, which the Inspector takes as
    /// `debug_buffer_path`. Nodes then run one by one
    #[arg(long, value_name = "FILE.bin", requires = "etdump")]
    debug_buffer: Option<PathBuf>,

    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// Advice for those who expect `run` to start a conversation.
const TALKS: &str = "`flambeau chat MODEL` talks with a language model, and `flambeau generate MODEL PROMPT` continues a text";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(word) = args.prompt.first() {
        return Err(hint(usage(format!("unexpected argument `{word}`: tensors are given with --input FILE")), TALKS));
    }
    if let Some(path) = &args.output {
        tensors::check_writable(path)?;
    }
    let written: Vec<&Path> =
        args.output.as_deref().into_iter().chain(args.profile.files()).chain(args.debug_buffer.as_deref()).collect();
    outputs::check(&written, args.program.paths().chain(args.inputs.iter().map(PathBuf::as_path)))?;
    written.into_iter().try_for_each(files::check_writable)?;
    let program = args.program.open().map_err(|error| advise(error, &args.program.program))?;
    let options = LoadOptions { kv_cache: args.kv_cache.clone(), ..LoadOptions::default() };
    let clock = args.profile.clock();
    let engine = args.engine.engine_with(clock.clone())?;
    let mut method = match &clock {
        Some(clock) if args.debug_buffer.is_some() => {
            program.method_with_results(&args.method, &engine, &options, clock, usize::MAX)?
        }
        _ => program.method(&args.method, &engine, &options)?,
    };
    if args.debug_buffer.is_none() {
        args.profile.watch(&mut [&mut method], clock);
    }
    let mut inputs = Vec::new();
    for path in &args.inputs {
        inputs.extend(tensors::read(path)?);
    }
    let inputs = inputs::arguments(method.inputs(), inputs).map_err(|error| {
        if args.inputs.is_empty() { hint(error, format!("--input FILE gives a tensor; {TALKS}")) } else { error }
    })?;
    let (outputs, times) = timed_runs(&mut method, &inputs, args.repeat)?;
    if let Some(path) = &args.output {
        tensors::write(path, &named(&method, &outputs))?;
    }
    let to_stdout = args.output.as_deref().is_some_and(files::is_standard);
    if args.json && !to_stdout {
        files::print_json(&json!({ "outputs": describe_all(&method, &outputs), "seconds": seconds(&times) }))?;
    } else if args.output.is_none() {
        print_outputs(&method, &outputs)?;
    }
    report(args, &times);
    args.profile.report(&mut [&mut method], &*engine, args.debug_buffer.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// Adds advice if the argument is no file but the name of a model.
fn advise(error: anyhow::Error, program: &Path) -> anyhow::Error {
    let is_name = !program.exists() && program.extension().is_none_or(|end| end != "pte");
    let name = program.to_str().filter(|_| is_name).and_then(|text| ModelName::parse(text).ok());
    if name.is_some() { hint(error, format!("`flambeau run` takes a .pte file; {TALKS}")) } else { error }
}

fn timed_runs(method: &mut Method, inputs: &[Value], repeat: usize) -> Result<(Vec<Value>, Vec<Duration>)> {
    let mut times = Vec::with_capacity(repeat.min(1 << 16));
    let mut outputs = Vec::new();
    for i in 0..repeat {
        if i > 0 {
            method.reset();
        }
        let start = Instant::now();
        outputs = method.run(inputs)?;
        times.push(start.elapsed());
    }
    Ok((outputs, times))
}

fn seconds(times: &[Duration]) -> Vec<f64> {
    times.iter().map(Duration::as_secs_f64).collect()
}

fn report(args: &Args, times: &[Duration]) {
    if args.repeat > 1 {
        let mut sorted = seconds(times);
        sorted.sort_by(f64::total_cmp);
        if let (Some(min), Some(median), Some(max)) = (sorted.first(), sorted.get(sorted.len() / 2), sorted.last()) {
            eprintln!("{} runs: min {min:.6} s, median {median:.6} s, max {max:.6} s", sorted.len());
        }
    }
}

fn output_name(method: &Method, i: usize) -> String {
    method.outputs().get(i).and_then(|s| s.name.clone()).unwrap_or_else(|| format!("output{i}"))
}

/// Outputs as tensors; integers are rank-0 tensors.
fn named(method: &Method, outputs: &[Value]) -> Vec<(String, Tensor)> {
    let tensor = |value: &Value| match value {
        Value::Tensor(t) => Some(t.clone()),
        other => other.as_int().map(Tensor::scalar),
    };
    outputs.iter().enumerate().filter_map(|(i, v)| Some((output_name(method, i), tensor(v)?))).collect()
}

fn print_outputs(method: &Method, outputs: &[Value]) -> Result<()> {
    for (i, value) in outputs.iter().enumerate() {
        let name = output_name(method, i);
        let Value::Tensor(tensor) = value else {
            files::print_line(format_args!("{name}: {}", value.describe()))?;
            continue;
        };
        let shown = first_elements(tensor);
        let dots = if tensor.numel() > shown.len() { ", …" } else { "" };
        let shown: Vec<String> = shown.iter().map(f64::to_string).collect();
        files::print_line(format_args!("{name}: {} = {}{dots}", value.describe(), shown.join(", ")))?;
    }
    Ok(())
}

fn first_elements(tensor: &Tensor) -> Vec<f64> {
    const SHOWN: usize = 8;
    let wide = cast(tensor, DType::F64).ok();
    let list = wide.as_ref().and_then(|t| t.as_slice::<f64>().ok()).unwrap_or_default();
    list.iter().take(SHOWN).copied().collect()
}

/// Types, shapes and values of outputs; NaN and infinities are null.
fn describe_all(method: &Method, outputs: &[Value]) -> Vec<Json> {
    let describe = |(i, value): (usize, &Value)| {
        let name = output_name(method, i);
        match value {
            Value::Tensor(t) => {
                json!({ "name": name, "dtype": t.dtype().name(), "shape": t.shape(), "first": first_elements(t) })
            }
            Value::Bool(v) => json!({ "name": name, "value": v }),
            Value::Double(v) => json!({ "name": name, "value": v }),
            Value::String(v) => json!({ "name": name, "value": v }),
            other => json!({ "name": name, "value": other.as_int() }),
        }
    };
    outputs.iter().enumerate().map(describe).collect()
}
