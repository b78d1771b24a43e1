//! Attention over latent vectors: the cache holds one vector per position for all heads.
//!
//! Keys are linear in the latent vectors, so queries can be projected to the latent space instead
//! of keys to every head. Values of the heads are computed from the attended latent vector. The
//! result is attention of many query heads over one head of keys.

use super::Decoder;
use crate::{
    Result,
    builder::{Rotary, Val},
    spec::Latent,
};

impl Decoder<'_> {
    pub(super) fn latent(&mut self, x: &Val, layer: usize, l: &Latent, path: &str) -> Result<Val> {
        let rotation = l.rope.as_ref().map(|rope| self.rope_constants(rope, l.rotated_dim)).transpose()?;
        let gate = match l.gate {
            Some(name) => {
                let gate = self.w.gate(x, &format!("{path}.{name}"), l.heads, false)?;
                let gate = self.w.b.sigmoid(&gate);
                Some(self.w.b.unsqueeze(&gate, 3))
            }
            None => None,
        };
        let q = self.latent_queries(x, l, path)?;
        self.w.b.enter(path);
        let [plain, rotated] = self.w.b.split(&q, [l.plain_dim, l.rotated_dim]);
        let mut rotated = rotated;
        if let Some(rotation) = &rotation {
            rotated = self.w.b.rope(&rotated, &self.span.pos, &rotation.rotary);
            if let Some(amplitude) = &rotation.amplitude {
                rotated = self.w.b.mul(&rotated, amplitude);
            }
        }
        let cache = self.latent_cache(x, layer, l, rotation.as_ref().map(|rotation| &rotation.rotary), path)?;
        let [to_latent, to_values] = self.latent_heads(l, path)?;
        let plain = self.w.b.matmul(&plain, &to_latent);
        let q = self.w.b.concatenate(&plain, &rotated, 3);
        let [values, _] = self.w.b.split(&cache, [l.rank, l.rotated_dim]);
        let attended = self.w.b.attention([&q, &cache, &values], &self.span.pos, None, l.scale);
        let to_values = self.w.b.transpose(&to_values, 2, 3);
        let attended = self.w.b.matmul(&attended, &to_values);
        let mut joined = self.w.b.transpose(&attended, 1, 2);
        if let Some(gate) = &gate {
            joined = self.w.b.mul(&joined, gate);
        }
        let joined = self.w.b.reshape(&joined, &[1.into(), self.span.tokens.clone(), (l.heads * l.value_dim).into()]);
        self.w.linear(&joined, &format!("{path}.o_proj"), self.config.hidden, l.bias)
    }

    /// Queries [1, H, s, plain + rotated].
    fn latent_queries(&mut self, x: &Val, l: &Latent, path: &str) -> Result<Val> {
        let dim = l.plain_dim + l.rotated_dim;
        let q = match l.query_rank {
            Some(rank) => {
                let q = self.w.linear(x, &format!("{path}.q_a_proj"), rank, l.bias)?;
                let q = self.w.norm(&q, &format!("{path}.q_a_layernorm"), l.norm)?;
                self.w.linear(&q, &format!("{path}.q_b_proj"), l.heads * dim, false)?
            }
            None => self.w.linear(x, &format!("{path}.q_proj"), l.heads * dim, false)?,
        };
        let q = self.w.b.reshape(&q, &[1.into(), self.span.tokens.clone(), l.heads.into(), dim.into()]);
        Ok(self.w.b.transpose(&q, 1, 2))
    }

    /// The cache [1, 1, n, rank + rotated] with the latent vectors and rotated keys of `x` written
    /// into it.
    fn latent_cache(&mut self, x: &Val, layer: usize, l: &Latent, rotary: Option<&Rotary>, path: &str) -> Result<Val> {
        let made = self.w.linear(x, &format!("{path}.kv_a_proj_with_mqa"), l.rank + l.rotated_dim, l.bias)?;
        self.w.b.enter(path);
        let [latent, key] = self.w.b.split(&made, [l.rank, l.rotated_dim]);
        let latent = self.w.norm(&latent, &format!("{path}.kv_a_layernorm"), l.norm)?;
        self.w.b.enter(path);
        let (latent, key) = (self.w.b.unsqueeze(&latent, 1), self.w.b.unsqueeze(&key, 1));
        let key = rotary.map_or_else(|| key.clone(), |rotary| self.w.b.rope(&key, &self.span.pos, rotary));
        let row = self.w.b.concatenate(&latent, &key, 3);
        let shape = vec![1, 1, self.settings.positions, l.rank + l.rotated_dim];
        let cache = self.w.b.buffer(&format!("latent_cache_{layer}"), self.settings.dtype, shape)?;
        self.w.b.cache_update(&cache, &row, &self.span.pos);
        Ok(cache)
    }

    /// Matrices from a latent vector to each head's keys [1, H, plain, rank] and values [1, H,
    /// value, rank].
    fn latent_heads(&mut self, l: &Latent, path: &str) -> Result<[Val; 2]> {
        if let Some(apart) = self.latent_heads_apart(l, path)? {
            return Ok(apart);
        }
        let name = format!("{path}.kv_b_proj.weight");
        let rows = l.plain_dim + l.value_dim;
        let both = self.w.matrix(&name, &self.w.source(&name, &[l.heads * rows, l.rank])?)?;
        let both = self.w.b.reshape(&both, &[1.into(), l.heads.into(), rows.into(), l.rank.into()]);
        let keys = self.w.b.slice(&both, 2, &0.into(), &l.plain_dim.into());
        let values = self.w.b.slice(&both, 2, &l.plain_dim.into(), &rows.into());
        Ok([keys, values])
    }

    /// The same matrices from a checkpoint with two separate tensors. GGUF files and MLX's
    /// converter store the matrix of keys transposed.
    fn latent_heads_apart(&mut self, l: &Latent, path: &str) -> Result<Option<[Val; 2]>> {
        let [keys, values] = ["embed_q", "unembed_out"].map(|part| format!("{path}.{part}.weight"));
        if !self.w.has(&keys) {
            return Ok(None);
        }
        let transposed = self.w.matrix(&keys, &self.w.source(&keys, &[l.heads, l.rank, l.plain_dim])?)?;
        let to_values = self.w.matrix(&values, &self.w.source(&values, &[l.heads, l.value_dim, l.rank])?)?;
        let transposed = self.w.b.unsqueeze(&transposed, 0);
        Ok(Some([self.w.b.transpose(&transposed, 2, 3), self.w.b.unsqueeze(&to_values, 0)]))
    }
}
