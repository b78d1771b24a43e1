//! Memory that the next jobs will read, for idle workers to prefetch.
//!
//! Between two products over weights there are steps too small to parallelise, and DRAM would be
//! idle. Workers use that time to prefetch the beginning of the next weights.

use std::sync::atomic::{AtomicUsize, Ordering::*};

use crate::simd::prefetch;

/// Pieces that a list holds.
const PIECES: usize = 8;

/// Maximum bytes that a worker prefetches of one piece. A few pieces fill part of a second-level
/// cache.
const PART: usize = 128 << 10;

/// Bytes that a worker prefetches between two looks at the gate.
const STRETCH: usize = 512;

const LINE: usize = 64;

/// Pieces of memory. A reader may see parts of two lists: prefetching is harmless for any address.
#[derive(Default)]
pub(super) struct List {
    /// Changes with the list; 0 before the first.
    number: AtomicUsize,
    /// First byte and length.
    pieces: [(AtomicUsize, AtomicUsize); PIECES],
}

impl List {
    pub(super) fn set<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        let mut pieces = pieces.into_iter();
        for (start, len) in &self.pieces {
            let piece = pieces.next().unwrap_or_default();
            start.store(piece.as_ptr().addr(), Relaxed);
            len.store(piece.len(), Relaxed);
        }
        self.number.fetch_add(1, Release);
    }
}

/// Progress of a worker.
pub(super) struct Prefetcher {
    /// Which of all threads the worker is, and how many there are.
    share: (usize, usize),
    number: usize,
    piece: usize,
    /// Prefetched amount of this worker's part of each piece.
    done: usize,
}

impl Prefetcher {
    pub(super) fn new(worker: usize, threads: usize) -> Prefetcher {
        Prefetcher { share: (worker, threads), number: 0, piece: 0, done: PART }
    }

    /// Prefetches the next stretch of this worker's likely share, taking the pieces in turn.
    /// `false` if nothing is left.
    pub(super) fn step(&mut self, list: &List) -> bool {
        let number = list.number.load(Acquire);
        if number != self.number {
            (self.number, self.piece, self.done) = (number, 0, 0);
        }
        if self.done >= PART {
            return false;
        }
        let (worker, threads) = self.share;
        let (start, len) = (list.pieces[self.piece].0.load(Relaxed), list.pieces[self.piece].1.load(Relaxed));
        let part = (len as u64 * worker as u64 / threads as u64) as usize + self.done;
        let end = (len as u64 * (worker as u64 + 1) / threads as u64) as usize;
        for at in (part..end.min(part + STRETCH)).step_by(LINE) {
            prefetch(std::ptr::without_provenance(start.wrapping_add(at)));
        }
        self.piece = (self.piece + 1) % PIECES;
        self.done += if self.piece == 0 { STRETCH } else { 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_goes_through_each_list_once() {
        let (list, data) = (List::default(), vec![0; 3 * PART]);
        let mut prefetcher = Prefetcher::new(1, 2);
        let mut steps = || (0..).take_while(|_| prefetcher.step(&list)).count();
        assert_eq!(steps(), 0);
        for _ in 0..2 {
            list.set([&data[..], &data[..100]]);
            assert_eq!(steps(), PART / STRETCH * PIECES);
            assert_eq!(steps(), 0);
        }
    }
}
