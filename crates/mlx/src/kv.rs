//! The cache behind `UpdateAndAttend` nodes, in MLX's arrays.

use flambeau_ir::{
    engine::KvCacheConfig,
    kv::{self, Runs},
};

use crate::{
    error::{OpError, Result},
    ffi::{Api, Array},
    values::{Slot, cast},
};

/// Keys and values of every layer of one sequence.
pub(crate) type KvCache = kv::KvCache<Array>;

/// The keys and values that a query of one step attends to.
pub(crate) struct CacheView {
    /// `[1, heads, count, head_dim]`, oldest first.
    pub(crate) keys: Array,
    pub(crate) values: Array,
    pub(crate) count: usize,
    /// The layer's window, if some of the step's queries do not see all of these keys.
    pub(crate) window: Option<usize>,
}

/// An empty cache.
///
/// # Errors
/// If the configuration is refused, or MLX has no room.
pub(crate) fn empty(api: Api, config: &KvCacheConfig) -> Result<KvCache> {
    KvCache::new(config, |shape| Ok(Array::full(api, &shape, 0.0, config.dtype)?))
}

/// Handles to every pool.
pub(crate) fn arrays(cache: &KvCache) -> Result<Vec<Array>> {
    cache.pools().map(|pool| Ok(pool.share()?)).collect()
}

/// After a failure: pools that cannot be computed become zero.
pub(crate) fn settle(cache: &mut KvCache, api: Api) {
    let dtype = cache.config().dtype;
    for pool in cache.pools_mut() {
        if api.eval([&*pool]).is_err()
            && let Ok(zeros) = pool.spec().and_then(|(_, shape)| Array::full(api, &shape, 0.0, dtype))
        {
            *pool = zeros;
        }
    }
}

/// Writes `k` and `v` `[1, heads, T, head_dim]` from `position` on, and returns the step's view of
/// the cache.
///
/// # Errors
/// If they do not fit the layer, or the step reaches beyond the capacity.
pub(crate) fn update(cache: &mut KvCache, api: Api, id: i32, position: i64, [k, v]: [&Slot; 2]) -> Result<CacheView> {
    let dtype = cache.config().dtype;
    let (step, pools) = cache.step(id, position, [&k.shape, &v.shape], |pool, [old, new]| grown(api, pool, new - old))?;
    let mut done = 0;
    for (start, n) in step.writes.into_iter().filter(|r| r.1 > 0) {
        for (pool, from) in pools.iter_mut().zip([k, v]) {
            let part = positions(&cast(from, dtype)?, done, n)?;
            let [a, b, c] = region(pool, start, n)?;
            *pool = pool.slice_update(&part, &a, &b, &c)?;
        }
        done += n;
    }
    let [keys, values] = [cached(api, &pools[0], step.reads)?, cached(api, &pools[1], step.reads)?];
    Ok(CacheView { keys, values, count: step.reads[0].1 + step.reads[1].1, window: step.window })
}

/// A pool with this many more slots.
fn grown(api: Api, pool: &Array, more: usize) -> Result<Array> {
    let (dtype, shape) = pool.spec()?;
    let zeros = Array::full(api, &[1, shape[1], more, shape[3]], 0.0, dtype)?;
    Ok(Array::concatenate(api, &[pool.share()?, zeros], 2)?)
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
