//! Calibration: records the inputs of a checkpoint's linear layers on a text, to choose how their
//! weights are quantized.

mod budget;
mod sensitivity;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    compile::{self, InputStatistics, Statistics},
    engine::{Engine, Value},
    tensor::{Bytes, Tensor},
    text::{Tokenizer, TokenizerFiles},
    zoo::{self, Checkpoint},
};

use self::{budget::Budget, sensitivity::Unit};
use crate::{failure::usage, files, memory, progress, tokenizer::TEXT_FILES};

/// The default calibration text: prose, chats, code and mathematics in several languages.
const TEXT: &str = include_str!("calibration/text.txt");

/// Tokens per window. The model reads each window from its beginning.
const WINDOW: usize = 512;

/// Tokens per window for a large model, which reads only a part of the text.
const SHORT_WINDOW: usize = 128;

/// Maximum number of multiplications; bounds the time.
const MOST_PRODUCTS: u64 = 3 << 40;

/// Minimum and maximum number of tokens.
const TOKENS: [usize; 2] = [1024, 32 << 10];

/// Windows on which groups of weights are measured, and their tokens. Many short windows tell more
/// than few long ones, because texts differ.
const MEASURED_WINDOWS: usize = 12;
const MEASURED_WINDOW: usize = 32;

/// Maximum number of multiplications of these measurements.
const MOST_MEASURED: u64 = 4 << 40;

/// Columns whose products are kept with each column's square: in small models, and in models of
/// more weights than these.
const BLOCKS: [usize; 2] = [1024, 512];
const SMALL: u64 = 1 << 29;

/// Most floats of all products.
const MOST_FLOATS: usize = 256 << 20;

/// Flags of calibration.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CalibrationArgs {
    /// Text in UTF-8 that the model reads: its inputs decide how weights are quantized. `default`
    /// is a short text that comes with this program, and `none` quantizes weights by themselves;
    /// language models use `default` unless told otherwise
    #[arg(help_heading = "Export", long, value_name = "FILE")]
    calibration: Option<String>,

    /// Importance matrix of llama.cpp for the same model, such as imatrix.gguf or imatrix.dat, in
    /// the place of a text
    #[arg(help_heading = "Export", long, value_name = "FILE", conflicts_with = "calibration")]
    imatrix: Option<PathBuf>,

    /// Mean number of bits for a weight of linear layers, with its share of scales and biases, such
    /// as 4.5. Layers get more or fewer bits by how much the predictions change if they alone have
    /// few. It takes the place of --qlinear. Without a recipe, a head has the scheme of embedding
    /// tables, or 8 bits
    #[arg(help_heading = "Export", long, value_name = "B", conflicts_with = "qlinear")]
    bits_per_weight: Option<f64>,
}

impl CalibrationArgs {
    /// Adds statistics of a checkpoint's inputs to the options that quantize it. They stay as they
    /// are if nothing is to be calibrated. `tokenizer` holds the files of the tokenizer.
    pub(crate) fn calibrate(
        &self,
        checkpoint: &Checkpoint,
        options: &zoo::Options,
        (quantize, engine): (compile::Options, &dyn Engine),
        tokenizer: &[(String, Bytes)],
    ) -> Result<compile::Options> {
        let is_mute = self.calibration.as_deref() == Some("none");
        let budget = self.bits_per_weight.map(Budget::new).transpose()?;
        if budget.is_some() && is_mute {
            return Err(usage("--bits-per-weight needs calibration, which --calibration none takes away"));
        }
        let quantize = match &budget {
            Some(budget) => budget.whole(&quantize)?,
            None => quantize,
        };
        let is_asked = self.imatrix.is_some() || self.calibration.is_some() && !is_mute || budget.is_some();
        let is_language = checkpoint.is_language_model();
        let is_quantized = quantize.linear.is_some() || quantize.head.is_some() || !quantize.rules.is_empty();
        match is_asked {
            true if !is_quantized => {
                return Err(usage("--calibration and --imatrix need --qlinear, --recipe or --bits-per-weight"));
            }
            true if !is_language => return Err(usage("--calibration, --imatrix and --bits-per-weight are for language models")),
            false if !is_language || !is_quantized || is_mute => return Ok(quantize),
            _ => {}
        }
        if let Some(budget) = &budget {
            budget.check(&zoo::linear_weights(&zoo::build(checkpoint, options)?, quantize.clone())?)?;
        }
        let text = self.text()?;
        let observed = || observe(checkpoint, options, (&quantize, engine), (&tokenizer_of(tokenizer)?, &text));
        let statistics = match &self.imatrix {
            Some(path) => of_matrix(path, checkpoint)?,
            None if is_asked => observed()?,
            // Weights can be quantized without statistics too.
            None => observed().unwrap_or_else(|error| {
                eprintln!("weights are quantized without calibration: {error:#}");
                Statistics::default()
            }),
        };
        if is_asked && statistics.is_empty() {
            bail!(
                "calibration can change no weight: they are quantized already, no row is a multiple of the group size, or the \
                 scheme is of small floats"
            );
        }
        let quantize = compile::Options { statistics: Arc::new(statistics), ..quantize };
        match budget {
            Some(budget) => divide(&budget, checkpoint, options, (quantize, engine), (&tokenizer_of(tokenizer)?, &text)),
            None => Ok(quantize),
        }
    }

