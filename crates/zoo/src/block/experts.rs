//! Mixtures of experts: a router selects experts for each position, and only these compute.

use flambeau_tensor::DType;

use super::Decoder;
use crate::{
    CheckpointTensor, Result,
    builder::Val,
    source::Read,
    spec::{ExpertLayout, Experts, MlpNames, Router, Scores},
};

impl Decoder<'_> {
    /// Output of the selected experts for `x` [1, s, d]. The router reads `routed`.
    pub(super) fn experts(&mut self, routed: &Val, x: &Val, e: &Experts, layer: &str) -> Result<Val> {
        let path = if e.module.is_empty() { layer.to_owned() } else { format!("{layer}.{}", e.module) };
        let [weights, chosen] = self.route(routed, e, &path)?;
        self.w.b.enter(format!("{path}.experts"));
        let (s, width) = (self.span.tokens.clone(), self.expert_width(e));
        let narrow = match e.latent {
            Some(width) => self.w.linear(x, &format!("{path}.fc1_latent_proj"), width, false)?,
            None => x.clone(),
        };
        self.w.b.enter(format!("{path}.experts"));
        let mut rows = self.w.b.reshape(&narrow, &[s.clone(), 1.into(), 1.into(), width.into()]);
        if e.weighted_input {
            let weights = self.w.b.reshape(&weights, &[s.clone(), e.chosen.into(), 1.into(), 1.into()]);
            rows = self.w.b.mul(&rows, &weights);
        }
        let made = match e.layout {
            ExpertLayout::Flat => self.flat_experts(&rows, &chosen, e, &path)?,
            _ if self.in_columns(e, &format!("{path}.{JOINED}")) => self.column_experts(&rows, &chosen, e, &path)?,
            _ => self.row_experts(&rows, &chosen, e, &path)?,
        };
        self.w.b.enter(format!("{path}.experts"));
        let made = self.w.b.reshape(&made, &[s.clone(), e.chosen.into(), width.into()]);
        let sum = self.w.sum_of_experts(&made, Some(&weights).filter(|_| !e.weighted_input));
        let mut sum = self.w.b.reshape(&sum, &[1.into(), s, width.into()]);
        if e.latent.is_some() {
            sum = self.w.linear(&sum, &format!("{path}.fc2_latent_proj"), self.config.hidden, false)?;
        }
        let Some(shared) = &e.shared else { return Ok(sum) };
        let mut own = self.mlp(x, shared, &format!("{path}.{}", shared.module))?;
        if let Some(gate) = e.shared_gate {
            let gate = self.w.gate(x, &format!("{path}.{gate}"), 1, false)?;
            let gate = self.w.b.sigmoid(&gate);
            own = self.w.b.mul(&own, &gate);
        }
        Ok(self.w.b.add(&sum, &own))
    }

    /// Whether the tensor `joined` holds columns. Newer folders of models in columns hold rows.
    fn in_columns(&self, e: &Experts, joined: &str) -> bool {
        let rows = [e.count, 2 * e.width, self.expert_width(e)];
        let is_rows = |shape: &[usize]| shape == rows && 2 * e.width != self.expert_width(e);
        let stored = self.w.tensors().get(joined).map(CheckpointTensor::shape);
        e.layout != ExpertLayout::Rows && stored.is_some_and(|shape| e.layout != ExpertLayout::Columns || !is_rows(shape))
    }

    /// Input and output width of the experts.
    fn expert_width(&self, e: &Experts) -> usize {
        e.latent.unwrap_or(self.config.hidden)
    }

    /// Weights and indices of each position's experts [s, k]. Weights have the type of the
    /// activations.
    fn route(&mut self, x: &Val, e: &Experts, path: &str) -> Result<[Val; 2]> {
        let r = &e.router;
        let logits = self.router_logits(x, e, path)?;
        if let Scores::Sparse { jitter } = r.scores {
            let [weights, chosen] = self.sparse_mixer(&logits, e, jitter);
            return Ok([self.w.b.cast(&weights, self.settings.dtype), chosen]);
        }
        let scores = match r.scores {
            Scores::Softmax => self.w.b.softmax(&logits),
            Scores::Sigmoid => self.w.b.sigmoid(&logits),
            Scores::SoftmaxOfChosen | Scores::Sparse { .. } => logits,
        };
        let choice = self.choice(&scores, e, path)?;
        let [best, chosen] = self.w.b.top(&choice, e.chosen);
        let plain = r.correction.is_none() && r.groups.is_none();
        let mut weights = if plain { best } else { self.w.b.gather_last(&scores, &chosen) };
        if r.scores == Scores::SoftmaxOfChosen {
            weights = self.w.b.softmax(&weights);
        }
        if let Some(least) = r.normalized {
            let total = self.w.b.sum(&weights);
            let total = self.w.b.shift(&total, least);
            weights = self.w.b.div(&weights, &total);
        }
        weights = self.w.b.scale(&weights, r.scale);
        if r.own_norm {
            let scales = self.w.wide(&format!("{path}.router.per_expert_scale"), &[e.count])?;
            let scales = self.w.b.pick(&scales, &chosen);
            weights = self.w.b.mul(&weights, &scales);
        }
        Ok([self.w.b.cast(&weights, self.settings.dtype), chosen])
    }

    /// Weights and indices [s, k] of experts, selected one after another from logits [s, E].
    fn sparse_mixer(&mut self, logits: &Val, e: &Experts, jitter: f64) -> [Val; 2] {
        let b = &mut self.w.b;
        let magnitudes = b.abs(logits);
        let mut left = logits.clone();
        let (mut weights, mut ids) = (Vec::new(), Vec::new());
        for _ in 0..e.chosen {
            let [best, id] = b.top(&left, 1);
            // Distance of a logit from the best, relative to the larger magnitude of the two.
            let distance = b.sub(&best, logits);
            let scale = b.maximum(&magnitudes, &best);
            let distance = b.div(&distance, &scale);
            let near = b.at_most_number(&distance, 2.0 * jitter);
            let far = b.not(&near);
            let near = b.masked_fill(&left, &far, f64::NEG_INFINITY);
            let shares = b.softmax(&near);
            weights.push(b.gather_last(&shares, &id));
            left = b.scatter_last(&left, &id, f64::NEG_INFINITY);
            ids.push(id);
        }
        [weights, ids].map(|parts| {
            let others: Vec<&Val> = parts.iter().skip(1).collect();
            b.concatenate_all(&parts[0], &others, 1)
        })
    }

    /// Logits of all experts [s, E] in f32.
    fn router_logits(&mut self, x: &Val, e: &Experts, path: &str) -> Result<Val> {
        let r = &e.router;
        let hidden = self.config.hidden;
        let module = format!("{path}.{}", r.module);
        self.w.b.enter(&module);
        let mut x = self.w.b.reshape(x, &[self.span.tokens.clone(), hidden.into()]);
        if r.own_norm {
            let root = (hidden as f32).sqrt().recip();
            let scale = self.w.mapped_vector(&format!("{path}.router.scale"), hidden, move |s| s * root)?;
            x = self.w.b.rms_norm(&x, Some(&scale), self.config.norm.eps);
        }
        let name = format!("{module}.weight");
        let source = self.w.source(&name, &[e.count, hidden])?;
        let wide = if r.wide { Some(source.read(&name, DType::F32, None)?) } else { None };
        let logits = match wide {
            Some(Read::Plain(weight)) => {
                self.w.b.keep_floats(&name);
                let (x, weight) = (self.w.b.cast(&x, DType::F32), self.w.b.parameter(&name, weight));
                self.w.b.linear(&x, &weight, None)
            }
            _ => self.w.project_gate(&x, &module, &name, &source, r.bias)?,
        };
        let logits = self.w.b.cast(&logits, DType::F32);
        Ok(r.cap.map_or(logits.clone(), |cap| self.w.b.soft_cap(&logits, cap)))
    }

    /// Selection scores [s, E]: the corrected scores, or minus infinity in groups that are not
    /// among the best.
    fn choice(&mut self, scores: &Val, e: &Experts, path: &str) -> Result<Val> {
        let Router { correction, groups, .. } = e.router;
        let mut choice = scores.clone();
        if let Some(name) = correction {
            let correction = self.w.wide_vector(&format!("{path}.{name}"), e.count)?;
            choice = self.w.b.add(&choice, &correction);
        }
        let Some((groups, allowed)) = groups else { return Ok(choice) };
        let s = self.span.tokens.clone();
        let grouped = self.w.b.reshape(&choice, &[s.clone(), groups.into(), (e.count / groups).into()]);
        let [best, _] = self.w.b.top(&grouped, e.router.group_best);
        let best = self.w.b.sum_over(&best, 2);
        let [_, chosen] = self.w.b.top(&best, allowed);
        let zeros = self.w.b.sub(&best, &best);
        let marks = self.w.b.scatter_last(&zeros, &chosen, 1.0);
        let hidden = self.w.b.equals(&marks, 0);
        let hidden = self.w.b.unsqueeze(&hidden, 2);
        let grouped = self.w.b.masked_fill(&grouped, &hidden, f64::NEG_INFINITY);
        Ok(self.w.b.reshape(&grouped, &[s, e.count.into()]))
    }

    /// Experts with matrices [outputs, inputs], applied to rows [s, 1, 1, d]. Returns [s, k, 1, d].
    fn row_experts(&mut self, x: &Val, chosen: &Val, e: &Experts, path: &str) -> Result<Val> {
        let names = [e.names.gate, e.names.up];
        if !e.gated {
            let up = self.stacked_product(x, chosen, (e, path, e.names.up), [e.width, self.expert_width(e)])?;
            let active = self.activated(&up, e.activation);
            return self.stacked_product(&active, chosen, (e, path, e.names.down), [self.expert_width(e), e.width]);
        }
        let (gate, up) = match self.joined_gates(e, path)? {
            Some((name, joined)) => {
                let both = self.w.selected_product(x, chosen, &name, &joined)?;
                let [gate, up] = self.w.b.split(&both, [e.width; 2]);
                (gate, up)
            }
            None => {
                let mut one = |part: &str| self.stacked_product(x, chosen, (e, path, part), [e.width, self.expert_width(e)]);
                (one(names[0])?, one(names[1])?)
            }
        };
        let gated = self.gated(&gate, &up, e.activation);
        self.stacked_product(&gated, chosen, (e, path, e.names.down), [self.expert_width(e), e.width])
    }

    /// As [`row_experts`](Self::row_experts), for matrices one below the other [E·inner, outer].
    fn flat_experts(&mut self, x: &Val, chosen: &Val, e: &Experts, path: &str) -> Result<Val> {
        let (inner, outer) = (e.width, self.expert_width(e));
        let part = |decoder: &Self, part: &str| -> Result<(String, CheckpointTensor)> {
            let name = format!("{path}.experts.{part}");
            let source = decoder.w.flat_experts(&name, [e.count, inner, outer])?;
            Ok((name, source))
        };
        let (name, source) = part(self, e.names.gate)?;
        let gate = self.w.selected_product(x, chosen, &name, &source)?;
        let (name, source) = part(self, e.names.up)?;
        let up = self.w.selected_product(x, chosen, &name, &source)?;
        let gated = self.gated(&gate, &up, e.activation);
        let (name, source) = part(self, e.names.down)?;
        self.w.column_product(&gated, chosen, &name, &source)
    }

    /// Rows times the selected matrices of one part [E, rows, cols], plus biases if there are any.
    fn stacked_product(
        &mut self,
        x: &Val,
        chosen: &Val,
        (e, path, part): (&Experts, &str, &str),
        shape: [usize; 2],
    ) -> Result<Val> {
        let (name, source) = self.stacked(e, path, part, shape)?;
        let y = self.w.selected_product(x, chosen, &name, &source)?;
        if !e.bias {
            return Ok(y);
        }
        let bias = name.strip_suffix("weight").map(|module| format!("{module}bias"));
        self.with_expert_bias(&y, chosen, &bias.unwrap_or(format!("{name}_bias")), [e.count, shape[0]])
    }

    /// Adds the selected experts' biases [E, out] to results [s, k, 1, out].
    fn with_expert_bias(&mut self, y: &Val, chosen: &Val, name: &str, shape: [usize; 2]) -> Result<Val> {
        let bias = self.w.plain(name, &shape)?;
        let bias = self.w.b.pick(&bias, chosen);
        let bias = self.w.b.unsqueeze(&bias, 2);
        Ok(self.w.b.add(y, &bias))
    }

    /// Joined matrix [E, 2I, d] of gates above ups, if the checkpoint stores it, in one tensor or
    /// per expert.
    fn joined_gates(&self, e: &Experts, path: &str) -> Result<Option<(String, CheckpointTensor)>> {
        let (name, rows) = (format!("{path}.{JOINED}"), [e.count, 2 * e.width, self.expert_width(e)]);
        let tensors = self.w.tensors();
        if self.w.has(&name) {
            let source = self.w.source(&name, &rows)?;
            return Ok(Some((name, source)));
        }
        if stack_names(path, MlpNames::COMMON.gate).iter().any(|name| self.w.has(name)) {
            return Ok(None);
        }
        let part = |i: usize, part: &str| {
            let name = format!("{path}.experts.{i}.{part}.weight");
            tensors.get(&name).ok_or(crate::Error::MissingTensor(name))
        };
        let each = |i| Ok(vec![part(i, e.names.gate)?, part(i, e.names.up)?]);
        let parts = (0..e.count).map(each).collect::<Result<Vec<_>>>()?;
        let source = CheckpointTensor::stack(&name, &parts)?;
        if source.shape() != rows {
            return Err(crate::Error::tensor(&name, format!("shape {rows:?}"), format!("{:?}", source.shape())));
        }
        Ok(Some((name, source)))
    }

    /// One matrix of every expert [E, rows, cols], stacked by the checkpoint or by this function.
    fn stacked(&self, e: &Experts, path: &str, part: &str, [rows, cols]: [usize; 2]) -> Result<(String, CheckpointTensor)> {
        let shape = [e.count, rows, cols];
        let common =
            [(e.names.gate, MlpNames::COMMON.gate), (e.names.up, MlpNames::COMMON.up), (e.names.down, MlpNames::COMMON.down)];
        let stacked = common.iter().find(|(own, _)| *own == part).map_or(part, |(_, common)| common);
        for name in stack_names(path, stacked).into_iter().chain([format!("{path}.experts.{part}")]) {
            if self.w.has(&name) {
                let source = self.w.source(&name, &shape)?;
                return Ok((name, source));
            }
        }
        let single = |i: usize| Ok(vec![self.w.source(&format!("{path}.experts.{i}.{part}.weight"), &[rows, cols])?]);
        let parts = (0..e.count).map(single).collect::<Result<Vec<_>>>()?;
        let name = format!("{path}.experts.{part}");
        let source = CheckpointTensor::stack(&name, &parts.iter().map(|list| list.iter().collect()).collect::<Vec<_>>())?;
        Ok((name, source))
    }

    /// Experts with joined gates and ups [inputs, outputs], in halves or alternating.
    fn column_experts(&mut self, x: &Val, chosen: &Val, e: &Experts, path: &str) -> Result<Val> {
        let hidden = self.expert_width(e);
        let both = self.stored_product(x, chosen, e, &format!("{path}.{JOINED}"), [hidden, 2 * e.width])?;
        let (gate, up) = if e.layout == ExpertLayout::Alternating {
            (self.w.b.every(&both, 0, 2), self.w.b.every(&both, 1, 2))
        } else {
            let [gate, up] = self.w.b.split(&both, [e.width; 2]);
            (gate, up)
        };
        let gated = self.gated(&gate, &up, e.activation);
        self.stored_product(&gated, chosen, e, &format!("{path}.experts.down_proj"), [e.width, hidden])
    }

    /// Rows [s, k or 1, 1, in] times the selected experts' matrices, plus biases if there are any.
    /// Returns [s, k, 1, out]. The checkpoint stores floats [E, in, out] or packed codes [E, out,
    /// in]. The program uses [E, out, in].
    fn stored_product(&mut self, x: &Val, chosen: &Val, e: &Experts, name: &str, [from, to]: [usize; 2]) -> Result<Val> {
        let count = e.count;
        let y = match self.w.tensors().get(name) {
            Some(tensor) if tensor.is_packed() => {
                let source = self.w.source(name, &[count, to, from])?;
                self.w.selected_product(x, chosen, name, &source)?
            }
            _ => {
                let source = self.w.source(name, &[count, from, to])?;
                self.w.column_product(x, chosen, name, &source)?
            }
        };
        if e.bias { self.with_expert_bias(&y, chosen, &format!("{name}_bias"), [count, to]) } else { Ok(y) }
    }
}

/// Gates and ups of all experts as one tensor.
const JOINED: &str = "experts.gate_up_proj";

/// Names of a matrix of all experts in MLX's checkpoints and in GGUF files.
fn stack_names(path: &str, part: &str) -> [String; 2] {
    ["switch_mlp", "experts"].map(|module| format!("{path}.{module}.{part}.weight"))
}
