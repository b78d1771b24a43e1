//! BERT and related text encoders.

use super::{
    Configs,
    common::{self, Base, Defaults, layer},
    decoder_encoder, jina_bert, llama, modernbert, rotary_bert,
};
use crate::{
    Result,
    encoder::{Distances, Embedding, EncoderConfig, Positions, Sentence},
    fields::Fields,
    limits::{MAX_LAYERS, MAX_POSITIONS},
    spec::{Activation, Attention, Layer, LayerNorms, Mlp, MlpBias, Norm, NormKind, QkvBias},
};

/// A replacement in the names of tensors.
pub(super) type Rename = (&'static str, &'static str);

/// Replacements in BERT's names, in order.
pub(super) const BERT: &[Rename] = &[
    ("encoder.layer.", "layers."),
    ("attention.self.query", "self_attn.q_proj"),
    ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"),
    ("attention.output.dense", "self_attn.o_proj"),
    ("attention.output.LayerNorm", "post_attention_layernorm"),
    ("intermediate.dense", "mlp.up_proj"),
    ("output.dense", "mlp.down_proj"),
    ("output.LayerNorm", "post_mlp_layernorm"),
];

/// XLM-RoBERTa under Jina's names, which join the projections.
const XLM_ROBERTA_BY_JINA: &[Rename] = &[
    ("emb_ln", "embeddings.LayerNorm"),
    ("encoder.layers.", "layers."),
    (".mixer.Wqkv", ".self_attn.qkv_proj"),
    (".mixer.out_proj", ".self_attn.o_proj"),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
    (".mlp.fc1.", ".mlp.up_proj."),
    (".mlp.fc2.", ".mlp.down_proj."),
];

/// XLM-RoBERTa under Jina's names or under BERT's.
const XLM_ROBERTA: &[Rename] = &chained::<{ XLM_ROBERTA_BY_JINA.len() + BERT.len() }>(XLM_ROBERTA_BY_JINA, BERT);

const MPNET: &[Rename] = &[
    ("encoder.layer.", "layers."),
    ("attention.attn.q", "self_attn.q_proj"),
    ("attention.attn.k", "self_attn.k_proj"),
    ("attention.attn.v", "self_attn.v_proj"),
    ("attention.attn.o", "self_attn.o_proj"),
    ("attention.LayerNorm", "post_attention_layernorm"),
    ("intermediate.dense", "mlp.up_proj"),
    ("output.dense", "mlp.down_proj"),
    ("output.LayerNorm", "post_mlp_layernorm"),
];

const DISTILBERT: &[Rename] = &[
    ("transformer.layer.", "layers."),
    ("attention.q_lin", "self_attn.q_proj"),
    ("attention.k_lin", "self_attn.k_proj"),
    ("attention.v_lin", "self_attn.v_proj"),
    ("attention.out_lin", "self_attn.o_proj"),
    ("sa_layer_norm", "post_attention_layernorm"),
    ("ffn.lin1", "mlp.up_proj"),
    ("ffn.lin2", "mlp.down_proj"),
    ("output_layer_norm", "post_mlp_layernorm"),
];

