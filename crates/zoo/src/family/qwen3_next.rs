//! Qwen3-Next and Qwen 3.5: gated delta nets, gated attention in every fourth layer, and optional
//! experts.

use super::{
    common::{Base, Defaults, layer},
    qwen3::{ExpertDefaults, experts_of, feed_forwards},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, DecoderConfig, DeltaNet, Experts, FeedForward, Gate, Mixer, Norm, NormKind, QkNorm},
};

const DEFAULTS: Defaults =
    Defaults { kv_heads: Some(2), head_dim: Some(256), positions: 32_768, rotary_part: 0.25, ..Defaults::LLAMA };

/// Qwen3-Next. Its delta nets store the rows of their projections by key head.
pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = read(f, &DEFAULTS)?;
    f.expect_bool("use_sliding_window", false)?;
    let experts = shared_experts(f, &base, &ExpertDefaults { count: 512, chosen: 10, width: 512, normalized: true }, 512)?;
    let feeds = feed_forwards(f, &base, &experts)?;
    build(f, &base, "qwen3_next", feeds)
}

/// Qwen 3.5 without experts.
pub(super) fn dense(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = read(f, &Defaults { kv_heads: Some(4), ..DEFAULTS })?;
    no_dense_layers(f)?;
    let mlp = base.mlp(f)?;
    let feeds = vec![mlp.into(); base.layers];
    build(f, &base, "qwen3_5", feeds)
}

/// Qwen 3.5 with experts.
pub(super) fn experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = read(f, &DEFAULTS)?;
    // Weights are always normalized, and some configs state it.
    f.expect_bool("norm_topk_prob", true)?;
    f.size_opt("intermediate_size")?;
    no_dense_layers(f)?;
    let experts = shared_experts(f, &base, &ExpertDefaults { count: 256, chosen: 8, width: 512, normalized: true }, 512)?;
    let feeds = vec![experts.into(); base.layers];
    build(f, &base, "qwen3_5_moe", feeds)
}

fn read(f: &Fields<'_>, defaults: &Defaults) -> Result<Base> {
    if f.text("output_gate_type")?.is_some_and(|kind| !matches!(kind, "silu" | "swish")) {
        return Err(f.error("output_gate_type", "silu or swish"));
    }
    let base = Base::read(f, defaults)?;
    Ok(Base { norm: Norm { kind: NormKind::RmsPlusOne, ..base.norm }, ..base })
}

/// Layers of Qwen 3.5 are all dense, or all have experts.
fn no_dense_layers(f: &Fields<'_>) -> Result<()> {
    if f.ints("mlp_only_layers")?.is_empty() { Ok(()) } else { Err(f.error("mlp_only_layers", "an empty list")) }
}

/// Experts beside a shared gated layer with a separate gate.
pub(super) fn shared_experts(f: &Fields<'_>, base: &Base, defaults: &ExpertDefaults, shared: usize) -> Result<Experts> {
    let shared = base.mlp_of(f.size_or("shared_expert_intermediate_size", shared)?, "shared_expert");
    Ok(Experts { shared: Some(shared), shared_gate: Some("shared_expert_gate"), ..experts_of(f, base, defaults)? })
}

fn build(f: &Fields<'_>, base: &Base, family: &'static str, feeds: Vec<FeedForward>) -> Result<DecoderConfig> {
    let interval = f.size_or("full_attention_interval", 4)?;
    let kinds = base.layer_types(f, |i| if (i + 1).is_multiple_of(interval) { "full_attention" } else { "linear_attention" })?;
    let bias = f.bool_or("attention_bias", false)?;
    f.expect_bool("attn_output_gate", true)?;
    let attention = Attention {
        qk_norm: QkNorm::Heads,
        gate: Gate::Queries,
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(Some(rope::read(f, base)?))
    };
    let delta = delta_net(f, base)?;
    let layers = kinds.into_iter().zip(feeds).map(|(kind, feed_forward)| match kind {
        "full_attention" => Ok(layer(attention.clone(), feed_forward)),
        "linear_attention" => Ok(layer(Mixer::DeltaNet(delta.clone()), feed_forward)),
        _ => Err(f.error("layer_types", format!("full_attention and linear_attention, not {kind}"))),
    });
    base.config(f, family, layers.collect::<Result<_>>()?)
}

fn delta_net(f: &Fields<'_>, base: &Base) -> Result<DeltaNet> {
    let (key_heads, value_heads) = (f.size_or("linear_num_key_heads", 16)?, f.size_or("linear_num_value_heads", 32)?);
    if !value_heads.is_multiple_of(key_heads) {
        return Err(f.error("linear_num_value_heads", format!("a multiple of the {key_heads} key heads")));
    }
    Ok(DeltaNet {
        key_heads,
        value_heads,
        key_dim: f.size_or("linear_key_head_dim", 128)?,
        value_dim: f.size_or("linear_value_head_dim", 128)?,
        taps: f.size_or("linear_conv_kernel_dim", 4)?,
        activation: base.activation,
        norm: Norm::rms(base.norm.eps),
        tiled: false,
    })
}
