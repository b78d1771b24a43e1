//! Caches of keys and values: floats, or codes of 8 bits with scales.

use flambeau_tensor::DType;

use super::Decoder;
use crate::{
    KvCache, Result,
    builder::{Int, Val},
    spec::Attention,
};

/// Number of elements of a head that share a scale, if it divides the head.
const GROUP: usize = 32;

/// Codes are -127 to 127.
const TOP_CODE: f64 = 127.0;

/// Cache of keys and values of one layer.
#[derive(Clone, Debug)]
pub(super) enum Cache {
    /// Keys and values [1, Hk, n, D].
    Floats([Val; 2]),
    /// Codes i8 [1, 2·Hk, n, G, D/G] and scales [1, 2·Hk, n, G, 1], keys before values.
    Codes { codes: Val, scales: Val },
}

impl Decoder<'_> {
    /// Writes new keys and values [1, Hk, s, D] into the cache of a layer, and returns the cache.
    pub(super) fn cached(&mut self, layer: usize, kv: [Val; 2], a: &Attention) -> Result<Cache> {
        let ring = self.ring(a.window);
        let rows = ring.unwrap_or(self.settings.positions);
        let (dtype, prefix) = (self.settings.dtype, self.config.state_prefix);
        let cache = match self.settings.kv_cache {
            KvCache::Float => {
                let shape = vec![1, a.kv_heads, rows, a.head_dim];
                let keys = self.w.b.buffer(&format!("{prefix}key_cache_{layer}"), dtype, shape.clone())?;
                let values = self.w.b.buffer(&format!("{prefix}value_cache_{layer}"), dtype, shape)?;
                for (cache, new) in [&keys, &values].into_iter().zip(&kv) {
                    self.write_rows(cache, new, ring);
                }
                Cache::Floats([keys, values])
            }
            KvCache::Int8 => {
                let group = if a.head_dim.is_multiple_of(GROUP) { GROUP } else { a.head_dim };
                let shape = |elements| vec![1, 2 * a.kv_heads, rows, a.head_dim / group, elements];
                let codes = self.w.b.buffer(&format!("{prefix}cache_codes_{layer}"), DType::I8, shape(group))?;
                let scales = self.w.b.buffer(&format!("{prefix}cache_scales_{layer}"), dtype, shape(1))?;
                let new = self.encoded(&kv, a, group);
                for (cache, new) in [&codes, &scales].into_iter().zip(&new) {
                    self.write_rows(cache, new, ring);
                }
                Cache::Codes { codes, scales }
            }
        };
        self.caches[layer] = Some(cache.clone());
        Ok(cache)
    }

    /// The cache of an earlier layer.
    pub(super) fn cache_of(&self, layer: usize) -> Result<Cache> {
        let cache = self.caches.get(layer).cloned().flatten();
        cache.ok_or_else(|| crate::Error::MissingTensor(format!("model.layers.{layer}.self_attn.k_proj.weight")))
    }

    /// Writes rows of the call's tokens along axis 2 of a cache: at their positions, or modulo the
    /// length of a ring.
    fn write_rows(&mut self, cache: &Val, new: &Val, ring: Option<usize>) {
        match ring {
            Some(rows) => {
                let places = self.ring_rows(rows);
                self.w.b.cache_scatter(cache, new, &places);
            }
            None => self.w.b.cache_update(cache, new, &self.span.pos),
        }
    }

    /// Encodes keys and values as codes [1, 2·Hk, s, G, D/G] and scales [1, 2·Hk, s, G, 1]. The
    /// largest magnitude of a group gets the largest code.
    fn encoded(&mut self, [k, v]: &[Val; 2], a: &Attention, group: usize) -> [Val; 2] {
        let b = &mut self.w.b;
        let both = b.concatenate(k, v, 1);
        let sizes = [1.into(), (2 * a.kv_heads).into(), self.span.tokens.clone(), (a.head_dim / group).into(), group.into()];
        let groups = b.reshape(&both, &sizes);
        let magnitudes = b.abs(&groups);
        let largest = b.largest(&magnitudes);
        let scales = b.divide(&largest, TOP_CODE);
        // The bound avoids division by zero, and codes above 127 from subnormal scales that were
        // rounded down.
        let floor = if groups.dtype == DType::F16 { 2f64.powi(-16) } else { 1e-30 };
        let scales = b.clamp(&scales, floor, f64::INFINITY);
        let [wide, by] = [&groups, &scales].map(|x| b.cast(x, DType::F32));
        let codes = b.div(&wide, &by);
        let codes = b.round(&codes);
        [b.cast(&codes, DType::I8), scales]
    }

    /// Keys and values [1, Hk, n, D] of a cache. If they are codes, only the rows that the call can
    /// see are decoded.
    pub(super) fn cached_rows(&mut self, cache: &Cache, window: Option<usize>) -> [Val; 2] {
        let (codes, scales) = match cache {
            Cache::Floats(kv) => return kv.clone(),
            Cache::Codes { codes, scales } => (codes, scales),
        };
        let end = self.cache_end(window);
        let b = &mut self.w.b;
        let (heads, dim) = (codes.dim(1) / 2, codes.dim(3) * codes.dim(4));
        [0, heads].map(|first| {
            let [codes, scales] = [codes, scales].map(|part| {
                let own = b.slice(part, 1, &first.into(), &(first + heads).into());
                b.slice(&own, 2, &0.into(), &end)
            });
            let codes = b.cast(&codes, scales.dtype);
            let rows = b.mul(&codes, &scales);
            b.reshape(&rows, &[1.into(), heads.into(), end.clone(), dim.into()])
        })
    }

    /// End of the rows that a call can see.
    pub(super) fn cache_end(&mut self, window: Option<usize>) -> Int {
        match self.ring(window) {
            Some(rows) => rows.into(),
            None => self.w.b.add_int(&self.span.pos, &self.span.tokens),
        }
    }
}
