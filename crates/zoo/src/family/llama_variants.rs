//! Families that differ from Llama in defaults, biases, windows or tensor names.

use super::{
    common::{self, Base, Defaults, FULL, SLIDING, by_kind, full_every, layer, window},
    rope,
};
use crate::{
    Result,
    fields::Fields,
    rope::{Rope, Scaling},
    spec::{Activation, Attention, AttentionNames, DecoderConfig, Joined, Layer, LayerNorms, Mlp, MlpNames, NormKind, QkNorm},
};

/// Seed-OSS: biases on queries, keys and values, and a separate switch for the output bias.
pub(super) fn seed_oss(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), positions: 524_288, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    f.magnitude_opt("residual_dropout")?;
    let attention = Attention {
        qkv_bias: f.bool_or("attention_bias", true)?.into(),
        output_bias: f.bool_or("attention_out_bias", false)?,
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    base.config(f, "seed_oss", vec![layer(attention, mlp); base.layers])
}

/// CWM: windows, except in every fourth layer, starting at the first.
pub(super) fn cwm(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 131_072,
        norm_eps: 1e-5,
        theta: 1_000_000.0,
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    let rope = rope::read_or(f, &base, Scaling::Llama3 { factor: 16.0, low: 1.0, high: 4.0, original: 8192.0 })?;
    let kinds = base.layer_types(f, |i| if i.is_multiple_of(4) { FULL } else { SLIDING })?;
    let attentions = by_kind(f, kinds, window(f, Some(8192))?, &base.attention(None), |_| Some(rope.clone()))?;
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    base.config(f, "cwm", attentions.into_iter().map(|attention| layer(attention, mlp)).collect())
}

/// BitNet: norms before the output projection and before the last matrix of the gated layer.
pub(super) fn bitnet(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults =
        Defaults { kv_heads: Some(5), norm_eps: 1e-5, theta: 500_000.0, activation: Some(Activation::Relu2), ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention {
        qkv_bias: bias.into(),
        output_bias: bias,
        output_norm: Some("attn_sub_norm"),
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let mlp = Mlp { inner_norm: Some("ffn_sub_norm"), ..base.mlp(f)? };
    base.config(f, "bitnet", vec![layer(attention, mlp); base.layers])
}

/// Helium: interleaved rotary embedding.
pub(super) fn helium(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults =
        Defaults { kv_heads: Some(20), head_dim: Some(128), positions: 4096, norm_eps: 1e-8, theta: 100_000.0, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let rope = Rope { interleaved: true, ..rope::read(f, &base)? };
    let attention = Attention { qkv_bias: f.bool_or("attention_bias", false)?.into(), ..base.attention(Some(rope)) };
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    base.config(f, "helium", vec![layer(attention, mlp); base.layers])
}

/// InternLM 2: projections joined group by group, under names of its own.
pub(super) fn internlm2(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { positions: 32_768, ..Defaults::LLAMA })?;
    f.text("attn_implementation")?;
    let bias = f.bool_or("bias", false)?;
    let attention = Attention {
        joined: Joined::Groups,
        qkv_bias: bias.into(),
        output_bias: bias,
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let renames = &[
        (".tok_embeddings.", ".embed_tokens."),
        ("output.", "lm_head."),
        (".attention.wqkv.", ".self_attn.qkv_proj."),
        (".attention.wo.", ".self_attn.o_proj."),
        (".attention_norm.", ".input_layernorm."),
        (".ffn_norm.", ".post_attention_layernorm."),
        (".feed_forward.w1.", ".mlp.gate_proj."),
        (".feed_forward.w2.", ".mlp.down_proj."),
        (".feed_forward.w3.", ".mlp.up_proj."),
    ];
    Ok(DecoderConfig { renames, ..base.config(f, "internlm2", vec![layer(attention, base.mlp(f)?); base.layers])? })
}

/// InternLM 3: biases under separate keys.
pub(super) fn internlm3(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { kv_heads: Some(2), head_dim: Some(128), positions: 32_768, norm_eps: 1e-5, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let bias = f.bool_or("bias", false)?;
    let attention = Attention {
        qkv_bias: f.bool_or("qkv_bias", false)?.into(),
        output_bias: bias,
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let mlp = Mlp { bias: bias.into(), ..base.mlp(f)? };
    base.config(f, "internlm3", vec![layer(attention, mlp); base.layers])
}

/// ERNIE 4.5: interleaved rotary embedding.
pub(super) fn ernie4_5(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &ERNIE)?;
    ernie_switches(f)?;
    let bias = f.bool_or("use_bias", false)?;
    let rope = Rope { interleaved: true, ..rope::read(f, &base)? };
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope)) };
    let mlp = Mlp { bias: bias.into(), ..base.mlp(f)? };
    base.config(f, "ernie4_5", vec![layer(attention, mlp); base.layers])
}

pub(super) const ERNIE: Defaults = Defaults {
    kv_heads: Some(2),
    head_dim: Some(128),
    positions: 131_072,
    norm_eps: 1e-5,
    theta: 500_000.0,
    tied: true,
    ..Defaults::LLAMA
};

/// Keys of early ERNIE 4.5 configs without effect on the results.
pub(super) fn ernie_switches(f: &Fields<'_>) -> Result<()> {
    f.expect_bool("use_rmsnorm", true)?;
    f.bool_opt("weight_share_add_bias")?;
    f.magnitude_opt("attention_probs_dropout_prob")?;
    f.magnitude_opt("hidden_dropout_prob")?;
    Ok(())
}

/// Arcee: feed-forward layers without a gate, with squared ReLU.
pub(super) fn arcee(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { positions: 4096, norm_eps: 1e-5, activation: Some(Activation::Relu2), ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope::read(f, &base)?)) };
    let mlp = Mlp { gated: false, bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    base.config(f, "arcee", vec![layer(attention, mlp); base.layers])
}

