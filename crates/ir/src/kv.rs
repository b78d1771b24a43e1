//! Which slots of its storage a cache behind `UpdateAndAttend` nodes writes and reads. Engines hold the storage.

use crate::{
    InferError,
    engine::{KvCacheConfig, KvLayer},
};

/// Positions for which a layer without a window holds storage at first; it doubles as needed.
const INITIAL_CAPACITY: usize = 512;

/// Physical runs of slots, oldest position first: start and length, the second possibly empty.
pub type Runs = [(usize, usize); 2];

/// A cache's checked configuration.
#[derive(Clone, Debug)]
pub struct KvLayout {
    config: KvCacheConfig,
}

/// What one step does to a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvStep {
    /// Slots that the layer's storage must have before the step writes.
    pub slots: usize,
    /// Slots of the step's own positions.
    pub writes: Runs,
    /// Slots of the keys that the step's queries see, all together.
    pub reads: Runs,
    /// The layer's window, if keys that are read lie outside of it for some of the step's queries.
    pub window: Option<usize>,
}

fn refuse<T>(what: impl Into<String>) -> Result<T, InferError> {
    Err(InferError::Shape(what.into()))
}

/// Slots of a windowed layer: every key that some query of a step still sees, and the step's own.
fn ring_slots(window: usize, max_write: Option<usize>) -> Option<usize> {
    window.checked_add(max_write.unwrap_or(window))?.checked_sub(1)
}

/// The physical runs of logical positions `start..start + count` modulo `slots`.
fn runs(start: usize, count: usize, slots: usize) -> Runs {
    let at = start % slots;
    let first = count.min(slots - at);
    [(at, first), (0, count - first)]
}

impl KvLayout {
    /// Accepts a configuration.
    ///
    /// # Errors
    /// For a capacity, window, head count or head size of zero, a type that is not floating, or a window beyond the address space.
    pub fn new(config: &KvCacheConfig) -> Result<KvLayout, InferError> {
        if config.capacity == 0 || config.max_write == Some(0) || !config.dtype.is_float() {
            return refuse("the cache needs a capacity, a step size above zero and a float type");
        }
        for layer in &config.layers {
            if layer.window == Some(0) || layer.n_kv_heads == 0 || layer.head_dim == 0 {
                return refuse("a cache layer needs a window, heads and a head size above zero");
            }
            if layer.window.is_some_and(|window| ring_slots(window, config.max_write).is_none()) {
                return refuse("a cache window is too large");
            }
        }
        Ok(KvLayout { config: config.clone() })
    }

    /// What was accepted.
    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// Shape `[1, heads, slots, head_dim]` of each layer's first storage of keys, and of values.
    pub fn pools(&self) -> impl Iterator<Item = [usize; 4]> {
        self.config.layers.iter().map(|layer| {
            let ring = layer.window.and_then(|window| ring_slots(window, self.config.max_write));
            let slots = ring.unwrap_or(self.config.capacity.min(INITIAL_CAPACITY));
            [1, layer.n_kv_heads, slots, layer.head_dim]
        })
    }

    /// The layer's index.
    ///
    /// # Errors
    /// If there is no such layer.
    pub fn index(&self, id: i32) -> Result<usize, InferError> {
        let Ok(index) = usize::try_from(id) else { return refuse("the layer id is negative") };
        match self.config.layers.len() {
            count if index < count => Ok(index),
            count => refuse(format!("layer {index} of a cache with {count} layers")),
        }
    }

    /// What writing keys and values of these shapes, `[1, heads, T, head_dim]`, from `position` on does to the layer of that
    /// index, whose storage has `slots` now.
    ///
    /// # Errors
    /// If they do not fit the layer, or the step reaches beyond the capacity.
    pub fn step(&self, index: usize, slots: usize, position: i64, [k, v]: [&[usize]; 2]) -> Result<KvStep, InferError> {
        let KvLayer { window, n_kv_heads, head_dim } = self.config.layers[index];
        let (count, capacity) = (k.get(2).copied().unwrap_or(0), self.config.capacity);
        let expected = [1, n_kv_heads, count, head_dim];
        if k[..] != expected || v[..] != expected {
            return refuse(format!("keys {k:?} and values {v:?}, expected {expected:?}"));
        }
        let Ok(position) = usize::try_from(position) else { return refuse("the position is negative") };
        let Some(end) = position.checked_add(count).filter(|&e| e <= capacity) else {
            return refuse(format!("{count} positions from {position} exceed the capacity {capacity}"));
        };
        if window.is_some_and(|w| count > self.config.max_write.unwrap_or(w)) {
            return refuse(format!("a step of {count} positions is too long for the layer's window"));
        }
        let mut slots = slots;
        while window.is_none() && slots < end {
            slots = slots.saturating_mul(2).min(capacity);
        }
        let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
        let window = window.filter(|&w| w < end - first && count > 1);
        Ok(KvStep { slots, writes: runs(position, count, slots), reads: runs(first, end - first, slots), window })
    }
}
