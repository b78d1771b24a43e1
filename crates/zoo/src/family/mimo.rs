//! MiMo V2 Flash: narrower values than keys, more heads of keys and sinks in layers with windows,
//! and DeepSeek V3's router.

use super::{
    common::{Base, Defaults, FULL, SLIDING, by_kind, layer, window},
    deepseek, rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::Rope,
    spec::{Attention, DecoderConfig, FeedForward},
};

/// Bases of the rotary frequencies of full and of sliding layers.
const THETA: (f64, f64) = (5_000_000.0, 10_000.0);

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let published = f.get("layernorm_epsilon").is_some();
    let defaults = Defaults {
        kv_heads: Some(4),
        head_dim: Some(192),
        positions: 131_072,
        norm_eps: 1e-5,
        norm_key: if published { "layernorm_epsilon" } else { "rms_norm_eps" },
        rotary_part: 0.334,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    let kinds = match switches(f, "hybrid_layer_pattern", base.layers)? {
        Some(slides) => slides.into_iter().map(|slides| if slides { SLIDING } else { FULL }).collect(),
        None => base.layer_types(f, |i| if i == 0 || (i + 1).is_multiple_of(6) { FULL } else { SLIDING })?,
    };
    // A stated size counts the positions before the query.
    let window = match f.size_opt("sliding_window_size")? {
        Some(before) => {
            f.get("sliding_window");
            Some(before + 1)
        }
        None => window(f, Some(129))?,
    };
    let (full, sliding) = ropes(f, &base)?;
    let rope = |kind: &str| Some(if kind == FULL { full.clone() } else { sliding.clone() });
    let mut attentions = by_kind(f, kinds, window, &attention(f, &base)?, rope)?;
    let sliding_heads = f.size_or("swa_num_key_value_heads", 2 * base.kv_heads)?;
    if !base.heads.is_multiple_of(sliding_heads) {
        return Err(f.error("swa_num_key_value_heads", format!("a divisor of the {} attention heads", base.heads)));
    }
    let sinks = [f.bool_or("add_full_attention_sink_bias", false)?, f.bool_or("add_swa_attention_sink_bias", true)?];
    for attention in &mut attentions {
        let slides = attention.window.is_some();
        attention.kv_heads = if slides { sliding_heads } else { base.kv_heads };
        attention.sinks = sinks[usize::from(slides)];
    }
    let layers =
        attentions.into_iter().zip(feed_forwards(f, &base)?).map(|(attention, feed_forward)| layer(attention, feed_forward));
    let config = base.config(f, "mimo_v2_flash", layers.collect())?;
    Ok(DecoderConfig { renames: &[(".self_attn.attention_sink_bias", ".self_attn.sinks")], ..config })
}

/// The attention of full layers, without sinks.
fn attention(f: &Fields<'_>, base: &Base) -> Result<Attention> {
    let value_dim = f.size_or("v_head_dim", 128)?;
    if value_dim > base.head_dim {
        return Err(f.error("v_head_dim", format!("at most head_dim {}", base.head_dim)));
    }
    for (key, expected) in [("swa_head_dim", base.head_dim), ("swa_v_head_dim", value_dim), ("swa_num_attention_heads", base.heads)]
    {
        f.expect_size(key, expected)?;
    }
    // The published implementation has no chunks of attention.
    f.get("attention_chunk_size");
    let factor = if f.has_null("attention_value_scale") { 1.0 } else { f.positive_or("attention_value_scale", 0.707)? };
    Ok(Attention {
        value_dim: Some(value_dim),
        factors: [1.0, factor],
        qkv_bias: f.bool_or("attention_bias", false)?.into(),
        ..base.attention(None)
    })
}

fn ropes(f: &Fields<'_>, base: &Base) -> Result<(Rope, Rope)> {
    let (full, sliding) = rope::by_kind(f, base, THETA)?;
    let theta = f.positive_opt("swa_rope_theta")?.unwrap_or(sliding.theta);
    Ok((full, Rope { theta, ..sliding }))
}

/// A gated layer in the first layer or in listed ones, and experts without a shared one in others.
fn feed_forwards(f: &Fields<'_>, base: &Base) -> Result<Vec<FeedForward>> {
    let defaults =
        deepseek::ExpertDefaults { count: 256, width: 2048, groups: (1, 1), scale: 1.0, dense: 1, ..deepseek::ExpertDefaults::V3 };
    let experts = crate::spec::Experts { shared: None, ..deepseek::experts(f, base, &defaults)? };
    let sparse = switches(f, "moe_layer_freq", base.layers)?;
    deepseek::dense_where(f, base, |i| sparse.as_ref().map_or(i == 0, |sparse| !sparse[i]), experts)
}

/// A switch for each layer, 0 or 1. Longer lists go on with layers that predict further tokens.
fn switches(f: &Fields<'_>, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
    let list = f.ints(key)?;
    match list.len() {
        0 => Ok(None),
        found if found < layers => Err(f.error(key, format!("a list of {layers} integers"))),
        _ => Ok(Some(list[..layers].iter().map(|&switch| switch != 0).collect())),
    }
}
