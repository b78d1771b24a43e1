//! Gemma 2: norms before and after each half, capped scores and logits, and a window in every other
//! layer.

use super::{
    common::{Base, Defaults, layer, window, window_of},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Activation, Attention, DecoderConfig, Layer, LayerNorms, Mlp, Norm, NormKind},
};

pub(super) const DEFAULTS: Defaults = Defaults {
    kv_heads: Some(4),
    head_dim: Some(256),
    positions: 8192,
    activation_key: "hidden_activation",
    tied: true,
    ..Defaults::LLAMA
};

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = read(f, &DEFAULTS)?;
    let (window, mlp) = (window(f, Some(4096))?, base.mlp(f)?);
    let attention = Attention { cap: cap(f, "attn_logit_softcapping", Some(50.0))?, ..attention(f, &base, 256)? };
    let attention = Attention { rope: Some(rope::read(f, &base)?), ..attention };
    let kinds = base.layer_types(f, |i| if i.is_multiple_of(2) { "sliding_attention" } else { "full_attention" })?;
    let layers = kinds.into_iter().map(|kind| {
        let attention = Attention { window: window_of(kind, window, f)?, ..attention.clone() };
        Ok(Layer { norms: LayerNorms::SANDWICH, ..layer(attention, mlp) })
    });
    let layers = layers.collect::<Result<_>>()?;
    Ok(DecoderConfig { logits_cap: cap(f, "final_logit_softcapping", Some(30.0))?, ..scaled(base.config(f, "gemma2", layers)?) })
}

/// The first Gemma: one norm before each half, no caps, no windows. `gelu` in old configs means the
/// tanh approximation.
pub(super) fn first(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = read(
        f,
        &Defaults { kv_heads: Some(16), activation_key: "hidden_act", activation: Some(Activation::GeluTanh), ..DEFAULTS },
    )?;
    f.get("hidden_activation");
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope::read(f, &base)?)) };
    let activation = if base.activation == Activation::GeluErf { Activation::GeluTanh } else { base.activation };
    let mlp = Mlp { activation, ..base.mlp(f)? };
    Ok(scaled(base.config(f, "gemma", vec![layer(attention, mlp); base.layers])?))
}

/// VaultGemma: Gemma 2 without norms after each half.
pub(super) fn vault(f: &Fields<'_>) -> Result<DecoderConfig> {
    let config = config(f)?;
    let norms = LayerNorms { mixer_out: None, feed_out: None, ..LayerNorms::SANDWICH };
    let layers = config.layers.into_iter().map(|layer| Layer { norms, ..layer }).collect();
    Ok(DecoderConfig { family: "vaultgemma", layers, ..config })
}

/// Reads the base config of a decoder, with norm weights stored minus 1. Bidirectional attention is
/// refused, except between image tokens, which text does not have.
pub(super) fn read(f: &Fields<'_>, defaults: &Defaults) -> Result<Base> {
    if f.get("use_bidirectional_attention").is_some_and(|v| v != false && v != "vision") {
        return Err(f.error("use_bidirectional_attention", "false or vision"));
    }
    read_any(f, defaults)
}

/// Reads the base config of a decoder or an encoder, with norm weights stored minus 1.
pub(super) fn read_any(f: &Fields<'_>, defaults: &Defaults) -> Result<Base> {
    // Older configs have these keys in addition to the used keys.
    for key in ["hidden_act", "sliding_window_size"] {
        f.get(key);
    }
    let base = Base::read(f, defaults)?;
    Ok(Base { norm: Norm { kind: NormKind::RmsPlusOne, ..base.norm }, ..base })
}

/// Attention with a configured scale.
pub(super) fn attention(f: &Fields<'_>, base: &Base, scale: usize) -> Result<Attention> {
    let bias = f.bool_or("attention_bias", false)?;
    let scale = f.positive_or("query_pre_attn_scalar", scale as f64)?.sqrt().recip();
    Ok(Attention { scale, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) })
}

/// A decoder whose embedding is scaled by the square root of its width. Its residual sums exceed
/// the range of f16.
pub(super) fn scaled(config: DecoderConfig) -> DecoderConfig {
    DecoderConfig { embedding_scale: (config.hidden as f64).sqrt(), fits_f16: false, ..config }
}

/// A cap by tanh. Null means no cap.
pub(super) fn cap(f: &Fields<'_>, key: &str, default: Option<f64>) -> Result<Option<f64>> {
    if f.has_null(key) { Ok(None) } else { Ok(f.positive_opt(key)?.or(default)) }
}
