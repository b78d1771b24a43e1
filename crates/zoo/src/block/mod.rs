//! Writes the program of a decoder, block by block. A [`Config`] describes the blocks, and a
//! [`Checkpoint`] holds the weights.

mod attention;
mod cache;
mod conditioned;
mod delta;
mod experts;
mod key_decay;
mod latent;
mod mamba;
mod mask;
mod mlp;
mod per_layer;
mod streams;

use flambeau_pt2::Exported;
use flambeau_tensor::{DType, Expr, Tensor, cast};

use crate::{
    Checkpoint, Error, Logits, Result,
    builder::{Builder, Int, Rotary, Val},
    options::Settings,
    rope::Rope,
    spec::{DecoderConfig, EMBEDDING, FeedForward, HEAD, HEAD_BIAS, Layer, Mixer, Norm, Values},
    writer::Writer,
};

use self::{cache::Cache, mask::Masks};

/// Constants of a rotary embedding.
#[derive(Clone, Debug)]
pub(crate) struct RopeConstants {
    pub(crate) rotary: Rotary,
    /// Factor [D] on queries, if cosines and sines are scaled.
    pub(crate) amplitude: Option<Val>,
}

/// Positions of the tokens of a call.
#[derive(Clone, Debug)]
struct Span {
    /// Number of tokens and position of the first one.
    tokens: Int,
    pos: Int,
}

/// Writes the program of one checkpoint.
pub(crate) struct Decoder<'a> {
    pub(crate) w: Writer<'a>,
    config: &'a DecoderConfig,
    settings: Settings,
    /// Rotary embeddings by parameters and number of head elements.
    ropes: Vec<((Rope, usize), RopeConstants)>,
    span: Span,
    masks: Masks,
    /// Caches of keys and values by layer.
    caches: Vec<Option<Cache>>,
}

/// A program, and the names of weights that are not quantized.
pub(crate) type Written = (Exported, Vec<String>);

/// Writes the program from token ids [1, s] to logits.
pub(crate) fn program(checkpoint: &Checkpoint, config: &DecoderConfig, settings: Settings) -> Result<Written> {
    let mut w = Writer::new(checkpoint, settings.dtype, settings.scales);
    let s = w.b.symbol("s0", 1, settings.chunk);
    let ids = w.b.input("input_ids", DType::I64, vec![Expr::Int(1), s.clone()]);
    let places = w.b.input("cache_position", DType::I64, vec![s]);
    w.take_adapters()?;
    let mut decoder = Decoder::new(w, config, settings, places)?;
    let x = embedded(&mut decoder.w, config, &ids)?;
    let x = decoder.placed(x)?;
    let per_layer = config.per_layer.map(|p| decoder.per_layer_inputs(&p, &ids, &x)).transpose()?;
    decoder.logits(x, per_layer)
}

/// Writes the program from rows of the embedding, or vectors in their place, [1, s, hidden] to
/// logits.
pub(crate) fn program_of_embeddings(checkpoint: &Checkpoint, config: &DecoderConfig, settings: Settings) -> Result<Written> {
    let mut w = Writer::new(checkpoint, settings.dtype, settings.scales);
    let s = w.b.symbol("s0", 1, settings.chunk);
    let x = w.b.input("inputs_embeds", settings.dtype, vec![Expr::Int(1), s.clone(), Expr::Int(config.hidden as i64)]);
    let places = w.b.input("cache_position", DType::I64, vec![s]);
    Decoder::new(w, config, settings, places)?.logits(x, None)
}

/// Writes the program from token ids [1, s] to rows of the embedding [1, s, hidden].
pub(crate) fn embedding_program(checkpoint: &Checkpoint, config: &DecoderConfig, settings: Settings) -> Result<Exported> {
    let mut w = Writer::new(checkpoint, settings.dtype, settings.scales);
    let s = w.b.symbol("s0", 1, settings.chunk);
    let ids = w.b.input("token_ids", DType::I64, vec![Expr::Int(1), s]);
    let x = embedded(&mut w, config, &ids)?;
    w.b.finish(&[&x])
}

