//! `/v1/messages/batches`: batches in Anthropic's format, whose requests are in the body.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader, Write},
    sync::Arc,
    time::Duration,
};

use axum::{
    Extension,
    body::Body,
    extract::{Query, State},
    http::{HeaderMap, Request, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tokio::task::block_in_place;

use super::{
    MAX_LINES,
    files::{Id, blocks, read_id},
    line::refuse_stream,
    validate::Lines,
};
use crate::{
    anthropic,
    app::App,
    error::{ApiError, Result},
    http::body,
    ids::unique_id,
    json::{Fields, wrong},
    keys::Caller,
    model::now,
    openapi::{BodyKind, Routes},
    reply,
    storage::{
        MESSAGES_PREFIX, Store,
        record::{BatchRecord, FileRecord, MAX_LIFETIME, Status, Sums, WINDOW},
        unwritten,
    },
    time::rfc3339,
};

/// Path of the requests in these batches.
const ENDPOINT: &str = "/v1/messages";
/// Maximum length of a request's `custom_id`.
const MAX_NAME: usize = 64;
/// Minimum size in bytes of a block of results, except the last one.
const BLOCK: usize = 64 << 10;

/// Adds the routes of these batches.
pub(crate) fn add(routes: Routes) -> Routes {
    routes
        .post("/v1/messages/batches", "Runs requests in the background", BodyKind::Object(&["requests"]), create)
        .get("/v1/messages/batches", "The batches of messages", list)
        .get("/v1/messages/batches/{id}", "A batch of messages", get)
        .delete("/v1/messages/batches/{id}", "Deletes a batch of messages that has ended", delete)
        .post("/v1/messages/batches/{id}/cancel", "Ends a batch of messages early", BodyKind::None, cancel)
        .get("/v1/messages/batches/{id}/results", "The results of a batch of messages", results)
}

/// `POST /v1/messages/batches`: starts a batch.
async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    request: Request<Body>,
) -> Response {
    let made = async {
        let store = Arc::clone(app.batches()?);
        let mut fields = app.parse(body::read(request, &app.config).await?).await?;
        let batch = app.offload(move || begin(&store, caller, &mut fields)).await?;
        Result::<Response>::Ok(reply::json(&to_json(&batch, &headers)))
    };
    made.await.unwrap_or_else(anthropic::refuse)
}

/// Writes the requests to a file and starts a batch with it.
fn begin(store: &Store, caller: Caller, fields: &mut Fields) -> Result<BatchRecord> {
    let requests = fields.list("requests")?.ok_or_else(|| ApiError::value("requests", "`requests` is missing"))?;
    if requests.is_empty() || requests.len() > MAX_LINES {
        return Err(ApiError::value("requests", format!("a batch has 1 to {MAX_LINES} requests, found {}", requests.len())));
    }
    let total = requests.len();
    let mut names = BTreeSet::new();
    let mut lines = tempfile::tempfile().map_err(unwritten)?;
    let mut writer = io::BufWriter::new(&mut lines);
    for (number, request) in requests.into_iter().enumerate() {
        let inside = |error: ApiError| error.inside(&format!("requests.{number}"));
        let (name, params) = read_request(request).map_err(inside)?;
        let line = json!({ "custom_id": name, "method": "POST", "url": ENDPOINT, "body": params });
        writeln!(writer, "{line}").map_err(unwritten)?;
        if let Some(twice) = names.replace(name) {
            return Err(inside(ApiError::value("custom_id", format!("two requests have the `custom_id` {twice:?}"))));
        }
    }
    writer.flush().map_err(unwritten)?;
    drop(writer);
    let created_at = now();
    let file = FileRecord {
        id: unique_id("file-"),
        owner: caller.number(),
        bytes: lines.metadata().map_err(unwritten)?.len(),
        created_at,
        filename: "requests.jsonl".to_owned(),
        purpose: "batch".to_owned(),
        // The results expire earlier.
        expires_at: Some(created_at + WINDOW.1 + MAX_LIFETIME),
    };
    let input = store.add_file(file, &mut lines)?.id;
    let batch = BatchRecord::new(MESSAGES_PREFIX, caller, ENDPOINT.to_owned(), input.clone());
    let batch = BatchRecord { sums: Sums::of(total), ..batch };
    store.add_batch(batch).inspect_err(|_| {
        // An error means that the file is already deleted.
        let _ = store.delete_file(caller, &input);
    })
}

/// The `custom_id` and the parameters of a request.
fn read_request(request: Json) -> Result<(String, Map<String, Json>)> {
    let Json::Object(map) = request else { return Err(wrong("request", "an object", &request)) };
    let mut fields = Fields::of(map);
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name = fields.text("custom_id")?.filter(|name| (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_part));
    let expected = format!("each request needs a `custom_id` of 1 to {MAX_NAME} letters, digits, _ and -");
    let name = name.ok_or_else(|| ApiError::value("custom_id", expected))?;
    let params = fields.object("params")?.ok_or_else(|| ApiError::value("params", "`params` is missing"))?;
    refuse_stream(&params).map_err(|error| error.inside("params"))?;
    fields.finish(&[])?;
    Ok((name, params))
}

/// Requested page of the list.
#[derive(Debug, Default, Deserialize)]
struct Page {
    after_id: Option<String>,
    before_id: Option<String>,
    limit: Option<usize>,
}

/// `GET /v1/messages/batches`: lists the caller's batches, latest first.
async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(page): Query<Page>,
    headers: HeaderMap,
) -> Response {
    let cut = || -> Result<Response> {
        let batches = app.batches()?.batches(caller);
        let own = batches.iter().rev().filter(|batch| batch.is_of_messages());
        let mut list: Vec<Json> = own.map(|batch| to_json(batch, &headers)).collect();
        let find = |list: &[Json], name: &str, id: &str| {
            let at = list.iter().position(|entry| entry["id"] == *id);
            at.ok_or_else(|| ApiError::value(name, format!("{id:?} is not in the list")))
        };
        let limit = page.limit.unwrap_or(20);
        if !(1..=1000).contains(&limit) {
            return Err(wrong("limit", "a whole number from 1 to 1000", &limit.into()));
        }
        let mut has_more = false;
        if let Some(before) = &page.before_id {
            list.truncate(find(&list, "before_id", before)?);
            has_more = list.len() > limit;
            list.drain(..list.len().saturating_sub(limit));
        }
        if let Some(after) = &page.after_id {
            let at = find(&list, "after_id", after)?;
            list.drain(..=at);
        }
        has_more |= list.len() > limit;
        list.truncate(limit);
        let [first, last] = [list.first(), list.last()].map(|entry| entry.map(|entry| entry["id"].clone()));
        Ok(reply::json(&json!({ "data": list, "has_more": has_more, "first_id": first, "last_id": last })))
    };
    cut().unwrap_or_else(anthropic::refuse)
}

