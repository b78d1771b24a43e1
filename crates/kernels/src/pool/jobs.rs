//! Jobs that are open at the same time, and the workers that do their tasks.

use std::{
    any::Any,
    array,
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, Ordering::*},
    },
};

use super::prefetch::{List, Prefetcher};

/// Jobs that can be open at the same time.
pub(super) const JOBS: usize = 4;

/// The most threads of a pool.
pub(super) const MOST_THREADS: usize = INSIDE as usize;

/// Idle looks at the gates before a worker sleeps: some tens of microseconds.
const SPINS: u32 = 2000;

/// Gate bit: the job is open for workers to enter. The bits below count the workers inside, those above number the job.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const TICKET: u64 = OPEN << 1;

/// What a task panicked with.
pub(super) type Panic = Box<dyn Any + Send>;

/// A borrowed `Fn(task, worker)` without its lifetime.
#[derive(Clone, Copy)]
pub(super) struct Call {
    call: unsafe fn(*const (), usize, usize),
    data: *const (),
}

impl Call {
    pub(super) fn of<F: Fn(usize, usize) + Sync>(f: &F) -> Call {
        unsafe fn call<F: Fn(usize, usize)>(data: *const (), task: usize, worker: usize) {
            // SAFETY: `data` is the `&F` that `of` was given, which `Jobs::fork_join`'s caller keeps alive.
            unsafe { (*data.cast::<F>())(task, worker) }
        }
        Call { call: call::<F>, data: std::ptr::from_ref(f).cast() }
    }
}

/// The tasks that a thread begins with, in a cache line (and the one fetched with it) of its own.
#[derive(Default)]
#[repr(align(128))]
struct Share {
    /// The next one, for whoever comes.
    next: AtomicUsize,
    end: AtomicUsize,
}

/// A job, or room for one.
struct Job {
    call: UnsafeCell<Call>,
    /// One a thread.
    shares: Box<[Share]>,
    panic: Mutex<Option<Panic>>,
    /// Whether the job's owner sleeps until nobody is inside.
    joining: AtomicBool,
    left: Condvar,
}

/// One a job. They share a cache line, so that idle workers watch all of them for the price of one.
#[repr(align(128))]
struct Gates([AtomicU64; JOBS]);

/// What the threads of a pool share.
pub(super) struct Jobs {
    gates: Gates,
    jobs: [Job; JOBS],
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    pub(super) prefetch: List,
}

// SAFETY: a job's `call` is written only by the one thread that owns the job, while its gate is closed and nobody is inside, and
// read only by workers that entered through the open gate; the gate's atomics order the two.
unsafe impl Sync for Jobs {}
// SAFETY: the pointers in `call` are dereferenced only until `fork_join` returns, whose caller keeps their target alive until then.
unsafe impl Send for Jobs {}

/// Takes a poisoned mutex as well: no panic leaves what the pool's mutexes guard half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    fn new(threads: usize) -> Job {
        Job {
            call: UnsafeCell::new(Call { call: |_, _, _| {}, data: std::ptr::null() }),
            shares: (0..threads).map(|_| Share::default()).collect(),
            panic: Mutex::new(None),
            joining: AtomicBool::new(false),
            left: Condvar::new(),
        }
    }

    /// Gives each of the first `threads` threads its tasks; for the job's owner, while nobody is inside.
    fn deal(&self, tasks: usize, threads: usize) {
        for (i, share) in self.shares.iter().enumerate() {
            let start = |i: usize| tasks * i.min(threads) / threads;
            share.next.store(start(i), Relaxed);
            share.end.store(start(i + 1), Relaxed);
        }
    }

    /// Does the tasks of a thread's own share, then what is left of the others'.
    ///
    /// # Safety
    /// The closure behind `call` is alive until this returns.
    unsafe fn take_tasks(&self, call: Call, worker: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let (before, own) = self.shares.split_at(worker);
            for share in own.iter().chain(before) {
                loop {
                    let task = share.next.fetch_add(1, Relaxed);
                    if task >= share.end.load(Relaxed) {
                        break;
                    }
                    // SAFETY: the caller keeps the closure alive, and `Call::of` only takes one that is `Sync`.
                    unsafe { (call.call)(call.data, task, worker) };
                }
            }
        }));
        if let Err(payload) = result {
            // Nobody begins another one.
            self.shares.iter().for_each(|share| share.next.store(share.end.load(Relaxed), Relaxed));
            lock(&self.panic).get_or_insert(payload);
        }
    }
}

impl Jobs {
    pub(super) fn new(threads: usize) -> Jobs {
        Jobs {
            gates: Gates(array::from_fn(|_| AtomicU64::new(0))),
            jobs: array::from_fn(|_| Job::new(threads)),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            prefetch: List::default(),
        }
    }

