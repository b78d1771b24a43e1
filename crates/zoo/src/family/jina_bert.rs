//! Jina Embeddings 2: BERT with biases by distance in place of positions, and gated layers.

use super::{
    Configs,
    bert::{self, POST, Rename},
    common::{self, Base, Defaults, layer},
};
use crate::{
    Result,
    encoder::{Distances, Embedding, EncoderConfig},
    spec::{Activation, Attention, Layer, Mlp, MlpBias, Norm, NormKind, QkvBias},
};

const DEFAULTS: Defaults = Defaults { positions: 8192, ..Defaults::LLAMA };

/// Replacements in the names of the gated layers, in order.
const GATED: &[Rename] =
    &[("mlp.gated_layers", "mlp.gate_up_proj"), ("mlp.wo", "mlp.down_proj"), ("mlp.layernorm", "post_mlp_layernorm")];

/// Replacements in published names, in order.
const RENAMES: &[Rename] = &bert::chained::<{ GATED.len() + bert::BERT.len() }>(GATED, bert::BERT);

pub(super) fn config(configs: &Configs<'_>) -> Result<EncoderConfig> {
    let f = &configs.model;
    let base = Base::read(f, &DEFAULTS)?;
    f.expect_size("num_key_value_heads", base.heads)?;
    f.expect_bool("is_decoder", false)?;
    // The folder's modules state the pooling.
    f.get("emb_pooler");
    // The key of the activation has no effect on gated layers.
    f.expect_text("feed_forward_type", "geglu")?;
    let norm = Norm { eps: f.positive_or("layer_norm_eps", 1e-12)?, kind: NormKind::Layer { bias: true } };
    let base = Base { norm, activation: Activation::GeluErf, ..base };
    let attention = Attention { qkv_bias: QkvBias::All, output_bias: true, ..base.attention(None) };
    let mlp = Mlp { gated: true, joined: true, bias: MlpBias::Down, ..base.mlp(f)? };
    Ok(EncoderConfig {
        embedding: Embedding { token_types: f.count_or("type_vocab_size", 2)?, ..Embedding::BERT },
        layers: vec![Layer { norms: POST, ..layer(attention, mlp) }; bert::layers(f, "num_hidden_layers", base.layers)?],
        distances: Some(Distances::Slopes { heads: base.heads }),
        prefixes: &["bert."],
        renames: RENAMES,
        dtype: common::dtype(f)?,
        ..EncoderConfig::new("bert", [base.hidden, f.size("vocab_size")?, base.positions], norm, (configs.sentence)()?)
    })
}
