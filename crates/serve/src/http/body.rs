//! Request bodies, limited in size and time.

use axum::{
    body::Body,
    http::{HeaderMap, Request, header},
};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use crate::{
    config::Config,
    error::{ApiError, Result},
};

/// Reads a JSON body.
///
/// # Errors
/// Fails if the body is not declared as JSON, is too large or too slow, or breaks off.
pub(crate) async fn read(request: Request<Body>, config: &Config) -> Result<Bytes> {
    check_type(request.headers())?;
    read_any(request, config).await
}

/// Reads a body without a check of its content type. Requests from browser pages are still checked:
/// they carry an origin.
///
/// # Errors
/// Fails as [`read`] does.
pub(crate) async fn read_untyped(request: Request<Body>, config: &Config) -> Result<Bytes> {
    if request.headers().contains_key(header::ORIGIN) {
        check_type(request.headers())?;
    }
    read_any(request, config).await
}

async fn read_any(request: Request<Body>, config: &Config) -> Result<Bytes> {
    let (head, body) = request.into_parts();
    let too_large = || ApiError::too_large("request body", config.body_bytes);
    let declared = head.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > config.body_bytes as u64) {
        return Err(too_large());
    }
    match timeout(config.body_time, Limited::new(body, config.body_bytes).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(ApiError::invalid("the request body breaks off")),
        Err(_) => Err(ApiError::too_slow()),
    }
}

/// Content types that browser pages may send to any server without a preflight request.
fn check_type(headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(ApiError::body_type("application/json"))
}
