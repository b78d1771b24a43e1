//! Converts model metadata to the config of an equivalent Hugging Face folder.

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::{
    Array, Gguf, MetadataValue,
    architecture::{Architecture, KeyNames, architecture, object},
    encoder, gemma4,
    keys::Keys,
    names,
};
use crate::{
    CheckpointTensor, Error, Result, architecture as kind, family,
    fields::Fields,
    limits::MAX_SIZE,
    rope::Scaling,
    spec::{DecoderConfig, ExpertLayout, FeedForward, Joined, Mixer},
};

/// Optional tensor with divisors of rotary frequencies.
const ROPE_DIVISORS: &str = "rope_freqs.weight";

const KEYS: KeyNames = &[
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("context_length", "max_position_embeddings"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];

/// Keys without effect on the results, or repeated elsewhere.
const OTHERS: [&str; 7] = [
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "nextn_predict_layers",
    "vocab_size",
    // Position sections and deepstack layers concern images only.
    "rope.dimension_sections",
    "n_deepstack_layers",
];

/// Reads the config from the metadata, the task, and whether tokens see earlier tokens only.
///
/// # Errors
/// [`Error::Family`] for an unsupported architecture, [`Error::Key`] for a missing, invalid or
/// unknown key.
fn config(file: &Gguf, architecture: &Architecture) -> Result<(DecoderConfig, encoder::Task, bool)> {
    let keys = Keys::new(file, architecture.name);
    let map = translated(&keys, architecture)?;
    let mut config = family::config(&Fields::new(&map)).map_err(|error| named_as_stored(error, &keys, architecture))?;
    let task = encoder::task(&keys, architecture.name)?;
    let causal = keys.bool("attention.causal")?.unwrap_or(!encoder::SEE_LATER.contains(&architecture.name));
    if !causal && matches!(task, encoder::Task::Generate) {
        return Err(keys.error("attention.causal", "true, or a way of pooling"));
    }
    gemma4::add_cutoffs(&keys, &mut config)?;
    keys.finish()?;
    config.tied = None;
    config.dtype = None;
    if architecture.interleaved
        && let Some((_, a)) = config.attentions().next()
        && a.rope.as_ref().is_some_and(|rope| rope.dims != a.head_dim)
    {
        // Rows are reordered over whole heads, so only whole heads can be restored.
        return Err(keys.error("rope.dimension_count", format!("the {} elements of a head", a.head_dim)));
    }
    divide_frequencies(file, &mut config)?;
    as_stored(file, &mut config);
    Ok((config, task, causal))
}

/// Reads the model of a file with its tensors.
///
/// # Errors
/// [`Error::Family`] for an unsupported architecture, [`Error::Key`] for a missing, invalid or
/// unknown key, [`Error::Tensor`] for damaged tensors.
pub(crate) fn read(file: &Gguf) -> Result<(kind::Architecture, Named)> {
    if let Some(config) = encoder::bert(file)? {
        let named = encoder::tensors(file, &config)?;
        return Ok((kind::Architecture::Encoder(Box::new(config)), named));
    }
    let architecture = architecture(file)?;
    let (config, task, causal) = config(file, architecture)?;
    let mut named = names::sources(file, &config, architecture)?;
    let model = encoder::of_decoder(config, task, causal)?;
    if let kind::Architecture::Encoder(config) = &model {
        encoder::add_head(file, config, &mut named)?;
    }
    Ok((model, named))
}

/// Translates the file's keys to config keys: first the defaults of the architecture, then the
/// file's values.
fn translated(keys: &Keys<'_>, architecture: &Architecture) -> Result<Map<String, Value>> {
    let mut map = object((architecture.implied)());
    map.insert("model_type".into(), architecture.model_type.into());
    let own = object((architecture.stated)(keys)?);
    for (stored, key) in architecture.keys.iter().copied().flatten().chain(KEYS).filter(|(_, key)| !own.contains_key(*key)) {
        if let Some(value) = keys.get(stored) {
            map.insert((*key).into(), number(value).ok_or_else(|| keys.error(stored, "a number"))?);
        }
    }
    map.insert("num_hidden_layers".into(), keys.layers()?.into());
    map.insert("vocab_size".into(), vocab_size(keys)?.into());
    if !own.contains_key("head_dim") {
        map.extend(object(head_sizes(keys)?));
    }
    if let Some(scaling) = scaling(keys, architecture)? {
        map.insert("rope_scaling".into(), scaling);
    }
    map.extend(own);
    let special = super::vocab(keys.file)?;
    map.extend(special.bos.map(|id| ("bos_token_id".to_owned(), id.into())));
    map.insert("eos_token_id".into(), special.end_ids().into_iter().collect());
    for other in OTHERS {
        keys.get(other);
    }
    Ok(map)
}

/// A number or a boolean of the metadata, or the only number of a list.
fn number(value: &MetadataValue) -> Option<Value> {
    match value {
        MetadataValue::Int(v) => Some((*v).into()),
        MetadataValue::Float(v) => Some((*v).into()),
        MetadataValue::Bool(v) => Some((*v).into()),
        MetadataValue::Array(Array::Numbers(list)) => {
            let mut list = list.iter();
            let first = list.next()?;
            if list.all(|other| other == first) { number(&first) } else { None }
        }
        MetadataValue::Array(Array::Texts(_)) | MetadataValue::Text(_) => None,
    }
}

/// Sizes of a head and of its rotated part.
fn head_sizes(keys: &Keys<'_>) -> Result<Value> {
    let Some(head_dim) = keys.head_dim()? else { return Ok(Value::Null) };
    if keys.size_opt("attention.value_length")?.is_some_and(|v| v != head_dim) {
        return Err(keys.error("attention.value_length", format!("{head_dim} as for keys")));
    }
    let rotated = keys.size_opt("rope.dimension_count")?.unwrap_or(head_dim);
    Ok(json!({"head_dim": head_dim, "partial_rotary_factor": rotated as f64 / head_dim as f64}))
}

/// Vocabulary size: the embedding's rows, the stated size or the number of tokens.
fn vocab_size(keys: &Keys<'_>) -> Result<usize> {
    let rows = keys.file.rows("token_embd.weight");
    match (rows, keys.size_opt("vocab_size")?) {
        (Some(rows), _) if (1..=MAX_SIZE).contains(&rows) => Ok(rows),
        (_, Some(size)) => Ok(size),
        (..) => Err(Error::MissingTensor("token_embd.weight".into())),
    }
}

fn scaling(keys: &Keys<'_>, architecture: &Architecture) -> Result<Option<Value>> {
    let factor = || keys.positive_opt("rope.scaling.factor")?.ok_or_else(|| keys.error("rope.scaling.factor", "a number above 0"));
    match keys.text("rope.scaling.type")?.unwrap_or("none") {
        "none" => {
            keys.get("rope.scaling.factor");
            Ok(None)
        }
        "linear" => Ok(Some(json!({"rope_type": "linear", "factor": factor()?}))),
        "yarn" => yarn(keys, architecture, factor()?).map(Some),
        // The lists state the rest.
        "longrope" if keys.file.tensors.contains_key("rope_factors_short.weight") => Ok(None),
        _ => Err(keys.error("rope.scaling.type", "none, linear or yarn")),
    }
}

fn yarn(keys: &Keys<'_>, architecture: &Architecture, factor: f64) -> Result<Value> {
    let number = |name: &str| keys.positive_opt(&format!("rope.scaling.{name}"));
    let mut scaling = json!({
        "rope_type": "yarn", "factor": factor, "beta_fast": number("yarn_beta_fast")?, "beta_slow": number("yarn_beta_slow")?,
        "original_max_position_embeddings": keys.size_opt("rope.scaling.original_context_length")?,
    });
    // The file may state the amplitude that follows from the factor.
    let amplitude = crate::rope::yarn_amplitude(factor, 1.0);
    for (name, implied) in [("yarn_ext_factor", 1.0), ("yarn_attn_factor", amplitude)] {
        if number(name)?.is_some_and(|found| found != 1.0 && (found - implied).abs() > 1e-6) {
            return Err(keys.error(&format!("rope.scaling.{name}"), "1"));
        }
    }
    let own = number("attn_factor")?;
    match number("yarn_log_multiplier")? {
        // A tenth of the magnitude, which affects only the scores. For Mistral, it is the magnitude
        // itself.
        Some(multiplier) => {
            let magnitude = if architecture.name == "mistral3" { multiplier } else { 10.0 * multiplier };
            scaling["mscale"] = magnitude.into();
            scaling["mscale_all_dim"] = magnitude.into();
        }
        None => scaling["attention_factor"] = (own.unwrap_or(1.0) * amplitude).into(),
    }
    if architecture.name == "mistral3" {
        scaling["llama_4_scaling_beta"] = keys.positive_opt("attention.temperature_scale")?.into();
    }
    if architecture.name == "gpt-oss" {
        scaling["truncate"] = false.into();
    }
    Ok(scaling)
}

/// Adds the file's frequency divisors to the rotary embeddings, if there are any. For Gemma 4, they
/// apply only to full layers.
fn divide_frequencies(file: &Gguf, config: &mut DecoderConfig) -> Result<()> {
    let Some(source) = file.source(ROPE_DIVISORS)? else { return Ok(()) };
    let values = source.values(ROPE_DIVISORS)?;
    let full_only = config.family == "gemma4";
    for (_, attention) in config.attentions() {
        let Some(rope) = attention.rope.as_mut().filter(|_| !(full_only && attention.window.is_some())) else { continue };
        if values.len() != rope.dims / 2 || values.iter().any(|v| !v.is_finite() || *v <= 0.0) {
            let expected = format!("{} numbers above 0", rope.dims / 2);
            return Err(Error::tensor(ROPE_DIVISORS, expected, format!("{} numbers", values.len())));
        }
        rope.scaling = Scaling::Divisors(values.iter().copied().map(f64::from).collect());
    }
    Ok(())
}

/// Adapts the config to the stored tensors: existing biases, which no key states, and the order of
/// heads.
fn as_stored(file: &Gguf, config: &mut DecoderConfig) {
    for (i, layer) in config.layers.iter_mut().enumerate() {
        let has = |name: &str| file.tensors.contains_key(&format!("blk.{i}.{name}.bias"));
        let has_weight = |name: &str| file.tensors.contains_key(&format!("blk.{i}.{name}.weight"));
        match &mut layer.mixer {
            Mixer::AttentionAndMamba(_, m) | Mixer::Mamba(m) => {
                (m.conv_bias, m.proj_bias, m.output_bias) = (has("ssm_conv1d"), has("ssm_in"), has("ssm_out"));
            }
            _ => {}
        }
        match &mut layer.mixer {
            Mixer::Attention(a) | Mixer::AttentionAndMamba(a, _) => {
                (a.qkv_bias, a.output_bias) = ((has("attn_q") || has("attn_qkv")).into(), has("attn_output"));
                // Converters reorder joined projections into blocks, or write them apart.
                if a.joined != Joined::No {
                    a.joined = if has_weight("attn_qkv") { Joined::Blocks } else { Joined::No };
                }
            }
            Mixer::Latent(l) => l.bias = has("attn_kv_a_mqa"),
            // In files of Qwen 3.5, the value heads of one key head are not adjacent.
            Mixer::DeltaNet(d) => d.tiled = config.family != "qwen3_next",
            Mixer::ShortConv(_) | Mixer::Mamba(_) | Mixer::KeyDecay(_) | Mixer::None => {}
        }
        match &mut layer.feed_forward {
            FeedForward::Mlp(mlp) => {
                mlp.bias = has("ffn_down").into();
                mlp.joined &= !has_weight("ffn_gate");
            }
            FeedForward::Experts(experts) => {
                if !has("exp_probs_b") && !file.tensors.contains_key(&format!("blk.{i}.exp_probs_b")) {
                    experts.router.correction = None;
                }
                // Files hold stacks of matrices [outputs, inputs].
                if experts.layout == ExpertLayout::Flat {
                    experts.layout = ExpertLayout::Rows;
                }
                if let Some(shared) = &mut experts.shared {
                    shared.joined &= !has_weight("ffn_gate_shexp");
                }
            }
            FeedForward::Both(..) | FeedForward::None => {}
        }
    }
}

/// Converts an error about a key to the file's name of the key.
fn named_as_stored(error: Error, keys: &Keys<'_>, architecture: &Architecture) -> Error {
    match error {
        Error::Key { key, expected, found } => {
            let mut names = architecture.keys.iter().copied().flatten().chain(KEYS).chain(&[("block_count", "num_hidden_layers")]);
            let stored = names.find(|(_, known)| *known == key).map_or(key.clone(), |(stored, _)| keys.key(stored));
            Error::Key { key: stored, expected, found }
        }
        other => other,
    }
}

/// Tensors by their names in Hugging Face checkpoints, and the file's names by these names.
pub(super) type Named = (IndexMap<String, CheckpointTensor>, IndexMap<String, String>);
