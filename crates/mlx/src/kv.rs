//! The cache behind `UpdateAndAttend` nodes.

use flambeau_ir::{
    engine::KvCacheConfig,
    kv::{KvLayout, Runs},
};

use crate::{
    cx::{Slot, cast},
    error::{OpError, Result},
    ffi::{Api, Array},
};

/// Keys and values of every layer of one sequence.
#[derive(Debug)]
pub(crate) struct KvCache {
    layout: KvLayout,
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

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// For a capacity, window, head count or head size of zero, and a type that is not floating.
    pub(crate) fn new(api: Api, config: &KvCacheConfig) -> Result<KvCache> {
        let layout = KvLayout::new(config)?;
        let zeros = |shape: [usize; 4]| Array::full(api, &shape, 0.0, config.dtype);
        let layers = layout.pools().map(|shape| Ok(Layer { pools: [zeros(shape)?, zeros(shape)?], slots: shape[2] }));
        let layers = layers.collect::<Result<_>>()?;
        Ok(KvCache { layout, layers })
    }

    pub(crate) fn config(&self) -> &KvCacheConfig {
        self.layout.config()
    }

    /// Handles to every pool.
    pub(crate) fn arrays(&self) -> Result<Vec<Array>> {
        self.layers.iter().flat_map(|layer| &layer.pools).map(|pool| Ok(pool.share()?)).collect()
    }

    /// After a failure: pools that cannot be computed are zero.
    pub(crate) fn settle(&mut self, api: Api) {
        let dtype = self.layout.config().dtype;
        for pool in self.layers.iter_mut().flat_map(|layer| &mut layer.pools) {
            if api.eval([&*pool]).is_err()
                && let Ok(zeros) = pool.spec().and_then(|(_, shape)| Array::full(api, &shape, 0.0, dtype))
            {
                *pool = zeros;
            }
        }
    }

    /// Writes `k` and `v` `[1, heads, T, head_dim]` from `position` on, and returns what the step reads.
    ///
    /// # Errors
    /// If they do not fit the layer, or the step reaches beyond the capacity.
    pub(crate) fn update(&mut self, api: Api, id: i32, position: i64, [k, v]: [&Slot; 2]) -> Result<Span> {
        let index = self.layout.index(id)?;
        let (storage, dtype) = (&mut self.layers[index], self.layout.config().dtype);
        let step = self.layout.step(index, storage.slots, position, [&k.shape, &v.shape])?;
        storage.grow(api, step.slots)?;
        let mut done = 0;
        for (start, n) in step.writes.into_iter().filter(|r| r.1 > 0) {
            for (pool, from) in storage.pools.iter_mut().zip([k, v]) {
                let part = positions(&cast(from, dtype)?, done, n)?;
                let [a, b, c] = region(pool, start, n)?;
                *pool = pool.slice_update(&part, &a, &b, &c)?;
            }
            done += n;
        }
        let [keys, values] = [cached(api, &storage.pools[0], step.reads)?, cached(api, &storage.pools[1], step.reads)?];
        Ok(Span { keys, values, count: step.reads[0].1 + step.reads[1].1, window: step.window })
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
fn cached(api: Api, pool: &Array, [first, second]: Runs) -> Result<Array> {
    let part = positions(pool, first.0, first.1)?;
    if second.1 == 0 {
        return Ok(part);
    }
    Ok(Array::concatenate(api, &[part, positions(pool, second.0, second.1)?], 2)?)
}

impl Layer {
    /// Makes room for `slots` positions, keeping those that are there.
    fn grow(&mut self, api: Api, slots: usize) -> Result<()> {
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
