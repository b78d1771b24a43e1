//! ModernBERT: norms before both halves, gated layers, and windows in most layers.

use super::{
    Configs, bert,
    common::{self, Base, Defaults, layer, window_of},
    rope,
};
use crate::{
    Result,
    encoder::{Embedding, EncoderConfig},
    fields::Fields,
    rope::Rope,
    spec::{Attention, Joined, Layer, LayerNorms, Mlp, Norm, NormKind},
};

const DEFAULTS: Defaults = Defaults { positions: 8192, activation_key: "hidden_activation", ..Defaults::LLAMA };

/// Bases of the rotary frequencies of full and of sliding layers.
const THETA: (f64, f64) = (160_000.0, 10_000.0);

const RENAMES: &[(&str, &str)] = &[
    ("embeddings.norm.", "embeddings.LayerNorm."),
    (".attn.Wqkv.", ".self_attn.qkv_proj."),
    (".attn.Wo.", ".self_attn.o_proj."),
    (".attn_norm.", ".input_layernorm."),
    (".mlp_norm.", ".post_attention_layernorm."),
    (".mlp.Wi.", ".mlp.gate_up_proj."),
    (".mlp.Wo.", ".mlp.down_proj."),
];

pub(super) fn config(configs: &Configs<'_>) -> Result<EncoderConfig> {
    let f = &configs.model;
    // Older configs have keys that the model does not read.
    f.expect_text("position_embedding_type", "absolute")?;
    f.get("layer_norm_eps");
    let base = Base::read(f, &DEFAULTS)?;
    let norm = Norm { eps: f.positive_or("norm_eps", 1e-5)?, kind: NormKind::Layer { bias: f.bool_or("norm_bias", false)? } };
    let base = Base { norm, activation: bert::activation(f, "hidden_activation")?, ..base };
    let bias = f.bool_or("attention_bias", false)?;
    let attention = Attention { joined: Joined::Blocks, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let mlp = Mlp { joined: true, bias: f.bool_or("mlp_bias", false)?.into(), ..base.mlp(f)? };
    let (full, sliding) = ropes(f, &base)?;
    // A token sees half of the window on either side.
    let window = f.size_or("local_attention", 128)? / 2 + 1;
    let period = f.size_or("global_attn_every_n_layers", 3)?;
    let kinds = base.layer_types(f, |i| if i.is_multiple_of(period) { common::FULL } else { common::SLIDING })?;
    let layers = kinds.into_iter().enumerate().map(|(i, kind)| {
        let rope = if kind == common::FULL { &full } else { &sliding };
        let attention = Attention { window: window_of(kind, Some(window), f)?, rope: Some(rope.clone()), ..attention.clone() };
        // The first layer reads the normalized embedding.
        let mixer_in = LayerNorms::PRE.mixer_in.filter(|_| i > 0);
        Ok(Layer { norms: LayerNorms { mixer_in, ..LayerNorms::PRE }, ..layer(attention, mlp) })
    });
    Ok(EncoderConfig {
        embedding: Embedding { table: "embeddings.tok_embeddings.weight", ..Embedding::BERT },
        layers: layers.collect::<Result<_>>()?,
        norms_sums: false,
        final_norm: Some("final_norm"),
        prefixes: &["model."],
        renames: RENAMES,
        dtype: common::dtype(f)?,
        ..EncoderConfig::new("modernbert", [base.hidden, f.size("vocab_size")?, base.positions], norm, (configs.sentence)()?)
    })
}

/// The rotary embeddings of full and of sliding layers, in the form of either release.
fn ropes(f: &Fields<'_>, base: &Base) -> Result<(Rope, Rope)> {
    let (full, sliding) = rope::by_kind(f, base, THETA)?;
    let full = Rope { theta: f.positive_opt("global_rope_theta")?.unwrap_or(full.theta), ..full };
    let sliding = Rope { theta: f.positive_opt("local_rope_theta")?.unwrap_or(sliding.theta), ..sliding };
    Ok((full, sliding))
}
