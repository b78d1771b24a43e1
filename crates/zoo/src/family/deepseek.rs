//! DeepSeek V2 and V3 and related families: attention over latent vectors, and experts selected by
//! group.

use super::{
    common::{Base, Defaults, layer},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::{Rope, yarn_amplitude},
    spec::{Attention, DecoderConfig, Experts, FeedForward, Latent, Mixer, Norm, Router, Scores},
};

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let (base, latent) = latent(f, &Defaults { positions: 4096, ..Defaults::LLAMA }, &LatentDefaults::V3)?;
    let feeds = feed_forwards(f, &base, &ExpertDefaults::V3)?;
    decoder(f, &base, "deepseek_v3", &latent, feeds)
}

/// GLM-4.7 Flash: the same attention and experts with other defaults.
pub(super) fn glm4_moe_lite(f: &Fields<'_>) -> Result<DecoderConfig> {
    let dims = LatentDefaults { query_rank: 768, plain: 192, value: 256, ..LatentDefaults::V3 };
    let (base, latent) = latent(f, &Defaults { positions: 202_752, norm_eps: 1e-5, ..Defaults::LLAMA }, &dims)?;
    let defaults = ExpertDefaults { count: 64, width: 1536, groups: (1, 1), scale: 1.8, dense: 1, chosen: 4, ..ExpertDefaults::V3 };
    let feeds = feed_forwards(f, &base, &defaults)?;
    decoder(f, &base, "glm4_moe_lite", &latent, feeds)
}

/// DeepSeek V2: a softmax over all experts, without normalized weights. A group's score is the
/// score of its best expert.
pub(super) fn v2(f: &Fields<'_>) -> Result<DecoderConfig> {
    let (base, latent) = latent(f, &Defaults::LLAMA, &LatentDefaults::V3)?;
    f.expect_bool("mlp_bias", false)?;
    f.expect_text("scoring_func", "softmax")?;
    // Models of this family never normalize the weights by their sum.
    f.bool_opt("norm_topk_prob")?;
    let grouped = match f.text("topk_method")?.unwrap_or("greedy") {
        "greedy" => false,
        "group_limited_greedy" => true,
        _ => return Err(f.error("topk_method", "greedy or group_limited_greedy")),
    };
    let (groups, allowed) = (f.size_or("n_group", 1)?, f.size_or("topk_group", 1)?);
    let count = f.size_or("n_routed_experts", 64)?;
    if grouped && (!count.is_multiple_of(groups) || allowed > groups) {
        return Err(f.error("n_group", format!("a divisor of the {count} experts, from topk_group {allowed} on")));
    }
    let (width, shared) = (f.size_or("moe_intermediate_size", 1407)?, f.count_or("n_shared_experts", 2)?);
    let router = Router {
        groups: (grouped && allowed < groups).then_some((groups, allowed)),
        group_best: 1,
        scale: f.positive_or("routed_scaling_factor", 1.0)?,
        wide: true,
        ..Router::SOFTMAX
    };
    let chosen = f.size_or("num_experts_per_tok", 6)?;
    let experts = Experts { router, shared: base.shared_experts(width, shared), ..base.experts(count, chosen, width) };
    let feeds = dense_below(f, &base, 0, experts)?;
    decoder(f, &base, "deepseek_v2", &latent, feeds)
}

/// The first DeepSeek with experts: Llama's attention, a softmax over all experts, and a shared
/// layer.
pub(super) fn first(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { positions: 4096, ..Defaults::LLAMA })?;
    f.expect_text("scoring_func", "softmax")?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope::read(f, &base)?)) };
    let (count, chosen) = (f.size("n_routed_experts")?, f.size("num_experts_per_tok")?);
    let (width, shared) = (f.size("moe_intermediate_size")?, f.count_or("n_shared_experts", 0)?);
    let router = Router {
        normalized: f.bool_or("norm_topk_prob", false)?.then_some(1e-20),
        scale: f.positive_or("routed_scaling_factor", 1.0)?,
        ..Router::SOFTMAX
    };
    let experts = Experts { router, shared: base.shared_experts(width, shared), ..base.experts(count, chosen, width) };
    let feeds = dense_below(f, &base, 0, experts)?;
    base.config(f, "deepseek", feeds.into_iter().map(|feed| layer(attention.clone(), feed)).collect())
}

/// Youtu: the same attention, and a dense layer in all layers.
pub(super) fn youtu(f: &Fields<'_>) -> Result<DecoderConfig> {
    let (base, latent) = latent(f, &Defaults { positions: 131_072, tied: true, ..Defaults::LLAMA }, &LatentDefaults::V3)?;
    let mlp = base.mlp(f)?;
    let feeds = vec![mlp.into(); base.layers];
    decoder(f, &base, "youtu", &latent, feeds)
}

