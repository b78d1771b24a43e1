//! `flambeau export`: converts checkpoints to programs, without Python.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result};
use flambeau::{
    compile,
    engine::Engine,
    tensor::{Bytes, DType},
    text::{Tokenizer, VOCABULARY_FILES},
    zoo::{self, Checkpoint, Logits, TokenizerSource},
};

use crate::{
    calibration::CalibrationArgs,
    checkpoint,
    count::positive,
    engine::EngineArgs,
    exporter::{self, Carried, KvCache},
    files,
    lora::LoraArgs,
    memory, outputs, reranker,
    tokenizer::{self, KNOWN_FILES, MODEL_FILES, TEXT_FILES},
};

/// Convert a Hugging Face folder, a GGUF file, a .nemo file or a whisper.cpp file to a .pte file,
/// without Python
///
/// The program contains the tokenizer, so `flambeau generate` needs no other file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau export ./SmolLM2-135M-Instruct -o smollm2.pte --qlinear 4w --qembedding 8w\n  \
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

/// Tokenizer stored in a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Carried<'a> {
    /// The checkpoint's.
    Own,
    /// The tokenizer of this file or folder.
    Given(&'a Path),
    /// No tokenizer; the user provides it at run time.
    Nothing,
}

/// Default share of the machine's memory for the caches of one sequence.
const CACHE_SHARE: u64 = 16;

/// The options with a sequence length. A length below the model's own is reported.
pub(crate) fn with_context(checkpoint: &Checkpoint, options: zoo::Options) -> zoo::Options {
    let memory = memory::total().map_or(u64::MAX, |bytes| bytes / CACHE_SHARE);
    let (None, Some(trained)) = (options.max_seq_len, checkpoint.context()) else { return options };
    let positions = checkpoint.context_within(memory, options.dtype);
    if let Some(positions) = positions.filter(|&positions| positions < trained) {
        eprintln!("a context of {positions} of the model's {trained} tokens, for the sake of memory (-c N takes another number)");
    }
    zoo::Options { max_seq_len: positions, ..options }
}

/// Reports the inputs of a multimodal model that its program does not take.
pub(crate) fn note_unused(checkpoint: &Checkpoint) {
    if let unused @ [_, ..] = checkpoint.unused_inputs() {
        eprintln!("the model's text part alone: {} cannot be given to it", unused.join(" and "));
    }
}

/// Writes the program of a checkpoint, which began at `start`, with the files of its tokenizer.
pub(crate) fn write(
    checkpoint: &Checkpoint,
    options: &zoo::Options,
    quantize: compile::Options,
    engine: &dyn Engine,
    (path, start): (&Path, Instant),
    tokenizer: Vec<(String, Bytes)>,
) -> Result<()> {
    let model = zoo::build(checkpoint, options)?;
    let mut output = zoo::compile(&model, quantize, engine)?;
    tokenizer.into_iter().for_each(|(name, bytes)| output.attach(&name, bytes));
    write_program(&output, path, start)
}

/// The element type with this name.
pub(crate) fn dtype(name: &str) -> Result<DType> {
    match name {
        "f32" | "fp32" | "float32" => Ok(DType::F32),
        "f16" | "fp16" | "float16" => Ok(DType::F16),
        "bf16" | "bfloat16" => Ok(DType::BF16),
        _ => Err(usage(format!("--dtype {name}: expected f32, f16 or bf16"))),
    }
}

/// Opens a checkpoint by path, or by name in the local cache.
pub(crate) fn open(model: &str) -> Result<Checkpoint> {
    let path = Path::new(model);
    let cached = || match Hub::from_environment().cached(&ModelName::of_no_file(model)?)? {
        Some(model) => Ok(model.path()),
        None => {
            let missing = anyhow::anyhow!("there is no file or folder {model}, and no model of that name in the local cache");
            Err(hint(missing, format!("fetch it with `flambeau pull {model}`")))
        }
    };
    let found = if path.exists() { None } else { Some(cached()?) };
    open_path(found.as_deref().unwrap_or(path))
}

