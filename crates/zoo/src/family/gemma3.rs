//! Gemma 3, its text part: windows in all layers but every sixth, each kind with its own rotary embedding.

use super::{
    common::{Base, Defaults, layer, window, window_of},
    gemma2, rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::Rope,
    spec::{Attention, Config, Layer, LayerNorms, QkNorm},
};

/// Bases of the rotary frequencies of full and of sliding layers.
const THETA: (f64, f64) = (1_000_000.0, 10_000.0);

pub(super) fn config(f: &Fields<'_>) -> Result<Config> {
    let base = gemma2::read(f, &Defaults { positions: 131_072, ..gemma2::DEFAULTS })?;
    if f.get("attn_logit_softcapping").is_some() {
        return Err(f.error("attn_logit_softcapping", "null"));
    }
    let (window, mlp) = (window(f, Some(4096))?, base.mlp(f)?);
    let attention = Attention { qk_norm: QkNorm::Heads, ..gemma2::attention(f, &base, 256)? };
    let (full, sliding) = ropes(f, &base)?;
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
    Ok(Config { logits_cap: gemma2::cap(f, "final_logit_softcapping", None)?, ..config })
}

/// The rotary embeddings of full and of sliding layers. `rope_scaling` is for full ones alone.
fn ropes(f: &Fields<'_>, base: &Base) -> Result<(Rope, Rope)> {
    let parameters = f.child("rope_parameters")?;
    let of_kind = |kind: &str| parameters.as_ref().map(|p| p.child(kind)).transpose().map(Option::flatten);
    let (full, sliding) = (of_kind("full_attention")?, of_kind("sliding_attention")?);
    let scaling = f.child("rope_scaling")?.filter(|child| !child.is_empty());
    let full = rope::of(f, scaling.or(full).as_ref(), base, THETA.0, base.head_dim)?;
    let local = f.positive_or("rope_local_base_freq", THETA.1)?;
    // The config's own base is that of full layers.
    let theta = sliding.as_ref().map(|s| s.positive_opt("rope_theta")).transpose()?.flatten().unwrap_or(local);
    let sliding = rope::of(f, sliding.as_ref(), base, local, base.head_dim)?;
    Ok((full, Rope { theta, ..sliding }))
}
