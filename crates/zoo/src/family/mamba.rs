//! Families with state space models: Mamba 1 and 2, Jamba, Granite 4 H, Nemotron-H and Falcon-H1.

use super::{
    common::{self, Base, Defaults, FULL, LINEAR, dtype, layer},
    deepseek::{self, ExpertDefaults},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    limits::MAX_LAYERS,
    spec::{
        Activation, Attention, AttentionNames, DecoderConfig, Experts, FeedForward, Layer, LayerNorms, Mamba, MambaFactors,
        MambaForm, Mixer, Mlp, Norm, NormKind, Router, Scores,
    },
};

/// Prefixes in the original Mamba checkpoints.
const BACKBONE: &[(&str, &str)] =
    &[("backbone.embeddings.", "model.embed_tokens."), ("backbone.norm_f.", "model.norm."), ("backbone.", "model.")];

/// One norm before the mixer.
const ALONE: LayerNorms = LayerNorms { mixer_in: Some("norm"), mixer_out: None, feed_in: None, feed_out: None };

/// Mamba 1.
pub(super) fn first(f: &Fields<'_>) -> Result<DecoderConfig> {
    let hidden = f.size("hidden_size")?;
    let expanded = f.size_or("expand", 2)? * hidden;
    let channels = f.size_or("intermediate_size", expanded)?;
    let rank = rank(f, "time_step_rank", hidden)?;
    repeated(f, hidden, channels)?;
    f.expect_text("hidden_act", "silu")?;
    let mamba = Mamba {
        heads: channels,
        head_dim: 1,
        state: f.size_or("state_size", 16)?,
        groups: 1,
        taps: f.size_or("conv_kernel", 4)?,
        conv_bias: f.bool_or("use_conv_bias", true)?,
        proj_bias: f.bool_or("use_bias", false)?,
        output_bias: f.bool_or("use_bias", false)?,
        activation: Activation::Silu,
        form: MambaForm::Channels { rank, norm: None },
        module: "mixer",
        factors: MambaFactors::ONE,
    };
    alone(f, "mamba", mamba, true)
}

/// Checks keys of the first configs, which repeat others.
fn repeated(f: &Fields<'_>, hidden: usize, channels: usize) -> Result<()> {
    f.expect_size("d_model", hidden)?;
    f.expect_size("d_inner", channels)?;
    f.expect_size("n_layer", f.size("num_hidden_layers")?)?;
    f.expect_bool("rms_norm", true)?;
    f.bool_opt("fused_add_norm")?;
    f.size_opt("pad_vocab_size_multiple")?;
    f.child("ssm_cfg")?;
    Ok(())
}

/// Falcon Mamba: Mamba 1 with norms of steps, keys and queries, without weights.
pub(super) fn falcon(f: &Fields<'_>) -> Result<DecoderConfig> {
    let mut config = first(f)?;
    let plain = Norm { eps: f.positive_or("mixer_rms_eps", 1e-6)?, kind: NormKind::RmsPlain };
    for layer in &mut config.layers {
        if let Mixer::Mamba(mamba) = &mut layer.mixer
            && let MambaForm::Channels { norm, .. } = &mut mamba.form
        {
            *norm = Some(plain);
        }
    }
    Ok(DecoderConfig { family: "falcon_mamba", ..config })
}

/// The rank of the step projection: a sixteenth of the hidden width, rounded up, unless stated.
fn rank(f: &Fields<'_>, key: &str, hidden: usize) -> Result<usize> {
    match f.get(key) {
        Some(serde_json::Value::String(auto)) if auto == "auto" => Ok(hidden.div_ceil(16)),
        _ => f.size_or(key, hidden.div_ceil(16)),
    }
}

/// Mamba 2.
pub(super) fn second(f: &Fields<'_>) -> Result<DecoderConfig> {
    f.bool_opt("norm_before_gate")?;
    f.expect_bool("rms_norm", true)?;
    f.get("time_step_rank");
    f.size_opt("expand")?;
    let width = f.size_or("num_heads", 128)? * f.size_or("head_dim", 64)?;
    f.expect_size("intermediate_size", width)?;
    let eps = f.positive_or("layer_norm_epsilon", 1e-5)?;
    let activation = common::activation(f, "hidden_act")?;
    let mamba = mixer(f, ["num_heads", "head_dim", "state_size"], Norm::rms(eps), activation)?;
    alone(f, "mamba2", mamba, false)
}

