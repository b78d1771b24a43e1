//! The cache of `UpdateAndAttend` nodes: computes the slots that a step writes and reads. Engines
//! hold the storage.

use flambeau_tensor::DType;

use crate::InferError;

/// Initial number of positions in the storage of a layer without a window. It doubles as needed.
const INITIAL_CAPACITY: usize = 512;

/// Configuration of the cache of `UpdateAndAttend` nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct KvCacheConfig {
    /// Positions that the cache can hold.
    pub capacity: usize,
    /// One entry per layer.
    pub layers: Vec<KvLayer>,
    /// Storage type of keys and values.
    pub dtype: DType,
    /// Largest number of positions written by one step. It bounds the storage of windowed layers.
    /// `None` means the window.
    pub max_write: Option<usize>,
}

/// One layer of a [`KvCacheConfig`].
#[derive(Clone, Debug, PartialEq)]
pub struct KvLayer {
    /// Number of positions that stay visible. `None` keeps all.
    pub window: Option<usize>,
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

impl KvCacheConfig {
    /// Bytes of a full cache.
    pub fn bytes(&self) -> usize {
        let slots = |layer: &KvLayer| layer.window.and_then(|window| ring_slots(window, self.max_write)).unwrap_or(self.capacity);
        let of = |layer: &KvLayer| slots(layer).saturating_mul(layer.n_kv_heads).saturating_mul(layer.head_dim);
        let elements = self.layers.iter().map(of).fold(0usize, usize::saturating_add);
        elements.saturating_mul(2 * self.dtype.size())
    }
}

/// Physical runs of slots as (start, length), oldest position first. The second may be empty.
pub type Runs = [(usize, usize); 2];

/// Effect of one step on a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvStep {
    /// Slots of the step's own positions.
    pub writes: Runs,
    /// Slots of all keys that the step's queries see.
    pub reads: Runs,
    /// The layer's window, if some read keys are outside of it for some queries of the step.
    pub window: Option<usize>,
}

fn refuse<T>(what: impl Into<String>) -> Result<T, InferError> {
    Err(InferError::Shape(what.into()))
}

/// Number of slots of a windowed layer: all keys that a query of a step sees, and the step's own
/// keys.
fn ring_slots(window: usize, max_write: Option<usize>) -> Option<usize> {
    window.checked_add(max_write.unwrap_or(window))?.checked_sub(1)
}

/// The physical runs of logical positions `start..start + count` modulo `slots`.
fn runs(start: usize, count: usize, slots: usize) -> Runs {
    let at = start % slots;
    let first = count.min(slots - at);
    [(at, first), (0, count - first)]
}

/// Checks a configuration.
fn check(config: &KvCacheConfig) -> Result<(), InferError> {
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
    Ok(())
}

/// Keys and values of every layer of one sequence, in an engine's arrays `P`.
#[derive(Debug)]
pub struct KvCache<P> {
    config: KvCacheConfig,
    layers: Vec<Layer<P>>,
}

/// Pools `[1, heads, slots, head_dim]` of keys and of values.
#[derive(Debug)]
struct Layer<P> {
    pools: [P; 2],
    slots: usize,
}

impl<P> KvCache<P> {
    /// Creates an empty cache with pools from `zeros`.
    ///
    /// # Errors
    /// If a capacity, window, head count or head size is zero, the type is not floating, or a
    /// window exceeds the address space. Errors of `zeros` are returned.
    pub fn new<E: From<InferError>>(config: &KvCacheConfig, zeros: impl Fn([usize; 4]) -> Result<P, E>) -> Result<KvCache<P>, E> {
        check(config)?;
        let layer = |layer: &KvLayer| {
            let ring = layer.window.and_then(|window| ring_slots(window, config.max_write));
            let slots = ring.unwrap_or(config.capacity.min(INITIAL_CAPACITY));
            let shape = [1, layer.n_kv_heads, slots, layer.head_dim];
            Ok(Layer { pools: [zeros(shape)?, zeros(shape)?], slots })
        };
        let layers = config.layers.iter().map(layer).collect::<Result<_, E>>()?;
        Ok(KvCache { config: config.clone(), layers })
    }

    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// Every pool.
    pub fn pools(&self) -> impl Iterator<Item = &P> {
        self.layers.iter().flat_map(|layer| &layer.pools)
    }