/// Rows of the embedding [1, s, hidden] for token ids [1, s].
fn embedded(w: &mut Writer<'_>, config: &DecoderConfig, ids: &Val) -> Result<Val> {
    w.b.enter("model.embed_tokens");
    let source = w.source(EMBEDDING, &[config.vocab, config.embedding_width.unwrap_or(config.hidden)])?;
    let table = w.matrix(EMBEDDING, &source)?;
    let x = w.b.embedding(&table, ids);
    let x = w.updated_rows(x, ids, EMBEDDING, &source)?;
    let mut x = w.b.scale(&x, config.embedding_scale);
    if config.embedding_width.is_some() {
        x = w.linear(&x, "model.project_in", config.hidden, false)?;
    }
    match config.embedding_norm {
        Some(kind) => w.norm(&x, "model.embedding_norm", Norm { kind, ..config.norm }),
        None => Ok(x),
    }
}

impl<'a> Decoder<'a> {
    /// Creates a decoder for tokens at consecutive positions [s].
    pub(crate) fn new(mut w: Writer<'a>, config: &'a DecoderConfig, settings: Settings, places: Val) -> Result<Decoder<'a>> {
        let b = &mut w.b;
        b.enter(format!("{}.rotary_emb", config.root));
        let ropes = ropes(b, config, settings)?;
        b.enter(config.root);
        let start = b.symbol("u0", 0, settings.positions - 1);
        let tokens = b.size(&places, 0);
        let (first, pos) = b.first(&places, start);
        let masks = Masks::new(places, first);
        let caches = vec![None; config.layers.len()];
        Ok(Decoder { w, config, settings, ropes, span: Span { tokens, pos }, masks, caches })
    }

    /// Adds learned positions to rows of the embedding [1, s, hidden], if there are any.
    fn placed(&mut self, x: Val) -> Result<Val> {
        let c = self.config;
        let Some(first) = c.learned_positions else { return Ok(x) };
        const TABLE: &str = "model.embed_positions.weight";
        self.w.b.enter("model.embed_positions");
        let stored = self.w.tensors().get(TABLE).map_or(0, |table| table.shape().first().copied().unwrap_or(0));
        let table = self.w.plain(TABLE, &[stored.max(self.settings.positions + first), c.hidden])?;
        let places = self.masks.places();
        let places = self.w.b.shift(&places, first as f64);
        let added = self.w.b.embedding(&table, &places);
        Ok(self.w.b.add(&x, &added))
    }

    /// Ends the program with the logits of the last layer's output.
    fn logits(mut self, x: Val, per_layer: Option<Val>) -> Result<Written> {
        let c = self.config;
        let mut x = self.layers(x, per_layer)?;
        if let Some(width) = c.embedding_width {
            x = self.w.linear(&x, "model.project_out", width, false)?;
        }
        self.w.b.enter("lm_head");
        let name = if c.tied == Some(true) { EMBEDDING } else { HEAD };
        let source = self.w.source(name, &[c.vocab, c.embedding_width.unwrap_or(c.hidden)])?;
        let head = self.w.matrix(name, &source)?;
        let bias = c.head_bias.then(|| self.w.vector(HEAD_BIAS, c.vocab)).transpose()?;
        let logits = self.w.b.linear(&x, &head, bias.as_ref());
        let logits = self.w.updated(logits, &x, name, &source)?;
        let mut logits = self.w.b.divide(&logits, c.logits_divisor);
        if let Some(cap) = c.logits_cap {
            logits = self.w.b.soft_cap(&logits, cap);
        }
        self.w.check_adapters()?;
        let floats = self.w.b.take_floats();
        Ok((self.w.b.finish(&[&logits])?, floats))
    }

    /// All layers and the norm after them, for the positions that need logits.
    pub(crate) fn layers(&mut self, mut x: Val, mut per_layer: Option<Val>) -> Result<Val> {
        let c = self.config;
        let last_only = self.settings.logits == Logits::Last;
        let mut narrowed = false;
        if let Some(streams) = &c.streams {
            x = self.spread(&x, streams)?;
        }
        for (i, layer) in c.layers.iter().enumerate() {
            // No later layer writes a cache, so only the last position is needed.
            if last_only && !narrowed && c.layers[i..].iter().all(reads_caches) {
                narrowed = true;
                x = self.narrow(&x, &mut per_layer);
            }
            x = self.layer(&x, i, layer, per_layer.as_ref())?;
        }
        if last_only && !narrowed {
            self.w.b.enter(c.root);
            x = self.w.b.last_position(&x);
        }
        if let Some(streams) = &c.streams {
            x = self.gathered(&x, streams)?;
        }
        self.norm_if(&x, c.root, c.final_norm)
    }

    /// Restricts the residual stream and the per-layer inputs to the last position.
    fn narrow(&mut self, x: &Val, per_layer: &mut Option<Val>) -> Val {
        self.w.b.enter(self.config.root);
        let before = self.w.b.add_int(&self.span.tokens.clone(), &Int::literal(-1));
        let pos = self.w.b.add_int(&self.span.pos.clone(), &before);
        self.span = Span { tokens: 1.into(), pos };
        self.masks.narrow(&mut self.w.b);
        if let Some(inputs) = per_layer {
            *inputs = self.w.b.last_position(inputs);
        }
        self.w.b.last_position(x)
    }

    fn layer(&mut self, x: &Val, index: usize, layer: &Layer, per_layer: Option<&Val>) -> Result<Val> {
        if let Some(streams) = self.config.streams {
            return self.layer_of_streams(x, streams, (index, layer), per_layer);
        }
        let path = format!("{}.layers.{index}", self.config.root);
        let norms = layer.norms;
        let normed = self.norm_if(x, &path, norms.mixer_in)?;
        let before = x;
        let x = match self.mixed(&normed, index, &layer.mixer, &path)? {
            Some(mixed) => self.residual(x, &mixed, layer, &path, norms.mixer_out)?,
            None => x.clone(),
        };
        if layer.feed_forward == FeedForward::None {
            return Ok(x);
        }
        let normed = match (self.config.conditioned, norms.feed_in) {
            (Some(conditioned), Some(name)) => self.conditioned_norm(&x, &path, name, &conditioned)?,
            (_, None) if layer.parallel => normed,
            (_, name) => self.norm_if(if layer.parallel { before } else { &x }, &path, name)?,
        };
        let output = self.output(&x, &normed, layer, &path)?;
        let mut x = self.residual(&x, &output, layer, &path, norms.feed_out)?;
        if let (Some(inputs), Some(p)) = (per_layer, self.config.per_layer) {
            let added = self.per_layer_part(&x, inputs, index, &p, &path)?;
            x = self.w.b.add(&x, &added);
        }
        if layer.scalar {
            self.w.b.enter(&path);
            let scalar = self.w.vector(&format!("{path}.layer_scalar"), 1)?;
            x = self.w.b.mul(&x, &scalar);
        }
        Ok(x)
    }

    /// The result of a layer's feed-forward half for `x` and its norm.
    fn output(&mut self, x: &Val, normed: &Val, layer: &Layer, path: &str) -> Result<Val> {
        match &layer.feed_forward {
            FeedForward::Mlp(mlp) => self.mlp(normed, mlp, &format!("{path}.{}", mlp.module)),
            FeedForward::Experts(experts) => self.experts(normed, normed, experts, path),
            FeedForward::Both(mlp, experts) => {
                let dense = self.mlp(normed, mlp, &format!("{path}.{}", mlp.module))?;
                let dense = self.norm(&dense, &format!("{path}.post_feedforward_layernorm_1"))?;
                let normed = self.norm(x, &format!("{path}.pre_feedforward_layernorm_2"))?;
                let sparse = self.experts(x, &normed, experts, path)?;
                let sparse = self.norm(&sparse, &format!("{path}.post_feedforward_layernorm_2"))?;
                Ok(self.w.b.add(&dense, &sparse))
            }
            FeedForward::None => Ok(normed.clone()),
        }
    }

    /// The result of a layer's mixer, if it has one.
    fn mixed(&mut self, x: &Val, index: usize, mixer: &Mixer, path: &str) -> Result<Option<Val>> {
        Ok(Some(match mixer {
            Mixer::Attention(a) => self.attention(x, index, a, &format!("{path}.{}", a.names.module))?,
            Mixer::Latent(l) => self.latent(x, index, l, &format!("{path}.self_attn"))?,
            Mixer::DeltaNet(d) => self.delta_net(x, index, d, &format!("{path}.linear_attn"))?,
            Mixer::ShortConv(conv) => self.short_conv(x, index, *conv, &format!("{path}.conv"))?,
            Mixer::Mamba(m) => self.mamba(x, index, m, &format!("{path}.{}", m.module))?,
            Mixer::KeyDecay(k) => self.key_decay(x, index, k, &format!("{path}.self_attn"))?,
            Mixer::AttentionAndMamba(a, m) => {
                let scanned = self.mamba(x, index, m, &format!("{path}.{}", m.module))?;
                let attended = self.attention(x, index, a, &format!("{path}.{}", a.names.module))?;
                self.w.b.add(&scanned, &attended)
            }
            Mixer::None => return Ok(None),
        }))
    }

    /// `x` plus the result of one half of the layer.
    fn residual(&mut self, x: &Val, made: &Val, layer: &Layer, path: &str, norm: Option<&str>) -> Result<Val> {
        if self.config.norms_sums {
            let made = self.w.b.scale(made, layer.residual);
            let sum = self.w.b.add(x, &made);
            return self.norm_if(&sum, path, norm);
        }
        let made = self.norm_if(made, path, norm)?;
        let made = self.w.b.scale(&made, layer.residual);
        Ok(self.w.b.add(x, &made))
    }

    /// The norm of module `path` over the last axis of `x`.
    fn norm(&mut self, x: &Val, path: &str) -> Result<Val> {
        self.w.norm(x, path, self.config.norm)
    }

    /// The norm with this name in a module, if there is one.
    fn norm_if(&mut self, x: &Val, module: &str, name: Option<&str>) -> Result<Val> {
        name.map_or_else(|| Ok(x.clone()), |name| self.norm(x, &format!("{module}.{name}")))
    }

    /// The constants of a rotary embedding of heads of `dim` elements.
    fn rope_constants(&self, rope: &Rope, dim: usize) -> Result<RopeConstants> {
        let found = self.ropes.iter().find(|((r, d), _)| r == rope && *d == dim);
        found.map(|(_, rotation)| rotation.clone()).ok_or_else(|| Error::MissingTensor("rope_periods".into()))
    }
}

