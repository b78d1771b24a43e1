//! Families with separate expert routers and attention of other families.

use super::{
    common::{Base, Defaults, FULL, SLIDING, by_kind, full_every, layer, window},
    deepseek, llama_variants,
    mixtral::BLOCK_SPARSE,
    qwen3::{self, ExpertDefaults},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::Rope,
    spec::{
        Attention, DecoderConfig, ExpertLayout, Experts, FeedForward, Gate, Layer, LayerNorms, Mlp, QkNorm, Router, Scores,
        Temperature,
    },
};

/// dots.llm1: queries and keys normalized per head, DeepSeek V3's router.
pub(super) fn dots1(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { kv_heads: Some(32), ..Defaults::LLAMA })?;
    let first = f.count_or("max_window_layers", 62)?;
    // The window's own key decides.
    f.bool_opt("use_sliding_window")?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { qk_norm: QkNorm::Heads, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let rope = rope::read(f, &base)?;
    let window = window(f, Some(4096))?;
    let kinds = base.layer_types(f, |i| if window.is_some() && i >= first { SLIDING } else { FULL })?;
    let attentions = by_kind(f, kinds, window, &attention, |_| Some(rope.clone()))?;
    let defaults = deepseek::ExpertDefaults {
        count: 128,
        width: 1408,
        groups: (1, 1),
        scale: 1.0,
        dense: 0,
        normalized: false,
        ..deepseek::ExpertDefaults::V3
    };
    decoder(f, &base, "dots1", attentions, deepseek::feed_forwards(f, &base, &defaults)?)
}

/// K-EXAONE: EXAONE 4's attention with norms before each half, and DeepSeek V3's router.
pub(super) fn exaone_moe(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &llama_variants::EXAONE4)?;
    let attentions = llama_variants::exaone_attentions(f, &base)?;
    let defaults =
        deepseek::ExpertDefaults { count: 64, width: 1024, groups: (1, 1), scale: 2.5, dense: 1, ..deepseek::ExpertDefaults::V3 };
    let mut feeds = deepseek::feed_forwards(f, &base, &defaults)?;
    corrected_by("e_score_correction_bias", &mut feeds);
    // Newer releases store the correction in the router.
    let renames = &[(".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias")];
    Ok(DecoderConfig { renames, ..decoder(f, &base, "exaone_moe", attentions, feeds)? })
}

/// Sets the name of the vector that corrects the selection of experts.
fn corrected_by(name: &'static str, feeds: &mut [FeedForward]) {
    for feed_forward in feeds {
        if let FeedForward::Experts(experts) = feed_forward {
            experts.router.correction = Some(name);
        }
    }
}

/// MiniMax M2: queries and keys normalized over all heads, partial rotation, and a corrected
/// sigmoid router in every layer.
pub(super) fn minimax_m2(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), positions: 196_608, theta: 5_000_000.0, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let rotated = f.size_opt("rotary_dim")?;
    let part = rotated.map_or(1.0, |dims| dims as f64 / base.head_dim as f64);
    let base = Base { defaults: Defaults { rotary_part: part, ..base.defaults }, ..base };
    if f.ints("attn_type_list")?.iter().any(|&kind| kind != 1) {
        return Err(f.error("attn_type_list", "1 for every layer"));
    }
    for key in ["layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"] {
        if f.positive_or(key, 1.0)? != 1.0 {
            return Err(f.error(key, "1"));
        }
    }
    for key in ["mlp_intermediate_size", "mtp_transformer_layers", "num_mtp_modules"] {
        f.count_or(key, 0)?;
    }
    f.bool_opt("use_mtp")?;
    f.text("shared_moe_mode")?;
    f.magnitude_opt("router_jitter_noise")?;
    f.expect_text("qk_norm_type", "per_layer")?;
    f.expect_text("scoring_func", "sigmoid")?;
    if f.count_or("shared_intermediate_size", 0)? != 0 {
        return Err(f.error("shared_intermediate_size", "0"));
    }
    let qk_norm = if f.bool_or("use_qk_norm", true)? { QkNorm::Whole } else { QkNorm::None };
    let attention = Attention { qk_norm, window: window(f, None)?, ..base.attention(Some(rope::read(f, &base)?)) };
    let experts = Experts {
        router: Router {
            scores: Scores::Sigmoid,
            correction: f.bool_or("use_routing_bias", true)?.then_some("e_score_correction_bias"),
            normalized: Some(0.0),
            wide: true,
            ..Router::SOFTMAX
        },
        ..base.experts(f.size_or("num_local_experts", 256)?, f.size_or("num_experts_per_tok", 8)?, f.size("intermediate_size")?)
    };
    let attentions = vec![attention; base.layers];
    let feeds = vec![experts.into(); base.layers];
    Ok(DecoderConfig { renames: BLOCK_SPARSE, ..decoder(f, &base, "minimax_m2", attentions, feeds)? })
}

