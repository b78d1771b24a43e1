//! Text encoders: BERT and related families, with the pooling of sentence-transformers.

mod relative;

use flambeau_pt2::Exported;
use flambeau_tensor::DType;
use indexmap::IndexMap;

use crate::{
    Checkpoint, MethodConstant, Model, Options, Result,
    builder::{Int, Val},
    model::{self, Precision},
    spec::Activation,
    speech::decoder::float_caches,
    writer::Writer,
};

/// Largest number of texts of a call.
const MAX_BATCH: usize = 128;

/// Lower bound of a vector's length, as in `torch.nn.functional.normalize`.
const SHORTEST: f64 = 1e-12;

/// Hyperparameters of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// Name of the family in programs.
    pub(crate) family: &'static str,
    pub(crate) names: &'static Names,
    pub(crate) width: usize,
    /// Inner width of the feed-forward half.
    pub(crate) feed: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
    pub(crate) vocab: usize,
    /// Rows of the position table, and the row of the first token.
    pub(crate) positions: usize,
    pub(crate) first_position: usize,
    /// Number of token types, or 0 without token types. All tokens have the first type.
    pub(crate) token_types: usize,
    /// Buckets of relative position biases, or 0 without them.
    pub(crate) buckets: usize,
    pub(crate) activation: Activation,
    pub(crate) eps: f64,
    /// Element type of the checkpoint, if stated.
    pub(crate) dtype: Option<DType>,
    pub(crate) sentence: Sentence,
}

/// Conversion of token vectors to a text vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    pub(crate) pooling: Pooling,
    /// Whether vectors are scaled to length 1.
    pub(crate) normalizes: bool,
    /// Largest number of tokens of a text, including special tokens, if stated.
    pub(crate) max_tokens: Option<usize>,
}

impl Default for Sentence {
    /// Default of sentence-transformers for a folder without this setting.
    fn default() -> Sentence {
        Sentence { pooling: Pooling::Mean, normalizes: false, max_tokens: None }
    }
}

/// Reduction of the vectors of all tokens to one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The first token's vector.
    Cls,
    Mean,
    /// The largest value of each element.
    Max,
}

impl Pooling {
    /// Name in sentence-transformers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pooling::Cls => "cls",
            Pooling::Mean => "mean",
            Pooling::Max => "max",
        }
    }
}

