//! GLM-4: interleaved rotary embedding, and norms before and after each half. GLM-4.5 adds experts.

use super::{
    common::{Base, Defaults, layer},
    deepseek::{self, ExpertDefaults},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::Rope,
    spec::{Attention, DecoderConfig, Layer, LayerNorms, Mlp, QkNorm},
};

const DEFAULTS: Defaults = Defaults { positions: 131_072, rotary_part: 0.5, ..Defaults::LLAMA };

const NORMS: LayerNorms = LayerNorms {
    mixer_in: Some("input_layernorm"),
    mixer_out: Some("post_self_attn_layernorm"),
    feed_in: Some("post_attention_layernorm"),
    feed_out: Some("post_mlp_layernorm"),
};

pub(super) fn dense(f: &Fields<'_>) -> Result<DecoderConfig> {
    dense_with(f, &Defaults { kv_heads: Some(2), head_dim: Some(128), norm_eps: 1.5625e-7, ..DEFAULTS })
}

fn dense_with(f: &Fields<'_>, defaults: &Defaults) -> Result<DecoderConfig> {
    let base = Base::read(f, defaults)?;
    let rope = Rope { interleaved: true, ..rope::read(f, &base)? };
    let attention = Attention { qkv_bias: f.bool_or("attention_bias", true)?.into(), ..base.attention(Some(rope)) };
    let mlp = Mlp { joined: true, ..base.mlp(f)? };
    let layer = Layer { norms: NORMS, ..layer(attention, mlp) };
    base.config(f, "glm4", vec![layer; base.layers])
}

/// The first GLM-4: one norm before each half.
pub(super) fn glm(f: &Fields<'_>) -> Result<DecoderConfig> {
    let config = dense(f)?;
    let layers = config.layers.into_iter().map(|layer| Layer { norms: LayerNorms::PRE, ..layer }).collect();
    Ok(DecoderConfig { family: "glm", layers, ..config })
}

/// GLM-4.1V's text part.
pub(super) fn vision(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(2), norm_eps: 1e-5, positions: 32_768, rotary_part: 1.0, ..DEFAULTS };
    Ok(DecoderConfig { family: "glm4v", ..dense_with(f, &defaults)? })
}

/// GLM-4.5V's text part.
pub(super) fn vision_experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(8), norm_eps: 1e-5, positions: 65_536, ..DEFAULTS };
    Ok(without_qk_norm(experts_with(f, "glm4v_moe", &defaults, true, 1)?))
}

/// Solar Open: the same experts in every layer; whole heads are rotated.
pub(super) fn solar_open(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults =
        Defaults { kv_heads: Some(8), head_dim: Some(128), norm_eps: 1e-5, theta: 1_000_000.0, rotary_part: 1.0, ..DEFAULTS };
    Ok(without_qk_norm(experts_with(f, "solar_open", &defaults, false, 0)?))
}

/// The model without norms of queries and keys, which it lacks even where its config states them.
fn without_qk_norm(mut config: DecoderConfig) -> DecoderConfig {
    config.attentions().for_each(|(_, attention)| attention.qk_norm = QkNorm::None);
    config
}

pub(super) fn experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    experts_with(f, "glm4_moe", &Defaults { kv_heads: Some(8), norm_eps: 1e-5, ..DEFAULTS }, false, 1)
}

fn experts_with(f: &Fields<'_>, family: &'static str, defaults: &Defaults, bias: bool, dense: usize) -> Result<DecoderConfig> {
    let base = Base::read(f, defaults)?;
    let qk_norm = if f.bool_or("use_qk_norm", false)? { QkNorm::Heads } else { QkNorm::None };
    let attention =
        Attention { qk_norm, qkv_bias: f.bool_or("attention_bias", bias)?.into(), ..base.attention(Some(rope::read(f, &base)?)) };
    let defaults = ExpertDefaults { count: 128, width: 1408, groups: (1, 1), scale: 1.0, dense, ..ExpertDefaults::V3 };
    let feeds = deepseek::feed_forwards(f, &base, &defaults)?;
    base.config(f, family, feeds.into_iter().map(|feed_forward| layer(attention.clone(), feed_forward)).collect())
}
