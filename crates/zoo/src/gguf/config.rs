//! Model metadata as the config that a Hugging Face folder of the model would have, and as what is implied by an architecture.

use serde_json::{Map, Value, json};

use super::{Array, Gguf, MetadataValue, names};
use crate::{
    Error, Result, family,
    fields::Fields,
    limits::MAX_SIZE,
    rope::Scaling,
    spec::{Config, Feed, Mixer},
};

const ARCHITECTURE: &str = "general.architecture";
/// Divisors of rotary frequencies, where a file has them.
const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// An architecture, by the name of the family that reads its config.
pub(super) struct Architecture {
    pub(super) name: &'static str,
    model_type: &'static str,
    /// What the architecture implies.
    implied: fn() -> Value,
    /// Whether rows of q and k stand interleaved.
    pub(super) interleaved: bool,
    /// Whether norms are stored plus 1.
    pub(super) norms_plus_one: bool,
}

const ARCHITECTURES: [Architecture; 4] = [
    Architecture {
        name: "llama",
        model_type: "llama",
        implied: || json!({"rms_norm_eps": 1e-5}),
        interleaved: true,
        norms_plus_one: false,
    },
    Architecture {
        name: "qwen2",
        model_type: "qwen2",
        implied: || json!({"rms_norm_eps": 1e-5, "max_window_layers": 0}),
        interleaved: false,
        norms_plus_one: false,
    },
    Architecture {
        name: "qwen3",
        model_type: "qwen3",
        implied: || json!({"rms_norm_eps": 1e-5, "max_window_layers": 0}),
        interleaved: false,
        norms_plus_one: false,
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        implied: || json!({"rope_local_base_freq": 10_000.0, "sliding_window_pattern": 6}),
        interleaved: false,
        norms_plus_one: true,
    },
];

/// (GGUF's key under the architecture's prefix, the key of a config)
const KEYS: [(&str, &str); 13] = [
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("context_length", "max_position_embeddings"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("rope.scaling.factor", "rope_scaling.factor"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];

/// Keys that are read on their own, or that say nothing about the numbers.
const OTHERS: [&str; 10] = [
    "attention.value_length",
    "expert_count",
    "expert_used_count",
    "rope.dimension_count",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "tensor_data_layout",
    "vocab_size",
];

/// Metadata under the architecture's prefix.
struct Prefixed<'a> {
    file: &'a Gguf,
    prefix: &'a str,
}

impl Prefixed<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn get(&self, name: &str) -> Option<&MetadataValue> {
        self.file.metadata.get(&self.key(name))
    }

    fn error(&self, name: &str, expected: impl Into<String>) -> Error {
        let found = self.get(name).map_or("nothing".to_owned(), MetadataValue::describe);
        Error::key(self.key(name), expected, found)
    }

    fn size_opt(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.file.int(&self.key(name))? else { return Ok(None) };
        let size = usize::try_from(value).ok().filter(|v| (1..=MAX_SIZE).contains(v));
        size.map(Some).ok_or_else(|| self.error(name, format!("an integer from 1 to {MAX_SIZE}")))
    }

    fn positive_opt(&self, name: &str) -> Result<Option<f64>> {
        match self.file.float(&self.key(name))? {
            Some(v) if !v.is_finite() || v <= 0.0 => Err(self.error(name, "a number above 0")),
            found => Ok(found),
        }
    }
}

/// The architecture of a file.
///
/// # Errors
/// [`Error::Family`] for one that is not known here.
pub(super) fn architecture(file: &Gguf) -> Result<&'static Architecture> {
    let name = file.text(ARCHITECTURE)?.ok_or_else(|| Error::key(ARCHITECTURE, "the name of a family", "nothing"))?;
    ARCHITECTURES.iter().find(|a| a.name == name).ok_or_else(|| {
        let names: Vec<_> = ARCHITECTURES.iter().map(|a| a.name).collect();
        Error::Family { found: name.chars().take(80).collect(), supported: names.join(", ") }
    })
}

