//! Mixtral: experts in every layer.

use super::{
    common::{Base, Defaults, layer, window},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, DecoderConfig, Experts, MlpNames, Router},
};

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(8), positions: 4096 * 32, norm_eps: 1e-5, theta: 1_000_000.0, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let attention = Attention { window: window(f, None)?, ..base.attention(Some(rope::read(f, &base)?)) };
    let other = f.size_opt("num_experts")?;
    let experts = Experts {
        router: Router { normalized: Some(0.0), ..Router::SOFTMAX },
        module: "block_sparse_moe",
        names: MlpNames::NUMBERED,
        ..base.experts(
            f.size_opt("num_local_experts")?.or(other).unwrap_or(8),
            f.size_or("num_experts_per_tok", 2)?,
            f.size("intermediate_size")?,
        )
    };
    base.config(f, "mixtral", vec![layer(attention, experts); base.layers])
}
