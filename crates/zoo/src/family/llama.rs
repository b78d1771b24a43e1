//! Llama and Mistral: the plain decoder.

use super::{
    common::{Base, Defaults, layer, window},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, Config, Mlp},
};

pub(super) fn config(f: &Fields<'_>) -> Result<Config> {
    let base = Base::read(f, &Defaults::LLAMA)?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope::read(f, &base)?)) };
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    base.config(f, "llama", vec![layer(attention, mlp); base.layers])
}

/// A window in every layer.
pub(super) fn mistral(f: &Fields<'_>) -> Result<Config> {
    let base = Base::read(f, &Defaults { kv_heads: Some(8), positions: 4096 * 32, ..Defaults::LLAMA })?;
    let attention = Attention { window: window(f, Some(4096))?, ..base.attention(Some(rope::read(f, &base)?)) };
    base.config(f, "mistral", vec![layer(attention, base.mlp(f)?); base.layers])
}
