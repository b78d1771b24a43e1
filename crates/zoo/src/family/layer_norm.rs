//! Families with layer norms: with a bias, without a bias, or without weights. In some, one norm
//! feeds both halves of a layer.

use super::{
    common::{Base, Defaults, SLIDING, by_kind, full_every, layer, window, window_of},
    mixtral::BLOCK_SPARSE,
    rope,
};
use crate::{
    Error, Result,
    fields::Fields,
    rope::Rope,
    spec::{
        Activation, Attention, AttentionNames, DecoderConfig, Experts, Joined, Layer, LayerNorms, Mlp, MlpNames, NormKind, QkNorm,
        Router, Scores,
    },
};

const BIASED: NormKind = NormKind::Layer { bias: true };

/// One norm for both halves.
const ONE: LayerNorms = LayerNorms { feed_in: None, ..LayerNorms::PRE };

/// Command R: one norm without bias for both halves, an interleaved rotary embedding, and a factor
/// on the logits.
pub(super) fn cohere(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { theta: 500_000.0, ..COHERE })?;
    let qk_norm = if f.bool_or("use_qk_norm", false)? { QkNorm::OwnHeads } else { QkNorm::None };
    let rope = Rope { interleaved: true, ..rope::read(f, &base)? };
    let attention = Attention { qk_norm, ..base.attention(Some(rope)) };
    cohere_decoder(f, &base, "cohere", vec![attention; base.layers])
}

/// Command R7B and A: the same, but full layers have no rotary embedding.
pub(super) fn cohere2(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &COHERE)?;
    f.expect_text("order_of_interleaved_layers", "local_attn_first")?;
    f.expect_text("position_embedding_type", "rope_gptj")?;
    for (key, expected) in [
        ("use_embedding_sharing", true),
        ("use_gated_activation", true),
        ("use_parallel_block", true),
        ("use_parallel_embedding", false),
    ] {
        f.expect_bool(key, expected)?;
    }
    f.expect_bool("use_qk_norm", false)?;
    if f.positive_or("rotary_pct", 1.0)? != 1.0 {
        return Err(f.error("rotary_pct", "1"));
    }
    let switch = f.size_or("layer_switch", 4)?;
    let period = f.size_or("sliding_window_pattern", switch)?;
    let rope = Rope { interleaved: true, ..rope::read(f, &base)? };
    let kinds = base.layer_types(f, |i| full_every(period, i))?;
    let rotated = |kind: &str| (kind == SLIDING).then(|| rope.clone());
    let attentions = by_kind(f, kinds, window(f, Some(4096))?, &base.attention(None), rotated)?;
    cohere_decoder(f, &base, "cohere2", attentions)
}

/// Command A+: Command A with experts after the first layers.
pub(super) fn cohere2_moe(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { head_dim: Some(128), ..COHERE };
    let base = match f.positive_opt("rms_norm_eps")? {
        Some(_) => Base::read(f, &Defaults { norm: NormKind::Rms, norm_key: "rms_norm_eps", ..defaults })?,
        None => Base::read(f, &defaults)?,
    };
    f.positive_opt("layer_norm_eps")?;
    let (dense, prefix_period) = (f.count_or("first_k_dense_replace", 0)?, f.size_or("prefix_dense_sliding_window_pattern", 1)?);
    let period = f.size_or("sliding_window_pattern", 4)?;
    let rule = |i: usize| if i < dense { full_every(prefix_period, i) } else { full_every(period, i - dense) };
    let kinds = base.layer_types(f, rule)?;
    let listed = f.texts("mlp_layer_types", base.layers)?;
    let is_dense = |i: usize| listed.as_ref().map_or(i < dense, |kinds| kinds[i] == "dense");
    let (rope, window) = (Rope { interleaved: true, ..rope::read(f, &base)? }, window(f, Some(4096))?);
    let bias = f.bool_or("attention_bias", false)?;
    let own = f.size_opt("prefix_dense_intermediate_size")?;
    let (mlp, experts) = (base.mlp_of(own.unwrap_or(f.size("intermediate_size")?), "mlp"), cohere_experts(f, &base)?);
    let layers = kinds.into_iter().enumerate().map(|(i, kind)| {
        let is_rotated = kind == SLIDING || is_dense(i) && prefix_period == 1;
        let window = window_of(kind, window, f)?;
        let attention =
            Attention { window, qkv_bias: bias.into(), output_bias: bias, ..base.attention(is_rotated.then(|| rope.clone())) };
        let layer = if is_dense(i) { layer(attention, mlp) } else { layer(attention, experts.clone()) };
        Ok(Layer { norms: ONE, parallel: true, ..layer })
    });
    let config = base.config(f, "cohere2_moe", layers.collect::<Result<_>>()?)?;
    Ok(DecoderConfig { logits_divisor: f.positive_or("logit_scale", 0.0625)?.recip(), ..config })
}

