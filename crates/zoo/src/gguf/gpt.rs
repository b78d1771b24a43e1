//! Architectures of GPT-2 and its successors: layer norms, learned positions or biases by distance.

use serde_json::{Value, json};

use super::{
    architecture::{Architecture, KeyNames, PLAIN},
    keys::Keys,
};
use crate::Result;

const NORM: KeyNames = &[("attention.layer_norm_epsilon", "layer_norm_epsilon")];

/// An architecture with layer norms and without a rotary embedding.
const LAYER_NORMS: Architecture =
    Architecture { keys: &[NORM], implied: || json!({}), stated: |_| Ok(json!({"partial_rotary_factor": null})), ..PLAIN };

pub(super) const GPTS: [Architecture; 8] = [
    Architecture { name: "bloom", model_type: "bloom", ..LAYER_NORMS },
    Architecture { name: "falcon", model_type: "falcon", stated: falcon, ..LAYER_NORMS },
    Architecture { name: "gpt2", model_type: "gpt2", ..LAYER_NORMS },
    Architecture {
        name: "hunyuan-moe",
        model_type: "hunyuan_v1_moe",
        keys: &[&[
            ("expert_count", "num_experts"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_used_count", "moe_topk"),
        ]],
        stated: |keys| {
            // The width covers all shared experts.
            keys.get("expert_shared_count");
            let shared = keys.size_opt("expert_shared_feed_forward_length")?.or(keys.size_opt("feed_forward_length")?);
            Ok(json!({"intermediate_size": shared}))
        },
        ..PLAIN
    },
    Architecture { name: "internlm2", model_type: "internlm2", interleaved: true, ..PLAIN },
    Architecture {
        name: "jais2",
        model_type: "jais2",
        keys: &[&[("attention.layer_norm_epsilon", "layer_norm_eps")]],
        implied: || json!({}),
        ..PLAIN
    },
    Architecture { name: "mpt", model_type: "mpt", stated: mpt, ..LAYER_NORMS },
    Architecture { name: "starcoder", model_type: "gpt_bigcode", ..LAYER_NORMS },
];

/// Layers with two norms have another norm for attention. All layouts of the joined projections are
/// blocks in files.
fn falcon(keys: &Keys<'_>) -> Result<Value> {
    let norms = if keys.file.has_in_blocks("attn_norm_2.weight") { 2 } else { 1 };
    Ok(json!({"new_decoder_architecture": true, "num_ln_in_parallel_attn": norms}))
}

/// MPT. The family refuses models without biases by distance, which files state as a maximum of 0.
fn mpt(keys: &Keys<'_>) -> Result<Value> {
    let most = keys.positive_opt("attention.max_alibi_bias")?;
    let clip = keys.positive_opt("attention.clamp_kqv")?;
    // Four times the width, which no key of the family states.
    keys.get("feed_forward_length");
    let attention = json!({"alibi": most.is_some(), "alibi_bias_max": most, "clip_qkv": clip});
    Ok(json!({"attn_config": attention, "intermediate_size": null, "partial_rotary_factor": null}))
}
