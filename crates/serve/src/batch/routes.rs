//! `/v1/batches`.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Query, State},
    http::Request,
    response::Response,
};
use serde_json::{Map, Value as Json};
use tokio::task::block_in_place;

use super::{
    ENDPOINTS,
    files::{Id, LIFETIMES, Page, read_id},
};
use crate::{
    app::App,
    error::{ApiError, Result},
    http::body,
    json::{Fields, wrong},
    keys::Caller,
    openapi::{BodyKind, Routes},
    reply,
    storage::{
        BATCH_PREFIX,
        record::{BatchRecord, WINDOW},
    },
};

/// Maximum number of metadata pairs, and maximum lengths of keys and values in characters.
const MAX_METADATA: (usize, usize, usize) = (16, 64, 512);

/// Adds the batch routes.
pub(crate) fn add(routes: Routes) -> Routes {
    let fields = BodyKind::Object(&["input_file_id", "endpoint", "completion_window"]);
    routes
        .post("/v1/batches", "Runs the requests of a file", fields, create)
        .get("/v1/batches", "The batches", list)
        .get("/v1/batches/{id}", "A batch", get)
        .post("/v1/batches/{id}/cancel", "Ends a batch early", BodyKind::None, cancel)
}

/// `POST /v1/batches`: starts a batch.
async fn create(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, request: Request<Body>) -> Result<Response> {
    let store = app.batches()?;
    let mut fields = app.parse(body::read(request, &app.config).await?).await?;
    let missing = |name: &str| ApiError::value(name, format!("`{name}` is missing"));
    let input_file_id = fields.text("input_file_id")?.ok_or_else(|| missing("input_file_id"))?;
    let endpoint = fields.text("endpoint")?.ok_or_else(|| missing("endpoint"))?;
    if !ENDPOINTS.contains(&endpoint.as_str()) {
        return Err(wrong("endpoint", &format!("one of {}", ENDPOINTS.join(", ")), &endpoint.into()));
    }
    let completion_window = fields.text("completion_window")?.ok_or_else(|| missing("completion_window"))?;
    if completion_window != WINDOW.0 {
        return Err(wrong("completion_window", WINDOW.0, &completion_window.into()));
    }
    let metadata = metadata(&mut fields)?;
    let output_seconds = output_seconds(&mut fields)?;
    fields.finish(&[])?;
    let input = store.file(caller, &input_file_id)?;
    if input.purpose != "batch" {
        return Err(ApiError::value("input_file_id", format!("the file {input_file_id:?} has the purpose {:?}", input.purpose)));
    }
    let batch = BatchRecord::new(BATCH_PREFIX, caller, endpoint, input_file_id);
    let batch = BatchRecord { metadata, output_seconds, ..batch };
    let kept = block_in_place(|| store.add_batch(batch))?;
    Ok(reply::json(&kept.to_json()))
}

fn metadata(fields: &mut Fields) -> Result<Map<String, Json>> {
    let (pairs, key_length, value_length) = MAX_METADATA;
    let metadata = fields.object("metadata")?.unwrap_or_default();
    let fits = |(key, value): (&String, &Json)| {
        let value = value.as_str();
        key.chars().count() <= key_length && value.is_some_and(|value| value.chars().count() <= value_length)
    };
    if metadata.len() > pairs || !metadata.iter().all(fits) {
        let expected = format!("at most {pairs} texts of up to {value_length} characters, with keys of up to {key_length}");
        return Err(wrong("metadata", &expected, &Json::Object(metadata)));
    }
    Ok(metadata)
}

/// Expiry time of output files: 30 days by default.
fn output_seconds(fields: &mut Fields) -> Result<u64> {
    const NAME: &str = "output_expires_after";
    let Some(given) = fields.object(NAME)? else { return Ok(*LIFETIMES.end()) };
    let mut fields = Fields::of(given);
    let inside = |error: ApiError| error.inside(NAME);
    match fields.text("anchor").map_err(inside)?.as_deref() {
        Some("created_at") => {}
        other => return Err(wrong("anchor", "created_at", &other.into()).inside(NAME)),
    }
    let seconds = fields.count("seconds", LIFETIMES).map_err(inside)?;
    fields.finish(&[]).map_err(inside)?;
    Ok(seconds.map_or(*LIFETIMES.end(), |seconds| seconds as u64))
}

/// `GET /v1/batches`: lists the caller's batches.
async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, Query(page): Query<Page>) -> Result<Response> {
    let batches = app.batches()?.batches(caller);
    let own = batches.iter().filter(|batch| !batch.is_of_messages());
    page.cut(own.map(BatchRecord::to_json).collect(), 100)
}

/// `GET /v1/batches/ID`: returns a batch.
async fn get(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Result<Response> {
    Ok(reply::json(&app.batches()?.batch(caller, &read_id(id)?)?.to_json()))
}

/// `POST /v1/batches/ID/cancel`: cancels a batch. Existing results are kept.
async fn cancel(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Result<Response> {
    let id = read_id(id)?;
    let batch = block_in_place(|| app.batches()?.cancel(caller, &id))?;
    Ok(reply::json(&batch.to_json()))
}
