//! Mixtral and DBRX: experts in every layer.

use super::{
    common::{self, Base, Defaults, MOSAIC_KEYS, layer, window},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    spec::{Attention, DecoderConfig, ExpertLayout, Experts, Joined, MlpNames, NormKind, Router},
};

/// Names of DBRX's modules.
const DBRX: &[(&str, &str)] = &[
    ("transformer.wte.", "model.embed_tokens."),
    ("transformer.norm_f.", "model.norm."),
    ("transformer.blocks.", "model.layers."),
    (".norm_attn_norm.norm_1.", ".input_layernorm."),
    (".norm_attn_norm.norm_2.", ".post_attention_layernorm."),
    (".norm_attn_norm.attn.Wqkv.", ".self_attn.qkv_proj."),
    (".norm_attn_norm.attn.out_proj.", ".self_attn.o_proj."),
    (".ffn.router.layer.", ".mlp.gate."),
    (".ffn.experts.mlp.", ".mlp.experts."),
];

/// Published names of experts, and the names in newer releases.
pub(super) const BLOCK_SPARSE: &[(&str, &str)] =
    &[(".block_sparse_moe.", ".mlp."), (".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj.")];

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(8), positions: 4096 * 32, norm_eps: 1e-5, theta: 1_000_000.0, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let attention = Attention { window: window(f, None)?, ..base.attention(Some(rope::read(f, &base)?)) };
    let other = f.size_opt("num_experts")?;
    let experts = Experts {
        router: Router { normalized: Some(0.0), ..Router::SOFTMAX },
        ..base.experts(
            f.size_opt("num_local_experts")?.or(other).unwrap_or(8),
            f.size_or("num_experts_per_tok", 2)?,
            f.size("intermediate_size")?,
        )
    };
    let config = base.config(f, "mixtral", vec![layer(attention, experts); base.layers])?;
    Ok(DecoderConfig { renames: BLOCK_SPARSE, ..config })
}

/// DBRX: layer norms without biases, bounded projections, and experts that are stored one below the
/// other.
pub(super) fn dbrx(f: &Fields<'_>) -> Result<DecoderConfig> {
    let (attention, feed) = (f.child("attn_config")?, f.child("ffn_config")?);
    for part in [&attention, &feed].into_iter().flatten() {
        for key in ["attn_pdrop", "hidden_size", "model_type", "moe_jitter_eps", "moe_loss_weight", "uniform_expert_assignment"] {
            part.get(key);
        }
    }
    let (mut kv_heads, mut clip, mut theta) = (1, None, 10_000.0);
    if let Some(attention) = &attention {
        kv_heads = attention.size_or("kv_n_heads", kv_heads)?;
        clip = attention.positive_opt("clip_qkv")?;
        theta = attention.positive_or("rope_theta", theta)?;
    }
    let defaults = Defaults {
        kv_heads: Some(kv_heads),
        keys: MOSAIC_KEYS,
        norm_eps: 1e-5,
        norm: NormKind::Layer { bias: false },
        theta,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    let attention = Attention { clip, joined: Joined::Blocks, ..base.attention(Some(rope::read(f, &base)?)) };
    let experts = dbrx_experts(feed.as_ref(), &base)?;
    let config = base.config(f, "dbrx", vec![layer(attention, experts); base.layers])?;
    Ok(DecoderConfig { renames: DBRX, ..config })
}

fn dbrx_experts(f: Option<&Fields<'_>>, base: &Base) -> Result<Experts> {
    let names = MlpNames { gate: "w1", up: "v1", down: "w2" };
    let router = Router { normalized: Some(0.0), ..Router::SOFTMAX };
    let experts = Experts { router, names, layout: ExpertLayout::Flat, ..base.experts(4, 1, 3584) };
    let Some(f) = f else { return Ok(experts) };
    let activation = match f.child("ffn_act_fn")? {
        Some(function) if function.get("name").is_some() => common::activation(&function, "name")?,
        _ => experts.activation,
    };
    // The chosen weights are divided by this norm of theirs.
    let normalized = if f.has_null("moe_normalize_expert_weights") { None } else { Some(0.0) };
    if f.positive_or("moe_normalize_expert_weights", 1.0)? != 1.0 {
        return Err(f.error("moe_normalize_expert_weights", "1 or null"));
    }
    Ok(Experts {
        count: f.size_or("moe_num_experts", experts.count)?,
        chosen: f.size_or("moe_top_k", experts.chosen)?,
        width: f.size_or("ffn_hidden_size", experts.width)?,
        activation,
        router: Router { normalized, ..router },
        ..experts
    })
}
