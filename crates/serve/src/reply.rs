//! Waiting for jobs: whole answers, and streams of events.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value as Json;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout_at},
};

use crate::error::{ApiError, Result};

/// A stream is not silent for longer than this, so that proxies leave it open.
const QUIET: Duration = Duration::from_secs(10);

/// Updates of a request, until its timeout or shutdown.
pub(crate) struct Progress<U> {
    pub(crate) updates: mpsc::Receiver<U>,
    pub(crate) deadline: Instant,
    /// True when requests have to end.
    pub(crate) stop: watch::Receiver<bool>,
}

impl<U> Progress<U> {
    /// The next update.
    ///
    /// # Errors
    /// The request timed out, or the worker has stopped.
    pub(crate) async fn next(&mut self) -> Result<U> {
        let lost = || ApiError::internal("the work on the request ended without an answer");
        tokio::select! {
            update = self.updates.recv() => update.ok_or_else(lost),
            () = sleep_until(self.deadline) => Err(ApiError::unavailable("timeout", "the request took too long")),
            _ = self.stop.wait_for(|stop| *stop) => Err(ApiError::unavailable("shutting_down", "the server is stopping")),
        }
    }
}

/// Server-sent events that are not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    text: String,
}

impl Frames {
    /// An event of data alone.
    pub(crate) fn data(&mut self, data: &Json) {
        self.text.push_str("data: ");
        self.text.push_str(&data.to_string());
        self.text.push_str("\n\n");
    }

    /// An event with a name.
    pub(crate) fn event(&mut self, name: &str, data: &Json) {
        self.text.push_str("event: ");
        self.text.push_str(name);
        self.text.push('\n');
        self.data(data);
    }

    /// A line of JSON, in streams of such.
    pub(crate) fn line(&mut self, data: &Json) {
        self.text.push_str(&data.to_string());
        self.text.push('\n');
    }

    /// OpenAI's end of a stream.
    pub(crate) fn done(&mut self) {
        self.text.push_str("data: [DONE]\n\n");
    }
}

/// A response that is put together from all updates.
pub(crate) trait Whole {
    type Update;

    /// Takes an update; true if nothing more is to come.
    ///
    /// # Errors
    /// The work failed.
    fn take(&mut self, update: Self::Update) -> Result<bool>;

    /// The response.
    fn into_response(self) -> Response;
}

/// How an endpoint writes its stream.
pub(crate) trait Events: Send + 'static {
    type Update: Send;
    /// How it answers without a stream.
    type Whole: Whole<Update = Self::Update>;

    /// Type of the stream.
    const CONTENT_TYPE: &'static str = "text/event-stream";

    /// An empty answer without a stream.
    fn whole(self) -> Self::Whole;

    /// Writes the first events.
    fn begin(&mut self, frames: &mut Frames);

    /// Writes what an update says; true if nothing more is to come.
    ///
    /// # Errors
    /// The work failed.
    fn update(&mut self, update: Self::Update, frames: &mut Frames) -> Result<bool>;

    /// The end, after all updates.
    fn end(&mut self, frames: &mut Frames);

    /// The end, because of an error.
    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.data(&error.to_json());
        frames.done();
    }

    /// Writes something without a meaning, after some time without an update.
    fn idle(&self, frames: &mut Frames) {
        frames.text.push_str(": still working\n\n");
    }
}

struct Running<E: Events> {
    progress: Progress<E::Update>,
    events: E,
    has_begun: bool,
    is_over: bool,
}

impl<E: Events> Running<E> {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let mut frames = Frames::default();
        if !self.has_begun {
            self.has_begun = true;
            self.events.begin(&mut frames);
        }
        while frames.text.is_empty() {
            let Ok(next) = timeout_at(Instant::now() + QUIET, self.progress.next()).await else {
                self.events.idle(&mut frames);
                break;
            };
            match next.and_then(|update| self.events.update(update, &mut frames)) {
                Ok(false) => {}
                Ok(true) => {
                    self.is_over = true;
                    self.events.end(&mut frames);
                    break;
                }
                Err(error) => {
                    self.is_over = true;
                    self.events.fail(&error, &mut frames);
                }
            }
        }
        Some(frames.text.into())
    }
}

/// The response to a request: a stream of events, or one that comes when all is done.
///
/// # Errors
/// For a response without a stream: the work failed, timed out, or was stopped by shutdown.
pub(crate) async fn respond<E: Events>(progress: Progress<E::Update>, answer: E, streams: bool) -> Result<Response> {
    if streams { Ok(stream(progress, answer)) } else { whole(progress, answer.whole()).await }
}

async fn whole<W: Whole>(mut progress: Progress<W::Update>, mut whole: W) -> Result<Response> {
    loop {
        let update = progress.next().await?;
        if whole.take(update)? {
            return Ok(whole.into_response());
        }
    }
}

/// A response that streams events. When its client goes away it is dropped, and the jobs with it.
fn stream<E: Events>(progress: Progress<E::Update>, events: E) -> Response {
    let running = Running { progress, events, has_begun: false, is_over: false };
    let frames = stream::unfold(running, |mut running| async move {
        let frames = running.next().await?;
        Some((Ok::<_, std::convert::Infallible>(frames), running))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(E::CONTENT_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies of nginx's kind would collect events otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A response that is JSON.
pub(crate) fn json(body: &Json) -> Response {
    json_text(body.to_string())
}

/// A response of JSON that is written already.
pub(crate) fn json_text(body: String) -> Response {
    of_type("application/json", body)
}

/// A response of lines of JSON.
pub(crate) fn lines(lines: &[Json]) -> Response {
    of_type("application/x-ndjson", lines.iter().map(|line| format!("{line}\n")).collect())
}

/// A response that is text.
pub(crate) fn text(body: String) -> Response {
    of_type("text/plain; charset=utf-8", body)
}

fn of_type(kind: &'static str, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
