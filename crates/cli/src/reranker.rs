//! Language models as rerankers.

use std::path::Path;

use anyhow::{Result, bail};
use flambeau::{
    text::{Tokenizer, TokenizerFiles},
    zoo::{Checkpoint, TokenizerSource},
};

use crate::tokenizer;

/// Qwen3-Reranker's answers, and a token of its training format.
const ANSWERS: [&str; 2] = ["yes", "no"];
const CONVERSATION: &str = "<|im_start|>";

/// Opens the checkpoint at `path`, as a reranker if it is a language model with such a name.
pub(crate) fn by_name(checkpoint: Checkpoint, path: &Path) -> Result<Checkpoint> {
    if checkpoint.is_language_model() && names(path).any(|name| name.to_lowercase().contains("reranker")) {
        return of_language_model(checkpoint, path);
    }
    Ok(checkpoint)
}

/// Names of a checkpoint: its own, and its repository's in the cache.
fn names(path: &Path) -> impl Iterator<Item = &str> {
    let parent = path.parent().filter(|parent| parent.ends_with("snapshots"));
    [Some(path), parent.and_then(Path::parent)].into_iter().flatten().filter_map(|path| path.file_name()?.to_str())
}

/// Converts a language model that answers yes or no to a reranker.
///
/// # Errors
/// Fails if the tokenizer lacks the required tokens or the layers are not supported.
pub(crate) fn of_language_model(checkpoint: Checkpoint, path: &Path) -> Result<Checkpoint> {
    let tokenizer = match checkpoint.tokenizer() {
        TokenizerSource::Gguf(vocab) => Tokenizer::from_gguf(vocab)?,
        TokenizerSource::Files(files) if files.iter().any(|(name, _)| name == tokenizer::TEXT_FILES[0]) => {
            let json = files.iter().find(|(name, _)| name == tokenizer::TEXT_FILES[0]);
            let bytes = json.map(|(_, bytes)| &**bytes).unwrap_or_default();
            Tokenizer::from_files(&TokenizerFiles { tokenizer: bytes, ..TokenizerFiles::default() })?
        }
        _ => tokenizer::at(path)?.tokenizer,
    };
    let [Some(yes), Some(no)] = ANSWERS.map(|answer| tokenizer.token_to_id(answer)) else {
        bail!("{} cannot judge documents: its tokenizer has no tokens `yes` and `no`", path.display());
    };
    if tokenizer.token_to_id(CONVERSATION).is_none() {
        bail!("{} cannot judge documents: only models with conversations like Qwen3-Reranker's can", path.display());
    }
    Ok(checkpoint.into_reranker(yes, no)?)
}
