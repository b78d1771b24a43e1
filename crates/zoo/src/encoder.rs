//! Text encoders: BERT and later families, decoders that serve as encoders, and the modules of
//! sentence-transformers after them.

mod experts;
mod layers;
mod masks;
mod relative;
mod scores;
mod sentence;
mod sparse;

use flambeau_tensor::{DType, Tensor};
use indexmap::IndexMap;

pub(crate) use self::{
    scores::{Hidden, ScoreWeights, Scores},
    sentence::{Dense, DenseActivation, Pooling, Prompts, Sentence, SparsePooling, Step},
    sparse::Sparse,
};

use self::{layers::RopeTable, masks::Masks};
use crate::{
    Checkpoint, Error, MethodConstant, Model, Options, Result,
    block::Written,
    builder::{Int, Val},
    model::adapter_facts,
    options::{self, Precision, float_caches},
    spec::{self, Layer, Norm},
    writer::Writer,
};

/// Largest number of texts of a call.
const MAX_BATCH: usize = 128;

/// Hyperparameters of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EncoderConfig {
    /// Name of the family in programs.
    pub(crate) family: &'static str,
    pub(crate) width: usize,
    pub(crate) vocab: usize,
    /// Largest number of tokens of a text.
    pub(crate) room: usize,
    pub(crate) embedding: Embedding,
    /// Prefix of a layer's number.
    pub(crate) root: &'static str,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Norm,
    /// Whether the norms after the halves of a layer apply to the sum with the residual stream.
    pub(crate) norms_sums: bool,
    /// The norm after the last layer.
    pub(crate) final_norm: Option<&'static str>,
    /// Whether a token sees only itself and earlier tokens.
    pub(crate) causal: bool,
    /// Biases of the scores by distance, if there are any.
    pub(crate) distances: Option<Distances>,
    /// Prefixes of tensor names that a family or a task adds.
    pub(crate) prefixes: &'static [&'static str],
    /// Replacements in the names of tensors, applied in order, that give the names of this config.
    pub(crate) renames: &'static [(&'static str, &'static str)],
    /// Element type of the checkpoint, if stated.
    pub(crate) dtype: Option<DType>,
    /// Whether activations stay below 65504, the largest number of f16.
    pub(crate) fits_f16: bool,
    /// Name of a language model's head, if it has one beside the embedding.
    pub(crate) head: Option<&'static str>,
    pub(crate) sentence: Sentence,
    /// Adapters in the checkpoint, if it has some.
    pub(crate) tasks: Option<Tasks>,
    /// The head of sparse vectors, if texts get these.
    pub(crate) sparse: Option<Sparse>,
    /// The head, if texts get scores and not vectors.
    pub(crate) scores: Option<Scores>,
    /// Text before and after a query and a document, for a language model that scores them.
    pub(crate) template: Option<String>,
}

/// The input of the first layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Embedding {
    /// Name of the table of tokens.
    pub(crate) table: &'static str,
    /// Factor on rows of the table.
    pub(crate) scale: f64,
    /// Learned positions, if there are any.
    pub(crate) positions: Option<Positions>,
    /// Number of token types, or 0 without token types. Tokens have the first type, except the
    /// second text of a scored pair.
    pub(crate) token_types: usize,
    /// The norm of the sum, if there is one.
    pub(crate) norm: Option<&'static str>,
}

/// Adapters in the checkpoint itself, one for each task. Programs apply the chosen one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tasks {
    /// Names of the tasks, in the order of the stored factors.
    pub(crate) names: Vec<String>,
    /// Factor on the updates, times their rank.
    pub(crate) alpha: f64,
}

/// A table of learned positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Positions {
    pub(crate) rows: usize,
    /// Row of the first token.
    pub(crate) first: usize,
}

/// Biases of the scores by the distance of a key from its query, one per head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distances {
    /// Learned, one for each bucket of distances.
    Learned { buckets: usize, heads: usize },
    /// Proportional to the distance, with fixed slopes (ALiBi).
    Slopes { heads: usize },
}

/// Name of BERT's table of tokens, without a family's prefix.
pub(crate) const EMBEDDING: &str = "embeddings.word_embeddings.weight";

impl Embedding {
    /// BERT's table of tokens with its norm, without positions and token types.
    pub(crate) const BERT: Embedding =
        Embedding { table: EMBEDDING, scale: 1.0, positions: None, token_types: 0, norm: Some("embeddings.LayerNorm") };
}

