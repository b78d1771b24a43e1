//! One explicit thread pool with cheap fork-join.
//!
//! Work is cut into numbered tasks by the shape of the problem, never by the number of workers, and every task writes its own
//! part of the output; so a result does not depend on the number of threads. Each thread begins with a run of neighbouring tasks,
//! whose operands follow one another in memory, and then helps the others with theirs. After a job, workers bring near what they
//! are told that the next ones read, spin for a moment, in case one follows at once, and then sleep. A worker that is not there in
//! time (asleep, or off the CPU) is not waited for: only workers that have entered a job hold up its end.

use std::{
    any::Any,
    cell::UnsafeCell,
    fmt,
    marker::PhantomData,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*},
    },
    thread::{self, JoinHandle},
};

mod prefetch;
mod scratch;

use crate::simd::{Cpu, IsaKind, Kernel};
use prefetch::{List, Prefetcher};
use scratch::Arena;
pub(crate) use scratch::{Scratch, Team};

/// Idle looks at the gate before a worker sleeps: some tens of microseconds.
const SPINS: u32 = 2000;

/// Gate bit: the job is open for workers to enter. The bits below count the workers inside, those above number the job.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const TICKET: u64 = OPEN << 1;

/// The tasks that a thread begins with, in a cache line (and the one fetched with it) of its own.
#[derive(Default)]
#[repr(align(128))]
struct Share {
    /// The next one, for whoever comes.
    next: AtomicUsize,
    end: AtomicUsize,
}

/// A borrowed `Fn(usize)` without its lifetime.
#[derive(Clone, Copy)]
struct Job {
    /// Data, task, worker.
    call: unsafe fn(*const (), usize, usize),
    data: *const (),
}

struct Shared {
    gate: AtomicU64,
    job: UnsafeCell<Job>,
    /// One a thread.
    shares: Box<[Share]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    /// Whether the caller of `run` sleeps until nobody is inside.
    joining: AtomicBool,
    left: Condvar,
    stop: AtomicBool,
    prefetch: List,
}

// SAFETY: `job` is written only by the caller that holds `Pool::owner` while the gate is closed and nobody is inside, and read
// only by workers that entered through the open gate; the gate's atomics order the two.
unsafe impl Sync for Shared {}
// SAFETY: the pointers in `job` are dereferenced only while the caller of `run` keeps their target alive.
unsafe impl Send for Shared {}

/// A pool of threads, and the instruction set that its kernels use.
pub struct Pool {
    shared: Arc<Shared>,
    owner: Mutex<Arena>,
    workers: Vec<JoinHandle<()>>,
    cpu: Cpu,
}

impl Pool {
    /// A pool of `threads` threads, the caller's included; 0 means one per available core.
    pub fn new(threads: usize) -> Pool {
        Pool::with_cpu(threads, Cpu::detect())
    }

    /// Like [`Pool::new`] with kernels held to `kind`, or `None` if this CPU lacks it.
    pub fn with_isa(threads: usize, kind: IsaKind) -> Option<Pool> {
        Cpu::of(kind).map(|cpu| Pool::with_cpu(threads, cpu))
    }

