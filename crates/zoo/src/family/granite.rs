//! Granite: Llama with factors on the embedding, the scores and the residual additions, and with a
//! divisor of the logits.

use super::{
    common::{Base, Defaults, FULL, SLIDING, layer, window, window_of},
    mamba, rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::Rope,
    spec::{Attention, DecoderConfig, Layer, LayerNorms, Mlp},
};

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults::LLAMA)?;
    decoder(f, &base, "granite", 1.0)
}

/// Granite 3 with experts, also with a shared layer beside them.
pub(super) fn experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    with_experts(f, &Base::read(f, &Defaults::LLAMA)?, "granitemoe")
}

fn with_experts(f: &Fields<'_>, base: &Base, family: &'static str) -> Result<DecoderConfig> {
    let feed_forward = mamba::granite_feed_forward(f, base, 0)?;
    let config = decoder(f, base, family, 1.0)?;
    let layers = config.layers.into_iter().map(|layer| Layer { feed_forward: feed_forward.clone(), ..layer }).collect();
    Ok(DecoderConfig { layers, renames: mamba::GRANITE_NAMES, ..config })
}

/// HyperCLOVA X: norms after each half, and a factor on the logits instead of the divisor.
pub(super) fn hyperclovax(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults::LLAMA)?;
    let config = decoder(f, &base, "hyperclovax", (base.head_dim as f64).sqrt().recip())?;
    let after = f.bool_or("use_post_norm", true)?;
    let name = |name| after.then_some(name);
    let norms = LayerNorms { mixer_out: name("post_norm1"), feed_out: name("post_norm2"), ..LayerNorms::PRE };
    let layers = config.layers.into_iter().map(|layer| Layer { norms, ..layer }).collect();
    Ok(DecoderConfig { layers, logits_divisor: config.logits_divisor.recip(), ..config })
}

/// Granite with windows and sinks. Every fourth layer is full, starting at the first. Each layer
/// has a rotary base, and 0 means no rotation.
pub(super) fn windowed(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { kv_heads: Some(4), norm_eps: 1e-5, tied: true, positions: 8192, ..Defaults::LLAMA })?;
    with_windows(f, &base, decoder(f, &base, "granite_swa", 1.0)?)
}

/// The same with experts.
pub(super) fn windowed_experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults::LLAMA)?;
    with_windows(f, &base, with_experts(f, &base, "granitemoe_swa")?)
}

fn with_windows(f: &Fields<'_>, base: &Base, mut config: DecoderConfig) -> Result<DecoderConfig> {
    let rope = rope::read(f, base)?;
    let bases = f.numbers("layer_rope_theta", base.layers)?;
    let kinds = base.layer_types(f, |i| if i.is_multiple_of(4) { FULL } else { SLIDING })?;
    let window = window(f, Some(128))?;
    for (i, attention) in config.attentions() {
        let theta = bases.as_ref().map_or(rope.theta, |list| list[i]);
        attention.sinks = true;
        attention.window = window_of(kinds[i], window, f)?;
        attention.rope = (theta > 0.0).then(|| Rope { theta, ..rope.clone() });
    }
    Ok(config)
}

fn decoder(f: &Fields<'_>, base: &Base, family: &'static str, scale: f64) -> Result<DecoderConfig> {
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention {
        scale: f.positive_or("attention_multiplier", scale)?,
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(Some(rope::read(f, base)?))
    };
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    let layer = Layer { residual: f.positive_or("residual_multiplier", 1.0)?, ..layer(attention, mlp) };
    Ok(DecoderConfig {
        embedding_scale: f.positive_or("embedding_multiplier", 1.0)?,
        logits_divisor: f.positive_or("logits_scaling", 1.0)?,
        ..base.config(f, family, vec![layer; base.layers])?
    })
}
