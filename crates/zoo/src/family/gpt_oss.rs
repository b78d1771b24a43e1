//! gpt-oss: sinks in every softmax, a window in every other layer, and experts with a clamped gate.

use super::{
    common::{Base, Defaults, layer, window, window_of},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::{Scaling, yarn_amplitude},
    spec::{Activation, Attention, DecoderConfig, ExpertLayout, Experts, Router, Scores},
};

const DEFAULTS: Defaults =
    Defaults { kv_heads: Some(8), head_dim: Some(64), positions: 131_072, norm_eps: 1e-5, theta: 150_000.0, ..Defaults::LLAMA };

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &DEFAULTS)?;
    let bias = f.bool_or("attention_bias", true)?;
    let rope = rope::read_or(f, &base, default_scaling())?;
    let attention = Attention { sinks: true, qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope)) };
    let (window, experts) = (window(f, Some(128))?, experts(f, &base)?);
    // The initial window, and a second name of the number of experts per token.
    f.get("initial_context_length");
    f.get("experts_per_token");
    let kinds = base.layer_types(f, |i| if i.is_multiple_of(2) { "sliding_attention" } else { "full_attention" })?;
    let layers = kinds.into_iter().map(|kind| {
        let attention = Attention { window: window_of(kind, window, f)?, ..attention.clone() };
        Ok(layer(attention, experts.clone()))
    });
    base.config(f, "gpt_oss", layers.collect::<Result<_>>()?)
}

/// The scaling without a description: by 32, from 4096 positions.
fn default_scaling() -> Scaling {
    let (factor, original) = (32.0, 4096.0);
    let amplitude = yarn_amplitude(factor, 1.0);
    Scaling::Yarn { factor, original, beta_fast: 32.0, beta_slow: 1.0, truncate: false, amplitude }
}

fn experts(f: &Fields<'_>, base: &Base) -> Result<Experts> {
    let other = f.size_opt("num_experts")?;
    Ok(Experts {
        activation: Activation::ClampedSwish {
            alpha: f.positive_or("swiglu_alpha", 1.702)?,
            limit: f.positive_or("swiglu_limit", 7.0)?,
        },
        router: Router { module: "router", bias: true, scores: Scores::SoftmaxOfChosen, ..Router::SOFTMAX },
        bias: true,
        layout: ExpertLayout::Alternating,
        ..base.experts(
            f.size_opt("num_local_experts")?.or(other).unwrap_or(128),
            f.size_or("num_experts_per_tok", 4)?,
            f.size("intermediate_size")?,
        )
    })
}
