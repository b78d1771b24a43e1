//! Llama, Mistral and Ministral 3: the plain decoder.

use super::{
    common::{Base, Defaults, layer, window},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::{Rope, Scaling},
    spec::{Attention, DecoderConfig, Mlp, Temperature},
};

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults::LLAMA)?;
    let bias = f.bool_or("attention_bias", false)?;
    f.expect_bool("rope_interleaved", false)?;
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope::read(f, &base)?)) };
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    base.config(f, "llama", vec![layer(attention, mlp); base.layers])
}

/// Mistral with query factors that grow with the position.
pub(super) fn ministral3(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 262_144,
        norm_eps: 1e-5,
        theta: 1_000_000.0,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    let plain = rope::read(f, &base)?;
    let (rope, temperature) = match rope::description(f)? {
        Some(child) => {
            child.get("max_position_embeddings");
            let beta = child.magnitude_opt("llama_4_scaling_beta")?.filter(|beta| *beta > 0.0);
            let length = child.positive_or("original_max_position_embeddings", LENGTH)?;
            (plain, beta.map(|beta| Temperature { beta, offset: 0, length }))
        }
        None => (Rope { scaling: MINISTRAL, ..plain }, Some(Temperature { beta: 0.1, offset: 0, length: LENGTH })),
    };
    let attention = Attention { window: window(f, None)?, temperature, ..base.attention(Some(rope)) };
    base.config(f, "ministral3", vec![layer(attention, base.mlp(f)?); base.layers])
}

/// Positions of Ministral 3's first training.
const LENGTH: f64 = 16_384.0;

/// Ministral 3's scaling without a description.
const MINISTRAL: Scaling =
    Scaling::Yarn { factor: 16.0, original: LENGTH, beta_fast: 32.0, beta_slow: 1.0, truncate: true, amplitude: 1.0 };

/// A window in every layer.
pub(super) fn mistral(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { kv_heads: Some(8), positions: 4096 * 32, ..Defaults::LLAMA })?;
    let attention = Attention { window: window(f, Some(4096))?, ..base.attention(Some(rope::read(f, &base)?)) };
    base.config(f, "mistral", vec![layer(attention, base.mlp(f)?); base.layers])
}
