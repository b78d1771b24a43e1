//! Storage of dead arrays, kept by size for the results to come, so that a steady loop allocates nothing.

use std::sync::Arc;

use flambeau_tensor::{AlignedBytes, DType, numel};

use crate::{
    array::{Array, Storage},
    error::{OpError, Result},
};

/// No single tensor may take more; a program's literal sizes must not be able to exhaust the machine.
pub(crate) const MAX_TENSOR_BYTES: usize = 1 << 34;

/// Smallest storage: one cache line.
const MIN_BYTES: usize = 64;

/// Classes within one doubling of the size.
const STEPS: usize = 4;

/// Free storage by size class, and storage lent to callers as results.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    free: Vec<Vec<Arc<Storage>>>,
    lent: Vec<Arc<Storage>>,
}

/// Number and size of the smallest class that holds `bytes`: powers of two with three sizes between.
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

    /// At least `bytes` bytes with arbitrary contents, which nobody else sees.
    pub(crate) fn storage(&mut self, bytes: usize) -> Arc<Storage> {
        let (class, size) = class_of(bytes);
        let recycled = self.free.get_mut(class).and_then(Vec::pop);
        recycled.unwrap_or_else(|| Arc::new(Storage::Owned(AlignedBytes::zeroed(size))))
    }

    /// Takes back what nobody else sees.
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
        self.free[class].push(data);
    }

    /// Remembers storage that only a caller holds besides `data`, to take it back when the caller is done.
    pub(crate) fn lend(&mut self, data: Arc<Storage>) {
        // What a buffer holds as well stays out: a count kept here would make every write to the buffer a copy.
        if matches!(*data, Storage::Owned(_)) && Arc::strong_count(&data) == 2 {
            self.lent.push(data);
        }
    }

    /// Takes back what callers have let go of.
    pub(crate) fn collect(&mut self) {
        for data in std::mem::take(&mut self.lent) {
            if Arc::strong_count(&data) == 1 { self.free_storage(data) } else { self.lent.push(data) }
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
    fn sizes_beyond_the_limit_are_refused() {
        let mut arena = Arena::default();
        assert!(matches!(arena.alloc(DType::F32, &[usize::MAX, 3]), Err(OpError::TooLarge(_))));
        assert!(matches!(arena.alloc(DType::U8, &[MAX_TENSOR_BYTES + 1]), Err(OpError::TooLarge(_))));
    }
}