/// Whether a layer keeps no state between calls.
fn reads_caches(layer: &Layer) -> bool {
    match &layer.mixer {
        Mixer::Attention(a) => matches!(a.values, Values::Layer(_)),
        Mixer::None => true,
        _ => false,
    }
}

/// Constants of every rotary embedding in the model. Names of the first one have no numeric suffix.
fn ropes(b: &mut Builder, config: &DecoderConfig, settings: Settings) -> Result<Vec<((Rope, usize), RopeConstants)>> {
    let mut ropes: Vec<((Rope, usize), RopeConstants)> = Vec::new();
    for layer in &config.layers {
        let key = match &layer.mixer {
            Mixer::Attention(a) => a.rope.clone().map(|rope| (rope, a.head_dim)),
            Mixer::AttentionAndMamba(a, _) => a.rope.clone().map(|rope| (rope, a.head_dim)),
            Mixer::Latent(l) => l.rope.clone().map(|rope| (rope, l.rotated_dim)),
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba(_) | Mixer::KeyDecay(_) | Mixer::None => None,
        };
        if let Some(key) = key.filter(|key| ropes.iter().all(|(known, _)| known != key)) {
            let suffix = if ropes.is_empty() { String::new() } else { format!("_{}", ropes.len()) };
            let rotation = rope_constants(b, &key.0, key.1, (settings.positions, settings.dtype), &suffix)?;
            ropes.push((key, rotation));
        }
    }
    Ok(ropes)
}

