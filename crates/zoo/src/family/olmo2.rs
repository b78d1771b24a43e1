//! OLMo 2, OLMo 3 and OLMoE: norms only after each half. Queries and keys are normalized over all
//! heads together.

use super::{
    common::{Base, Defaults, FULL, by_kind, full_every, layer, window},
    qwen3::{ExpertDefaults, experts_of},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::{Rope, Scaling},
    spec::{Attention, DecoderConfig, Layer, LayerNorms, QkNorm},
};

/// OLMo 3: windows in three of four layers. The rotary embedding of these layers is never scaled.
pub(super) fn windowed(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { norm_eps: 1e-5, theta: 500_000.0, ..Defaults::LLAMA })?;
    let bias = f.bool_or("attention_bias", false)?;
    let (full, sliding) = match f.child("rope_parameters")? {
        Some(child) if child.get("full_attention").is_some() => rope::by_kind(f, &base, (500_000.0, 500_000.0))?,
        _ => {
            let full = rope::read(f, &base)?;
            (full.clone(), Rope { scaling: Scaling::None, ..full })
        }
    };
    let attention = Attention { qk_norm: QkNorm::Whole, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let kinds = base.layer_types(f, |i| full_every(4, i))?;
    let rope = |kind: &str| Some(if kind == FULL { full.clone() } else { sliding.clone() });
    let attentions = by_kind(f, kinds, window(f, Some(4096))?, &attention, rope)?;
    let mlp = base.mlp(f)?;
    base.config(f, "olmo3", attentions.into_iter().map(|a| Layer { norms: NORMS, ..layer(a, mlp) }).collect())
}

const NORMS: LayerNorms = LayerNorms { mixer_in: None, feed_in: None, ..LayerNorms::SANDWICH };

/// OLMoE: experts, and norms before each half.
pub(super) fn experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { positions: 4096, norm_eps: 1e-5, ..Defaults::LLAMA })?;
    let clip = f.positive_opt("clip_qkv")?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = base.attention(Some(rope::read(f, &base)?));
    let attention = Attention { clip, qk_norm: QkNorm::Whole, qkv_bias: bias.into(), output_bias: bias, ..attention };
    let width = f.size("intermediate_size")?;
    let defaults = ExpertDefaults { count: 64, chosen: 8, width, normalized: false };
    let experts = experts_of(f, &base, &defaults)?;
    base.config(f, "olmoe", vec![layer(attention, experts); base.layers])
}

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { norm_eps: 1e-5, ..Defaults::LLAMA })?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = base.attention(Some(rope::read(f, &base)?));
    let attention = Attention { qk_norm: QkNorm::Whole, qkv_bias: bias.into(), output_bias: bias, ..attention };
    let layer = Layer { norms: NORMS, ..layer(attention, base.mlp(f)?) };
    base.config(f, "olmo2", vec![layer; base.layers])
}
