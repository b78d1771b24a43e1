//! Opens checkpoints by path or by name.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flambeau::{text::VOCABULARY_FILES, zoo::Checkpoint};

use crate::{
    failure::hint,
    file_kind::{self, FileKind, gguf_paths},
    files,
    hub::{Hub, ModelName},
    reranker,
    tokenizer::MODEL_FILES,
};

/// The weights of a Whisper in CTranslate2's form.
const CTRANSLATE2: &str = "model.bin";

/// Opens a checkpoint by path, or by name in the local cache.
pub(crate) fn open(model: &str) -> Result<Checkpoint> {
    let path = Path::new(model);
    let cached = || match Hub::from_environment().cached(&ModelName::of_no_file(model)?)? {
        Some(model) => Ok(model.path()),
        None => Err(missing(model)),
    };
    let found = if path.exists() { None } else { Some(cached()?) };
    open_path(found.as_deref().unwrap_or(path))
}

/// The error for a name without a file, a folder or a model in the local cache.
pub(crate) fn missing(model: &str) -> anyhow::Error {
    let missing = anyhow::anyhow!("there is no file or folder {model}, and no model of that name in the local cache");
    hint(missing, format!("fetch it with `flambeau pull {model}`"))
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

/// Reports the inputs of a multimodal model that its program does not take.
pub(crate) fn note_unused(checkpoint: &Checkpoint) {
    if let unused @ [_, ..] = checkpoint.unused_inputs() {
        eprintln!("the model's text part alone: {} cannot be given to it", unused.join(" and "));
    }
}
