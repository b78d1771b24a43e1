//! Many generations on one model: which of them takes the next step, on which sequence, and what is refused at the door.

mod kept;
mod pool;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use flambeau_text::Tokenizer;

use self::pool::{Pool, WORTH_A_COPY};
use super::{
    disk::DiskCache,
    generate::{Generation, Request},
    generator::{Generator, Step},
    model::Model,
    prefix::common,
    session::Session,
};
use crate::{Error, Result, error::settled};

/// How much a [`Scheduler`] takes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most generations that take steps at the same time, at least 1.
    pub running: usize,
    /// Most sequences that are loaded, those included that keep the text of generations that have ended.
    pub sequences: usize,
    /// Most generations that wait for others to end.
    pub waiting: usize,
    /// Most tokens, of prompts and of texts at their longest, of all generations that run.
    pub tokens: usize,
    /// Most bytes of copies of texts that no sequence holds any more, which later prompts may begin with.
    pub kept_bytes: usize,
}

/// Names a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u64);

/// A generation to schedule. The request's prompt is the whole text from its beginning.
#[derive(Clone, Debug)]
pub struct Job {
    pub request: Request,
    /// Whether a sequence that holds the beginning of the prompt may be continued, rather than computing all of it.
    pub reuses: bool,
}

/// Event of a job. Each ends with [`Event::Finished`] or [`Event::Failed`], unless it is cancelled.
#[derive(Debug)]
pub enum Event {
    /// It has a sequence, which holds this many tokens of its prompt already.
    Started { cached: usize },
    /// It took a step.
    Stepped(Step),
    /// It is done.
    Finished(Generation),
    /// It cannot go on.
    Failed(Error),
}

/// What a [`Scheduler`] is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub running: usize,
    pub waiting: usize,
    /// Loaded sequences that no generation uses.
    pub idle: usize,
    /// Tokens that the generations that run may come to.
    pub tokens: usize,
    /// Bytes of copies of texts that no sequence holds any more.
    pub kept_bytes: usize,
}

struct Waiting {
    id: JobId,
    job: Job,
    /// Tokens that it may come to.
    tokens: usize,
}

struct Running {
    id: JobId,
    session: Session,
    generator: Generator,
    tokens: usize,
    /// When it last took a chunk of its prompt, in steps of the scheduler.
    read: u64,
}

/// Lets generations on one model take turns. It has no thread and no clock: its caller takes [steps](Self::step).
///
/// Jobs start in the order in which they came, but for those that wait until another one has read the beginning that they share. In a step every generation that has read its prompt takes a token, and one of
/// the others, in turn, takes a chunk of its prompt: so a long prompt delays tokens by a chunk at most. How prompts are cut does not depend
/// on who else is there.
pub struct Scheduler {
    model: Model,
    tokenizer: Tokenizer,
    limits: Limits,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    pool: Pool,
    next_id: u64,
    steps: u64,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("limits", &self.limits).field("load", &self.load()).finish_non_exhaustive()
    }
}

impl Scheduler {
    /// A scheduler without jobs.
    pub fn new(model: Model, tokenizer: Tokenizer, limits: Limits) -> Scheduler {
        let pool = Pool::new(model.clone(), limits.sequences.max(limits.running), limits.kept_bytes);
        Scheduler { model, tokenizer, limits, waiting: VecDeque::new(), running: Vec::new(), pool, next_id: 0, steps: 0 }
    }

    /// The same scheduler, which goes on from texts in a folder, and writes to it what else would be lost: what a sequence held that is given to another
    /// text, and what is there when it is told to [save](Self::save). All weights are read to tell the model from others.
    #[must_use]
    pub fn with_disk(mut self, disk: &DiskCache) -> Scheduler {
        self.pool.use_disk(disk);
        self
    }

    /// Writes the texts of sequences that no generation uses to the folder, and returns when the copies are made.
    pub fn save(&mut self) {
        self.pool.save();
    }

