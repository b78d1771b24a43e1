//! `/v1/files`.

use std::{
    io::{self, Read},
    sync::Arc,
};

use axum::{
    Extension,
    body::Body,
    extract::{Path, Query, State, rejection::PathRejection},
    http::{Request, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::task::block_in_place;

use crate::{
    app::App,
    error::{ApiError, Result},
    http::upload::{self, Upload},
    ids::unique_id,
    json::{Fields, wrong},
    keys::Caller,
    model::now,
    openapi::{BodyKind, Routes},
    reply,
    storage::{
        Store,
        record::{FileRecord, MAX_LIFETIME},
        unwritten,
    },
};

/// Maximum length of a file name, in characters.
const MAX_NAME: usize = 255;

/// Allowed expiry times of a file in seconds: one hour to 30 days.
pub(super) const LIFETIMES: std::ops::RangeInclusive<u64> = 3600..=MAX_LIFETIME;

/// Read buffer size in bytes.
const BLOCK: usize = 64 << 10;

pub(super) type Id = Result<Path<String>, PathRejection>;

pub(super) fn read_id(id: Id) -> Result<String> {
    id.map(|Path(id)| id).map_err(|error| ApiError::value("id", error.body_text()))
}

impl App {
    /// The store of files and batches.
    ///
    /// # Errors
    /// Fails if the server has no store.
    pub(super) fn batches(&self) -> Result<&Arc<Store>> {
        let none = || ApiError::unavailable("no_files", "this server keeps no files and batches; its log says why");
        self.batches.as_ref().ok_or_else(none)
    }
}

/// Adds the file routes.
pub(crate) fn add(routes: Routes) -> Routes {
    routes
        .post("/v1/files", "Keeps a file of requests", BodyKind::Form, upload)
        .get("/v1/files", "The files", list)
        .get("/v1/files/{id}", "A file", get)
        .delete("/v1/files/{id}", "Forgets a file", delete)
        .get("/v1/files/{id}/content", "The contents of a file", content)
}

/// Requested page of a list.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Page {
    after: Option<String>,
    limit: Option<usize>,
    order: Option<String>,
    pub(super) purpose: Option<String>,
}

impl Page {
    /// Selects a page of a list, newest first by default.
    ///
    /// # Errors
    /// Fails if the page parameters are invalid.
    pub(super) fn cut(&self, mut oldest_first: Vec<Json>, most: usize) -> Result<Response> {
        match self.order.as_deref() {
            None | Some("desc") => oldest_first.reverse(),
            Some("asc") => {}
            Some(other) => return Err(wrong("order", "asc or desc", &other.into())),
        }
        let limit = self.limit.unwrap_or(most);
        if !(1..=most).contains(&limit) {
            return Err(wrong("limit", &format!("a whole number from 1 to {most}"), &limit.into()));
        }
        let mut list = oldest_first;
        if let Some(after) = &self.after {
            let found = list.iter().position(|entry| entry["id"] == *after.as_str());
            let at = found.ok_or_else(|| ApiError::value("after", format!("{after:?} is not in the list")))?;
            list.drain(..=at);
        }
        let has_more = list.len() > limit;
        list.truncate(limit);
        let [first, last] = [list.first(), list.last()].map(|entry| entry.map(|entry| entry["id"].clone()));
        Ok(reply::json(&json!({ "object": "list", "data": list, "first_id": first, "last_id": last, "has_more": has_more })))
    }
}

/// `POST /v1/files`: uploads a file.
async fn upload(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, request: Request<Body>) -> Result<Response> {
    let store = app.batches()?;
    let Upload { mut file, name, mut fields } = upload::read(request, &app.config, "file", store.config.file_bytes).await?;
    let purpose = fields.text("purpose")?.unwrap_or_default();
    if purpose != "batch" {
        return Err(wrong("purpose", "batch", &purpose.into()));
    }
    let created_at = now();
    let seconds = lifetime(&mut fields)?;
    fields.finish(&[])?;
    let name: String = name.unwrap_or_default().chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
    let record = FileRecord {
        id: unique_id("file-"),
        owner: caller.number(),
        bytes: file.metadata().map_err(unwritten)?.len(),
        created_at,
        filename: if name.is_empty() { "file.jsonl".to_owned() } else { name },
        purpose,
        expires_at: seconds.map(|seconds| created_at + seconds),
    };
    let kept = block_in_place(|| store.add_file(record, &mut file))?;
    Ok(reply::json(&kept.to_json()))
}

/// Seconds of `expires_after`. In a form, its parts are separate fields.
fn lifetime(fields: &mut Fields) -> Result<Option<u64>> {
    const SECONDS: &str = "expires_after[seconds]";
    const ANCHOR: &str = "expires_after[anchor]";
    let anchor = fields.text(ANCHOR)?;
    if let Some(other) = anchor.filter(|anchor| anchor != "created_at") {
        return Err(wrong(ANCHOR, "created_at", &other.into()));
    }
    let Some(text) = fields.text(SECONDS)? else { return Ok(None) };
    let seconds = text.parse().ok().filter(|seconds| LIFETIMES.contains(seconds));
    let expected = format!("a whole number from {} to {}", LIFETIMES.start(), LIFETIMES.end());
    seconds.map(Some).ok_or_else(|| wrong(SECONDS, &expected, &text.into()))
}

/// `GET /v1/files`: lists the caller's files.
async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, Query(page): Query<Page>) -> Result<Response> {
    let files = app.batches()?.files(caller);
    let wanted = files.iter().filter(|file| page.purpose.as_ref().is_none_or(|purpose| *purpose == file.purpose));
    page.cut(wanted.map(FileRecord::to_json).collect(), 10_000)
}

/// `GET /v1/files/ID`: returns a file's metadata.
async fn get(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Result<Response> {
    Ok(reply::json(&app.batches()?.file(caller, &read_id(id)?)?.to_json()))
}

/// `DELETE /v1/files/ID`: deletes a file.
async fn delete(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Result<Response> {
    let id = read_id(id)?;
    block_in_place(|| app.batches()?.delete_file(caller, &id))?;
    Ok(reply::json(&json!({ "id": id, "object": "file", "deleted": true })))
}

/// `GET /v1/files/ID/content`: returns a file's contents.
async fn content(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Result<Response> {
    let id = read_id(id)?;
    let store = app.batches()?;
    let record = store.file(caller, &id)?;
    let mut file = store.open_file(caller, &id)?;
    let body = blocks(move || {
        let mut block = vec![0; BLOCK];
        let count = file.read(&mut block)?;
        block.truncate(count);
        Ok(block)
    });
    let headers = [(header::CONTENT_TYPE, "application/jsonl".to_owned()), (header::CONTENT_LENGTH, record.bytes.to_string())];
    Ok((headers, body).into_response())
}

/// A body of blocks that are made one after another, until an empty one.
pub(super) fn blocks(next: impl FnMut() -> io::Result<Vec<u8>> + Send + 'static) -> Body {
    Body::from_stream(stream::unfold(next, |mut next| async move {
        let block = block_in_place(&mut next);
        let is_end = block.as_ref().is_ok_and(Vec::is_empty);
        (!is_end).then_some((block, next))
    }))
}
