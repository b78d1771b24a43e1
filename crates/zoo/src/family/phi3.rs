//! Phi-3 and Phi-4 mini: joined projections, partial rotary embedding.

use super::{
    common::{Base, Defaults, layer, window},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::Rope,
    spec::{Attention, DecoderConfig, Joined, Mlp},
};

/// Default context length of the first training.
const ORIGINAL: usize = 4096;

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { positions: ORIGINAL, norm_eps: 1e-5, ..Defaults::LLAMA })?;
    for key in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        f.expect_bool(key, false)?;
    }
    for key in ["full_attn_mod", "interpolate_factor"] {
        f.expect_size(key, 1)?;
    }
    let attention = Attention { window: window(f, None)?, joined: Joined::Blocks, ..base.attention(Some(rotary(f, &base)?)) };
    let mlp = Mlp { joined: true, ..base.mlp(f)? };
    base.config(f, "phi3", vec![layer(attention, mlp); base.layers])
}

/// `yarn` means longrope here. The original length is a separate key.
fn rotary(f: &Fields<'_>, base: &Base) -> Result<Rope> {
    let child = rope::description(f)?;
    if let Some(child) = &child {
        child.get("original_max_position_embeddings");
    }
    let kind = match child.as_ref().map(rope::kind).transpose()?.unwrap_or("default") {
        "yarn" => "longrope",
        kind => kind,
    };
    let original = f.size_or("original_max_position_embeddings", ORIGINAL)? as f64;
    rope::ruled(f, child.as_ref(), base, (base.defaults.theta, base.head_dim), (kind, original))
}