/// EXAONE 3: Llama with GPT's tensor names.
pub(super) fn exaone(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        keys: &[("num_hidden_layers", "num_layers")],
        kv_heads: Some(8),
        positions: 4096,
        theta: 500_000.0,
        norm_key: "layer_norm_epsilon",
        norm_eps: 1e-5,
        activation_key: "activation_function",
        activation: Some(Activation::Silu),
        ..Defaults::LLAMA
    };
    let base = Base::read(f, &defaults)?;
    let (attention_bias, mlp_bias) = (f.bool_or("attention_bias", false)?, f.bool_or("mlp_bias", false)?);
    f.magnitude_opt("embed_dropout")?;
    let attention =
        Attention { qkv_bias: attention_bias.into(), output_bias: attention_bias, ..base.attention(Some(rope::read(f, &base)?)) };
    let mlp = Mlp { bias: mlp_bias.into(), ..base.mlp(f)? };
    let renames = &[
        ("transformer.wte.", "model.embed_tokens."),
        ("transformer.ln_f.", "model.norm."),
        ("transformer.h.", "model.layers."),
        (".ln_1.", ".input_layernorm."),
        (".ln_2.", ".post_attention_layernorm."),
        (".attn.attention.out_proj.", ".self_attn.o_proj."),
        (".attn.attention.", ".self_attn."),
        (".mlp.c_fc_0.", ".mlp.gate_proj."),
        (".mlp.c_fc_1.", ".mlp.up_proj."),
        (".mlp.c_proj.", ".mlp.down_proj."),
    ];
    Ok(DecoderConfig { renames, ..base.config(f, "exaone", vec![layer(attention, mlp); base.layers])? })
}

/// EXAONE 4: norms after each half, and queries and keys normalized per head. In models with
/// windows, full layers have no rotary embedding.
pub(super) fn exaone4(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &EXAONE4)?;
    let attentions = exaone_attentions(f, &base)?;
    let norms = LayerNorms { mixer_in: None, feed_in: None, ..LayerNorms::SANDWICH };
    let mlp = base.mlp(f)?;
    base.config(f, "exaone4", attentions.into_iter().map(|a| Layer { norms, ..layer(a, mlp) }).collect())
}

pub(super) const EXAONE4: Defaults = Defaults { kv_heads: Some(32), norm_eps: 1e-5, ..Defaults::LLAMA };

/// Attention of EXAONE 4's layers.
pub(super) fn exaone_attentions(f: &Fields<'_>, base: &Base) -> Result<Vec<Attention>> {
    let window = window(f, Some(4096))?;
    let period = match f.get("sliding_window_pattern") {
        Some(serde_json::Value::String(letters)) => letters.len().max(1),
        _ => f.count_or("sliding_window_pattern", 4)?,
    };
    let slides = window.is_some() && period > 0;
    let kinds = base.layer_types(f, |i| if slides { full_every(period, i) } else { FULL })?;
    let rope = rope::read(f, base)?;
    let attention = Attention { qk_norm: QkNorm::Heads, ..base.attention(None) };
    by_kind(f, kinds, window, &attention, |kind| (window.is_none() || kind == SLIDING).then(|| rope.clone()))
}

/// Hunyuan: queries and keys normalized per head after the rotation. A factor raises the rotary
/// base.
pub(super) fn hunyuan(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { norm_eps: 1e-5, ..Defaults::LLAMA })?;
    let attention = hunyuan_attention(f, &base)?;
    let mlp = Mlp { bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    base.config(f, "hunyuan_v1_dense", vec![layer(attention, mlp); base.layers])
}

