//! Attention of grouped heads over a cache.

use flambeau_tensor::DType;

use super::{Decoder, cache::Cache};
use crate::{
    CheckpointTensor, Result,
    builder::{Int, Val},
    spec::{Attention, Gate, Joined, QkNorm, QkvBias, Temperature, Values},
};

impl Decoder<'_> {
    pub(super) fn attention(&mut self, x: &Val, layer: usize, a: &Attention, path: &str) -> Result<Val> {
        let rotation = a.rope.as_ref().map(|rope| self.rope_constants(rope, a.head_dim)).transpose()?;
        let x = &self.w.b.scale(x, a.factors[0]);
        let (mut q, kv) = self.projections(x, a, path)?;
        let mut gate = self.gate(x, a, path)?;
        if a.gate == Gate::Queries {
            let sizes = [Int::from(1), self.span.tokens.clone(), a.heads.into(), (2 * a.head_dim).into()];
            let both = self.w.b.reshape(&q, &sizes);
            let [queries, gates] = self.w.b.split(&both, [a.head_dim; 2]);
            q = queries;
            let gates = self.joined_heads(&gates, a.heads * a.head_dim);
            gate = Some(self.w.b.sigmoid(&gates));
        }
        self.w.b.enter(path);
        let mut q = self.heads(&q, a, a.heads, Some(&format!("{path}.{}", a.names.q_norm)))?;
        let mut kv = match kv {
            Some([k, v]) => {
                // Keys and values from one projection are normalized differently.
                let k = self.heads(&k, a, a.kv_heads, Some(&format!("{path}.{}", a.names.k_norm)))?;
                Some([k, self.value_heads(&v, a)])
            }
            None => None,
        };
        if let Some(clip) = a.clip {
            q = self.w.b.clamp(&q, -clip, clip);
            kv = kv.map(|kv| kv.map(|x| self.w.b.clamp(&x, -clip, clip)));
        }
        self.w.b.enter(path);
        if let Some(rotation) = &rotation {
            q = self.w.b.rope(&q, &self.span.pos, &rotation.rotary);
        }
        let kv = kv.map(|[k, v]| match &rotation {
            Some(rotation) => [self.w.b.rope(&k, &self.span.pos, &rotation.rotary), v],
            None => [k, v],
        });
        let (q_norm, k_norm) = (format!("{path}.{}", a.names.q_norm), format!("{path}.{}", a.names.k_norm));
        let mut q = self.rotated_norm(&q, a, &q_norm)?;
        let kv = kv.map(|[k, v]| Ok::<_, crate::Error>([self.rotated_norm(&k, a, &k_norm)?, v])).transpose()?;
        self.w.b.enter(path);
        // A norm after the rotation cancels the amplitude.
        let amplitude = rotation.and_then(|rotation| rotation.amplitude).filter(|_| !a.qk_norm.is_rotated());
        if let Some(amplitude) = amplitude {
            q = self.w.b.mul(&q, &amplitude);
        }
        if let Some(temperature) = &a.temperature {
            let factors = self.temperature(temperature, q.dtype);
            q = self.w.b.mul(&q, &factors);
        }
        let caches = match (kv, a.values) {
            (Some(kv), _) => self.cached(layer, kv, a)?,
            (None, Values::Layer(other)) => self.cache_of(other)?,
            (None, _) => return Err(crate::Error::MissingTensor(format!("{path}.k_proj.weight"))),
        };
        let attended = self.attend(&q, &caches, a, path)?;
        self.attention_output(&attended, gate, a, path)
    }

    /// The layer's result for attended values [1, H, s, D]: the gate, the norm and the output
    /// projection.
    fn attention_output(&mut self, attended: &Val, gate: Option<Val>, a: &Attention, path: &str) -> Result<Val> {
        let mut attended = self.w.b.transpose(attended, 1, 2);
        if a.value_dim() < a.head_dim {
            attended = self.w.b.slice(&attended, 3, &0.into(), &a.value_dim().into());
        }
        let per_head = matches!(a.gate, Gate::Heads(_) | Gate::SoftHeads(_));
        if let Some(gate) = gate.as_ref().filter(|_| per_head) {
            let gate = self.w.b.unsqueeze(gate, 3);
            attended = self.w.b.mul(&attended, &gate);
        }
        let mut joined = self.joined_heads(&attended, a.heads * a.value_dim());
        if let Some(gate) = gate.filter(|_| !per_head) {
            joined = self.w.b.mul(&joined, &gate);
        }
        let joined = self.norm_if(&joined, path, a.output_norm)?;
        let y = self.w.linear(&joined, &format!("{path}.{}", a.names.output), self.config.hidden, a.output_bias)?;
        Ok(self.w.b.scale(&y, a.factors[1]))
    }

    /// Queries [1, s, H·D], or [1, s, 2·H·D] if gated. Keys and values [1, s, Hk·D], unless another
    /// layer provides them.
    fn projections(&mut self, x: &Val, a: &Attention, path: &str) -> Result<(Val, Option<[Val; 2]>)> {
        let (q, kv) = (a.heads * a.head_dim * (1 + usize::from(a.gate == Gate::Queries)), a.kv_heads * a.head_dim);
        match a.joined {
            Joined::No => {}
            Joined::Blocks => {
                let joined = format!("{path}.qkv_proj");
                let mut one = |part: &str, from, n| {
                    let source = self.w.part(&format!("{joined}.weight"), [q + 2 * kv, self.config.hidden], from, n)?;
                    let y = self.w.project(x, &joined, &format!("{joined}.{part}.weight"), &source, false)?;
                    self.with_bias_of(&y, a, &joined, part, q + 2 * kv, (from..from + n).collect())
                };
                return Ok((one("q", 0, q)?, Some([one("k", q, kv)?, one("v", q + kv, kv)?])));
            }
            Joined::Groups | Joined::Shards(_) => {
                let mut one = |part| self.joined_part(x, a, path, part);
                return Ok((one(0)?, Some([one(1)?, one(2)?])));
            }
        }
        let mut one = |part: &str, rows| {
            let bias = a.qkv_bias == QkvBias::All || a.qkv_bias == QkvBias::AllButKeys && part != "k";
            self.w.begin(x, &format!("{path}.{part}_proj"), rows, bias)
        };
        let queries = one("q", q)?;
        let kv = match a.values {
            Values::Layer(_) => None,
            Values::Projected => Some((one("k", kv)?, Some(one("v", a.kv_heads * a.value_dim())?))),
            Values::Keys => Some((one("k", kv)?, None)),
        };
        let queries = self.w.end(queries)?;
        let Some((keys, values)) = kv else { return Ok((queries, None)) };
        let keys = self.w.end(keys)?;
        let values = values.map_or_else(|| Ok(keys.clone()), |values| self.w.end(values))?;
        Ok((queries, Some([keys, values])))
    }

    /// All queries (0), keys (1) or values (2) [1, s, heads·D], from a joined matrix.
    fn joined_part(&mut self, x: &Val, a: &Attention, path: &str, part: usize) -> Result<Val> {
        let (module, rows, total) = (format!("{path}.qkv_proj"), a.joined_rows(part), (a.heads + 2 * a.kv_heads) * a.head_dim);
        let weight = format!("{module}.weight");
        let source = self.w.source(&weight, &[total, self.config.hidden])?.rows(&weight, rows.clone())?;
        let y = self.w.project(x, &module, &format!("{module}.{part}.weight"), &source, false)?;
        self.with_bias_of(&y, a, &module, &part.to_string(), total, rows)
    }

    /// Adds a part's elements of the joined bias of `total` rows, if there is a bias.
    fn with_bias_of(&mut self, y: &Val, a: &Attention, module: &str, part: &str, total: usize, rows: Vec<usize>) -> Result<Val> {
        if a.qkv_bias == QkvBias::None {
            return Ok(y.clone());
        }
        let name = format!("{module}.bias");
        let source = self.w.source(&name, &[total])?.rows(&name, rows)?;
        let bias = self.w.value_of(&format!("{module}.{part}.bias"), &source)?;
        Ok(self.w.b.add(y, &bias))
    }

    /// Gate factors of head outputs, computed from the layer's input: [1, s, H·D] or [1, s, H].
    fn gate(&mut self, x: &Val, a: &Attention, path: &str) -> Result<Option<Val>> {
        let gate = match a.gate {
            Gate::None | Gate::Queries => return Ok(None),
            Gate::Elements(name) | Gate::SoftElements(name) => {
                self.w.linear(x, &format!("{path}.{name}"), a.heads * a.head_dim, false)?
            }
            Gate::Heads(name) | Gate::SoftHeads(name) => self.w.gate(x, &format!("{path}.{name}"), a.heads, false)?,
        };
        let soft = matches!(a.gate, Gate::SoftHeads(_) | Gate::SoftElements(_));
        Ok(Some(if soft { self.w.b.softplus(&gate) } else { self.w.b.sigmoid(&gate) }))
    }

    /// Normalizes queries or keys [1, H, s, D] after the rotation, if configured.
    fn rotated_norm(&mut self, x: &Val, a: &Attention, path: &str) -> Result<Val> {
        Ok(match a.qk_norm {
            QkNorm::RotatedHeads => self.norm(x, path)?,
            QkNorm::RotatedPlain => self.w.b.rms_norm(x, None, self.config.norm.eps),
            _ => x.clone(),
        })
    }

    /// Temperature factors [1, 1, s, 1] of queries.
    fn temperature(&mut self, t: &Temperature, dtype: DType) -> Val {
        let places = self.masks.places();
        let b = &mut self.w.b;
        let places = b.cast(&places, DType::F32);
        let places = b.shift(&places, t.offset as f64);
        let steps = b.divide(&places, t.length);
        let steps = b.floor(&steps);
        let steps = b.shift(&steps, 1.0);
        let growth = b.log(&steps);
        let growth = b.scale(&growth, t.beta);
        let factors = b.shift(&growth, 1.0);
        let factors = b.reshape(&factors, &[1.into(), 1.into(), self.span.tokens.clone(), 1.into()]);
        b.cast(&factors, dtype)
    }

    /// Reshapes `x` [1, s, heads·D] or [1, s, heads, D] to [1, heads, s, D], and normalizes it by
    /// `norm` as configured.
    fn heads(&mut self, x: &Val, a: &Attention, heads: usize, norm: Option<&str>) -> Result<Val> {
        let mut x = x.clone();
        if let Some(path) = norm.filter(|_| a.qk_norm == QkNorm::Whole) {
            x = self.norm(&x, path)?;
        }
        if x.dims.len() == 3 {
            let sizes = [Int::from(1), self.span.tokens.clone(), heads.into(), a.head_dim.into()];
            x = self.w.b.reshape(&x, &sizes);
        }
        if let Some(path) = norm.filter(|_| a.qk_norm == QkNorm::Heads) {
            x = self.norm(&x, path)?;
        }
        if let Some(path) = norm.filter(|_| a.qk_norm == QkNorm::OwnHeads) {
            x = self.own_heads_norm(&x, heads, a.head_dim, path)?;
        }
        Ok(self.w.b.transpose(&x, 1, 2))
    }

    /// Layer norm of each head of `x` [1, s, H, D], with weights [H, D] in one tensor or one tensor
    /// per head.
    fn own_heads_norm(&mut self, x: &Val, heads: usize, dim: usize, path: &str) -> Result<Val> {
        let name = format!("{path}.weight");
        let source = if self.w.has(&name) {
            self.w.source(&name, &[heads, dim])?
        } else {
            let each = (0..heads).map(|h| self.w.source(&format!("{path}.norms.{h}.weight"), &[dim]));
            let each = each.collect::<Result<Vec<_>>>()?;
            CheckpointTensor::stack(&name, &each.iter().map(|weight| vec![weight]).collect::<Vec<_>>())?
        };
        let weight = self.w.value_of(&name, &source)?;
        self.w.b.enter(path);
        let x = self.w.b.layer_norm(x, None, None, self.config.norm.eps);
        Ok(self.w.b.mul(&x, &weight))
    }

    /// Values [1, Hk, s, D] of `v` [1, s, Hk·Dv], with zeros behind their elements.
    fn value_heads(&mut self, v: &Val, a: &Attention) -> Val {
        let sizes = [Int::from(1), self.span.tokens.clone(), a.kv_heads.into(), a.value_dim().into()];
        let mut v = self.w.b.reshape(v, &sizes);
        if a.value_norm {
            v = self.w.b.rms_norm(&v, None, self.config.norm.eps);
        }
        if a.value_dim() < a.head_dim {
            v = self.w.b.pad_last(&v, a.head_dim - a.value_dim());
        }
        self.w.b.transpose(&v, 1, 2)
    }

    /// `x` [1, s, H, D] as [1, s, H·D].
    pub(super) fn joined_heads(&mut self, x: &Val, width: usize) -> Val {
        self.w.b.reshape(x, &[Int::from(1), self.span.tokens.clone(), width.into()])
    }

    /// Attention of queries [1, H, s, D] over the caches, as [1, H, s, D].
    fn attend(&mut self, q: &Val, cache: &Cache, a: &Attention, path: &str) -> Result<Val> {
        let window = self.effective(a.window);
        if a.cap.is_some() || a.sinks {
            return self.scored_attention(q, cache, window, a, path);
        }
        let chunk = a.chunk.filter(|&chunk| chunk < self.settings.positions);
        let mask = match (chunk, &a.slopes) {
            (_, Some(slopes)) => Some(self.sloped(slopes, window)?),
            (Some(chunk), _) => Some(self.chunk_mask(chunk)),
            (None, _) => window.map(|window| self.window_mask(Some(window))),
        };
        self.w.b.enter(path);
        // The operator reads the rows before the first query, and one row per query.
        let before = match self.ring(window) {
            Some(rows) => self.w.b.sub_int(&rows.into(), &self.span.tokens),
            None => self.span.pos.clone(),
        };
        let [keys, values] = self.cached_rows(cache, window);
        Ok(self.w.b.attention([q, &keys, &values], &before, mask.as_ref(), a.scale))
    }

    /// Attention by its formula, for scores that no kernel supports: capped scores and scores with
    /// sinks.
    fn scored_attention(&mut self, q: &Val, cache: &Cache, window: Option<usize>, a: &Attention, path: &str) -> Result<Val> {
        let visible = self.window_mask(window);
        self.w.b.enter(path);
        let hidden = self.w.b.not(&visible);
        let groups = a.heads / a.kv_heads;
        let dtype = q.dtype;
        let grouped = [1.into(), a.kv_heads.into(), groups.into(), self.span.tokens.clone(), a.head_dim.into()];
        let q = self.w.b.reshape(q, &grouped);
        let end = self.cache_end(window);
        let [keys, values] = self.cached_rows(cache, window).map(|rows| {
            let rows = self.w.b.slice(&rows, 2, &0.into(), &end);
            self.w.b.unsqueeze(&rows, 2)
        });
        let keys = self.w.b.transpose(&keys, 3, 4);
        let scores = self.w.b.matmul(&q, &keys);
        let scores = self.w.b.cast(&scores, DType::F32);
        let mut scores = self.w.b.scale(&scores, a.scale);
        if let Some(cap) = a.cap {
            scores = self.w.b.soft_cap(&scores, cap);
        }
        let scores = self.w.b.masked_fill(&scores, &hidden, f64::NEG_INFINITY);
        let mut weights = self.w.b.softmax(&scores);
        if a.sinks {
            // A logit that joins the softmax scales the shares of all keys equally.
            let sinks = self.w.wide(&format!("{path}.sinks"), &[a.heads])?;
            let sinks = self.w.b.reshape(&sinks, &[1.into(), a.kv_heads.into(), groups.into(), 1.into(), 1.into()]);
            let total = self.w.b.log_sum_exp(&scores);
            let margin = self.w.b.sub(&total, &sinks);
            let share = self.w.b.sigmoid(&margin);
            weights = self.w.b.mul(&weights, &share);
        }
        let weights = self.w.b.cast(&weights, dtype);
        let attended = self.w.b.matmul(&weights, &values);
        Ok(self.w.b.reshape(&attended, &[1.into(), a.heads.into(), self.span.tokens.clone(), a.head_dim.into()]))
    }
}
