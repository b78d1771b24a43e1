//! Threads that transcribe, one recording each at a time.

use std::{
    any::Any,
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use flambeau::{
    audio::Recording,
    engine::Engine,
    runners::speech::{Progress, SAMPLE_RATE, Segment, Settings, SpeechModel, Transcriber},
    runtime::Program,
    text::Tokenizer,
};
use tokio::sync::mpsc;

use super::NewSpeechModel;
use crate::{
    error::{ApiError, Result},
    http::upload::FILE,
    metrics::{Metrics, add, subtract},
};

/// Maximum number of unread results of a slow client: half a day of speech. A client further behind
/// is dropped.
const MAX_UNREAD: usize = 2048;

/// Updates that a request receives.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The recording can be read and the settings can be met; the first segments follow.
    Begun,
    Segments(Vec<Segment>),
    Finished {
        language: Option<String>,
        seconds: f64,
    },
    Failed(ApiError),
}

struct Submission {
    recording: File,
    settings: Settings,
    heard: mpsc::Sender<Heard>,
    /// Dropped when the recording is.
    _place: Box<dyn Any + Send>,
}

/// A handle of the threads, which end when all handles are gone.
#[derive(Clone, Debug)]
pub(crate) struct SpeechWorker {
    submissions: Sender<Submission>,
    pub(crate) metrics: Arc<Metrics>,
}

impl SpeechWorker {
    /// Loads the model for each thread, and starts them; they count on `metrics`.
    ///
    /// # Errors
    /// The program is no model of speech, or the system has no thread left.
    pub(crate) fn start(new: NewSpeechModel, metrics: Arc<Metrics>) -> std::io::Result<SpeechWorker> {
        let NewSpeechModel { name, program, engine, tokenizer, running, .. } = new;
        let (submissions, taken) = channel();
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..running.max(1) {
            let (program, engine) = (program.clone(), Arc::clone(&engine));
            let model = SpeechModel::load(&program, &engine).map_err(std::io::Error::other)?;
            let desk = Desk { program, engine, tokenizer: tokenizer.clone(), metrics: Arc::clone(&metrics) };
            let taken = Arc::clone(&taken);
            thread::Builder::new().name(format!("serve {name}")).spawn(move || desk.work(model, &taken))?;
        }
        Ok(SpeechWorker { submissions, metrics })
    }

    /// Submits a recording, which keeps its place until it is done.
    ///
    /// # Errors
    /// The worker has stopped.
    pub(crate) fn submit(&self, recording: File, settings: Settings, place: impl Any + Send) -> Result<mpsc::Receiver<Heard>> {
        let (heard, received) = mpsc::channel(MAX_UNREAD);
        add(&self.metrics.requests, 1);
        add(&self.metrics.waiting, 1);
        let submission = Submission { recording, settings, heard, _place: Box::new(place) };
        self.submissions.send(submission).map_err(|_| ApiError::internal("the model's threads have ended"))?;
        Ok(received)
    }
}

struct Desk {
    program: Program,
    engine: Arc<dyn Engine>,
    tokenizer: Tokenizer,
    metrics: Arc<Metrics>,
}

impl Desk {
    /// Works until all senders are dropped.
    fn work(&self, mut model: SpeechModel, submissions: &Mutex<Receiver<Submission>>) {
        let next = || submissions.lock().unwrap_or_else(PoisonError::into_inner).recv();
        while let Ok(submission) = next() {
            subtract(&self.metrics.waiting, 1);
            add(&self.metrics.running, 1);
            let heard = submission.heard.clone();
            let work = AssertUnwindSafe(|| self.transcribe(&mut model, submission));
            let result = catch_unwind(work).unwrap_or_else(|_| {
                add(&self.metrics.panics, 1);
                Err(ApiError::internal("an internal error ended the transcription"))
            });
            subtract(&self.metrics.running, 1);
            let Err(error) = result else { continue };
            add(&self.metrics.failed, 1);
            let is_ours = error.status.is_server_error();
            // Who asked may have gone.
            let _ = heard.try_send(Heard::Failed(error));
            // State after an internal error is not reused.
            if is_ours {
                match SpeechModel::load(&self.program, &self.engine) {
                    Ok(fresh) => model = fresh,
                    Err(error) => return tracing::error!("the model cannot be loaded again: {error}"),
                }
            }
        }
    }

    fn transcribe(&self, model: &mut SpeechModel, submission: Submission) -> Result<()> {
        let Submission { recording, settings, heard, _place } = submission;
        let unreadable = |error: flambeau::audio::Error| ApiError::value(FILE, error.to_string());
        let mut recording = Recording::from_file(recording, SAMPLE_RATE).map_err(unreadable)?;
        let mut transcriber = Transcriber::new(model, &self.tokenizer, settings)?;
        let tell = |news| heard.try_send(news).is_ok();
        let mut is_wanted = tell(Heard::Begun);
        while is_wanted {
            match transcriber.step()? {
                Progress::NeedsSamples => {
                    transcriber.feed(recording.next_block().map_err(unreadable)?);
                    is_wanted = !heard.is_closed();
                }
                Progress::Segments(segments) => is_wanted = tell(Heard::Segments(segments)),
                Progress::Finished => {
                    let (language, seconds) = (transcriber.language().map(str::to_owned), transcriber.seconds());
                    add(&self.metrics.audio_seconds, seconds as usize);
                    tell(Heard::Finished { language, seconds });
                    return Ok(());
                }
            }
        }
        add(&self.metrics.cancelled, 1);
        Ok(())
    }
}