/// Mellum 2: Qwen 3's experts, with windows and a rotary embedding per kind of layer.
pub(super) fn mellum(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(4), head_dim: Some(128), positions: 131_072, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let (full, sliding) = rope::by_kind(f, &base, (500_000.0, 10_000.0))?;
    let attention = qwen3_attention(f, &base)?;
    let kinds = base.layer_types(f, |_| FULL)?;
    let rope = |kind: &str| Some(if kind == FULL { full.clone() } else { sliding.clone() });
    let attentions = by_kind(f, kinds, window(f, Some(1024))?, &attention, rope)?;
    let defaults = ExpertDefaults { count: 64, chosen: 8, width: 896, normalized: true };
    let experts = qwen3::experts_of(f, &base, &defaults)?;
    let kinds = f.texts("mlp_layer_types", base.layers)?;
    let width = f.size_opt("intermediate_size")?;
    let feed_forward = |i: usize| match (kinds.as_ref().map(|kinds| kinds[i]), width) {
        (Some("dense"), Some(width)) => Ok(base.mlp_of(width, "mlp").into()),
        (Some("dense"), None) => Err(f.error("intermediate_size", "an integer")),
        _ => Ok(experts.clone().into()),
    };
    let feeds = (0..base.layers).map(feed_forward).collect::<Result<_>>()?;
    for key in ["mtp_layer_types", "mtp_mlp_layer_types"] {
        f.get(key);
    }
    decoder(f, &base, "mellum", attentions, feeds)
}

fn qwen3_attention(f: &Fields<'_>, base: &Base) -> Result<Attention> {
    let bias = f.bool_or("attention_bias", false)?;
    Ok(Attention { qk_norm: QkNorm::Heads, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) })
}

/// Trinity: norms before and after each half, gated attention outputs, and a rotary embedding only
/// in layers with windows.
pub(super) fn afmoe(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { head_dim: Some(128), positions: 16_384, norm_eps: 1e-5, ..Defaults::LLAMA })?;
    f.magnitude_opt("load_balance_coeff")?;
    f.bool_opt("use_grouped_mm")?;
    for key in ["n_group", "topk_group", "num_expert_groups", "num_limited_groups"] {
        f.expect_size(key, 1)?;
    }
    f.expect_text("score_func", "sigmoid")?;
    let bias = f.bool_or("attention_bias", false)?;
    let period = f.size_or("global_attn_every_n_layers", 4)?;
    let kinds = base.layer_types(f, |i| full_every(period, i))?;
    let rope = rope::read(f, &base)?;
    let attention = Attention {
        qk_norm: QkNorm::Heads,
        gate: Gate::Elements("gate_proj"),
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(None)
    };
    let rotated = |kind: &str| (kind == SLIDING).then(|| rope.clone());
    let attentions = by_kind(f, kinds, window(f, Some(1024))?, &attention, rotated)?;
    let (width, shared) = (f.size_or("moe_intermediate_size", 1408)?, f.count_or("num_shared_experts", 2)?);
    let experts = Experts {
        router: Router {
            module: "router.gate",
            scores: Scores::Sigmoid,
            correction: Some("expert_bias"),
            normalized: f.bool_or("route_norm", true)?.then_some(1e-20),
            scale: f.positive_or("route_scale", 1.0)?,
            wide: true,
            ..Router::SOFTMAX
        },
        shared: base.shared_experts(width, shared),
        ..base.experts(f.size_or("num_experts", 64)?, f.size_or("num_experts_per_tok", 6)?, width)
    };
    let (mlp, dense) = (base.mlp(f)?, f.count_or("num_dense_layers", 1)?);
    let feeds = (0..base.layers).map(|i| if i < dense { mlp.into() } else { experts.clone().into() }).collect();
    let config = decoder(f, &base, "afmoe", attentions, feeds)?;
    let norms = LayerNorms {
        mixer_in: Some("input_layernorm"),
        mixer_out: Some("post_attention_layernorm"),
        feed_in: Some("pre_mlp_layernorm"),
        feed_out: Some("post_mlp_layernorm"),
    };
    let layers = config.layers.into_iter().map(|layer| Layer { norms, ..layer }).collect();
    let config = DecoderConfig { layers, ..config };
    Ok(if f.bool_or("mup_enabled", false)? { super::gemma2::scaled(config) } else { config })
}

