//! Granite: Llama with factors on the embedding, the scores, what layers add, and a divisor of the logits.

use super::{
    common::{Base, Defaults, layer},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, Config, Layer, Mlp},
};

pub(super) fn config(f: &Fields<'_>) -> Result<Config> {
    let base = Base::read(f, &Defaults::LLAMA)?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention {
        scale: f.positive_or("attention_multiplier", 1.0)?,
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    let layer = Layer { residual: f.positive_or("residual_multiplier", 1.0)?, ..layer(attention, mlp) };
    Ok(Config {
        embedding_scale: f.positive_or("embedding_multiplier", 1.0)?,
        logits_divisor: f.positive_or("logits_scaling", 1.0)?,
        ..base.config(f, "granite", vec![layer; base.layers])?
    })
}