/// MiniCPM 3: the same attention, with rotary partners half a head apart. Factors scale the
/// embedding, the residual additions and the logits.
pub(super) fn minicpm3(f: &Fields<'_>) -> Result<DecoderConfig> {
    let value = (f.size("hidden_size")? / f.size("num_attention_heads")?).max(1);
    let dims = LatentDefaults { query_rank: 768, rank: 256, plain: 64, rotated: 32, value, interleaved: false };
    let defaults = Defaults { positions: 32_768, norm_eps: 1e-5, tied: true, ..Defaults::LLAMA };
    let (base, latent) = latent(f, &defaults, &dims)?;
    f.expect_bool("mlp_bias", false)?;
    // Null means no factor.
    let or_null = |key: &str, default: f64, neutral: f64| f.positive_or(key, if f.has_null(key) { neutral } else { default });
    let root = (base.layers as f64).sqrt();
    let (depth, width) = (or_null("scale_depth", 1.4, root)?, or_null("dim_model_base", 256.0, base.hidden as f64)?);
    let mlp = base.mlp(f)?;
    let feeds = vec![mlp.into(); base.layers];
    let mut config = decoder(f, &base, "minicpm3", &latent, feeds)?;
    for layer in &mut config.layers {
        layer.residual = depth / root;
    }
    Ok(DecoderConfig { embedding_scale: f.positive_or("scale_emb", 12.0)?, logits_divisor: base.hidden as f64 / width, ..config })
}

fn decoder(f: &Fields<'_>, base: &Base, family: &'static str, latent: &Latent, feeds: Vec<FeedForward>) -> Result<DecoderConfig> {
    let layers = feeds.into_iter().map(|feed_forward| layer(Mixer::Latent(Box::new(latent.clone())), feed_forward));
    base.config(f, family, layers.collect())
}

/// Default sizes of the attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatentDefaults {
    pub(super) query_rank: usize,
    pub(super) rank: usize,
    pub(super) plain: usize,
    pub(super) rotated: usize,
    pub(super) value: usize,
    pub(super) interleaved: bool,
}

impl LatentDefaults {
    pub(super) const V3: LatentDefaults =
        LatentDefaults { query_rank: 1536, rank: 512, plain: 128, rotated: 64, value: 128, interleaved: true };
}

pub(super) fn latent(f: &Fields<'_>, defaults: &Defaults, dims: &LatentDefaults) -> Result<(Base, Latent)> {
    let rotated_dim = f.size_or("qk_rope_head_dim", dims.rotated)?;
    // The key refers to heads of the rotary embedding. All heads have separate keys.
    f.size_opt("num_key_value_heads")?;
    let base = Base::read(f, &Defaults { head_dim: Some(rotated_dim), ..*defaults })?;
    let base = Base { head_dim: rotated_dim, ..base };
    let interleaved = f.bool_or("rope_interleave", dims.interleaved)?;
    let rope = Rope { interleaved, ..rope::read(f, &base)? };
    let plain_dim = f.size_or("qk_nope_head_dim", dims.plain)?;
    f.size_opt("qk_head_dim")?;
    let query_rank = if f.has_null("q_lora_rank") { None } else { Some(f.size_or("q_lora_rank", dims.query_rank)?) };
    let latent = Latent {
        heads: base.heads,
        query_rank,
        rank: f.size_or("kv_lora_rank", dims.rank)?,
        plain_dim,
        rotated_dim,
        value_dim: f.size_or("v_head_dim", dims.value)?,
        scale: ((plain_dim + rotated_dim) as f64).sqrt().recip() * magnitude(f)?,
        rope: Some(rope),
        gate: None,
        norm: Norm::rms(1e-6),
        bias: f.bool_or("attention_bias", false)?,
    };
    Ok((base, latent))
}

/// Factor on the scores of a model with a scaled rotary embedding: the square of its magnitude.
fn magnitude(f: &Fields<'_>) -> Result<f64> {
    let Some(child) = rope::description(f)?.filter(|c| rope::kind(c).is_ok_and(|kind| kind != "default")) else { return Ok(1.0) };
    let all = child.magnitude_opt("mscale_all_dim")?.filter(|all| *all > 0.0);
    Ok(match all {
        Some(all) => yarn_amplitude(child.positive("factor")?, all).powi(2),
        None => 1.0,
    })
}