    fn with_cpu(threads: usize, cpu: Cpu) -> Pool {
        let threads = if threads == 0 { thread::available_parallelism().map_or(1, usize::from) } else { threads };
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(Job { call: |_, _, _| {}, data: std::ptr::null() }),
            shares: (0..threads.clamp(1, INSIDE as usize)).map(|_| Share::default()).collect(),
            panic: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            joining: AtomicBool::new(false),
            left: Condvar::new(),
            stop: AtomicBool::new(false),
            prefetch: List::default(),
        });
        let spawn = |i: usize| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("kernel-{i}")).spawn(move || shared.work(i)).ok()
        };
        // Where the system refuses a thread the pool is smaller: results do not depend on its size.
        let workers = (1..shared.shares.len()).map_while(spawn).collect();
        Pool { shared, owner: Mutex::new(Arena::default()), workers, cpu }
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instruction set that kernels use.
    pub fn isa(&self) -> IsaKind {
        self.cpu.kind()
    }

    /// What the CPU is proven to have.
    pub(crate) fn cpu(&self) -> Cpu {
        self.cpu
    }

    /// Runs `kernel` on this thread with the pool's instruction set.
    #[inline(always)]
    pub(crate) fn dispatch<K: Kernel>(&self, kernel: K) -> K::Out {
        self.cpu.dispatch(kernel)
    }

    /// Calls `f(0)` … `f(tasks - 1)`, each once, in any order and on any threads; returns when all are done.
    ///
    /// While another thread, or an outer task, is using the pool, all tasks run on the calling thread.
    ///
    /// # Panics
    /// If a task panics, after the others have ended.
    pub fn run<F: Fn(usize) + Sync>(&self, tasks: usize, f: F) {
        let owner = if tasks > 1 { self.lease() } else { None };
        if owner.is_none() {
            (0..tasks).for_each(f);
            return;
        }
        let panic = self.fork_join(tasks, &|task, _| f(task));
        drop(owner);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// The right to use the workers, if nobody has it.
    fn lease(&self) -> Option<MutexGuard<'_, Arena>> {
        match self.owner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Calls `f(task, worker)` for each task, for the holder of the lease; returns a task's panic.
    fn fork_join<F: Fn(usize, usize) + Sync>(&self, tasks: usize, f: &F) -> Option<Box<dyn Any + Send>> {
        unsafe fn call<F: Fn(usize, usize)>(data: *const (), task: usize, worker: usize) {
            // SAFETY: `data` is the `&F` that `fork_join` stored, alive until it returns.
            unsafe { (*data.cast::<F>())(task, worker) }
        }
        let job = Job { call: call::<F>, data: std::ptr::from_ref(f).cast() };
        let helpers = self.workers.len().min(tasks.saturating_sub(1));
        self.shared.deal(tasks, helpers + 1);
        if helpers == 0 {
            self.shared.take_tasks(job, 0);
        } else {
            self.shared.fork_join(job, helpers);
        }
        self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The pool for one kernel call, with scratch memory that outlives it.
    pub(crate) fn team(&self) -> Team<'_> {
        Team { pool: self, lease: self.lease(), own: Arena::default() }
    }

    /// Names memory that the next jobs will read. Idle workers prefetch the beginning of it into their caches: some hundred
    /// kilobytes of the first few pieces.
    pub fn prefetch<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        if !self.workers.is_empty() {
            self.shared.prefetch.set(pieces);
        }
    }

    /// Cuts `0..len` into ranges of `grain` (the last may be short) and calls `f` for each, in parallel.
    pub fn run_ranges<F: Fn(Range<usize>) + Sync>(&self, len: usize, grain: usize, f: F) {
        let grain = grain.max(1);
        self.run(len.div_ceil(grain), |i| f(i * grain..len.min((i + 1) * grain)));
    }

    /// Cuts `data` into chunks of `grain` elements and calls `f(chunk number, chunk)` for each, in parallel.
    pub fn run_chunks<T: Send, F: Fn(usize, &mut [T]) + Sync>(&self, data: &mut [T], grain: usize, f: F) {
        let grain = grain.max(1);
        let parts = Parts::new(data);
        self.run_ranges(parts.len, grain, |r| {
            // SAFETY: the ranges are disjoint and inside the slice.
            let chunk = unsafe { parts.slice(r.clone()) };
            f(r.start / grain, chunk);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        drop(self.shared.lock.lock());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of its tasks, so there is nothing to learn from the result.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).field("isa", &self.isa()).finish()
    }
}

impl Shared {
    /// Gives each of the first `threads` threads its tasks; for the holder of `owner`, while nobody is inside.
    fn deal(&self, tasks: usize, threads: usize) {
        for (i, share) in self.shares.iter().enumerate() {
            let start = |i: usize| tasks * i.min(threads) / threads;
            share.next.store(start(i), Relaxed);
            share.end.store(start(i + 1), Relaxed);
        }
    }