impl EncoderConfig {
    /// An encoder in the form of BERT without layers. Each half of a layer has one norm after its
    /// sum, attention sees the whole text, and there is no head.
    pub(crate) fn new(family: &'static str, [width, vocab, room]: [usize; 3], norm: Norm, sentence: Sentence) -> EncoderConfig {
        EncoderConfig {
            family,
            width,
            vocab,
            room,
            embedding: Embedding::BERT,
            root: "layers",
            layers: Vec::new(),
            norm,
            norms_sums: true,
            final_norm: None,
            causal: false,
            distances: None,
            prefixes: &[],
            renames: &[],
            dtype: None,
            fits_f16: true,
            head: None,
            sentence,
            tasks: None,
            sparse: None,
            scores: None,
            template: None,
        }
    }

    /// Whether the layers are a decoder's.
    pub(crate) fn is_decoder(&self) -> bool {
        self.embedding.table == spec::EMBEDDING
    }

    /// Whether the program takes the types of tokens, which tell the texts of a pair apart.
    fn takes_types(&self) -> bool {
        self.scores.as_ref().is_some_and(|scores| scores.pooling.is_some()) && self.embedding.token_types > 1
    }

    /// The name of a tensor in this config: without the prefix of a family or task, and with
    /// PyTorch's names for the parts of norms.
    pub(crate) fn tensor_name(&self, name: &str) -> String {
        let name = self.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        // Checkpoints converted from TensorFlow keep its names.
        let name = match (name.strip_suffix("LayerNorm.gamma"), name.strip_suffix("LayerNorm.beta")) {
            (Some(path), _) => format!("{path}LayerNorm.weight"),
            (_, Some(path)) => format!("{path}LayerNorm.bias"),
            _ => name.to_owned(),
        };
        self.renames.iter().fold(name, |name, (from, to)| name.replace(from, to))
    }
}

/// The program of a checkpoint, and the metadata for runners.
pub(crate) fn model(checkpoint: &Checkpoint, c: &EncoderConfig, options: &Options) -> Result<Model> {
    float_caches(options, "a text encoder has no cache")?;
    let Precision { dtype, scales } = Precision::new(checkpoint, options)?;
    let default = c.sentence.max_tokens.map_or(c.room, |most| most.min(c.room));
    let tokens = options::ranged("max_seq_len", options.max_seq_len.unwrap_or(default), c.room)?;
    let w = Writer::new(checkpoint, dtype, scales);
    let parts = Parts { w, c, dtype, tokens, sizes: [0.into(), 0.into()], ropes: RopeTable::default(), masks: Masks::default() };
    let (program, floats) = parts.forward()?;
    let methods = IndexMap::from([("forward", program)]);
    let mut metadata = metadata(c, dtype, tokens);
    metadata.extend(adapter_facts(checkpoint.adapters()));
    Ok(Model { methods, floats, metadata, tokenizer: checkpoint.tokenizer().clone() })
}

struct Parts<'a> {
    w: Writer<'a>,
    c: &'a EncoderConfig,
    dtype: DType,
    /// Largest number of tokens of a text.
    tokens: usize,
    /// Number of texts of a call, and of tokens per text.
    sizes: [Int; 2],
    ropes: RopeTable,
    masks: Masks,
}

