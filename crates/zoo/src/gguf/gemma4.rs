//! Settings per layer of Gemma 3n and Gemma 4 in GGUF files.

use serde_json::{Map, Value, json};

use super::{architecture::with, keys::Keys, variants::kinds};
use crate::{
    Result,
    spec::{DecoderConfig, FeedForward},
};

/// Keys of Gemma 4 that need more than another name.
pub(super) fn stated(keys: &Keys<'_>) -> Result<Value> {
    let sliding = keys.bools("attention.sliding_window_pattern")?;
    let sliding = sliding.ok_or_else(|| keys.error("attention.sliding_window_pattern", "an array of booleans"))?;
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
    let experts = keys.size_opt("expert_count")?;
    let more = json!({
        "head_dim": sliding_dim, "per_layer_config": sizes, "num_key_value_heads": heads.first(),
        "num_kv_shared_layers": shared, "intermediate_size": width, "use_double_wide_mlp": wide, "attention_k_eq_v": keys_serve,
        "rope_parameters": {"full_attention": base("rope.freq_base")?, "sliding_attention": base("rope.freq_base_swa")?},
        "rope_theta": null, "rope_local_base_freq": null,
        "hidden_size_per_layer_input": keys.size_opt("embedding_length_per_layer_input")?.unwrap_or(0),
        "vocab_size_per_layer_input": keys.file.rows("per_layer_token_embd.weight"),
        "enable_moe_block": experts.is_some(), "num_experts": experts, "top_k_experts": keys.size_opt("expert_used_count")?,
        "moe_intermediate_size": keys.size_opt("expert_feed_forward_length")?,
    });
    Ok(with(kinds(keys)?, more))
}

/// Gemma 3n's keys. Shares of sparse gates follow with the layers.
pub(super) fn third(keys: &Keys<'_>) -> Result<Value> {
    let more = json!({
        "num_kv_shared_layers": keys.size_opt("attention.shared_kv_layers")?.unwrap_or(0),
        "intermediate_size": keys.counts("feed_forward_length")?, "vocab_size_per_layer_input": keys.file.rows("per_layer_token_embd.weight"),
        "laurel_rank": keys.file.rows("blk.0.laurel_l.weight"),
        "activation_sparsity_pattern": vec![0.0; keys.layers()?],
    });
    Ok(with(kinds(keys)?, more))
}

/// Sets the limits of sparse gates, which files state as numbers of standard deviations.
pub(super) fn add_cutoffs(keys: &Keys<'_>, config: &mut DecoderConfig) -> Result<()> {
    const NAME: &str = "activation_sparsity_scale";
    if keys.get(NAME).is_none() {
        return Ok(());
    }
    let limits = keys.floats(NAME)?;
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

#[cfg(test)]
mod tests {
    use flambeau_tensor::Bytes;

    use super::*;
    use crate::{family, fields::Fields, gguf::Gguf};

    /// A file with the number of layers and the limits of sparse gates.
    fn file(layers: u32, limits: &[f32]) -> Gguf {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let mut bytes = [&b"GGUF\x03\0\0\0"[..], &0u64.to_le_bytes(), &2u64.to_le_bytes()].concat();
        bytes.extend([text("gemma3n.block_count"), 4u32.to_le_bytes().to_vec(), layers.to_le_bytes().to_vec()].concat());
        bytes.extend([text("gemma3n.activation_sparsity_scale"), [9u32, 6].map(u32::to_le_bytes).concat()].concat());
        bytes.extend((limits.len() as u64).to_le_bytes());
        limits.iter().for_each(|limit| bytes.extend(limit.to_le_bytes()));
        Gguf::parse(Bytes::from(bytes)).unwrap()
    }

    #[test]
    fn every_layer_has_a_limit_of_its_gates() {
        let config = json!({
            "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 8,
            "vocab_size": 8,
        });
        let mut config = family::config(&Fields::new(config.as_object().unwrap())).unwrap();
        add_cutoffs(&Keys::new(&file(3, &[1.5, f32::NEG_INFINITY, 0.5]), "gemma3n"), &mut config).unwrap();
        let cutoffs = config.layers.iter().map(|layer| match layer.feed_forward {
            FeedForward::Mlp(mlp) => mlp.cutoff,
            _ => None,
        });
        assert_eq!(cutoffs.collect::<Vec<_>>(), [Some(1.5), None, Some(0.5)]);
        let short = add_cutoffs(&Keys::new(&file(3, &[1.5, 0.5]), "gemma3n"), &mut config).unwrap_err().to_string();
        assert!(short.contains("activation_sparsity_scale") && short.contains("an array of 3"), "{short}");
    }
}
