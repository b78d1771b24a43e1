//! Turns checkpoints into programs: options, tokenizer and output file.

use std::{path::Path, time::Instant};

use anyhow::{Context, Result};
use flambeau::{
    compile::{self, Output},
    engine::Engine,
    tensor::{Bytes, DType},
    text::Tokenizer,
    zoo::{self, Checkpoint, TokenizerSource},
};

use crate::{
    disk,
    failure::{hint, usage},
    files, memory, progress,
    tokenizer::{self, KNOWN_FILES, TEXT_FILES},
};

/// Element type of the key-value cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KvCache {
    /// Floats of the activations' type
    #[default]
    Float,
    /// 8 bits, with a scale for every 32 elements of a head
    Int8,
}

impl From<KvCache> for zoo::KvCache {
    fn from(kind: KvCache) -> zoo::KvCache {
        match kind {
            KvCache::Float => zoo::KvCache::Float,
            KvCache::Int8 => zoo::KvCache::Int8,
        }
    }
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

/// Writes a program with a progress bar, and tells its size and how long it took.
pub(crate) fn write_program(output: &Output<'_>, path: &Path, start: Instant) -> Result<()> {
    let writer = output.writer()?;
    if !files::is_standard(path) && !files::is_special(path) {
        let advice = "-o or --cache-dir takes another folder, and `flambeau cache clear` removes exported programs";
        disk::admit(&path.display().to_string(), writer.data_size(), path.parent().unwrap_or(Path::new("")), advice)?;
    }
    let bar = progress::bytes(writer.data_size());
    let size = files::write(path, |out| Ok(writer.write(&mut bar.wrap_write(out)).map_err(compile::Error::from)?))?;
    bar.finish_and_clear();
    let peak = memory::peak().map(|peak| format!(", peak memory {}", memory::human(peak))).unwrap_or_default();
    eprintln!("wrote {} ({}) in {:.1} s{peak}", path.display(), memory::human(size), start.elapsed().as_secs_f64());
    Ok(())
}
