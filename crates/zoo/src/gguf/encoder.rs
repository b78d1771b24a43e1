//! Text encoders in GGUF files: BERT and its relatives, and decoders with a way of pooling.

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::{Gguf, architecture::object, config::Named, fused, keys::Keys};
use crate::{
    Error, Result,
    architecture::Architecture,
    encoder::{self, Dense, DenseActivation, Hidden, Pooling, ScoreWeights, Scores, Sentence, Step},
    family::{self, Configs},
    fields::Fields,
    limits::MAX_SIZE,
    spec::{self, FeedForward},
};

/// The way of pooling under an architecture's prefix.
const POOLING: &str = "pooling_type";
/// Names of a classifier's scores, under an architecture's prefix.
const LABELS: &str = "classifier.output_labels";
/// The matrix of a head's scores.
const SCORES: &str = "cls.output.weight";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type_count";

/// The architecture of EmbeddingGemma, whose tokens see the whole text.
pub(super) const GEMMA: &str = "gemma-embedding";

/// The architecture of Llama whose tokens see later tokens too. Its files state no way of pooling.
pub(super) const LLAMA: &str = "llama-embed";

/// Architectures of a decoder's layers whose tokens see later tokens too.
pub(super) const SEE_LATER: [&str; 3] = [GEMMA, "eurobert", LLAMA];

/// The architecture of Jina Embeddings 2.
const JINA: &str = "jina-bert-v2";

/// The architecture of Nomic Embed 2, whose files lack the bias of experts.
const NOMIC_EXPERTS: &str = "nomic-bert-moe";

/// Layers of the text vector in files of EmbeddingGemma.
const DENSE: [&str; 2] = ["dense_2", "dense_3"];

/// Tensors outside of layers: the file's modules and the program's.
const OUTER: [(&str, &str); 8] = [
    ("token_embd", "embeddings.word_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
    ("output_norm", "final_norm"),
    ("cls", "classifier.dense"),
    ("cls.norm", "classifier.norm"),
    ("cls.output", "classifier.out_proj"),
];

/// Tensors of a layer of BERT.
const LAYER: [(&str, &str); 13] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_output_norm", "post_attention_layernorm"),
    ("layer_output_norm", "post_mlp_layernorm"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.router.layer"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
];

/// Norms of a layer of ModernBERT that differ from BERT's.
const MODERN: [(&str, &str); 2] = [("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")];

/// The `model_type` of BERT and its relatives by the name of the architecture.
fn model_type(name: &str) -> Option<&'static str> {
    Some(match name {
        "bert" | JINA => "bert",
        "jina-bert-v3" => "jina_embeddings_v3",
        "nomic-bert" | NOMIC_EXPERTS => "nomic_bert",
        "modern-bert" => "modernbert",
        _ => return None,
    })
}

/// The encoder of a file, if it holds BERT or a relative.
///
/// # Errors
/// [`Error::Key`] for a missing, invalid or unknown key.
pub(crate) fn bert(file: &Gguf) -> Result<Option<encoder::EncoderConfig>> {
    let Some(name) = file.text("general.architecture")? else { return Ok(None) };
    let Some(model_type) = model_type(name) else { return Ok(None) };
    let keys = Keys::new(file, name);
    if keys.bool("attention.causal")? == Some(true) {
        return Err(keys.error("attention.causal", "false"));
    }
    let sentence = sentence(&keys)?;
    let map = match name {
        NOMIC_EXPERTS => object(nomic(&keys)?),
        JINA => translated(&keys, model_type)?.into_iter().chain(object(jina(file)?)).collect(),
        _ => translated(&keys, model_type)?,
    };
    let configs = Configs {
        model: Fields::new(&map),
        generation: None,
        preprocessor: None,
        tekken: None,
        sentence: &|| Ok(sentence.clone().unwrap_or_default()),
    };
    let Architecture::Encoder(config) = family::architecture(&configs)? else {
        return Err(keys.error(POOLING, "the pooling of an encoder"));
    };
    // Some keys have no effect on encoders, and some repeat others.
    let unused = ["rope.scaling.type", "vocab_size", "attention.layer_norm_rms_epsilon", "attention.head_count_kv"];
    for other in unused.into_iter().chain(["classifier.pooling_type", LABELS]) {
        keys.get(other);
    }
    let scores = if keys.int(POOLING)? == Some(RANK) { Some(head(&keys, config.family)?) } else { None };
    keys.finish()?;
    let mut config = encoder::EncoderConfig { dtype: None, scores, ..*config };
    let is_apart = file.has_in_blocks("ffn_gate.weight");
    for layer in &mut config.layers {
        match &mut layer.feed_forward {
            FeedForward::Mlp(mlp) => mlp.joined &= !is_apart,
            FeedForward::Experts(experts) => experts.bias = false,
            FeedForward::Both(..) | FeedForward::None => {}
        }
    }
    Ok(Some(config))
}

