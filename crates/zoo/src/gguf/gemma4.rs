//! Settings per layer of Gemma 3n and Gemma 4 in GGUF files.

use serde_json::{Map, Value, json};

use super::{MetadataValue, keys::Keys};
use crate::{
    Result,
    spec::{DecoderConfig, FeedForward},
};

/// DecoderConfig keys that need more than renaming.
pub(super) fn stated(keys: &Keys<'_>) -> Result<Value> {
    let sliding = keys.bools("attention.sliding_window_pattern")?;
    let sliding = sliding.ok_or_else(|| keys.error("attention.sliding_window_pattern", "an array of booleans"))?;
    let kinds: Vec<_> = sliding.iter().map(|&sliding| if sliding { "sliding_attention" } else { "full_attention" }).collect();
    let (full_dim, sliding_dim) = (keys.size("attention.key_length")?, keys.size("attention.key_length_swa")?);
    for (name, dim) in [
        ("attention.value_length", full_dim),
        ("attention.value_length_swa", sliding_dim),
        ("rope.dimension_count", full_dim),
        ("rope.dimension_count_swa", sliding_dim),
    ] {
        if keys.size_opt(name)?.is_some_and(|found| found != dim) {
            return Err(keys.error(name, format!("the {dim} elements of a head")));
        }
    }
    let heads = keys.counts("attention.head_count_kv")?;
    let sizes = |(i, sliding): (usize, &bool)| {
        let head_dim = if *sliding { sliding_dim } else { full_dim };
        (i.to_string(), json!({"num_key_value_heads": heads[i], "head_dim": head_dim}))
    };
    let sizes: Map<String, Value> = sliding.iter().enumerate().map(sizes).collect();
    let shared = keys.size_opt("attention.shared_kv_layers")?.unwrap_or(0);
    let (width, wide) = widths(keys, sliding.len().saturating_sub(shared))?;
    let first_full = sliding.iter().position(|&sliding| !sliding).unwrap_or(0);
    let keys_serve = !keys.file.tensors.contains_key(&format!("blk.{first_full}.attn_v.weight"));
    let base = |name: &str| Ok::<_, crate::Error>(json!({"rope_type": "default", "rope_theta": keys.positive_opt(name)?}));
    let rows = keys.file.tensors.get("per_layer_token_embd.weight").and_then(|t| t.shape.first().copied());
    let experts = keys.size_opt("expert_count")?;
    Ok(json!({
        "layer_types": kinds, "head_dim": sliding_dim, "per_layer_config": sizes, "num_key_value_heads": heads.first(),
        "num_kv_shared_layers": shared, "intermediate_size": width, "use_double_wide_mlp": wide, "attention_k_eq_v": keys_serve,
        "rope_parameters": {"full_attention": base("rope.freq_base")?, "sliding_attention": base("rope.freq_base_swa")?},
        "rope_theta": null, "rope_local_base_freq": null,
        "hidden_size_per_layer_input": keys.size_opt("embedding_length_per_layer_input")?.unwrap_or(0),
        "vocab_size_per_layer_input": rows,
        "enable_moe_block": experts.is_some(), "num_experts": experts, "top_k_experts": keys.size_opt("expert_used_count")?,
        "moe_intermediate_size": keys.size_opt("expert_feed_forward_length")?,
    }))
}

/// Gemma 3n's keys. Shares of sparse gates follow with the layers.
pub(super) fn third(keys: &Keys<'_>) -> Result<Value> {
    let sliding = keys.bools("attention.sliding_window_pattern")?;
    let kind = |&sliding: &bool| if sliding { "sliding_attention" } else { "full_attention" };
    let kinds = sliding.map(|list| list.iter().map(kind).collect::<Vec<_>>());
    let rows = keys.file.tensors.get("per_layer_token_embd.weight").and_then(|t| t.shape.first().copied());
    Ok(json!({
        "layer_types": kinds, "num_kv_shared_layers": keys.size_opt("attention.shared_kv_layers")?.unwrap_or(0),
        "intermediate_size": keys.counts("feed_forward_length")?, "vocab_size_per_layer_input": rows,
        "laurel_rank": keys.file.tensors.get("blk.0.laurel_l.weight").and_then(|t| t.shape.first().copied()),
        "activation_sparsity_pattern": vec![0.0; keys.layers()?],
    }))
}

/// Sets the limits of sparse gates, which files state as numbers of standard deviations.
pub(super) fn add_cutoffs(keys: &Keys<'_>, config: &mut DecoderConfig) -> Result<()> {
    const NAME: &str = "activation_sparsity_scale";
    if keys.get(NAME).is_none() {
        return Ok(());
    }
    let number = |v: MetadataValue| if let MetadataValue::Float(v) = v { Some(v) } else { None };
    let limits = keys.file.numbers(&keys.key(NAME), number)?;
    for (layer, limit) in config.layers.iter_mut().zip(limits) {
        if let FeedForward::Mlp(mlp) = &mut layer.feed_forward {
            mlp.cutoff = Some(limit).filter(|limit| limit.is_finite());
        }
    }
    Ok(())
}

/// The width of the gated layers, and whether layers from `own` on have twice this width. These
/// layers share caches.
fn widths(keys: &Keys<'_>, own: usize) -> Result<(usize, bool)> {
    const NAME: &str = "feed_forward_length";
    let widths = keys.counts(NAME)?;
    let (width, last) = (widths.first().copied().unwrap_or(0), widths.last().copied().unwrap_or(0));
    let wide = own < widths.len() && last != width;
    let expected = |i: usize| if wide && i >= own { 2 * width } else { width };
    match widths.iter().enumerate().all(|(i, &found)| found == expected(i)) {
        true => Ok((width, wide)),
        false => Err(keys.error(NAME, format!("{width} in the first {own} layers, and that or twice as much in the others"))),
    }
}
