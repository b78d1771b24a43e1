//! The text part of Gemma 4. Full layers have a separate head size, and their keys may serve as
//! values. The last layers may read caches of earlier layers. Each layer may have its own
//! embeddings, and experts beside its gated layer.

use super::{
    common::{Base, Defaults, layer, window, window_of},
    gemma2, rope,
};
use crate::{
    Error, Result,
    fields::Fields,
    rope::{Rope, Scaling},
    spec::{Attention, DecoderConfig, Experts, FeedForward, Layer, LayerNorms, Mlp, Norm, PerLayer, QkNorm, Router, Values},
};

/// Defaults of the two kinds of configs.
struct Silent {
    positions: usize,
    window: usize,
    /// Width of the per-layer embeddings.
    per_layer: usize,
}

/// The models from E2B to 31B.
pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    read(f, &Silent { positions: 131_072, window: 512, per_layer: 256 })
}

/// The model without encoders of images and audio. Its text part has the same layers.
pub(super) fn unified(f: &Fields<'_>) -> Result<DecoderConfig> {
    read(f, &Silent { positions: 262_144, window: 1024, per_layer: 0 })
}

fn read(f: &Fields<'_>, silent: &Silent) -> Result<DecoderConfig> {
    let base = gemma2::read(f, &Defaults { positions: silent.positions, ..gemma2::DEFAULTS })?;
    let base = Base { norm: Norm::rms(base.norm.eps), ..base };
    let mut kinds = base.layer_types(f, |i| if (i + 1).is_multiple_of(6) { "full_attention" } else { "sliding_attention" })?;
    if let Some(last) = kinds.last_mut() {
        *last = "full_attention";
    }
    let shared = f.count_or("num_kv_shared_layers", 0)?;
    let own = base.layers.checked_sub(shared).filter(|&own| own > 0);
    let own = own.ok_or_else(|| f.error("num_kv_shared_layers", format!("less than the {} layers", base.layers)))?;
    // Configs describe both kinds, also where no layer has one of them.
    for kind in ["full_attention", "sliding_attention"] {
        rotary(f, &base, kind, base.head_dim)?;
    }
    let attentions = kinds.iter().enumerate().map(|(i, kind)| attention(f, &base, i, kind)).collect::<Result<Vec<_>>>()?;
    let (mlp, wide) = (base.mlp(f)?, f.bool_or("use_double_wide_mlp", false)?);
    let (window, experts) = (window(f, Some(silent.window))?, experts(f, &base)?);
    let layers = kinds.iter().zip(attentions).enumerate().map(|(i, (kind, attention))| {
        let values = if i < own { attention.values } else { Values::Layer(donor(f, &kinds[..own], kind)?) };
        let attention = Attention { window: window_of(kind, window, f)?, values, ..attention };
        let mlp = Mlp { width: if wide && i >= own { 2 * mlp.width } else { mlp.width }, ..mlp };
        let feed_forward = match &experts {
            Some(experts) => FeedForward::Both(mlp, Box::new(experts.clone())),
            None => mlp.into(),
        };
        Ok(Layer { norms: LayerNorms::SANDWICH, scalar: true, ..layer(attention, feed_forward) })
    });
    let layers = layers.collect::<Result<_>>()?;
    let config = gemma2::scaled(base.config(f, "gemma4", layers)?);
    Ok(DecoderConfig {
        logits_cap: gemma2::cap(f, "final_logit_softcapping", None)?,
        per_layer: per_layer(f, &base, silent.per_layer)?,
        ..config
    })
}

/// The last layer of a kind with its own cache.
pub(super) fn donor(f: &Fields<'_>, own: &[&str], kind: &str) -> Result<usize> {
    let last = own.iter().rposition(|other| *other == kind);
    last.ok_or_else(|| f.error("num_kv_shared_layers", format!("a layer of type {kind} that does not share")))
}

/// The attention of a layer by its kind.
fn attention(f: &Fields<'_>, base: &Base, layer: usize, kind: &str) -> Result<Attention> {
    let keys_serve = f.bool_or("attention_k_eq_v", false)?;
    let full = kind == "full_attention";
    let (heads, head_dim) = (f.size_opt("num_global_key_value_heads")?.filter(|_| keys_serve), f.size_or("global_head_dim", 512)?);
    let mut sizes = (base.kv_heads, base.head_dim);
    if let Some(layers) = f.child("per_layer_config")? {
        // Newer configs state the sizes only per layer. Some pad layer numbers to the digits of the
        // last layer.
        let key = layers.keys().find(|key| key.parse() == Ok(layer));
        if let Some(own) = key.map(|key| layers.child(key)).transpose()?.flatten() {
            sizes = (own.size_or("num_key_value_heads", sizes.0)?, own.size_or("head_dim", sizes.1)?);
        }
    } else if full {
        sizes = (heads.unwrap_or(base.kv_heads), head_dim);
    }
    let (kv_heads, head_dim) = sizes;
    if !base.heads.is_multiple_of(kv_heads) {
        return Err(f.error("num_global_key_value_heads", format!("a divisor of the {} attention heads", base.heads)));
    }
    let values = if keys_serve && full { Values::Keys } else { Values::Projected };
    let rope = Some(rotary(f, base, kind, head_dim)?);
    let attention = gemma2::attention(f, &Base { kv_heads, head_dim, ..base.clone() }, 1)?;
    Ok(Attention { rope, scale: 1.0, values, qk_norm: QkNorm::Heads, value_norm: true, ..attention })
}

/// The rotary embedding of layers by kind.
fn rotary(f: &Fields<'_>, base: &Base, kind: &str, head_dim: usize) -> Result<Rope> {
    let parameters = f.child("rope_parameters")?;
    if parameters.is_none() && kind == "full_attention" {
        let scaling = Scaling::Proportional { pairs: head_dim / 8, factor: 1.0 };
        return Ok(Rope { theta: 1_000_000.0, dims: head_dim, interleaved: false, reversed: false, scaling });
    }
    let child = parameters.map(|p| p.child(kind)).transpose()?.flatten();
    rope::of(f, child.as_ref(), base, 10_000.0, head_dim)
}

/// Experts beside the gated layer, if enabled. The router reads the residual stream.
fn experts(f: &Fields<'_>, base: &Base) -> Result<Option<Experts>> {
    let (count, chosen) = (f.size_opt("num_experts")?, f.size_opt("top_k_experts")?);
    let width = f.size_opt("moe_intermediate_size")?;
    if !f.bool_or("enable_moe_block", false)? {
        return Ok(None);
    }
    let (Some(count), Some(chosen), Some(width)) = (count, chosen, width) else {
        return Err(Error::key("enable_moe_block", "num_experts, top_k_experts and moe_intermediate_size beside it", "true"));
    };
    Ok(Some(Experts {
        router: Router { module: "router.proj", normalized: Some(0.0), own_norm: true, ..Router::SOFTMAX },
        module: "",
        ..base.experts(count, chosen, width)
    }))
}

pub(super) fn per_layer(f: &Fields<'_>, base: &Base, default: usize) -> Result<Option<PerLayer>> {
    const VOCAB: &str = "vocab_size_per_layer_input";
    let (width, vocab) = (f.count_or("hidden_size_per_layer_input", default)?, f.count_or(VOCAB, 262_144)?);
    match (width, vocab) {
        (0, _) => Ok(None),
        (_, 0) => Err(f.error(VOCAB, "an integer from 1 on, as hidden_size_per_layer_input is above 0")),
        _ => Ok(Some(PerLayer { width, vocab, activation: base.activation })),
    }
}