/// Opens a folder, a GGUF file, a .nemo file or a whisper.cpp file.
pub(crate) fn open_path(path: &Path) -> Result<Checkpoint> {
    let place = || path.display().to_string();
    if path.is_dir() {
        let read = |(name, path): (String, PathBuf)| {
            let bytes = files::read(&path)?;
            file_kind::check_is_no_stand_in(&path, &bytes)?;
            Ok((name, bytes))
        };
        let files = folder_paths(path)?.into_iter().map(read).collect::<Result<_>>()?;
        return reranker::by_name(Checkpoint::from_folder(files).with_context(place)?, path);
    }
    match FileKind::of_file(path) {
        Some(FileKind::Nemo) => Checkpoint::from_nemo(&files::read(path)?).with_context(place),
        Some(FileKind::Ggml) => Checkpoint::from_ggml(&files::read(path)?).with_context(place),
        _ => FileKind::Gguf.expect(path, || {
            let parts = gguf_paths(path)?.iter().map(|part| files::read(part)).collect::<Result<_>>()?;
            reranker::by_name(Checkpoint::from_gguf_parts(parts).with_context(place)?, path)
        }),
    }
}

/// The files of a model folder that a checkpoint may consist of, by name.
pub(crate) fn folder_paths(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()).map(str::to_owned) else { continue };
        // Folders of sentence-transformers hold the files of modules in folders of their own.
        for file in ["config.json", "model.safetensors"].map(|file| format!("{name}/{file}")) {
            if Checkpoint::is_module_file(&file) && folder.join(&file).is_file() {
                list.push((file.clone(), folder.join(file)));
            }
        }
        let wanted = path.extension().and_then(|e| e.to_str()).is_some_and(|e| ["json", "safetensors", "jinja"].contains(&e));
        let is_text = MODEL_FILES.iter().chain(&VOCABULARY_FILES).any(|known| *known == name);
        let is_named = is_text || name == CTRANSLATE2 || Checkpoint::is_pickled(&name);
        if (wanted || is_named) && path.is_file() {
            list.push((name, path));
        }
    }
    list.sort();
    Ok(list)
}

/// The files of a tokenizer, under the names of those that it comes from, or would come from.
pub(crate) fn carried(which: Carried<'_>, own: &TokenizerSource) -> Result<Vec<(String, Bytes)>> {
    match (which, own) {
        (Carried::Nothing, _) => Ok(Vec::new()),
        (Carried::Given(path), _) => tokenizer::files_at(path),
        (Carried::Own, TokenizerSource::Files(list)) => of_folder(list),
        (Carried::Own, TokenizerSource::Gguf(vocab) | TokenizerSource::Pieces(vocab)) => {
            let tokenizer = Tokenizer::from_gguf(vocab).context("the file's tokenizer");
            let tokenizer =
                tokenizer.map_err(|error| hint(error, "--tokenizer FILE_OR_FOLDER takes the model's tokenizer.json instead"))?;
            let config = tokenizer.special().to_config_json(vocab.chat_template.as_deref());
            Ok(vec![(TEXT_FILES[0].into(), tokenizer.to_json()?.into()), (TEXT_FILES[1].into(), config.into())])
        }
    }
}

/// The tokenizer files of a folder.
fn of_folder(list: &[(String, Bytes)]) -> Result<Vec<(String, Bytes)>> {
    let mut files: Vec<_> = list.iter().filter(|(name, _)| TEXT_FILES.contains(&name.as_str())).cloned().collect();
    let file = |name: &str| list.iter().find(|(found, _)| found == name).map(|(_, bytes)| bytes.clone());
    let Some(name) = tokenizer::file_among(&|name| file(name).is_some()) else {
        eprintln!("the folder has no {KNOWN_FILES}: the program carries no tokenizer");
        return Ok(files);
    };
    let converted = tokenizer::converted(name, &|name| Ok(file(name))).with_context(|| name.to_owned());
    let converted = converted.map_err(|error| hint(error, "--tokenizer FILE_OR_FOLDER takes another one"))?;
    if let Some(made) = converted {
        files.retain(|(name, _)| !TEXT_FILES[..2].contains(&name.as_str()));
        files.extend(TEXT_FILES.into_iter().map(str::to_owned).zip(made));
    }
    Ok(files)
}
