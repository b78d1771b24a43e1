//! Reuses the storage of dead arrays, by size, so that a steady loop allocates nothing. Storage
//! unused for several runs returns to the system, so a long prompt does not hold its memory through
//! the answer.

use std::sync::Arc;

use flambeau_tensor::{AlignedBytes, DType, numel};

use crate::{
    array::{Array, Storage},
    error::{OpError, Result},
};

/// No single tensor may take more; a program's literal sizes must not be able to exhaust the
/// machine.
pub(crate) const MAX_TENSOR_BYTES: usize = 1 << 34;

/// Smallest storage: one cache line.
const MIN_BYTES: usize = 64;

/// Classes within one doubling of the size.
const STEPS: usize = 4;

/// Runs after which unused storage goes back to the system.
const KEEP: u64 = 8;

/// Free storage by size class, and storage lent to callers as results.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// With the number of the run that used it last, oldest first.
    free: Vec<Vec<(u64, Arc<Storage>)>>,
    run: u64,
    lent: Vec<Arc<Storage>>,
}

/// Number and size of the smallest class that holds `bytes`: powers of two with three sizes
/// between.
fn class_of(bytes: usize) -> (usize, usize) {
    let lines = bytes.max(MIN_BYTES);
    let top = usize::BITS - 1 - lines.leading_zeros();
    let step = 1usize << (top - STEPS.ilog2());
    let part = (lines - (1 << top)).div_ceil(step);
    ((top - MIN_BYTES.ilog2()) as usize * STEPS + part, (1 << top) + part * step)
}

impl Arena {
    /// A row-major array with arbitrary contents.
    ///
    /// # Errors
    /// [`OpError::TooLarge`].
    pub(crate) fn alloc(&mut self, dtype: DType, shape: &[usize]) -> Result<Array> {
        let bytes = numel(shape)
            .and_then(|n| n.checked_mul(dtype.size()))
            .filter(|&n| n <= MAX_TENSOR_BYTES)
            .ok_or_else(|| OpError::too_large(shape))?;
        Ok(Array::row_major(dtype, shape, self.storage(bytes)))
    }

    /// Unshared storage of at least `bytes` bytes with arbitrary contents.
    pub(crate) fn storage(&mut self, bytes: usize) -> Arc<Storage> {
        let (class, size) = class_of(bytes);
        let recycled = self.free.get_mut(class).and_then(Vec::pop);
        recycled.map_or_else(|| Arc::new(Storage::Owned(AlignedBytes::zeroed(size))), |(_, data)| data)
    }

    /// Reclaims the array's storage if it is unshared.
    pub(crate) fn free(&mut self, array: Array) {
        self.free_storage(array.data);
    }

    /// As [`free`](Self::free), for bare storage.
    pub(crate) fn free_storage(&mut self, mut data: Arc<Storage>) {
        let Some(Storage::Owned(bytes)) = Arc::get_mut(&mut data) else { return };
        let (class, size) = class_of(bytes.len());
        if size != bytes.len() {
            return;
        }
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].push((self.run, data));
    }

    /// Remembers storage that only a caller holds besides `data`, to take it back when the caller
    /// is done.
    pub(crate) fn lend(&mut self, data: Arc<Storage>) {
        // Storage shared with a buffer is not kept: a reference held here would turn every write to
        // the buffer into a copy.
        if matches!(*data, Storage::Owned(_)) && Arc::strong_count(&data) == 2 {
            self.lent.push(data);
        }
    }

    /// Begins a run: reclaims storage released by callers, and frees storage that the last runs did
    /// not use.
    pub(crate) fn collect(&mut self) {
        self.run += 1;
        let mut i = 0;
        while i < self.lent.len() {
            if Arc::strong_count(&self.lent[i]) == 1 {
                let data = self.lent.swap_remove(i);
                self.free_storage(data);
            } else {
                i += 1;
            }
        }
        let oldest = self.run.saturating_sub(KEEP);
        for class in &mut self.free {
            let unused = class.iter().take_while(|(run, _)| *run < oldest).count();
            class.drain(..unused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_promise_and_waste_under_a_quarter() {
        let mut last = (0, 0);
        for bytes in 1..5000 {
            let (class, size) = class_of(bytes);
            assert!(size >= bytes && (bytes < MIN_BYTES || size <= bytes + bytes / 4 + 1), "{bytes} in {size}");
            assert!((class, size) >= last && class_of(size) == (class, size), "{bytes}");
            last = (class, size);
        }
    }

    #[test]
    fn storage_comes_back_when_its_last_user_lets_go() {
        let mut arena = Arena::default();
        let a = arena.alloc(DType::F32, &[100]).unwrap();
        let (address, alias) = (a.data.bytes().as_ptr(), a.clone());
        arena.free(a);
        let b = arena.alloc(DType::F32, &[100]).unwrap();
        assert_ne!(b.data.bytes().as_ptr(), address);
        arena.free(alias);
        assert_eq!(arena.alloc(DType::I64, &[50]).unwrap().data.bytes().as_ptr(), address);
    }

    #[test]
    fn storage_that_runs_do_not_use_is_given_up() {
        let mut arena = Arena::default();
        let [large, small] = [1 << 20, 64].map(|n| arena.alloc(DType::U8, &[n]).unwrap());
        arena.free(large);
        arena.free(small);
        for _ in 0..KEEP + 1 {
            arena.collect();
            let small = arena.alloc(DType::U8, &[64]).unwrap();
            arena.free(small);
        }
        let held: Vec<usize> = arena.free.iter().flatten().map(|(_, data)| data.bytes().len()).collect();
        assert_eq!(held, [64]);
    }

    #[test]
    fn sizes_beyond_the_limit_are_refused() {
        let mut arena = Arena::default();
        assert!(matches!(arena.alloc(DType::F32, &[usize::MAX, 3]), Err(OpError::TooLarge(_))));
        assert!(matches!(arena.alloc(DType::U8, &[MAX_TENSOR_BYTES + 1]), Err(OpError::TooLarge(_))));
    }
}
