//! OLMo 2: norms after either half only; queries and keys normalized over all heads together.

use super::{
    common::{Base, Defaults, layer},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, Config, Layer, LayerNorms, QkNorm},
};

pub(super) fn config(f: &Fields<'_>) -> Result<Config> {
    let base = Base::read(f, &Defaults { norm_eps: 1e-5, ..Defaults::LLAMA })?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = base.attention(Some(rope::read(f, &base)?));
    let attention = Attention { qk_norm: QkNorm::Whole, qkv_bias: bias.into(), output_bias: bias, ..attention };
    let norms = LayerNorms { mixer_in: None, feed_in: None, ..LayerNorms::SANDWICH };
    let layer = Layer { norms, ..layer(attention, base.mlp(f)?) };
    base.config(f, "olmo2", vec![layer; base.layers])
}
