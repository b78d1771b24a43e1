//! Qwen 3: queries and keys normalized per head, and optional experts.

use super::{
    common::{Base, Defaults, layer},
    qwen2, rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, DecoderConfig, ExpertLayout, Experts, FeedForward, QkNorm, Router},
};

const DENSE: Defaults = Defaults { head_dim: Some(128), ..qwen2::DEFAULTS };

/// Base of the rotary frequencies of Qwen3-VL.
const VISION_THETA: f64 = 500_000.0;

pub(super) fn dense(f: &Fields<'_>) -> Result<DecoderConfig> {
    dense_of(f, &DENSE)
}

/// The text part of Qwen3-VL.
pub(super) fn vision(f: &Fields<'_>) -> Result<DecoderConfig> {
    dense_of(f, &Defaults { theta: VISION_THETA, positions: 128_000, ..DENSE })
}

fn dense_of(f: &Fields<'_>, defaults: &Defaults) -> Result<DecoderConfig> {
    let base = Base::read(f, defaults)?;
    let attention = attention(f, &base)?;
    let (mlp, windows) = (base.mlp(f)?, qwen2::windows(f, &base, 28)?);
    let layers = windows.into_iter().map(|window| layer(Attention { window, ..attention.clone() }, mlp));
    base.config(f, "qwen3", layers.collect())
}

pub(super) fn experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = ExpertDefaults { count: 128, chosen: 8, width: 768, normalized: false };
    experts_with(f, &Defaults { kv_heads: Some(4), ..qwen2::DEFAULTS }, &defaults, ExpertLayout::Rows)
}

/// The text part of Qwen3-VL with experts. Its joined matrices are [inputs, outputs].
pub(super) fn vision_experts(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Defaults { kv_heads: Some(16), theta: VISION_THETA, positions: 128_000, ..qwen2::DEFAULTS };
    let defaults = ExpertDefaults { count: 60, chosen: 4, width: 1408, normalized: true };
    let mut config = experts_with(f, &base, &defaults, ExpertLayout::Columns)?;
    for layer in &mut config.layers {
        if let FeedForward::Experts(experts) = &mut layer.feed_forward {
            // The model always divides the weights by their sum.
            experts.router.normalized = Some(0.0);
        }
    }
    Ok(config)
}

fn experts_with(f: &Fields<'_>, base: &Defaults, defaults: &ExpertDefaults, layout: ExpertLayout) -> Result<DecoderConfig> {
    let base = Base::read(f, base)?;
    f.count_or("max_window_layers", 0)?;
    f.expect_bool("qkv_bias", false)?;
    f.expect_bool("use_qk_norm", true)?;
    if f.count_or("shared_expert_intermediate_size", 0)? != 0 {
        return Err(f.error("shared_expert_intermediate_size", "0"));
    }
    let attention = Attention { window: qwen2::switched_window(f)?, ..attention(f, &base)? };
    let experts = Experts { layout, ..experts_of(f, &base, defaults)? };
    let layers = feed_forwards(f, &base, &experts)?.into_iter().map(|feed_forward| layer(attention.clone(), feed_forward));
    base.config(f, "qwen3_moe", layers.collect())
}

/// Defaults of experts.
pub(super) struct ExpertDefaults {
    pub(super) count: usize,
    pub(super) chosen: usize,
    pub(super) width: usize,
    pub(super) normalized: bool,
}

/// Experts with a softmax over all of them.
pub(super) fn experts_of(f: &Fields<'_>, base: &Base, defaults: &ExpertDefaults) -> Result<Experts> {
    let other = f.size_opt("num_local_experts")?;
    let normalized = f.bool_or("norm_topk_prob", defaults.normalized)?;
    Ok(Experts {
        router: Router { normalized: normalized.then_some(0.0), ..Router::SOFTMAX },
        ..base.experts(
            f.size_opt("num_experts")?.or(other).unwrap_or(defaults.count),
            f.size_or("num_experts_per_tok", defaults.chosen)?,
            f.size_or("moe_intermediate_size", defaults.width)?,
        )
    })
}

/// Experts every `decoder_sparse_step` layers, except in `mlp_only_layers`.
pub(super) fn feed_forwards(f: &Fields<'_>, base: &Base, experts: &Experts) -> Result<Vec<FeedForward>> {
    let (step, dense) = (f.size_or("decoder_sparse_step", 1)?, f.ints("mlp_only_layers")?);
    let is_dense = |i: usize| dense.contains(&(i as i64)) || !(i + 1).is_multiple_of(step);
    let width = f.size_opt("intermediate_size")?;
    let mlp = || width.map(|width| base.mlp_of(width, "mlp")).ok_or_else(|| f.error("intermediate_size", "an integer"));
    (0..base.layers).map(|i| if is_dense(i) { Ok(mlp()?.into()) } else { Ok(experts.clone().into()) }).collect()
}

pub(super) fn attention(f: &Fields<'_>, base: &Base) -> Result<Attention> {
    let bias = f.bool_or("attention_bias", false)?;
    let attention = base.attention(Some(rope::read(f, base)?));
    Ok(Attention { qk_norm: QkNorm::Heads, qkv_bias: bias.into(), output_bias: bias, ..attention })
}