/// The caller's batch with this ID.
fn find(app: &App, caller: Caller, id: Id) -> Result<BatchRecord> {
    let id = read_id(id)?;
    let batch = app.batches()?.batch(caller, &id)?;
    if batch.is_of_messages() { Ok(batch) } else { Err(ApiError::missing(format!("the batch {id:?} does not exist"))) }
}

/// `GET /v1/messages/batches/ID`: returns a batch.
async fn get(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id, headers: HeaderMap) -> Response {
    let found = find(&app, caller, id).map(|batch| reply::json(&to_json(&batch, &headers)));
    found.unwrap_or_else(anthropic::refuse)
}

/// `POST /v1/messages/batches/ID/cancel`: cancels a batch. Existing results are kept.
async fn cancel(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id, headers: HeaderMap) -> Response {
    let cancelled = find(&app, caller, id).and_then(|batch| block_in_place(|| app.batches()?.cancel(caller, &batch.id)));
    cancelled.map(|batch| reply::json(&to_json(&batch, &headers))).unwrap_or_else(anthropic::refuse)
}

/// `DELETE /v1/messages/batches/ID`: deletes a batch that has ended, with its results.
async fn delete(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Response {
    let forget = |batch: BatchRecord| -> Result<Response> {
        block_in_place(|| app.batches()?.delete_batch(caller, &batch.id))?;
        Ok(reply::json(&json!({ "id": batch.id, "type": "message_batch_deleted" })))
    };
    find(&app, caller, id).and_then(forget).unwrap_or_else(anthropic::refuse)
}

/// `GET /v1/messages/batches/ID/results`: returns a line of JSON for each request.
async fn results(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Response {
    let open = |batch: BatchRecord| {
        if !batch.status.is_final() {
            return Err(ApiError::invalid(format!("the batch {:?} has not ended, and has no results yet", batch.id)));
        }
        block_in_place(|| Results::open(app.batches()?, caller, &batch))
    };
    let jsonl = [(header::CONTENT_TYPE, "application/x-jsonl")];
    let answer = |mut results: Results| (jsonl, blocks(move || results.block())).into_response();
    find(&app, caller, id).and_then(open).map_or_else(anthropic::refuse, answer)
}

/// Reads the results of an ended batch: successes, failures, and a result for each request that did
/// not run.
struct Results {
    /// Output files, which are read from the last one on.
    outputs: Vec<BufReader<File>>,
    /// The requests, if some of them did not run.
    input: Option<Lines<File>>,
    /// IDs of the requests that ran.
    done: BTreeSet<String>,
    /// Result of a request that did not run.
    rest: Json,
}

impl Results {
    fn open(store: &Store, caller: Caller, batch: &BatchRecord) -> Result<Results> {
        let outputs = [(batch.has_failures, &batch.error_id), (batch.has_output, &batch.output_id)];
        let opened = outputs.iter().filter(|(has, _)| *has).map(|(_, id)| store.open_file(caller, id).map(BufReader::new));
        let rest = match batch.status {
            Status::Cancelled => json!({ "type": "canceled" }),
            Status::Expired => json!({ "type": "expired" }),
            _ => {
                let message = batch.errors.first().map_or("the request did not run", |error| error.message.as_str());
                json!({ "type": "errored", "error": { "type": "error", "error": { "type": "api_error", "message": message } } })
            }
        };
        let Sums { total, completed, failed, .. } = batch.sums;
        let input = match completed + failed < total {
            true => Some(Lines::new(store.open_file(caller, &batch.input_file_id)?, usize::MAX >> 1)),
            false => None,
        };
        Ok(Results { outputs: opened.collect::<Result<_>>()?, input, done: BTreeSet::new(), rest })
    }

    /// The next lines. Empty at the end.
    fn block(&mut self) -> io::Result<Vec<u8>> {
        let mut block = Vec::new();
        while block.len() < BLOCK {
            let Some((name, result)) = self.next()? else { break };
            writeln!(block, "{}", json!({ "custom_id": name, "result": result }))?;
        }
        Ok(block)
    }

    /// The ID and the result of the next request.
    fn next(&mut self) -> io::Result<Option<(Json, Json)>> {
        while let Some(output) = self.outputs.last_mut() {
            let mut line = Vec::new();
            if output.read_until(b'\n', &mut line)? == 0 {
                self.outputs.pop();
                continue;
            }
            let mut written: Json = serde_json::from_slice(&line)?;
            self.done.extend(written["custom_id"].as_str().map(str::to_owned));
            let name = written["custom_id"].take();
            return Ok(Some((name, result(written))));
        }
        let Some(input) = &mut self.input else { return Ok(None) };
        while let Some((_, line)) = input.next()? {
            let request: Json = serde_json::from_slice(&line)?;
            if let Some(name) = request["custom_id"].as_str().filter(|name| !self.done.contains(*name)) {
                return Ok(Some((name.into(), self.rest.clone())));
            }
        }
        Ok(None)
    }
}

/// Converts a line of an output file to Anthropic's result.
fn result(mut written: Json) -> Json {
    let response = &mut written["response"];
    let body = response["body"].take();
    match response["status_code"].as_u64() {
        Some(200..300) => json!({ "type": "succeeded", "message": body }),
        Some(_) => json!({ "type": "errored", "error": body }),
        None => json!({ "type": "expired" }),
    }
}

/// The batch in Anthropic's format.
fn to_json(batch: &BatchRecord, headers: &HeaderMap) -> Json {
    let time = |seconds: Option<u64>| seconds.map(|seconds| rfc3339(Duration::from_secs(seconds)));
    let times = &batch.times;
    let status = match batch.status {
        status if status.is_final() => "ended",
        Status::Cancelling => "canceling",
        _ => "in_progress",
    };
    let Sums { total, completed, failed, expired, .. } = batch.sums;
    let left = total.saturating_sub(completed + failed);
    let only = |found: bool| if found { left } else { 0 };
    let counts = json!({
        "processing": only(!batch.status.is_final()),
        "succeeded": completed,
        "errored": failed.saturating_sub(expired) + only(batch.status == Status::Failed),
        "canceled": only(batch.status == Status::Cancelled),
        "expired": expired + only(batch.status == Status::Expired),
    });
    let ended = times.completed_at.or(times.failed_at).or(times.expired_at).or(times.cancelled_at);
    let given = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let (scheme, host) = (given("x-forwarded-proto").unwrap_or("http"), given("host").unwrap_or("localhost"));
    let url = batch.status.is_final().then(|| format!("{scheme}://{host}/v1/messages/batches/{}/results", batch.id));
    json!({
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": counts,
        "created_at": time(Some(batch.created_at)),
        "expires_at": time(Some(batch.expires_at)),
        "cancel_initiated_at": time(times.cancelling_at),
        "ended_at": time(ended),
        "archived_at": null,
        "results_url": url,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::BatchConfig;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let config = BatchConfig { folder: folder.path().to_owned(), bytes: 1 << 20, file_bytes: 1 << 20, at_once: 1 };
        let store = Store::open(config).unwrap();
        (folder, store)
    }

    fn begun(store: &Store, caller: Caller) -> Result<BatchRecord> {
        let body = json!({ "requests": [{ "custom_id": "a", "params": {} }, { "custom_id": "b", "params": {} }] });
        begin(store, caller, &mut Fields::parse(body.to_string().as_bytes())?)
    }

    #[test]
    fn inputs_are_deleted_after_their_batch() {
        let (_folder, store) = store();
        let caller = Caller::of(1);
        let first = begun(&store, caller).unwrap();
        let ends = store.file(caller, &first.input_file_id).unwrap().expires_at;
        assert!(ends.is_some_and(|end| end >= first.expires_at), "inputs are swept after their batch: {ends:?}");
        let count = (1..).find(|_| begun(&store, caller).is_err()).unwrap();
        assert_eq!(store.files(caller).len(), count, "a batch that is refused leaves no file");
    }

    #[test]
    fn inputs_that_another_batch_reads_stay() {
        let (_folder, store) = store();
        let caller = Caller::of(1);
        let first = begun(&store, caller).unwrap();
        let other = BatchRecord { id: "batch_other".to_owned(), ..first.clone() };
        store.add_batch(other.clone()).unwrap();
        let end = |batch: &BatchRecord| store.change(&batch.id, |batch| batch.enter(Status::Completed, now())).unwrap();
        end(&first);
        store.delete_batch(caller, &first.id).unwrap();
        assert!(store.open_file(caller, &first.input_file_id).is_ok());
        end(&other);
        store.delete_batch(caller, &other.id).unwrap();
        assert!(store.files(caller).is_empty());
    }

    #[test]
    fn only_results_of_requests_that_did_not_run_need_the_input() {
        let (_folder, store) = store();
        let caller = Caller::of(1);
        let batch = begun(&store, caller).unwrap();
        let lines = [("a", json!({ "status_code": 200, "body": {} })), ("b", json!({ "status_code": 400, "body": {} }))];
        for (id, (name, response)) in [&batch.output_id, &batch.error_id].into_iter().zip(lines) {
            let mut file = store.open_output(id).unwrap();
            writeln!(file, "{}", json!({ "custom_id": name, "response": response })).unwrap();
            assert!(store.finish_output(&batch, id, "out.jsonl".to_owned()).unwrap());
        }
        let ended = |completed: usize| {
            let change = |batch: &mut BatchRecord| {
                (batch.has_output, batch.has_failures) = (true, true);
                (batch.sums.completed, batch.sums.failed) = (completed, 1);
                batch.enter(Status::Completed, now());
            };
            store.change(&batch.id, change).unwrap()
        };
        let (partly, whole) = (ended(0), ended(1));
        assert!(Results::open(&store, caller, &partly).is_ok());
        store.delete_file(caller, &batch.input_file_id).unwrap();
        let text = Results::open(&store, caller, &whole).unwrap().block().unwrap();
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 2);
        assert!(Results::open(&store, caller, &partly).is_err());
    }
}
