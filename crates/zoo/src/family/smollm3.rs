//! SmolLM3: Llama without a rotary embedding in some layers.

use super::{
    common::{Base, Defaults, layer, window, window_of},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, DecoderConfig, Mlp},
};

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(4), positions: 32_768, tied: true, theta: 2_000_000.0, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let bias = f.bool_or("attention_bias", false)?;
    let rope = rope::read(f, &base)?;
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    let has_rope = has_rope(f, &base)?;
    // `layer_types` states this instead.
    f.count_or("max_window_layers", 0)?;
    let (stated, on) = (window(f, None)?, f.bool_or("use_sliding_window", false)?);
    let window = stated.filter(|_| on);
    let kinds = base.layer_types(f, |i| if window.is_some() && !has_rope[i] { "sliding_attention" } else { "full_attention" })?;
    let layers = kinds.into_iter().zip(&has_rope).map(|(kind, &has_rope)| {
        // Without the switch, the kinds of layers have no effect.
        let window = if on { window_of(kind, window, f)? } else { None };
        Ok(layer(Attention { window, rope: has_rope.then(|| rope.clone()), ..attention.clone() }, mlp))
    });
    base.config(f, "smollm3", layers.collect::<Result<_>>()?)
}

/// Whether each layer has a rotary embedding: as listed, or all except every
/// `no_rope_layer_interval`-th.
fn has_rope(f: &Fields<'_>, base: &Base) -> Result<Vec<bool>> {
    let (listed, interval) = (f.ints("no_rope_layers")?, f.size_or("no_rope_layer_interval", 4)?);
    if !listed.is_empty() && listed.len() < base.layers {
        return Err(f.error("no_rope_layers", format!("a list of {} integers", base.layers)));
    }
    let by_rule = |i: usize| !(i + 1).is_multiple_of(interval);
    Ok((0..base.layers).map(|i| listed.get(i).map_or_else(|| by_rule(i), |&has_rope| has_rope != 0)).collect())
}
