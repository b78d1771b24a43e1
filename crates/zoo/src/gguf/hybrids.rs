//! Architectures with state space models, with or without attention.

use serde_json::{Value, json};

use super::{
    architecture::{Architecture, KeyNames, PLAIN, sigmoid, with},
    keys::Keys,
};
use crate::Result;

const STATE: KeyNames = &[
    ("ssm.conv_kernel", "conv_kernel"),
    ("ssm.state_size", "state_size"),
    ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
];
/// Keys of Mamba 2 in hybrid models.
const SHARED_STATE: KeyNames = &[
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.group_count", "mamba_n_groups"),
    ("ssm.inner_size", "mamba_d_ssm"),
    ("ssm.time_step_rank", "mamba_n_heads"),
];

pub(super) const HYBRIDS: [Architecture; 7] = [
    Architecture {
        name: "falcon-h1",
        model_type: "falcon_h1",
        keys: &[SHARED_STATE],
        // Factors are already multiplied into the stored weights.
        stated: |keys| {
            let normed = keys.file.has_in_blocks("ssm_norm.weight");
            Ok(json!({"mamba_rms_norm": normed, "mamba_norm_before_gate": false}))
        },
        ..PLAIN
    },
    Architecture {
        name: "granitehybrid",
        model_type: "granitemoehybrid",
        keys: &[
            SHARED_STATE,
            &[
                ("attention.scale", "attention_multiplier"),
                ("embedding_scale", "embedding_multiplier"),
                ("residual_scale", "residual_multiplier"),
                ("logit_scale", "logits_scaling"),
                ("expert_used_count", "num_experts_per_tok"),
            ],
        ],
        stated: granite,
        interleaved: true,
        ..PLAIN
    },
    Architecture {
        name: "jamba",
        model_type: "jamba",
        keys: &[&[
            ("ssm.conv_kernel", "mamba_d_conv"),
            ("ssm.state_size", "mamba_d_state"),
            ("ssm.time_step_rank", "mamba_dt_rank"),
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
        ]],
        stated: jamba,
        ..PLAIN
    },
    Architecture {
        name: "mamba",
        model_type: "mamba",
        keys: &[STATE, &[("ssm.time_step_rank", "time_step_rank")]],
        implied: || json!({}),
        stated: |keys| {
            let family = if keys.bool("ssm.dt_b_c_rms")? == Some(true) { "falcon_mamba" } else { "mamba" };
            Ok(with(alone(keys), json!({"model_type": family, "intermediate_size": keys.size("ssm.inner_size")?})))
        },
        ..PLAIN
    },
    Architecture {
        name: "mamba2",
        model_type: "mamba2",
        keys: &[STATE, &[("ssm.group_count", "n_groups"), ("ssm.time_step_rank", "num_heads")]],
        implied: || json!({}),
        stated: |keys| {
            let (inner, heads) = (keys.size("ssm.inner_size")?, keys.size("ssm.time_step_rank")?);
            if !inner.is_multiple_of(heads) {
                return Err(keys.error("ssm.inner_size", format!("a multiple of the {heads} heads")));
            }
            Ok(with(alone(keys), json!({"head_dim": inner / heads, "intermediate_size": null})))
        },
        ..PLAIN
    },
    Architecture {
        name: "nemotron_h",
        model_type: "nemotron_h",
        keys: &[NEMOTRON_STATE],
        implied: || json!({}),
        stated: |keys| nemotron(keys, "mlp"),
        ..PLAIN
    },
    Architecture {
        name: "nemotron_h_moe",
        model_type: "nemotron_h",
        keys: &[NEMOTRON_STATE, NEMOTRON_EXPERTS],
        implied: || json!({}),
        stated: |keys| {
            sigmoid(keys, true)?;
            nemotron(keys, "moe")
        },
        ..PLAIN
    },
];

