//! LFM2 and LFM3: short convolutions, attention in some layers, and optional experts in the upper
//! layers.

use super::{
    common::{Base, Defaults, FULL, SLIDING, layer, window, window_of},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::{Rope, Scaling},
    spec::{
        Attention, AttentionNames, DecoderConfig, Experts, FeedForward, Gate, Layer, LayerNorms, Mixer, Mlp, MlpNames, QkNorm,
        Router, Scores, ShortConv,
    },
};

const DEFAULTS: Defaults = Defaults {
    kv_heads: Some(8),
    positions: 128_000,
    norm_eps: 1e-5,
    norm_key: "norm_eps",
    tied: true,
    theta: 1_000_000.0,
    ..Defaults::LLAMA
};

const NAMES: AttentionNames =
    AttentionNames { module: "self_attn", output: "out_proj", q_norm: "q_layernorm", k_norm: "k_layernorm" };

const NORMS: LayerNorms =
    LayerNorms { mixer_in: Some("operator_norm"), mixer_out: None, feed_in: Some("ffn_norm"), feed_out: None };

pub(super) fn dense(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &DEFAULTS)?;
    repeated(f, &base)?;
    let stated = f.size_opt("intermediate_size")?;
    let width = match f.size_opt("block_ff_dim")? {
        Some(width) => width,
        None => stated.ok_or_else(|| f.error("intermediate_size", "an integer"))?,
    };
    let feeds = vec![mlp(&base, adjusted(f, width)?).into(); base.layers];
    build(f, &base, "lfm2", feeds)
}

/// Checks redundant keys of older configs against the used keys.
fn repeated(f: &Fields<'_>, base: &Base) -> Result<()> {
    for key in ["block_dim", "conv_dim", "conv_dim_out"] {
        f.expect_size(key, base.hidden)?;
    }
    f.expect_size("num_heads", base.heads)?;
    for key in ["block_use_swiglu", "use_pos_enc"] {
        f.expect_bool(key, true)?;
    }
    match f.positive_opt("block_norm_eps")? {
        Some(eps) if eps != base.norm.eps => Err(f.error("block_norm_eps", format!("{} as norm_eps", base.norm.eps))),
        _ => Ok(()),
    }
}

pub(super) fn experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &DEFAULTS)?;
    let (mlp, dense) = (mlp(&base, f.size("intermediate_size")?), f.count_or("num_dense_layers", 2)?);
    let experts = Experts {
        router: Router {
            scores: Scores::Sigmoid,
            correction: f.bool_or("use_expert_bias", true)?.then_some("expert_bias"),
            normalized: f.bool_or("norm_topk_prob", true)?.then_some(1e-6),
            scale: f.positive_or("routed_scaling_factor", 1.0)?,
            ..Router::SOFTMAX
        },
        module: "feed_forward",
        names: MlpNames::NUMBERED,
        ..base.experts(
            f.size_or("num_experts", 32)?,
            f.size_or("num_experts_per_tok", 4)?,
            f.size_or("moe_intermediate_size", 1792)?,
        )
    };
    let feeds = (0..base.layers).map(|i| if i < dense { mlp.into() } else { experts.clone().into() });
    build(f, &base, "lfm2_moe", feeds.collect())
}