/// The keys of Jina Embeddings 2 that files do not state. Its model of code has other norms.
fn jina(file: &Gguf) -> Result<Value> {
    if let Some(norm) = ["attn_q_norm.weight", "attn_norm_2.weight"].into_iter().find(|norm| file.has_in_blocks(norm)) {
        return Err(Error::tensor(norm, "no norms but those after each half", "other norms"));
    }
    Ok(json!({"position_embedding_type": "alibi", "feed_forward_type": "geglu"}))
}

/// The config of Nomic Embed 2 in its own form.
fn nomic(keys: &Keys<'_>) -> Result<Value> {
    let file = keys.file;
    file.int(TOKEN_TYPES)?;
    check_heads(keys)?;
    Ok(json!({
        "model_type": "nomic_bert", "activation_function": "gelu", "qkv_proj_bias": true, "mlp_fc1_bias": true, "mlp_fc2_bias": true,
        "n_embd": keys.size("embedding_length")?,
        "n_inner": keys.size("feed_forward_length")?,
        "n_head": keys.size("attention.head_count")?,
        "n_layer": keys.layers()?,
        "n_positions": keys.size("context_length")?,
        "layer_norm_epsilon": keys.positive_opt("attention.layer_norm_epsilon")?,
        "rotary_emb_base": keys.positive_opt("rope.freq_base")?,
        "vocab_size": file.rows("token_embd.weight"),
        "type_vocab_size": file.rows("token_types.weight").unwrap_or(0),
        "moe_every_n_layers": keys.size("moe_every_n_layers")?,
        "moe_top_k": keys.size("expert_used_count")?,
        "num_experts": keys.size("expert_count")?,
    }))
}

/// The head of a reranker or classifier.
fn head(keys: &Keys<'_>, family: &str) -> Result<Scores> {
    let file = keys.file;
    let has = |name: &str| file.tensors.contains_key(name);
    let outputs = outputs(file)?.ok_or_else(|| Error::MissingTensor(SCORES.into()))?;
    if !has("cls.weight") {
        let what = "cls.weight is missing: llama.cpp's converter leaves out the layer before the scores of BERT's own classifier, \
                    without which they would be wrong; use the model's Hugging Face folder";
        return Err(Error::file("the GGUF file", what));
    }
    let is_modern = family == "modernbert";
    let pooling = match keys.int("classifier.pooling_type")? {
        Some(1) => Pooling::Mean,
        None if is_modern => Pooling::Mean,
        _ => Pooling::Cls,
    };
    let hidden = Hidden {
        module: "classifier.dense",
        bias: has("cls.bias"),
        activation: if is_modern { DenseActivation::Gelu } else { DenseActivation::Tanh },
        norm: has("cls.norm.weight").then_some("classifier.norm"),
    };
    Ok(Scores {
        pooling: Some(pooling),
        hidden: Some(hidden),
        pools_late: false,
        weights: ScoreWeights::Module { name: "classifier.out_proj", bias: has("cls.output.bias") },
        labels: labels(keys, outputs),
    })
}

/// The number of a head's scores, if the file has a head.
fn outputs(file: &Gguf) -> Result<Option<usize>> {
    let Some(tensor) = file.tensors.get(SCORES) else { return Ok(None) };
    let outputs = file.rows(SCORES).filter(|outputs| (1..=MAX_SIZE).contains(outputs));
    outputs.map(Some).ok_or_else(|| Error::tensor(SCORES, "a row for each label", format!("{:?}", tensor.shape)))
}

