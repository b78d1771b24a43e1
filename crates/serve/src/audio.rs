//! `/v1/audio/transcriptions` and `/v1/audio/translations`.

mod answer;
mod request;

use std::sync::Arc;

use axum::{body::Body, extract::State, http::Request, response::Response};
use flambeau::runners::speech::Task;

use self::request::TranscriptionRequest;
use crate::{
    app::App,
    error::Result,
    http::upload::{self, Upload},
    reply::{self, Progress},
    speech::{Source, SpeechUpdate},
    traces,
};

/// `POST /v1/audio/transcriptions`: transcribes in the spoken language.
pub(crate) async fn transcribe(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response> {
    answer(&app, request, Task::Transcribe).await
}

/// `POST /v1/audio/translations`: translates speech to English.
pub(crate) async fn translate(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response> {
    answer(&app, request, Task::Translate).await
}

async fn answer(app: &App, request: Request<Body>, task: Task) -> Result<Response> {
    let place = app.recording_permit()?;
    let read = upload::read(request, &app.config, "recording", app.config.upload_bytes);
    let Upload { file: recording, mut fields, .. } = read.await?;
    let model = app.models.find_speech(fields.text("model")?.as_deref()).await?;
    let TranscriptionRequest { settings, streams, answer } = TranscriptionRequest::read(fields, task)?;
    let span = traces::current();
    if let Some(span) = &span {
        span.ask(&model.name);
    }
    let mut progress: Progress<SpeechUpdate> =
        app.progress(model.worker.submit(Source::File(recording), settings, (place, span))?);
    // The first update tells whether the recording is readable and the settings are supported.
    if let SpeechUpdate::Failed(error) = progress.next().await? {
        return Err(error);
    }
    reply::respond(progress, answer, streams).await
}