/// Reads Mamba 2 of the module `mixer`. `sizes` are the keys of the number of heads, their size and
/// the state's size.
fn mixer(f: &Fields<'_>, sizes: [&str; 3], norm: Norm, activation: Activation) -> Result<Mamba> {
    let [heads, head_dim, state] = sizes;
    let mamba = Mamba {
        heads: f.size_or(heads, 128)?,
        head_dim: f.size_or(head_dim, 64)?,
        state: f.size_or(state, 128)?,
        groups: f.size_or("n_groups", 8)?,
        taps: f.size_or("conv_kernel", 4)?,
        conv_bias: f.bool_or("use_conv_bias", true)?,
        proj_bias: f.bool_or("use_bias", false)?,
        output_bias: f.bool_or("use_bias", false)?,
        activation,
        form: MambaForm::Heads { limits: limits(f)?, norm: Some(norm), gate_last: false },
        module: "mixer",
        factors: MambaFactors::ONE,
    };
    checked(f, &mamba)?;
    Ok(mamba)
}

/// Refuses heads that do not fill the groups.
fn checked(f: &Fields<'_>, m: &Mamba) -> Result<()> {
    if m.heads.is_multiple_of(m.groups) { Ok(()) } else { Err(f.error("n_groups", format!("a divisor of the {} heads", m.heads))) }
}

/// Bounds on steps. Keys for initialization do not affect them.
fn limits(f: &Fields<'_>) -> Result<(f64, f64)> {
    for key in ["time_step_min", "time_step_max", "time_step_floor"] {
        f.magnitude_opt(key)?;
    }
    f.text("time_step_init_scheme")?;
    f.magnitude_opt("time_step_scale")?;
    let bound = |v: &serde_json::Value| match v {
        serde_json::Value::String(text) if text == "inf" => Some(f64::INFINITY),
        // JSON has no infinity, and files with the bare word are read as null.
        serde_json::Value::Null => Some(f64::INFINITY),
        other => other.as_f64(),
    };
    match f.get("time_step_limit").and_then(serde_json::Value::as_array).map(Vec::as_slice) {
        None => Ok((0.0, f64::INFINITY)),
        Some([low, high]) => bound(low).zip(bound(high)).ok_or_else(|| f.error("time_step_limit", "two numbers")),
        Some(_) => Err(f.error("time_step_limit", "two numbers")),
    }
}

/// A decoder with state space layers only.
fn alone(f: &Fields<'_>, family: &'static str, mamba: Mamba, tied: bool) -> Result<DecoderConfig> {
    let (hidden, layers) = (f.size("hidden_size")?, f.size("num_hidden_layers")?);
    if layers > MAX_LAYERS {
        return Err(f.error("num_hidden_layers", format!("at most {MAX_LAYERS}")));
    }
    for key in ["residual_in_fp32", "rescale_prenorm_residual", "use_cache", "use_mambapy", "use_falcon_mambapy"] {
        f.bool_opt(key)?;
    }
    f.size_opt("chunk_size")?;
    let layer = Layer { norms: ALONE, ..layer(Mixer::Mamba(Box::new(mamba)), FeedForward::None) };
    Ok(DecoderConfig {
        family,
        fits_f16: true,
        root: "model",
        state_prefix: "",
        hidden,
        vocab: f.size("vocab_size")?,
        // The state has the same size at any length.
        positions: f.size_or("max_position_embeddings", 1 << 20)?,
        embedding_scale: 1.0,
        per_layer: None,
        conditioned: None,
        streams: None,
        layers: vec![layer; layers],
        norm: Norm::rms(f.positive_or("layer_norm_epsilon", 1e-5)?),
        norms_sums: false,
        final_norm: Some("norm"),
        tied: f.bool_opt("tie_word_embeddings")?.or(tied.then_some(true)),
        head_bias: false,
        embedding_width: None,
        embedding_norm: None,
        learned_positions: None,
        columns: &[],
        renames: BACKBONE,
        logits_divisor: 1.0,
        logits_cap: None,
        dtype: dtype(f)?,
        bos: f.ints("bos_token_id")?.first().copied(),
        eos: f.ints("eos_token_id")?,
        unused: Vec::new(),
    })
}

