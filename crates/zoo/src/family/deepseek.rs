//! DeepSeek V3: attention over latent vectors, experts chosen group by group.

use super::{
    common::{Base, Defaults, layer},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::{Rope, yarn_amplitude},
    spec::{Config, ExpertLayout, Experts, Feed, Latent, Mixer, MlpNames, Norm, Router, Scores},
};

pub(super) fn config(f: &Fields<'_>) -> Result<Config> {
    let rotated_dim = f.size_or("qk_rope_head_dim", 64)?;
    // The rotary embedding's heads are meant; all heads have keys of their own.
    f.size_opt("num_key_value_heads")?;
    let base = Base::read(f, &Defaults { positions: 4096, head_dim: Some(rotated_dim), ..Defaults::LLAMA })?;
    let base = Base { head_dim: rotated_dim, ..base };
    let latent = latent(f, &base, rotated_dim)?;
    let defaults = ExpertDefaults { count: 256, width: 2048, groups: (8, 4), scale: 2.5, dense: 3 };
    let feeds = feeds(f, &base, &defaults)?;
    let layers = feeds.into_iter().map(|feed| layer(Mixer::Latent(Box::new(latent.clone())), feed));
    base.config(f, "deepseek_v3", layers.collect())
}

fn latent(f: &Fields<'_>, base: &Base, rotated_dim: usize) -> Result<Latent> {
    let interleaved = f.bool_or("rope_interleave", true)?;
    let rope = Rope { interleaved, ..rope::read(f, base)? };
    let plain_dim = f.size_or("qk_nope_head_dim", 128)?;
    f.size_opt("qk_head_dim")?;
    let query_rank = if f.has_null("q_lora_rank") { None } else { Some(f.size_or("q_lora_rank", 1536)?) };
    Ok(Latent {
        heads: base.heads,
        query_rank,
        rank: f.size_or("kv_lora_rank", 512)?,
        plain_dim,
        rotated_dim,
        value_dim: f.size_or("v_head_dim", 128)?,
        scale: ((plain_dim + rotated_dim) as f64).sqrt().recip() * magnitude(f)?,
        rope,
        norm: Norm { eps: 1e-6, plus_one: false },
        bias: f.bool_or("attention_bias", false)?,
    })
}

/// Factor on the scores of a model whose rotary embedding is scaled: the square of its magnitude.
fn magnitude(f: &Fields<'_>) -> Result<f64> {
    let Some(child) = rope::description(f)?.filter(|c| rope::kind(c).is_ok_and(|kind| kind != "default")) else { return Ok(1.0) };
    let all = child.magnitude_opt("mscale_all_dim")?.filter(|all| *all > 0.0);
    Ok(match all {
        Some(all) => yarn_amplitude(child.positive("factor")?, all).powi(2),
        None => 1.0,
    })
}

/// Experts where a config is silent.
pub(super) struct ExpertDefaults {
    pub(super) count: usize,
    pub(super) width: usize,
    /// Groups of experts, and how many may be chosen from.
    pub(super) groups: (usize, usize),
    pub(super) scale: f64,
    /// Layers without experts, from the first on.
    pub(super) dense: usize,
}

/// A gated layer in the first layers, then experts behind a sigmoid whose correction only chooses, beside shared ones.
pub(super) fn feeds(f: &Fields<'_>, base: &Base, defaults: &ExpertDefaults) -> Result<Vec<Feed>> {
    let mlp = base.mlp(f)?;
    let dense = f.count_or("first_k_dense_replace", defaults.dense)?;
    if f.size_or("moe_layer_freq", 1)? != 1 {
        return Err(f.error("moe_layer_freq", "1"));
    }
    let experts = experts(f, base, defaults)?;
    Ok((0..base.layers).map(|i| if i < dense { mlp.into() } else { experts.clone().into() }).collect())
}

fn experts(f: &Fields<'_>, base: &Base, defaults: &ExpertDefaults) -> Result<Experts> {
    for (key, known) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if f.text(key)?.is_some_and(|found| found != known) {
            return Err(f.error(key, known));
        }
    }
    let (groups, allowed) = (f.size_or("n_group", defaults.groups.0)?, f.size_or("topk_group", defaults.groups.1)?);
    let other = f.size_opt("num_local_experts")?;
    let count = f.size_opt("n_routed_experts")?.or(other).unwrap_or(defaults.count);
    if !count.is_multiple_of(groups) || (groups > 1 && count / groups < 2) {
        return Err(f.error("n_group", format!("groups of at least two of the {count} experts")));
    }
    if allowed > groups {
        return Err(f.error("topk_group", format!("at most the {groups} groups")));
    }
    let width = f.size_or("moe_intermediate_size", defaults.width)?;
    let shared = f.count_or("n_shared_experts", 1)?;
    Ok(Experts {
        count,
        chosen: f.size_or("num_experts_per_tok", 8)?,
        width,
        activation: base.activation,
        router: Router {
            scores: Scores::Sigmoid,
            correction: Some("gate.e_score_correction_bias"),
            groups: (allowed < groups).then_some((groups, allowed)),
            normalized: f.bool_or("norm_topk_prob", true)?.then_some(1e-20),
            scale: f.positive_or("routed_scaling_factor", defaults.scale)?,
            wide: true,
            ..Router::SOFTMAX
        },
        shared: (shared > 0).then(|| base.mlp_of(width * shared, "shared_experts")),
        shared_gate: None,
        module: "mlp",
        names: MlpNames::COMMON,
        bias: false,
        layout: ExpertLayout::Rows,
    })
}