/// The config that the metadata states.
///
/// # Errors
/// [`Error::Family`] for another architecture, [`Error::Key`] for a key that is missing, does not fit or is not known.
pub(crate) fn config(file: &Gguf) -> Result<Config> {
    let architecture = architecture(file)?;
    let keys = Prefixed { file, prefix: architecture.name };
    let map = translated(&keys, architecture)?;
    let mut config = family::config(&Fields::new(&map)).map_err(|error| named_as_stored(error, &keys))?;
    refuse_unknown(&keys)?;
    config.tied = None;
    config.dtype = None;
    if architecture.interleaved
        && let Some((_, a)) = config.attentions().next()
        && a.rope.as_ref().is_some_and(|rope| rope.dims != a.head_dim)
    {
        // Rows are reordered over whole heads, which only whole heads can undo.
        return Err(keys.error("rope.dimension_count", format!("the {} elements of a head", a.head_dim)));
    }
    divide_frequencies(file, &mut config)?;
    biases_as_stored(file, &mut config);
    Ok(config)
}

fn refuse_unknown(keys: &Prefixed<'_>) -> Result<()> {
    let prefix = format!("{}.", keys.prefix);
    let known = |name: &str| OTHERS.contains(&name) || KEYS.iter().any(|(stored, _)| *stored == name);
    match keys.file.metadata.keys().filter_map(|key| key.strip_prefix(&prefix)).find(|name| !known(name)) {
        Some(unknown) => Err(keys.error(unknown, "no key of unknown meaning, which might change what the model computes")),
        None => Ok(()),
    }
}

/// The keys of a config for those of the file.
fn translated(keys: &Prefixed<'_>, architecture: &Architecture) -> Result<Map<String, Value>> {
    let Value::Object(mut map) = (architecture.implied)() else { return Ok(Map::new()) };
    map.insert("model_type".into(), architecture.model_type.into());
    for (stored, key) in KEYS.iter().filter(|(_, key)| !key.contains('.')) {
        if let Some(value) = keys.get(stored) {
            map.insert((*key).into(), number(value).ok_or_else(|| keys.error(stored, "a number"))?);
        }
    }
    map.insert("vocab_size".into(), vocab_size(keys)?.into());
    if let Some(experts) = keys.file.int(&keys.key("expert_count"))?.filter(|&n| n > 0) {
        return Err(Error::key(keys.key("expert_count"), "a dense model", experts));
    }
    let (heads, hidden) = (keys.size_opt("attention.head_count")?, keys.size_opt("embedding_length")?);
    let even = heads.zip(hidden).filter(|(heads, hidden)| hidden.is_multiple_of(*heads)).map(|(heads, hidden)| hidden / heads);
    if let Some(head_dim) = keys.size_opt("attention.key_length")?.or(even) {
        map.insert("head_dim".into(), head_dim.into());
        if architecture.model_type == "gemma3_text" {
            map.insert("query_pre_attn_scalar".into(), head_dim.into());
        }
        if keys.size_opt("attention.value_length")?.is_some_and(|v| v != head_dim) {
            return Err(keys.error("attention.value_length", format!("{head_dim} as for keys")));
        }
        if let Some(dims) = keys.size_opt("rope.dimension_count")?.filter(|&dims| dims != head_dim) {
            map.insert("partial_rotary_factor".into(), (dims as f64 / head_dim as f64).into());
        }
    }
    if keys.get("attention.sliding_window").is_some() {
        match architecture.name {
            "llama" => map.insert("model_type".into(), "mistral".into()),
            "qwen2" | "qwen3" => map.insert("use_sliding_window".into(), true.into()),
            _ => None,
        };
    }
    if let Some(scaling) = scaling(keys)? {
        map.insert("rope_scaling".into(), scaling);
    }
    let special = super::vocab(keys.file)?;
    map.extend(special.bos.map(|id| ("bos_token_id".to_owned(), id.into())));
    map.insert("eos_token_id".into(), special.eos.into_iter().chain(special.other_eos).collect());
    Ok(map)
}