/// Laguna: heads and rotary embedding by layer, one gate per head, and a corrected sigmoid router.
pub(super) fn laguna(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { kv_heads: Some(8), head_dim: Some(128), positions: 131_072, ..Defaults::LLAMA })?;
    let (full, sliding) = laguna_ropes(f, &base)?;
    let kinds = base.layer_types(f, |_| FULL)?;
    let gate = laguna_gate(f)?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { qk_norm: QkNorm::Heads, gate, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let rope = |kind: &str| Some(if kind == FULL { full.clone() } else { sliding.clone() });
    let mut attentions = by_kind(f, kinds, window(f, Some(512))?, &attention, rope)?;
    let heads = f.ints("num_attention_heads_per_layer")?;
    for (attention, heads) in attentions.iter_mut().zip(heads) {
        let fits = usize::try_from(heads).ok().filter(|heads| *heads > 0 && heads.is_multiple_of(base.kv_heads));
        let expected = || format!("multiples of the {} heads of keys and values", base.kv_heads);
        attention.heads = fits.ok_or_else(|| f.error("num_attention_heads_per_layer", expected()))?;
    }
    f.expect_bool("moe_apply_router_weight_on_input", false)?;
    f.expect_bool("norm_topk_prob", true)?;
    let experts = Experts {
        router: Router {
            scores: Scores::Sigmoid,
            correction: Some("experts.e_score_correction_bias"),
            normalized: Some(0.0),
            scale: f.positive_or("moe_routed_scaling_factor", 1.0)?,
            cap: f.magnitude_opt("moe_router_logit_softcapping")?.filter(|&cap| cap > 0.0),
            wide: true,
            ..Router::SOFTMAX
        },
        shared: Some(base.mlp_of(f.size_or("shared_expert_intermediate_size", 512)?, "shared_expert")),
        ..base.experts(
            f.size_or("num_experts", 256)?,
            f.size_or("num_experts_per_tok", 8)?,
            f.size_or("moe_intermediate_size", 512)?,
        )
    };
    let (mlp, listed) = (base.mlp(f)?, f.texts("mlp_layer_types", base.layers)?);
    let is_dense = |i: usize| listed.as_ref().map_or(i == 0, |kinds| kinds[i] == "dense");
    let feeds = (0..base.layers).map(|i| if is_dense(i) { mlp.into() } else { experts.clone().into() }).collect();
    // Newer releases store the correction in the router.
    let renames = &[
        (".mlp.gate.e_score_correction_bias", ".mlp.experts.e_score_correction_bias"),
        (".mlp.shared_experts.", ".mlp.shared_expert."),
    ];
    Ok(DecoderConfig { renames, ..decoder(f, &base, "laguna", attentions, feeds)? })
}

/// One gate for each head, or for each element of a head.
fn laguna_gate(f: &Fields<'_>) -> Result<Gate> {
    match f.get("gating") {
        None | Some(serde_json::Value::Bool(true)) => Ok(Gate::SoftHeads("g_proj")),
        Some(serde_json::Value::Bool(false)) => Ok(Gate::SoftElements("g_proj")),
        Some(serde_json::Value::String(kind)) if kind == "per-head" => Ok(Gate::SoftHeads("g_proj")),
        Some(serde_json::Value::String(kind)) if kind == "per-element" => Ok(Gate::SoftElements("g_proj")),
        _ => Err(f.error("gating", "a boolean, per-head or per-element")),
    }
}

