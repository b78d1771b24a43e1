//! The thread that computes: it steps a model's scheduler, accepts jobs between steps, and drops
//! the jobs of closed connections.

use std::{
    cell::Cell,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Instant,
};

use flambeau::runners::{
    Error,
    llm::{Event, FinishReason, Generation, GenerationStep, Job, JobId, Scheduler},
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    error::{ApiError, Result},
    keys::Caller,
    metrics::{AdapterLoad, Metrics, add},
    rates::Meter,
    traces::RequestSpan,
};

/// Maximum number of unread events of a slow client: a quarter of a megabyte. Slower clients are
/// dropped.
const MAX_UNREAD: usize = 2048;

/// Update of one of a request's jobs, which are numbered from 0.
#[derive(Debug)]
pub(crate) enum Update {
    Started { cached: usize },
    Stepped(GenerationStep),
    Finished(Generation),
    Failed(ApiError),
}

/// Updates with job numbers.
pub(crate) type JobUpdate = (usize, Update);

/// The client that submits jobs.
#[derive(Clone, Debug)]
pub(crate) struct Submitter {
    pub(crate) caller: Caller,
    /// Maximum number of concurrent jobs.
    pub(crate) most_jobs: usize,
    /// Token counter.
    pub(crate) meter: Option<Arc<Meter>>,
    /// Trace of the request.
    pub(crate) span: Option<Arc<RequestSpan>>,
}

struct Submission {
    submitter: Submitter,
    jobs: Vec<Job>,
    updates: mpsc::Sender<JobUpdate>,
    admitted: oneshot::Sender<Result<()>>,
}

/// Handle of the thread. The thread ends when all handles are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    submissions: Sender<Submission>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Worker {
    /// Starts the thread. It creates its scheduler, recreates it after a failure, and updates
    /// `metrics`.
    ///
    /// # Errors
    /// Fails if the thread cannot start.
    pub(crate) fn start(
        name: &str,
        scheduler: impl Fn() -> Scheduler + Send + 'static,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Worker> {
        let (submissions, taken) = channel();
        let counted = Arc::clone(&metrics);
        let work = move || {
            // The scheduler catches the panics of jobs. Any other panic closes the channels of all
            // clients, which end their requests with an error.
            let turn = || WorkerThread::new(scheduler(), &counted).work(&taken);
            while catch_unwind(AssertUnwindSafe(turn)).is_err() {
                add(&counted.panics, 1);
            }
        };
        thread::Builder::new().name(format!("serve {name}")).spawn(work)?;
        Ok(Worker { submissions, metrics })
    }

    /// Submits a client's jobs, all or none. They are cancelled when the receiver is dropped.
    ///
    /// # Errors
    /// Fails if the scheduler rejects them.
    pub(crate) async fn submit(&self, submitter: Submitter, jobs: Vec<Job>) -> Result<mpsc::Receiver<JobUpdate>> {
        let (updates, received) = mpsc::channel(MAX_UNREAD);
        let (admitted, answer) = oneshot::channel();
        let gone = || ApiError::internal("the model's thread has ended");
        self.submissions.send(Submission { submitter, jobs, updates, admitted }).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())??;
        Ok(received)
    }
}

/// Receiver of a job's events.
struct Client {
    submitter: Submitter,
    updates: mpsc::Sender<JobUpdate>,
    number: usize,
    /// Names of the job's adapters.
    adapters: Vec<String>,
    has_started: bool,
    submitted: Instant,
    /// Time of the last token.
    last: Option<Instant>,
    /// Number of cached prompt tokens.
    cached: usize,
    /// Length of the longest answer so far, shared by a request's jobs.
    longest: Rc<Cell<usize>>,
}

impl Client {
    /// Counts the tokens of an event, including cached prompt tokens.
    fn meter(&self, event: &Event) {
        let Some(meter) = &self.submitter.meter else { return };
        match event {
            Event::Started { cached } => meter.add_tokens(*cached),
            Event::Stepped(step) if step.token.is_some() => meter.add_tokens(1),
            Event::Finished(generation) => meter.add_tokens(generation.stats.prompt_tokens),
            Event::Stepped(_) | Event::Failed(_) => {}
        }
    }

