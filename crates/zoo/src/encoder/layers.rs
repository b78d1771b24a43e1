//! The layers of an encoder: attention over a whole text, and a feed-forward half.

use super::Parts;
use crate::{
    Result,
    block::{RopeConstants, rope_constants},
    builder::{Int, Val},
    rope::Rope,
    spec::{Activation, Attention, FeedForward, Joined, Layer, Mixer, Mlp, MlpBias, QkNorm, QkvBias},
};

/// Rotary embeddings by parameters and number of head elements.
pub(super) type RopeTable = Vec<((Rope, usize), RopeConstants)>;

impl Parts<'_> {
    pub(super) fn layer(&mut self, x: &Val, layer: &Layer, path: &str) -> Result<Val> {
        let norms = layer.norms;
        let mut x = x.clone();
        if let Mixer::Attention(a) = &layer.mixer {
            let normed = self.norm_if(&x, path, norms.mixer_in)?;
            let mixed = self.attention(&normed, a, &format!("{path}.{}", a.names.module))?;
            x = self.residual(&x, &mixed, path, norms.mixer_out)?;
        }
        let normed = self.norm_if(&x, path, norms.feed_in)?;
        let output = match &layer.feed_forward {
            FeedForward::Mlp(mlp) => self.mlp(&normed, mlp, &format!("{path}.{}", mlp.module))?,
            FeedForward::Experts(experts) => self.experts(&normed, experts, &format!("{path}.{}", experts.module))?,
            FeedForward::Both(..) | FeedForward::None => return Ok(x),
        };
        self.residual(&x, &output, path, norms.feed_out)
    }

    /// `x` plus the result of one half of the layer, with the norm of that half.
    fn residual(&mut self, x: &Val, made: &Val, path: &str, norm: Option<&str>) -> Result<Val> {
        if self.c.norms_sums {
            let sum = self.w.b.add(made, x);
            return self.norm_if(&sum, path, norm);
        }
        let made = self.norm_if(made, path, norm)?;
        Ok(self.w.b.add(x, &made))
    }

    /// The norm with this name in a layer, if there is one.
    fn norm_if(&mut self, x: &Val, layer: &str, name: Option<&str>) -> Result<Val> {
        name.map_or_else(|| Ok(x.clone()), |name| self.w.norm(x, &format!("{layer}.{name}"), self.c.norm))
    }

    fn attention(&mut self, x: &Val, a: &Attention, path: &str) -> Result<Val> {
        let visible = self.window_mask(a.window)?;
        let [q, k, v] = self.projections(x, a, path)?;
        self.w.b.enter(path);
        let q = self.heads(&q, a, a.heads, Some(&format!("{path}.{}", a.names.q_norm)))?;
        let k = self.heads(&k, a, a.kv_heads, Some(&format!("{path}.{}", a.names.k_norm)))?;
        let v = self.heads(&v, a, a.kv_heads, None)?;
        let [q, k] = self.rotated([q, k], a)?;
        self.w.b.enter(path);
        let attended = match &visible {
            Some(visible) => self.w.b.attention_over_all([&q, &k, &v], Some(visible), a.scale),
            None => self.w.b.causal_attention([&q, &k, &v], a.scale),
        };
        let joined = self.w.b.transpose(&attended, 1, 2);
        let [b, s] = self.sizes.clone();
        let joined = self.w.b.reshape(&joined, &[b, s, (a.heads * a.head_dim).into()]);
        self.w.linear(&joined, &format!("{path}.{}", a.names.output), self.c.width, a.output_bias)
    }

    /// Queries [b, s, H·D], and keys and values [b, s, Hk·D]. Some releases of a family join the
    /// three matrices.
    fn projections(&mut self, x: &Val, a: &Attention, path: &str) -> Result<[Val; 3]> {
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let joined = format!("{path}.qkv_proj");
        if a.joined != Joined::Blocks && !self.w.has(&format!("{joined}.weight")) {
            let mut one = |part: &str, rows| {
                let bias = a.qkv_bias == QkvBias::All || a.qkv_bias == QkvBias::AllButKeys && part != "k";
                self.w.linear(x, &format!("{path}.{part}_proj"), rows, bias)
            };
            return Ok([one("q", q)?, one("k", kv)?, one("v", kv)?]);
        }
        let mut one = |part: &str, from, n| self.part(x, (&joined, part), q + 2 * kv, (from, n), a.qkv_bias == QkvBias::All);
        Ok([one("q", 0, q)?, one("k", q, kv)?, one("v", q + kv, kv)?])
    }

    /// The projection of `x` by rows `from..from + n` of the joined matrix of `module`, which has
    /// `total` rows.
    fn part(&mut self, x: &Val, (module, part): (&str, &str), total: usize, (from, n): (usize, usize), bias: bool) -> Result<Val> {
        let source = self.w.part(&format!("{module}.weight"), [total, self.c.width], from, n)?;
        let y = self.w.project(x, module, &format!("{module}.{part}.weight"), &source, false)?;
        if !bias {
            return Ok(y);
        }
        let name = format!("{module}.bias");
        let source = self.w.source(&name, &[total])?.rows(&name, (from..from + n).collect())?;
        let bias = self.w.value_of(&format!("{module}.{part}.bias"), &source)?;
        Ok(self.w.b.add(&y, &bias))
    }

    /// `x` [b, s, heads·D] as [b, heads, s, D], normalized by `norm` as configured.
    fn heads(&mut self, x: &Val, a: &Attention, heads: usize, norm: Option<&str>) -> Result<Val> {
        let mut x = x.clone();
        if let Some(path) = norm.filter(|_| a.qk_norm == QkNorm::Whole) {
            x = self.w.norm(&x, path, self.c.norm)?;
        }
        let [b, s] = self.sizes.clone();
        x = self.w.b.reshape(&x, &[b, s, heads.into(), a.head_dim.into()]);
        if let Some(path) = norm.filter(|_| a.qk_norm == QkNorm::Heads) {
            x = self.w.norm(&x, path, self.c.norm)?;
        }
        Ok(self.w.b.transpose(&x, 1, 2))
    }

    /// Queries and keys [b, heads, s, D] after the rotary embedding, if there is one.
    fn rotated(&mut self, [q, k]: [Val; 2], a: &Attention) -> Result<[Val; 2]> {
        let Some(rope) = &a.rope else { return Ok([q, k]) };
        let RopeConstants { rotary, amplitude } = self.rope_constants(rope, a.head_dim)?;
        let first = Int::from(0);
        let mut q = self.w.b.rope(&q, &first, &rotary);
        if let Some(amplitude) = amplitude {
            q = self.w.b.mul(&q, &amplitude);
        }
        let k = self.w.b.rope(&k, &first, &rotary);
        Ok([q, k])
    }

    /// The constants of a rotary embedding, made at first use.
    fn rope_constants(&mut self, rope: &Rope, head_dim: usize) -> Result<RopeConstants> {
        if let Some((_, rotation)) = self.ropes.iter().find(|((r, d), _)| r == rope && *d == head_dim) {
            return Ok(rotation.clone());
        }
        let suffix = if self.ropes.is_empty() { String::new() } else { format!("_{}", self.ropes.len()) };
        self.w.b.enter("rotary_emb");
        let made = rope_constants(&mut self.w.b, rope, head_dim, (self.tokens, self.dtype), &suffix)?;
        self.ropes.push(((rope.clone(), head_dim), made.clone()));
        Ok(made)
    }

    fn mlp(&mut self, x: &Val, mlp: &Mlp, path: &str) -> Result<Val> {
        let (n, names, bias) = (mlp.width, mlp.names, mlp.bias == MlpBias::All);
        let one = |parts: &mut Self, part: &str| parts.w.linear(x, &format!("{path}.{part}"), n, bias);
        let wide = if mlp.gated {
            let (gate, up) = match self.joined_gate(mlp, path) {
                Some((joined, first)) => {
                    let mut part = |name: &str| {
                        let from = if name == first { 0 } else { n };
                        self.part(x, (&joined, name), 2 * n, (from, n), bias)
                    };
                    (part("gate")?, part("up")?)
                }
                None => (one(self, names.gate)?, one(self, names.up)?),
            };
            let gate = self.activated(&gate, mlp.activation);
            self.w.b.mul(&gate, &up)
        } else {
            let up = one(self, names.up)?;
            self.activated(&up, mlp.activation)
        };
        self.w.linear(&wide, &format!("{path}.{}", names.down), self.c.width, mlp.bias != MlpBias::None)
    }

    /// The joined matrix of gates and ups, if there is one, and the half that comes first.
    fn joined_gate(&self, mlp: &Mlp, path: &str) -> Option<(String, &'static str)> {
        let [gates, ups] = ["gate_up_proj", "up_gate_proj"].map(|name| format!("{path}.{name}"));
        match self.w.has(&format!("{ups}.weight")) {
            true => Some((ups, "up")),
            false => mlp.joined.then_some((gates, "gate")),
        }
    }

    pub(super) fn activated(&mut self, x: &Val, activation: Activation) -> Val {
        match activation {
            Activation::Silu => self.w.b.silu(x),
            Activation::GeluTanh => self.w.b.gelu(x, true),
            _ => self.w.b.gelu(x, false),
        }
    }
}
