//! Concurrently open jobs, and the workers for their tasks.

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

/// Gate bit: the job is open for workers to enter. The bits below count the workers inside, those
/// above number the job.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const TICKET: u64 = OPEN << 1;

/// The payload of a task's panic.
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
            // SAFETY: `data` is the `&F` passed to `of`, and `Jobs::fork_join`'s caller keeps it
            // alive.
            unsafe { (*data.cast::<F>())(task, worker) }
        }
        Call { call: call::<F>, data: std::ptr::from_ref(f).cast() }
    }
}

/// The tasks that a thread begins with, in a cache line (and the one fetched with it) of its own.
#[derive(Default)]
#[repr(align(128))]
struct Share {
    /// The next task to take.
    next: AtomicUsize,
    end: AtomicUsize,
}

/// A job, or room for one.
struct Job {
    call: UnsafeCell<Call>,
    /// One a thread.
    shares: Box<[Share]>,
    panic: Mutex<Option<Panic>>,
    /// Whether the job's owner sleeps until no worker is inside.
    joining: AtomicBool,
    left: Condvar,
}

/// One gate per job. Gates share a cache line, so an idle worker polls all of them with one load.
#[repr(align(128))]
struct Gates([AtomicU64; JOBS]);

/// State shared by the threads of a pool.
pub(super) struct Jobs {
    gates: Gates,
    jobs: [Job; JOBS],
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    pub(super) prefetch: List,
}

// SAFETY: only the thread that owns a job writes its `call`, while the gate is closed and no worker
// is inside. Only workers that entered through the open gate read it. The gate's atomics order
// both.
unsafe impl Sync for Jobs {}
// SAFETY: the pointers in `call` are dereferenced only until `fork_join` returns, and its caller
// keeps their target alive until then.
unsafe impl Send for Jobs {}

/// Ignores poisoning: no panic leaves the data of the pool's mutexes inconsistent.
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

    /// Assigns tasks to the first `threads` threads. The job's owner calls this while no worker is
    /// inside.
    fn deal(&self, tasks: usize, threads: usize) {
        for (i, share) in self.shares.iter().enumerate() {
            let start = |i: usize| tasks * i.min(threads) / threads;
            share.next.store(start(i), Relaxed);
            share.end.store(start(i + 1), Relaxed);
        }
    }

    /// Runs the tasks of the thread's own share, then the remaining tasks of the others.
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
                    // SAFETY: the caller keeps the closure alive, and `Call::of` only takes one
                    // that is `Sync`.
                    unsafe { (call.call)(call.data, task, worker) };
                }
            }
        }));
        if let Err(payload) = result {
            // No thread begins another task.
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

    /// Calls `call` for each task, on this thread, as worker 0, and on up to `helpers` workers;
    /// returns a task's panic.
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
            // SAFETY: this thread owns the job. Its gate is closed and no worker is inside, because
            // the previous `join` waited for that.
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

    /// Waits until no worker is inside the job. The gate is already closed.
    fn join(&self, gate: &AtomicU64, job: &Job) {
        for _ in 0..SPINS {
            if gate.load(Acquire) & INSIDE == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        // A worker this late is off the CPU; more spinning would only waste this thread's CPU time.
        let mut guard = lock(&self.lock);
        // A leaving worker decrements the count before it reads this flag. This thread sets the
        // flag before it reads the count. So at least one sees the other.
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

    /// The loop of a worker until the pool ends.
    pub(super) fn work(&self, worker: usize) {
        let mut seen = [0; JOBS];
        let mut prefetcher = Prefetcher::new(worker, self.jobs[0].shares.len());
        while let Some(job) = self.enter(&mut seen, &mut prefetcher) {
            // SAFETY: this worker is inside the open job, so its owner neither writes the call nor
            // drops its closure.
            unsafe { self.jobs[job].take_tasks(*self.jobs[job].call.get(), worker) };
            self.leave(job);
        }
    }

    /// The open job with the fewest workers inside, and its gate. Skips jobs already `seen`.
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
        // A caller publishes a job before it reads the count of sleepers. This worker increments
        // the count before it looks for a job. So at least one sees the other.
        if self.open(seen, SeqCst).is_none() && !self.stop.load(SeqCst) {
            drop(self.wake.wait(guard));
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }

    /// Ends all workers.
    pub(super) fn stop(&self) {
        self.stop.store(true, SeqCst);
        drop(lock(&self.lock));
        self.wake.notify_all();
    }
}
