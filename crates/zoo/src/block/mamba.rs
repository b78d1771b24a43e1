//! State spaces: Mamba 1 and 2.
//!
//! A step decays the state and adds the product of an input and a key: the gated delta rule without
//! its correction. The rule writes `(v - S k) * beta`. Here `beta` is so small that `S k * beta` is
//! lost in rounding, and inputs are divided by `beta`, so it writes only `v`. Both factors are
//! powers of two, so nothing else is rounded.

use flambeau_tensor::DType;

use super::Decoder;
use crate::{
    Error, Result,
    builder::{Int, Val},
    spec::{Mamba, MambaForm, Norm},
};

/// Binary logarithm of `beta`: inputs are divided by it, and the correction is multiplied by it.
const UNCORRECTED: i32 = -60;

impl Decoder<'_> {
    pub(super) fn mamba(&mut self, x: &Val, layer: usize, m: &Mamba, path: &str) -> Result<Val> {
        let y = match m.form {
            MambaForm::Channels { rank, norm } => self.channels_mamba(x, layer, m, (rank, norm), path)?,
            MambaForm::Heads { .. } => self.heads_mamba(x, layer, m, path)?,
        };
        let y = self.w.linear(&y, &format!("{path}.out_proj"), self.config.hidden, m.output_bias)?;
        Ok(self.w.b.scale(&y, m.factors.output))
    }

    /// Mamba 2, up to its last projection: [1, s, H·P].
    fn heads_mamba(&mut self, x: &Val, layer: usize, m: &Mamba, path: &str) -> Result<Val> {
        let MambaForm::Heads { limits, norm, gate_last } = m.form else { return Err(Error::MissingTensor(path.into())) };
        let (width, keys) = (m.heads * m.head_dim, m.groups * m.state);
        let x = self.w.b.scale(x, m.factors.input);
        let projected = self.w.linear(&x, &format!("{path}.in_proj"), 2 * width + 2 * keys + m.heads, m.proj_bias)?;
        self.w.b.enter(path);
        let parts = self.w.b.split(&projected, [width, width, keys, keys, m.heads]);
        let [gate, input, key, query, step] = self.scaled_parts(parts, m);
        let mixed = self.w.b.concatenate_all(&input, &[&key, &query], 2);
        let mixed = self.mamba_conv(&mixed, layer, m, width + 2 * keys, path)?;
        let [input, key, query] = self.w.b.split(&mixed, [width, keys, keys]);
        let bias = self.w.wide(&format!("{path}.dt_bias"), &[m.heads])?;
        let step = self.w.b.cast(&step, DType::F32);
        let step = self.w.b.add(&step, &bias);
        let step = self.w.b.softplus(&step);
        let step = self.limited(&step, limits);
        let name = format!("{path}.A_log");
        let to_rate = self.w.source(&name, &[m.heads])?.to_negated_exponential();
        let rate = self.w.mapped_vector(&name, m.heads, to_rate)?;
        let decay = self.w.b.mul(&step, &rate);
        let decay = self.w.b.exp(&decay);
        let input = self.mamba_heads(&input, m.heads, m.head_dim);
        let [key, query] = [key, query].map(|x| self.mamba_heads(&x, m.groups, m.state));
        let steps = self.w.b.unsqueeze(&step, 3);
        let scaled = self.w.b.mul(&input, &steps);
        let y = self.scan([&query, &key, &scaled, &decay], layer, [m.heads, m.head_dim, m.state])?;
        let skip = self.w.wide_vector(&format!("{path}.D"), m.heads)?;
        let skip = self.w.b.reshape(&skip, &[m.heads.into(), 1.into()]);
        let skipped = self.w.b.mul(&input, &skip);
        let y = self.w.b.add(&y, &skipped);
        let y = self.joined_heads(&y, width);
        self.gated_norm(&y, &gate, m, (norm, gate_last), path)
    }

    /// The result times the silu of the gate, normalized in groups, in the type of the activations.
    fn gated_norm(&mut self, y: &Val, gate: &Val, m: &Mamba, (norm, gate_last): (Option<Norm>, bool), path: &str) -> Result<Val> {
        let gate = self.w.b.cast(gate, DType::F32);
        let gate = self.w.b.silu(&gate);
        let mut y = y.clone();
        if !gate_last || norm.is_none() {
            y = self.w.b.mul(&y, &gate);
        }
        if let Some(norm) = norm {
            let width = m.heads * m.head_dim;
            let parts = [1.into(), self.span.tokens.clone(), m.groups.into(), (width / m.groups).into()];
            let grouped = self.w.b.reshape(&y, &parts);
            let grouped = self.w.b.rms_norm(&grouped, None, norm.eps);
            let weight = self.w.wide_vector(&format!("{path}.norm.weight"), width)?;
            self.w.b.enter(path);
            y = self.joined_heads(&grouped, width);
            y = self.w.b.mul(&y, &weight);
            if gate_last {
                y = self.w.b.mul(&y, &gate);
            }
        }
        Ok(self.w.b.cast(&y, self.settings.dtype))
    }

    /// Mamba 1, up to its last projection: [1, s, C].
    fn channels_mamba(&mut self, x: &Val, layer: usize, m: &Mamba, (rank, norm): (usize, Option<Norm>), path: &str) -> Result<Val> {
        let channels = m.heads;
        let projected = self.w.linear(x, &format!("{path}.in_proj"), 2 * channels, m.proj_bias)?;
        self.w.b.enter(path);
        let [input, gate] = self.w.b.split(&projected, [channels; 2]);
        let narrow = self.mamba_conv(&input, layer, m, channels, path)?;
        let narrow = self.w.b.cast(&narrow, self.settings.dtype);
        let made = self.w.linear(&narrow, &format!("{path}.x_proj"), rank + 2 * m.state, false)?;
        self.w.b.enter(path);
        let [mut step, mut key, mut query] = self.w.b.split(&made, [rank, m.state, m.state]);
        if let Some(norm) = norm {
            step = self.w.norm(&step, &format!("{path}.dt_layernorm"), norm)?;
            key = self.w.norm(&key, &format!("{path}.b_layernorm"), norm)?;
            query = self.w.norm(&query, &format!("{path}.c_layernorm"), norm)?;
        }
        let step = self.w.linear(&step, &format!("{path}.dt_proj"), channels, true)?;
        self.w.b.enter(path);
        let step = self.w.b.cast(&step, DType::F32);
        let step = self.w.b.softplus(&step);
        let name = format!("{path}.A_log");
        let to_rate = self.w.source(&name, &[channels, m.state])?.to_negated_exponential();
        let rates = self.w.mapped(&name, &[channels, m.state], to_rate)?;
        let steps = self.w.b.unsqueeze(&step, 3);
        let decay = self.w.b.mul(&steps, &rates);
        let decay = self.w.b.exp(&decay);
        let input = self.w.b.cast(&narrow, DType::F32);
        let scaled = self.w.b.mul(&input, &step);
        let scaled = self.mamba_heads(&scaled, channels, 1);
        let [key, query] = [key, query].map(|x| {
            let x = self.w.b.cast(&x, DType::F32);
            self.mamba_heads(&x, 1, m.state)
        });
        let y = self.scan([&query, &key, &scaled, &decay], layer, [channels, 1, m.state])?;
        let y = self.joined_heads(&y, channels);
        let skip = self.w.wide(&format!("{path}.D"), &[channels])?;
        let skipped = self.w.b.mul(&input, &skip);
        let y = self.w.b.add(&y, &skipped);
        let gate = self.w.b.cast(&gate, DType::F32);
        let gate = self.activated(&gate, m.activation);
        let y = self.w.b.mul(&y, &gate);
        Ok(self.w.b.cast(&y, self.settings.dtype))
    }

    /// The convolution of all channels and its activation, in f32.
    fn mamba_conv(&mut self, x: &Val, layer: usize, m: &Mamba, channels: usize, path: &str) -> Result<Val> {
        let weight = self.w.plain(&format!("{path}.conv1d.weight"), &[channels, 1, m.taps])?;
        let bias = if m.conv_bias { Some(self.w.vector(&format!("{path}.conv1d.bias"), channels)?) } else { None };
        let mixed = self.causal_conv(x, layer, m.taps, &weight, bias.as_ref())?;
        let mixed = self.activated(&mixed, m.activation);
        Ok(self.w.b.cast(&mixed, DType::F32))
    }

    /// The recurrence `S = g S + v k`, `y = S q` in f32. q and k are [1, s, groups, N], v is [1, s,
    /// H, P], g is [1, s, H] or [1, s, H, N].
    fn scan(&mut self, [q, k, v, g]: [&Val; 4], layer: usize, [heads, dim, state]: [usize; 3]) -> Result<Val> {
        let held = self.w.b.buffer(&format!("ssm_state_{layer}"), DType::F32, vec![1, heads, dim, state])?;
        let carried = self.carried(&held);
        let v = self.w.b.scale(v, 2f64.powi(-UNCORRECTED));
        let ones = self.w.b.select(&v, 3, 0);
        let zeros = self.w.b.sub(&ones, &ones);
        let beta = self.w.b.shift(&zeros, 2f64.powi(UNCORRECTED));
        let y = self.w.b.delta_rule([q, k, &v, g, &beta], &carried);
        self.w.b.store(&held, &carried);
        Ok(y)
    }

    fn scaled_parts(&mut self, parts: [Val; 5], m: &Mamba) -> [Val; 5] {
        let mut factors = m.factors.parts.into_iter();
        parts.map(|part| self.w.b.scale(&part, factors.next().unwrap_or(1.0)))
    }

    fn limited(&mut self, step: &Val, (low, high): (f64, f64)) -> Val {
        if low <= 0.0 && high.is_infinite() { step.clone() } else { self.w.b.clamp(step, low, high) }
    }

    fn mamba_heads(&mut self, x: &Val, heads: usize, dim: usize) -> Val {
        self.w.b.reshape(x, &[Int::from(1), self.span.tokens.clone(), heads.into(), dim.into()])
    }
}
