//! The cache behind `UpdateAndAttend` nodes.

use flambeau_ir::engine::{KvCacheConfig, KvLayer};
use flambeau_kernels::Pool;
use flambeau_tensor::{AlignedBytes, DType};

use crate::{
    array::{Array, Storage},
    error::{OpError, Result},
    ops::{copy::cast_into, shape::with_region},
};

/// Positions for which a layer without a window holds storage at first; it doubles as needed.
const INITIAL_CAPACITY: usize = 512;

/// Keys and values of every layer of one sequence.
#[derive(Debug)]
pub(crate) struct KvCache {
    config: KvCacheConfig,
    layers: Vec<Layer>,
}

/// Pools `[1, heads, slots, head_dim]` of keys and of values.
#[derive(Debug)]
struct Layer {
    pools: [Array; 2],
    slots: usize,
}

/// What a query of one step attends to.
pub(crate) struct Span {
    /// Physical runs of slots that hold the keys, oldest first: start and length, the second possibly empty.
    pub(crate) runs: [(usize, usize); 2],
    /// The layer's window, if keys inside the span lie outside of it for some of the step's queries.
    pub(crate) window: Option<usize>,
}

fn zeros(dtype: DType, shape: [usize; 4]) -> Result<Array> {
    let bytes = flambeau_tensor::numel(&shape).and_then(|n| n.checked_mul(dtype.size()));
    let bytes = bytes.filter(|&n| n <= 1 << 40).ok_or_else(|| OpError::too_large(&shape))?;
    Ok(Array::row_major(dtype, &shape, std::sync::Arc::new(Storage::Owned(AlignedBytes::zeroed(bytes)))))
}

/// Slots of a windowed layer: every key that some query of a step still sees, and the step's own.
fn ring_slots(window: usize, max_write: Option<usize>) -> Option<usize> {
    window.checked_add(max_write.unwrap_or(window))?.checked_sub(1)
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// For a capacity, window, head count or head size of zero, a type that is not floating, or sizes beyond the address space.
    pub(crate) fn new(config: &KvCacheConfig) -> Result<KvCache> {
        if config.capacity == 0 || config.max_write == Some(0) || !config.dtype.is_float() {
            return Err(OpError::value("the cache needs a capacity, a step size above zero and a float type"));
        }
        let layers = config.layers.iter().map(|layer| {
            if layer.window == Some(0) || layer.n_kv_heads == 0 || layer.head_dim == 0 {
                return Err(OpError::value("a cache layer needs a window, heads and a head size above zero"));
            }
            let slots = match layer.window {
                Some(window) => {
                    ring_slots(window, config.max_write).ok_or_else(|| OpError::value("a cache window is too large"))?
                }
                None => config.capacity.min(INITIAL_CAPACITY),
            };
            Layer::new(layer, config.dtype, slots)
        });
        Ok(KvCache { config: config.clone(), layers: layers.collect::<Result<_>>()? })
    }

    /// The layer's index, and its configuration. A configuration of one layer serves all.
    fn layer(&self, id: i32) -> Result<(usize, &KvLayer)> {
        let id = usize::try_from(id).map_err(|_| OpError::value("the layer id is negative"))?;
        let layer = self.config.layers.get(id);
        let count = self.config.layers.len();
        layer.map(|l| (id, l)).ok_or_else(|| OpError::value(format!("layer {id} of a cache with {count} layers")))
    }

    /// Writes `k` and `v` `[1, heads, T, head_dim]` from `position` on, and says which slots the step reads.
    ///
    /// # Errors
    /// If they do not fit the layer, or the step reaches beyond the capacity.
    pub(crate) fn update(&mut self, pool: &Pool, id: i32, position: i64, [k, v]: [&Array; 2]) -> Result<Span> {
        let (index, layer) = self.layer(id)?;
        let (window, expected) = (layer.window, [1, layer.n_kv_heads, k.shape.get(2).copied().unwrap_or(0), layer.head_dim]);
        if k.shape[..] != expected || v.shape[..] != expected {
            return Err(OpError::value(format!("keys {:?} and values {:?}, expected {expected:?}", k.shape, v.shape)));
        }
        let count = expected[2];
        let capacity = self.config.capacity;
        let position = usize::try_from(position).map_err(|_| OpError::value("the position is negative"))?;
        let end = position.checked_add(count).filter(|&e| e <= capacity);
        let end = end.ok_or_else(|| OpError::value(format!("{count} positions from {position} exceed the capacity {capacity}")))?;
        if window.is_some_and(|w| count > self.config.max_write.unwrap_or(w)) {
            return Err(OpError::value(format!("a step of {count} positions is too long for the layer's window")));
        }
        let storage = &mut self.layers[index];
        if window.is_none() {
            storage.grow(pool, end, capacity)?;
        }
        let slots = storage.slots;
        let mut done = 0;
        for (start, n) in runs(position, count, slots) {
            for (to, from) in storage.pools.iter_mut().zip([k, v]) {
                with_region(to, &[(2, start, n, 1)], |region| cast_into(pool, &from.narrow(2, done, n, 1), region))?;
            }
            done += n;
        }
        let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
        let window = window.filter(|&w| w < end - first && count > 1);
        Ok(Span { runs: runs(first, end - first, slots), window })
    }

    /// The layer's pools of keys and values.
    pub(crate) fn pools(&self, id: i32) -> Result<[Array; 2]> {
        let (index, _) = self.layer(id)?;
        Ok(self.layers[index].pools.clone())
    }
}

