//! Routes of stored responses.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
    response::Response,
};
use serde_json::json;

use crate::{
    app::App,
    error::{ApiError, Result},
    keys::Caller,
    reply,
};

type Id = Result<Path<String>, PathRejection>;

fn missing(id: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", None, format!("the response {id:?} is not kept here"))
}

fn read(id: Id) -> Result<String> {
    id.map(|Path(id)| id).map_err(|error| ApiError::value("response_id", error.body_text()))
}

/// `GET /v1/responses/ID`: returns a stored response.
pub(crate) async fn get(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Result<Response> {
    let id = read(id)?;
    let response = app.responses.get(caller, &id).ok_or_else(|| missing(&id))?;
    Ok(reply::json(&response))
}

/// `DELETE /v1/responses/ID`: deletes a response.
pub(crate) async fn delete(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Result<Response> {
    let id = read(id)?;
    if !app.responses.delete(caller, &id) {
        return Err(missing(&id));
    }
    Ok(reply::json(&json!({ "id": id, "object": "response", "deleted": true })))
}

/// `GET /v1/responses/ID/input_items`: returns the conversation before the response.
pub(crate) async fn input_items(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Result<Response> {
    let id = read(id)?;
    let mut items = app.responses.input(caller, &id).ok_or_else(|| missing(&id))?;
    // The latest comes first.
    items.reverse();
    let [first, last] = [items.first(), items.last()].map(|item| item.map(|item| item["id"].clone()));
    Ok(reply::json(&json!({ "object": "list", "data": items, "first_id": first, "last_id": last, "has_more": false })))
}

/// `POST /v1/responses/ID/cancel`: always fails, since no response runs in the background.
pub(crate) async fn cancel(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, id: Id) -> Result<Response> {
    let id = read(id)?;
    app.responses.get(caller, &id).ok_or_else(|| missing(&id))?;
    Err(ApiError::invalid("only responses in the background can be cancelled, and there are none"))
}