/// A number or a boolean of the metadata.
fn number(value: &MetadataValue) -> Option<Value> {
    match value {
        MetadataValue::Int(v) => Some((*v).into()),
        MetadataValue::Float(v) => Some((*v).into()),
        MetadataValue::Bool(v) => Some((*v).into()),
        MetadataValue::Array(Array::Numbers(_) | Array::Texts(_)) | MetadataValue::Text(_) => None,
    }
}

/// Stated, or the number of tokens, or that of the embedding's rows.
fn vocab_size(keys: &Prefixed<'_>) -> Result<usize> {
    let rows = keys.file.tensors.get("token_embd.weight").and_then(|t| t.shape.first().copied());
    match (rows, keys.size_opt("vocab_size")?) {
        (Some(rows), _) if (1..=MAX_SIZE).contains(&rows) => Ok(rows),
        (_, Some(size)) => Ok(size),
        (..) => Err(Error::MissingTensor("token_embd.weight".into())),
    }
}

fn scaling(keys: &Prefixed<'_>) -> Result<Option<Value>> {
    let factor = || keys.positive_opt("rope.scaling.factor")?.ok_or_else(|| keys.error("rope.scaling.factor", "a number above 0"));
    match keys.file.text(&keys.key("rope.scaling.type"))?.unwrap_or("none") {
        "none" => Ok(None),
        "linear" => Ok(Some(json!({"rope_type": "linear", "factor": factor()?}))),
        "yarn" => {
            let factor = factor()?;
            let original = keys.size_opt("rope.scaling.original_context_length")?;
            let own = keys.positive_opt("rope.scaling.attn_factor")?.unwrap_or(1.0);
            let amplitude = own * crate::rope::yarn_amplitude(factor, 1.0);
            Ok(Some(json!({
                "rope_type": "yarn", "factor": factor, "attention_factor": amplitude,
                "original_max_position_embeddings": original,
            })))
        }
        _ => Err(keys.error("rope.scaling.type", "none, linear or yarn")),
    }
}

/// The rotary embeddings with the divisors of the file, if it has any.
fn divide_frequencies(file: &Gguf, config: &mut Config) -> Result<()> {
    let Some(source) = file.source(ROPE_DIVISORS)? else { return Ok(()) };
    let values = source.values(ROPE_DIVISORS)?;
    for (_, attention) in config.attentions() {
        let Some(rope) = &mut attention.rope else { continue };
        if values.len() != rope.dims / 2 || values.iter().any(|v| !v.is_finite() || *v <= 0.0) {
            let expected = format!("{} numbers above 0", rope.dims / 2);
            return Err(Error::tensor(ROPE_DIVISORS, expected, format!("{} numbers", values.len())));
        }
        rope.scaling = Scaling::Divisors(values.iter().copied().map(f64::from).collect());
    }
    Ok(())
}

/// Biases where the file has any: no key tells.
fn biases_as_stored(file: &Gguf, config: &mut Config) {
    for (i, layer) in config.layers.iter_mut().enumerate() {
        let has = |name: &str| file.tensors.contains_key(&format!("blk.{i}.{name}.bias"));
        if let Mixer::Attention(a) = &mut layer.mixer {
            (a.qkv_bias, a.output_bias) = (has("attn_q"), has("attn_output"));
        }
        if let Feed::Mlp(mlp) = &mut layer.feed {
            mlp.bias = has("ffn_down");
        }
    }
}

/// A complaint about a key, by the file's name for it.
fn named_as_stored(error: Error, keys: &Prefixed<'_>) -> Error {
    match error {
        Error::Key { key, expected, found } => {
            let stored = KEYS.iter().find(|(_, known)| *known == key).map_or(key.clone(), |(stored, _)| keys.key(stored));
            Error::Key { key: stored, expected, found }
        }
        other => other,
    }
}

/// The tensors of the file that a program may read, by the names of Hugging Face checkpoints.
pub(crate) fn tensors(file: &Gguf, config: &Config) -> Result<indexmap::IndexMap<String, crate::CheckpointTensor>> {
    names::sources(file, config, architecture(file)?)
}