    /// Every pool.
    pub fn pools_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.layers.iter_mut().flat_map(|layer| &mut layer.pools)
    }

    /// The layer's pools of keys and values.
    ///
    /// # Errors
    /// If there is no such layer.
    pub fn layer(&self, id: i32) -> Result<&[P; 2], InferError> {
        Ok(&self.layers[self.index(id)?].pools)
    }

    /// Plans a write of keys and values of these shapes, `[1, heads, T, head_dim]`, from `position`
    /// on. Returns the effect and the pools. If the layer has too few slots, `grow` first enlarges
    /// each pool from the first to the second number of slots.
    ///
    /// # Errors
    /// If the shapes do not match the layer, the step exceeds the capacity, or `grow` fails.
    pub fn step<E: From<InferError>>(
        &mut self,
        id: i32,
        position: i64,
        keys_values: [&[usize]; 2],
        grow: impl Fn(&P, [usize; 2]) -> Result<P, E>,
    ) -> Result<(KvStep, &mut [P; 2]), E> {
        let index = self.index(id)?;
        let (step, slots) = self.layer_step(index, position, keys_values)?;
        let layer = &mut self.layers[index];
        if slots != layer.slots {
            for pool in &mut layer.pools {
                *pool = grow(pool, [layer.slots, slots])?;
            }
            layer.slots = slots;
        }
        Ok((step, &mut layer.pools))
    }

    fn index(&self, id: i32) -> Result<usize, InferError> {
        let Ok(index) = usize::try_from(id) else { return refuse("the layer id is negative") };
        match self.layers.len() {
            count if index < count => Ok(index),
            count => refuse(format!("layer {index} of a cache with {count} layers")),
        }
    }

    /// Effect of the step on layer `index`, and the required slots of its pools.
    fn layer_step(&self, index: usize, position: i64, [k, v]: [&[usize]; 2]) -> Result<(KvStep, usize), InferError> {
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
        let mut slots = self.layers[index].slots;
        while window.is_none() && slots < end {
            slots = slots.saturating_mul(2).min(capacity);
        }
        let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
        let window = window.filter(|&w| w < end - first && count > 1);
        Ok((KvStep { writes: runs(position, count, slots), reads: runs(first, end - first, slots), window }, slots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration with one layer of 2 heads with 3 elements.
    fn config(capacity: usize, window: Option<usize>, max_write: Option<usize>) -> KvCacheConfig {
        KvCacheConfig { capacity, layers: vec![KvLayer { window, n_kv_heads: 2, head_dim: 3 }], dtype: DType::F32, max_write }
    }

    /// A cache with shapes in place of pools.
    fn cache(config: &KvCacheConfig) -> Result<KvCache<[usize; 4]>, InferError> {
        KvCache::new(config, Ok)
    }

    fn step(cache: &mut KvCache<[usize; 4]>, position: i64, count: usize) -> Result<KvStep, InferError> {
        let grow = |pool: &[usize; 4], [from, to]: [usize; 2]| {
            assert_eq!(pool[2], from);
            Ok(pool.map(|n| if n == from { to } else { n }))
        };
        cache.step(0, position, [&[1, 2, count, 3]; 2], grow).map(|(step, _)| step)
    }

    #[test]
    fn configurations_without_room_are_refused() {
        let layer = |n_kv_heads, head_dim| {
            let mut config = config(10, None, None);
            config.layers = vec![KvLayer { window: None, n_kv_heads, head_dim }];
            config
        };
        assert!(cache(&config(10, Some(4), Some(1))).is_ok());
        for refused in [
            config(0, None, None),
            config(10, None, Some(0)),
            config(10, Some(0), None),
            config(10, Some(usize::MAX), None),
            layer(0, 3),
            layer(2, 0),
            KvCacheConfig { dtype: DType::I32, ..config(10, None, None) },
        ] {
            assert!(cache(&refused).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn a_window_is_a_ring_of_every_key_that_a_step_sees() {
        // Four positions stay visible, and four may be written at once. The first written position
        // sees three earlier ones.
        let mut cache = cache(&config(100, Some(4), None)).unwrap();
        assert_eq!(cache.layer(0).unwrap(), &[[1, 2, 7, 3]; 2]);
        let none = (0, 0);
        let steps = [
            (3, [(0, 3), none], [(0, 3), none], None),
            (4, [(3, 4), none], [(0, 7), none], Some(4)),
            (1, [(0, 1), none], [(4, 3), (0, 1)], None),
            (4, [(1, 4), none], [(5, 2), (0, 5)], Some(4)),
        ];
        let mut position = 0;
        for (count, writes, reads, window) in steps {
            assert_eq!(step(&mut cache, position, count), Ok(KvStep { writes, reads, window }), "{count} from {position}");
            position += count as i64;
        }
    }

    #[test]
    fn storage_doubles_up_to_the_capacity() {
        let mut cache = cache(&config(1500, None, None)).unwrap();
        for (position, count, slots) in [(0, 512, 512), (512, 1, 1024), (513, 500, 1024), (1013, 487, 1500)] {
            let all = [(0, position as usize + count), (0, 0)];
            let done = step(&mut cache, position, count).unwrap();
            assert_eq!((done.reads, done.window), (all, None));
            assert_eq!(cache.layer(0).unwrap(), &[[1, 2, slots, 3]; 2]);
        }
    }

    #[test]
    fn steps_that_do_not_fit_are_refused() {
        let right: &[usize] = &[1, 2, 1, 3];
        for (id, position, keys_values, message) in [
            (0, 9, [right; 2], ""),
            (-1, 0, [right; 2], "negative"),
            (1, 0, [right; 2], "layer 1 of a cache with 1 layers"),
            (0, -1, [right; 2], "negative"),
            (0, 10, [right; 2], "exceed the capacity 10"),
            (0, 0, [&[1, 3, 1, 3], right], "expected [1, 2, 1, 3]"),
            (0, 0, [right, &[1, 2, 2, 3]], "expected [1, 2, 1, 3]"),
            (0, 0, [&[1, 2, 3, 3]; 2], "a step of 3 positions is too long"),
        ] {
            let mut cache = cache(&config(10, Some(4), Some(2))).unwrap();
            let refusal = cache.step::<InferError>(id, position, keys_values, |pool, _| Ok(*pool)).map(drop);
            let refusal = refusal.map_or_else(|e| e.to_string(), |()| String::new());
            assert!(refusal.contains(message) && refusal.is_empty() == message.is_empty(), "{refusal}, expected {message}");
        }
    }
}