/// Defaults of experts.
pub(super) struct ExpertDefaults {
    pub(super) count: usize,
    pub(super) width: usize,
    /// Number of groups of experts, and of groups that may be selected.
    pub(super) groups: (usize, usize),
    pub(super) scale: f64,
    /// Number of leading layers without experts.
    pub(super) dense: usize,
    pub(super) chosen: usize,
    /// Whether the chosen weights are divided by their sum.
    pub(super) normalized: bool,
}

impl ExpertDefaults {
    /// DeepSeek V3.
    pub(super) const V3: ExpertDefaults =
        ExpertDefaults { count: 256, width: 2048, groups: (8, 4), scale: 2.5, dense: 3, chosen: 8, normalized: true };
}

/// A gated layer in the first layers, then experts with a sigmoid router and shared experts. The
/// router's correction affects only the selection.
pub(super) fn feed_forwards(f: &Fields<'_>, base: &Base, defaults: &ExpertDefaults) -> Result<Vec<FeedForward>> {
    let experts = experts(f, base, defaults)?;
    dense_below(f, base, defaults.dense, experts)
}

/// Experts from a configured layer on, or in the listed layers.
fn dense_below(f: &Fields<'_>, base: &Base, dense: usize, experts: Experts) -> Result<Vec<FeedForward>> {
    let dense = f.count_or("first_k_dense_replace", dense)?;
    if f.size_or("moe_layer_freq", 1)? != 1 {
        return Err(f.error("moe_layer_freq", "1"));
    }
    dense_where(f, base, |i| i < dense, experts)
}

/// A gated layer in the listed layers or, without a list, in those that `by_rule` selects. Experts
/// in the others.
pub(super) fn dense_where(
    f: &Fields<'_>,
    base: &Base,
    by_rule: impl Fn(usize) -> bool,
    experts: Experts,
) -> Result<Vec<FeedForward>> {
    let listed = f.texts("mlp_layer_types", base.layers)?;
    let is_dense = |i: usize| listed.as_ref().map_or_else(|| by_rule(i), |kinds| kinds[i] == "dense");
    // A model with experts in all layers may state no width.
    let mlp = if (0..base.layers).any(is_dense) { Some(base.mlp(f)?) } else { f.size_opt("intermediate_size")?.and(None) };
    Ok((0..base.layers).map(|i| mlp.filter(|_| is_dense(i)).map_or_else(|| experts.clone().into(), FeedForward::Mlp)).collect())
}

pub(super) fn experts(f: &Fields<'_>, base: &Base, defaults: &ExpertDefaults) -> Result<Experts> {
    // Some configs state the method under the function's key.
    if f.text("scoring_func")?.is_some_and(|found| !["sigmoid", "noaux_tc"].contains(&found)) {
        return Err(f.error("scoring_func", "sigmoid"));
    }
    f.expect_text("topk_method", "noaux_tc")?;
    let (groups, allowed) = (f.size_or("n_group", defaults.groups.0)?, f.size_or("topk_group", defaults.groups.1)?);
    let other = f.size_opt("num_local_experts")?;
    let plain = f.size_opt("num_experts")?;
    let groups = f.size_opt("num_expert_group")?.unwrap_or(groups);
    let count = f.size_opt("n_routed_experts")?.or(other).or(plain).unwrap_or(defaults.count);
    if !count.is_multiple_of(groups) || (groups > 1 && count / groups < 2) {
        return Err(f.error("n_group", format!("groups of at least two of the {count} experts")));
    }
    if allowed > groups {
        return Err(f.error("topk_group", format!("at most the {groups} groups")));
    }
    let width = f.size_or("moe_intermediate_size", defaults.width)?;
    let other = f.get("num_shared_experts").is_some();
    let shared = f.count_or(if other { "num_shared_experts" } else { "n_shared_experts" }, 1)?;
    let router = Router {
        scores: Scores::Sigmoid,
        correction: Some("gate.e_score_correction_bias"),
        groups: (allowed < groups).then_some((groups, allowed)),
        normalized: f.bool_opt("moe_renormalize")?.unwrap_or(f.bool_or("norm_topk_prob", defaults.normalized)?).then_some(1e-20),
        scale: f.positive_or("routed_scaling_factor", defaults.scale)?,
        wide: true,
        ..Router::SOFTMAX
    };
    let other = f.size_opt("num_experts_per_token")?;
    let chosen = other.unwrap_or(f.size_or("num_experts_per_tok", defaults.chosen)?);
    Ok(Experts { router, shared: base.shared_experts(width, shared), ..base.experts(count, chosen, width) })
}