/// LFM3: norms before and after each half, windows in some layers, one gate per head, and a rotary
/// embedding per kind of attention.
pub(super) fn third(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { kv_heads: Some(4), head_dim: Some(128), ..DEFAULTS })?;
    let parameters = f.child("rope_parameters")?;
    let of = |kind: &str, theta: f64| -> Result<Rope> {
        match parameters.as_ref().map(|p| p.child(kind)).transpose()?.flatten() {
            Some(child) => rope::of(f, Some(&child), &base, theta, base.head_dim),
            None if kind == FULL => {
                let scaling = Scaling::Proportional { pairs: base.head_dim / 4, factor: 1.0 };
                Ok(Rope { theta, dims: base.head_dim, interleaved: false, reversed: false, scaling })
            }
            None => rope::of(f, None, &base, theta, base.head_dim),
        }
    };
    let (full, sliding) = (of(FULL, 1_000_000.0)?, of(SLIDING, 10_000.0)?);
    let bias = f.bool_or("attention_bias", false)?;
    let gate = if f.bool_or("use_attention_gate", true)? { Gate::Heads("gate_proj") } else { Gate::None };
    let attention = Attention { qk_norm: QkNorm::Heads, gate, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let conv = ShortConv { taps: f.size_or("conv_L_cache", 7)?, bias: f.bool_or("conv_bias", false)? };
    let window = window(f, Some(256))?;
    let after = f.bool_or("use_sandwich_norm", true)?;
    let norms =
        LayerNorms { mixer_out: after.then_some("post_operator_norm"), feed_out: after.then_some("post_ffn_norm"), ..NORMS };
    let kinds = base.layer_types(f, |i| match i % 4 {
        2 => FULL,
        0 if i > 0 => SLIDING,
        _ => "conv",
    })?;
    let feed_forward = mlp(&base, f.size("intermediate_size")?);
    let layers = kinds.into_iter().map(|kind| {
        let mixer = match kind {
            "conv" => Mixer::ShortConv(conv),
            _ => {
                let rope = if kind == FULL { &full } else { &sliding };
                Attention { window: window_of(kind, window, f)?, rope: Some(rope.clone()), ..attention.clone() }.into()
            }
        };
        Ok(Layer { norms, ..layer(mixer, feed_forward) })
    });
    let config = base.config(f, "lfm3", layers.collect::<Result<_>>()?)?;
    // One release of the model code uses another name for the gate.
    Ok(DecoderConfig { final_norm: Some("embedding_norm"), renames: &[(".self_attn.g_proj.", ".self_attn.gate_proj.")], ..config })
}

fn mlp(base: &Base, width: usize) -> Mlp {
    Mlp { names: MlpNames::NUMBERED, ..base.mlp_of(width, "feed_forward") }
}

/// The width of gated layers: two thirds of the stated width, times a factor, rounded up. This
/// adjustment can be disabled.
fn adjusted(f: &Fields<'_>, width: usize) -> Result<usize> {
    let (factor, multiple) = (f.positive_opt("block_ffn_dim_multiplier")?, f.size_or("block_multiple_of", 256)?);
    if !f.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(width);
    }
    let width = 2 * width / 3;
    let factor = if f.has_null("block_ffn_dim_multiplier") { None } else { Some(factor.unwrap_or(1.0)) };
    Ok(factor.map_or(width, |factor| ((factor * width as f64) as usize).next_multiple_of(multiple)))
}

fn build(f: &Fields<'_>, base: &Base, family: &'static str, feeds: Vec<FeedForward>) -> Result<DecoderConfig> {
    let listed = f.ints("full_attn_idxs")?;
    let attends = |i: usize| f.get("full_attn_idxs").is_none() || listed.contains(&(i as i64));
    let kinds = base.layer_types(f, |i| if attends(i) { "full_attention" } else { "conv" })?;
    let rope = rope::read(f, base)?;
    // The first configs state the base twice.
    if f.positive_opt("theta")?.is_some_and(|theta| theta != rope.theta) {
        return Err(f.error("theta", format!("{} as rope_theta", rope.theta)));
    }
    let attention = Attention { qk_norm: QkNorm::Heads, names: NAMES, ..base.attention(Some(rope)) };
    let conv = ShortConv { taps: f.size_or("conv_L_cache", 3)?, bias: f.bool_or("conv_bias", false)? };
    let layers = kinds.into_iter().zip(feeds).map(|(kind, feed_forward)| {
        let mixer = match kind {
            "full_attention" => attention.clone().into(),
            "conv" => Mixer::ShortConv(conv),
            _ => return Err(f.error("layer_types", format!("full_attention and conv, not {kind}"))),
        };
        Ok(Layer { norms: NORMS, ..layer(mixer, feed_forward) })
    });
    let config = base.config(f, family, layers.collect::<Result<_>>()?)?;
    let tied = f.bool_opt("tie_embedding")?.or(config.tied);
    Ok(DecoderConfig { final_norm: Some("embedding_norm"), tied, ..config })
}