fn cohere_experts(f: &Fields<'_>, base: &Base) -> Result<Experts> {
    let (width, shared) = (f.size("intermediate_size")?, f.count_or("num_shared_experts", 0)?);
    let share = match f.text("shared_expert_combination_strategy")? {
        _ if shared == 0 => 1.0,
        None | Some("average") => 0.5,
        Some("sum") => 1.0,
        Some(_) => return Err(f.error("shared_expert_combination_strategy", "average or sum")),
    };
    let normalized = f.bool_or("norm_topk_prob", true)?.then_some(0.0);
    let router = match f.text("expert_selection_fn")? {
        None | Some("softmax") => Router { scores: Scores::SoftmaxOfChosen, ..Router::SOFTMAX },
        Some("sigmoid") => Router { scores: Scores::Sigmoid, normalized, ..Router::SOFTMAX },
        Some(_) => return Err(f.error("expert_selection_fn", "softmax or sigmoid")),
    };
    let shared = base.shared_experts(width, shared).map(|mlp| Mlp { factors: [1.0, share], ..mlp });
    let experts = base.experts(f.size_or("num_experts", 8)?, f.size_or("num_experts_per_tok", 2)?, width);
    Ok(Experts { router: Router { scale: share, ..router }, shared, ..experts })
}

const COHERE: Defaults = Defaults {
    positions: 8192,
    norm_eps: 1e-5,
    norm_key: "layer_norm_eps",
    norm: NormKind::Layer { bias: false },
    tied: true,
    ..Defaults::LLAMA
};

fn cohere_decoder(f: &Fields<'_>, base: &Base, family: &'static str, attentions: Vec<Attention>) -> Result<DecoderConfig> {
    let bias = f.bool_or("attention_bias", false)?;
    let mlp = base.mlp(f)?;
    let layers = attentions.into_iter().map(|attention| {
        let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..attention };
        Layer { norms: ONE, parallel: true, ..layer(attention, mlp) }
    });
    let layers = layers.collect();
    Ok(DecoderConfig { logits_divisor: f.positive_or("logit_scale", 0.0625)?.recip(), ..base.config(f, family, layers)? })
}

/// StarCoder 2: biases everywhere, and feed-forward layers without a gate.
pub(super) fn starcoder2(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        kv_heads: Some(2),
        positions: 4096,
        norm_eps: 1e-5,
        norm_key: "norm_epsilon",
        norm: BIASED,
        activation: Some(Activation::GeluTanh),
        tied: true,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    f.text("activation_function")?;
    f.positive_opt("layer_norm_epsilon")?;
    for key in ["attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"] {
        f.bool_opt(key)?;
    }
    f.expect_bool("scale_attn_weights", true)?;
    f.expect_text("mlp_type", "default")?;
    f.expect_text("norm_type", "layer_norm")?;
    f.magnitude_opt("embedding_dropout")?;
    f.magnitude_opt("residual_dropout")?;
    let bias = f.bool_or("use_bias", true)?;
    let attention = Attention {
        window: window(f, None)?,
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let names = MlpNames { gate: "", up: "c_fc", down: "c_proj" };
    let mlp = Mlp { gated: false, bias: bias.into(), names, ..base.mlp(f)? };
    base.config(f, "starcoder2", vec![layer(attention, mlp); base.layers])
}

/// Phi 1, 1.5 and 2: one norm for both halves, biases everywhere, a partial rotary embedding, and a
/// head with a bias.
pub(super) fn phi(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        norm_eps: 1e-5,
        norm_key: "layer_norm_eps",
        norm: BIASED,
        activation: Some(Activation::GeluTanh),
        rotary_part: 0.5,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    let qk_norm = if f.bool_or("qk_layernorm", false)? { QkNorm::Heads } else { QkNorm::None };
    let names = AttentionNames { output: "dense", q_norm: "q_layernorm", k_norm: "k_layernorm", ..AttentionNames::COMMON };
    let attention =
        Attention { names, qk_norm, qkv_bias: true.into(), output_bias: true, ..base.attention(Some(rope::read(f, &base)?)) };
    let names = MlpNames { gate: "", up: "fc1", down: "fc2" };
    let mlp = Mlp { gated: false, bias: true.into(), names, ..base.mlp(f)? };
    let layer = Layer { norms: ONE, parallel: true, ..layer(attention, mlp) };
    let config = base.config(f, "phi", vec![layer; base.layers])?;
    Ok(DecoderConfig { final_norm: Some("final_layernorm"), head_bias: true, ..config })
}

/// StableLM: a partial rotary embedding. The largest models use one norm for both halves, and norms
/// with separate weights per head.
pub(super) fn stablelm(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        kv_heads: Some(32),
        positions: 4096,
        norm_eps: 1e-5,
        norm_key: "layer_norm_eps",
        norm: BIASED,
        rotary_part: f.positive_or("rope_pct", 0.25)?,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    f.magnitude_opt("hidden_dropout")?;
    // Repetitions in the first configs.
    f.positive_opt("norm_eps")?;
    if f.positive_or("rotary_scaling_factor", 1.0)? != 1.0 {
        return Err(f.error("rotary_scaling_factor", "1"));
    }
    let parallel = f.bool_or("use_parallel_residual", false)?;
    let names = AttentionNames { q_norm: "q_layernorm", k_norm: "k_layernorm", ..AttentionNames::COMMON };
    let attention = Attention {
        names,
        qk_norm: if f.bool_or("qk_layernorm", false)? { QkNorm::OwnHeads } else { QkNorm::None },
        qkv_bias: f.bool_or("use_qkv_bias", false)?.into(),
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let norms = if parallel { ONE } else { LayerNorms::PRE };
    let layer = Layer { norms, parallel, ..layer(attention, base.mlp(f)?) };
    base.config(f, "stablelm", vec![layer; base.layers])
}

/// Nemotron and Minitron: norm weights stored minus 1, and feed-forward layers without a gate, with
/// squared ReLU.
pub(super) fn nemotron(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        positions: 4096,
        norm_eps: 1e-5,
        norm_key: "norm_eps",
        norm: NormKind::LayerPlusOne,
        activation: Some(Activation::Relu2),
        rotary_part: 0.5,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope::read(f, &base)?)) };
    let mlp = Mlp { gated: false, bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    base.config(f, "nemotron", vec![layer(attention, mlp); base.layers])
}

