//! The threads that own devices.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, MutexGuard,
        mpsc::{Receiver, RecvError, Sender, SyncSender, TryRecvError, channel, sync_channel},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use crate::{Device, Error, ffi::Api};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that selected the device and runs a queue of jobs in order.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) queue: Queue,
    worker: Option<Worker>,
    /// Reports that the queue is empty and the device idle.
    ended: Mutex<Receiver<()>>,
    /// The device, if it is this owner's before all others.
    first_on: Option<Device>,
}

/// A thread with a stream on a device, which works for one owner after another.
#[derive(Debug)]
struct Worker {
    api: Api,
    device: Device,
    queues: Sender<(Receiver<Option<Job>>, SyncSender<()>)>,
    thread: ThreadId,
}

/// Devices that have an owner. A second owner of a device has its own stream, and launches of both
/// streams may run concurrently.
static OWNED: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// Workers without an owner, for later owners. MLX binds a stream to the thread that made it, and
/// keeps the stream until the process ends. On a CPU, the stream has another thread of its own.
static IDLE: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

fn owned() -> MutexGuard<'static, Vec<Device>> {
    OWNED.lock().unwrap_or_else(|e| e.into_inner())
}

fn idle() -> MutexGuard<'static, Vec<Worker>> {
    IDLE.lock().unwrap_or_else(|e| e.into_inner())
}

/// A sender to a device's thread. Objects on the device hold a queue and never the owner: dropping
/// the owner on its own thread would wait for itself.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// `None` ends the thread.
    jobs: Sender<Option<Job>>,
    spin: Duration,
    thread: ThreadId,
}

impl Drop for Owner {
    /// Waits for the queued jobs: at process exit MLX is torn down and must be idle.
    fn drop(&mut self) {
        // A thread that has ended takes no message.
        let _ = self.queue.jobs.send(None);
        if self.ended.get_mut().unwrap_or_else(|e| e.into_inner()).recv().is_ok() {
            idle().extend(self.worker.take());
        }
        if let Some(device) = self.first_on {
            owned().retain(|&other| other != device);
        }
    }
}

/// Time that a thread polls for an answer before it sleeps. With a GPU, waking up costs as much as
/// many launches. On a CPU, MLX needs the core itself.
fn spin_of(device: Device) -> Duration {
    if device == Device::Cpu { Duration::ZERO } else { Duration::from_micros(200) }
}

/// The next message: polls first, then sleeps.
fn receive<T>(from: &Receiver<T>, spin: Duration) -> Result<T, RecvError> {
    let start = Instant::now();
    while start.elapsed() < spin {
        match from.try_recv() {
            Ok(message) => return Ok(message),
            Err(TryRecvError::Disconnected) => return Err(RecvError),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
    from.recv()
}

/// The thread did not answer: its job panicked.
#[derive(Debug)]
pub(crate) struct Lost;

impl Owner {
    /// Gives the device to an idle thread that has chosen it, or to a new one.
    ///
    /// # Errors
    /// [`Error::Device`] if MLX has no such device.
    pub(crate) fn start(api: Api, device: Device) -> Result<Owner, Error> {
        let worker = Worker::take(api, device).map_or_else(|| Worker::start(api, device), Ok)?;
        let ((jobs, queue), (end, ended)) = (channel(), sync_channel(1));
        worker.queues.send((queue, end)).map_err(|_| refusal(device, "its thread ended"))?;
        let queue = Queue { jobs, spin: spin_of(device), thread: worker.thread };
        let mut owned = owned();
        let first_on = (!owned.contains(&device)).then_some(device);
        owned.extend(first_on);
        Ok(Owner { queue, worker: Some(worker), ended: Mutex::new(ended), first_on })
    }

    /// Whether no other owner had the device when this one started.
    pub(crate) fn is_first(&self) -> bool {
        self.first_on.is_some()
    }
}

fn refusal(device: Device, what: impl ToString) -> Error {
    Error::Device { device: device.to_string(), what: what.to_string() }
}

impl Worker {
    /// An idle one.
    fn take(api: Api, device: Device) -> Option<Worker> {
        let mut idle = idle();
        let at = idle.iter().position(|worker| worker.api == api && worker.device == device)?;
        Some(idle.swap_remove(at))
    }

    /// Starts the thread, which chooses the device.
    fn start(api: Api, device: Device) -> Result<Worker, Error> {
        let (queues, owners) = channel::<(Receiver<Option<Job>>, SyncSender<()>)>();
        let (ready, is_ready) = sync_channel(1);
        let spin = spin_of(device);
        let work = move || {
            let chosen = api.use_device(device);
            let works = chosen.is_ok();
            // Fails only if the starting thread has ended. Then there will be no owners.
            let _ = ready.send(chosen);
            while works && let Ok((queue, end)) = owners.recv() {
                while let Ok(Some(job)) = receive(&queue, spin) {
                    // A job that panics drops its channel, and this wakes the waiting caller.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
                // Runs without a waiting caller may still compute on MLX's threads. Their errors
                // have no reader any more.
                let _ = api.synchronize();
                // Late jobs are dropped before the owner's end is reported.
                drop(queue);
                let _ = end.send(());
            }
        };
        let started = thread::Builder::new().name(format!("mlx {device}")).spawn(work).map_err(|e| refusal(device, e))?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Worker { api, device, queues, thread: started.thread().id() }),
            Ok(Err(failure)) => Err(refusal(device, failure)),
            Err(_) => Err(refusal(device, "its thread ended")),
        }
    }
}

impl Queue {
    /// Runs `job` on the thread and waits for its result.
    ///
    /// # Errors
    /// [`Lost`] if the job panics.
    pub(crate) fn call<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, Lost> {
        let (reply, answer) = sync_channel(1);
        self.post(move || {
            // Fails only if the caller no longer waits. Then the value is dropped here.
            let _ = reply.send(job());
        });
        receive(&answer, self.spin).map_err(|_| Lost)
    }

    /// Drops a value on the thread: at once if that is the current one.
    pub(crate) fn drop_there(&self, value: impl Send + 'static) {
        if thread::current().id() != self.thread {
            self.post(move || drop(value));
        }
    }

    /// Queues `job` without waiting.
    pub(crate) fn post(&self, job: impl FnOnce() + Send + 'static) {
        // If the thread is gone, the job is dropped here.
        let _ = self.jobs.send(Some(Box::new(job)));
    }
}