/// The `N` replacements of `first` and then of `second`.
pub(super) const fn chained<const N: usize>(first: &[Rename], second: &[Rename]) -> [Rename; N] {
    assert!(N == first.len() + second.len(), "the lists have N entries");
    let mut all = [("", ""); N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}

/// Prefixes that tasks add to the names of an encoder's tensors.
const PREFIXES: &[&str] = &["bert.", "roberta.", "mpnet.", "distilbert."];

/// One norm after the sum of each half.
pub(super) const POST: LayerNorms =
    LayerNorms { mixer_in: None, mixer_out: Some("post_attention_layernorm"), feed_in: None, feed_out: Some("post_mlp_layernorm") };

/// Names in a family's configs and tensors, and defaults for missing keys.
struct Family {
    name: &'static str,
    renames: &'static [Rename],
    /// Keys of the width, the inner width, the number of layers and the number of heads.
    sizes: [&'static str; 4],
    activation: &'static str,
    /// Id of the padding token, if positions start after it.
    padding: Option<usize>,
    token_types: usize,
    buckets: usize,
}

const SIZES: [&str; 4] = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];

/// The first family. Others differ from it.
const FIRST: Family =
    Family { name: "bert", renames: BERT, sizes: SIZES, activation: "hidden_act", padding: None, token_types: 2, buckets: 0 };

/// Families by `model_type`.
const FAMILIES: [Family; 6] = [
    FIRST,
    Family { name: "camembert", padding: Some(1), ..FIRST },
    Family {
        name: "distilbert",
        renames: DISTILBERT,
        sizes: ["dim", "hidden_dim", "n_layers", "n_heads"],
        activation: "activation",
        token_types: 0,
        ..FIRST
    },
    Family { name: "mpnet", renames: MPNET, padding: Some(1), token_types: 0, buckets: 32, ..FIRST },
    Family { name: "roberta", padding: Some(1), ..FIRST },
    Family { name: "xlm-roberta", renames: XLM_ROBERTA, padding: Some(1), ..FIRST },
];

/// Description of an encoder.
type Read = fn(&Configs<'_>) -> Result<EncoderConfig>;

/// Families with readers of their own.
const LATER: [(&str, Read); 6] = [
    ("eurobert", eurobert),
    ("gte", rotary_bert::gte),
    ("jina_embeddings_v3", rotary_bert::jina),
    ("modernbert", modernbert::config),
    ("new", rotary_bert::gte),
    ("nomic_bert", rotary_bert::nomic),
];

/// Values of `model_type` of the families.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name).chain(LATER.iter().map(|(name, _)| *name))
}

/// EuroBERT: Llama whose tokens see the whole text.
fn eurobert(configs: &Configs<'_>) -> Result<EncoderConfig> {
    let config = decoder_encoder::encoder(llama::config(&configs.model)?, false, (configs.sentence)()?)?;
    Ok(EncoderConfig { family: "eurobert", ..config })
}

/// Reads `config.json` of the family with this name. `None` for other names.
pub(super) fn config(name: &str, configs: &Configs<'_>) -> Option<Result<EncoderConfig>> {
    if let Some((_, read)) = LATER.iter().find(|(known, _)| *known == name) {
        return Some(read(configs));
    }
    match (name, configs.model.text("position_embedding_type")) {
        ("bert", Ok(Some("alibi"))) => return Some(jina_bert::config(configs)),
        ("xlm-roberta", Ok(Some("rotary"))) => return Some(rotary_bert::published_jina(configs)),
        _ => {}
    }
    let family = FAMILIES.iter().find(|family| family.name == name)?;
    Some((configs.sentence)().and_then(|sentence| read(family, &configs.model, sentence)))
}

fn read(family: &Family, f: &Fields<'_>, sentence: Sentence) -> Result<EncoderConfig> {
    let [width, feed_forward, layers, heads] = family.sizes;
    let (width, heads) = (f.size(width)?, f.size(heads)?);
    if !width.is_multiple_of(heads) {
        return Err(f.error(family.sizes[0], format!("a multiple of {heads} heads")));
    }
    let layers = self::layers(f, layers, f.size(layers)?)?;
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
    let (activation, norm) = (
        activation(f, family.activation)?,
        Norm { eps: f.positive_or("layer_norm_eps", 1e-12)?, kind: NormKind::Layer { bias: true } },
    );
    let base = Base {
        defaults: Defaults::LLAMA,
        hidden: width,
        layers,
        heads,
        kv_heads: heads,
        head_dim: width / heads,
        positions: positions - first_position,
        norm,
        activation,
    };
    let attention = Attention { qkv_bias: QkvBias::All, output_bias: true, ..base.attention(None) };
    let mlp = Mlp { gated: false, bias: MlpBias::All, ..base.mlp_of(f.size(feed_forward)?, "mlp") };
    let positions = Positions { rows: positions, first: first_position };
    Ok(EncoderConfig {
        embedding: Embedding { positions: Some(positions), token_types, ..Embedding::BERT },
        layers: vec![Layer { norms: POST, ..layer(attention, mlp) }; layers],
        distances: (family.buckets > 0).then_some(Distances::Learned { buckets: family.buckets, heads }),
        prefixes: PREFIXES,
        renames: family.renames,
        dtype: common::dtype(f)?,
        ..EncoderConfig::new(family.name, [width, f.size("vocab_size")?, base.positions], norm, sentence)
    })
}

/// The number of layers under `key`.
pub(super) fn layers(f: &Fields<'_>, key: &str, found: usize) -> Result<usize> {
    if found <= MAX_LAYERS { Ok(found) } else { Err(f.error(key, format!("at most {MAX_LAYERS}"))) }
}

/// The activation of a layer. Without a key it is the exact Gaussian unit.
pub(super) fn activation(f: &Fields<'_>, key: &str) -> Result<Activation> {
    if f.get(key).is_none() {
        return Ok(Activation::GeluErf);
    }
    match common::activation(f, key)? {
        Activation::Relu | Activation::Relu2 | Activation::GeluSigmoid => Err(f.error(key, "silu, gelu or gelu_pytorch_tanh")),
        known => Ok(known),
    }
}
