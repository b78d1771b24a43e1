//! Scheduling of many generations on one model: admission, choice of sequences, and order of steps.

mod pool;
mod shares;
mod snapshot_pool;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use flambeau_text::Tokenizer;

use self::{
    pool::{Pool, WORTH_A_COPY},
    shares::{ANSWERED, Shares},
};
use super::{
    adapters::Text,
    disk::DiskCache,
    generate::{Generation, Request},
    generator::{GenerationStep, Generator},
    model::Model,
    prefix::common,
    session::Session,
};
use crate::{Error, Result, error::settled};

/// Admission limits of a [`Scheduler`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of generations that run concurrently, at least 1.
    pub running: usize,
    /// Maximum number of loaded sequences, including idle ones with the text of ended generations.
    pub sequences: usize,
    /// Maximum number of waiting generations.
    pub waiting: usize,
    /// Maximum total of tokens of running generations, at the maximum length of each.
    pub tokens: usize,
    /// Maximum total size in bytes of snapshots of texts that no sequence holds. Later prompts may
    /// begin with them.
    pub kept_bytes: usize,
}

/// Identifier of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u64);

/// A generation to schedule. The request's prompt is the whole text.
#[derive(Clone, Debug)]
pub struct Job {
    pub request: Request,
    /// Whether the job may continue a sequence that holds a prefix of its prompt.
    pub reuses: bool,
}

/// Event of a job. The last event is [`Event::Finished`] or [`Event::Failed`], unless the job is
/// cancelled.
#[derive(Debug)]
pub enum Event {
    /// The job has a sequence, with this many tokens of its prompt cached.
    Started { cached: usize },
    /// The job took a step.
    Stepped(GenerationStep),
    /// The job is done.
    Finished(Generation),
    /// The job failed.
    Failed(Error),
}

/// Current load of a [`Scheduler`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub running: usize,
    pub waiting: usize,
    /// Number of loaded sequences without a generation.
    pub idle: usize,
    /// Maximum number of tokens that the running generations may reach.
    pub tokens: usize,
    /// Size in bytes of the snapshots of texts that no sequence holds.
    pub kept_bytes: usize,
}

struct Waiting {
    id: JobId,
    client: u64,
    in_background: bool,
    job: Job,
    /// Maximum number of tokens that the job may reach.
    tokens: usize,
}

struct Running {
    id: JobId,
    client: u64,
    in_background: bool,
    session: Session,
    generator: Generator,
    tokens: usize,
    /// Scheduler step that last fed a chunk of the prompt.
    read: u64,
}

impl Running {
    /// Length of the prefix of a prompt that the generation computes too, without the last token.
    fn shares(&self, prompt: Text<'_>) -> usize {
        let is_own = self.session.sequence().adapters() == prompt.adapters;
        if is_own { common(self.generator.history(), prompt.ids).min(prompt.ids.len().saturating_sub(1)) } else { 0 }
    }
}

fn text_of(job: &Job) -> Text<'_> {
    Text { adapters: &job.request.adapters, ids: &job.request.prompt }
}

/// Schedules generations on one model. It has no thread and no clock: its caller takes
/// [steps](Self::step).
///
/// Jobs of a client start in the order of submission, except that a job may wait until another one
/// has read their common prefix. Among clients, the one with the least work done is next. In a
/// step, every generation past its prompt gets a token. One of the others, in turn, feeds a chunk
/// of its prompt, so a long prompt delays tokens by at most a chunk. The division of prompts into
/// chunks does not depend on other jobs.
///
/// Jobs in the background start and read their prompts after all others. They pause, with their
/// sequences, while another job needs their turn and there is a sequence for it.
pub struct Scheduler {
    model: Model,
    tokenizer: Tokenizer,
    limits: Limits,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    /// Jobs in the background that made room for others, the first to pause first.
    paused: VecDeque<Running>,
    pool: Pool,
    shares: Shares,
    next_id: u64,
    steps: u64,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("limits", &self.limits).field("load", &self.load()).finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Creates a scheduler without jobs.
    pub fn new(model: Model, tokenizer: Tokenizer, limits: Limits) -> Scheduler {
        let pool = Pool::new(model.clone(), limits.sequences.max(limits.running), limits.kept_bytes);
        let (waiting, running, shares) = (VecDeque::new(), Vec::new(), Shares::default());
        let paused = VecDeque::new();
        Scheduler { model, tokenizer, limits, waiting, running, paused, pool, shares, next_id: 0, steps: 0 }
    }

