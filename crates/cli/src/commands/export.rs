//! `flambeau export`: converts checkpoints to programs, without Python.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::Result;
use flambeau::zoo::{self, Logits};

use crate::{
    calibration::CalibrationArgs,
    checkpoint,
    count::positive,
    engine::EngineArgs,
    exporter::{self, Carried, KvCache},
    files,
    lora::LoraArgs,
    outputs,
    quantize::QuantizeArgs,
};

/// Convert a Hugging Face folder, a GGUF file, a .nemo file or a whisper.cpp file to a .pte file,
/// without Python
///
/// The program contains the tokenizer, so `flambeau generate` needs no other file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau export ./SmolLM2-135M-Instruct -o smollm2.pte --qlinear 4w --qembedding 8w\n  \
    flambeau export ./SmolLM2-135M-Instruct -o smollm2.pte --recipe default --calibration notes.txt\n  \
    flambeau export ./SmolLM2-135M-Instruct -o smollm2.pte --bits-per-weight 4.5 --qembedding 8w\n  \
    flambeau export model-Q4_1.gguf -o model.pte\n  \
    flambeau export ./Llama-3.2-1B --lora ./style --lora ./facts:0.5 -o tuned.pte\n  \
    flambeau export ./Llama-3.2-1B --lora calm=./style --lora facts=./facts -o several.pte")]
pub(crate) struct Args {
    /// Model folder, GGUF file, .nemo file of a Parakeet, whisper.cpp's ggml file, or name of a
    /// model in the local Hugging Face cache
    #[arg(value_name = "MODEL")]
    model: String,

    /// Output program; `-` is stdout
    #[arg(short, long, value_name = "OUT.pte")]
    output: PathBuf,

    /// Type of activations and caches: f32, f16 or bf16; by default the checkpoint's, and f16 for
    /// GGUF files without bf16 tensors.
    /// A model whose activations pass 65504 gives NaN in f16: export it with f32
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,

    /// Maximum sequence length, in positions of the KV caches; by default the model's own, limited
    /// so that the caches take at most a sixteenth of this machine's memory
    #[arg(short = 'c', long, value_name = "N", value_parser = positive, alias = "max-ctx-len", alias = "max-seq-length", alias = "ctx-size")]
    max_seq_len: Option<usize>,

    /// tokenizer.json or its folder, instead of the checkpoint's own
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,

    /// Maximum number of prompt tokens per prefill step
    #[arg(long, value_name = "N", value_parser = positive, alias = "prefill-chunk-size")]
    prefill_chunk: Option<usize>,

    /// Element type of the key-value cache
    #[arg(long, value_name = "KIND", default_value = "float")]
    kv_cache: KvCache,

    /// Compute the logits of every position instead of only the last one
    #[arg(long)]
    all_logits: bool,

    #[command(flatten)]
    lora: LoraArgs,

    #[command(flatten)]
    quantize: QuantizeArgs,

    #[command(flatten)]
    calibration: CalibrationArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let quantize = args.quantize.options()?;
    let options = zoo::Options {
        dtype: args.dtype.as_deref().map(exporter::dtype).transpose()?,
        max_seq_len: args.max_seq_len,
        prefill_chunk: args.prefill_chunk,
        logits: if args.all_logits { Logits::All } else { Logits::Last },
        kv_cache: args.kv_cache.into(),
        ..zoo::Options::default()
    };
    outputs::check(&[&args.output], [Path::new(&args.model)].into_iter().chain(args.lora.paths()))?;
    files::check_writable(&args.output)?;
    let mut checkpoint = checkpoint::open(&args.model)?;
    args.lora.apply(&mut checkpoint)?;
    checkpoint::note_unused(&checkpoint);
    let options = exporter::with_context(&checkpoint, options);
    let tokenizer = args.tokenizer.as_deref().map_or(Carried::Own, Carried::Given);
    let engine = args.engine.engine(false)?;
    // Before the weights are read, which takes long.
    let tokenizer = exporter::carried(tokenizer, checkpoint.tokenizer())?;
    let quantize = args.calibration.calibrate(&checkpoint, &options, (quantize, &*engine), &tokenizer)?;
    exporter::write(&checkpoint, &options, quantize, &*engine, (&args.output, start), tokenizer)?;
    Ok(ExitCode::SUCCESS)
}
