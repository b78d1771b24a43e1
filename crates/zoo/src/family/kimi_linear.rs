//! Kimi Linear and Ling's hybrids: a delta rule with decay per element, and attention over latent
//! vectors in some layers.

use super::{
    common::{Base, Defaults, FULL, layer},
    deepseek::{self, ExpertDefaults, LatentDefaults},
    mixtral::BLOCK_SPARSE,
};
use crate::{
    Result,
    fields::Fields,
    spec::{DecoderConfig, FeedForward, KeyDecay, Latent, Mixer},
};

/// Kimi Linear: latent attention without a rotary embedding.
pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        norm_eps: 1e-5,
        keys: &[("max_position_embeddings", "model_max_length")],
        positions: 1 << 20,
        ..Defaults::LLAMA
    };
    let (base, latent) = deepseek::latent(f, &defaults, &LatentDefaults::V3)?;
    f.expect_bool("mla_use_nope", true)?;
    f.expect_bool("use_grouped_topk", true)?;
    f.expect_text("moe_router_activation_func", "sigmoid")?;
    let latent = Latent { rope: None, ..latent };
    let linear = f.child("linear_attn_config")?;
    // Newer configs have the sizes at the top.
    let size = |key: &str, other: &str, default| {
        let default = f.size_or(other, default)?;
        linear.as_ref().map_or(Ok(default), |child| child.size_or(key, default))
    };
    let decay = KeyDecay {
        heads: size("num_heads", "linear_num_heads", 32)?,
        head_dim: size("head_dim", "linear_head_dim", 128)?,
        taps: size("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?,
        activation: base.activation,
        lower_bound: None,
        low_rank: true,
        norm: base.norm,
    };
    let listed = linear.as_ref().map(|child| child.ints("full_attn_layers")).transpose()?;
    if let Some(child) = &linear {
        child.ints("kda_layers")?;
    }
    // Lists count layers from 1.
    let kinds = f.texts("layer_types", base.layers)?;
    let full = |i: usize| match (&kinds, &listed) {
        (Some(kinds), _) => kinds[i] == FULL,
        (None, Some(list)) => list.contains(&(i as i64 + 1)),
        (None, None) => i > 0 && i.is_multiple_of(4),
    };
    let defaults = ExpertDefaults { count: 256, width: 1024, groups: (1, 1), scale: 2.446, dense: 1, ..ExpertDefaults::V3 };
    let feeds = deepseek::feed_forwards(f, &base, &defaults)?;
    Ok(DecoderConfig { renames: BLOCK_SPARSE, ..hybrid(f, &base, "kimi_linear", (full, latent, decay), feeds)? })
}

/// Ling's hybrid: latent attention with one gate per head, and decays with a lower bound.
pub(super) fn bailing(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        keys: &[("max_position_embeddings", "model_max_length")],
        positions: 262_144,
        theta: 6_000_000.0,
        ..Defaults::LLAMA
    };
    let (base, latent) = deepseek::latent(f, &defaults, &LatentDefaults::V3)?;
    let latent = Latent { gate: Some("g_proj"), ..latent };
    let bounded = f.bool_or("kda_safe_gate", true)?;
    let bound = f.get("kda_lower_bound").and_then(serde_json::Value::as_f64).unwrap_or(-5.0);
    let decay = KeyDecay {
        heads: base.heads,
        head_dim: f.size_or("head_dim", 128)?,
        taps: f.size_or("short_conv_kernel_size", 4)?,
        activation: base.activation,
        lower_bound: bounded.then_some(bound),
        low_rank: false,
        norm: base.norm,
    };
    f.magnitude_opt("mtp_loss_scaling_factor")?;
    let group = f.size_or("layer_group_size", 6)?;
    let kinds = f.texts("layer_types", base.layers)?;
    let full = |i: usize| kinds.as_ref().map_or((i + 1).is_multiple_of(group), |kinds| kinds[i] == FULL);
    let defaults = ExpertDefaults { count: 512, width: 768, groups: (8, 4), scale: 2.5, dense: 2, ..ExpertDefaults::V3 };
    let feeds = deepseek::feed_forwards(f, &base, &defaults)?;
    let renames = &[
        ("model.word_embeddings.", "model.embed_tokens."),
        (".attention.dense.", ".self_attn.o_proj."),
        (".attention.", ".self_attn."),
        (".mlp.gate.expert_bias", ".mlp.gate.e_score_correction_bias"),
    ];
    Ok(DecoderConfig { renames, ..hybrid(f, &base, "bailing_hybrid", (full, latent, decay), feeds)? })
}

fn hybrid(
    f: &Fields<'_>,
    base: &Base,
    family: &'static str,
    (full, latent, decay): (impl Fn(usize) -> bool, Latent, KeyDecay),
    feeds: Vec<FeedForward>,
) -> Result<DecoderConfig> {
    let mixer = |i: usize| match full(i) {
        true => Mixer::Latent(Box::new(latent.clone())),
        false => Mixer::KeyDecay(Box::new(decay.clone())),
    };
    let config =
        base.config(f, family, feeds.into_iter().enumerate().map(|(i, feed_forward)| layer(mixer(i), feed_forward)).collect())?;
    // The head has its own weights, whatever the config states.
    Ok(DecoderConfig { tied: None, ..config })
}
