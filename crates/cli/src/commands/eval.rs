//! `flambeau eval`: perplexity of a language model on a text.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use flambeau::{
    runners::llm::{Evaluation, Sequence, Windows, evaluate},
    text::Tokenizer,
    zoo,
};
use serde_json::{Value, json};

use crate::{
    count::positive,
    failure::INTERRUPTED,
    files, interrupt,
    language_model::{LanguageModelArgs, Loaded},
    progress,
};

/// Measure a language model's perplexity on a text, and its divergence from another model
///
/// The text is cut into windows, and the predictions of each window's second half are scored, as in
/// llama.cpp's perplexity tool. With `--against`, a reference model reads the same windows; the
/// Kullback-Leibler divergence then measures how much its predictions changed, for instance by
/// quantization.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  flambeau eval model.pte --text wiki.test.raw\n  flambeau eval model-4bit.pte --against model-bf16.pte --text wiki.test.raw\n  \
    flambeau eval ./smollm2 --qlinear 4w --against ./smollm2 --text book.txt --json"
)]
pub(crate) struct Args {
    #[command(flatten)]
    model: LanguageModelArgs,

    /// Text file to predict; `-` reads stdin
    #[arg(short = 'f', long, value_name = "FILE", alias = "file")]
    text: PathBuf,

    /// Reference model with the same vocabulary: a program, or a checkpoint, whose weights are not
    /// quantized
    #[arg(long, value_name = "MODEL")]
    against: Option<String>,

    /// Tokens per window
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = positive)]
    window: usize,

    /// Maximum number of windows; all by default
    #[arg(long, value_name = "N", value_parser = positive, alias = "chunks")]
    windows: Option<usize>,

    /// Print the figures as a JSON object
    #[arg(long)]
    json: bool,

    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let text = String::from_utf8(files::read(&args.text)?.to_vec())
        .with_context(|| format!("{} is no text in UTF-8", args.text.display()))?;
    let Loaded { model, text: text_model, engine } = args.model.load(zoo::Logits::All, None)?;
    let adapters = model.default_adapters();
    let mut model = model.sequence()?;
    model.set_adapters(&adapters)?;
    let mut reference = args.against.as_ref().map(|name| args.model.load_reference(name, &engine)).transpose()?;
    let tokenizer = text_model.tokenizer;
    let ids = tokenizer.encode(&text, true)?;
    let most = args.windows.map_or(ids.len(), |windows| ids.len().min(windows.saturating_mul(args.window)));
    let windows = Windows::new(&ids[..most], args.window, leading(&tokenizer, &ids))?;
    warn_of_slow(args, &model, reference.as_ref());

    let cancelled = interrupt::flag()?;
    let bar = if args.quiet { indicatif::ProgressBar::hidden() } else { progress::count(windows.count() as u64) };
    let evaluation = evaluate(&mut model, reference.as_mut(), &windows, &cancelled, &mut |done, evaluation| {
        bar.set_position(done as u64);
        bar.set_message(format!("perplexity {:.4}", evaluation.perplexity()));
    })?;
    bar.finish_and_clear();
    let done = evaluation.loss.count() / windows.scored();
    match done {
        0 => {}
        _ if args.json => files::print_json(&to_json(args, &evaluation, done))?,
        _ => print(args, &evaluation, done),
    }
    if done == windows.count() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("interrupted after {done} of {} windows", windows.count());
    Ok(ExitCode::from(INTERRUPTED))
}

/// The token that the tokenizer puts before texts, if any.
fn leading(tokenizer: &Tokenizer, ids: &[u32]) -> Option<u32> {
    tokenizer.bos_id().filter(|bos| ids.first() == Some(bos))
}

fn warn_of_slow(args: &Args, model: &Sequence, reference: Option<&Sequence>) {
    if !args.quiet && ![Some(model), reference].into_iter().flatten().all(|sequence| sequence.model().gives_all_logits()) {
        eprintln!(
            "a program gives the logits of the last token only, so that tokens are read one by one; `flambeau export --all-logits` makes one that gives all"
        );
    }
}

fn print(args: &Args, evaluation: &Evaluation, windows: usize) {
    let loss = &evaluation.loss;
    let perplexity = evaluation.perplexity();
    println!("perplexity      {perplexity:.4} ± {:.4}", perplexity * loss.error());
    println!("predictions     {} in {windows} windows of {} tokens", loss.count(), args.window);
    let Some(name) = &args.against else { return };
    let against = &evaluation.against;
    println!("against         {name}, perplexity {:.4}", against.loss.value().exp());
    println!(
        "KL divergence   mean {:.6}, 99.9 % {:.6}",
        against.mean_divergence(),
        against.divergence_at(0.999).unwrap_or(f64::NAN)
    );
    println!("same best token {:.3} %", 100.0 * against.agreement());
}

fn to_json(args: &Args, evaluation: &Evaluation, windows: usize) -> Value {
    let perplexity = evaluation.perplexity();
    let mut figures = json!({
        "perplexity": perplexity,
        "perplexity_standard_error": perplexity * evaluation.loss.error(),
        "predictions": evaluation.loss.count(),
        "windows": windows,
        "window_tokens": args.window,
    });
    if let Some(name) = &args.against {
        let against = &evaluation.against;
        figures["against"] = json!({
            "model": name,
            "perplexity": against.loss.value().exp(),
            "mean_kl_divergence": against.mean_divergence(),
            "kl_divergence_99_9": against.divergence_at(0.999),
            "same_best_token": against.agreement(),
        });
    }
    figures
}