    /// The model that jobs run on.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Takes a job on.
    ///
    /// # Errors
    /// The prompt is empty or does not fit the context, the job alone takes more tokens than run at the same time, or too many wait.
    pub fn submit(&mut self, job: Job) -> Result<JobId> {
        let prompt = job.request.prompt.len();
        let context = self.model.context().unwrap_or(usize::MAX);
        match prompt {
            0 => return Err(Error::EmptyPrompt),
            _ if prompt > context => return Err(Error::PromptTooLong { prompt, context }),
            _ => {}
        }
        let tokens = prompt.saturating_add(job.request.max_new_tokens).min(context);
        if tokens > self.limits.tokens {
            return Err(Error::TooManyTokens { tokens, limit: self.limits.tokens });
        }
        // Those that start at the next step wait for nobody.
        let free = self.most_running().saturating_sub(self.running.len());
        if self.waiting.len() >= self.limits.waiting.saturating_add(free) {
            return Err(Error::Busy { waiting: self.waiting.len() });
        }
        let id = JobId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Waiting { id, job, tokens });
        Ok(id)
    }

    /// Drops a job. The sequence keeps its part of the prompt.
    pub fn cancel(&mut self, id: JobId) {
        self.waiting.retain(|waiting| waiting.id != id);
        if let Some(at) = self.running.iter().position(|running| running.id == id) {
            let Running { mut session, generator, .. } = self.running.remove(at);
            session.end(generator, &|| Duration::ZERO);
            self.pool.put(session);
        }
    }

    /// Current load.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            idle: self.pool.idle(),
            tokens: self.tokens(),
            kept_bytes: self.pool.kept_bytes(),
        }
    }

    /// Starts what there is room for, and takes a step; false if there was nothing to do. `now` is the time since any fixed moment.
    ///
    /// A generation that fails, or panics, ends; the others go on.
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
        while self.running.len() < self.most_running()
            && let Some(at) = self.waiting.iter().position(|next| !self.awaits(&next.job))
            && self.tokens().saturating_add(self.waiting[at].tokens) <= self.limits.tokens
            && let Some(Waiting { id, job, tokens }) = self.waiting.remove(at)
        {
            match self.begin(job, now) {
                Ok((session, generator)) => {
                    on_event(id, Event::Started { cached: session.cached().ids().len() });
                    self.running.push(Running { id, session, generator, tokens, read: self.steps });
                }
                Err(error) => on_event(id, Event::Failed(error)),
            }
        }
    }

    /// Begins a generation on a sequence that suits its prompt.
    fn begin(&mut self, job: Job, now: &dyn Fn() -> Duration) -> Result<(Session, Generator)> {
        let prompt = &job.request.prompt;
        let (busy, shared) = if job.reuses { self.busy(prompt) } else { (0, 0) };
        let mut session = self.pool.take(prompt, job.reuses, shared)?;
        if session.cached().reusable(prompt, self.model.can_truncate()) + WORTH_A_COPY <= shared
            && let Ok(Some(copy)) = self.running[busy].session.snapshot(shared)
        {
            // A copy that cannot be put back leaves an empty sequence, which computes the whole prompt.
            let _ = session.restore(&copy, &prompt[..shared]);
        }
        match guarded(|| session.begin(&self.tokenizer, job.request, now)) {
            Ok(generator) => Ok((session, generator)),
            Err(error) => {
                self.take_back(session, &error);
                Err(error)
            }
        }
    }

    /// Which of the generations that run has computed the most of a prompt, and how much of it can be copied: whole chunks, so that the
    /// rest is computed in the steps that it would take alone.
    fn busy(&self, prompt: &[u32]) -> (usize, usize) {
        if !self.can_fork() {
            return (0, 0);
        }
        let chunk = self.model.chunk();
        let shared = |running: &Running| {
            let held = running.session.sequence().position().min(prompt.len().saturating_sub(1));
            common(running.generator.history(), prompt).min(held) / chunk * chunk
        };
        let shared = self.running.iter().map(shared).enumerate();
        shared.max_by_key(|(_, shared)| *shared).unwrap_or_default()
    }

    fn can_fork(&self) -> bool {
        self.model.can_truncate() && self.model.can_snapshot() && self.limits.kept_bytes > 0
    }

    /// Whether a job had better wait until a generation that runs has read what their prompts share: in each step one of them reads, so
    /// that nobody gains by reading it twice.
    fn awaits(&self, job: &Job) -> bool {
        if !job.reuses || !self.can_fork() {
            return false;
        }
        let (prompt, chunk) = (&job.request.prompt, self.model.chunk());
        let coming = |running: &Running| {
            let most = prompt.len().saturating_sub(1);
            common(running.generator.history(), prompt).min(most) / chunk * chunk
        };
        let coming = self.running.iter().filter(|running| running.generator.is_reading()).map(coming).max().unwrap_or(0);
        coming > self.busy(prompt).1 && coming >= self.pool.reach(prompt) + WORTH_A_COPY
    }

    /// Keeps copies of a prompt that is being read, of a model whose states cannot go back to an earlier position: after 1, 2, 4, 8 … chunks,
    /// and at its end.
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

    /// Takes the sequence of a generation that failed back. State after a panic is not reused.
    fn take_back(&mut self, session: Session, error: &Error) {
        if matches!(error, Error::Panicked { .. }) {
            self.pool.lost();
        } else {
            self.pool.put(session);
        }
    }

    /// The generations that take part in this step, by ascending index: all that have read their prompts, and of the others that
    /// which has waited longest.
    fn choose(&self) -> Vec<usize> {
        let reading = |&i: &usize| self.running[i].generator.is_reading();
        let all = 0..self.running.len();
        let reader = all.clone().filter(reading).min_by_key(|&i| self.running[i].read);
        all.filter(|i| !reading(i) || Some(*i) == reader).collect()
    }

    /// One step of each of these, together where the engine can.
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
        // Finished jobs leave the list, which moves the others.
        for (id, step) in ids.into_iter().zip(done) {
            let step = settled(step);
            if step.is_ok() && reader == Some(id) && !self.model.can_truncate() && self.model.can_snapshot() {
                self.keep_beginning(id);
            }
            self.settle(id, step, now, on_event);
        }
    }

    fn settle(&mut self, id: JobId, step: Result<Step>, now: &dyn Fn() -> Duration, on_event: &mut dyn FnMut(JobId, Event)) {
        let ended = step.as_ref().map_or(true, |step| step.finish.is_some());
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

/// Runs a generation's own work; a panic is its error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    settled(catch_unwind(AssertUnwindSafe(work)))
}