/// Attention of Hunyuan's layers.
pub(super) fn hunyuan_attention(f: &Fields<'_>, base: &Base) -> Result<Attention> {
    f.expect_bool("use_cla", false)?;
    f.size_opt("cla_share_factor")?;
    f.expect_text("norm_type", "rms")?;
    f.expect_bool("use_rotary_pos_emb", true)?;
    f.expect_bool("use_mla", false)?;
    f.expect_bool("position_embedding_xdrope", false)?;
    f.size_opt("attention_head_dim")?;
    f.ints("eod_token_id")?;
    for key in HUNYUAN_OTHERS {
        f.get(key);
    }
    let bias = f.bool_or("attention_bias", false)?;
    let names = AttentionNames { q_norm: "query_layernorm", k_norm: "key_layernorm", ..AttentionNames::COMMON };
    let qk_norm = if f.bool_or("use_qk_norm", true)? { QkNorm::RotatedHeads } else { QkNorm::None };
    let rope = hunyuan_rope(f, base)?;
    Ok(Attention { qk_norm, names, qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope)) })
}

/// Hunyuan's keys about classes, images and tokens, and ones that its router never reads.
const HUNYUAN_OTHERS: [&str; 30] = [
    "add_classification_head",
    "anyres_pooling_size",
    "anyres_vit_two_views",
    "class_num",
    "dense_list",
    "im_end_id",
    "im_newline_id",
    "im_start_id",
    "image_token_id",
    "mask_init_id",
    "num_media_embeds",
    "org_vocab_size",
    "pad_id",
    "pool_type",
    "routed_scaling_factor",
    "skip_cls_token",
    "text_end_id",
    "text_start_id",
    "video_end_id",
    "video_start_id",
    "vit_add_patchemb_bias",
    "vit_input_resolution",
    "vit_mapping_type",
    "vit_norm_type",
    "vit_patch",
    "vit_path",
    "vit_remove_prenorm",
    "vit_token",
    "vit_type",
    "vit_used_rms_norm",
];

/// A rotary embedding of type `dynamic` with a factor `alpha` has the base `theta * alpha^(d / (d -
/// 2))` at every length.
fn hunyuan_rope(f: &Fields<'_>, base: &Base) -> Result<Rope> {
    let child = rope::description(f)?;
    let alpha = child.as_ref().map(|c| c.positive_opt("alpha")).transpose()?.flatten();
    let Some(alpha) = alpha else { return rope::read(f, base) };
    if let Some(child) = &child {
        rope::kind(child)?;
        for key in ["beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim"] {
            child.magnitude_opt(key)?;
        }
        child.positive_opt("rope_theta")?;
    }
    let plain = rope::ruled(f, None, base, (base.defaults.theta, base.head_dim), ("default", 0.0))?;
    let nested = child.as_ref().map(|c| c.positive_opt("rope_theta")).transpose()?.flatten();
    let dims = plain.dims as f64;
    Ok(Rope { theta: nested.unwrap_or(plain.theta) * alpha.powf(dims / (dims - 2.0)), ..plain })
}

/// Apertus: queries and keys normalized per head, and feed-forward layers without a gate, with
/// xIELU.
pub(super) fn apertus(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { positions: 65_536, norm_eps: 1e-5, activation_key: "", theta: 12_000_000.0, ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let activation = match f.text("hidden_act")? {
        None | Some("xielu") => Activation::Xielu,
        Some(_) => common::activation(f, "hidden_act")?,
    };
    f.expect_bool("post_norm", false)?;
    f.expect_bool("qk_norm", true)?;
    f.magnitude_opt("hidden_dropout")?;
    let rope = rope::read_or(f, &base, Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 })?;
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { qk_norm: QkNorm::Heads, qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope)) };
    let mlp = Mlp { gated: false, activation, bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    let norms = LayerNorms {
        mixer_in: Some("attention_layernorm"),
        mixer_out: None,
        feed_in: Some("feedforward_layernorm"),
        feed_out: None,
    };
    base.config(f, "apertus", vec![Layer { norms, ..layer(attention, mlp) }; base.layers])
}

/// nanochat: norms without weights, also after the embedding. Queries and keys are normalized after
/// a rotation in the opposite direction.
pub(super) fn nanochat(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { norm: NormKind::RmsPlain, activation: Some(Activation::Relu2), ..Defaults::LLAMA };
    let base = Base::read(f, &defaults)?;
    let bias = f.bool_or("attention_bias", false)?;
    let rope = rope::read(f, &base)?;
    let rope = Rope { reversed: true, ..rope };
    let attention =
        Attention { qk_norm: QkNorm::RotatedPlain, qkv_bias: bias.into(), output_bias: bias, ..base.attention(Some(rope)) };
    let names = MlpNames { gate: "", up: "fc1", down: "fc2" };
    let mlp = Mlp { gated: false, names, ..base.mlp(f)? };
    let config = base.config(f, "nanochat", vec![layer(attention, mlp); base.layers])?;
    Ok(DecoderConfig {
        embedding_norm: Some(NormKind::RmsPlain),
        logits_cap: super::gemma2::cap(f, "final_logit_softcapping", Some(15.0))?,
        ..config
    })
}
