//! Adapters of PEFT.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::{Change, Factor, Update};
use crate::{CheckpointTensor, Error, Result, fields::Fields};

pub(super) const WEIGHTS: &str = "adapter_model.safetensors";
/// Prefix of all names.
const PREFIX: &str = "base_model.model.";
/// Initializations that change the base model too.
const CHANGED_BASES: [&str; 5] = ["pissa", "olora", "loftq", "corda", "lora_ga"];

/// The two factors of a module, in any order.
#[derive(Default)]
struct Pair {
    a: Option<Factor>,
    b: Option<Factor>,
    is_embedding: bool,
}

/// Factor of the scale for each module.
struct Scales {
    alpha: f64,
    alphas: Vec<(String, f64)>,
    by_root: bool,
}

impl Scales {
    fn of(&self, module: &str, rank: usize) -> f32 {
        let is_named = |pattern: &str| module.strip_suffix(pattern).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let own = self.alphas.iter().find(|(pattern, _)| is_named(pattern)).map(|(_, alpha)| *alpha);
        let rank = rank as f64;
        (own.unwrap_or(self.alpha) / if self.by_root { rank.sqrt() } else { rank }) as f32
    }
}

/// The changes by module: `lora_A` [rank, in] and `lora_B` [out, rank] of linear layers,
/// `lora_embedding_A` [rank, vocab] and `lora_embedding_B` [hidden, rank] of embeddings, and whole
/// weights.
pub(super) fn changes(
    config: &Map<String, Value>,
    tensors: IndexMap<String, CheckpointTensor>,
) -> Result<IndexMap<String, Change>> {
    let scales = settings(&Fields::new(config))?;
    let (mut pairs, mut changes) = (IndexMap::<String, Pair>::new(), IndexMap::<String, Change>::new());
    for (name, tensor) in tensors {
        let path = name.strip_prefix(PREFIX).unwrap_or(&name);
        let part = [".lora_A", ".lora_B", ".lora_embedding_A", ".lora_embedding_B"].into_iter().find_map(|part| {
            let (module, rest) = path.split_once(part)?;
            ["", ".weight", ".default", ".default.weight"].contains(&rest).then_some((module, part))
        });
        match (part, path.strip_suffix(".weight")) {
            (Some((module, part)), _) => {
                let pair = pairs.entry(module.to_owned()).or_default();
                pair.is_embedding = part.contains("embedding");
                let factor = if part.ends_with('A') { &mut pair.a } else { &mut pair.b };
                *factor = Some(super::factor(&name, &tensor)?);
            }
            (None, Some(module)) if !module.contains("lora_") => {
                let ends = [".modules_to_save", ".base_layer"];
                let module = ends.iter().find_map(|end| module.strip_suffix(end)).unwrap_or(module);
                changes.entry(module.to_owned()).or_default().replacement = Some(tensor);
            }
            _ => return Err(Error::tensor(name, "a factor of a linear layer or embedding, or a whole weight", "another part")),
        }
    }
    for (module, pair) in pairs {
        let (Some(a), Some(b)) = (pair.a, pair.b) else {
            return Err(Error::MissingTensor(format!("{module}.lora_A or lora_B")));
        };
        let scale = scales.of(&module, a.shape[0]);
        let (up, down) = if pair.is_embedding { (a.transposed(), b.transposed()) } else { (b, a) };
        let update = Update::new(&module, up, down, scale)?;
        changes.entry(module).or_default().update = Some(update);
    }
    Ok(changes)
}

/// Reads the scales, and refuses settings that change the model in other ways.
fn settings(f: &Fields<'_>) -> Result<Scales> {
    f.expect_text("peft_type", "LORA")?;
    f.expect_text("bias", "none")?;
    for key in ["use_dora", "lora_bias", "fan_in_fan_out", "use_qalora"] {
        f.expect_bool(key, false)?;
    }
    for key in ["layer_replication", "trainable_token_indices", "alora_invocation_tokens", "megatron_config"] {
        if f.get(key).is_some_and(|value| value != &Value::Array(Vec::new())) {
            return Err(f.error(key, "nothing"));
        }
    }
    if let Some(Value::String(kind)) = f.get("init_lora_weights")
        && CHANGED_BASES.iter().any(|changed| kind.to_lowercase().starts_with(changed))
    {
        return Err(f.error("init_lora_weights", "an initialization that leaves the base model as it is"));
    }
    let mut alphas = Vec::new();
    if let Some(own) = f.child("alpha_pattern")? {
        for key in own.keys() {
            alphas.push((key.clone(), own.positive(key)?));
        }
    }
    let is_pattern = |key: &str| key.contains(|c: char| !(c.is_alphanumeric() || "._-".contains(c)));
    if alphas.iter().any(|(key, _)| is_pattern(key)) {
        return Err(f.error("alpha_pattern", "names of modules"));
    }
    Ok(Scales { alpha: f.positive_or("lora_alpha", 8.0)?, alphas, by_root: f.bool_or("use_rslora", false)? })
}
