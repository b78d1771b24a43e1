//! `flambeau generate`: text from a language model.

use std::{
    io::{Read, Write},
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use flambeau::{
    runners::llm::{self, FinishReason, Generation, LanguageModel, ModelOptions, Request, Stats},
    text::{ChatInput, Clock, SamplingParams, message},
};
use serde_json::json;

use crate::{
    count::positive,
    engine::EngineArgs,
    failure::{INTERRUPTED, usage},
    file_kind::ProgramArgs,
    files, interrupt, memory,
    profile::ProfileArgs,
    tokenizer::{self, TextModel},
};

/// Generate text with a language model
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flambeau generate smollm2.pte -p 'What is the capital of France?' -n 50")]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,

    /// Text to continue or to answer; `-` reads stdin
    #[arg(short, long, value_name = "TEXT")]
    prompt: String,

    /// System message of the conversation
    #[arg(long, value_name = "TEXT", alias = "system-prompt")]
    system: Option<String>,

    /// Continue the prompt as it is, without the chat template
    #[arg(long, conflicts_with = "system", alias = "no-chat")]
    raw: bool,

    /// Let the model think before it answers, where its template has that choice
    #[arg(long)]
    think: bool,

    /// tokenizer.json or the folder that holds it; by default the program's own, or the one beside it
    #[arg(long, value_name = "PATH", alias = "tokenizer-path")]
    tokenizer: Option<PathBuf>,

    /// Method that computes logits
    #[arg(long, value_name = "NAME", alias = "method-name")]
    method: Option<String>,

    /// Most tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, alias = "max-tokens")]
    max_new_tokens: usize,

    /// Sampling temperature; 0 is greedy decoding
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true, alias = "temp")]
    temperature: f32,

    /// Sample from the K most likely tokens; 0 means all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,

    /// Nucleus sampling: sample from the most likely tokens whose probabilities sum up to P
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,

    /// Drop tokens less likely than P times the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,

    /// Repetition penalty on tokens that occurred already; 1 is none
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    repeat_penalty: f32,

    /// Seed for sampling; without it each run differs
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Stop string: text that ends generation; repeat it for more
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Do not stop at an end-of-sequence token
    #[arg(long)]
    ignore_eos: bool,

    /// Most prompt tokens that one prefill step takes
    #[arg(long, value_name = "N", value_parser = positive)]
    prefill_chunk: Option<usize>,

    /// Positions of the KV cache, for programs that keep none themselves
    #[arg(short = 'c', long, value_name = "N", value_parser = positive, alias = "kv-max-capacity")]
    ctx_size: Option<usize>,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    profile: ProfileArgs,

    /// Print a JSON object with text, token ids and statistics at the end
    #[arg(long)]
    json: bool,

    /// Print no statistics
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let sampling = sampling(args);
    sampling.validate().map_err(|e| usage(e.to_string()))?;
    args.profile.check_writable()?;
    let program = args.program.open()?;
    let text = tokenizer::find(&program, &args.program.program, args.tokenizer.as_deref())?;
    let prompt = encode(args, &text)?;
    let options = ModelOptions { method: args.method.clone(), chunk: args.prefill_chunk, context: args.ctx_size };
    let engine = args.engine.engine(args.profile.is_wanted())?;
    let mut model = LanguageModel::load(&program, &engine, &options)?;
    let request = Request {
        prompt,
        max_new_tokens: args.max_new_tokens,
        sampling,
        stop: args.stop.clone(),
        stop_ids: model.metadata().eos.clone(),
        ignore_eos: args.ignore_eos,
    };
    let cancelled = interrupt::flag()?;
    let generation = stream(args, &mut model, &text, &request, &cancelled)?;
    if args.json {
        files::print_json(&to_json(&generation))?;
    }
    if !args.quiet {
        print_stats(&generation.stats);
    }
    args.profile.report(model.method(), &*engine)?;
    Ok(if generation.finish == FinishReason::Cancelled { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn sampling(args: &Args) -> SamplingParams {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    SamplingParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repeat_penalty,
        seed: args.seed.unwrap_or_else(clock),
        ..SamplingParams::default()
    }
}

/// Token ids of the prompt, as a conversation if the model has a template for one.
fn encode(args: &Args, text: &TextModel) -> Result<Vec<u32>> {
    let prompt = if args.prompt == "-" {
        let mut prompt = String::new();
        std::io::stdin().lock().read_to_string(&mut prompt).context("cannot read the prompt from stdin")?;
        prompt.trim_end_matches('\n').to_owned()
    } else {
        args.prompt.clone()
    };
    let template = text.template.as_ref().filter(|_| !args.raw);
    let Some(template) = template else {
        if !args.raw && !args.quiet {
            eprintln!("the tokenizer has no chat template: continuing the prompt as it is");
        }
        return Ok(text.tokenizer.encode(&prompt, true)?);
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let mut chat = ChatInput {
        messages: args.system.iter().map(|system| message("system", system)).collect(),
        add_generation_prompt: true,
        now: Some(Clock { unix_seconds: seconds, utc_offset: 0 }),
        ..ChatInput::default()
    };
    chat.messages.push(message("user", &prompt));
    chat.extra.insert("enable_thinking".into(), args.think.into());
    Ok(text.tokenizer.encode(&template.render(&chat)?, false)?)
}

fn stream(
    args: &Args,
    model: &mut LanguageModel,
    text: &TextModel,
    request: &Request,
    cancelled: &AtomicBool,
) -> Result<Generation> {
    let start = Instant::now();
    let mut failed = None;
    let mut out = std::io::stdout().lock();
    let mut on_text = |piece: &str| {
        if args.json || failed.is_some() {
            return;
        }
        if let Err(error) = out.write_all(piece.as_bytes()).and_then(|()| out.flush()) {
            failed = Some(error);
            cancelled.store(true, Ordering::Relaxed);
        }
    };
    let generation = llm::generate(model, &text.tokenizer, request, &|| start.elapsed(), cancelled, &mut on_text)?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if !args.json && !generation.text.ends_with('\n') {
        writeln!(out)?;
    }
    Ok(generation)
}

fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "–".into(), |rate| format!("{rate:.1} tokens/s"))
}

fn print_stats(stats: &Stats) {
    eprintln!("prompt: {} tokens, {}", stats.prompt_tokens, per_second(stats.prefill_rate()));
    eprintln!("generation: {} tokens, {}", stats.generated_tokens, per_second(stats.decode_rate()));
    if let Some(time) = stats.first_token {
        eprintln!("time to first token: {:.3} s", time.as_secs_f64());
    }
    if let Some(peak) = memory::peak() {
        eprintln!("peak memory: {}", memory::human(peak));
    }
}

fn to_json(generation: &Generation) -> serde_json::Value {
    let stats = &generation.stats;
    json!({
        "text": generation.text,
        "ids": generation.ids,
        "finish_reason": match generation.finish {
            FinishReason::Stop => "stop",
            FinishReason::Length | FinishReason::Context => "length",
            FinishReason::Cancelled => "cancelled",
        },
        "prompt_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generated_tokens,
        "prompt_tokens_per_second": stats.prefill_rate(),
        "generated_tokens_per_second": stats.decode_rate(),
        "time_to_first_token_seconds": stats.first_token.map(|t| t.as_secs_f64()),
        "peak_memory_bytes": memory::peak(),
    })
}
