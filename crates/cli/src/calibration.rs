//! Calibration: records the inputs of a checkpoint's linear layers on a text, to choose how their
//! weights are quantized.

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

/// Maximum number of columns per block of the covariance, and maximum number of floats of all
/// blocks.
const BLOCK: usize = 512;
const MOST_FLOATS: usize = 256 << 20;

/// Flags of calibration.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CalibrationArgs {
    /// Text in UTF-8 that the model reads: its inputs decide how weights are quantized. `default`
    /// is a short text that comes with this program
    #[arg(help_heading = "Export", long, value_name = "FILE")]
    calibration: Option<String>,

    /// Importance matrix of llama.cpp for the same model, such as imatrix.gguf or imatrix.dat, in
    /// the place of a text
    #[arg(help_heading = "Export", long, value_name = "FILE", conflicts_with = "calibration")]
    imatrix: Option<PathBuf>,
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
        let is_given = self.imatrix.is_some() || self.calibration.as_deref().is_some_and(|name| name != "none");
        if is_given && quantize.linear.is_none() && quantize.head.is_none() && quantize.rules.is_empty() {
            return Err(usage("--calibration and --imatrix need --qlinear or --recipe"));
        }
        let is_language = !checkpoint.is_speech() && !checkpoint.is_encoder();
        if let Some(path) = self.imatrix.as_deref().filter(|_| is_language) {
            return Ok(compile::Options { statistics: Arc::new(of_matrix(path, checkpoint)?), ..quantize });
        }
        let text = match self.calibration.as_deref() {
            None | Some("none") if self.imatrix.is_none() => return Ok(quantize),
            _ if !is_language => return Err(usage("--calibration and --imatrix are for language models")),
            None | Some("none") => return Ok(quantize),
            Some("default") => TEXT.to_owned(),
            Some(path) => {
                String::from_utf8(files::read(path.as_ref())?.to_vec()).with_context(|| format!("{path} is no text in UTF-8"))?
            }
        };
        let tokenizer = tokenizer_of(tokenizer)?;
        let statistics = observe(checkpoint, options, (&quantize, engine), (&tokenizer, &text))?;
        Ok(compile::Options { statistics: Arc::new(statistics), ..quantize })
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
    let ids = tokenizer.encode(text, false)?;
    let options =
        zoo::Options { max_seq_len: Some(WINDOW), prefill_chunk: Some(WINDOW), kv_cache: zoo::KvCache::Float, ..*options };
    let model = zoo::build(checkpoint, &options)?;
    let windows = windows(&ids, weights(&model));
    let mut observer = zoo::observe(&model, quantize, engine, BLOCK, MOST_FLOATS)?;
    let bar = progress::count(windows.len() as u64);
    bar.set_message("windows of the calibration's text");
    for window in &windows {
        observer.run(&inputs(window, tokenizer.bos_id())?)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let threads = quantize.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let statistics = observer.statistics(threads);
    let tokens: usize = windows.iter().map(|window| window.len()).sum();
    let peak = memory::peak().map(|peak| format!(", peak memory {}", memory::human(peak))).unwrap_or_default();
    eprintln!("calibrated {} weights with {tokens} tokens in {:.1} s{peak}", statistics.len(), start.elapsed().as_secs_f64());
    Ok(statistics)
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
    let windows: Vec<&[u32]> = ids.chunks_exact(SHORT_WINDOW).collect();
    let wanted = (tokens / SHORT_WINDOW).min(windows.len());
    (0..wanted).map(|i| windows[i * windows.len() / wanted]).collect()
}

/// A language model's inputs for a window of tokens. A beginning-of-text token replaces the first
/// one.
fn inputs(window: &[u32], bos: Option<u32>) -> Result<[Value; 2]> {
    let mut ids: Vec<i64> = window.iter().map(|&id| i64::from(id)).collect();
    ids[0] = bos.map_or(ids[0], i64::from);
    let positions: Vec<i64> = (0..ids.len() as i64).collect();
    Ok([Value::Tensor(Tensor::from_slice(&ids, &[1, ids.len()])?), Value::Tensor(Tensor::from_slice(&positions, &[ids.len()])?)])
}

/// The tokenizer in files by name.
fn tokenizer_of(files: &[(String, Bytes)]) -> Result<Tokenizer> {
    let file = |name: &str| files.iter().find(|(found, _)| found == name).map(|(_, bytes)| &bytes[..]);
    let tokenizer = file(TEXT_FILES[0]).context("calibration needs the model's tokenizer")?;
    let files = TokenizerFiles { tokenizer, tokenizer_config: file(TEXT_FILES[1]), ..TokenizerFiles::default() };
    Ok(Tokenizer::from_files(&files)?)
}
