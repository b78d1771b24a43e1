//! Mixtral: experts in every layer.

use super::{
    common::{Base, Defaults, layer, window},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, Config, ExpertLayout, Experts, MlpNames, Router},
};

pub(super) fn config(f: &Fields<'_>) -> Result<Config> {
    let defaults = Defaults { kv_heads: Some(8), positions: 4096 * 32, norm_eps: 1e-5, theta: 1_000_000.0, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let attention = Attention { window: window(f, None)?, ..base.attention(Some(rope::read(f, &base)?)) };
    let other = f.size_opt("num_experts")?;
    let experts = Experts {
        count: f.size_opt("num_local_experts")?.or(other).unwrap_or(8),
        chosen: f.size_or("num_experts_per_tok", 2)?,
        width: f.size("intermediate_size")?,
        activation: base.activation,
        router: Router { normalized: Some(0.0), ..Router::SOFTMAX },
        latent: None,
        shared: None,
        shared_gate: None,
        module: "block_sparse_moe",
        names: MlpNames::NUMBERED,
        bias: false,
        gated: true,
        weighted_input: false,
        layout: ExpertLayout::Rows,
    };
    base.config(f, "mixtral", vec![layer(attention, experts); base.layers])
}
