//! The cache behind `UpdateAndAttend` nodes.

use flambeau_ir::{
    engine::KvCacheConfig,
    kv::{self, Runs},
};
use flambeau_kernels::Pool;
use flambeau_tensor::{AlignedBytes, DType};

use crate::{
    array::{Array, Storage},
    copy::{cast_into, with_region},
    error::{OpError, Result},
};

/// Keys and values of every layer of one sequence.
pub(crate) type KvCache = kv::KvCache<Array>;

/// The keys and values that a query of one step attends to.
pub(crate) struct CacheView {
    /// Slots that hold the keys.
    pub(crate) runs: Runs,
    /// The layer's window, if some of the step's queries do not see all of these keys.
    pub(crate) window: Option<usize>,
}

fn zeros(dtype: DType, shape: [usize; 4]) -> Result<Array> {
    let bytes = flambeau_tensor::numel(&shape).and_then(|n| n.checked_mul(dtype.size()));
    let bytes = bytes.filter(|&n| n <= 1 << 40).ok_or_else(|| OpError::too_large(&shape))?;
    Ok(Array::row_major(dtype, &shape, std::sync::Arc::new(Storage::Owned(AlignedBytes::zeroed(bytes)))))
}

/// An empty cache.
///
/// # Errors
/// For a capacity, window, head count or head size of zero, a type that is not floating, or sizes
/// beyond the address space.
pub(crate) fn empty(config: &KvCacheConfig) -> Result<KvCache> {
    KvCache::new(config, |shape| zeros(config.dtype, shape))
}

/// Writes `k` and `v` `[1, heads, T, head_dim]` from `position` on, and says which slots the step
/// reads.
///
/// # Errors
/// If they do not fit the layer, or the step reaches beyond the capacity.
pub(crate) fn update(cache: &mut KvCache, pool: &Pool, id: i32, position: i64, [k, v]: [&Array; 2]) -> Result<CacheView> {
    let (step, pools) = cache.step(id, position, [&k.shape, &v.shape], |old, slots| grown(pool, old, slots))?;
    let mut done = 0;
    for (start, n) in step.writes {
        for (to, from) in pools.iter_mut().zip([k, v]) {
            with_region(to, &[(2, start, n, 1)], |region| cast_into(pool, &from.narrow(2, done, n, 1), region))?;
        }
        done += n;
    }
    Ok(CacheView { runs: step.reads, window: step.window })
}

/// A pool with room for `new` positions that holds the `old` ones of another.
fn grown(pool: &Pool, from: &Array, [old, new]: [usize; 2]) -> Result<Array> {
    let mut to = zeros(from.dtype, [1, from.shape[1], new, from.shape[3]])?;
    with_region(&mut to, &[(2, 0, old, 1)], |region| cast_into(pool, from, region))?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use flambeau_ir::engine::KvLayer;
    use flambeau_tensor::Tensor;

    use super::*;

    fn cache(window: Option<usize>, max_write: Option<usize>) -> KvCache {
        let layers = vec![KvLayer { window, n_kv_heads: 1, head_dim: 1 }];
        empty(&KvCacheConfig { capacity: 2000, layers, dtype: DType::F32, max_write }).unwrap()
    }

    /// Writes steps of the given lengths, with each key equal to its position. Checks that each
    /// step reads the positions in its window.
    fn check(window: Option<usize>, max_write: Option<usize>, steps: &[usize]) {
        let (pool, mut cache, mut position) = (Pool::new(1), cache(window, max_write), 0);
        for &count in steps {
            let keys: Vec<f32> = (position..position + count).map(|p| p as f32).collect();
            let keys = Array::from_tensor(&Tensor::from_slice(&keys, &[1, 1, count, 1]).unwrap());
            let span = update(&mut cache, &pool, 0, position as i64, [&keys, &keys]).unwrap();
            let [stored, _] = cache.layer(0).unwrap();
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
            update(&mut cache(window, None), &Pool::new(1), 0, position, [&keys, &keys]).is_err()
        };
        assert!(refused(None, 1, 2000) && refused(None, 1, -1) && refused(Some(3), 4, 0) && !refused(Some(3), 3, 0));
    }
}
