//! Architectures of Kimi's delta attention: a decay for each element of a key, and latent attention
//! in some layers.

use serde_json::{Value, json};

use super::{
    architecture::{Architecture, GROUPED_EXPERTS, KeyNames, PLAIN, latent_sizes, sigmoid, with},
    keys::Keys,
};
use crate::{CheckpointTensor, Result, spec::KeyDecay};

const LATENT: KeyNames = &[("attention.kv_lora_rank", "kv_lora_rank")];

pub(super) const DECAYS: [Architecture; 2] = [
    Architecture {
        name: "bailingmoe3",
        model_type: "bailing_hybrid",
        keys: &[GROUPED_EXPERTS, LATENT, &[("kda.head_dim", "head_dim"), ("ssm.conv_kernel", "short_conv_kernel_size")]],
        implied: || IMPLIED(1e-6),
        stated: |keys| {
            // The width covers all shared experts.
            keys.get("expert_shared_feed_forward_length");
            let sizes = with(mixers(keys)?, json!({"head_dim": keys.size("kda.head_dim")?}));
            let bound = keys.number("kda.gate_lower_bound")?;
            let bounded = keys.bool("kda.safe_gate")?.unwrap_or(true);
            Ok(with(sizes, json!({"kda_lower_bound": bound, "kda_safe_gate": bounded})))
        },
        ..PLAIN
    },
    Architecture {
        name: "kimi-linear",
        model_type: "kimi_linear",
        keys: &[
            GROUPED_EXPERTS,
            LATENT,
            &[
                ("attention.head_count", "linear_num_heads"),
                ("kda.head_dim", "linear_head_dim"),
                ("ssm.conv_kernel", "linear_conv_kernel_dim"),
            ],
        ],
        implied: || IMPLIED(1e-5),
        stated: mixers,
        ..PLAIN
    },
];

/// Values of missing keys.
const IMPLIED: fn(f64) -> Value = |eps| {
    json!({
        "rms_norm_eps": eps, "routed_scaling_factor": 1.0, "norm_topk_prob": true, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 0,
    })
};

/// Sizes of latent attention, and the kinds of layers: layers without key heads have decays.
fn mixers(keys: &Keys<'_>) -> Result<Value> {
    sigmoid(keys, true)?;
    let kind = |&heads: &usize| if heads == 0 { "linear_attention" } else { "full_attention" };
    let kinds: Vec<_> = keys.counts("attention.head_count_kv")?.iter().map(kind).collect();
    Ok(with(latent_sizes(keys)?, json!({"layer_types": kinds})))
}

/// Tensors of a layer with decays, and their names in programs.
const SHARED: [(&str, &str); 13] = [
    ("attn_q.weight", "q_proj.weight"),
    ("attn_k.weight", "k_proj.weight"),
    ("attn_v.weight", "v_proj.weight"),
    ("attn_output.weight", "o_proj.weight"),
    ("ssm_conv1d_q.weight", "q_conv1d.weight"),
    ("ssm_conv1d_k.weight", "k_conv1d.weight"),
    ("ssm_conv1d_v.weight", "v_conv1d.weight"),
    ("ssm_beta.weight", "b_proj.weight"),
    ("ssm_f_b.weight", "f_b_proj.weight"),
    ("ssm_g_b.weight", "g_b_proj.weight"),
    ("ssm_a", "A_log"),
    ("ssm_dt.bias", "dt_bias"),
    ("ssm_norm.weight", "o_norm.weight"),
];

/// The file's and the program's names of the tensors of a layer with decays. Whole projections have
/// the file's name of the first of two matrices.
pub(super) fn names(k: &KeyDecay) -> impl Iterator<Item = (&'static str, &'static str)> {
    let first = if k.low_rank {
        [("ssm_f_a.weight", "f_a_proj.weight"), ("ssm_g_a.weight", "g_a_proj.weight")]
    } else {
        [("ssm_f_a.weight", "f_proj.weight"), ("ssm_g_a.weight", "g_proj.weight")]
    };
    SHARED.into_iter().chain(first)
}

/// A stored tensor in the shape that the program reads: files keep the axes of other shapes. Rates
/// are exponentials of the published numbers, negated for gates without a bound.
pub(super) fn as_published(source: CheckpointTensor, part: &str, k: &KeyDecay) -> CheckpointTensor {
    let width = k.heads * k.head_dim;
    let count: usize = source.shape().iter().product();
    match part {
        "ssm_conv1d_q.weight" | "ssm_conv1d_k.weight" | "ssm_conv1d_v.weight" if count == width * k.taps => {
            source.with_shape(vec![width, 1, k.taps])
        }
        "ssm_a" if count == k.heads => {
            let source = source.with_shape(vec![k.heads]);
            if k.lower_bound.is_some() { source.exponential() } else { source.negated_exponential() }
        }
        _ => source,
    }
}
