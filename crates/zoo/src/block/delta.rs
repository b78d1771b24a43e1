//! Blocks with a recurrent state instead of a key-value cache: short convolutions, and gated delta
//! nets, which begin with one.

use flambeau_tensor::DType;

use super::Decoder;
use crate::{
    CheckpointTensor, Result,
    builder::{ConvParams, Int, Val},
    spec::{DeltaNet, ShortConv},
};

/// Epsilon for normalizing queries and keys to length 1.
const LENGTH_EPS: f64 = 1e-6;

impl Decoder<'_> {
    /// A causal convolution of each channel of `x` [1, s, C]. The last `taps - 1` inputs are kept
    /// for the next call.
    pub(super) fn causal_conv(&mut self, x: &Val, layer: usize, taps: usize, weight: &Val, bias: Option<&Val>) -> Result<Val> {
        let mut x = x.clone();
        if taps > 1 {
            let shape = vec![1, taps - 1, x.dim(2)];
            let state = self.w.b.buffer(&format!("conv_state_{layer}"), self.settings.dtype, shape)?;
            let before = self.carried(&state);
            x = self.w.b.concatenate(&before, &x, 1);
            let s = self.span.tokens.clone();
            let end = self.w.b.add_int(&s, &(taps - 1).into());
            let kept = self.w.b.slice(&x, 1, &s, &end);
            self.w.b.store(&state, &kept);
        }
        let channels = self.w.b.transpose(&x, 1, 2);
        let mixed = self.w.b.conv([&channels, weight], bias, ConvParams::depthwise(x.dim(2)));
        Ok(self.w.b.transpose(&mixed, 1, 2))
    }

    pub(super) fn short_conv(&mut self, x: &Val, layer: usize, conv: ShortConv, path: &str) -> Result<Val> {
        let hidden = self.config.hidden;
        let joined = self.w.linear(x, &format!("{path}.in_proj"), 3 * hidden, conv.bias)?;
        self.w.b.enter(path);
        let [before, after, x] = self.w.b.split(&joined, [hidden; 3]);
        let x = self.w.b.mul(&before, &x);
        let weight = self.w.plain(&format!("{path}.conv.weight"), &[hidden, 1, conv.taps])?;
        let bias = if conv.bias { Some(self.w.vector(&format!("{path}.conv.bias"), hidden)?) } else { None };
        let mixed = self.causal_conv(&x, layer, conv.taps, &weight, bias.as_ref())?;
        let gated = self.w.b.mul(&after, &mixed);
        self.w.linear(&gated, &format!("{path}.out_proj"), hidden, conv.bias)
    }

    pub(super) fn delta_net(&mut self, x: &Val, layer: usize, d: &DeltaNet, path: &str) -> Result<Val> {
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let [qkv, z, b, a] = self.delta_projections(d, path)?;
        let mut wide = |(name, source): (String, CheckpointTensor)| self.w.project(x, path, &name, &source, false);
        let [mixed, z] = [wide(qkv)?, wide(z)?];
        let mut gate = |(name, source): (String, CheckpointTensor)| self.w.project_gate(x, path, &name, &source, false);
        let [b, a] = [gate(b)?, gate(a)?];
        self.w.b.enter(path);
        let weight = self.w.plain(&format!("{path}.conv1d.weight"), &[2 * keys + values, 1, d.taps])?;
        let mixed = self.causal_conv(&mixed, layer, d.taps, &weight, None)?;
        let mixed = self.activated(&mixed, d.activation);
        let mixed = self.w.b.cast(&mixed, DType::F32);
        let [q, k, v] = self.w.b.split(&mixed, [keys, keys, values]);
        // An RMS norm determines a vector's length. One norm scales it to length 1, or to the scale
        // of the scores.
        let dk = d.key_dim as f64;
        let q = self.unit_heads(&q, d.key_heads, d.key_dim, dk.recip());
        let k = self.unit_heads(&k, d.key_heads, d.key_dim, dk.sqrt().recip());
        let v = self.split_heads(&v, d.value_heads, d.value_dim);
        let [q, k] = [q, k].map(|heads| self.tiled(&heads, d));
        let (g, beta) = self.delta_gates(&a, &b, d, path)?;
        let shape = vec![1, d.value_heads, d.value_dim, d.key_dim];
        let held = self.w.b.buffer(&format!("recurrent_state_{layer}"), DType::F32, shape)?;
        let state = self.carried(&held);
        let y = self.w.b.delta_rule([&q, &k, &v, &g, &beta], &state);
        self.w.b.store(&held, &state);
        let y = self.w.b.cast(&y, self.settings.dtype);
        let y = self.w.norm(&y, &format!("{path}.norm"), d.norm)?;
        self.w.b.enter(path);
        let gate = self.split_heads(&z, d.value_heads, d.value_dim);
        let gate = self.w.b.silu(&gate);
        let y = self.w.b.mul(&y, &gate);
        let y = self.joined_heads(&y, values);
        self.w.linear(&y, &format!("{path}.out_proj"), self.config.hidden, false)
    }

    /// Names and matrices of four projections: q, k and v joined, the output gate, the write gate
    /// and the decay gate. A checkpoint stores four tensors, or two tensors that hold the rows of
    /// their parts for one key head after another.
    fn delta_projections(&self, d: &DeltaNet, path: &str) -> Result<[(String, CheckpointTensor); 4]> {
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let each = d.value_heads / d.key_heads;
        let long = [d.key_dim, d.key_dim, each * d.value_dim, each * d.value_dim];
        let [qkv, z] = match self.by_key_head(d, &format!("{path}.in_proj_qkvz.weight"), &long, [&[0, 1, 2], &[3]])? {
            Some(parts) => parts,
            None => [self.delta_part("qkv", 2 * keys + values, path)?, self.delta_part("z", values, path)?],
        };
        let [b, a] = match self.by_key_head(d, &format!("{path}.in_proj_ba.weight"), &[each; 2], [&[0], &[1]])? {
            Some(parts) => parts,
            None => [self.delta_part("b", d.value_heads, path)?, self.delta_part("a", d.value_heads, path)?],
        };
        let named = |part: &str, source| (format!("{path}.in_proj_{part}.weight"), source);
        Ok([named("qkv", qkv), named("z", z), named("b", b), named("a", a)])
    }

    fn delta_part(&self, part: &str, rows: usize, path: &str) -> Result<CheckpointTensor> {
        self.w.source(&format!("{path}.in_proj_{part}.weight"), &[rows, self.config.hidden])
    }

    /// Splits one tensor into two, if it exists. It holds a block of rows per key head, with parts
    /// of `sizes` rows. Each result joins the listed parts.
    fn by_key_head(
        &self,
        d: &DeltaNet,
        name: &str,
        sizes: &[usize],
        parts: [&[usize]; 2],
    ) -> Result<Option<[CheckpointTensor; 2]>> {
        if !self.w.has(name) {
            return Ok(None);
        }
        let block = sizes.iter().sum::<usize>();
        let whole = self.w.source(name, &[d.key_heads * block, self.config.hidden])?;
        let rows = |part: usize| {
            let start = sizes[..part].iter().sum::<usize>();
            (0..d.key_heads).flat_map(move |head| (0..sizes[part]).map(move |row| head * block + start + row))
        };
        let [first, second] = parts.map(|parts| whole.rows(name, parts.iter().flat_map(|&part| rows(part)).collect()));
        Ok(Some([first?, second?]))
    }

    /// Heads of keys [1, s, Hk, D], repeated for all value heads if `tiled`.
    fn tiled(&mut self, heads: &Val, d: &DeltaNet) -> Val {
        let times = if d.tiled { d.value_heads / d.key_heads } else { 1 };
        (1..times).fold(heads.clone(), |all, _| self.w.b.concatenate(&all, heads, 2))
    }

    /// Decay of the state, and share of the correction that is written, per value head [1, s, Hv]
    /// in f32.
    fn delta_gates(&mut self, a: &Val, b: &Val, d: &DeltaNet, path: &str) -> Result<(Val, Val)> {
        let name = format!("{path}.A_log");
        let to_rate = self.w.source(&name, &[d.value_heads])?.to_negated_exponential();
        let rate = self.w.mapped_vector(&name, d.value_heads, to_rate)?;
        let bias = self.w.wide(&format!("{path}.dt_bias"), &[d.value_heads])?;
        let a = self.w.b.cast(a, DType::F32);
        let a = self.w.b.add(&a, &bias);
        let step = self.w.b.softplus(&a);
        let decay = self.w.b.mul(&step, &rate);
        let b = self.w.b.cast(b, DType::F32);
        Ok((self.w.b.exp(&decay), self.w.b.sigmoid(&b)))
    }

    pub(super) fn split_heads(&mut self, x: &Val, heads: usize, dim: usize) -> Val {
        self.w.b.reshape(x, &[Int::from(1), self.span.tokens.clone(), heads.into(), dim.into()])
    }

    /// Normalizes heads to length 1, times `scale` and the square root of their size.
    pub(super) fn unit_heads(&mut self, x: &Val, heads: usize, dim: usize, scale: f64) -> Val {
        let x = self.split_heads(x, heads, dim);
        let x = self.w.b.rms_norm(&x, None, LENGTH_EPS / dim as f64);
        self.w.b.scale(&x, scale)
    }
}
