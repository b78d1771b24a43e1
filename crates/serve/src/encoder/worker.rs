//! The thread that computes vectors, batching all waiting requests.

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use flambeau::{
    engine::Engine,
    runners::{
        Error as RunError,
        embed::{Classifier, Embedder, Prompts, Scoring, Tagger, Tagging, Tokens},
    },
    runtime::Program,
};
use tokio::sync::mpsc;

use crate::{
    error::{ApiError, Result},
    metrics::{Metrics, add, subtract},
};

/// Tokens per batch: some tens of milliseconds on a small model. New requests join between batches.
const TURN: usize = 4096;

/// A loaded program that computes one row of numbers per text.
enum Loaded {
    Encoder(Embedder),
    Classifier(Classifier),
    Tagger(Tagger),
}

impl Loaded {
    fn new(program: &Program, engine: &Arc<dyn Engine>) -> Result<Loaded, RunError> {
        Ok(match () {
            () if Classifier::is_in(program) => Loaded::Classifier(Classifier::load(program, engine)?),
            () if Tagger::is_in(program) => Loaded::Tagger(Tagger::load(program, engine)?),
            () => Loaded::Encoder(Embedder::load(program, engine)?),
        })
    }

    fn facts(&self) -> Facts {
        match self {
            Loaded::Encoder(encoder) => Facts {
                max_tokens: encoder.max_tokens(),
                dimension: encoder.dimension(),
                vocabulary: encoder.vocabulary(),
                prompts: encoder.prompts().clone(),
                ..Facts::default()
            },
            Loaded::Classifier(classifier) => Facts {
                max_tokens: classifier.scoring().max_tokens(),
                scoring: Some(classifier.scoring().clone()),
                ..Facts::default()
            },
            Loaded::Tagger(tagger) => {
                Facts { max_tokens: tagger.tagging().max_tokens(), tagging: Some(tagger.tagging().clone()), ..Facts::default() }
            }
        }
    }

    fn compute(&mut self, texts: &[&Tokens]) -> Result<Vec<Vec<f32>>, RunError> {
        match self {
            Loaded::Encoder(encoder) => encoder.embed_tasks(texts),
            Loaded::Classifier(classifier) => classifier.scores(texts),
            Loaded::Tagger(tagger) => tagger.scores(&texts.iter().map(|text| &text.ids[..]).collect::<Vec<_>>()),
        }
    }
}

/// Result of a request: one vector or list of scores per text.
pub(crate) type Vectors = Result<Vec<Vec<f32>>>;

struct Submission {
    texts: VecDeque<Tokens>,
    vectors: Vec<Vec<f32>>,
    done: mpsc::Sender<Vectors>,
    /// Permit, released with the response.
    _place: Box<dyn Any + Send>,
}

/// Limits and sizes of a model.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) max_tokens: usize,
    pub(crate) dimension: usize,
    pub(crate) vocabulary: usize,
    /// Named prompts, used as prefixes of texts.
    pub(crate) prompts: Prompts,
    /// Input and output of a classifier.
    pub(crate) scoring: Option<Scoring>,
    /// Input and output of a classifier of tokens.
    pub(crate) tagging: Option<Tagging>,
}

/// Handle of the thread. The thread ends when all handles are dropped.
#[derive(Clone, Debug)]
pub(crate) struct EncoderWorker {
    submissions: Sender<Submission>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) facts: Arc<Facts>,
}