    /// Calls `call` for each task, on this thread, as worker 0, and on up to `helpers` workers; returns a task's panic.
    ///
    /// # Safety
    /// This thread owns the job, and the closure behind `call` is alive until this returns.
    pub(super) unsafe fn fork_join(&self, job: usize, call: Call, tasks: usize, helpers: usize) -> Option<Panic> {
        let (gate, job) = (&self.gates.0[job], &self.jobs[job]);
        job.deal(tasks, helpers + 1);
        if helpers == 0 {
            // SAFETY: the caller keeps the closure alive.
            unsafe { job.take_tasks(call, 0) };
        } else {
            // SAFETY: this thread owns the job; its gate is closed and nobody is inside, since `join` has seen that after the last.
            unsafe { *job.call.get() = call };
            let before = gate.load(Relaxed);
            gate.store((before & !(OPEN | INSIDE)).wrapping_add(TICKET) | OPEN, SeqCst);
            self.rouse(helpers);
            // SAFETY: the caller keeps the closure alive.
            unsafe { job.take_tasks(call, 0) };
            gate.fetch_and(!OPEN, AcqRel);
            self.join(gate, job);
        }
        lock(&job.panic).take()
    }

    /// Waits until nobody is inside the job, whose gate is closed.
    fn join(&self, gate: &AtomicU64, job: &Job) {
        for _ in 0..SPINS {
            if gate.load(Acquire) & INSIDE == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        // A worker that takes that long is off the CPU: spinning would only use up this thread's share of its own.
        let mut guard = lock(&self.lock);
        // A leaving worker counts itself out before it looks for this flag, and this thread sets it before it looks for workers:
        // one of the two sees the other.
        job.joining.store(true, SeqCst);
        while gate.load(SeqCst) & INSIDE != 0 {
            guard = job.left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        job.joining.store(false, SeqCst);
    }

    fn leave(&self, job: usize) {
        let (gate, job) = (&self.gates.0[job], &self.jobs[job]);
        let before = gate.fetch_sub(1, SeqCst);
        if before & INSIDE == 1 && job.joining.load(SeqCst) {
            drop(lock(&self.lock));
            job.left.notify_all();
        }
    }

    fn rouse(&self, wanted: usize) {
        if self.sleepers.load(SeqCst) == 0 {
            return;
        }
        drop(lock(&self.lock));
        (0..wanted).for_each(|_| self.wake.notify_one());
    }

    /// What a worker does until the pool ends.
    pub(super) fn work(&self, worker: usize) {
        let mut seen = [0; JOBS];
        let mut prefetcher = Prefetcher::new(worker, self.jobs[0].shares.len());
        while let Some(job) = self.enter(&mut seen, &mut prefetcher) {
            // SAFETY: this worker is inside the open job, so its owner neither writes the call nor lets its closure go.
            unsafe { self.jobs[job].take_tasks(*self.jobs[job].call.get(), worker) };
            self.leave(job);
        }
    }

    /// Of the jobs that are open, and that were not `seen` before, the one with the fewest workers inside, and its gate.
    fn open(&self, seen: &[u64; JOBS], order: Ordering) -> Option<(usize, u64)> {
        let gates = self.gates.0.iter().map(|gate| gate.load(order)).enumerate();
        let open = gates.filter(|&(job, gate)| gate & OPEN != 0 && gate / TICKET != seen[job]);
        open.min_by_key(|&(_, gate)| gate & INSIDE)
    }

    /// Waits for an open job that was not `seen` before and enters it; `None` when the pool ends.
    fn enter(&self, seen: &mut [u64; JOBS], prefetcher: &mut Prefetcher) -> Option<usize> {
        let mut spins = 0;
        loop {
            if self.stop.load(Relaxed) {
                return None;
            }
            if let Some((job, gate)) = self.open(seen, Acquire) {
                if self.gates.0[job].compare_exchange_weak(gate, gate + 1, AcqRel, Relaxed).is_ok() {
                    seen[job] = gate / TICKET;
                    return Some(job);
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

    fn sleep(&self, seen: &[u64; JOBS]) {
        let guard = lock(&self.lock);
        self.sleepers.fetch_add(1, SeqCst);
        // A caller publishes a job before it looks for sleepers, and this worker counts itself before it looks for a job: one of
        // the two sees the other.
        if self.open(seen, SeqCst).is_none() && !self.stop.load(SeqCst) {
            drop(self.wake.wait(guard));
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }

    /// Lets all workers end.
    pub(super) fn stop(&self) {
        self.stop.store(true, SeqCst);
        drop(lock(&self.lock));
        self.wake.notify_all();
    }
}
