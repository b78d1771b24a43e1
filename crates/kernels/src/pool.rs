//! One explicit thread pool with cheap fork-join.
//!
//! The shape of the problem alone divides work into numbered tasks, and every task writes its own
//! part of the output. So results depend neither on the number of threads nor on other users of the
//! pool. Each thread begins with a run of neighbouring tasks with consecutive operands in memory,
//! and then takes tasks from the others. After a job, workers prefetch the announced operands of
//! the next jobs, spin for a moment in case a job follows at once, and then sleep. A job does not
//! wait for a late worker (asleep, off the CPU, or in another job): only workers that have entered
//! a job delay its end.
//!
//! # Sharing
//! Concurrent callers of one pool, like the sessions of one engine, share its workers. Up to
//! [`JOBS`] calls own a job each. The calling thread always works on its own job. An idle worker
//! joins the open job with the fewest workers inside and stays until all of its tasks are taken.
//! Workers thus spread evenly over the callers, and a single caller gets all of them. A call beyond
//! [`JOBS`], or from inside a task, runs its tasks on its own thread. No call ever waits for
//! another, so none can block another.

use std::{
    fmt,
    ops::Range,
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle, ThreadId},
};

mod jobs;
mod parts;
mod prefetch;
mod scratch;

use crate::simd::{Cpu, IsaKind, Kernel};
use jobs::{Call, JOBS, Jobs, MOST_THREADS, Panic, lock};
pub(crate) use parts::Parts;
use scratch::Arena;
pub(crate) use scratch::{Scratch, Team};

/// A pool of threads, and the instruction set that its kernels use.
pub struct Pool {
    jobs: Arc<Jobs>,
    /// The thread that owns each job.
    owners: Mutex<[Option<ThreadId>; JOBS]>,
    /// The scratch of each job's owner.
    arenas: [Mutex<Arena>; JOBS],
    workers: Vec<JoinHandle<()>>,
    cpu: Cpu,
}

/// A job in the hands of one thread.
struct Lease<'p> {
    // Released before the job is.
    arena: MutexGuard<'p, Arena>,
    job: Owned<'p>,
}

struct Owned<'p> {
    pool: &'p Pool,
    number: usize,
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        lock(&self.pool.owners)[self.number] = None;
    }
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
        let threads = threads.clamp(1, MOST_THREADS);
        let jobs = Arc::new(Jobs::new(threads));
        let spawn = |i: usize| {
            let jobs = Arc::clone(&jobs);
            thread::Builder::new().name(format!("kernel-{i}")).spawn(move || jobs.work(i)).ok()
        };
        // Where the system refuses a thread the pool is smaller: results do not depend on its size.
        let workers = (1..threads).map_while(spawn).collect();
        Pool { jobs, owners: Mutex::default(), arenas: Default::default(), workers, cpu }
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instruction set that kernels use.
    pub fn isa(&self) -> IsaKind {
        self.cpu.kind()
    }

    /// The proven features of the CPU.
    pub(crate) fn cpu(&self) -> Cpu {
        self.cpu
    }

    /// Runs `kernel` on this thread with the pool's instruction set.
    #[inline(always)]
    pub(crate) fn dispatch<K: Kernel>(&self, kernel: K) -> K::Out {
        self.cpu.dispatch(kernel)
    }

    /// Calls `f(0)` … `f(tasks - 1)`, each once, in any order and on any threads; returns when all
    /// are done.
    ///
    /// Inside a task of the same pool, and while four other threads use it, all tasks run on the
    /// calling thread.
    ///
    /// # Panics
    /// If a task panics, after the others have ended.
    pub fn run<F: Fn(usize) + Sync>(&self, tasks: usize, f: F) {
        let lease = if tasks > 1 { self.lease() } else { None };
        let Some(lease) = lease else {
            (0..tasks).for_each(f);
            return;
        };
        let panic = self.fork_join(&lease, tasks, &|task, _| f(task));
        drop(lease);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// A job of this thread's own, if there is one left and it is not inside another.
    fn lease(&self) -> Option<Lease<'_>> {
        let this = thread::current().id();
        let mut owners = lock(&self.owners);
        // A worker only ever calls from a task, whose job has an owner.
        let is_used = owners.iter().any(Option::is_some);
        if is_used && (owners.contains(&Some(this)) || self.workers.iter().any(|w| w.thread().id() == this)) {
            return None;
        }
        let number = owners.iter().position(Option::is_none)?;
        owners[number] = Some(this);
        drop(owners);
        Some(Lease { arena: lock(&self.arenas[number]), job: Owned { pool: self, number } })
    }

    /// Calls `f(task, worker)` for each task; returns a task's panic.
    fn fork_join<F: Fn(usize, usize) + Sync>(&self, lease: &Lease, tasks: usize, f: &F) -> Option<Panic> {
        let helpers = self.workers.len().min(tasks.saturating_sub(1));
        // SAFETY: the lease makes this thread the job's owner, and `f` is borrowed until the end.
        unsafe { self.jobs.fork_join(lease.job.number, Call::of(f), tasks, helpers) }
    }

    /// The pool for one kernel call, with scratch memory that outlives it.
    pub(crate) fn team(&self) -> Team<'_> {
        Team { pool: self, lease: self.lease(), own: Arena::default() }
    }

    /// Announces memory that the next jobs will read. Idle workers prefetch its beginning into
    /// their caches: a few hundred kilobytes of the first few pieces.
    pub fn prefetch<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        if !self.workers.is_empty() {
            self.jobs.prefetch.set(pieces);
        }
    }

    /// Cuts `0..len` into ranges of `grain` (the last may be short) and calls `f` for each, in
    /// parallel.
    pub fn run_ranges<F: Fn(Range<usize>) + Sync>(&self, len: usize, grain: usize, f: F) {
        let grain = grain.max(1);
        self.run(len.div_ceil(grain), |i| f(i * grain..len.min((i + 1) * grain)));
    }

    /// Cuts `data` into chunks of `grain` elements and calls `f(chunk number, chunk)` for each, in
    /// parallel.
    pub fn run_chunks<T: Send, F: Fn(usize, &mut [T]) + Sync>(&self, data: &mut [T], grain: usize, f: F) {
        let (len, grain) = (data.len(), grain.max(1));
        let parts = Parts::new(data);
        self.run_ranges(len, grain, |r| {
            // SAFETY: the ranges are disjoint and inside the slice.
            let chunk = unsafe { parts.slice(r.clone()) };
            f(r.start / grain, chunk);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs.stop();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of its tasks, so the result carries no information.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).field("isa", &self.isa()).finish()
    }
}

#[cfg(test)]
mod tests;