/// Full layers rotate half of a head, and sliding layers rotate the whole head.
fn laguna_ropes(f: &Fields<'_>, base: &Base) -> Result<(Rope, Rope)> {
    let parameters = f.child("rope_parameters")?;
    if parameters.as_ref().is_some_and(|p| p.get("full_attention").is_some()) {
        return rope::by_kind(f, base, (500_000.0, 10_000.0));
    }
    let half = Base { defaults: Defaults { rotary_part: 0.5, ..base.defaults }, ..base.clone() };
    Ok((rope::of(f, None, &half, 500_000.0, base.head_dim)?, rope::of(f, None, base, 10_000.0, base.head_dim)?))
}

/// ERNIE 4.5 with experts: a softmax router whose correction affects only the selection.
pub(super) fn ernie4_5_moe(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { kv_heads: Some(4), head_dim: None, ..llama_variants::ERNIE })?;
    llama_variants::ernie_switches(f)?;
    f.expect_text("moe_gate", "topk")?;
    f.ints("moe_capacity")?;
    let bias = f.bool_or("use_bias", false)?;
    let rope = Rope { interleaved: true, ..rope::read(f, &base)? };
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope)) };
    let (width, shared) = (f.size_or("moe_intermediate_size", 1536)?, f.count_or("moe_num_shared_experts", 2)?);
    let experts = Experts {
        router: Router {
            correction: f.bool_or("moe_use_aux_free", true)?.then_some("moe_statics.e_score_correction_bias"),
            normalized: Some(f.magnitude_opt("moe_norm_min")?.unwrap_or(1e-12)),
            wide: true,
            ..Router::SOFTMAX
        },
        shared: base.shared_experts(width, shared).map(|shared| Mlp { bias: bias.into(), ..shared }),
        ..base.experts(f.size_or("moe_num_experts", 64)?, f.size_or("moe_k", 6)?, width)
    };
    let (first, last) = (f.count_or("moe_layer_start_index", 1)?, f.ints("moe_layer_end_index")?.first().copied());
    // A negative index means the last layer.
    let last = last.and_then(|last| usize::try_from(last).ok()).unwrap_or(base.layers);
    let interval = f.size_or("moe_layer_interval", 1)?;
    let mlp = Mlp { bias: bias.into(), ..base.mlp(f)? };
    let sparse = |i: usize| (i + 1).is_multiple_of(interval) && i >= first && i <= last;
    let feeds = (0..base.layers).map(|i| if sparse(i) { experts.clone().into() } else { mlp.into() }).collect();
    // Newer releases store the correction in the router.
    let renames = &[(".mlp.gate.moe_statics.", ".mlp.moe_statics.")];
    Ok(DecoderConfig { head_bias: bias, renames, ..decoder(f, &base, "ernie4_5_moe", vec![attention; base.layers], feeds)? })
}

/// Hunyuan A13B: Hunyuan's attention, and experts beside a shared layer.
pub(super) fn hunyuan(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { norm_eps: 1e-5, ..Defaults::LLAMA })?;
    let attention = llama_variants::hunyuan_attention(f, &base)?;
    for key in ["mlp_bias", "moe_drop_tokens", "moe_random_routing_dropped_token", "group_limited_greedy"] {
        f.expect_bool(key, false)?;
    }
    f.expect_bool("norm_topk_prob", true)?;
    f.expect_bool("use_mixed_mlp_moe", true)?;
    if f.count_or("moe_layer_num_skipped", 0)? != 0 {
        return Err(f.error("moe_layer_num_skipped", "0"));
    }
    // One number for all layers, or a list of equal numbers.
    let one = |key: &str, default: usize| {
        let listed = f.ints(key)?;
        let first = listed.first().map_or(Some(default), |&n| usize::try_from(n).ok().filter(|&n| n > 0));
        first.filter(|_| listed.iter().all(|n| Some(n) == listed.first())).ok_or_else(|| f.error(key, "one number for all layers"))
    };
    let width = one("moe_intermediate_size", f.size("intermediate_size")?)?;
    let shared = f.size("intermediate_size")?;
    let experts = Experts {
        router: Router { module: "gate.wg", normalized: Some(0.0), wide: true, ..Router::SOFTMAX },
        shared: Some(base.mlp_of(shared * one("num_shared_expert", 1)?, "shared_mlp")),
        ..base.experts(one("num_experts", 1)?, one("moe_topk", 1)?, width)
    };
    let feeds = vec![experts.into(); base.layers];
    decoder(f, &base, "hunyuan_v1_moe", vec![attention; base.layers], feeds)
}

