//! Adapters of mlx-lm.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::{Change, Update, factor};
use crate::{CheckpointTensor, Error, Result, fields::Fields};

pub(super) const WEIGHTS: &str = "adapters.safetensors";
/// mlx-lm's default scale.
const SCALE: f64 = 20.0;

/// The changes by module. Linear layers have `lora_a` [in, rank] and `lora_b` [rank, out], and
/// embeddings have [vocab, rank] and [rank, hidden].
pub(super) fn changes(
    config: &Map<String, Value>,
    tensors: IndexMap<String, CheckpointTensor>,
) -> Result<IndexMap<String, Change>> {
    let f = Fields::new(config);
    f.expect_text("fine_tune_type", "lora")?;
    let scale = match f.child("lora_parameters")? {
        Some(own) => own.positive_or("scale", SCALE)?,
        None => SCALE,
    };
    let mut changes = IndexMap::new();
    for (name, tensor) in &tensors {
        let Some(module) = name.strip_suffix(".lora_a") else {
            if name.ends_with(".lora_b") {
                continue;
            }
            return Err(Error::tensor(name, "`lora_a` or `lora_b`", "another part"));
        };
        let other = format!("{module}.lora_b");
        let b = tensors.get(&other).ok_or_else(|| Error::MissingTensor(other.clone()))?;
        let (a, b) = (factor(name, tensor)?, factor(&other, b)?);
        let is_embedding = module.ends_with("embed_tokens");
        let (up, down) = if is_embedding { (a, b) } else { (b.transposed(), a.transposed()) };
        changes.insert(module.to_owned(), Update::new(module, up, down, scale as f32)?.into());
    }
    Ok(changes)
}