    /// Records an event in the request's trace.
    fn trace(&self, event: &Event) {
        let Some(span) = &self.submitter.span else { return };
        match event {
            Event::Started { cached } => span.start(*cached),
            Event::Stepped(step) if step.token.is_some() && self.last.is_none() => span.step(),
            Event::Finished(generation) => span.finish(generation, self.cached),
            Event::Failed(_) => span.fail("generation_failed"),
            Event::Stepped(_) => {}
        }
    }

    /// Records the times up to an event.
    fn observe(&mut self, event: &Event, metrics: &Metrics) {
        self.trace(event);
        let times = &metrics.times;
        match event {
            Event::Started { cached } => {
                (self.cached, self.has_started) = (*cached, true);
                times.queue.observe(self.submitted.elapsed());
            }
            Event::Stepped(step) if step.token.is_some() => {
                match self.last {
                    None => times.first_token.observe(self.submitted.elapsed()),
                    Some(last) => times.between_tokens.observe(last.elapsed()),
                }
                self.last = Some(Instant::now());
            }
            Event::Finished(generation) => {
                times.whole.observe(self.submitted.elapsed());
                times.observe_end(&generation.stats, self.cached);
                metrics.count_end(generation.finish);
                self.longest.set(self.longest.get().max(generation.stats.generated_tokens));
                if Rc::strong_count(&self.longest) == 1 {
                    times.longest_answer.observe_size(self.longest.get());
                }
            }
            Event::Stepped(_) | Event::Failed(_) => {}
        }
    }
}

/// State of the thread.
struct WorkerThread<'a> {
    scheduler: Scheduler,
    clients: BTreeMap<JobId, Client>,
    metrics: &'a Metrics,
}

