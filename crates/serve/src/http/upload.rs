//! Multipart forms with a file, which is spooled to a temporary file.

use std::{
    fs::File,
    io::{Seek, Write},
};

use axum::{
    body::Body,
    http::{Request, header},
};
use multer::{Constraints, Field, Multipart, SizeLimit, parse_boundary};
use serde_json::{Map, Value as Json};
use tokio::{
    task::block_in_place,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    config::Config,
    error::{ApiError, Result},
    json::Fields,
};

/// Maximum number of fields, and maximum size in bytes of a field without a file.
const MAX_FIELDS: usize = 64;
const MAX_TEXT: u64 = 64 << 10;

/// Name of the field with the file.
pub(crate) const FILE: &str = "file";

/// An uploaded file, spooled to an anonymous temporary file, with the form's other fields.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) file: File,
    /// The client's file name.
    pub(crate) name: Option<String>,
    pub(crate) fields: Fields,
}

/// Reads a form (RFC 7578) with a file of at most `bytes` bytes. `what` names the file in errors.
///
/// # Errors
/// Fails if the form is malformed, too large, too slow, incomplete or without a file.
pub(crate) async fn read(request: Request<Body>, config: &Config, what: &'static str, bytes: usize) -> Result<Upload> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = parse_boundary(kind).map_err(|_| ApiError::body_type("multipart/form-data"))?;
    let most = bytes as u64;
    let limits =
        SizeLimit::new().whole_stream(most.saturating_add(MAX_TEXT * MAX_FIELDS as u64)).per_field(MAX_TEXT).for_field(FILE, most);
    let constraints = Constraints::new().size_limit(limits);
    let form = Multipart::with_constraints(request.into_body().into_data_stream(), boundary, constraints);
    let whole = timeout_at(Instant::now() + config.longest_request(), UploadForm { form, config, what, bytes }.read());
    whole.await.unwrap_or_else(|_| Err(ApiError::too_slow()))
}

struct UploadForm<'a> {
    form: Multipart<'static>,
    config: &'a Config,
    what: &'static str,
    bytes: usize,
}

impl UploadForm<'_> {
    async fn read(mut self) -> Result<Upload> {
        let (mut file, mut map) = (None, Map::new());
        for _ in 0..MAX_FIELDS {
            let next = timeout(self.config.body_time, self.form.next_field()).await.map_err(|_| ApiError::too_slow())?;
            let Some(field) = next.map_err(|error| self.refused(error))? else {
                let (file, name) = file.ok_or_else(|| ApiError::value(FILE, "`file` is missing"))?;
                return Ok(Upload { file, name, fields: Fields::of(map) });
            };
            let name = field.name().unwrap_or_default().to_owned();
            if name == FILE && file.is_none() {
                let name = field.file_name().map(str::to_owned);
                file = Some((self.file(field).await?, name));
                continue;
            }
            let text = timeout(self.config.body_time, field.text()).await.map_err(|_| ApiError::too_slow())?;
            let text = Json::String(text.map_err(|error| self.refused(error))?);
            match name.strip_suffix("[]") {
                Some(list) => match map.entry(list).or_insert_with(|| Json::Array(Vec::new())) {
                    Json::Array(list) => list.push(text),
                    _ => return Err(twice(list)),
                },
                None if name == FILE || map.contains_key(&name) => return Err(twice(&name)),
                None => drop(map.insert(name, text)),
            }
        }
        Err(ApiError::invalid(format!("the form has more than {MAX_FIELDS} fields")))
    }

    async fn file(&self, mut field: Field<'_>) -> Result<File> {
        let mut file = block_in_place(tempfile::tempfile).map_err(unwritten)?;
        loop {
            let next = timeout(self.config.body_time, field.chunk()).await.map_err(|_| ApiError::too_slow())?;
            match next.map_err(|error| self.refused(error))? {
                Some(chunk) => block_in_place(|| file.write_all(&chunk)).map_err(unwritten)?,
                None => break,
            }
        }
        file.rewind().map_err(unwritten)?;
        Ok(file)
    }

    fn refused(&self, error: multer::Error) -> ApiError {
        match error {
            multer::Error::FieldSizeExceeded { field_name: Some(name), .. } if name != FILE => {
                ApiError::value(&name, format!("`{name}` is longer than {MAX_TEXT} bytes"))
            }
            multer::Error::FieldSizeExceeded { .. } | multer::Error::StreamSizeExceeded { .. } => {
                ApiError::too_large(self.what, self.bytes)
            }
            error => ApiError::invalid(format!("the request body is no whole form: {error}")),
        }
    }
}

fn twice(name: &str) -> ApiError {
    ApiError::value(name, format!("the form has more than one `{name}`"))
}

fn unwritten(error: std::io::Error) -> ApiError {
    tracing::error!("an upload cannot be kept in a temporary file: {error}");
    ApiError::internal("the upload cannot be kept")
}