/// Constants of a rotary embedding for at most `positions` positions, with activations of `dtype`.
/// The amplitude applies to rotated queries and keys. Only their products matter, so only queries
/// are scaled, by its square.
pub(crate) fn rope_constants(
    b: &mut Builder,
    rope: &Rope,
    head_dim: usize,
    (positions, dtype): (usize, DType),
    suffix: &str,
) -> Result<RopeConstants> {
    let resolved = rope.resolve(positions);
    let mut vector = |name: &str, values: &[f32], dtype: DType| -> Result<Val> {
        let name = format!("{name}{suffix}");
        let tensor = Tensor::from_slice(values, &[values.len()]).and_then(|t| cast(&t, dtype));
        Ok(b.constant(&name, &tensor.map_err(|e| Error::tensor(&name, format!("{dtype} elements"), e.to_string()))?))
    };
    let periods = resolved.periods.map(|periods| vector("rope_periods", &periods, DType::F32)).transpose()?;
    let square = (resolved.amplitude * resolved.amplitude) as f32;
    let factors: Vec<f32> = (0..head_dim).map(|i| if i < rope.dims { square } else { 1.0 }).collect();
    let amplitude = (square != 1.0).then(|| vector("rope_amplitude", &factors, dtype)).transpose()?;
    let rotary = Rotary { dims: rope.dims, base: resolved.theta, scale: resolved.scale, interleaved: rope.interleaved, periods };
    Ok(RopeConstants { rotary, amplitude })
}
