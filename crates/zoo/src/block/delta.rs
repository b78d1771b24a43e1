//! Blocks with state in place of a cache: short convolutions, and the gated delta rule behind one.

use flambeau_tensor::DType;

use super::Decoder;
use crate::{
    CheckpointTensor, Result,
    builder::{Int, Val},
    spec::{DeltaNet, ShortConv},
};

/// What is added to squares before queries and keys are brought to length 1.
const LENGTH_EPS: f64 = 1e-6;

impl Decoder<'_> {
    /// A causal convolution of each channel of `x` [1, s, C]; the inputs that the next call still needs are kept.
    fn causal_conv(&mut self, x: &Val, layer: usize, taps: usize, weight: &Val, bias: Option<&Val>) -> Result<Val> {
        let mut x = x.clone();
        if taps > 1 {
            let shape = vec![1, taps - 1, x.dim(2)];
            let state = self.b.buffer(&format!("conv_state_{layer}"), self.settings.dtype, shape)?;
            let before = self.carried(&state);
            x = self.b.concatenate(&before, &x, 1);
            let s = self.span.tokens.clone();
            let end = self.b.add_int(&s, &(taps - 1).into());
            let kept = self.b.slice(&x, 1, &s, &end);
            self.b.store(&state, &kept);
        }
        let channels = self.b.transpose(&x, 1, 2);
        let mixed = self.b.depthwise_conv(&channels, weight, bias);
        Ok(self.b.transpose(&mixed, 1, 2))
    }

    pub(super) fn short_conv(&mut self, x: &Val, layer: usize, conv: ShortConv, path: &str) -> Result<Val> {
        let hidden = self.config.hidden;
        let joined = self.linear(x, &format!("{path}.in_proj"), 3 * hidden, conv.bias)?;
        self.b.enter(path);
        let [before, after, x] = self.b.split(&joined, [hidden; 3]);
        let x = self.b.mul(&before, &x);
        let weight = self.plain(&format!("{path}.conv.weight"), &[hidden, 1, conv.taps])?;
        let bias = if conv.bias { Some(self.vector(&format!("{path}.conv.bias"), hidden)?) } else { None };
        let mixed = self.causal_conv(&x, layer, conv.taps, &weight, bias.as_ref())?;
        let gated = self.b.mul(&after, &mixed);
        self.linear(&gated, &format!("{path}.out_proj"), hidden, conv.bias)
    }

    pub(super) fn delta_net(&mut self, x: &Val, layer: usize, d: &DeltaNet, path: &str) -> Result<Val> {
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let mut projected = Vec::with_capacity(4);
        for (name, source) in self.delta_projections(d, path)? {
            projected.push(self.project(x, path, &name, &source, false)?);
        }
        let [mixed, z, b, a] = &projected[..] else {
            return Err(crate::Error::MissingTensor(format!("{path}.in_proj_qkv.weight")));
        };
        self.b.enter(path);
        let weight = self.plain(&format!("{path}.conv1d.weight"), &[2 * keys + values, 1, d.taps])?;
        let mixed = self.causal_conv(mixed, layer, d.taps, &weight, None)?;
        let mixed = self.b.silu(&mixed);
        let mixed = self.b.cast(&mixed, DType::F32);
        let [q, k, v] = self.b.split(&mixed, [keys, keys, values]);
        // The length of a vector is that of its mean square: one norm brings it to length 1, or to the scale of the scores.
        let dk = d.key_dim as f64;
        let q = self.unit_heads(&q, d.key_heads, d.key_dim, dk.recip());
        let k = self.unit_heads(&k, d.key_heads, d.key_dim, dk.sqrt().recip());
        let v = self.split_heads(&v, d.value_heads, d.value_dim);
        let (g, beta) = self.delta_gates(a, b, d, path)?;
        let shape = vec![1, d.value_heads, d.value_dim, d.key_dim];
        let held = self.b.buffer(&format!("recurrent_state_{layer}"), DType::F32, shape)?;
        let state = self.carried(&held);
        let y = self.b.delta_rule([&q, &k, &v, &g, &beta], &state);
        self.b.store(&held, &state);
        let y = self.b.cast(&y, self.settings.dtype);
        let y = self.norm_as(&y, &format!("{path}.norm"), d.norm)?;
        self.b.enter(path);
        let gate = self.split_heads(z, d.value_heads, d.value_dim);
        let gate = self.b.silu(&gate);
        let y = self.b.mul(&y, &gate);
        let y = self.joined_heads(&y, values);
        self.linear(&y, &format!("{path}.out_proj"), self.config.hidden, false)
    }

    /// Names and matrices of the projections to q, k and v together, to the output's gate, and to the gates of writing and
    /// forgetting.
    fn delta_projections(&self, d: &DeltaNet, path: &str) -> Result<[(String, CheckpointTensor); 4]> {
        let (keys, values, hidden) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim, self.config.hidden);
        let named = |part: &str| format!("{path}.in_proj_{part}.weight");
        if !d.packed {
            let one = |part: &str, rows| -> Result<_> { Ok((named(part), self.source(&named(part), &[rows, hidden])?)) };
            return Ok([one("qkv", 2 * keys + values)?, one("z", values)?, one("b", d.value_heads)?, one("a", d.value_heads)?]);
        }
        let each = d.value_heads / d.key_heads;
        let long = self.source(&named("qkvz"), &[2 * keys + 2 * values, hidden])?;
        let short = self.source(&named("ba"), &[2 * d.value_heads, hidden])?;
        // Rows of one part, out of blocks of all parts of a key head.
        let rows = |sizes: &[usize], part: usize| -> Vec<usize> {
            let (block, start) = (sizes.iter().sum::<usize>(), sizes[..part].iter().sum::<usize>());
            (0..d.key_heads).flat_map(|head| (0..sizes[part]).map(move |row| head * block + start + row)).collect()
        };
        let sizes = [d.key_dim, d.key_dim, each * d.value_dim, each * d.value_dim];
        let qkv = (0..3).flat_map(|part| rows(&sizes, part)).collect();
        let one =
            |part: &str, source: &CheckpointTensor, list| -> Result<_> { Ok((named(part), source.rows(&named(part), list)?)) };
        Ok([
            one("qkv", &long, qkv)?,
            one("z", &long, rows(&sizes, 3))?,
            one("b", &short, rows(&[each; 2], 0))?,
            one("a", &short, rows(&[each; 2], 1))?,
        ])
    }

    /// How much of the state stays, and how much of what is missing is written, of each value head [1, s, Hv] in f32.
    fn delta_gates(&mut self, a: &Val, b: &Val, d: &DeltaNet, path: &str) -> Result<(Val, Val)> {
        let rate = self.mapped_vector(&format!("{path}.A_log"), d.value_heads, |a| -a.exp())?;
        let bias = self.wide_vector(&format!("{path}.dt_bias"), d.value_heads)?;
        let a = self.b.cast(a, DType::F32);
        let a = self.b.add(&a, &bias);
        let step = self.b.softplus(&a);
        let decay = self.b.mul(&step, &rate);
        let b = self.b.cast(b, DType::F32);
        Ok((self.b.exp(&decay), self.b.sigmoid(&b)))
    }

    fn split_heads(&mut self, x: &Val, heads: usize, dim: usize) -> Val {
        self.b.reshape(x, &[Int::from(1), self.span.tokens.clone(), heads.into(), dim.into()])
    }

    /// Heads brought to length 1, times `scale` and the square root of their size.
    fn unit_heads(&mut self, x: &Val, heads: usize, dim: usize, scale: f64) -> Val {
        let x = self.split_heads(x, heads, dim);
        let x = self.b.rms_norm(&x, None, LENGTH_EPS / dim as f64);
        self.b.scale(&x, scale)
    }
}
