//! Heads of encoders that give scores: the classifiers of transformers.

use super::{Configs, bert, decoder_encoder};
use crate::{
    Error, Result,
    encoder::{Config, DenseActivation, Hidden, Pooling, ScoreWeights, Scores, Sentence, Sparse, SparsePooling},
    fields::Fields,
    spec::{self, Activation},
};

/// The text around a query and a document that Qwen3-Reranker was trained with.
const TEMPLATE: &str = include_str!("rerank_template.txt");

/// Maximum number of labels of a classifier.
const MAX_LABELS: usize = 1 << 12;

/// The encoder with the head that its folder states: a vector of the text, or scores.
pub(super) fn with_head(configs: &Configs<'_>, config: Config) -> Result<Config> {
    let f = &configs.model;
    if let Some(pooling) = config.sentence.sparse {
        let sparse = sparse(f, &config, pooling)?;
        return Ok(Config { sparse: Some(sparse), ..config });
    }
    if !is_classifier(f)? || config.sentence.is_stated {
        return Ok(config);
    }
    let labels = labels(f)?;
    let scores = head(f, &config, labels)?;
    Ok(Config { scores: Some(scores), ..config })
}

/// Whether the folder holds a classifier of texts.
pub(super) fn is_classifier(f: &Fields<'_>) -> Result<bool> {
    let names = f.texts("architectures", 0)?;
    Ok(names.is_some_and(|names| names.first().is_some_and(|name| name.ends_with("ForSequenceClassification"))))
}

/// A language model that answers with token `yes` or `no` whether a document fits a query. The
/// score is the margin between their logits.
pub(crate) fn answering(config: spec::Config, sentence: Sentence, yes: u32, no: u32) -> Result<Config> {
    if [yes, no].iter().any(|&id| id as usize >= config.vocab) {
        return Err(Error::key("true_token_id", format!("tokens below {}", config.vocab), format!("{yes} and {no}")));
    }
    let encoder = decoder_encoder::encoder(config, true, sentence)?;
    let scores = Scores {
        pooling: Pooling::Last,
        hidden: None,
        pools_late: false,
        weights: ScoreWeights::Tokens { yes, no },
        labels: vec!["yes".into()],
    };
    Ok(Config { scores: Some(scores), template: Some(TEMPLATE.into()), ..encoder })
}

/// The head of a family.
fn head(f: &Fields<'_>, config: &Config, labels: Vec<String>) -> Result<Scores> {
    let plain = |hidden: Option<Hidden>, name: &'static str| Scores {
        pooling: Pooling::Cls,
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
            let hidden = Hidden {
                module: "head.dense",
                bias: f.bool_or("classifier_bias", false)?,
                activation: activation(f, "classifier_activation")?,
                norm: Some("head.norm"),
            };
            Scores { pooling: pooling(f, &[("cls", Pooling::Cls), ("mean", Pooling::Mean)])?, ..plain(Some(hidden), "classifier") }
        }
        "eurobert" => {
            let found = pooling(f, &[("late", Pooling::Mean), ("bos", Pooling::Cls), ("mean", Pooling::Mean)])?;
            let pools_late = f.text("classifier_pooling")?.is_none_or(|name| name == "late");
            Scores { pooling: found, pools_late, ..plain(layer("dense", DenseActivation::Gelu), "classifier") }
        }
        _ => {
            let weights = ScoreWeights::Module { name: "score", bias: false };
            Scores { pooling: Pooling::Last, weights, ..plain(None, "score") }
        }
    })
}

/// The head of a masked language model.
fn sparse(f: &Fields<'_>, config: &Config, pooling: SparsePooling) -> Result<Sparse> {
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
        "modernbert" => {
            let hidden = layer("head.dense", activation(f, "classifier_activation")?, "head.norm");
            let hidden = Hidden { bias: f.bool_or("classifier_bias", false)?, ..hidden };
            (hidden, "decoder.weight", f.bool_or("decoder_bias", true)?.then_some("decoder.bias"))
        }
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