const NEMOTRON_STATE: KeyNames = &[
    ("ssm.conv_kernel", "conv_kernel"),
    ("ssm.state_size", "ssm_state_size"),
    ("ssm.group_count", "n_groups"),
    ("ssm.time_step_rank", "mamba_num_heads"),
    ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
];
const NEMOTRON_EXPERTS: KeyNames = &[
    ("expert_count", "n_routed_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("moe_latent_size", "moe_latent_size"),
];

/// Kinds of layers: a layer with key heads is attention, a layer with a width is `feed`, and others
/// are state space models.
fn nemotron(keys: &Keys<'_>, feed_forward: &str) -> Result<Value> {
    let (heads, widths) = (keys.counts("attention.head_count_kv")?, keys.counts("feed_forward_length")?);
    let kinds = heads.iter().zip(&widths).map(|(&heads, &width)| match (heads, width) {
        (1.., _) => "attention",
        (0, 1..) => feed_forward,
        (0, 0) => "mamba",
    });
    let kinds: Vec<&str> = kinds.collect();
    let (inner, state_heads) = (keys.size("ssm.inner_size")?, keys.size("ssm.time_step_rank")?);
    if !inner.is_multiple_of(state_heads) {
        return Err(keys.error("ssm.inner_size", format!("a multiple of the {state_heads} heads")));
    }
    // Its attention has no rotary embedding.
    for name in ["rope.dimension_count", "attention.value_length"] {
        keys.get(name);
    }
    let most = |list: &[usize]| list.iter().copied().max().filter(|&n| n > 0);
    Ok(json!({
        "layers_block_type": kinds, "num_key_value_heads": most(&heads), "intermediate_size": most(&widths), "head_dim": keys.head_dim()?,
        "mamba_head_dim": inner / state_heads, "mlp_hidden_act": "relu2", "rms_norm_eps": null,
    }))
}

/// Kinds of layers: layers without key heads are state space models, and layers with a router have
/// experts. Both kinds return after a fixed number of layers.
fn jamba(keys: &Keys<'_>) -> Result<Value> {
    let heads = keys.counts("attention.head_count_kv")?;
    let (inner, hidden) = (keys.size("ssm.inner_size")?, keys.size("embedding_length")?);
    if !inner.is_multiple_of(hidden) {
        return Err(keys.error("ssm.inner_size", format!("a multiple of the width {hidden}")));
    }
    let attends: Vec<bool> = heads.iter().map(|&heads| heads > 0).collect();
    let routed = |i: usize| keys.file.tensors.contains_key(&format!("blk.{i}.ffn_gate_inp.weight"));
    let sparse: Vec<bool> = (0..heads.len()).map(routed).collect();
    let cycle = |list: &[bool]| cycle(list).ok_or_else(|| keys.error("attention.head_count_kv", "kinds of layers in a cycle"));
    let ((period, offset), (every, from)) = (cycle(&attends)?, cycle(&sparse)?);
    // Its attention has no rotary embedding.
    for name in ["rope.dimension_count", "attention.value_length"] {
        keys.get(name);
    }
    Ok(json!({
        "num_key_value_heads": heads.iter().copied().max().filter(|&heads| heads > 0), "mamba_expand": inner / hidden,
        "head_dim": keys.head_dim()?,
        "attn_layer_period": period, "attn_layer_offset": offset, "expert_layer_period": every, "expert_layer_offset": from,
    }))
}

/// Period and first index of the true elements, if these are all places of a cycle that fills the
/// whole list.
fn cycle(list: &[bool]) -> Option<(usize, usize)> {
    let mut places = list.iter().enumerate().filter_map(|(i, &found)| found.then_some(i));
    let first = places.next().unwrap_or(list.len());
    let period = places.next().map_or(list.len() + 1, |second| second - first);
    let expected = |i: usize| i % period == first % period;
    list.iter().enumerate().all(|(i, &found)| found == expected(i)).then_some((period, first))
}

/// Hides the keys of attention and feed-forward layers, which pure state space models lack.
fn alone(keys: &Keys<'_>) -> Value {
    for name in ["feed_forward_length", "attention.head_count", "attention.head_count_kv"] {
        keys.get(name);
    }
    json!({"num_attention_heads": null, "num_key_value_heads": null, "rms_norm_eps": null})
}

/// Kinds of layers: layers without key heads are state space models.
fn granite(keys: &Keys<'_>) -> Result<Value> {
    let heads = keys.counts("attention.head_count_kv")?;
    let kind = |&heads: &usize| if heads == 0 { "mamba" } else { "attention" };
    let kinds: Vec<_> = heads.iter().map(kind).collect();
    let most = heads.iter().copied().max();
    if heads.iter().any(|&n| n > 0 && Some(n) != most) {
        return Err(keys.error("attention.head_count_kv", "one number for all layers with attention"));
    }
    let (width, count) = (keys.size_opt("feed_forward_length")?, keys.size_opt("expert_count")?);
    let shared = keys.size_opt("expert_shared_feed_forward_length")?.or(width.filter(|_| count.is_none()));
    let rotated = keys.bool("rope.scaling.finetuned")? == Some(true);
    Ok(json!({
        "num_key_value_heads": most.filter(|&n| n > 0), "layer_types": kinds, "num_local_experts": count.unwrap_or(0),
        "intermediate_size": width, "shared_intermediate_size": shared,
        "position_embedding_type": if rotated { "rope" } else { "nope" },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_has_no_gap_before_its_first_place() {
        let list = |places: &[usize]| (0..10).map(|i| places.contains(&i)).collect::<Vec<_>>();
        assert_eq!(cycle(&list(&[1, 3, 5, 7, 9])), Some((2, 1)));
        assert_eq!(cycle(&list(&[4])), Some((11, 4)));
        assert_eq!(cycle(&list(&[])), Some((11, 10)));
        assert_eq!(cycle(&list(&[1, 3, 6])), None);
        // Layers 1 and 3 would fall on this cycle, too.
        assert_eq!(cycle(&list(&[5, 7, 9])), None);
    }
}
