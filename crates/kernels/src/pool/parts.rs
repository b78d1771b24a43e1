//! Slices that tasks write side by side.

use std::{marker::PhantomData, ops::Range};

/// A mutable slice that parallel tasks write disjoint ranges of.
#[derive(Debug)]
pub(crate) struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: `slice` requires disjoint ranges of its callers, so elements move between threads as with
// `&mut T`.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: it owns the exclusive borrow of a slice of `T: Send`, so it may move between threads like
// `&mut [T]`.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Parts<'a, T> {
        Parts { data: data.as_mut_ptr(), len: data.len(), life: PhantomData }
    }

    /// # Safety
    /// No two live ranges overlap.
    #[allow(clippy::mut_from_ref, reason = "callers keep the ranges disjoint")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a task's part lies inside the whole");
        // SAFETY: inside the slice by the assertion; no other live range overlaps this one, as the
        // caller promised.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.end - range.start) }
    }
}
