//! Sends a batch request to this server's own routes.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{Request, header},
};
use http_body_util::BodyExt;
use serde_json::Value as Json;
use tokio::time::sleep;
use tower::ServiceExt;

use super::line::{Line, Outcome};
use crate::{app::App, ids::unique_id, keys::Caller, traces};

/// First and longest delay before a retry.
const WAITS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// Maximum number of attempts if a request fails for another reason than load.
const MAX_TRIES: usize = 3;

/// Response to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) request_id: String,
    pub(crate) body: Json,
}

/// Sends the requests of a batch to the server's routes as a caller.
#[derive(Clone)]
pub(crate) struct BatchClient {
    pub(crate) app: Arc<App>,
    pub(crate) routes: Router,
    pub(crate) caller: Caller,
}

impl BatchClient {
    /// Sends a request and retries it until the server has capacity. `None` if the server stops.
    pub(crate) async fn ask(&self, line: &Line) -> Option<Outcome> {
        let body = Bytes::from(Json::Object(line.body.clone()).to_string());
        let [mut wait, longest] = WAITS;
        let mut tries = 0;
        loop {
            while let Err((_, wait)) = self.app.rates.enter(self.caller) {
                sleep(wait.clamp(WAITS[0], WAITS[1])).await;
            }
            let answer = self.once(line.url, body.clone()).await;
            if *self.app.stop.borrow() {
                return None;
            }
            match answer.status {
                429 => {}
                503 if tries < MAX_TRIES => tries += 1,
                _ => return Some(Outcome::Answered(answer)),
            }
            sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    }

    async fn once(&self, url: &str, body: Bytes) -> Answer {
        let request_id = unique_id("req_");
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = axum::http::Method::POST;
        request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        request.extensions_mut().insert(self.caller);
        let failed = |status, message: &str| (status, serde_json::json!({ "error": { "message": message } }));
        let (status, body) = match url.parse() {
            Ok(uri) => {
                *request.uri_mut() = uri;
                let traces = self.app.traces.as_ref();
                let span = traces.and_then(|traces| traces.begin(request.method(), url, request.headers()));
                let response =
                    traces::within(span.clone(), self.routes.clone().oneshot(request)).await.unwrap_or_else(|never| match never {});
                if let Some(span) = span {
                    span.respond(response.status());
                }
                let status = response.status().as_u16();
                match response.into_body().collect().await {
                    Ok(whole) => (status, serde_json::from_slice(&whole.to_bytes()).unwrap_or_default()),
                    Err(_) => failed(500, "the answer breaks off"),
                }
            }
            Err(_) => failed(404, "there is no such path"),
        };
        Answer { status, request_id, body }
    }
}