impl<'a> WorkerThread<'a> {
    fn new(scheduler: Scheduler, metrics: &'a Metrics) -> WorkerThread<'a> {
        metrics.set_capacity(scheduler.capacity());
        WorkerThread { scheduler, clients: BTreeMap::new(), metrics }
    }

    /// Runs until all senders are dropped, then saves persistent state.
    fn work(mut self, submissions: &Receiver<Submission>) {
        let began = Instant::now();
        loop {
            if self.clients.is_empty() {
                self.tell_load();
                match submissions.recv() {
                    Ok(submission) => self.admit(submission),
                    Err(_) => return self.scheduler.save(),
                }
            }
            while let Ok(submission) = submissions.try_recv() {
                self.admit(submission);
            }
            self.drop_orphans();
            let (clients, metrics) = (&mut self.clients, self.metrics);
            self.scheduler.step(&|| began.elapsed(), &mut |id, event| send_event(clients, metrics, id, event));
            self.tell_load();
        }
    }

    fn admit(&mut self, Submission { submitter, jobs, updates, admitted }: Submission) {
        add(&self.metrics.requests, jobs.len());
        let adapters: Vec<Vec<String>> = jobs.iter().map(|job| self.adapters(job)).collect();
        let ids = match self.submit(&submitter, jobs) {
            Ok(ids) => ids,
            Err(error) => {
                add(&self.metrics.refused, 1);
                // The client may have gone.
                let _ = admitted.send(Err(error));
                return;
            }
        };
        self.metrics.times.choices.observe_size(ids.len());
        let submitted = Instant::now();
        let longest = Rc::new(Cell::new(0));
        for (number, (id, adapters)) in ids.into_iter().zip(adapters).enumerate() {
            let (submitter, updates, longest) = (submitter.clone(), updates.clone(), Rc::clone(&longest));
            let (has_started, last, cached) = (false, None, 0);
            let client = Client { submitter, updates, number, adapters, has_started, submitted, last, cached, longest };
            self.clients.insert(id, client);
        }
        let _ = admitted.send(Ok(()));
    }

    /// Submits jobs, all or none.
    fn submit(&mut self, submitter: &Submitter, jobs: Vec<Job>) -> Result<Vec<JobId>> {
        let own = self.clients.values().filter(|client| client.submitter.caller == submitter.caller).count();
        if own + jobs.len() > submitter.most_jobs {
            return Err(ApiError::busy(format!("the key has {own} requests, and may have {} at a time", submitter.most_jobs)));
        }
        let mut ids = Vec::with_capacity(jobs.len());
        for job in jobs {
            // Background jobs count as another client's, so that they do not use up the share of
            // the key's other requests.
            let client = submitter.caller.number();
            let submitted = match submitter.caller.yields() {
                true => self.scheduler.submit_in_background(!client, job),
                false => self.scheduler.submit_for(client, job),
            };
            match submitted {
                Ok(id) => ids.push(id),
                Err(error) => {
                    ids.into_iter().for_each(|id| self.scheduler.cancel(id));
                    return Err(error.into());
                }
            }
        }
        Ok(ids)
    }

    /// Names of a job's adapters.
    fn adapters(&self, job: &Job) -> Vec<String> {
        let known = &self.scheduler.model().metadata().adapters;
        let used = known.iter().zip(job.request.adapters.scales()).filter(|(_, scale)| **scale != 0.0);
        used.map(|(adapter, _)| adapter.name.clone()).collect()
    }

    /// Updates the load metrics.
    fn tell_load(&self) {
        self.metrics.set_load(self.scheduler.load());
        let count = self.scheduler.model().metadata().adapters.len();
        if count > 0 {
            let of = |is_running| {
                let clients = self.clients.values().filter(move |client| client.has_started == is_running);
                clients.flat_map(|client| client.adapters.iter().cloned()).collect()
            };
            self.metrics.set_adapters(AdapterLoad { count, running: of(true), waiting: of(false) });
        }
    }

    fn drop_orphans(&mut self) {
        let gone: Vec<JobId> = self.clients.iter().filter(|(_, client)| client.updates.is_closed()).map(|(id, _)| *id).collect();
        for id in gone {
            add(&self.metrics.cancelled, 1);
            self.metrics.count_end(FinishReason::Cancelled);
            self.scheduler.cancel(id);
            self.clients.remove(&id);
        }
    }
}

/// Sends an event. If a client's channel is full, the event is lost and the job ends.
fn send_event(clients: &mut BTreeMap<JobId, Client>, metrics: &Metrics, id: JobId, event: Event) {
    let is_end = matches!(event, Event::Finished(_) | Event::Failed(_));
    if let Some(client) = clients.get_mut(&id) {
        client.observe(&event, metrics);
        client.meter(&event);
    }
    let update = match event {
        Event::Started { cached } => {
            add(&metrics.cached_tokens, cached);
            add(&metrics.prompt_tokens, cached);
            Update::Started { cached }
        }
        Event::Stepped(step) if step.token.is_none() && step.text.is_empty() => return,
        Event::Stepped(step) => {
            add(&metrics.generated_tokens, usize::from(step.token.is_some()));
            Update::Stepped(step)
        }
        Event::Finished(generation) => {
            add(&metrics.prompt_tokens, generation.stats.prompt_tokens);
            Update::Finished(generation)
        }
        Event::Failed(error) => {
            metrics.count_error(matches!(error, Error::Panicked { .. }));
            tracing::error!("a generation failed: {error}");
            Update::Failed(error.into())
        }
    };
    let Some(client) = clients.get(&id) else { return };
    let is_lost = client.updates.try_send((client.number, update)).is_err();
    if is_end {
        clients.remove(&id);
    } else if is_lost && !client.updates.is_closed() {
        // The channel is full, so an update is lost and the text would have a gap.
        tracing::warn!("a client reads too slowly and is dropped");
        orphan(clients, id);
    }
}

/// Disconnects a client from its job. The job ends at the next step.
fn orphan(clients: &mut BTreeMap<JobId, Client>, id: JobId) {
    if let Some(client) = clients.get_mut(&id) {
        client.updates = mpsc::channel(1).0;
    }
}
