//! The text part of Gemma 3: windows in all layers except every sixth, and a separate rotary
//! embedding for each kind.

use super::{
    common::{Defaults, layer, window, window_of},
    gemma2, rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, DecoderConfig, Layer, LayerNorms, QkNorm},
};

/// Bases of the rotary frequencies of full and of sliding layers.
const THETA: (f64, f64) = (1_000_000.0, 10_000.0);

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    if f.get("use_bidirectional_attention").is_some_and(|v| !v.is_boolean() && v != "vision") {
        return Err(f.error("use_bidirectional_attention", "a boolean or vision"));
    }
    let base = gemma2::read_any(f, &Defaults { positions: 131_072, ..gemma2::DEFAULTS })?;
    // transformers reads this key and does not apply it.
    if f.get("attn_logit_softcapping").is_some() {
        return Err(f.error("attn_logit_softcapping", "null"));
    }
    let (window, mlp) = (window(f, Some(4096))?, base.mlp(f)?);
    let attention = Attention { qk_norm: QkNorm::Heads, ..gemma2::attention(f, &base, 256)? };
    let (full, sliding) = rope::by_kind(f, &base, THETA)?;
    let pattern = f.size_or("sliding_window_pattern", 6)?;
    let kinds = base.layer_types(f, |i| if (i + 1).is_multiple_of(pattern) { "full_attention" } else { "sliding_attention" })?;
    let layers = kinds.into_iter().map(|kind| {
        let window = window_of(kind, window, f)?;
        let rope = if kind == "full_attention" { &full } else { &sliding };
        let attention = Attention { window, rope: Some(rope.clone()), ..attention.clone() };
        Ok(Layer { norms: LayerNorms::SANDWICH, ..layer(attention, mlp) })
    });
    let layers = layers.collect::<Result<_>>()?;
    let config = gemma2::scaled(base.config(f, "gemma3", layers)?);
    Ok(DecoderConfig { logits_cap: gemma2::cap(f, "final_logit_softcapping", None)?, ..config })
}