/// Jais 2: layer norms and biases, and feed-forward layers without a gate, with squared ReLU.
pub(super) fn jais2(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        positions: 8192,
        norm_eps: 1e-5,
        norm_key: "layer_norm_eps",
        norm: BIASED,
        activation: Some(Activation::Relu2),
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    let bias = f.bool_or("attention_bias", true)?;
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope::read(f, &base)?)) };
    let mlp = Mlp { gated: false, bias: f.bool_or("mlp_bias", true)?.into(), ..base.mlp(f)? };
    base.config(f, "jais2", vec![layer(attention, mlp); base.layers])
}

/// GPT-NeoX and Pythia: both halves read the layer's input, each through its own norm. Projections
/// are joined head by head.
pub(super) fn gpt_neox(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        norm_eps: 1e-5,
        norm_key: "layer_norm_eps",
        norm: BIASED,
        activation: Some(Activation::GeluErf),
        theta: f.positive_or("rotary_emb_base", 10_000.0)?,
        rotary_part: f.positive_or("rotary_pct", 0.25)?,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    for key in ["attention_probs_dropout_prob", "classifier_dropout", "hidden_dropout", "hidden_dropout_prob"] {
        f.magnitude_opt(key)?;
    }
    let bias = f.bool_or("attention_bias", true)?;
    let attention = Attention {
        joined: Joined::Groups,
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let mlp = Mlp { gated: false, bias: true.into(), ..base.mlp(f)? };
    let layer = Layer { parallel: f.bool_or("use_parallel_residual", true)?, ..layer(attention, mlp) };
    let renames = &[
        ("embed_out.", "lm_head."),
        ("gpt_neox.embed_in.", "model.embed_tokens."),
        ("gpt_neox.final_layer_norm.", "model.norm."),
        ("gpt_neox.", "model."),
        (".attention.query_key_value.", ".self_attn.qkv_proj."),
        (".attention.dense.", ".self_attn.o_proj."),
        (".mlp.dense_h_to_4h.", ".mlp.up_proj."),
        (".mlp.dense_4h_to_h.", ".mlp.down_proj."),
    ];
    Ok(DecoderConfig { renames, ..base.config(f, "gpt_neox", vec![layer; base.layers])? })
}

/// OLMo: layer norms without weights.
pub(super) fn olmo(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { norm_eps: 1e-5, norm_key: "", norm: NormKind::LayerPlain, ..Defaults::LLAMA })?;
    let (bias, clip) = (f.bool_or("attention_bias", false)?, f.positive_opt("clip_qkv")?);
    let attention = Attention { clip, qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope::read(f, &base)?)) };
    base.config(f, "olmo", vec![layer(attention, base.mlp(f)?); base.layers])
}

/// Phi 3.5 MoE: biases, experts selected one after another, and longrope with stated magnitudes.
pub(super) fn phimoe(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults =
        Defaults { kv_heads: Some(8), positions: 131_072, norm_eps: 1e-5, norm: BIASED, theta: 1_000_000.0, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    f.magnitude_opt("hidden_dropout")?;
    f.magnitude_opt("input_jitter_noise")?;
    f.magnitude_opt("router_aux_loss_coef")?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention {
        window: window(f, None)?,
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let jitter = f.positive_or("router_jitter_noise", 0.01)?;
    let chosen = f.size_or("num_experts_per_tok", 2)?;
    if chosen != 2 {
        return Err(Error::key("num_experts_per_tok", "2", chosen));
    }
    let experts = Experts {
        router: Router { scores: Scores::Sparse { jitter }, ..Router::SOFTMAX },
        ..base.experts(f.size_or("num_local_experts", 16)?, chosen, f.size("intermediate_size")?)
    };
    let config = base.config(f, "phimoe", vec![layer(attention, experts); base.layers])?;
    Ok(DecoderConfig { head_bias: f.bool_or("lm_head_bias", false)?, renames: BLOCK_SPARSE, ..config })
}