    /// Adds a prompt cache on disk. The scheduler continues its texts. It writes the texts of
    /// sequences that it reassigns, and all texts on [`save`](Self::save). Reads all weights to
    /// identify the model.
    #[must_use]
    pub fn with_disk(mut self, disk: &DiskCache) -> Scheduler {
        self.pool.use_disk(disk);
        self
    }

    /// Writes the texts of idle sequences to the folder; returns when the snapshots are taken.
    pub fn save(&mut self) {
        self.pool.save();
    }

    /// The model of all jobs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Submits a job. All jobs submitted so are of one client.
    ///
    /// # Errors
    /// As [`submit_for`](Self::submit_for).
    pub fn submit(&mut self, job: Job) -> Result<JobId> {
        self.submit_for(0, job)
    }

    /// Submits a job of a client. Clients that have jobs share the model fairly, by the tokens that
    /// are computed for each.
    ///
    /// # Errors
    /// Fails if the prompt is empty or exceeds the context, or if the model lacks an adapter. Fails
    /// if the job alone exceeds the token limit, or if too many jobs wait.
    pub fn submit_for(&mut self, client: u64, job: Job) -> Result<JobId> {
        self.submit_as(client, false, job)
    }

    /// Submits a job of a client that yields to all jobs that are not in the background. It takes
    /// no place in their queue.
    ///
    /// # Errors
    /// As [`submit_for`](Self::submit_for); jobs that wait in the background count here.
    pub fn submit_in_background(&mut self, client: u64, job: Job) -> Result<JobId> {
        self.submit_as(client, true, job)
    }

    fn submit_as(&mut self, client: u64, in_background: bool, job: Job) -> Result<JobId> {
        let prompt = job.request.prompt.len();
        let context = self.context();
        match prompt {
            0 => return Err(Error::EmptyPrompt),
            _ if prompt > context => return Err(Error::PromptTooLong { prompt, context }),
            _ => self.model.check_adapters(&job.request.adapters)?,
        }
        let tokens = prompt.saturating_add(job.request.max_new_tokens).min(context);
        if tokens > self.limits.tokens {
            return Err(Error::TooManyTokens { tokens, limit: self.limits.tokens });
        }
        // Jobs that start at the next step do not count as waiting.
        let before = |other: bool| in_background || !other;
        let running = self.running.iter().filter(|job| before(job.in_background)).count();
        let waiting = self.waiting.iter().filter(|job| before(job.in_background)).count();
        let free = self.most_running().saturating_sub(running);
        if waiting >= self.limits.waiting.saturating_add(free) {
            return Err(Error::Busy { waiting });
        }
        let id = JobId(self.next_id);
        self.next_id += 1;
        let of_jobs = self.waiting.iter().map(|job| job.client).chain(self.running.iter().map(|job| job.client));
        if of_jobs.clone().all(|other| other != client) {
            self.shares.join(client, of_jobs);
        }
        self.waiting.push_back(Waiting { id, client, in_background, job, tokens });
        Ok(id)
    }

    /// Cancels a job. The sequence keeps its part of the prompt.
    pub fn cancel(&mut self, id: JobId) {
        self.waiting.retain(|waiting| waiting.id != id);
        let paused = self.paused.iter().position(|job| job.id == id).and_then(|at| self.paused.remove(at));
        let running = self.running.iter().position(|job| job.id == id).map(|at| self.running.remove(at));
        if let Some(Running { mut session, generator, .. }) = paused.or(running) {
            session.end(generator, &|| Duration::ZERO);
            self.pool.put(session);
        }
    }

    /// Maximum number of tokens that concurrent generations may reach together.
    pub fn capacity(&self) -> usize {
        self.limits.tokens.min(self.limits.running.saturating_mul(self.context()))
    }

    /// Context of the model in tokens, without a limit if it states none.
    fn context(&self) -> usize {
        self.model.context().unwrap_or(usize::MAX)
    }

