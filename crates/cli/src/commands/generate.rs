//! `flambeau generate`: text from a language model.

use std::{
    io::{Read, Write},
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use flambeau::{
    runners::llm::{self, FinishReason, Generation, Request, Sequence, Stats},
    text::{ChatInput, Clock, message},
};
use serde_json::json;

use crate::{
    count::or_all,
    draft::DraftArgs,
    failure::{INTERRUPTED, hint},
    files, interrupt,
    language_model::{LanguageModelArgs, Loaded},
    memory,
    profile::ProfileArgs,
    sampling::SamplingArgs,
    tokenizer::TextModel,
};

/// Generate text with a language model
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flambeau generate smollm2.pte -p 'What is the capital of France?' -n 50")]
pub(crate) struct Args {
    #[command(flatten)]
    model: LanguageModelArgs,

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

    /// Most tokens to generate; -1 means as many as the context holds
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, alias = "max-tokens", allow_negative_numbers = true, value_parser = or_all)]
    max_new_tokens: usize,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// Stop string: text that ends generation; repeat it for more
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Do not stop at an end-of-sequence token
    #[arg(long)]
    ignore_eos: bool,

    #[command(flatten)]
    draft: DraftArgs,

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
    args.sampling.params(None)?;
    args.profile.check_writable([Path::new(args.model.name())])?;
    let Loaded { model, text, engine } = args.model.load(args.draft.logits(), args.profile.is_wanted())?;
    let model = args.draft.attach(model, &text.tokenizer, &engine, args.model.threads(), args.model.lock())?;
    let mut sequence = model.sequence()?;
    let prompt = encode(args, &text)?;
    let sampling = args.sampling.params(text.defaults.as_ref())?;
    let request = Request {
        prompt,
        max_new_tokens: args.max_new_tokens,
        sampling,
        stop: args.stop.clone(),
        stop_ids: model.metadata().eos.clone(),
        ignore_eos: args.ignore_eos,
        prompt_lookup: args.draft.looks_up(),
        ..Request::default()
    };
    let cancelled = interrupt::flag()?;
    let generation = stream(args, &mut sequence, &text, &request, &cancelled)?;
    if args.json {
        files::print_json(&to_json(&generation))?;
    }
    if generation.finish == FinishReason::Context {
        eprintln!("the context is full, and the text ends here (-c N gives a checkpoint's program room for N tokens)");
    }
    if !args.quiet {
        print_stats(&generation.stats);
    }
    args.profile.report(sequence.method(), &*engine)?;
    Ok(if generation.finish == FinishReason::Cancelled { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
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
    let template = match &text.template {
        _ if args.raw => None,
        Ok(template) => template.as_ref(),
        Err(error) => {
            return Err(hint(anyhow::anyhow!("the chat template: {error}"), "--raw continues the prompt as it is"));
        }
    };
    let Some(template) = template else {
        if !args.raw && !args.quiet {
            eprintln!("the tokenizer has no chat template: continuing the prompt as it is");
        }
        return Ok(text.tokenizer.encode_prompt(&prompt)?);
    };
    let mut chat = ChatInput {
        messages: args.system.iter().map(|system| message("system", system)).collect(),
        add_generation_prompt: true,
        now: Some(now()),
        ..ChatInput::default()
    };
    chat.messages.push(message("user", &prompt));
    chat.extra.insert("enable_thinking".into(), args.think.into());
    Ok(text.tokenizer.encode(&template.render(&chat)?, false)?)
}

/// The clock for templates that print the date.
pub(crate) fn now() -> Clock {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    Clock { unix_seconds: seconds, utc_offset: 0 }
}

fn stream(args: &Args, sequence: &mut Sequence, text: &TextModel, request: &Request, cancelled: &AtomicBool) -> Result<Generation> {
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
    let generation = llm::generate(sequence, &text.tokenizer, request, &|| start.elapsed(), cancelled, &mut on_text)?;
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

pub(crate) fn print_stats(stats: &Stats) {
    eprintln!("prompt: {} tokens, {}", stats.prompt_tokens, per_second(stats.prefill_rate()));
    eprintln!("generation: {} tokens, {}", stats.generated_tokens, per_second(stats.decode_rate()));
    if stats.rounds > 0 {
        let each = stats.generated_tokens.saturating_sub(1) as f64 / stats.rounds as f64;
        eprintln!("speculation: {} rounds, {each:.2} tokens each", stats.rounds);
    }
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
        "speculation_rounds": stats.rounds,
        "prompt_tokens_per_second": stats.prefill_rate(),
        "generated_tokens_per_second": stats.decode_rate(),
        "time_to_first_token_seconds": stats.first_token.map(|t| t.as_secs_f64()),
        "peak_memory_bytes": memory::peak(),
    })
}