/// Llama 4: chunked attention with normalized queries and keys. Every fourth layer is full and has
/// no rotary embedding. The router's sigmoid multiplies an expert's input.
pub(super) fn llama4(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 131_072,
        norm_eps: 1e-5,
        theta: 500_000.0,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    f.get("for_llm_compressor");
    f.magnitude_opt("router_jitter_noise")?;
    let bias = f.bool_or("attention_bias", false)?;
    let rope = Rope { interleaved: true, ..rope::read(f, &base)? };
    let rotated = llama4_rotated(f, &base)?;
    let qk_norm = if f.bool_or("use_qk_norm", true)? { QkNorm::RotatedPlain } else { QkNorm::None };
    let chunk = if f.has_null("attention_chunk_size") { None } else { Some(f.size_or("attention_chunk_size", 8192)?) };
    let (beta, length) = (f.positive_or("attn_scale", 0.1)?, f.positive_or("floor_scale", 8192.0)?);
    let tuned = f.get("attn_temperature_tuning").is_none_or(|v| v.as_bool().unwrap_or(v.as_i64() != Some(0)));
    let plain = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let kinds = f.texts("layer_types", base.layers)?;
    let attentions = (0..base.layers).map(|i| {
        let chunked = kinds.as_ref().map_or(rotated[i], |kinds| kinds[i] == "chunked_attention");
        let chunk = chunk.filter(|_| chunked);
        if rotated[i] {
            return Attention { rope: Some(rope.clone()), qk_norm, chunk, ..plain.clone() };
        }
        let temperature = tuned.then_some(Temperature { beta, offset: 1, length });
        Attention { temperature, chunk, ..plain.clone() }
    });
    let attentions = attentions.collect();
    let feeds = llama4_feed_forwards(f, &base)?;
    decoder(f, &base, "llama4_text", attentions, feeds)
}

/// Whether each layer has a rotary embedding: as listed, or all except every
/// `no_rope_layer_interval`-th.
fn llama4_rotated(f: &Fields<'_>, base: &Base) -> Result<Vec<bool>> {
    let (listed, interval) = (f.ints("no_rope_layers")?, f.size_or("no_rope_layer_interval", 4)?);
    if !listed.is_empty() && listed.len() < base.layers {
        return Err(f.error("no_rope_layers", format!("a list of {} integers", base.layers)));
    }
    let by_rule = |i: usize| !(i + 1).is_multiple_of(interval);
    Ok((0..base.layers).map(|i| listed.get(i).map_or_else(|| by_rule(i), |&rotated| rotated != 0)).collect())
}

fn llama4_feed_forwards(f: &Fields<'_>, base: &Base) -> Result<Vec<FeedForward>> {
    const MODULE: &str = "feed_forward";
    let width = f.size("intermediate_size")?;
    let experts = Experts {
        router: Router { module: "router", scores: Scores::Sigmoid, ..Router::SOFTMAX },
        shared: Some(base.mlp_of(width, "shared_expert")),
        module: MODULE,
        weighted_input: true,
        layout: ExpertLayout::Columns,
        ..base.experts(f.size_or("num_local_experts", 16)?, f.size_or("num_experts_per_tok", 1)?, width)
    };
    let step = f.size_or("interleave_moe_layer_step", 1)?;
    let listed = f.ints("moe_layers")?;
    let by_rule = f.get("moe_layers").is_none();
    let sparse = |i: usize| if by_rule { (i + 1).is_multiple_of(step) } else { listed.contains(&(i as i64)) };
    let dense = base.mlp_of(f.size_or("intermediate_size_mlp", 16_384)?, MODULE);
    Ok((0..base.layers).map(|i| if sparse(i) { experts.clone().into() } else { dense.into() }).collect())
}

fn decoder(
    f: &Fields<'_>,
    base: &Base,
    family: &'static str,
    attentions: Vec<Attention>,
    feeds: Vec<FeedForward>,
) -> Result<DecoderConfig> {
    let layers = attentions.into_iter().zip(feeds).map(|(attention, feed_forward)| layer(attention, feed_forward)).collect();
    base.config(f, family, layers)
}
