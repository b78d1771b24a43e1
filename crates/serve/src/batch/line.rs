//! Input and output lines of batches.

use serde_json::{Map, Value as Json, json};

use super::{ENDPOINTS, call::Answer};
use crate::{
    error::{ApiError, Result},
    ids::unique_id,
    json::{Fields, wrong},
};

/// Maximum length of `custom_id` in bytes.
const MAX_ID: usize = 512;

/// A request of a batch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) custom_id: String,
    pub(crate) url: &'static str,
    pub(crate) body: Map<String, Json>,
}

impl Line {
    /// Parses a line. Unknown fields are ignored.
    ///
    /// # Errors
    /// The error names the invalid field.
    pub(crate) fn parse(text: &[u8]) -> Result<Line> {
        let mut fields = Fields::parse(text).map_err(|error| ApiError::invalid(error.message.replace("request body", "line")))?;
        let custom_id = fields.text("custom_id")?.filter(|name| !name.is_empty() && name.len() <= MAX_ID);
        let custom_id = custom_id
            .ok_or_else(|| ApiError::value("custom_id", format!("each line needs a `custom_id` of 1 to {MAX_ID} bytes")))?;
        match fields.text("method")?.as_deref() {
            None | Some("POST") => {}
            Some(other) => return Err(wrong("method", "POST", &other.into())),
        }
        let url = fields.text("url")?.unwrap_or_default();
        let known = ENDPOINTS.into_iter().find(|known| *known == url);
        let url = known.ok_or_else(|| wrong("url", &format!("one of {}", ENDPOINTS.join(", ")), &url.into()))?;
        let body = fields.object("body")?.ok_or_else(|| ApiError::value("body", "`body` is missing"))?;
        refuse_stream(&body).map_err(|error| error.inside("body"))?;
        Ok(Line { custom_id, url, body })
    }
}

/// Refuses a request for a stream.
///
/// # Errors
/// `stream` is set.
pub(super) fn refuse_stream(body: &Map<String, Json>) -> Result<()> {
    match body.get("stream") {
        None | Some(Json::Null | Json::Bool(false)) => Ok(()),
        Some(_) => Err(ApiError::unsupported("stream", "answers in a batch are whole: `stream` cannot be true")),
    }
}

/// Result of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// The request did not run.
    Dropped {
        code: &'static str,
        message: &'static str,
    },
}

impl Outcome {
    /// Whether the request succeeded.
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, Outcome::Answered(answer) if (200..300).contains(&answer.status))
    }

    /// The output line.
    pub(crate) fn to_json(&self, custom_id: &str) -> Json {
        let (response, error) = match self {
            Outcome::Answered(Answer { status, request_id, body }) => {
                (json!({ "status_code": status, "request_id": request_id, "body": body }), Json::Null)
            }
            Outcome::Dropped { code, message } => (Json::Null, json!({ "code": code, "message": message })),
        };
        json!({ "id": unique_id("batch_req_"), "custom_id": custom_id, "response": response, "error": error })
    }
}

/// A line of an existing output.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) custom_id: String,
    pub(crate) is_success: bool,
    /// Response; null if the request did not run.
    pub(crate) response: Json,
}

/// Prefix of each output line.
const BEGINNING: &[u8] = b"{\"id\":\"batch_req_";

impl Written {
    /// Whether a line may be a truncated last line of an output.
    pub(crate) fn could_begin(text: &[u8]) -> bool {
        let common = text.len().min(BEGINNING.len());
        !text.ends_with(b"\n") && text[..common] == BEGINNING[..common]
    }

    /// Parses a line; `None` if it is truncated.
    pub(crate) fn parse(text: &[u8]) -> Option<Written> {
        let mut line: Json = serde_json::from_slice(text.strip_suffix(b"\n")?).ok()?;
        let custom_id = line["custom_id"].as_str()?.to_owned();
        let status = line["response"]["status_code"].as_u64();
        let response = line["response"].take();
        Some(Written { custom_id, is_success: status.is_some_and(|status| (200..300).contains(&status)), response })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(change: impl FnOnce(&mut Json)) -> Result<Line> {
        let mut line = json!({ "custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": { "input": "x" } });
        change(&mut line);
        Line::parse(line.to_string().as_bytes())
    }

    #[test]
    fn lines_that_are_wrong_name_the_field() {
        assert_eq!(line(|_| ()).unwrap().url, "/v1/embeddings");
        assert!(line(|line| line["note"] = "free".into()).is_ok());
        for (field, value, param) in [
            ("custom_id", Json::Null, "custom_id"),
            ("custom_id", "x".repeat(MAX_ID + 1).into(), "custom_id"),
            ("method", "GET".into(), "method"),
            ("url", "/v1/files".into(), "url"),
            ("url", Json::Null, "url"),
            ("body", "text".into(), "body"),
            ("body", Json::Null, "body"),
            ("body", json!({ "stream": true }), "body.stream"),
        ] {
            let error = line(|line| line[field] = value.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{field}: {value}");
        }
        assert!(Line::parse(b"{").unwrap_err().message.starts_with("the line is no valid JSON"));
    }

    #[test]
    fn lines_that_were_written_are_read_back() {
        let answer = |status| Outcome::Answered(Answer { status, request_id: "req_1".into(), body: json!({ "x": 1 }) });
        for (outcome, is_success) in
            [(answer(200), true), (answer(400), false), (Outcome::Dropped { code: "batch_expired", message: "late" }, false)]
        {
            let text = format!("{}\n", outcome.to_json("a"));
            let written = Written::parse(text.as_bytes()).unwrap();
            assert_eq!((written.custom_id.as_str(), written.is_success, outcome.is_success()), ("a", is_success, is_success));
            for length in 0..text.len() {
                let torn = &text.as_bytes()[..length];
                assert!(Written::parse(torn).is_none() && Written::could_begin(torn), "{length} bytes are not whole");
            }
        }
        assert!(!Written::could_begin(b"my notes") && !Written::could_begin(b"{}\n"));
    }
}
