//! `/v1/audio/transcriptions` and `/v1/audio/translations`.

mod answer;
mod request;
mod worker;

use std::{any::Any, sync::Arc};

use axum::{body::Body, extract::State, http::Request, response::Response};
use flambeau::{
    engine::Engine,
    runners::speech::{Settings, Task},
    runtime::Program,
    text::Tokenizer,
};

pub(crate) use self::worker::{Heard, LiveSound, Source};
use tokio::sync::mpsc;

use self::{request::TranscriptionRequest, worker::SpeechWorker};
use crate::{
    app::App,
    error::Result,
    http::upload::{self, Upload},
    metrics::Metrics,
    reply::{self, Progress},
    traces,
};

/// A speech model to serve.
#[derive(Clone)]
pub struct NewSpeechModel {
    /// The model's public name.
    pub name: String,
    /// Aliases.
    pub aliases: Vec<String>,
    pub program: Program,
    pub engine: Arc<dyn Engine>,
    pub tokenizer: Tokenizer,
    /// Maximum number of concurrent transcriptions, at least 1. Each has its own copy of the
    /// model's state.
    pub running: usize,
    /// Maximum number of waiting recordings.
    pub waiting: usize,
}

impl std::fmt::Debug for NewSpeechModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSpeechModel").field("name", &self.name).field("running", &self.running).finish_non_exhaustive()
    }
}

/// A speech model with its worker threads.
#[derive(Debug)]
pub(crate) struct ServedSpeech {
    name: String,
    worker: SpeechWorker,
}

impl ServedSpeech {
    /// Loads the model and starts its threads, which update `metrics`.
    ///
    /// Fails as [`SpeechWorker::start`] does.
    pub(crate) fn start(new: NewSpeechModel, metrics: Arc<Metrics>) -> std::io::Result<ServedSpeech> {
        Ok(ServedSpeech { name: new.name.clone(), worker: SpeechWorker::start(new, metrics)? })
    }
}

impl ServedSpeech {
    /// Submits audio. The permit is held until transcription ends.
    ///
    /// # Errors
    /// Fails if the model's threads have ended.
    pub(crate) fn submit(&self, source: Source, settings: Settings, place: impl Any + Send) -> Result<mpsc::Receiver<Heard>> {
        self.worker.submit(source, settings, place)
    }
}

/// `POST /v1/audio/transcriptions`: transcribes in the spoken language.
pub(crate) async fn transcribe(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response> {
    answer(&app, request, Task::Transcribe).await
}

/// `POST /v1/audio/translations`: translates speech to English.
pub(crate) async fn translate(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response> {
    answer(&app, request, Task::Translate).await
}

async fn answer(app: &App, request: Request<Body>, task: Task) -> Result<Response> {
    let place = app.place_for_recording()?;
    let read = upload::read(request, &app.config, "recording", app.config.upload_bytes);
    let Upload { file: recording, mut fields, .. } = read.await?;
    let model = app.models.find_speech(fields.text("model")?.as_deref()).await?;
    let TranscriptionRequest { settings, streams, answer } = TranscriptionRequest::read(fields, task)?;
    let span = traces::current();
    if let Some(span) = &span {
        span.ask(&model.name);
    }
    let mut progress: Progress<Heard> = app.progress(model.worker.submit(Source::File(recording), settings, (place, span))?);
    // By then it is known whether the recording can be read and the model can do what is asked for.
    if let Heard::Failed(error) = progress.next().await? {
        return Err(error);
    }
    reply::respond(progress, answer, streams).await
}
