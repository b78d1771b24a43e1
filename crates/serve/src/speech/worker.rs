//! Worker threads; each transcribes one recording at a time.

use std::{
    any::Any,
    fs::File,
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use flambeau::{
    audio::{Pcm, Recording},
    engine::Engine,
    runners::speech::{Draft, Progress, SAMPLE_RATE, Segment, Settings, SpeechModel, Transcriber},
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

/// Maximum number of unread results of a slow client: half a day of speech. Slower clients are
/// dropped.
const MAX_UNREAD: usize = 2048;

/// Updates sent to a request.
#[derive(Debug)]
pub(crate) enum SpeechUpdate {
    /// The recording is readable and the settings are supported. Carries the first segments.
    Begun,
    Segments(Vec<Segment>),
    /// More final words of live audio.
    Words(String),
    Finished {
        language: Option<String>,
        seconds: f64,
    },
    Failed(ApiError),
}

/// Audio to transcribe.
pub(crate) enum Source {
    /// A recording.
    File(File),
    /// Live audio. Words are sent as they become final.
    Live(LiveSound),
}

/// Raw samples, read as they arrive.
pub(crate) struct LiveSound {
    pub(crate) bytes: Box<dyn Read + Send + Sync>,
    pub(crate) pcm: Pcm,
}

impl Source {
    fn open(self) -> Result<Recording, flambeau::audio::Error> {
        match self {
            Source::File(file) => Recording::from_file(file, SAMPLE_RATE),
            Source::Live(LiveSound { bytes, pcm }) => Recording::from_pcm(bytes, pcm, SAMPLE_RATE),
        }
    }
}

struct Submission {
    source: Source,
    settings: Settings,
    heard: mpsc::Sender<SpeechUpdate>,
    /// Permit, released with the recording.
    _place: Box<dyn Any + Send>,
}

/// Handle of the threads. They end when all handles are dropped.
#[derive(Clone, Debug)]
pub(crate) struct SpeechWorker {
    submissions: Sender<Submission>,
    pub(crate) metrics: Arc<Metrics>,
}

impl SpeechWorker {
    /// Loads the model for each thread and starts the threads, which update `metrics`.
    ///
    /// # Errors
    /// Fails if the program is not a speech model or a thread cannot start.
    pub(crate) fn start(new: NewSpeechModel, metrics: Arc<Metrics>) -> std::io::Result<SpeechWorker> {
        let NewSpeechModel { name, program, engine, tokenizer, running, .. } = new;
        let (submissions, taken) = channel();
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..running.max(1) {
            let (program, engine) = (program.clone(), Arc::clone(&engine));
            let model = SpeechModel::load(&program, &engine).map_err(std::io::Error::other)?;
            let worker = SpeechThread { program, engine, tokenizer: tokenizer.clone(), metrics: Arc::clone(&metrics) };
            let taken = Arc::clone(&taken);
            thread::Builder::new().name(format!("serve {name}")).spawn(move || worker.work(model, &taken))?;
        }
        Ok(SpeechWorker { submissions, metrics })
    }

    /// Submits audio. The permit is held until transcription ends.
    ///
    /// # Errors
    /// Fails if the worker has stopped.
    pub(crate) fn submit(
        &self,
        source: Source,
        settings: Settings,
        place: impl Any + Send,
    ) -> Result<mpsc::Receiver<SpeechUpdate>> {
        let (heard, received) = mpsc::channel(MAX_UNREAD);
        add(&self.metrics.requests, 1);
        add(&self.metrics.waiting, 1);
        let submission = Submission { source, settings, heard, _place: Box::new(place) };
        self.submissions.send(submission).map_err(|_| ApiError::internal("the model's threads have ended"))?;
        Ok(received)
    }
}

/// Starts a transcription. Models that need whole windows also process live audio window by window.
fn begin<'a>(model: &'a mut SpeechModel, tokenizer: &'a Tokenizer, settings: Settings) -> Result<Transcriber<'a>> {
    let live = settings.live.is_some() && model.hears_live();
    let settings = Settings { live: settings.live.filter(|_| live), ..settings };
    Ok(Transcriber::new(model, tokenizer, settings)?)
}

/// Finds new final words of live audio.
#[derive(Debug, Default)]
struct Words {
    /// Final words that no segment has yet.
    known: usize,
}

impl Words {
    fn take(&mut self, segments: &[Segment], draft: &Draft) -> String {
        let mut new = String::new();
        for segment in segments {
            match segment.words.get(self.known..) {
                Some(words) if !segment.words.is_empty() => words.iter().for_each(|word| new.push_str(&word.text)),
                _ => new.push_str(&segment.text),
            }
            self.known = 0;
        }
        draft.settled.iter().skip(self.known).for_each(|word| new.push_str(&word.text));
        self.known = draft.settled.len();
        new
    }
}

/// State of a thread.
struct SpeechThread {
    program: Program,
    engine: Arc<dyn Engine>,
    tokenizer: Tokenizer,
    metrics: Arc<Metrics>,
}

impl SpeechThread {
    /// Runs until all senders are dropped.
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
            // The client may have disconnected.
            let _ = heard.try_send(SpeechUpdate::Failed(error));
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
        let Submission { source, settings, heard, _place } = submission;
        let unreadable = |error: flambeau::audio::Error| ApiError::value(FILE, error.to_string());
        let mut words = matches!(source, Source::Live(_)).then(Words::default);
        let mut recording = source.open().map_err(unreadable)?;
        let mut transcriber = begin(model, &self.tokenizer, settings)?;
        let send = |update| heard.try_send(update).is_ok();
        let mut is_wanted = send(SpeechUpdate::Begun);
        while is_wanted {
            let progress = transcriber.step()?;
            let segments = if let Progress::Segments(segments) = &progress { segments.as_slice() } else { &[] };
            let new = words.as_mut().map(|words| words.take(segments, &transcriber.draft())).unwrap_or_default();
            if !new.is_empty() && !send(SpeechUpdate::Words(new)) {
                break;
            }
            match progress {
                Progress::NeedsSamples => {
                    transcriber.feed(recording.next_block().map_err(unreadable)?);
                    is_wanted = !heard.is_closed();
                }
                Progress::Segments(segments) => is_wanted = send(SpeechUpdate::Segments(segments)),
                Progress::Finished => {
                    let (language, seconds) = (transcriber.language().map(str::to_owned), transcriber.seconds());
                    add(&self.metrics.audio_seconds, seconds as usize);
                    send(SpeechUpdate::Finished { language, seconds });
                    return Ok(());
                }
            }
        }
        add(&self.metrics.cancelled, 1);
        Ok(())
    }
}