    /// Current load.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len() + self.paused.len(),
            idle: self.pool.idle(),
            tokens: self.tokens(),
            kept_bytes: self.pool.kept_bytes(),
        }
    }

    /// Starts waiting jobs within the limits, and takes a step; false if there was nothing to do.
    /// `now` returns the time since a fixed moment.
    ///
    /// A generation that fails or panics ends; the others continue.
    pub fn step(&mut self, now: &dyn Fn() -> Duration, on_event: &mut dyn FnMut(JobId, Event)) -> bool {
        self.start(now, on_event);
        self.steps += 1;
        let chosen = self.choose();
        self.step_all(&chosen, now, on_event);
        !chosen.is_empty()
    }

    fn tokens(&self) -> usize {
        self.running.iter().fold(0, |all, running| all.saturating_add(running.tokens))
    }

    fn most_running(&self) -> usize {
        self.limits.running.max(1)
    }

    fn start(&mut self, now: &dyn Fn() -> Duration, on_event: &mut dyn FnMut(JobId, Event)) {
        self.pause_for_others();
        while self.running.len() < self.most_running()
            && let Some(at) = self.next()
            && self.tokens().saturating_add(self.waiting[at].tokens) <= self.limits.tokens
            && !(self.waiting[at].in_background && self.resume())
            && let Some(Waiting { id, client, in_background, job, tokens }) = self.waiting.remove(at)
        {
            let prompt = job.request.prompt.len();
            match self.begin(job, now) {
                Ok((session, generator)) => {
                    let cached = session.cached().ids().len();
                    self.shares.add(client, prompt.saturating_sub(cached) as u64);
                    on_event(id, Event::Started { cached });
                    let read = self.steps;
                    self.running.push(Running { id, client, in_background, session, generator, tokens, read });
                }
                Err(error) => on_event(id, Event::Failed(error)),
            }
        }
        while self.resume() {}
    }

    /// Whether a job that is not in the background could start if it had a place.
    fn others_wait(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.in_background && !self.awaits(&waiting.job))
    }

    /// Pauses jobs in the background, the latest first, until the next other job has its place.
    fn pause_for_others(&mut self) {
        while let Some(at) = self.next().filter(|&at| !self.waiting[at].in_background)
            && (self.running.len() >= self.most_running()
                || self.tokens().saturating_add(self.waiting[at].tokens) > self.limits.tokens)
            && self.pool.has_room()
            && let Some(latest) = self.running.iter().rposition(|running| running.in_background)
        {
            let job = self.running.remove(latest);
            self.paused.push_front(job);
        }
    }

    /// Lets the job go on that has paused for longest, if no other job needs its place.
    fn resume(&mut self) -> bool {
        let fits = |job: &Running| self.tokens().saturating_add(job.tokens) <= self.limits.tokens;
        let is_free = self.running.len() < self.most_running() && !self.others_wait() && self.paused.front().is_some_and(fits);
        let job = if is_free { self.paused.pop_front() } else { None };
        self.running.extend(job);
        is_free
    }

    /// Index of the waiting job to start next.
    fn next(&self) -> Option<usize> {
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        // The sort is stable: jobs of a client stay in their order.
        order.sort_by_key(|&at| (self.waiting[at].in_background, self.shares.of(self.waiting[at].client)));
        order.into_iter().find(|&at| !self.awaits(&self.waiting[at].job))
    }

    /// Starts a generation on the best sequence for its prompt.
    fn begin(&mut self, job: Job, now: &dyn Fn() -> Duration) -> Result<(Session, Generator)> {
        let prompt = text_of(&job);
        let (busy, shared) = if job.reuses { self.busy(prompt) } else { (0, 0) };
        let mut session = self.pool.take(prompt, job.reuses, shared)?;
        if session.reusable(prompt) + WORTH_A_COPY <= shared
            && let Ok(Some(copy)) = self.running[busy].session.snapshot(shared)
        {
            // If the snapshot cannot be restored, the sequence is empty and computes the whole
            // prompt.
            let _ = session.restore(&copy, &prompt.ids[..shared]);
        }
        match guarded(|| session.begin(&self.tokenizer, job.request, now)) {
            Ok(generator) => Ok((session, generator)),
            Err(error) => {
                self.take_back(session, &error);
                Err(error)
            }
        }
    }

    /// Index of the running generation with the longest computed prefix of a prompt, and the number
    /// of tokens to copy. Only whole chunks are copied, so that the rest runs in the same steps as
    /// without a copy.
    fn busy(&self, prompt: Text<'_>) -> (usize, usize) {
        if !self.can_fork() {
            return (0, 0);
        }
        let chunk = self.model.chunk();
        let shared = |running: &Running| {
            let held = running.session.sequence().position();
            running.shares(prompt).min(held) / chunk * chunk
        };
        let shared = self.running.iter().map(shared).enumerate();
        shared.max_by_key(|(_, shared)| *shared).unwrap_or_default()
    }

    fn can_fork(&self) -> bool {
        self.model.can_truncate() && self.model.can_snapshot() && self.limits.kept_bytes > 0
    }

    /// Whether a job should wait until a running generation has read their common prefix. Each step
    /// feeds one prompt only, so reading it twice gains no time.
    fn awaits(&self, job: &Job) -> bool {
        if !job.reuses || !self.can_fork() {
            return false;
        }
        let (prompt, chunk) = (text_of(job), self.model.chunk());
        let coming = |running: &Running| running.shares(prompt) / chunk * chunk;
        let coming = self.running.iter().filter(|running| running.generator.is_reading()).map(coming).max().unwrap_or(0);
        coming > self.busy(prompt).1 && coming >= self.pool.reach(prompt) + WORTH_A_COPY
    }

    /// Takes snapshots of a prompt being read, for models that cannot be truncated: after 1, 2, 4,
    /// 8 … chunks, and at the prompt's end.
    fn keep_beginning(&mut self, id: JobId) {
        let Some(running) = self.running.iter_mut().find(|running| running.id == id) else { return };
        let position = running.session.sequence().position();
        let chunks = position / self.model.chunk();
        let is_border = position.is_multiple_of(self.model.chunk()) && chunks.is_power_of_two();
        if position >= WORTH_A_COPY && (is_border || !running.generator.is_reading()) {
            let ids = running.generator.history()[..position].to_vec();
            self.pool.keep_text(&mut running.session, ids);
        }
    }

    /// Returns the sequence of a failed generation to the pool. State after a panic is not reused.
    fn take_back(&mut self, session: Session, error: &Error) {
        if matches!(error, Error::Panicked { .. }) {
            self.pool.lost();
        } else {
            self.pool.put(session);
        }
    }

    /// Indices of the generations in this step, ascending: all past their prompts, and the one that
    /// has waited longest to read its prompt, outside of the background if there is one.
    fn choose(&self) -> Vec<usize> {
        let reading = |&i: &usize| self.running[i].generator.is_reading();
        let all = 0..self.running.len();
        let reader = all.clone().filter(reading).min_by_key(|&i| (self.running[i].in_background, self.running[i].read));
        all.filter(|i| !reading(i) || Some(*i) == reader).collect()
    }

    /// Takes one step of each of these generations, batched if the engine supports it.
    fn step_all(&mut self, chosen: &[usize], now: &dyn Fn() -> Duration, on_event: &mut dyn FnMut(JobId, Event)) {
        let (mut ids, mut steps) = (Vec::with_capacity(chosen.len()), Vec::with_capacity(chosen.len()));
        for (_, running) in self.running.iter_mut().enumerate().filter(|(at, _)| chosen.contains(at)) {
            if running.generator.is_reading() {
                running.read = self.steps;
            }
            ids.push(running.id);
            steps.push((&mut running.session, &mut running.generator));
        }
        let done = Session::step_each(&mut steps, now);
        let reader = self.running.iter().find(|running| running.read == self.steps).map(|running| running.id);
        // Jobs are found by id, because removing finished jobs changes the indices.
        for (id, step) in ids.into_iter().zip(done) {
            let step = settled(step);
            if step.is_ok() && reader == Some(id) && !self.model.can_truncate() && self.model.can_snapshot() {
                self.keep_beginning(id);
            }
            self.settle(id, step, now, on_event);
        }
    }

    fn settle(
        &mut self,
        id: JobId,
        step: Result<GenerationStep>,
        now: &dyn Fn() -> Duration,
        on_event: &mut dyn FnMut(JobId, Event),
    ) {
        let ended = step.as_ref().map_or(true, |step| step.finish.is_some());
        if step.as_ref().is_ok_and(|step| step.token.is_some())
            && let Some(running) = self.running.iter().find(|running| running.id == id)
        {
            self.shares.add(running.client, ANSWERED);
        }
        let failure = step.map(|step| on_event(id, Event::Stepped(step))).err();
        if !ended {
            return;
        }
        let Some(at) = self.running.iter().position(|running| running.id == id) else { return };
        let Running { mut session, generator, .. } = self.running.remove(at);
        match failure {
            None => {
                let generation = session.end(generator, now);
                self.pool.put(session);
                on_event(id, Event::Finished(generation));
            }
            Some(error) => {
                self.take_back(session, &error);
                on_event(id, Event::Failed(error));
            }
        }
    }
}

/// Runs the code of one generation; a panic becomes an error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    settled(catch_unwind(AssertUnwindSafe(work)))
}
