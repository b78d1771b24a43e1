//! Architectures with experts whose keys need more than other names.

use serde_json::{Value, json};

use super::{
    architecture::{Architecture, GROUPED_EXPERTS, KeyNames, PLAIN, longrope, sigmoid, with},
    keys::Keys,
    variants::kinds,
};
use crate::Result;

const EXPERTS: KeyNames = &[
    ("expert_count", "num_local_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_shared_feed_forward_length", "shared_intermediate_size"),
];

pub(super) const SPARSE: [Architecture; 7] = [
    Architecture {
        name: "bailingmoe2",
        // The layers of GLM-4.5, with joined projections.
        model_type: "glm4_moe",
        keys: &[GROUPED_EXPERTS],
        implied: || json!({"rms_norm_eps": 1e-6, "use_qk_norm": true, "first_k_dense_replace": 0}),
        stated: |keys| {
            sigmoid(keys, true)?;
            // The width covers all shared experts.
            keys.get("expert_shared_feed_forward_length");
            Ok(json!({}))
        },
        ..PLAIN
    },
    Architecture {
        name: "cohere2moe",
        model_type: "cohere2_moe",
        keys: &[&[
            ("attention.layer_norm_epsilon", "layer_norm_eps"),
            ("logit_scale", "logit_scale"),
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_shared_count", "num_shared_experts"),
            ("leading_dense_block_count", "first_k_dense_replace"),
            ("feed_forward_length", "prefix_dense_intermediate_size"),
        ]],
        implied: || json!({}),
        stated: cohere,
        ..PLAIN
    },
    Architecture { name: "dbrx", model_type: "dbrx", implied: || json!({}), stated: dbrx, ..PLAIN },
    Architecture {
        name: "granite_swa",
        model_type: "granite_swa",
        keys: &[super::variants::GRANITE, EXPERTS],
        stated: granite,
        interleaved: true,
        ..PLAIN
    },
    Architecture {
        name: "hy_v3",
        // The layers of GLM-4.5, rotated as a whole.
        model_type: "glm4_moe",
        keys: &[GROUPED_EXPERTS],
        implied: || json!({"rms_norm_eps": 1e-5, "use_qk_norm": true}),
        stated: |keys| {
            sigmoid(keys, true)?;
            // The width covers all shared experts.
            keys.get("expert_shared_feed_forward_length");
            routed(keys)
        },
        ..PLAIN
    },
    Architecture {
        name: "mimo2",
        model_type: "mimo_v2_flash",
        keys: &[GROUPED_EXPERTS],
        implied: || json!({"rms_norm_eps": 1e-5, "routed_scaling_factor": 1.0}),
        stated: mimo,
        ..PLAIN
    },
    Architecture {
        name: "phimoe",
        model_type: "phimoe",
        keys: &[EXPERTS],
        stated: |keys| Ok(with(longrope(keys)?, json!({"lm_head_bias": keys.file.tensors.contains_key("output.bias")}))),
        ..PLAIN
    },
];

/// Which layers have experts, by their routers.
fn routed(keys: &Keys<'_>) -> Result<Value> {
    let is_routed = |i: usize| keys.file.tensors.contains_key(&format!("blk.{i}.ffn_gate_inp.weight"));
    let kinds: Vec<_> = (0..keys.layers()?).map(|i| if is_routed(i) { "sparse" } else { "dense" }).collect();
    Ok(json!({"mlp_layer_types": kinds}))
}

/// Command A+: norms by the file's key of their smallest variance, and a router by sigmoids or by
/// the softmax of the chosen.
fn cohere(keys: &Keys<'_>) -> Result<Value> {
    const SOFTMAX: i64 = 1;
    const SOFTMAX_OF_CHOSEN: i64 = 3;
    let normalized = keys.bool("expert_weights_norm")?.unwrap_or(false);
    let function = match keys.int("expert_gating_func")? {
        Some(SOFTMAX_OF_CHOSEN) => "softmax",
        // Normalized shares of all experts are the shares of the chosen.
        Some(SOFTMAX) if normalized => "softmax",
        Some(SOFTMAX) => return Err(keys.error("expert_gating_func", "a normalized softmax or a sigmoid")),
        _ => {
            sigmoid(keys, true)?;
            "sigmoid"
        }
    };
    if keys.positive_opt("expert_weights_scale")?.is_some_and(|scale| scale != 1.0) {
        return Err(keys.error("expert_weights_scale", "1"));
    }
    keys.get("expert_shared_feed_forward_length");
    let width = keys.size_opt("expert_feed_forward_length")?.or(keys.size_opt("feed_forward_length")?);
    let more = json!({"expert_selection_fn": function, "norm_topk_prob": normalized, "intermediate_size": width});
    Ok(with(kinds(keys)?, more))
}

