//! The decoder that all families are forms of.

use flambeau_tensor::{DType, Expr, Tensor, cast};

use crate::{
    Checkpoint, CheckpointTensor, Config, Error, Logits, Result,
    builder::{Builder, Int, Rotary, Val},
    checkpoint::{EMBEDDING, HEAD},
    source::Read,
};

/// What a build asks for, all of it decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) dtype: DType,
    /// Type of the scales of packed weights; `None` is the exact one.
    pub(crate) scales: Option<DType>,
    /// Rows of the caches.
    pub(crate) positions: usize,
    /// Most tokens of a call.
    pub(crate) chunk: usize,
    pub(crate) logits: Logits,
}

/// Writes the program of one checkpoint.
pub(crate) struct Decoder<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    settings: Settings,
    b: Builder,
    rotary: Rotary,
    /// Factor [D] on queries, where cosines and sines have one.
    amplitude: Option<Val>,
    /// Number of tokens and place of the first one.
    tokens: Int,
    pos: Int,
}

impl<'a> Decoder<'a> {
    /// A program that has its inputs; returns the token ids with it.
    pub(crate) fn new(checkpoint: &'a Checkpoint, settings: Settings) -> Result<(Decoder<'a>, Val)> {
        let config = checkpoint.config();
        let mut b = Builder::default();
        b.enter("model.rotary_emb");
        let (rotary, amplitude) = rotary(&mut b, config, settings)?;
        b.enter("model");
        let s = b.symbol("s0", 1, settings.chunk);
        let start = b.symbol("u0", 0, settings.positions - 1);
        let ids = b.input("input_ids", DType::I64, vec![Expr::Int(1), s.clone()]);
        let places = b.input("cache_position", DType::I64, vec![s]);
        let tokens = b.size(&ids, 1);
        let pos = b.first(&places, start);
        Ok((Decoder { checkpoint, config, settings, b, rotary, amplitude, tokens, pos }, ids))
    }

    /// Writes everything from token ids [1, s] to logits.
    pub(crate) fn write(mut self, ids: &Val) -> Result<flambeau_pt2::Exported> {
        let c = self.config;
        self.b.enter("model.embed_tokens");
        let table = self.matrix(EMBEDDING, &self.source(EMBEDDING, &[c.vocab, c.hidden])?)?;
        let mut x = self.b.embedding(&table, ids);
        for layer in 0..c.layers {
            let path = format!("model.layers.{layer}");
            let normed = self.norm(&x, &format!("{path}.input_layernorm"), c.hidden)?;
            let attended = self.attention(&normed, layer, &format!("{path}.self_attn"))?;
            x = self.b.add(&x, &attended);
            let normed = self.norm(&x, &format!("{path}.post_attention_layernorm"), c.hidden)?;
            let gated = self.mlp(&normed, &format!("{path}.mlp"))?;
            x = self.b.add(&x, &gated);
        }
        if self.settings.logits == Logits::Last {
            self.b.enter("model");
            x = self.b.last_position(&x);
        }
        x = self.norm(&x, "model.norm", c.hidden)?;
        self.b.enter("lm_head");
        let head = if c.tied == Some(true) { EMBEDDING } else { HEAD };
        let head = self.matrix(head, &self.source(head, &[c.vocab, c.hidden])?)?;
        let logits = self.b.linear(&x, &head, None);
        self.b.finish(&logits)
    }

    /// The tensor of that name, which must have that shape.
    fn source(&self, name: &str, shape: &[usize]) -> Result<CheckpointTensor> {
        let source = self.checkpoint.tensors().get(name).ok_or_else(|| Error::MissingTensor(name.into()))?;
        if source.shape() != shape {
            return Err(Error::tensor(name, format!("shape {shape:?}"), format!("{:?}", source.shape())));
        }
        Ok(source.clone())
    }

