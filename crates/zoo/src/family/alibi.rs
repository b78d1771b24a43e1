//! Families whose scores have biases by distance (ALiBi), at least in some models.

use std::sync::Arc;

use flambeau_tensor::bf16;

use super::{
    common::{Base, Defaults, MOSAIC_KEYS, layer},
    rope,
};
use crate::{
    Result, alibi,
    fields::Fields,
    spec::{Activation, Attention, AttentionNames, DecoderConfig, Joined, Layer, LayerNorms, Mlp, NormKind},
};

const BIASED: NormKind = NormKind::Layer { bias: true };

/// BLOOM: a norm of the embedding, biases everywhere, and projections joined head by head.
pub(super) fn bloom(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        keys: &[
            ("hidden_size", "n_embed"),
            ("num_attention_heads", "n_head"),
            ("num_hidden_layers", "n_layer"),
            ("max_position_embeddings", "seq_length"),
            ("intermediate_size", "n_inner"),
        ],
        norm_eps: 1e-5,
        norm_key: "layer_norm_epsilon",
        norm: BIASED,
        tied: true,
        ..Defaults::LLAMA
    };
    let base = Base { activation: Activation::GeluTanh, ..Base::read(f, &defaults)? };
    f.expect_bool("apply_residual_connection_post_layernorm", false)?;
    for key in [
        "bias_dropout_fusion",
        "hidden_dropout",
        "masked_softmax_fusion",
        "offset_alibi",
        "skip_bias_add",
        "skip_bias_add_qkv",
        "slow_but_exact",
        "unk_token_id",
    ] {
        f.get(key);
    }
    let attention = Attention {
        joined: Joined::Groups,
        qkv_bias: true.into(),
        output_bias: true,
        slopes: Some(slopes(base.heads, 8.0, |slope| slope)),
        ..base.attention(None)
    };
    let mlp = Mlp { bias: true.into(), ..base.ungated(f)? };
    let config = base.config(f, "bloom", vec![layer(attention, mlp); base.layers])?;
    Ok(DecoderConfig { embedding_norm: Some(BIASED), renames: RENAMES, ..config })
}

/// Names of BLOOM's and Falcon's modules. Published folders may lack the module above them.
const RENAMES: &[(&str, &str)] = &[
    ("transformer.", ""),
    ("word_embeddings_layernorm.", "model.embedding_norm."),
    ("word_embeddings.", "model.embed_tokens."),
    ("ln_f.", "model.norm."),
    (".self_attention.query_key_value.", ".self_attn.qkv_proj."),
    (".self_attention.dense.", ".self_attn.o_proj."),
    (".mlp.dense_h_to_4h.", ".mlp.up_proj."),
    (".mlp.dense_4h_to_h.", ".mlp.down_proj."),
    ("h.", "model.layers."),
];