/// The physical runs of logical positions `start..start + count` modulo `slots`.
fn runs(start: usize, count: usize, slots: usize) -> [(usize, usize); 2] {
    let at = start % slots;
    let first = count.min(slots - at);
    [(at, first), (0, count - first)]
}

impl Layer {
    fn new(layer: &KvLayer, dtype: DType, slots: usize) -> Result<Layer> {
        let shape = [1, layer.n_kv_heads, slots, layer.head_dim];
        Ok(Layer { pools: [zeros(dtype, shape)?, zeros(dtype, shape)?], slots })
    }

    /// Doubles the storage until `end` positions fit, up to `capacity`.
    fn grow(&mut self, pool: &Pool, end: usize, capacity: usize) -> Result<()> {
        let mut slots = self.slots;
        while slots < end {
            slots = slots.saturating_mul(2).min(capacity);
        }
        if slots == self.slots {
            return Ok(());
        }
        for old in &mut self.pools {
            let mut new = zeros(old.dtype, [1, old.shape[1], slots, old.shape[3]])?;
            with_region(&mut new, &[(2, 0, self.slots, 1)], |region| cast_into(pool, old, region))?;
            *old = new;
        }
        self.slots = slots;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::Tensor;

    use super::*;

    fn cache(window: Option<usize>, max_write: Option<usize>) -> KvCache {
        let layers = vec![KvLayer { window, n_kv_heads: 1, head_dim: 1 }];
        KvCache::new(&KvCacheConfig { capacity: 2000, layers, dtype: DType::F32, max_write }).unwrap()
    }

    /// Writes steps of the given lengths, each key being its position, and checks that each step reads the positions expected
    /// of a layer that keeps everything its window shows.
    fn check(window: Option<usize>, max_write: Option<usize>, steps: &[usize]) {
        let (pool, mut cache, mut position) = (Pool::new(1), cache(window, max_write), 0);
        for &count in steps {
            let keys: Vec<f32> = (position..position + count).map(|p| p as f32).collect();
            let keys = Array::from_tensor(&Tensor::from_slice(&keys, &[1, 1, count, 1]).unwrap());
            let span = cache.update(&pool, 0, position as i64, [&keys, &keys]).unwrap();
            let [stored, _] = cache.pools(0).unwrap();
            let stored = stored.slice::<f32>().unwrap();
            let read: Vec<f32> = span.runs.iter().flat_map(|&(at, n)| stored[at..at + n].to_vec()).collect();
            let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
            let expected: Vec<f32> = (first..position + count).map(|p| p as f32).collect();
            assert_eq!(read, expected, "step of {count} at {position}");
            position += count;
        }
    }

    #[test]
    fn every_step_reads_what_its_window_shows() {
        check(None, None, &[1, 5, 1, 600, 1, 1, 700]);
        check(Some(4), None, &[3, 1, 1, 4, 1, 2, 1, 1, 1, 4, 4]);
        check(Some(3), Some(7), &[7, 1, 5, 2, 7, 7, 1]);
        check(Some(1), Some(1), &[1, 1, 1]);
    }

    #[test]
    fn steps_that_do_not_fit_are_refused() {
        let refused = |window, count: usize, position| {
            let keys = Array::from_tensor(&Tensor::zeros(DType::F32, &[1, 1, count, 1]).unwrap());
            cache(window, None).update(&Pool::new(1), 0, position, [&keys, &keys]).is_err()
        };
        assert!(refused(None, 1, 2000) && refused(None, 1, -1) && refused(Some(3), 4, 0) && !refused(Some(3), 3, 0));
    }
}