    /// Rows `from..from + n` of a joined matrix of `rows`.
    fn part(&self, name: &str, rows: usize, from: usize, n: usize) -> Result<CheckpointTensor> {
        let whole = self.source(name, &[rows, self.config.hidden])?;
        whole.slice(from, n).ok_or_else(|| Error::tensor(name, "rows in plain order", "interleaved ones"))
    }

    /// A weight matrix, with its dequantization where it is packed: one call for each use, as captured programs have it.
    fn matrix(&mut self, name: &str, source: &CheckpointTensor) -> Result<Val> {
        Ok(match source.read(name, self.settings.dtype, self.settings.scales)? {
            Read::Plain(weight) => self.b.parameter(name, weight),
            Read::Packed { parts, bits, group } => {
                let [words, scales, biases] = *parts;
                let words = self.b.parameter(&format!("{name}.words"), words);
                let scales = self.b.parameter(&format!("{name}.scales"), scales);
                let biases = self.b.parameter(&format!("{name}.biases"), biases);
                self.b.dequantize([&words, &scales, &biases], group, bits, self.settings.dtype)
            }
        })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Val> {
        match self.source(name, &[len])?.read(name, self.settings.dtype, None)? {
            Read::Plain(weight) => Ok(self.b.parameter(name, weight)),
            Read::Packed { .. } => Err(Error::tensor(name, "a vector of floats", "a quantized one")),
        }
    }

    fn norm(&mut self, x: &Val, path: &str, len: usize) -> Result<Val> {
        self.b.enter(path);
        let weight = self.vector(&format!("{path}.weight"), len)?;
        Ok(self.b.rms_norm(x, &weight, self.config.norm_eps))
    }

    /// The projection of module `path` to `rows` outputs out of `cols` inputs.
    fn linear(&mut self, x: &Val, path: &str, [rows, cols]: [usize; 2], bias: bool) -> Result<Val> {
        let name = format!("{path}.weight");
        let source = self.source(&name, &[rows, cols])?;
        self.project(x, path, &name, &source, bias)
    }

    fn project(&mut self, x: &Val, path: &str, name: &str, source: &CheckpointTensor, bias: bool) -> Result<Val> {
        self.b.enter(path);
        let weight = self.matrix(name, source)?;
        let rows = source.shape().first().copied().unwrap_or(0);
        let bias = if bias { Some(self.vector(&format!("{path}.bias"), rows)?) } else { None };
        Ok(self.b.linear(x, &weight, bias.as_ref()))
    }

    /// Queries, keys and values [1, s, H·D].
    fn qkv(&mut self, x: &Val, path: &str) -> Result<[Val; 3]> {
        let c = self.config;
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        if c.fused {
            let joined = format!("{path}.qkv_proj");
            let mut one = |part: &str, from, n| {
                let source = self.part(&format!("{joined}.weight"), q + 2 * kv, from, n)?;
                self.project(x, &joined, &format!("{joined}.{part}.weight"), &source, false)
            };
            return Ok([one("q", 0, q)?, one("k", q, kv)?, one("v", q + kv, kv)?]);
        }
        let mut one = |part: &str, rows| self.linear(x, &format!("{path}.{part}_proj"), [rows, c.hidden], c.biases.qkv);
        Ok([one("q", q)?, one("k", kv)?, one("v", kv)?])
    }

    /// `x` [1, s, heads·D] as [1, heads, s, D], normalized per head by `norm` if the family does so.
    fn heads(&mut self, x: &Val, heads: usize, norm: Option<&str>) -> Result<Val> {
        let dim = self.config.head_dim;
        let sizes = [Int::from(1), self.tokens.clone(), heads.into(), dim.into()];
        let mut x = self.b.reshape(x, &sizes);
        if let Some(path) = norm.filter(|_| self.config.qk_norm) {
            x = self.norm(&x, path, dim)?;
        }
        Ok(self.b.transpose(&x, 1, 2))
    }

    fn attention(&mut self, x: &Val, layer: usize, path: &str) -> Result<Val> {
        let c = self.config;
        let [q, k, v] = self.qkv(x, path)?;
        self.b.enter(path);
        let q = self.heads(&q, c.heads, Some(&format!("{path}.q_norm")))?;
        let k = self.heads(&k, c.kv_heads, Some(&format!("{path}.k_norm")))?;
        let v = self.heads(&v, c.kv_heads, None)?;
        self.b.enter(path);
        let mut q = self.b.rope(&q, &self.pos, &self.rotary);
        let k = self.b.rope(&k, &self.pos, &self.rotary);
        if let Some(amplitude) = &self.amplitude {
            q = self.b.mul(&q, amplitude);
        }
        let shape = vec![1, c.kv_heads, self.settings.positions, c.head_dim];
        let keys = self.b.buffer(&format!("key_cache_{layer}"), self.settings.dtype, shape.clone())?;
        let values = self.b.buffer(&format!("value_cache_{layer}"), self.settings.dtype, shape)?;
        self.b.cache_update(&keys, &k, &self.pos);
        self.b.cache_update(&values, &v, &self.pos);
        let scale = (c.head_dim as f64).sqrt().recip();
        let attended = self.b.attention([&q, &keys, &values], &self.pos, scale);
        let joined = self.b.transpose(&attended, 1, 2);
        let width = c.heads * c.head_dim;
        let joined = self.b.reshape(&joined, &[Int::from(1), self.tokens.clone(), width.into()]);
        self.linear(&joined, &format!("{path}.o_proj"), [c.hidden, width], c.biases.output)
    }

    fn mlp(&mut self, x: &Val, path: &str) -> Result<Val> {
        let c = self.config;
        let n = c.intermediate;
        let (gate, up) = if c.fused {
            let joined = format!("{path}.gate_up_proj");
            let mut one = |part: &str, from| {
                let source = self.part(&format!("{joined}.weight"), 2 * n, from, n)?;
                self.project(x, &joined, &format!("{joined}.{part}.weight"), &source, false)
            };
            (one("gate", 0)?, one("up", n)?)
        } else {
            let mut one = |part: &str| self.linear(x, &format!("{path}.{part}_proj"), [n, c.hidden], c.biases.mlp);
            (one("gate")?, one("up")?)
        };
        self.b.enter(path);
        let gate = self.b.silu(&gate);
        let gated = self.b.mul(&gate, &up);
        self.linear(&gated, &format!("{path}.down_proj"), [c.hidden, n], c.biases.mlp)
    }
}

/// Constants of the rotary embedding. The amplitude belongs on rotated queries and keys alike; since only their products count,
/// queries alone carry its square.
fn rotary(b: &mut Builder, config: &Config, settings: Settings) -> Result<(Rotary, Option<Val>)> {
    let resolved = config.rope.resolve(settings.positions);
    let periods = resolved.periods.map(|periods| vector(b, "rope_periods", &periods, DType::F32)).transpose()?;
    let square = (resolved.amplitude * resolved.amplitude) as f32;
    let factors: Vec<f32> = (0..config.head_dim).map(|i| if i < config.rope.dims { square } else { 1.0 }).collect();
    let amplitude = (square != 1.0).then(|| vector(b, "rope_amplitude", &factors, settings.dtype)).transpose()?;
    let (dims, base) = (config.rope.dims, config.rope.theta);
    Ok((Rotary { dims, base, scale: resolved.scale, periods }, amplitude))
}

fn vector(b: &mut Builder, name: &str, values: &[f32], dtype: DType) -> Result<Val> {
    let tensor = Tensor::from_slice(values, &[values.len()]).and_then(|t| cast(&t, dtype));
    let tensor = tensor.map_err(|e| Error::tensor(name, format!("{dtype} elements"), e.to_string()))?;
    Ok(b.constant(name, &tensor))
}