    fn fork_join(&self, job: Job, helpers: usize) {
        // SAFETY: the caller holds `owner`, the gate is closed and nobody is inside.
        unsafe { *self.job.get() = job };
        let before = self.gate.load(Relaxed);
        self.gate.store((before & !(OPEN | INSIDE)).wrapping_add(TICKET) | OPEN, SeqCst);
        self.rouse(helpers);
        self.take_tasks(job, 0);
        self.gate.fetch_and(!OPEN, AcqRel);
        for _ in 0..SPINS {
            if self.gate.load(Acquire) & INSIDE == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        self.join();
    }

    /// Sleeps until nobody is inside. A worker that takes that long is off the CPU: spinning would only use up this thread's
    /// share of its own.
    fn join(&self) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // A leaving worker counts itself out before it looks for this flag, and this thread sets it before it looks for workers:
        // one of the two sees the other.
        self.joining.store(true, SeqCst);
        while self.gate.load(SeqCst) & INSIDE != 0 {
            guard = self.left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.joining.store(false, SeqCst);
    }

    fn leave(&self) {
        let before = self.gate.fetch_sub(1, SeqCst);
        if before & INSIDE == 1 && self.joining.load(SeqCst) {
            drop(self.lock.lock());
            self.left.notify_all();
        }
    }

    fn rouse(&self, wanted: usize) {
        if self.sleepers.load(SeqCst) == 0 {
            return;
        }
        drop(self.lock.lock());
        (0..wanted).for_each(|_| self.wake.notify_one());
    }

    /// Does the tasks of a worker's own share, then what is left of the others'.
    fn take_tasks(&self, job: Job, worker: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let (before, own) = self.shares.split_at(worker);
            for share in own.iter().chain(before) {
                loop {
                    let task = share.next.fetch_add(1, Relaxed);
                    if task >= share.end.load(Relaxed) {
                        break;
                    }
                    // SAFETY: `run` keeps the closure alive until every worker has left, and `F: Sync`.
                    unsafe { (job.call)(job.data, task, worker) };
                }
            }
        }));
        if let Err(payload) = result {
            // Nobody begins another one.
            self.shares.iter().for_each(|share| share.next.store(share.end.load(Relaxed), Relaxed));
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    fn work(&self, worker: usize) {
        let mut seen = 0;
        let mut prefetcher = Prefetcher::new(worker, self.shares.len());
        while let Some(ticket) = self.enter(seen, &mut prefetcher) {
            seen = ticket;
            // SAFETY: this worker is inside the open job, so the caller does not write it.
            let job = unsafe { *self.job.get() };
            self.take_tasks(job, worker);
            self.leave();
        }
    }

    /// Waits for an open job other than `seen` and enters it; `None` when the pool ends.
    fn enter(&self, seen: u64, prefetcher: &mut Prefetcher) -> Option<u64> {
        let mut spins = 0;
        loop {
            if self.stop.load(Relaxed) {
                return None;
            }
            let gate = self.gate.load(Acquire);
            let ticket = gate / TICKET;
            if gate & OPEN != 0 && ticket != seen {
                if self.gate.compare_exchange_weak(gate, gate + 1, AcqRel, Relaxed).is_ok() {
                    return Some(ticket);
                }
                continue;
            }
            if prefetcher.step(&self.prefetch) {
                continue;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                self.sleep(seen);
                spins = 0;
            }
        }
    }

    fn sleep(&self, seen: u64) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, SeqCst);
        // The caller publishes a job before it looks for sleepers, and this worker counts itself before it looks for a job: one
        // of the two sees the other.
        let gate = self.gate.load(SeqCst);
        let open = gate & OPEN != 0 && gate / TICKET != seen;
        if !open && !self.stop.load(SeqCst) {
            drop(self.wake.wait(guard));
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

/// A mutable slice that parallel tasks write disjoint ranges of.
#[derive(Debug)]
pub(crate) struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: `slice` makes its callers promise disjoint ranges, so elements move between threads as with `&mut T`.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Parts<'a, T> {
        Parts { data: data.as_mut_ptr(), len: data.len(), life: PhantomData }
    }

    /// # Safety
    /// No two live ranges overlap.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a task's part lies inside the whole");
        // SAFETY: inside the slice by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.end - range.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in 1..5 {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |i| {
                    counts[i].fetch_add(1, SeqCst);
                });
                assert!(counts.iter().all(|c| c.load(SeqCst) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn many_short_jobs_follow_each_other() {
        let pool = Pool::new(3);
        let mut data = vec![0u32; 64];
        for _ in 0..5000 {
            pool.run_chunks(&mut data, 8, |_, chunk| chunk.iter_mut().for_each(|x| *x += 1));
        }
        assert!(data.iter().all(|&x| x == 5000));
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let pool = Pool::new(2);
        for _ in 0..20 {
            thread::sleep(std::time::Duration::from_millis(2));
            let hits = AtomicUsize::new(0);
            pool.run(100, |_| {
                hits.fetch_add(1, SeqCst);
            });
            assert_eq!(hits.load(SeqCst), 100);
        }
    }

    #[test]
    fn nested_and_concurrent_runs_finish() {
        let pool = Pool::new(2);
        let hits = AtomicUsize::new(0);
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..50 {
                        pool.run(4, |_| pool.run(3, |_| _ = hits.fetch_add(1, SeqCst)));
                    }
                });
            }
        });
        assert_eq!(hits.load(SeqCst), 3 * 50 * 12);
    }

    #[test]
    fn a_panicking_task_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(10, |i| assert_ne!(i, 7))));
        assert!(result.is_err());
        let hits = AtomicUsize::new(0);
        pool.run(10, |_| _ = hits.fetch_add(1, SeqCst));
        assert_eq!(hits.load(SeqCst), 10);
    }
}