/// Jamba: Mamba 1 with additional norms, attention without a rotary embedding in some layers, and
/// experts in others.
pub(super) fn jamba(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { kv_heads: Some(8), positions: 262_144, ..Defaults::LLAMA })?;
    for key in ["use_mamba_kernels", "output_router_logits"] {
        f.bool_opt(key)?;
    }
    f.get("num_logits_to_keep");
    f.expect_text("hidden_act", "silu")?;
    let mamba = Mamba {
        heads: f.size_or("mamba_expand", 2)? * base.hidden,
        head_dim: 1,
        state: f.size_or("mamba_d_state", 16)?,
        groups: 1,
        taps: f.size_or("mamba_d_conv", 4)?,
        conv_bias: f.bool_or("mamba_conv_bias", true)?,
        proj_bias: f.bool_or("mamba_proj_bias", false)?,
        output_bias: f.bool_or("mamba_proj_bias", false)?,
        activation: base.activation,
        form: MambaForm::Channels { rank: rank(f, "mamba_dt_rank", base.hidden)?, norm: Some(base.norm) },
        module: "mamba",
        factors: MambaFactors::ONE,
    };
    let periodic = |period: &str, offset: &str, defaults: (usize, usize)| -> Result<(usize, usize)> {
        Ok((f.size_or(period, defaults.0)?, f.count_or(offset, defaults.1)?))
    };
    let (attends, sparse) = (
        periodic("attn_layer_period", "attn_layer_offset", (8, 4))?,
        periodic("expert_layer_period", "expert_layer_offset", (2, 1))?,
    );
    let width = f.size("intermediate_size")?;
    let count = f.size_or("num_experts", 16)?;
    let experts = Experts {
        router: Router { module: "router", ..Router::SOFTMAX },
        module: "feed_forward",
        ..base.experts(count, f.size_or("num_experts_per_tok", 2)?, width)
    };
    let norms = LayerNorms { feed_in: Some("pre_ff_layernorm"), ..LayerNorms::PRE };
    let falls_on = |i: usize, (period, offset): (usize, usize)| i % period == offset % period;
    let layers = (0..base.layers).map(|i| {
        let mixer = if falls_on(i, attends) { base.attention(None).into() } else { Mixer::Mamba(Box::new(mamba.clone())) };
        let feed_forward: FeedForward =
            if count > 1 && falls_on(i, sparse) { experts.clone().into() } else { base.mlp_of(width, "feed_forward").into() };
        Layer { norms, ..layer(mixer, feed_forward) }
    });
    Ok(DecoderConfig { final_norm: Some("final_layernorm"), ..base.config(f, "jamba", layers.collect())? })
}

/// Granite 4: layers of Mamba 2 or attention, and experts beside a shared layer.
pub(super) fn granite(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults::LLAMA)?;
    f.expect_text("normalization_function", "rmsnorm")?;
    f.text("init_method")?;
    f.bool_opt("output_router_logits")?;
    f.size_opt("mamba_chunk_size")?;
    let bias = f.bool_or("attention_bias", false)?;
    let rotated = match f.text("position_embedding_type")? {
        Some("rope") => true,
        None | Some("nope") => false,
        _ => return Err(f.error("position_embedding_type", "rope or nope")),
    };
    let rope = rope::read(f, &base)?;
    let attention = Attention {
        scale: f.positive_or("attention_multiplier", 1.0)?,
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(rotated.then_some(rope))
    };
    let mamba = shared_keys(f, &base, "mamba", None)?;
    let mamba = Mamba { form: MambaForm::Heads { limits: limits(f)?, norm: Some(base.norm), gate_last: false }, ..mamba };
    let feed_forward = granite_feed_forward(f, &base, 1024)?;
    let kinds = base.layer_types(f, |_| LINEAR)?;
    let residual = f.positive_or("residual_multiplier", 1.0)?;
    let layers = kinds.into_iter().map(|kind| {
        let mixer = match kind {
            LINEAR => Mixer::Mamba(Box::new(mamba.clone())),
            FULL => attention.clone().into(),
            _ => return Err(f.error("layer_types", format!("mamba and attention, not {kind}"))),
        };
        Ok(Layer { residual, ..layer(mixer, feed_forward.clone()) })
    });
    Ok(DecoderConfig {
        renames: GRANITE_NAMES,
        embedding_scale: f.positive_or("embedding_multiplier", 1.0)?,
        logits_divisor: f.positive_or("logits_scaling", 1.0)?,
        ..base.config(f, "granitemoehybrid", layers.collect::<Result<_>>()?)?
    })
}

