//! Architectures with the layers of a family under another name.

use serde_json::json;

use super::{
    architecture::{Architecture, GROUPED_EXPERTS, PLAIN, longrope, with},
    keys::Keys,
    variants::GRANITE,
};
use crate::Result;

pub(super) const LLAMAS: [Architecture; 13] = [
    Architecture {
        name: "baichuan",
        model_type: "llama",
        // The model of 13B has biases by distance, which its files do not state.
        stated: |keys| match keys.layers()? {
            40 => Err(keys.error("block_count", "other than 40 layers, of which the model has biases by distance")),
            _ => Ok(json!({})),
        },
        interleaved: true,
        ..PLAIN
    },
    Architecture {
        name: "bailingmoe",
        model_type: "deepseek",
        keys: &[GROUPED_EXPERTS],
        implied: || json!({"rms_norm_eps": 1e-5, "first_k_dense_replace": 0}),
        stated: |keys| softmax(keys).map(|()| json!({})),
        interleaved: true,
        ..PLAIN
    },
    Architecture {
        name: "codeshell",
        model_type: "starcoder2",
        keys: &[&[("attention.layer_norm_epsilon", "norm_epsilon")]],
        implied: || json!({"hidden_act": "gelu_pytorch_tanh"}),
        ..PLAIN
    },
    Architecture {
        name: "deepseek",
        model_type: "deepseek",
        keys: &[GROUPED_EXPERTS],
        implied: || json!({"rms_norm_eps": 1e-6, "first_k_dense_replace": 0}),
        stated: |keys| softmax(keys).map(|()| json!({})),
        interleaved: true,
        ..PLAIN
    },
    Architecture { name: "eurobert", model_type: "llama", ..PLAIN },
    Architecture {
        name: "hunyuan_vl",
        model_type: "hunyuan_v1_dense",
        stated: |keys| Ok(json!({"use_qk_norm": keys.file.has_in_blocks("attn_q_norm.weight")})),
        ..PLAIN
    },
    Architecture { name: super::encoder::LLAMA, model_type: "llama", interleaved: true, ..PLAIN },
    Architecture { name: "minicpm", model_type: "granite", keys: &[GRANITE], stated: minicpm, interleaved: true, ..PLAIN },
    Architecture {
        name: "nanbeige",
        model_type: "llama",
        stated: |keys| match keys.int("num_loops")? {
            None | Some(1) => Ok(json!({})),
            Some(_) => Err(keys.error("num_loops", "1, since a program passes its layers once")),
        },
        interleaved: true,
        ..PLAIN
    },
    Architecture {
        name: "orion",
        model_type: "stablelm",
        keys: &[&[("attention.layer_norm_epsilon", "layer_norm_eps")]],
        implied: || json!({}),
        ..PLAIN
    },
    Architecture { name: "pangu-embedded", model_type: "qwen2", ..PLAIN },
    Architecture {
        name: "qwen",
        model_type: "qwen2",
        // Files state the joint width of gates and ups.
        stated: |keys| {
            keys.get("feed_forward_length");
            Ok(json!({"intermediate_size": keys.file.rows("blk.0.ffn_up.weight")}))
        },
        ..PLAIN
    },
    Architecture { name: "xverse", model_type: "llama", interleaved: true, ..PLAIN },
];

/// Refuses a router without a softmax over all experts.
fn softmax(keys: &Keys<'_>) -> Result<()> {
    const SOFTMAX: i64 = 1;
    match keys.int("expert_gating_func")? {
        None | Some(SOFTMAX) => Ok(()),
        Some(_) => Err(keys.error("expert_gating_func", "1, a softmax")),
    }
}

/// MiniCPM: Granite's factors. Older files leave them out, and then have the first models' factors.
fn minicpm(keys: &Keys<'_>) -> Result<serde_json::Value> {
    let (layers, hidden) = (keys.layers()? as f64, keys.size("embedding_length")? as f64);
    let implied = json!({
        "attention_multiplier": keys.head_dim()?.map(|dim| (dim as f64).sqrt().recip()),
        "embedding_multiplier": keys.positive_opt("embedding_scale")?.unwrap_or(12.0),
        "residual_multiplier": keys.positive_opt("residual_scale")?.unwrap_or(1.4 / layers.sqrt()),
        "logits_scaling": keys.positive_opt("logit_scale")?.unwrap_or(hidden / 256.0),
    });
    Ok(with(longrope(keys)?, implied))
}
