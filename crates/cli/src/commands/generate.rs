//! `flambeau generate`: generates text with a language model.

use std::{
    io::Write,
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use anyhow::Result;
use flambeau::{
    runners::llm::{FinishReason, Generation, Generator, Logprobs, Request, Sequence, Stats},
    text::{ChatInput, Clock, Tokenizer, message},
};
use serde_json::json;

use crate::{
    constraint::ConstraintArgs,
    count::or_all,
    draft::DraftArgs,
    failure::{INTERRUPTED, hint},
    files, interrupt,
    language_model::{LanguageModelArgs, Loaded},
    memory,
    profile::ProfileArgs,
    prompt::{PromptArgs, TemplateArgs, unescape},
    sampling::SamplingArgs,
    shift::ShiftArgs,
    tokenizer::TextModel,
};

/// Generate text with a language model
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "flambeau generate [OPTIONS] <MODEL> <PROMPT>",
    after_help = "Examples:\n  flambeau generate smollm2.pte 'What is the capital of France?' -n 50\n  \
    flambeau generate qwen3:0.6b -f question.txt --temperature 0.7 --seed 1\n  \
    flambeau generate model-Q4_1.gguf 'Name a river.' -j '{\"type\": \"object\", \"properties\": {\"river\": {\"type\": \"string\"}}}'"
)]
pub(crate) struct Args {
    #[command(flatten)]
    model: LanguageModelArgs,

    #[command(flatten)]
    prompt: PromptArgs,

    /// System message of the conversation
    #[arg(long, value_name = "TEXT", alias = "system-prompt")]
    system: Option<String>,

    /// Continue the prompt unchanged, without the chat template
    #[arg(long, conflicts_with = "system", alias = "no-chat")]
    raw: bool,

    /// Enable the model's thinking mode, if its template has one
    #[arg(long)]
    think: bool,

    #[command(flatten)]
    template: TemplateArgs,

    /// Maximum number of tokens to generate; -1 for as many as the context holds
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, aliases = ["max-tokens", "n-predict", "predict"], allow_negative_numbers = true, value_parser = or_all)]
    max_new_tokens: usize,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// Stop string: text that ends generation; repeat it for more. `\n`, `\t`, `\\` and `\xHH`
    /// stand for characters
    #[arg(long, value_name = "TEXT", value_parser = unescape)]
    stop: Vec<String>,

    #[command(flatten)]
    constraint: ConstraintArgs,

    #[command(flatten)]
    shift: ShiftArgs,

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

    /// Add the log probabilities of each token and of the N most likely ones to the JSON object
    #[arg(long, value_name = "N", requires = "json")]
    logprobs: Option<usize>,

    /// Print no statistics
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    args.sampling.params(None)?;
    args.profile.check_writable([Path::new(args.model.name())])?;
    let clock = args.profile.clock();
    let Loaded { model, mut text, engine } = args.model.load(args.draft.logits(), clock.clone())?;
    args.template.apply(&mut text)?;
    args.sampling.check_tokens(&text.tokenizer)?;
    let model = args.draft.attach(model, &text.tokenizer, &engine, args.model.threads(), args.model.lock())?;
    let mut sequence = model.sequence()?;
    args.profile.watch(&mut [sequence.method()], clock);
    let (prompt, rendered) = encode(args, &text)?;
    let form = args.constraint.form(&text.tokenizer, &model.metadata().eos)?;
    let sampling = args.sampling.params(text.defaults.as_ref())?;
    let request = Request {
        prompt,
        adapters: model.default_adapters(),
        max_new_tokens: args.max_new_tokens,
        sampling,
        stop: args.stop.clone(),
        stop_ids: model.metadata().eos.clone(),
        ignore_eos: args.ignore_eos,
        logprobs: args.logprobs,
        constraint: form.map(|form| form.constraint(&rendered)).transpose()?,
        prompt_lookup: args.draft.looks_up(),
        shift: args.shift.shift(),
        ..Request::default()
    };
    let cancelled = interrupt::flag()?;
    let (generation, logprobs) = stream(args, &mut sequence, &text, request, &cancelled)?;
    if args.json {
        let mut json = to_json(&generation);
        if args.logprobs.is_some() {
            json["logprobs"] = logprobs.iter().map(|(id, logprobs)| logprobs_json(&text.tokenizer, *id, logprobs)).collect();
        }
        files::print_json(&json)?;
    }
    if generation.finish == FinishReason::Context {
        eprintln!(
            "the context is full, and the text ends here (-c N gives a checkpoint's program room for N tokens, and --context-shift drops older text)"
        );
    }
    if !args.quiet {
        print_stats(&generation.stats);
    }
    args.profile.report(&mut [sequence.method()], &*engine, None)?;
    Ok(if generation.finish == FinishReason::Cancelled { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Token IDs of the prompt, rendered as a conversation if the model has a template, and that text.
fn encode(args: &Args, text: &TextModel) -> Result<(Vec<u32>, String)> {
    let prompt = args.prompt.read()?;
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
        return Ok((text.tokenizer.encode_prompt(&prompt)?, String::new()));
    };
    let mut chat = ChatInput {
        messages: args.system.iter().map(|system| message("system", system)).collect(),
        add_generation_prompt: true,
        now: Some(Clock::now()),
        ..ChatInput::default()
    };
    chat.messages.push(message("user", &prompt));
    chat.extra.insert("enable_thinking".into(), args.think.into());
    let rendered = template.render(&chat)?;
    Ok((text.tokenizer.encode(&rendered, false)?, rendered))
}

/// Generates text, prints it as it arrives, and collects log probabilities per token.
fn stream(
    args: &Args,
    sequence: &mut Sequence,
    text: &TextModel,
    request: Request,
    cancelled: &AtomicBool,
) -> Result<(Generation, Vec<(u32, Logprobs)>)> {
    let start = Instant::now();
    let now = || start.elapsed();
    let mut out = std::io::stdout().lock();
    let mut generator = Generator::new(sequence, &text.tokenizer, request, &now)?;
    let mut logprobs = Vec::new();
    loop {
        let step = if cancelled.load(Ordering::Relaxed) { generator.cancel() } else { generator.step(sequence, &now) }?;
        if !args.json && !step.text.is_empty() {
            out.write_all(step.text.as_bytes()).and_then(|()| out.flush())?;
        }
        logprobs.extend(step.token.zip(step.logprobs));
        if step.finish.is_some() {
            break;
        }
    }
    let generation = generator.end(sequence, &now);
    if !args.json && !generation.text.ends_with('\n') {
        writeln!(out)?;
    }
    Ok((generation, logprobs))
}

/// Log probabilities of a token in the format of OpenAI's chat completions.
fn logprobs_json(tokenizer: &Tokenizer, id: u32, logprobs: &Logprobs) -> serde_json::Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(id);
        let text = bytes
            .as_deref()
            .map_or_else(|| tokenizer.id_to_token(id).unwrap_or_default(), |bytes| String::from_utf8_lossy(bytes).into());
        json!({ "id": id, "token": text, "logprob": logprob.max(-9999.0) })
    };
    let mut json = entry(id, logprobs.chosen);
    json["top_logprobs"] = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
    json
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
