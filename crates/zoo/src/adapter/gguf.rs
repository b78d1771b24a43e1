//! Adapters in GGUF files.

use indexmap::IndexMap;

use super::{Change, Factor, Update};
use crate::{CheckpointTensor, Error, Result, gguf::Gguf};

/// The changes by tensor: `NAME.lora_a` [rank, in] and `NAME.lora_b` [out, rank], whose rows have
/// the order of a GGUF checkpoint.
pub(super) fn changes(file: &Gguf) -> Result<IndexMap<String, Change>> {
    let expect = |key: &str, expected: &str| match file.text(key)? {
        Some(found) if found == expected => Ok(()),
        found => Err(Error::key(key, expected, found.unwrap_or("nothing"))),
    };
    expect("general.type", "adapter")?;
    expect("adapter.type", "lora")?;
    let alpha = file.float("adapter.lora.alpha")?.filter(|&alpha| alpha != 0.0);
    let mut changes = IndexMap::new();
    for name in file.tensors.keys() {
        let Some(target) = name.strip_suffix(".lora_a") else {
            if name.ends_with(".lora_b") {
                continue;
            }
            return Err(Error::tensor(name, "`lora_a` or `lora_b`", "another part"));
        };
        if target.starts_with("token_embd") {
            return Err(Error::tensor(target, "a linear layer", "the embedding"));
        }
        let factor = |name: &str| -> Result<Factor> {
            let tensor: Option<CheckpointTensor> = file.source(name)?;
            super::factor(name, &tensor.ok_or_else(|| Error::MissingTensor(name.into()))?)
        };
        let (a, b) = (factor(name)?, factor(&format!("{target}.lora_b"))?);
        let scale = alpha.map_or(1.0, |alpha| alpha / a.shape[0] as f64) as f32;
        let update = Update { file_order: true, ..Update::new(target, b, a, scale)? };
        changes.insert(target.to_owned(), update.into());
    }
    Ok(changes)
}
