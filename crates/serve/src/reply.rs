//! Waits for jobs and writes single responses or event streams.

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

/// Maximum silence of a stream. Keep-alive events stop proxies from closing it.
const QUIET: Duration = Duration::from_secs(10);

/// Updates of a request, until its timeout or shutdown.
pub(crate) struct Progress<U> {
    pub(crate) updates: mpsc::Receiver<U>,
    pub(crate) deadline: Instant,
    /// True when requests must end.
    pub(crate) stop: watch::Receiver<bool>,
}

impl<U> Progress<U> {
    /// The next update.
    ///
    /// # Errors
    /// Fails if the request times out or the worker stops.
    pub(crate) async fn next(&mut self) -> Result<U> {
        let lost = || ApiError::internal("the work on the request ended without an answer");
        tokio::select! {
            update = self.updates.recv() => update.ok_or_else(lost),
            () = sleep_until(self.deadline) => Err(ApiError::unavailable("timeout", "the request took too long")),
            _ = self.stop.wait_for(|stop| *stop) => Err(ApiError::unavailable("shutting_down", "the server is stopping")),
        }
    }
}

/// Buffer of unsent server-sent events.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    text: String,
}

impl Frames {
    /// Appends an event without a name.
    pub(crate) fn data(&mut self, data: &Json) {
        self.text.push_str("data: ");
        self.text.push_str(&data.to_string());
        self.text.push_str("\n\n");
    }

    /// Appends a named event.
    pub(crate) fn event(&mut self, name: &str, data: &Json) {
        self.text.push_str("event: ");
        self.text.push_str(name);
        self.text.push('\n');
        self.data(data);
    }

    /// Appends a line to a stream of JSON lines.
    pub(crate) fn line(&mut self, data: &Json) {
        self.text.push_str(&data.to_string());
        self.text.push('\n');
    }

    /// Appends OpenAI's end-of-stream marker.
    pub(crate) fn done(&mut self) {
        self.text.push_str("data: [DONE]\n\n");
    }
}

/// Collects updates into one response.
pub(crate) trait ResponseBuilder {
    type Update;

    /// Applies an update; true if it is the last one.
    ///
    /// # Errors
    /// Fails if the work failed.
    fn take(&mut self, update: Self::Update) -> Result<bool>;

    /// Builds the response.
    fn into_response(self) -> Response;
}

/// Writes an endpoint's event stream.
pub(crate) trait Events: Send + 'static {
    type Update: Send;
    /// Collector for requests without a stream.
    type ResponseBuilder: ResponseBuilder<Update = Self::Update>;

    /// Content type of the stream.
    const CONTENT_TYPE: &'static str = "text/event-stream";

    /// Converts to an empty collector.
    fn builder(self) -> Self::ResponseBuilder;

    /// Writes the first events.
    fn begin(&mut self, frames: &mut Frames);

    /// Writes the events of an update; true if it is the last one.
    ///
    /// # Errors
    /// Fails if the work failed.
    fn update(&mut self, update: Self::Update, frames: &mut Frames) -> Result<bool>;

    /// Writes the end of a completed stream.
    fn end(&mut self, frames: &mut Frames);

    /// Writes the end of a failed stream.
    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.data(&error.to_json());
        frames.done();
    }

    /// Writes a keep-alive event.
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

/// Responds with an event stream or with a single body.
///
/// # Errors
/// For a single body: fails if the work fails, times out or is stopped by shutdown.
pub(crate) async fn respond<E: Events>(progress: Progress<E::Update>, answer: E, streams: bool) -> Result<Response> {
    if streams { Ok(stream(progress, answer)) } else { whole(progress, answer.builder()).await }
}

async fn whole<W: ResponseBuilder>(mut progress: Progress<W::Update>, mut whole: W) -> Result<Response> {
    loop {
        let update = progress.next().await?;
        if whole.take(update)? {
            return Ok(whole.into_response());
        }
    }
}

/// An event stream response. If the client disconnects, the stream is dropped, which cancels the
/// jobs.
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

/// A JSON response.
pub(crate) fn json(body: &Json) -> Response {
    json_text(body.to_string())
}

/// A response of serialized JSON.
pub(crate) fn json_text(body: String) -> Response {
    of_type("application/json", body)
}

/// A response of JSON lines.
pub(crate) fn lines(lines: &[Json]) -> Response {
    of_type("application/x-ndjson", lines.iter().map(|line| format!("{line}\n")).collect())
}

/// A plain text response.
pub(crate) fn text(body: String) -> Response {
    of_type("text/plain; charset=utf-8", body)
}

fn of_type(kind: &'static str, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