/// DBRX: keys of attention and of experts in objects of their own.
fn dbrx(keys: &Keys<'_>) -> Result<Value> {
    let attention = json!({
        "clip_qkv": keys.positive_opt("attention.clamp_kqv")?, "rope_theta": keys.positive_opt("rope.freq_base")?,
    });
    let experts = json!({
        "ffn_hidden_size": keys.size("feed_forward_length")?, "moe_num_experts": keys.size("expert_count")?,
        "moe_top_k": keys.size("expert_used_count")?,
    });
    Ok(json!({
        "attn_config": attention, "ffn_config": experts, "intermediate_size": null, "rope_theta": null,
        "rms_norm_eps": keys.positive_opt("attention.layer_norm_epsilon")?,
    }))
}

/// Granite with windows, sinks, and layers without rotary embedding.
fn granite(keys: &Keys<'_>) -> Result<Value> {
    let theta = keys.positive_opt("rope.freq_base")?.unwrap_or(10_000.0);
    let rotated = keys.bools("attention.rope_pattern")?;
    let bases = rotated.map(|rotated| rotated.iter().map(|&rotated| if rotated { theta } else { 0.0 }).collect::<Vec<_>>());
    let family = match keys.size_opt("expert_count")? {
        Some(_) => json!({"model_type": "granitemoe_swa"}),
        None => {
            EXPERTS.iter().for_each(|(stored, _)| _ = keys.get(stored));
            json!({"num_local_experts": null, "num_experts_per_tok": null, "shared_intermediate_size": null})
        }
    };
    // The same width under another name.
    keys.get("expert_feed_forward_length");
    let scale = match keys.positive_opt("attention.scale")? {
        Some(scale) => Some(scale),
        None => keys.head_dim()?.map(|dim| (dim as f64).sqrt().recip()),
    };
    Ok(with(with(kinds(keys)?, family), json!({"layer_rope_theta": bases, "attention_multiplier": scale})))
}

/// MiMo: narrow values, key heads by the kind of layer, and sinks where a file has them.
fn mimo(keys: &Keys<'_>) -> Result<Value> {
    sigmoid(keys, true)?;
    let listed = keys.bools("attention.sliding_window_pattern")?;
    let listed = listed.ok_or_else(|| keys.error("attention.sliding_window_pattern", "an array of booleans"))?;
    let heads = keys.counts("attention.head_count_kv")?;
    let of_kind = |local: bool| listed.iter().position(|&found| found == local);
    let heads_of = |local: bool| of_kind(local).map(|i| heads[i]);
    if listed.iter().zip(&heads).any(|(&local, &found)| Some(found) != heads_of(local)) {
        return Err(keys.error("attention.head_count_kv", "one number for all layers of a kind"));
    }
    let sinks = |local: bool| of_kind(local).is_some_and(|i| keys.file.tensors.contains_key(&format!("blk.{i}.attn_sinks.weight")));
    let (dim, values) = (keys.size("attention.key_length")?, keys.size("attention.value_length")?);
    let part = keys.size_opt("rope.dimension_count")?.map(|dims| dims as f64 / dim as f64);
    let rope = |theta: Option<f64>| json!({"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": part});
    let theta = keys.positive_opt("rope.freq_base")?;
    let local = keys.positive_opt("rope.freq_base_swa")?.or(theta);
    let more = json!({
        "head_dim": dim, "v_head_dim": values, "swa_head_dim": dim, "swa_v_head_dim": values,
        "num_key_value_heads": heads_of(false).or(heads_of(true)), "swa_num_key_value_heads": heads_of(true).or(heads_of(false)),
        "add_full_attention_sink_bias": sinks(false), "add_swa_attention_sink_bias": sinks(true),
        "attention_value_scale": keys.positive_opt("attention.value_scale")?.unwrap_or(1.0),
        "rope_parameters": {"full_attention": rope(theta), "sliding_attention": rope(local)},
        "rope_theta": null, "rope_local_base_freq": null,
    });
    Ok(with(with(kinds(keys)?, routed(keys)?), more))
}
