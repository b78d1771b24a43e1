//! Kimi's delta attention: the delta rule with a separate decay for each element of a key.

use flambeau_tensor::DType;

use super::Decoder;
use crate::{Result, builder::Val, spec::KeyDecay};

impl Decoder<'_> {
    pub(super) fn key_decay(&mut self, x: &Val, layer: usize, k: &KeyDecay, path: &str) -> Result<Val> {
        let width = k.heads * k.head_dim;
        let [query, key, value] = self.convolved(x, layer, k, path)?;
        let dim = k.head_dim as f64;
        let query = self.unit_heads(&query, k.heads, k.head_dim, dim.recip());
        let key = self.unit_heads(&key, k.heads, k.head_dim, dim.sqrt().recip());
        let value = self.split_heads(&value, k.heads, k.head_dim);
        let decay = self.key_decays(x, k, path)?;
        let beta = self.w.gate(x, &format!("{path}.b_proj"), k.heads, false)?;
        self.w.b.enter(path);
        let beta = self.w.b.cast(&beta, DType::F32);
        let beta = self.w.b.sigmoid(&beta);
        let held = self.w.b.buffer(&format!("recurrent_state_{layer}"), DType::F32, vec![1, k.heads, k.head_dim, k.head_dim])?;
        let state = self.carried(&held);
        let y = self.w.b.delta_rule([&query, &key, &value, &decay, &beta], &state);
        self.w.b.store(&held, &state);
        let y = self.w.b.rms_norm(&y, None, k.norm.eps);
        let weight = self.w.wide(&format!("{path}.o_norm.weight"), &[k.head_dim])?;
        let y = self.w.b.mul(&y, &weight);
        let gate = self.low_rank(x, k, path, "g")?;
        let gate = self.w.b.cast(&gate, DType::F32);
        let gate = self.w.b.sigmoid(&gate);
        let gate = self.split_heads(&gate, k.heads, k.head_dim);
        let y = self.w.b.mul(&y, &gate);
        let y = self.w.b.cast(&y, self.settings.dtype);
        let y = self.joined_heads(&y, width);
        self.w.linear(&y, &format!("{path}.o_proj"), self.config.hidden, false)
    }

    /// Queries, keys and values [1, s, H·D] after their convolution, in f32. One convolution covers
    /// the channels of all three.
    fn convolved(&mut self, x: &Val, layer: usize, k: &KeyDecay, path: &str) -> Result<[Val; 3]> {
        let width = k.heads * k.head_dim;
        let mut one = |part: &str| self.w.linear(x, &format!("{path}.{part}_proj"), width, false);
        let (query, key, value) = (one("q")?, one("k")?, one("v")?);
        self.w.b.enter(path);
        let mixed = self.w.b.concatenate_all(&query, &[&key, &value], 2);
        let mut taps = |part: &str| self.w.plain(&format!("{path}.{part}_conv1d.weight"), &[width, 1, k.taps]);
        let (query, key, value) = (taps("q")?, taps("k")?, taps("v")?);
        let weight = self.w.b.concatenate_all(&query, &[&key, &value], 0);
        let mixed = self.causal_conv(&mixed, layer, k.taps, &weight, None)?;
        let mixed = self.activated(&mixed, k.activation);
        let mixed = self.w.b.cast(&mixed, DType::F32);
        Ok(self.w.b.split(&mixed, [width; 3]))
    }

    /// Decay of each element of a head's state [1, s, H, D], in f32.
    fn key_decays(&mut self, x: &Val, k: &KeyDecay, path: &str) -> Result<Val> {
        let forget = self.low_rank(x, k, path, "f")?;
        let bias = self.w.wide(&format!("{path}.dt_bias"), &[k.heads * k.head_dim])?;
        let forget = self.w.b.cast(&forget, DType::F32);
        let forget = self.w.b.add(&forget, &bias);
        let forget = self.split_heads(&forget, k.heads, k.head_dim);
        let rate = self.w.exponentials(&format!("{path}.A_log"), k.heads)?;
        let rate = self.w.b.reshape(&rate, &[k.heads.into(), 1.into()]);
        let logarithm = match k.lower_bound {
            Some(bound) => {
                let steep = self.w.b.mul(&forget, &rate);
                let share = self.w.b.sigmoid(&steep);
                self.w.b.scale(&share, bound)
            }
            None => {
                let step = self.w.b.softplus(&forget);
                let fall = self.w.b.mul(&step, &rate);
                self.w.b.scale(&fall, -1.0)
            }
        };
        Ok(self.w.b.exp(&logarithm))
    }

    /// A projection to [1, s, H·D], by two matrices through the width of a head if `low_rank`.
    fn low_rank(&mut self, x: &Val, k: &KeyDecay, path: &str, name: &str) -> Result<Val> {
        let width = k.heads * k.head_dim;
        if !k.low_rank {
            return self.w.linear(x, &format!("{path}.{name}_proj"), width, false);
        }
        let narrow = self.w.linear(x, &format!("{path}.{name}_a_proj"), k.head_dim, false)?;
        self.w.linear(&narrow, &format!("{path}.{name}_b_proj"), width, false)
    }
}
