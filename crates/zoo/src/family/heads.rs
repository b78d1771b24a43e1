//! Heads of encoders that give scores: the classifiers of transformers.

use super::{Configs, bert, decoder_encoder};
use crate::{
    Error, Result,
    encoder::{DenseActivation, EncoderConfig, Hidden, Pooling, ScoreWeights, Scores, Sentence, Sparse, SparsePooling},
    fields::Fields,
    spec::{self, Activation},
};

/// The text around a query and a document that Qwen3-Reranker was trained with.
const TEMPLATE: &str = include_str!("rerank_template.txt");

/// Maximum number of labels of a classifier.
const MAX_LABELS: usize = 1 << 12;

/// The encoder with the head that its folder states: a vector of the text, or scores.
pub(super) fn with_head(configs: &Configs<'_>, config: EncoderConfig) -> Result<EncoderConfig> {
    let f = &configs.model;
    if let Some(pooling) = config.sentence.sparse {
        let sparse = sparse(f, &config, pooling)?;
        return Ok(EncoderConfig { sparse: Some(sparse), ..config });
    }
    let Some(classified) = classified(f)?.filter(|_| !config.sentence.is_stated) else { return Ok(config) };
    let labels = labels(f)?;
    let scores = match classified {
        Classified::Texts => head(f, &config, labels)?,
        Classified::Tokens => token_head(f, &config, labels)?,
    };
    Ok(EncoderConfig { scores: Some(scores), ..config })
}

/// The parts of a text that a classifier gives scores to.
pub(super) enum Classified {
    Texts,
    Tokens,
}

/// The parts of a text that the folder's classifier gives scores to, if it holds one.
pub(super) fn classified(f: &Fields<'_>) -> Result<Option<Classified>> {
    let names = f.texts("architectures", 0)?;
    let name = names.and_then(|names| names.first().copied()).unwrap_or_default();
    Ok(match name {
        name if name.ends_with("ForSequenceClassification") => Some(Classified::Texts),
        name if name.ends_with("ForTokenClassification") => Some(Classified::Tokens),
        _ => None,
    })
}

/// A language model that answers with token `yes` or `no` whether a document fits a query. The
/// score is the margin between their logits.
pub(crate) fn answering(config: spec::DecoderConfig, sentence: Sentence, yes: u32, no: u32) -> Result<EncoderConfig> {
    if [yes, no].iter().any(|&id| id as usize >= config.vocab) {
        return Err(Error::key("true_token_id", format!("tokens below {}", config.vocab), format!("{yes} and {no}")));
    }
    answers(config, sentence, ScoreWeights::Tokens { yes, no })
}

/// As [`answering`], with the rows of both answers, `yes` first, in the module `head`.
pub(crate) fn answering_by(config: spec::DecoderConfig, head: &'static str) -> Result<EncoderConfig> {
    answers(config, Sentence::default(), ScoreWeights::Answers { head })
}

fn answers(config: spec::DecoderConfig, sentence: Sentence, weights: ScoreWeights) -> Result<EncoderConfig> {
    let encoder = decoder_encoder::encoder(config, true, sentence)?;
    let scores = Scores { pooling: Some(Pooling::Last), hidden: None, pools_late: false, weights, labels: vec!["yes".into()] };
    Ok(EncoderConfig { scores: Some(scores), template: Some(TEMPLATE.into()), ..encoder })
}

/// The head of a family that gives scores to tokens.
fn token_head(f: &Fields<'_>, config: &EncoderConfig, labels: Vec<String>) -> Result<Scores> {
    let hidden = if config.family == "modernbert" { Some(modern(f)?) } else { None };
    let name = if config.is_decoder() && config.family != "eurobert" { "score" } else { "classifier" };
    Ok(Scores { pooling: None, hidden, pools_late: false, weights: ScoreWeights::Module { name, bias: true }, labels })
}

/// ModernBERT's layer before the scores.
fn modern(f: &Fields<'_>) -> Result<Hidden> {
    Ok(Hidden {
        module: "head.dense",
        bias: f.bool_or("classifier_bias", false)?,
        activation: activation(f, "classifier_activation")?,
        norm: Some("head.norm"),
    })
}