/// Module names of a family.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// Prefix of the layer's number.
    pub(crate) layer: &'static str,
    /// Projections of queries, keys, values and the output.
    pub(crate) attention: [&'static str; 4],
    /// Norms after attention and after the feed-forward half.
    pub(crate) norms: [&'static str; 2],
    /// The wide and the narrow layer.
    pub(crate) feed: [&'static str; 2],
}

impl Config {
    /// Number of tokens that the position table can hold.
    pub(crate) fn room(&self) -> usize {
        self.positions - self.first_position
    }
}

/// Name of the token embedding, without a family's prefix.
pub(crate) const EMBEDDING: &str = "embeddings.word_embeddings.weight";

/// Normalizes the name of a tensor: strips the prefix of a family or task, and uses PyTorch's names
/// for the parts of norms.
pub(crate) fn tensor_name(name: &str) -> String {
    let name = ["bert.", "roberta.", "mpnet.", "distilbert."].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    // Checkpoints converted from TensorFlow keep its names.
    match (name.strip_suffix("LayerNorm.gamma"), name.strip_suffix("LayerNorm.beta")) {
        (Some(path), _) => format!("{path}LayerNorm.weight"),
        (_, Some(path)) => format!("{path}LayerNorm.bias"),
        _ => name.to_owned(),
    }
}

/// The program of a checkpoint, and the metadata for runners.
pub(crate) fn model(checkpoint: &Checkpoint, c: &Config, options: &Options) -> Result<Model> {
    float_caches(options, "a text encoder has no cache")?;
    let Precision { dtype, scales } = Precision::new(checkpoint, options)?;
    let default = c.sentence.max_tokens.map_or(c.room(), |most| most.min(c.room()));
    let tokens = model::ranged("max_seq_len", options.max_seq_len.unwrap_or(default), c.room())?;
    let parts = Parts { w: Writer::new(checkpoint, dtype, scales), c, dtype, tokens, sizes: [0.into(), 0.into()] };
    let methods = IndexMap::from([("forward", parts.forward()?)]);
    Ok(Model { methods, floats: Vec::new(), metadata: metadata(c, dtype, tokens), tokenizer: checkpoint.tokenizer().clone() })
}

struct Parts<'a> {
    w: Writer<'a>,
    c: &'a Config,
    dtype: DType,
    /// Largest number of tokens of a text.
    tokens: usize,
    /// Number of texts of a call, and of tokens per text.
    sizes: [Int; 2],
}

impl Parts<'_> {
    /// `input_ids` and `attention_mask` i64 [b, s] → f32 [b, width].
    fn forward(mut self) -> Result<Exported> {
        let b = self.w.b.symbol("s0", 1, MAX_BATCH);
        let s = self.w.b.symbol("s1", 1, self.tokens);
        let ids = self.w.b.input("input_ids", DType::I64, vec![b.clone(), s.clone()]);
        let mask = self.w.b.input("attention_mask", DType::I64, vec![b, s]);
        self.sizes = [self.w.b.size(&ids, 0), self.w.b.size(&ids, 1)];
        let is_text = self.w.b.at_least(&mask, 1);
        let seen = self.w.b.unsqueeze(&is_text, 1);
        let seen = self.w.b.unsqueeze(&seen, 1);
        let mut x = self.embedded(&ids)?;
        let seen = if self.c.buckets == 0 { seen } else { self.with_distances(&seen)? };
        for layer in 0..self.c.layers {
            x = self.layer(&x, &seen, &format!("{}.{layer}", self.c.names.layer))?;
        }
        let x = self.w.b.cast(&x, DType::F32);
        let pooled = self.pooled(&x, &is_text);
        let vector = if self.c.sentence.normalizes { self.normalized(&pooled) } else { pooled };
        self.w.b.finish(&[&vector])
    }

    /// Normalized sum of token, position and type embeddings, [b, s, width].
    fn embedded(&mut self, ids: &Val) -> Result<Val> {
        let &Config { vocab, width, positions, first_position, token_types, eps, .. } = self.c;
        self.w.b.enter("embeddings");
        let source = self.w.source(EMBEDDING, &[vocab, width])?;
        let table = self.w.matrix(EMBEDDING, &source)?;
        let mut x = self.w.b.embedding(&table, ids);
        let table = self.w.plain("embeddings.position_embeddings.weight", &[positions, width])?;
        let end = self.w.b.add_int(&self.sizes[1].clone(), &first_position.into());
        let places = self.w.b.slice(&table, 0, &first_position.into(), &end);
        x = self.w.b.add(&x, &places);
        if token_types > 0 {
            let table = self.w.plain("embeddings.token_type_embeddings.weight", &[token_types, width])?;
            let first = self.w.b.select(&table, 0, 0);
            x = self.w.b.add(&x, &first);
        }
        self.w.layer_norm(&x, "embeddings.LayerNorm", eps)
    }

    fn layer(&mut self, x: &Val, seen: &Val, path: &str) -> Result<Val> {
        let &Config { names, width, feed, heads, eps, .. } = self.c;
        let [query, key, value, output] = names.attention.map(|name| format!("{path}.{name}"));
        let [q, k, v] = [self.heads(x, &query)?, self.heads(x, &key)?, self.heads(x, &value)?];
        self.w.b.enter(path);
        let scale = ((width / heads) as f64).sqrt().recip();
        let attended = self.w.b.attention_over_all([&q, &k, &v], Some(seen), scale);
        let joined = self.w.b.transpose(&attended, 1, 2);
        let [b, s] = self.sizes.clone();
        let joined = self.w.b.reshape(&joined, &[b, s, width.into()]);
        let mixed = self.w.linear(&joined, &output, width, true)?;
        let x = self.w.b.add(&mixed, x);
        let x = self.w.layer_norm(&x, &format!("{path}.{}", names.norms[0]), eps)?;
        let wide = self.w.linear(&x, &format!("{path}.{}", names.feed[0]), feed, true)?;
        let wide = self.activated(&wide);
        let narrow = self.w.linear(&wide, &format!("{path}.{}", names.feed[1]), width, true)?;
        let x = self.w.b.add(&narrow, &x);
        self.w.layer_norm(&x, &format!("{path}.{}", names.norms[1]), eps)
    }

    /// `x` [b, s, width] through the projection `path`, as [b, heads, s, dim].
    fn heads(&mut self, x: &Val, path: &str) -> Result<Val> {
        let &Config { width, heads, .. } = self.c;
        let x = self.w.linear(x, path, width, true)?;
        let [b, s] = self.sizes.clone();
        let x = self.w.b.reshape(&x, &[b, s, heads.into(), (width / heads).into()]);
        Ok(self.w.b.transpose(&x, 1, 2))
    }

    fn activated(&mut self, x: &Val) -> Val {
        match self.c.activation {
            Activation::Silu => self.w.b.silu(x),
            Activation::GeluTanh => self.w.b.gelu(x, true),
            _ => self.w.b.gelu(x, false),
        }
    }

    /// Pools the vectors [b, s, width] of text tokens, as marked by `is_text` [b, s], to one vector
    /// [b, width].
    fn pooled(&mut self, x: &Val, is_text: &Val) -> Val {
        let b = &mut self.w.b;
        match self.c.sentence.pooling {
            Pooling::Cls => b.select(x, 1, 0),
            Pooling::Mean => {
                let weight = b.cast(is_text, DType::F32);
                let count = b.sum(&weight);
                let weight = b.unsqueeze(&weight, 2);
                let x = b.mul(x, &weight);
                let sum = b.sum_over(&x, 1);
                b.div(&sum, &count)
            }
            Pooling::Max => {
                let is_padding = b.not(is_text);
                let is_padding = b.unsqueeze(&is_padding, 2);
                let x = b.masked_fill(x, &is_padding, f64::NEG_INFINITY);
                b.largest_over(&x, 1)
            }
        }
    }

    /// `x` [b, width] with rows scaled to length 1.
    fn normalized(&mut self, x: &Val) -> Val {
        let b = &mut self.w.b;
        let squares = b.mul(x, x);
        let sum = b.sum(&squares);
        let length = b.sqrt(&sum);
        let length = b.clamp(&length, SHORTEST, f64::INFINITY);
        b.div(x, &length)
    }
}

/// Constant methods read by the runner.
fn metadata(c: &Config, dtype: DType, tokens: usize) -> Vec<(String, MethodConstant)> {
    let size = |v: usize| MethodConstant::Int(v as i64);
    let out = [
        ("get_model_type", MethodConstant::Text(c.family.into())),
        ("get_dtype", MethodConstant::Int(i64::from(dtype.code()))),
        ("get_max_seq_len", size(tokens)),
        ("get_max_batch_size", size(MAX_BATCH)),
        ("get_vocab_size", size(c.vocab)),
        ("get_embedding_dim", size(c.width)),
        ("get_pooling", MethodConstant::Text(c.sentence.pooling.name().into())),
        ("is_normalized", MethodConstant::Bool(c.sentence.normalizes)),
    ];
    out.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