/// The config of an equivalent folder.
fn translated(keys: &Keys<'_>, model_type: &str) -> Result<Map<String, Value>> {
    let file = keys.file;
    let mut map = object(json!({
        "model_type": model_type,
        "hidden_size": keys.size("embedding_length")?,
        "intermediate_size": keys.size("feed_forward_length")?,
        "num_attention_heads": keys.size("attention.head_count")?,
        "num_hidden_layers": keys.layers()?,
        "vocab_size": file.rows("token_embd.weight"),
        "type_vocab_size": file.rows("token_types.weight").unwrap_or(0),
    }));
    file.int(TOKEN_TYPES)?;
    check_heads(keys)?;
    let context = keys.size("context_length")?;
    let eps = keys.positive_opt("attention.layer_norm_epsilon")?;
    let more = match model_type {
        "bert" => {
            // Rows before the first token are cut off.
            let positions = file.rows("position_embd.weight").unwrap_or(context);
            json!({"layer_norm_eps": eps, "max_position_embeddings": positions})
        }
        "modernbert" => {
            map.remove("type_vocab_size");
            json!({
                "norm_eps": eps, "max_position_embeddings": context,
                "hidden_activation": keys.text("hidden_activation")?.unwrap_or("gelu"),
                "local_attention": keys.size_opt("attention.sliding_window")?,
                "global_attn_every_n_layers": keys.size_opt("attention.sliding_window_pattern")?,
                "global_rope_theta": keys.positive_opt("rope.freq_base")?,
                "local_rope_theta": keys.positive_opt("rope.freq_base_swa")?,
            })
        }
        _ => json!({
            "layer_norm_eps": eps, "max_position_embeddings": context, "rope_theta": keys.positive_opt("rope.freq_base")?,
        }),
    };
    map.extend(object(more));
    Ok(map)
}

/// Refuses heads of other widths than an equal share of the residual stream.
fn check_heads(keys: &Keys<'_>) -> Result<()> {
    let head = keys.even_head_dim()?;
    for name in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        if keys.size_opt(name)?.is_some_and(|size| Some(size) != head) {
            return Err(keys.error(name, format!("{}, the width of a head", head.unwrap_or_default())));
        }
    }
    Ok(())
}

/// The pooling of documents' scores.
const RANK: i64 = 4;

/// The way of pooling that the file states. Vectors get length 1, as in llama.cpp.
///
/// # Errors
/// [`Error::Key`] for an unknown way.
pub(super) fn sentence(keys: &Keys<'_>) -> Result<Option<Sentence>> {
    let pooling = match keys.int(POOLING)? {
        None | Some(0) => return Ok(None),
        Some(1) => Pooling::Mean,
        Some(2) => Pooling::Cls,
        Some(3) => Pooling::Last,
        Some(RANK) => return Ok(None),
        Some(_) => return Err(keys.error(POOLING, "1 (mean), 2 (cls), 3 (last) or 4 (rank)")),
    };
    Ok(Some(pooled(pooling, dense(keys)?)))
}

/// Vectors of length 1 by a way of pooling and steps after it.
fn pooled(pooling: Pooling, mut steps: Vec<Step>) -> Sentence {
    steps.push(Step::Normalize);
    Sentence { is_stated: true, pooling: vec![pooling], steps, ..Sentence::default() }
}

/// Layers of the text vector.
fn dense(keys: &Keys<'_>) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for module in DENSE {
        let sizes = [keys.size_opt(&format!("{module}_feat_in"))?, keys.size_opt(&format!("{module}_feat_out"))?];
        let shape = keys.file.tensors.get(&format!("{module}.weight")).map(|tensor| tensor.shape.clone());
        let (Some(shape), [Some(inputs), Some(outputs)]) = (shape, sizes) else { continue };
        if shape != [outputs, inputs] {
            return Err(Error::tensor(format!("{module}.weight"), format!("shape [{outputs}, {inputs}]"), format!("{shape:?}")));
        }
        let activation = DenseActivation::Identity;
        steps.push(Step::Dense(Dense { module: module.into(), inputs, outputs, bias: false, activation }));
    }
    Ok(steps)
}

/// The task of a file with a decoder's layers.
pub(super) enum Task {
    /// The next token.
    Generate,
    /// A vector.
    Embed(Sentence),
    /// Scores with these names.
    Score(Vec<String>),
}