impl EncoderWorker {
    /// Loads the model and starts the thread, which updates `metrics`.
    ///
    /// # Errors
    /// Fails if the program is neither a text encoder nor a classifier, or if a thread cannot
    /// start.
    pub(crate) fn start(
        name: &str,
        program: Program,
        engine: Arc<dyn Engine>,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<EncoderWorker> {
        let (submissions, taken) = channel();
        let loaded = Loaded::new(&program, &engine).map_err(std::io::Error::other)?;
        let facts = loaded.facts();
        let worker = EncoderThread { program, engine, waiting: VecDeque::new(), metrics: Arc::clone(&metrics) };
        thread::Builder::new().name(format!("serve {name}")).spawn(move || worker.work(loaded, &taken))?;
        Ok(EncoderWorker { submissions, metrics, facts: Arc::new(facts) })
    }

    /// Submits texts within the model's limit. The permit is held until the response.
    ///
    /// # Errors
    /// Fails if the worker has stopped.
    pub(crate) fn submit(&self, texts: Vec<Tokens>, place: impl Any + Send) -> Result<mpsc::Receiver<Vectors>> {
        let (done, received) = mpsc::channel(1);
        add(&self.metrics.requests, 1);
        add(&self.metrics.waiting, 1);
        let submission =
            Submission { vectors: Vec::with_capacity(texts.len()), texts: texts.into(), done, _place: Box::new(place) };
        self.submissions.send(submission).map_err(|_| ApiError::internal("the model's thread has ended"))?;
        Ok(received)
    }
}

/// State of the thread.
struct EncoderThread {
    program: Program,
    engine: Arc<dyn Engine>,
    waiting: VecDeque<Submission>,
    metrics: Arc<Metrics>,
}

impl EncoderThread {
    /// Runs until all senders are dropped.
    fn work(mut self, mut loaded: Loaded, submissions: &Receiver<Submission>) {
        loop {
            if self.waiting.is_empty() {
                match submissions.recv() {
                    Ok(submission) => self.waiting.push_back(submission),
                    Err(_) => return,
                }
            }
            self.waiting.extend(submissions.try_iter());
            self.drop_orphans();
            let turn = self.turn();
            let texts: Vec<&Tokens> = turn.iter().map(|(_, text)| text).collect();
            let result = catch_unwind(AssertUnwindSafe(|| loaded.compute(&texts))).unwrap_or_else(|_| {
                add(&self.metrics.panics, 1);
                Err(flambeau::runners::Error::Panicked { what: "while vectors were computed".into() })
            });
            match result {
                Ok(vectors) => {
                    for ((at, _), vector) in turn.iter().zip(vectors) {
                        self.waiting[*at].vectors.push(vector);
                    }
                    self.settle();
                }
                Err(error) => {
                    tracing::error!("vectors cannot be computed: {error}");
                    self.fail(&turn, &ApiError::internal("an internal error ended the request"));
                    // State after the error is not reused.
                    match Loaded::new(&self.program, &self.engine) {
                        Ok(fresh) => loaded = fresh,
                        Err(error) => return tracing::error!("the model cannot be loaded again: {error}"),
                    }
                }
            }
        }
    }

    /// Selects the next batch: texts with the index of their request. Waiting requests take turns
    /// until the batch has enough tokens.
    fn turn(&mut self) -> Vec<(usize, Tokens)> {
        let (mut turn, mut tokens) = (Vec::new(), 0);
        loop {
            let before = turn.len();
            for (at, submission) in self.waiting.iter_mut().enumerate() {
                if let Some(text) = submission.texts.pop_front_if(|text| tokens == 0 || tokens + text.ids.len() <= TURN) {
                    tokens += text.ids.len();
                    turn.push((at, text));
                }
            }
            if turn.len() == before {
                return turn;
            }
        }
    }

    /// Responds to requests whose texts are all computed.
    fn settle(&mut self) {
        let metrics = &self.metrics;
        self.waiting.retain_mut(|submission| {
            if submission.texts.is_empty() {
                subtract(&metrics.waiting, 1);
                // The client may have disconnected.
                let _ = submission.done.try_send(Ok(std::mem::take(&mut submission.vectors)));
            }
            !submission.texts.is_empty()
        });
    }

    /// Fails the requests of a batch.
    fn fail(&mut self, turn: &[(usize, Tokens)], error: &ApiError) {
        let mut at = 0;
        let metrics = &self.metrics;
        self.waiting.retain(|submission| {
            let took_part = turn.iter().any(|(place, _)| *place == at);
            at += 1;
            if took_part {
                subtract(&metrics.waiting, 1);
                add(&metrics.failed, 1);
                let _ = submission.done.try_send(Err(error.clone()));
            }
            !took_part
        });
    }

    fn drop_orphans(&mut self) {
        let metrics = &self.metrics;
        self.waiting.retain(|submission| {
            let is_gone = submission.done.is_closed();
            if is_gone {
                subtract(&metrics.waiting, 1);
                add(&metrics.cancelled, 1);
            }
            !is_gone
        });
    }
}
