//! The cache behind `UpdateAndAttend` nodes.

use flambeau_ir::engine::{KvCacheConfig, KvLayer};
use flambeau_tensor::DType;

use crate::{
    cx::{Slot, cast},
    error::{OpError, Result},
    ffi::{Api, Array},
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
    /// `[1, heads, count, head_dim]`, oldest first.
    pub(crate) keys: Array,
    pub(crate) values: Array,
    pub(crate) count: usize,
    /// The layer's window, if keys inside the span lie outside of it for some of the step's queries.
    pub(crate) window: Option<usize>,
}

/// Slots of a windowed layer: every key that some query of a step still sees, and the step's own.
fn ring_slots(window: usize, max_write: Option<usize>) -> Option<usize> {
    window.checked_add(max_write.unwrap_or(window))?.checked_sub(1)
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// For a capacity, window, head count or head size of zero, and a type that is not floating.
    pub(crate) fn new(api: Api, config: &KvCacheConfig) -> Result<KvCache> {
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
            Layer::new(api, layer, config.dtype, slots)
        });
        Ok(KvCache { config: config.clone(), layers: layers.collect::<Result<_>>()? })
    }

    /// Handles to every pool.
    pub(crate) fn arrays(&self) -> Result<Vec<Array>> {
        self.layers.iter().flat_map(|layer| &layer.pools).map(|pool| Ok(pool.share()?)).collect()
    }

    /// The layer's index, and its configuration.
    fn layer(&self, id: i32) -> Result<(usize, &KvLayer)> {
        let id = usize::try_from(id).map_err(|_| OpError::value("the layer id is negative"))?;
        let layer = self.config.layers.get(id);
        let count = self.config.layers.len();
        layer.map(|l| (id, l)).ok_or_else(|| OpError::value(format!("layer {id} of a cache with {count} layers")))
    }

    /// Writes `k` and `v` `[1, heads, T, head_dim]` from `position` on, and returns what the step reads.
    ///
    /// # Errors
    /// If they do not fit the layer, or the step reaches beyond the capacity.
    pub(crate) fn update(&mut self, api: Api, id: i32, position: i64, [k, v]: [&Slot; 2]) -> Result<Span> {
        let (index, layer) = self.layer(id)?;
        let (window, expected) = (layer.window, [1, layer.n_kv_heads, k.shape.get(2).copied().unwrap_or(0), layer.head_dim]);
        if k.shape[..] != expected || v.shape[..] != expected {
            return Err(OpError::value(format!("keys {:?} and values {:?}, expected {expected:?}", k.shape, v.shape)));
        }
        let (count, capacity, dtype) = (expected[2], self.config.capacity, self.config.dtype);
        let position = usize::try_from(position).map_err(|_| OpError::value("the position is negative"))?;
        let end = position.checked_add(count).filter(|&e| e <= capacity);
        let end = end.ok_or_else(|| OpError::value(format!("{count} positions from {position} exceed the capacity {capacity}")))?;
        if window.is_some_and(|w| count > self.config.max_write.unwrap_or(w)) {
            return Err(OpError::value(format!("a step of {count} positions is too long for the layer's window")));
        }
        let storage = &mut self.layers[index];
        if window.is_none() {
            storage.grow(api, end, capacity)?;
        }
        let mut done = 0;
        for (start, n) in runs(position, count, storage.slots).into_iter().filter(|r| r.1 > 0) {
            for (pool, from) in storage.pools.iter_mut().zip([k, v]) {
                let part = positions(&cast(from, dtype)?, done, n)?;
                let [a, b, c] = region(pool, start, n)?;
                *pool = pool.slice_update(&part, &a, &b, &c)?;
            }
            done += n;
        }
        let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
        let read = runs(first, end - first, storage.slots);
        let window = window.filter(|&w| w < end - first && count > 1);
        let [keys, values] = [cached(api, &storage.pools[0], read)?, cached(api, &storage.pools[1], read)?];
        Ok(Span { keys, values, count: end - first, window })
    }
}

/// Bounds of `n` positions from `start` in a pool.
fn region(pool: &Array, start: usize, n: usize) -> Result<[[i64; 4]; 3]> {
    let (_, shape) = pool.spec()?;
    let [batch, heads, _, width] = shape[..] else { return Err(OpError::value("a pool does not have rank 4")) };
    Ok([[0, 0, start as i64, 0], [batch as i64, heads as i64, (start + n) as i64, width as i64], [1; 4]])
}

fn positions(pool: &Array, start: usize, n: usize) -> Result<Array> {
    let [a, b, c] = region(pool, start, n)?;
    Ok(pool.slice(&a, &b, &c)?)
}

/// The logical run of cached positions: a view of its one physical run, or the two runs joined.
fn cached(api: Api, pool: &Array, [first, second]: [(usize, usize); 2]) -> Result<Array> {
    let part = positions(pool, first.0, first.1)?;
    if second.1 == 0 {
        return Ok(part);
    }
    Ok(Array::concatenate(api, &[part, positions(pool, second.0, second.1)?], 2)?)
}

/// The physical runs of logical positions `start..start + count` modulo `slots`.
fn runs(start: usize, count: usize, slots: usize) -> [(usize, usize); 2] {
    let at = start % slots;
    let first = count.min(slots - at);
    [(at, first), (0, count - first)]
}

impl Layer {
    fn new(api: Api, layer: &KvLayer, dtype: DType, slots: usize) -> Result<Layer> {
        let shape = [1, layer.n_kv_heads, slots, layer.head_dim];
        Ok(Layer { pools: [Array::full(api, &shape, 0.0, dtype)?, Array::full(api, &shape, 0.0, dtype)?], slots })
    }

    /// Doubles the storage until `end` positions fit, up to `capacity`.
    fn grow(&mut self, api: Api, end: usize, capacity: usize) -> Result<()> {
        let mut slots = self.slots;
        while slots < end {
            slots = slots.saturating_mul(2).min(capacity);
        }
        if slots == self.slots {
            return Ok(());
        }
        for pool in &mut self.pools {
            let (dtype, shape) = pool.spec()?;
            let more = Array::full(api, &[1, shape[1], slots - self.slots, shape[3]], 0.0, dtype)?;
            *pool = Array::concatenate(api, &[pool.share()?, more], 2)?;
        }
        self.slots = slots;
        Ok(())
    }
}