/// Falcon: parallel halves with one norm or two in most models, and joined projections in three
/// layouts. Models without a rotary embedding have biases by distance.
pub(super) fn falcon(f: &Fields<'_>) -> Result<DecoderConfig> {
    let (second, one) = (f.bool_or("new_decoder_architecture", false)?, f.bool_or("multi_query", true)?);
    let defaults = Defaults {
        keys: &[("hidden_size", "n_embed"), ("num_key_value_heads", "num_kv_heads"), ("intermediate_size", "ffn_hidden_size")],
        norm_eps: 1e-5,
        norm_key: "layer_norm_epsilon",
        norm: BIASED,
        activation_key: "activation",
        activation: Some(Activation::GeluErf),
        tied: true,
        ..Defaults::LLAMA
    };
    let mut base = Base::read(f, &defaults)?;
    if !second {
        base.kv_heads = if one { 1 } else { base.heads };
    }
    f.expect_bool("apply_residual_connection_post_layernorm", false)?;
    f.magnitude_opt("hidden_dropout")?;
    let bias = f.bool_or("bias", false)?;
    let attention = Attention { joined: Joined::Groups, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let rope = rope::read(f, &base)?;
    let attention = if f.bool_or("alibi", false)? {
        // The slopes have 16 bits, and are scaled like the scores.
        let scale = attention.scale as f32;
        let slopes = slopes(base.heads, 8.0, |slope| bf16::from_f32(slope).to_f32() * scale);
        Attention { slopes: Some(slopes), ..attention }
    } else {
        Attention { rope: Some(rope), ..attention }
    };
    let two = f.size_or("num_ln_in_parallel_attn", if second { 2 } else { 1 })? == 2;
    let parallel = f.bool_or("parallel_attn", true)? || second;
    let norms = match (parallel, second && two) {
        (false, _) => LayerNorms::PRE,
        (true, false) => LayerNorms { feed_in: None, ..LayerNorms::PRE },
        (true, true) => LayerNorms { mixer_in: Some("ln_attn"), feed_in: Some("ln_mlp"), ..LayerNorms::PRE },
    };
    let mlp = Mlp { bias: bias.into(), ..base.ungated(f)? };
    let config = base.config(f, "falcon", vec![Layer { norms, parallel, ..layer(attention, mlp) }; base.layers])?;
    Ok(DecoderConfig { renames: RENAMES, ..config })
}

/// MPT: layer norms without biases, and joined projections.
pub(super) fn mpt(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults {
        keys: MOSAIC_KEYS,
        norm_eps: 1e-5,
        norm_key: "layer_norm_epsilon",
        norm: NormKind::Layer { bias: false },
        tied: true,
        ..Defaults::LLAMA
    };
    let base = Base { activation: Activation::GeluErf, ..Base::read(f, &defaults)? };
    f.expect_bool("no_bias", true)?;
    f.expect_size("expansion_ratio", 4)?;
    f.expect_text("norm_type", "low_precision_layernorm")?;
    for key in ["embedding_fraction", "learned_pos_emb", "tokenizer_name", "verbose"] {
        f.get(key);
    }
    if let Some(init) = f.child("init_config")? {
        for key in init.keys() {
            init.get(key);
        }
    }
    if f.get("logit_scale").is_some() {
        return Err(f.error("logit_scale", "nothing"));
    }
    let attention = mpt_attention(f, &base)?;
    let mlp = Mlp { gated: false, ..base.mlp_of(4 * base.hidden, "mlp") };
    let config = base.config(f, "mpt", vec![layer(attention, mlp); base.layers])?;
    let renames = &[
        ("transformer.wte.", "model.embed_tokens."),
        ("transformer.norm_f.", "model.norm."),
        ("transformer.blocks.", "model.layers."),
        (".norm_1.", ".input_layernorm."),
        (".norm_2.", ".post_attention_layernorm."),
        (".attn.Wqkv.", ".self_attn.qkv_proj."),
        (".attn.out_proj.", ".self_attn.o_proj."),
        (".ffn.", ".mlp."),
    ];
    Ok(DecoderConfig { renames, ..config })
}

fn mpt_attention(f: &Fields<'_>, base: &Base) -> Result<Attention> {
    let attention = Attention { joined: Joined::Blocks, names: AttentionNames::COMMON, ..base.attention(None) };
    let Some(c) = f.child("attn_config")? else {
        return Ok(Attention { slopes: Some(slopes(base.heads, 8.0, |slope| slope)), ..attention });
    };
    c.text("attn_impl")?;
    c.expect_text("attn_type", "multihead_attention")?;
    for key in ["attn_uses_sequence_id", "prefix_lm", "qk_ln"] {
        c.expect_bool(key, false)?;
    }
    c.expect_bool("alibi", true)?;
    let most = c.positive_or("alibi_bias_max", 8.0)?;
    Ok(Attention {
        scale: c.positive_opt("softmax_scale")?.unwrap_or(attention.scale),
        clip: c.positive_opt("clip_qkv")?,
        slopes: Some(slopes(base.heads, most, |slope| slope)),
        ..attention
    })
}

/// The slope of each head, converted by `f`.
fn slopes(heads: usize, most: f64, f: impl Fn(f32) -> f32) -> Arc<[f32]> {
    alibi::slopes(heads, most).into_iter().map(|slope| f(slope as f32)).collect()
}
