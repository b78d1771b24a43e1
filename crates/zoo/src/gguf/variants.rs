//! Architectures with few keys beyond the shared ones: norms, windows, parallel halves and experts.

use serde_json::{Value, json};

use super::{
    architecture::{Architecture, EXPERTS, GROUPED_EXPERTS, KeyNames, PLAIN, SHARED_EXPERT, sigmoid, windowed, with},
    keys::Keys,
};
use crate::Result;

const LAYER_NORM: KeyNames = &[("attention.layer_norm_epsilon", "layer_norm_eps")];
const LOGIT_SCALE: KeyNames = &[("logit_scale", "logit_scale")];

pub(super) const VARIANTS: [Architecture; 33] = [
    Architecture {
        name: "afmoe",
        model_type: "afmoe",
        keys: &[&[
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_count", "num_shared_experts"),
            ("expert_group_count", "n_group"),
            ("expert_group_used_count", "topk_group"),
            ("expert_weights_norm", "route_norm"),
            ("expert_weights_scale", "route_scale"),
            ("leading_dense_block_count", "num_dense_layers"),
        ]],
        // Files do not state that the embedding is scaled.
        implied: || json!({"mup_enabled": true}),
        stated: |keys| {
            sigmoid(keys, true)?;
            kinds(keys)
        },
        ..PLAIN
    },
    Architecture {
        name: "apertus",
        model_type: "apertus",
        // Divisors of frequencies are a tensor.
        stated: |keys| {
            let theta = keys.positive_opt("rope.freq_base")?;
            Ok(json!({"rope_theta": null, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}))
        },
        ..PLAIN
    },
    Architecture {
        name: "arcee",
        model_type: "arcee",
        implied: || json!({"rms_norm_eps": 1e-5, "hidden_act": "relu2"}),
        interleaved: true,
        ..PLAIN
    },
    Architecture {
        name: "bitnet",
        model_type: "bitnet",
        // Files do not state the activation. The first models, with a SentencePiece vocabulary, use
        // another.
        stated: |keys| {
            let first = keys.file.text("tokenizer.ggml.model")? == Some("llama");
            Ok(json!({"hidden_act": if first { "silu" } else { "relu2" }}))
        },
        ..PLAIN
    },
    Architecture { name: "chatglm", model_type: "glm", implied: || json!({"rms_norm_eps": 1.5625e-7}), ..PLAIN },
    Architecture {
        name: "cohere2",
        model_type: "cohere2",
        keys: &[LAYER_NORM, LOGIT_SCALE],
        implied: || json!({}),
        stated: |keys| kinds(keys),
        ..PLAIN
    },
    Architecture {
        name: "command-r",
        model_type: "cohere",
        keys: &[LAYER_NORM, LOGIT_SCALE],
        implied: || json!({}),
        stated: |keys| Ok(json!({"use_qk_norm": keys.file.has_in_blocks("attn_q_norm.weight")})),
        ..PLAIN
    },
    Architecture {
        name: "dots1",
        model_type: "dots1",
        keys: &[GROUPED_EXPERTS],
        stated: |keys| {
            sigmoid(keys, true)?;
            keys.get("expert_shared_feed_forward_length");
            Ok(if keys.get("attention.sliding_window").is_some() { json!({"max_window_layers": 0}) } else { json!({}) })
        },
        ..PLAIN
    },
    Architecture { name: "ernie4_5", model_type: "ernie4_5", ..PLAIN },
    Architecture {
        name: "ernie4_5-moe",
        model_type: "ernie4_5_moe",
        keys: &[&[
            ("expert_count", "moe_num_experts"),
            ("expert_used_count", "moe_k"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_count", "moe_num_shared_experts"),
            ("interleave_moe_layer_step", "moe_layer_interval"),
            ("leading_dense_block_count", "moe_layer_start_index"),
        ]],
        stated: |keys| {
            keys.get("expert_shared_feed_forward_length");
            Ok(json!({"moe_use_aux_free": keys.file.has_in_blocks("exp_probs_b.bias")}))
        },
        ..PLAIN
    },
    Architecture {
        name: "exaone",
        model_type: "exaone",
        keys: &[&[("attention.layer_norm_epsilon", "layer_norm_epsilon"), ("block_count", "num_layers")]],
        implied: || json!({"activation_function": "silu"}),
        stated: |_| Ok(json!({"rms_norm_eps": null, "num_hidden_layers": null})),
        ..PLAIN
    },
    Architecture {
        name: "exaone4",
        model_type: "exaone4",
        stated: |keys| match keys.size_opt("attention.sliding_window")? {
            Some(_) => kinds(keys),
            None => Ok(json!({"sliding_window": null})),
        },
        ..PLAIN
    },
    Architecture {
        name: "exaone-moe",
        model_type: "exaone_moe",
        keys: &[GROUPED_EXPERTS],
        stated: |keys| {
            sigmoid(keys, true)?;
            keys.get("expert_shared_feed_forward_length");
            kinds(keys)
        },
        ..PLAIN
    },
    Architecture { name: "gemma", model_type: "gemma", implied: || json!({}), norms_plus_one: true, ..PLAIN },
    Architecture {
        name: "granitemoe",
        model_type: "granitemoe",
        keys: &[
            GRANITE,
            &[
                ("expert_count", "num_local_experts"),
                ("expert_used_count", "num_experts_per_tok"),
                ("expert_shared_feed_forward_length", "shared_intermediate_size"),
            ],
        ],
        stated: |keys| {
            // The same width under another name.
            keys.get("expert_feed_forward_length");
            Ok(json!({}))
        },
        interleaved: true,
        ..PLAIN
    },
    Architecture {
        name: "gptneox",
        model_type: "gpt_neox",
        keys: &[LAYER_NORM, &[("use_parallel_residual", "use_parallel_residual")]],
        implied: || json!({"hidden_act": "gelu"}),
        ..PLAIN
    },
    Architecture {
        name: "hunyuan-dense",
        model_type: "hunyuan_v1_dense",
        stated: |keys| Ok(json!({"use_qk_norm": keys.file.has_in_blocks("attn_q_norm.weight")})),
        ..PLAIN
    },
    Architecture {
        name: "laguna",
        model_type: "laguna",
        keys: &[EXPERTS, SHARED_EXPERT, &[("expert_weights_scale", "moe_routed_scaling_factor")]],
        implied: || json!({}),
        stated: laguna,
        ..PLAIN
    },
    Architecture {
        name: "llama4",
        model_type: "llama4_text",
        keys: &[&[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("interleave_moe_layer_step", "interleave_moe_layer_step"),
        ]],
        // Only the model with 128 experts has no norms of queries and keys.
        stated: |keys| {
            Ok(json!({
                "use_qk_norm": keys.size_opt("expert_count")? != Some(128),
                "intermediate_size": keys.size_opt("expert_feed_forward_length")?,
                "intermediate_size_mlp": keys.size_opt("feed_forward_length")?,
            }))
        },
        ..PLAIN
    },
    Architecture {
        name: "mellum",
        model_type: "mellum",
        keys: &[EXPERTS],
        implied: || json!({"rms_norm_eps": 1e-6, "norm_topk_prob": true}),
        stated: kinds,
        ..PLAIN
    },
    Architecture {
        name: "minimax-m2",
        model_type: "minimax_m2",
        keys: &[&[("expert_count", "num_local_experts"), ("expert_used_count", "num_experts_per_tok")]],
        stated: |keys| {
            sigmoid(keys, true)?;
            let width = keys.size_opt("expert_feed_forward_length")?.or(keys.size_opt("feed_forward_length")?);
            Ok(json!({"intermediate_size": width}))
        },
        ..PLAIN
    },
    Architecture {
        name: "mistral3",
        model_type: "mistral",
        // The number is read with the rotary embedding.
        stated: |keys| {
            let grows = keys.get("attention.temperature_scale").is_some();
            Ok(
                json!({"model_type": if grows { "ministral3" } else { "mistral" }, "sliding_window": keys.size_opt("attention.sliding_window")?}),
            )
        },
        interleaved: true,
        ..PLAIN
    },
    Architecture {
        name: "nemotron",
        model_type: "nemotron",
        keys: &[&[("attention.layer_norm_epsilon", "norm_eps")]],
        implied: || json!({"hidden_act": "relu2"}),
        stated: |keys| {
            // The same number under two names.
            keys.get("attention.layer_norm_rms_epsilon");
            Ok(json!({"rms_norm_eps": null}))
        },
        norms_plus_one: true,
        ..PLAIN
    },
    Architecture {
        name: "olmo",
        model_type: "olmo",
        implied: || json!({}),
        stated: |keys| {
            keys.get("attention.layer_norm_epsilon");
            Ok(json!({"clip_qkv": keys.positive_opt("attention.clamp_kqv")?}))
        },
        interleaved: true,
        ..PLAIN
    },
    Architecture { name: "olmoe", model_type: "olmoe", keys: &[EXPERTS], ..PLAIN },
    Architecture {
        name: "phi2",
        model_type: "phi",
        keys: &[LAYER_NORM],
        implied: || json!({"hidden_act": "gelu_new"}),
        stated: |keys| {
            // Files always state four times the width, even if the matrices differ.
            keys.get("feed_forward_length");
            let rows = keys.file.rows("blk.0.ffn_up.weight");
            Ok(json!({"intermediate_size": rows}))
        },
        ..PLAIN
    },
    Architecture { name: "qwen2moe", model_type: "qwen2_moe", keys: &[EXPERTS, SHARED_EXPERT], stated: windowed, ..PLAIN },
    Architecture { name: "qwen2vl", model_type: "qwen2", stated: windowed, ..PLAIN },
    Architecture { name: "qwen3vl", model_type: "qwen3", stated: windowed, ..PLAIN },
    Architecture {
        name: "qwen3vlmoe",
        model_type: "qwen3_moe",
        keys: &[EXPERTS],
        implied: || json!({"rms_norm_eps": 1e-5, "norm_topk_prob": true}),
        stated: windowed,
        ..PLAIN
    },
    Architecture { name: "seed_oss", model_type: "seed_oss", ..PLAIN },
    Architecture {
        name: "stablelm",
        model_type: "stablelm",
        keys: &[LAYER_NORM, &[("use_parallel_residual", "use_parallel_residual")]],
        implied: || json!({}),
        stated: |keys| Ok(json!({"qk_layernorm": keys.file.has_in_blocks("attn_q_norm.weight")})),
        ..PLAIN
    },
    Architecture {
        name: "starcoder2",
        model_type: "starcoder2",
        keys: &[&[("attention.layer_norm_epsilon", "norm_epsilon")]],
        implied: || json!({"hidden_act": "gelu_pytorch_tanh"}),
        ..PLAIN
    },
];

/// Granite's factors.
pub(super) const GRANITE: KeyNames = &[
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
];

/// Kinds of layers, if a file states the window per layer.
pub(super) fn kinds(keys: &Keys<'_>) -> Result<Value> {
    let listed = keys.bools("attention.sliding_window_pattern")?;
    let kind = |&local: &bool| if local { "sliding_attention" } else { "full_attention" };
    let kinds = listed.map(|kinds| kinds.iter().map(kind).collect::<Vec<_>>());
    Ok(kinds.map_or(json!({}), |kinds| json!({"layer_types": kinds})))
}

/// Laguna's keys per layer. In files with windows that list no kinds, every fourth layer is full,
/// starting at the first. The gate's size tells whether it has one number for each head.
fn laguna(keys: &Keys<'_>) -> Result<Value> {
    sigmoid(keys, true)?;
    let heads = keys.counts("attention.head_count")?;
    let windowed = keys.get("attention.sliding_window").is_some();
    let listed = keys.bools("attention.sliding_window_pattern")?;
    let is_local = |i: usize| windowed && listed.as_ref().map_or(!i.is_multiple_of(4), |listed| listed[i]);
    let kinds: Vec<_> = (0..heads.len()).map(|i| if is_local(i) { "sliding_attention" } else { "full_attention" }).collect();
    let dense = keys.size_opt("leading_dense_block_count")?.unwrap_or(0);
    let feeds: Vec<_> = (0..heads.len()).map(|i| if i < dense { "dense" } else { "sparse" }).collect();
    let head_dim = keys.head_dim()?.unwrap_or(1);
    let rows = keys.file.rows("blk.0.attn_gate.weight");
    let gating = if rows == heads.first().copied() { "per-head" } else { "per-element" };
    let rope = |theta: &str, dims: &str| -> Result<Value> {
        let part = keys.size_opt(dims)?.map(|dims| dims as f64 / head_dim as f64);
        Ok(json!({"rope_type": "default", "rope_theta": keys.positive_opt(theta)?, "partial_rotary_factor": part}))
    };
    keys.get("expert_shared_count");
    Ok(json!({
        "num_attention_heads": heads.first(), "num_attention_heads_per_layer": heads, "layer_types": kinds, "mlp_layer_types": feeds,
        "gating": gating,
        "rope_parameters": {
            "full_attention": rope("rope.freq_base", "rope.dimension_count")?,
            "sliding_attention": rope("rope.freq_base_swa", "rope.dimension_count_swa")?,
        },
    }))
}

/// The keys of OLMo 2 and, where layers have windows, of OLMo 3.
pub(super) fn olmo2(keys: &Keys<'_>) -> Result<Value> {
    match keys.size_opt("attention.sliding_window")? {
        Some(_) => Ok(with(json!({"model_type": "olmo3"}), kinds(keys)?)),
        None => Ok(json!({})),
    }
}
