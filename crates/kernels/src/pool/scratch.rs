//! Scratch memory for kernel calls. The pool reuses it, so a steady loop allocates nothing.

use std::{cell::UnsafeCell, ops::Range, panic::resume_unwind};

use bytemuck::{Pod, Zeroable};

use super::{Lease, Panic, Pool};
use crate::simd::Cpu;

/// A cache line, so that no vector straddles two.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u32; 16]);

/// Words of unspecified content.
#[derive(Default)]
pub(crate) struct Scratch(Vec<Line>);

impl Scratch {
    fn of(mut self, words: usize) -> Scratch {
        let lines = words.div_ceil(16);
        if self.0.len() < lines {
            self.0.resize(lines, Line::zeroed());
        }
        self
    }

    pub(crate) fn words(&mut self) -> &mut [u32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    pub(crate) fn as_words(&self) -> &[u32] {
        bytemuck::cast_slice(&self.0)
    }

    pub(crate) fn as_floats(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Results that are remembered.
const KEPT: usize = 2;

/// Scratch of a job's owner: returned memory, cached results for later calls, and one piece per
/// thread.
#[derive(Default)]
pub(super) struct Arena {
    free: Vec<Scratch>,
    kept: Vec<Cached>,
    locals: Vec<Local>,
}

/// A cached result of a call.
#[derive(Default)]
struct Cached {
    /// All inputs that the result depends on.
    key: Vec<u32>,
    words: Scratch,
}

#[derive(Default)]
struct Local(UnsafeCell<Scratch>);

// SAFETY: a worker only touches the piece of its own number, and during a job each number belongs
// to one thread.
unsafe impl Sync for Local {}

/// A pool in use by one kernel call. If the pool has no free job, everything runs on the calling
/// thread.
pub(crate) struct Team<'p> {
    pub(super) pool: &'p Pool,
    pub(super) lease: Option<Lease<'p>>,
    pub(super) own: Arena,
}

impl Team<'_> {
    pub(crate) fn cpu(&self) -> Cpu {
        self.pool.cpu()
    }

    fn arena(&mut self) -> &mut Arena {
        match &mut self.lease {
            Some(lease) => &mut lease.arena,
            None => &mut self.own,
        }
    }

    /// At least `words` words that all tasks may share.
    pub(crate) fn take(&mut self, words: usize) -> Scratch {
        self.arena().free.pop().unwrap_or_default().of(words)
    }

    /// Keeps scratch for the next call.
    pub(crate) fn give_back(&mut self, scratch: Scratch) {
        self.arena().free.push(scratch);
    }

    /// `words` words filled by `make`, or the cached words of the same key. Pass them to
    /// [`keep`](Self::keep) afterwards. The key must contain everything that the words depend on.
    pub(crate) fn recall(&mut self, key: &[u32], words: usize, make: impl FnOnce(&mut Self, &mut [u32])) -> Scratch {
        let kept = &mut self.arena().kept;
        let known = kept.iter().position(|kept| kept.key == key);
        if known.is_none() && kept.len() < KEPT {
            kept.push(Cached::default());
        }
        // The first is the latest, and the oldest makes room.
        let place = known.unwrap_or(kept.len() - 1);
        kept[..=place].rotate_right(1);
        let found = std::mem::take(&mut kept[0].words);
        if known.is_some() && found.as_words().len() >= words {
            return found;
        }
        kept[0].key.clear();
        kept[0].key.extend_from_slice(key);
        let mut found = found.of(words);
        make(self, &mut found.words()[..words]);
        found
    }

    /// Caches the result of [`recall`](Self::recall) for the next call.
    pub(crate) fn keep(&mut self, key: &[u32], words: Scratch) {
        if let Some(kept) = self.arena().kept.iter_mut().find(|kept| kept.key == key) {
            kept.words = words;
        }
    }

    /// Calls `f(task, scratch)` for each task, in parallel; the scratch is the thread's own and has
    /// at least `words` words.
    ///
    /// # Panics
    /// If a task panics, after the others have ended.
    pub(crate) fn run<F: Fn(usize, &mut [u32]) + Sync>(&mut self, tasks: usize, words: usize, f: F) {
        let threads = if self.lease.is_some() { self.pool.threads() } else { 1 };
        let locals = &mut self.arena().locals;
        if locals.len() < threads {
            locals.resize_with(threads, Local::default);
        }
        for local in locals.iter_mut() {
            let scratch = std::mem::take(local.0.get_mut());
            *local.0.get_mut() = scratch.of(words);
        }
        if let Some(payload) = self.run_prepared(tasks, &f) {
            resume_unwind(payload);
        }
    }

    /// Cuts `0..len` into ranges of `grain` (the last may be short) and calls `f(range, scratch)`
    /// for each, as [`run`](Self::run).
    pub(crate) fn run_ranges<F: Fn(Range<usize>, &mut [u32]) + Sync>(&mut self, len: usize, grain: usize, words: usize, f: F) {
        self.run(len.div_ceil(grain), words, |i, scratch| f(i * grain..len.min((i + 1) * grain), scratch));
    }

    fn run_prepared<F: Fn(usize, &mut [u32]) + Sync>(&self, tasks: usize, f: &F) -> Option<Panic> {
        let arena = self.lease.as_ref().map_or(&self.own, |lease| &*lease.arena);
        let locals = &arena.locals;
        // SAFETY: each thread passes its own worker number, so no other thread uses this piece.
        let call = |task: usize, worker: usize| f(task, unsafe { (*locals[worker].0.get()).words() });
        if let Some(lease) = &self.lease {
            return self.pool.fork_join(lease, tasks, &call);
        }
        (0..tasks).for_each(|task| call(task, 0));
        None
    }
}