/// Bamba: layers of Mamba 2, and attention in listed layers.
pub(super) fn bamba(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(8), positions: 262_144, norm_eps: 1e-5, rotary_part: 0.5, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    for key in ["attn_rotary_emb", "mamba_chunk_size", "num_logits_to_keep", "use_mamba_kernels", "z_loss_coefficient"] {
        f.get(key);
    }
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope::read(f, &base)?)) };
    let mamba = shared_keys(f, &base, "mamba", None)?;
    let mamba = Mamba { form: MambaForm::Heads { limits: limits(f)?, norm: Some(base.norm), gate_last: false }, ..mamba };
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), module: "feed_forward", ..base.mlp(f)? };
    let norms = LayerNorms { feed_in: Some("pre_ff_layernorm"), ..LayerNorms::PRE };
    let attends = f.ints("attn_layer_indices")?;
    let layers = (0..base.layers).map(|i| {
        let is_listed = attends.contains(&(i as i64));
        let mixer = if is_listed { attention.clone().into() } else { Mixer::Mamba(Box::new(mamba.clone())) };
        Layer { norms, ..layer(mixer, mlp) }
    });
    Ok(DecoderConfig { final_norm: Some("final_layernorm"), ..base.config(f, "bamba", layers.collect())? })
}

/// Names of Granite's experts and shared layer.
pub(super) const GRANITE_NAMES: &[(&str, &str)] = &[
    (".block_sparse_moe.router.layer.", ".mlp.gate."),
    (".block_sparse_moe.router.", ".mlp.gate."),
    (".block_sparse_moe.experts.", ".mlp.experts."),
    (".block_sparse_moe.input_linear.weight", ".mlp.experts.gate_up_proj"),
    (".block_sparse_moe.output_linear.weight", ".mlp.experts.down_proj"),
    (".shared_mlp.input_linear.", ".mlp.shared.gate_up_proj."),
    (".shared_mlp.output_linear.", ".mlp.shared.down_proj."),
];

/// Experts beside a shared layer, or one of them alone. The shared layer has the width `shared` if
/// the config states none.
pub(super) fn granite_feed_forward(f: &Fields<'_>, base: &Base, shared: usize) -> Result<FeedForward> {
    let shared = f.count_or("shared_intermediate_size", shared)?;
    let (count, chosen) = (f.count_or("num_local_experts", 8)?, f.count_or("num_experts_per_tok", 2)?);
    let width = f.size_opt("intermediate_size")?;
    if count == 0 {
        return Ok(Mlp { joined: true, ..base.mlp_of(shared, "mlp.shared") }.into());
    }
    let width = width.ok_or_else(|| f.error("intermediate_size", "an integer"))?;
    let router = Router { scores: Scores::SoftmaxOfChosen, ..Router::SOFTMAX };
    let shared = (shared > 0).then(|| Mlp { joined: true, ..base.mlp_of(shared, "shared") });
    Ok(Experts { router, shared, ..base.experts(count, chosen, width) }.into())
}

/// Reads Mamba 2 from keys with the prefix `mamba_`. It has `channels` if the config states no
/// number, and by default as many as the expanded residual stream.
fn shared_keys(f: &Fields<'_>, base: &Base, module: &'static str, channels: Option<usize>) -> Result<Mamba> {
    let expanded = f.size_or("mamba_expand", 2)? * base.hidden;
    let inner = f.size_opt("mamba_d_ssm")?.or(channels).unwrap_or(expanded);
    let heads = f.size_or("mamba_n_heads", 128)?;
    let head_dim = match f.get("mamba_d_head") {
        None => inner / heads,
        Some(serde_json::Value::String(auto)) if auto == "auto" => inner / heads,
        Some(_) => f.size("mamba_d_head")?,
    };
    if heads * head_dim != inner {
        return Err(f.error("mamba_n_heads", format!("heads of {head_dim} that fill {inner} channels")));
    }
    let mamba = Mamba {
        heads,
        head_dim,
        state: f.size_or("mamba_d_state", 256)?,
        groups: f.size_or("mamba_n_groups", 1)?,
        taps: f.size_or("mamba_d_conv", 4)?,
        conv_bias: f.bool_or("mamba_conv_bias", true)?,
        proj_bias: f.bool_or("mamba_proj_bias", false)?,
        output_bias: f.bool_or("mamba_proj_bias", false)?,
        activation: base.activation,
        form: MambaForm::Heads { limits: (0.0, f64::INFINITY), norm: None, gate_last: false },
        module,
        factors: MambaFactors::ONE,
    };
    checked(f, &mamba)?;
    Ok(mamba)
}

