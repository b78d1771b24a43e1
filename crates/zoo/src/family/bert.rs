//! BERT and related text encoders.

use super::{Configs, common};
use crate::{
    Result,
    encoder::{Config, Names, Sentence},
    fields::Fields,
    limits::{MAX_LAYERS, MAX_POSITIONS},
    spec::Activation,
};

const BERT: Names = Names {
    layer: "encoder.layer",
    attention: ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"],
    norms: ["attention.output.LayerNorm", "output.LayerNorm"],
    feed: ["intermediate.dense", "output.dense"],
};

const MPNET: Names = Names {
    attention: ["attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"],
    norms: ["attention.LayerNorm", "output.LayerNorm"],
    ..BERT
};

const DISTILBERT: Names = Names {
    layer: "transformer.layer",
    attention: ["attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"],
    norms: ["sa_layer_norm", "output_layer_norm"],
    feed: ["ffn.lin1", "ffn.lin2"],
};

/// Names in a family's configs and tensors, and defaults for missing keys.
struct Family {
    name: &'static str,
    names: &'static Names,
    /// Keys of the width, the inner width, the number of layers and the number of heads.
    sizes: [&'static str; 4],
    activation: &'static str,
    /// Id of the padding token, if positions start after it.
    padding: Option<usize>,
    token_types: usize,
    buckets: usize,
}

const SIZES: [&str; 4] = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];

/// Families by `model_type`.
const FAMILIES: [Family; 5] = [
    Family { name: "bert", names: &BERT, sizes: SIZES, activation: "hidden_act", padding: None, token_types: 2, buckets: 0 },
    Family {
        name: "distilbert",
        names: &DISTILBERT,
        sizes: ["dim", "hidden_dim", "n_layers", "n_heads"],
        activation: "activation",
        padding: None,
        token_types: 0,
        buckets: 0,
    },
    Family { name: "mpnet", names: &MPNET, sizes: SIZES, activation: "hidden_act", padding: Some(1), token_types: 0, buckets: 32 },
    Family { name: "roberta", names: &BERT, sizes: SIZES, activation: "hidden_act", padding: Some(1), token_types: 2, buckets: 0 },
    Family {
        name: "xlm-roberta",
        names: &BERT,
        sizes: SIZES,
        activation: "hidden_act",
        padding: Some(1),
        token_types: 2,
        buckets: 0,
    },
];

/// Values of `model_type` of the families.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// Reads `config.json` of the family with this name. `None` for other names.
pub(super) fn config(name: &str, configs: &Configs<'_>) -> Option<Result<Config>> {
    let family = FAMILIES.iter().find(|family| family.name == name)?;
    Some((configs.sentence)().and_then(|sentence| read(family, &configs.model, sentence)))
}

fn read(family: &Family, f: &Fields<'_>, sentence: Sentence) -> Result<Config> {
    let [width, feed, layers, heads] = family.sizes;
    let (width, heads) = (f.size(width)?, f.size(heads)?);
    if !width.is_multiple_of(heads) {
        return Err(f.error(family.sizes[0], format!("a multiple of {heads} heads")));
    }
    let layers = match f.size(layers)? {
        n if n <= MAX_LAYERS => n,
        _ => return Err(f.error(layers, format!("at most {MAX_LAYERS}"))),
    };
    let first_position = match family.padding {
        Some(default) => f.count_or("pad_token_id", default)?.saturating_add(1),
        None => 0,
    };
    let positions = f.size("max_position_embeddings")?;
    if positions > MAX_POSITIONS || positions <= first_position {
        return Err(f.error("max_position_embeddings", format!("{} to {MAX_POSITIONS}", first_position + 1)));
    }
    f.expect_text("position_embedding_type", "absolute")?;
    f.expect_bool("is_decoder", false)?;
    let token_types = if family.token_types > 0 { f.size_or("type_vocab_size", family.token_types)? } else { 0 };
    if family.buckets > 0 {
        f.expect_size("relative_attention_num_buckets", family.buckets)?;
    }
    Ok(Config {
        family: family.name,
        names: family.names,
        width,
        feed: f.size(feed)?,
        heads,
        layers,
        vocab: f.size("vocab_size")?,
        positions,
        first_position,
        token_types,
        buckets: family.buckets,
        activation: if f.get(family.activation).is_some() {
            common::activation(f, family.activation)?
        } else {
            Activation::GeluErf
        },
        eps: f.positive_or("layer_norm_eps", 1e-12)?,
        dtype: common::dtype(f)?,
        sentence,
    })
}
