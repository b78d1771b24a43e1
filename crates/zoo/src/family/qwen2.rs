//! Qwen 2: biases on queries, keys and values; the upper layers may have a window.

use super::{
    common::{Base, Defaults, layer, window, window_of},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, Config},
};

pub(super) const DEFAULTS: Defaults = Defaults { kv_heads: Some(32), positions: 32_768, ..Defaults::LLAMA };

pub(super) fn config(f: &Fields<'_>) -> Result<Config> {
    let base = Base::read(f, &DEFAULTS)?;
    let attention = Attention { qkv_bias: true.into(), ..base.attention(Some(rope::read(f, &base)?)) };
    let (mlp, windows) = (base.mlp(f)?, windows(f, &base)?);
    let layers = windows.into_iter().map(|window| layer(Attention { window, ..attention.clone() }, mlp));
    base.config(f, "qwen2", layers.collect())
}

/// The window of each layer. Configs carry one even where it is switched off.
pub(super) fn windows(f: &Fields<'_>, base: &Base) -> Result<Vec<Option<usize>>> {
    let (window, first) = (switched_window(f)?, f.count_or("max_window_layers", 28)?);
    let kinds = base.layer_types(f, |i| if window.is_some() && i >= first { "sliding_attention" } else { "full_attention" })?;
    kinds.into_iter().map(|kind| window_of(kind, window, f)).collect()
}

/// The window, if it is switched on.
pub(super) fn switched_window(f: &Fields<'_>) -> Result<Option<usize>> {
    let on = f.bool_or("use_sliding_window", false)?;
    Ok(window(f, Some(4096))?.filter(|_| on))
}