/// Nemotron-H: a layer is a state space model, attention without a rotary embedding, a feed-forward
/// layer without a gate, or experts.
pub(super) fn nemotron_h(f: &Fields<'_>) -> Result<DecoderConfig> {
    const MAMBA_ACT: &str = "mamba_hidden_act";
    let kinds = nemotron_kinds(f)?;
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 4096,
        norm_eps: 1e-5,
        norm_key: "layer_norm_epsilon",
        activation_key: "mlp_hidden_act",
        activation: Some(Activation::Relu2),
        layers: Some(kinds.len()),
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    let base = Base { layers: kinds.len(), ..base };
    for key in ["rescale_prenorm_residual", "residual_in_fp32", "use_mamba_kernels", "mamba_proj_bias", "moe_shared_expert_overlap"]
    {
        f.bool_opt(key)?;
    }
    // Keys of layers for multi-token prediction and of an unused rotary embedding, and copies of
    // `layer_norm_epsilon`.
    for key in [
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "norm_eps",
        "partial_rotary_factor",
        "rms_norm_eps",
        "rope_theta",
        "time_step_rank",
    ] {
        f.get(key);
    }
    for key in ["hidden_dropout", "num_logits_to_keep"] {
        f.magnitude_opt(key)?;
    }
    f.text("mamba_ssm_cache_dtype")?;
    f.size_opt("chunk_size")?;
    f.size_opt("expand")?;
    if f.get("sliding_window").is_some() {
        return Err(f.error("sliding_window", "null"));
    }
    let bias = f.bool_or("attention_bias", false)?;
    let names = AttentionNames { module: "mixer", ..AttentionNames::COMMON };
    let attention = Attention { names, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let activation = if f.get(MAMBA_ACT).is_some() { common::activation(f, MAMBA_ACT)? } else { Activation::Silu };
    let mamba = mixer(f, ["mamba_num_heads", "mamba_head_dim", "ssm_state_size"], base.norm, activation)?;
    let mlp_bias = f.bool_or("mlp_bias", false)?;
    let mlp = Mlp { gated: false, bias: mlp_bias.into(), ..base.mlp_of(f.size_or("intermediate_size", 21_504)?, "mixer") };
    let experts = nemotron_experts(f, &base, kinds.contains(&"moe"))?;
    let output = LayerNorms { mixer_in: None, mixer_out: None, feed_in: Some("norm"), feed_out: None };
    let layers = kinds.iter().map(|kind| match (*kind, &experts) {
        (LINEAR, _) => Ok(Layer { norms: ALONE, ..layer(Mixer::Mamba(Box::new(mamba.clone())), FeedForward::None) }),
        (FULL, _) => Ok(Layer { norms: ALONE, ..layer(attention.clone(), FeedForward::None) }),
        ("mlp", _) => Ok(Layer { norms: output, ..layer(Mixer::None, mlp) }),
        ("moe", Some(experts)) => Ok(Layer { norms: output, ..layer(Mixer::None, experts.clone()) }),
        (other, _) => Err(f.error("layers_block_type", format!("mamba, attention, mlp and moe, not {other}"))),
    });
    let config = base.config(f, "nemotron_h", layers.collect::<Result<_>>()?)?;
    // The head has its own weights, whatever the config states.
    Ok(DecoderConfig { renames: BACKBONE, tied: None, ..config })
}

/// The kind of each layer, as a list or as letters.
fn nemotron_kinds<'a>(f: &Fields<'a>) -> Result<Vec<&'a str>> {
    const PATTERN: &str = "hybrid_override_pattern";
    let letters = f.text(PATTERN)?;
    if let Some(kinds) = f.texts("layers_block_type", 1)? {
        return Ok(kinds.into_iter().map(common::kind_of).collect());
    }
    let Some(letters) = letters else { return Ok(vec![LINEAR, "moe", FULL, "mlp"]) };
    let kind = |letter| match letter {
        'M' => Ok(LINEAR),
        '*' => Ok(FULL),
        '-' => Ok("mlp"),
        'E' => Ok("moe"),
        _ => Err(f.error(PATTERN, "letters M, *, - and E")),
    };
    letters.chars().map(kind).collect()
}