/// The task that the file of architecture `name` states by its way of pooling and its tensors.
///
/// # Errors
/// [`Error::Key`] for an unknown way of pooling, [`Error::Tensor`] for a damaged head.
pub(super) fn task(keys: &Keys<'_>, name: &str) -> Result<Task> {
    let file = keys.file;
    for other in [LABELS, "classifier.pooling_type"] {
        keys.get(other);
    }
    if keys.int(POOLING)? == Some(RANK)
        && let Some(outputs) = outputs(file)?
    {
        return Ok(Task::Score(labels(keys, outputs)));
    }
    let implied = || (name == LLAMA).then(|| pooled(Pooling::Mean, Vec::new()));
    Ok(sentence(keys)?.or_else(implied).map_or(Task::Generate, Task::Embed))
}

/// The program of a decoder's layers for a task.
///
/// # Errors
/// Errors of the decoder's layers.
pub(super) fn of_decoder(config: spec::DecoderConfig, task: Task, causal: bool) -> Result<Architecture> {
    let encoder = match task {
        Task::Generate => return Ok(Architecture::Decoder(config)),
        Task::Embed(sentence) => family::encoder_of(config, causal, sentence)?,
        Task::Score(labels) if labels == ["yes", "no"] => family::answering_by(config, "classifier.out_proj")?,
        Task::Score(labels) => {
            let weights = ScoreWeights::Module { name: "classifier.out_proj", bias: false };
            let scores = Scores { pooling: Some(Pooling::Last), hidden: None, pools_late: false, weights, labels };
            encoder::EncoderConfig { scores: Some(scores), ..family::encoder_of(config, causal, Sentence::default())? }
        }
    };
    Ok(Architecture::Encoder(Box::new(encoder)))
}

/// Names of the scores that the file states, or numbered ones.
fn labels(keys: &Keys<'_>, outputs: usize) -> Vec<String> {
    let stated = keys.file.texts(&keys.key(LABELS)).ok().map(<[String]>::to_vec).filter(|labels| labels.len() == outputs);
    stated.unwrap_or_else(|| (0..outputs).map(|i| format!("LABEL_{i}")).collect())
}

/// Tensors of BERT and its relatives by the program's names, and the file's names by these names.
pub(crate) fn tensors(file: &Gguf, config: &encoder::EncoderConfig) -> Result<Named> {
    let (mut out, mut names) = (IndexMap::new(), IndexMap::new());
    let mut add = |stored: String, name: String| -> Result<()> {
        if let Some(source) = fused::scaled(file, &stored)? {
            out.insert(name.clone(), source);
        }
        names.insert(name, stored);
        Ok(())
    };
    let is_modern = config.family == "modernbert";
    for part in ["weight", "bias"] {
        for (stored, name) in OUTER {
            let name = if is_modern && stored == "token_embd" { "embeddings.tok_embeddings" } else { name };
            add(format!("{stored}.{part}"), format!("{name}.{part}"))?;
        }
        for i in 0..config.layers.len() {
            let is_joined = matches!(config.layers[i].feed_forward, FeedForward::Mlp(mlp) if mlp.joined);
            for (stored, name) in LAYER.iter().chain(MODERN.iter().filter(|_| is_modern)) {
                let name = if is_joined && *stored == "ffn_up" { "mlp.gate_up_proj" } else { name };
                add(format!("blk.{i}.{stored}.{part}"), format!("layers.{i}.{name}.{part}"))?;
            }
        }
    }
    Ok((out, names))
}

/// Adds the layers of the text vector and the head to the tensors of a decoder.
///
/// # Errors
/// A tensor is damaged.
pub(super) fn add_head(file: &Gguf, config: &encoder::EncoderConfig, (tensors, names): &mut Named) -> Result<()> {
    let dense =
        config.sentence.layers().map(|dense| (format!("{}.weight", dense.module), format!("{}.linear.weight", dense.module)));
    let head = config.scores.iter().map(|_| ("cls.output.weight".to_owned(), "classifier.out_proj.weight".to_owned()));
    for (stored, name) in dense.chain(head) {
        if let Some(source) = file.source(&stored)? {
            tensors.insert(name.clone(), source);
        }
        names.insert(name, stored);
    }
    Ok(())
}
