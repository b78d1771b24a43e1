//! Request errors in OpenAI's format.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use flambeau::runners;
use serde_json::{Value as Json, json};

/// Result type of this crate.
pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// An error as the client receives it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    pub(crate) param: Option<String>,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, kind: &'static str, code: Option<&'static str>, message: impl Into<String>) -> ApiError {
        ApiError { status, kind, code, param: None, message: message.into() }
    }

    /// Prefixes the error's field with `outer`.
    pub(crate) fn inside(mut self, outer: &str) -> ApiError {
        self.param = self.param.map(|name| format!("{outer}.{name}"));
        self
    }

    /// The request as a whole is invalid.
    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", None, message)
    }

    /// The field's value is invalid.
    pub(crate) fn value(param: &str, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", Some("invalid_value"), message);
        ApiError { param: Some(param.to_owned()), ..error }
    }

    /// The server or the model does not support the field.
    pub(crate) fn unsupported(param: &str, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", Some("unsupported_parameter"), message);
        ApiError { param: Some(param.to_owned()), ..error }
    }

    /// The field's value cannot be served; `code` tells why.
    pub(crate) fn coded(param: &str, code: &'static str, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", Some(code), message);
        ApiError { param: Some(param.to_owned()), ..error }
    }

    /// The body has the wrong content type.
    pub(crate) fn body_type(expected: &str) -> ApiError {
        let message = format!("the request's Content-Type must be {expected}");
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", None, message)
    }

    /// `what` exceeds a limit in bytes.
    pub(crate) fn too_large(what: &str, most: usize) -> ApiError {
        let message = format!("the {what} is larger than {most} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", Some("body_too_large"), message)
    }

    /// The body did not arrive in time.
    pub(crate) fn too_slow() -> ApiError {
        let message = "the request body took too long";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", Some("timeout"), message)
    }

    /// Not found.
    pub(crate) fn missing(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", None, message)
    }

    /// Unknown model.
    pub(crate) fn no_model(name: &str) -> ApiError {
        let message = format!("the model {name:?} does not exist; GET /v1/models lists those that do");
        let error = ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", Some("model_not_found"), message);
        ApiError { param: Some("model".into()), ..error }
    }

    /// The prompt exceeds the model's context.
    pub(crate) fn too_long(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", Some("context_length_exceeded"), message)
    }

    /// Internal error.
    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", None, message)
    }

    /// The server is overloaded.
    pub(crate) fn busy(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("capacity_exhausted"), message)
    }

    /// The server is shutting down, or the request timed out.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", Some(code), message)
    }

    /// The error as a response body or stream event.
    pub(crate) fn to_json(&self) -> Json {
        json!({ "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.code } })
    }
}

impl From<runners::Error> for ApiError {
    fn from(error: runners::Error) -> ApiError {
        use runners::Error;
        let text = error.to_string();
        match error {
            Error::PromptTooLong { .. } => ApiError::too_long(text),
            // If no logit is a number, the model is faulty, not the request.
            Error::NoLogits { .. } | Error::Text(flambeau::text::Error::NoCandidate { .. }) => ApiError::internal(text),
            Error::EmptyPrompt | Error::Text(_) | Error::Sampling { .. } => ApiError::invalid(text),
            Error::TooManyTokens { .. } => ApiError { param: Some("max_tokens".into()), ..ApiError::invalid(text) },
            Error::Busy { .. } => ApiError::busy(text),
            Error::Language { .. } => ApiError::value("language", text),
            Error::NoTranslation | Error::NoSuchSetting { .. } => ApiError::invalid(text),
            _ => ApiError::internal(text),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::INTERNAL_SERVER_ERROR => {
                // The same request would fail the same way.
                headers.insert("x-should-retry", HeaderValue::from_static("false"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
