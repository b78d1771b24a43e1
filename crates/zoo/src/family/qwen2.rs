//! Qwen 2: biases on queries, keys and values, optional windows in the upper layers, and optional
//! experts.

use super::{
    common::{Base, Defaults, FULL, SLIDING, layer, window, window_of},
    qwen3::{self, ExpertDefaults},
    qwen3_next, rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, DecoderConfig},
};

pub(super) const DEFAULTS: Defaults = Defaults { kv_heads: Some(32), positions: 32_768, ..Defaults::LLAMA };

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    of_defaults(f, &DEFAULTS, 28)
}

/// MiMo: Qwen 2 with layers that predict further tokens. Programs leave these layers out.
pub(super) fn mimo(f: &Fields<'_>) -> Result<DecoderConfig> {
    f.expect_bool("attention_bias", true)?;
    config(f)
}

/// The text part of Qwen2-VL and Qwen2.5-VL.
pub(super) fn vision(f: &Fields<'_>) -> Result<DecoderConfig> {
    of_defaults(f, &Defaults { kv_heads: Some(8), norm_eps: 1e-5, theta: 1_000_000.0, ..DEFAULTS }, 80)
}

/// Layers have a window from layer `first` on, unless the config states another.
fn of_defaults(f: &Fields<'_>, defaults: &Defaults, first: usize) -> Result<DecoderConfig> {
    let base = Base::read(f, defaults)?;
    let attention = Attention { qkv_bias: true.into(), ..base.attention(Some(rope::read(f, &base)?)) };
    let (mlp, windows) = (base.mlp(f)?, windows(f, &base, first)?);
    let layers = windows.into_iter().map(|window| layer(Attention { window, ..attention.clone() }, mlp));
    base.config(f, "qwen2", layers.collect())
}

/// Experts with a softmax router, beside a shared layer with a separate gate.
pub(super) fn experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { kv_heads: Some(16), ..DEFAULTS })?;
    let bias = f.bool_or("qkv_bias", true)?;
    let attention = Attention { qkv_bias: bias.into(), ..base.attention(Some(rope::read(f, &base)?)) };
    // Every other of the lower layers may have a window.
    let (window, last) = (switched_window(f)?, f.count_or("max_window_layers", 28)?);
    let windowed = |i: usize| i.is_multiple_of(2) && i < last && window.is_some();
    let kinds = base.layer_types(f, |i| if windowed(i) { SLIDING } else { FULL })?;
    let windows = kinds.into_iter().map(|kind| window_of(kind, window, f)).collect::<Result<Vec<_>>>()?;
    let defaults = ExpertDefaults { count: 60, chosen: 4, width: 1408, normalized: false };
    let experts = qwen3_next::shared_experts(f, &base, &defaults, 5632)?;
    let feeds = qwen3::feed_forwards(f, &base, &experts)?;
    let layers =
        windows.into_iter().zip(feeds).map(|(window, feed_forward)| layer(Attention { window, ..attention.clone() }, feed_forward));
    base.config(f, "qwen2_moe", layers.collect())
}

/// The window of each layer. Configs state a window even if it is disabled.
/// Without a list, layers have it from `first` on.
pub(super) fn windows(f: &Fields<'_>, base: &Base, first: usize) -> Result<Vec<Option<usize>>> {
    let (window, first) = (switched_window(f)?, f.count_or("max_window_layers", first)?);
    let kinds = base.layer_types(f, |i| if window.is_some() && i >= first { "sliding_attention" } else { "full_attention" })?;
    kinds.into_iter().map(|kind| window_of(kind, window, f)).collect()
}

/// The window, if it is enabled.
pub(super) fn switched_window(f: &Fields<'_>) -> Result<Option<usize>> {
    let on = f.bool_or("use_sliding_window", false)?;
    Ok(window(f, Some(4096))?.filter(|_| on))
}