    /// The text that the model reads.
    fn text(&self) -> Result<String> {
        match self.calibration.as_deref() {
            None | Some("default") => Ok(TEXT.to_owned()),
            Some(path) => {
                let bytes = files::read(path.as_ref())?.to_vec();
                String::from_utf8(bytes).with_context(|| format!("{path} is no text in UTF-8"))
            }
        }
    }
}

/// Statistics from an importance matrix.
fn of_matrix(path: &Path, checkpoint: &Checkpoint) -> Result<Statistics> {
    let place = || path.display().to_string();
    let entries = zoo::gguf::importance(files::read(path)?, checkpoint).with_context(place)?;
    if entries.is_empty() {
        bail!("{} names no weight of this model", path.display());
    }
    let mut statistics = Statistics::default();
    for (name, squares) in entries {
        statistics.insert(name, Arc::new(InputStatistics::from_squares(squares)));
    }
    Ok(statistics)
}

/// Records the inputs of a language model's linear layers on a text.
fn observe(
    checkpoint: &Checkpoint,
    options: &zoo::Options,
    (quantize, engine): (&compile::Options, &dyn Engine),
    (tokenizer, text): (&Tokenizer, &str),
) -> Result<Statistics> {
    let start = Instant::now();
    let ids = tokens(tokenizer, text)?;
    let options =
        zoo::Options { max_seq_len: Some(WINDOW), prefill_chunk: Some(WINDOW), kv_cache: zoo::KvCache::Float, ..*options };
    let model = zoo::build(checkpoint, &options)?;
    let weights = weights(&model);
    let (windows, block) = (windows(&ids, weights), BLOCKS[usize::from(weights > SMALL)]);
    let tokens: usize = windows.iter().map(|window| window.len()).sum();
    let mut observer = zoo::observe(&model, quantize, engine, block, MOST_FLOATS)?;
    if observer.is_empty() {
        return Ok(Statistics::default());
    }
    eprintln!("calibrating with {tokens} tokens of text (--calibration none does without)");
    let bar = progress::count(windows.len() as u64);
    bar.set_message("windows of the calibration's text");
    for window in &windows {
        observer.run(&inputs(window, tokenizer.bos_id(), checkpoint.adapter_count())?)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let threads = quantize.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let statistics = observer.statistics(threads);
    let peak = memory::peak().map(|peak| format!(", peak memory {}", memory::human(peak))).unwrap_or_default();
    eprintln!("calibrated {} weights with {tokens} tokens in {:.1} s{peak}", statistics.len(), start.elapsed().as_secs_f64());
    Ok(statistics)
}

/// The options with a scheme for each weight of linear layers, so that their bits keep a budget.
fn divide(
    budget: &Budget,
    checkpoint: &Checkpoint,
    options: &zoo::Options,
    (mut quantize, engine): (compile::Options, &dyn Engine),
    (tokenizer, text): (&Tokenizer, &str),
) -> Result<compile::Options> {
    let start = Instant::now();
    let options = zoo::Options {
        max_seq_len: Some(MEASURED_WINDOW),
        prefill_chunk: Some(MEASURED_WINDOW),
        kv_cache: zoo::KvCache::Float,
        logits: zoo::Logits::All,
        ..*options
    };
    let model = zoo::build(checkpoint, &options)?;
    let ids = tokens(tokenizer, text)?;
    let windows = spaced(&ids, MEASURED_WINDOW, MEASURED_WINDOWS);
    let tokens: usize = windows.iter().map(|window| window.len()).sum();
    let inputs = |window: &&[u32]| inputs(window, tokenizer.bos_id(), checkpoint.adapter_count());
    let windows: Vec<Vec<Value>> = windows.iter().map(inputs).collect::<Result<_>>()?;
    let most = MOST_MEASURED / (weights(&model) * tokens as u64).max(1);
    let units = sensitivity::units(&zoo::linear_weights(&model, quantize.clone())?, most as usize);
    let units: Vec<(Unit, _)> =
        units.into_iter().filter_map(|unit| budget.measured(unit.columns).map(|choice| (unit, choice))).collect();
    eprintln!("measuring {} groups of weights in few bits with {tokens} tokens of text", units.len());
    let schemes: Vec<(&Unit, compile::Scheme)> = units.iter().map(|(unit, choice)| (unit, choice.scheme)).collect();
    let divergences = sensitivity::divergences(&model, (&quantize, engine), &windows, &schemes)?;
    let measured: Vec<_> =
        units.into_iter().zip(divergences).map(|((unit, choice), divergence)| (unit, choice, divergence)).collect();
    let (rules, told) = budget.rules(&measured);
    eprintln!("{told}; measured in {:.1} s", start.elapsed().as_secs_f64());
    quantize.rules.extend(rules);
    Ok(quantize)
}

/// The tokens of the calibration's text.
fn tokens(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let ids = tokenizer.encode(text, false)?;
    if ids.is_empty() {
        bail!("the text of the calibration is empty");
    }
    Ok(ids)
}

/// Number of elements of all weights with statistics.
fn weights(model: &zoo::Model) -> u64 {
    let weights = model.methods.values().flat_map(|exported| exported.weights.values());
    weights.map(|weight| weight.shape()).filter(|shape| shape.len() >= 2).map(|shape| shape.iter().product::<usize>() as u64).sum()
}

/// Windows of a text: all of it, or evenly spaced parts.
fn windows(ids: &[u32], weights: u64) -> Vec<&[u32]> {
    let [fewest, most] = TOKENS;
    let tokens = usize::try_from(MOST_PRODUCTS / weights.max(1)).unwrap_or(most).clamp(fewest, most);
    if ids.len() <= tokens {
        return ids.chunks(WINDOW).collect();
    }
    spaced(ids, SHORT_WINDOW, tokens / SHORT_WINDOW)
}

/// At most `count` windows of a text, evenly spaced. A shorter text is one window.
fn spaced(ids: &[u32], window: usize, count: usize) -> Vec<&[u32]> {
    let windows: Vec<&[u32]> = ids.chunks_exact(window).collect();
    if windows.is_empty() {
        return vec![ids];
    }
    let count = count.min(windows.len());
    (0..count).map(|i| windows[i * windows.len() / count]).collect()
}

/// A language model's inputs for a window of tokens, without its adapters. A token that begins
/// texts replaces the first one.
fn inputs(window: &[u32], bos: Option<u32>, adapters: usize) -> Result<Vec<Value>> {
    let mut ids: Vec<i64> = window.iter().map(|&id| i64::from(id)).collect();
    ids[0] = bos.map_or(ids[0], i64::from);
    let positions: Vec<i64> = (0..ids.len() as i64).collect();
    let mut tensors = vec![Tensor::from_slice(&ids, &[1, ids.len()])?, Tensor::from_slice(&positions, &[ids.len()])?];
    if adapters > 0 {
        tensors.push(Tensor::from_slice(&vec![0f32; adapters], &[adapters])?);
    }
    Ok(tensors.into_iter().map(Value::Tensor).collect())
}

/// The tokenizer in files by name.
fn tokenizer_of(files: &[(String, Bytes)]) -> Result<Tokenizer> {
    let file = |name: &str| files.iter().find(|(found, _)| found == name).map(|(_, bytes)| &bytes[..]);
    let tokenizer = file(TEXT_FILES[0]).context("calibration needs the model's tokenizer")?;
    let files = TokenizerFiles { tokenizer, tokenizer_config: file(TEXT_FILES[1]), ..TokenizerFiles::default() };
    Ok(Tokenizer::from_files(&files)?)
}