fn nemotron_experts(f: &Fields<'_>, base: &Base, wanted: bool) -> Result<Option<Experts>> {
    const KEYS: [&str; 4] =
        ["n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size"];
    if !wanted {
        KEYS.into_iter().chain(["num_experts_per_tok", "n_group", "topk_group", "norm_topk_prob"]).for_each(|key| {
            f.get(key);
        });
        f.get("routed_scaling_factor");
        f.get("moe_latent_size");
        return Ok(None);
    }
    let defaults = ExpertDefaults { count: 8, width: 7688, groups: (1, 1), scale: 1.0, dense: 0, chosen: 2, ..ExpertDefaults::V3 };
    let experts = deepseek::experts(f, base, &defaults)?;
    let shared = f.size_or("moe_shared_expert_intermediate_size", 7688)?;
    let shared = experts.shared.map(|_| Mlp { gated: false, ..base.mlp_of(shared, "shared_experts") });
    Ok(Some(Experts { gated: false, latent: f.size_opt("moe_latent_size")?, module: "mixer", shared, ..experts }))
}

/// Falcon-H1: Mamba 2 and attention read the same normalized input in every layer. Factors scale
/// most intermediate results.
pub(super) fn falcon_h1(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(8), positions: 8192, norm_eps: 1e-5, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    f.size_opt("mamba_chunk_size")?;
    f.magnitude_opt("num_logits_to_keep")?;
    f.get("mlp_expansion_factor");
    f.expect_bool("mamba_use_mlp", true)?;
    let one = |key: &str| f.positive_or(key, 1.0);
    let bias = f.bool_or("attention_bias", false)?;
    let input = one("attention_in_multiplier")?;
    let attention = Attention {
        // The factor on keys affects only the scores.
        scale: (base.head_dim as f64).sqrt().recip() * one("key_multiplier")?,
        factors: [input, one("attention_out_multiplier")?],
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let mut mamba = shared_keys(f, &base, "mamba", Some(1024).filter(|_| !f.has_null("mamba_d_ssm")))?;
    let normed = f.bool_or("mamba_rms_norm", false)?;
    let gate_last = f.bool_or("mamba_norm_before_gate", true)?;
    mamba.form = MambaForm::Heads { limits: limits(f)?, norm: normed.then_some(base.norm), gate_last };
    let parts = if f.get("ssm_multipliers").is_some() { f.positives("ssm_multipliers", 5)? } else { vec![1.0; 5] };
    mamba.factors = MambaFactors {
        input: one("ssm_in_multiplier")?,
        output: one("ssm_out_multiplier")?,
        parts: parts.try_into().unwrap_or([1.0; 5]),
    };
    mamba.output_bias = f.bool_or("projectors_bias", false)?;
    let factors = if f.get("mlp_multipliers").is_some() { f.positives("mlp_multipliers", 2)? } else { vec![1.0; 2] };
    let mlp = Mlp {
        bias: f.bool_or("mlp_bias", false)?.into(),
        factors: factors.try_into().unwrap_or([1.0; 2]),
        module: "feed_forward",
        ..base.mlp(f)?
    };
    let norms = LayerNorms { feed_in: Some("pre_ff_layernorm"), ..LayerNorms::PRE };
    let layer = Layer { norms, ..layer(Mixer::AttentionAndMamba(Box::new(attention), Box::new(mamba)), mlp) };
    let config = base.config(f, "falcon_h1", vec![layer; base.layers])?;
    Ok(DecoderConfig {
        final_norm: Some("final_layernorm"),
        embedding_scale: one("embedding_multiplier")?,
        logits_divisor: one("lm_head_multiplier")?.recip(),
        ..config
    })
}