/// The head of a family that gives scores to texts.
fn head(f: &Fields<'_>, config: &EncoderConfig, labels: Vec<String>) -> Result<Scores> {
    let plain = |hidden: Option<Hidden>, name: &'static str| Scores {
        pooling: Some(Pooling::Cls),
        hidden,
        pools_late: false,
        weights: ScoreWeights::Module { name, bias: true },
        labels,
    };
    let layer = |module: &'static str, activation| Some(Hidden { module, bias: true, activation, norm: None });
    Ok(match config.family {
        "bert" | "nomic_bert" | "gte" => plain(layer("pooler.dense", DenseActivation::Tanh), "classifier"),
        "roberta" | "xlm-roberta" | "camembert" | "mpnet" | "jina_embeddings_v3" => {
            plain(layer("classifier.dense", DenseActivation::Tanh), "classifier.out_proj")
        }
        "distilbert" => plain(layer("pre_classifier", DenseActivation::Relu), "classifier"),
        "modernbert" => {
            let pooling = pooling(f, &[("cls", Pooling::Cls), ("mean", Pooling::Mean)])?;
            Scores { pooling: Some(pooling), ..plain(Some(modern(f)?), "classifier") }
        }
        "eurobert" => {
            let found = pooling(f, &[("late", Pooling::Mean), ("bos", Pooling::Cls), ("mean", Pooling::Mean)])?;
            let pools_late = f.text("classifier_pooling")?.is_none_or(|name| name == "late");
            Scores { pooling: Some(found), pools_late, ..plain(layer("dense", DenseActivation::Gelu), "classifier") }
        }
        _ => {
            let weights = ScoreWeights::Module { name: "score", bias: false };
            Scores { pooling: Some(Pooling::Last), weights, ..plain(None, "score") }
        }
    })
}

/// The head of a masked language model.
fn sparse(f: &Fields<'_>, config: &EncoderConfig, pooling: SparsePooling) -> Result<Sparse> {
    let layer = |module, activation, norm| Hidden { module, bias: true, activation, norm: Some(norm) };
    let (hidden, weight, bias) = match config.family {
        "bert" => {
            let activation = match bert::activation(f, "hidden_act")? {
                Activation::GeluTanh => DenseActivation::GeluTanh,
                Activation::Silu => DenseActivation::Silu,
                _ => DenseActivation::Gelu,
            };
            let hidden = layer("cls.predictions.transform.dense", activation, "cls.predictions.transform.LayerNorm");
            (hidden, "cls.predictions.decoder.weight", Some("cls.predictions.bias"))
        }
        "distilbert" => {
            let hidden = layer("vocab_transform", DenseActivation::Gelu, "vocab_layer_norm");
            (hidden, "vocab_projector.weight", Some("vocab_projector.bias"))
        }
        "roberta" | "xlm-roberta" | "camembert" => {
            (layer("lm_head.dense", DenseActivation::Gelu, "lm_head.layer_norm"), "lm_head.decoder.weight", Some("lm_head.bias"))
        }
        "modernbert" => (modern(f)?, "decoder.weight", f.bool_or("decoder_bias", true)?.then_some("decoder.bias")),
        other => return Err(Error::file("modules.json", format!("sparse vectors of the family {other} are not supported"))),
    };
    Ok(Sparse { hidden, weight, bias, pooling })
}

/// The pooling before a classifier, the first of `known` without a key.
fn pooling(f: &Fields<'_>, known: &[(&str, Pooling)]) -> Result<Pooling> {
    let found = f.text("classifier_pooling")?;
    let pooling = known.iter().find(|(name, _)| found.is_none_or(|found| found == *name));
    let names = || known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    pooling.map(|(_, pooling)| *pooling).ok_or_else(|| f.error("classifier_pooling", names()))
}

fn activation(f: &Fields<'_>, key: &str) -> Result<DenseActivation> {
    Ok(match f.text(key)? {
        None | Some("gelu") => DenseActivation::Gelu,
        Some("relu") => DenseActivation::Relu,
        Some("silu" | "swish") => DenseActivation::Silu,
        Some("tanh") => DenseActivation::Tanh,
        Some(_) => return Err(f.error(key, "gelu, relu, silu or tanh")),
    })
}

/// Names of the scores in order. Without a key there are two.
fn labels(f: &Fields<'_>) -> Result<Vec<String>> {
    const KEY: &str = "id2label";
    let Some(map) = f.get(KEY).map(|value| value.as_object().ok_or_else(|| f.error(KEY, "an object"))).transpose()? else {
        return Ok(vec!["LABEL_0".into(), "LABEL_1".into()]);
    };
    let name =
        |i: usize| map.get(&i.to_string()).and_then(|label| label.as_str().map(str::to_owned).or_else(|| Some(label.to_string())));
    let labels: Option<Vec<String>> = (0..map.len()).map(name).collect();
    let labels = labels.filter(|labels| (1..=MAX_LABELS).contains(&labels.len()));
    labels.ok_or_else(|| f.error(KEY, format!("1 to {MAX_LABELS} names with the keys 0, 1, and so on")))
}