impl Parts<'_> {
    /// `input_ids`, `attention_mask` and possibly `token_type_ids` i64 [b, s] → f32 [b, width], or
    /// [b, s, labels] if each token gets scores. The last input of a checkpoint with adapters is
    /// `adapter_scales` f32 `[tasks]`.
    fn forward(mut self) -> Result<Written> {
        let b = self.w.b.symbol("s0", 1, MAX_BATCH);
        let s = self.w.b.symbol("s1", 1, self.tokens);
        let ids = self.w.b.input("input_ids", DType::I64, vec![b.clone(), s.clone()]);
        let mask = self.w.b.input("attention_mask", DType::I64, vec![b.clone(), s.clone()]);
        let types = self.c.takes_types().then(|| self.w.b.input("token_type_ids", DType::I64, vec![b, s]));
        self.w.take_adapters()?;
        self.sizes = [self.w.b.size(&ids, 0), self.w.b.size(&ids, 1)];
        let is_text = self.w.b.at_least(&mask, 1);
        self.masks = Masks::new(&mut self.w.b, &is_text);
        let mut x = self.embedded(&ids, types.as_ref())?;
        for (i, layer) in self.c.layers.iter().enumerate() {
            x = self.layer(&x, layer, &format!("{}.{i}", self.c.root))?;
        }
        if let Some(norm) = self.c.final_norm {
            x = self.w.norm(&x, norm, self.c.norm)?;
        }
        let result = match (&self.c.scores, &self.c.sparse) {
            (Some(scores), _) => self.scores(&x, &is_text, scores)?,
            (None, Some(sparse)) => self.sparse_vector(&x, &is_text, sparse)?,
            (None, None) => self.text_vector(&x, &is_text)?,
        };
        self.w.check_adapters()?;
        let floats = self.w.b.take_floats();
        Ok((self.w.b.finish(&[&result])?, floats))
    }

    /// Sum of token, position and type embeddings, [b, s, width].
    fn embedded(&mut self, ids: &Val, types: Option<&Val>) -> Result<Val> {
        let &EncoderConfig { vocab, width, embedding: Embedding { table: name, scale, positions, token_types, norm }, .. } = self.c;
        self.w.b.enter("embeddings");
        let source = self.w.source(name, &[vocab, width])?;
        let table = self.w.matrix(name, &source)?;
        let x = self.w.b.embedding(&table, ids);
        let x = self.w.updated_rows(x, ids, name, &source)?;
        let mut x = self.w.b.scale(&x, scale);
        if let Some(Positions { rows, first }) = positions {
            let table = self.w.plain("embeddings.position_embeddings.weight", &[rows, width])?;
            let end = self.w.b.add_int(&self.sizes[1].clone(), &first.into());
            let places = self.w.b.slice(&table, 0, &first.into(), &end);
            x = self.w.b.add(&x, &places);
        }
        if token_types > 0 {
            let rows = self.type_rows(types, [token_types, width])?;
            x = self.w.b.add(&x, &rows);
        }
        norm.map_or_else(|| Ok(x.clone()), |norm| self.w.norm(&x, norm, self.c.norm))
    }

    /// Rows of the table of token types [types, width]: for the types of all tokens, or the first.
    fn type_rows(&mut self, types: Option<&Val>, shape: [usize; 2]) -> Result<Val> {
        const NAME: &str = "embeddings.token_type_embeddings.weight";
        let source = self.w.source(NAME, &shape)?;
        let table = self.w.value_of(NAME, &source)?;
        if let Some(types) = types {
            let rows = self.w.b.embedding(&table, types);
            return self.w.updated_rows(rows, types, NAME, &source);
        }
        let row = self.w.b.select(&table, 0, 0);
        if source.updates().is_empty() {
            return Ok(row);
        }
        let first = Tensor::from_slice(&[0i64], &[1, 1]).map_err(|error| Error::tensor(NAME, "a row", error.to_string()))?;
        let first = self.w.b.constant("first_token_type", &first);
        self.w.updated_rows(row, &first, NAME, &source)
    }
}

/// Constant methods read by the runner.
fn metadata(c: &EncoderConfig, dtype: DType, tokens: usize) -> Vec<(String, MethodConstant)> {
    let size = |v: usize| MethodConstant::Int(v as i64);
    let mut out = vec![
        ("get_model_type", MethodConstant::Text(c.family.into())),
        ("get_dtype", MethodConstant::Int(i64::from(dtype.code()))),
        ("get_max_seq_len", size(tokens)),
        ("get_max_batch_size", size(MAX_BATCH)),
        ("get_vocab_size", size(c.vocab)),
    ];
    if let Some(scores) = &c.scores {
        let name = if scores.pooling.is_some() { "get_labels" } else { "get_token_labels" };
        out.push((name, MethodConstant::Text(serde_json::json!(scores.labels).to_string())));
        out.extend(c.template.clone().map(|template| ("get_pair_template", MethodConstant::Text(template))));
    } else {
        let (width, pooling) = match &c.sparse {
            Some(Sparse { pooling, .. }) => (c.vocab, if pooling.sums { "splade-sum".into() } else { "splade-max".into() }),
            None => (c.sentence.width(c.width), c.sentence.pooling_name()),
        };
        out.push(("get_embedding_dim", size(width)));
        out.push(("get_pooling", MethodConstant::Text(pooling)));
        out.push(("is_normalized", MethodConstant::Bool(c.sentence.normalizes())));
        let Prompts { texts, default } = &c.sentence.prompts;
        if !texts.is_empty() {
            out.push(("get_prompts", MethodConstant::Text(serde_json::json!(texts).to_string())));
        }
        out.extend(default.clone().map(|name| ("get_default_prompt", MethodConstant::Text(name))));
    }
    out.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
