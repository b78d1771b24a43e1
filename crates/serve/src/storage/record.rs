//! Records of files and batches, as stored and as sent to clients.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};

use super::MESSAGES_PREFIX;
pub(crate) use super::sums::Sums;
use crate::{ids::unique_id, keys::Caller, model::now};

/// The only completion window of batches, and its length in seconds.
pub(crate) const WINDOW: (&str, u64) = ("24h", 24 * 60 * 60);
/// Longest lifetime of a file in seconds: 30 days.
pub(crate) const MAX_LIFETIME: u64 = 2_592_000;

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) id: String,
    /// Number of the owner.
    pub(crate) owner: u64,
    pub(crate) bytes: u64,
    /// Unix time in seconds, like all times in this module.
    pub(crate) created_at: u64,
    pub(crate) filename: String,
    pub(crate) purpose: String,
    pub(crate) expires_at: Option<u64>,
}

impl FileRecord {
    /// The file in OpenAI's format.
    pub(crate) fn to_json(&self) -> Json {
        json!({
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": null,
        })
    }
}

/// State of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    /// Whether the batch is finished.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Status::Failed | Status::Completed | Status::Expired | Status::Cancelled)
    }
}

/// Reason why a batch cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchError {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    /// Line of the input, counted from 1.
    pub(crate) line: Option<usize>,
}

/// Times of a batch's state changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) in_progress_at: Option<u64>,
    pub(crate) finalizing_at: Option<u64>,
    pub(crate) completed_at: Option<u64>,
    pub(crate) failed_at: Option<u64>,
    pub(crate) expired_at: Option<u64>,
    pub(crate) cancelling_at: Option<u64>,
    pub(crate) cancelled_at: Option<u64>,
}

/// A batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    pub(crate) id: String,
    pub(crate) owner: u64,
    pub(crate) endpoint: String,
    pub(crate) input_file_id: String,
    pub(crate) completion_window: String,
    pub(crate) created_at: u64,
    pub(crate) expires_at: u64,
    pub(crate) status: Status,
    pub(crate) times: Times,
    pub(crate) errors: Vec<BatchError>,
    pub(crate) metadata: Map<String, Json>,
    /// Lifetime of output files in seconds.
    pub(crate) output_seconds: u64,
    /// IDs of the output and error files. Files are created at the end, unless empty.
    pub(crate) output_id: String,
    pub(crate) error_id: String,
    pub(crate) has_output: bool,
    pub(crate) has_failures: bool,
    pub(crate) sums: Sums,
}

impl BatchRecord {
    /// A batch that begins now. Its output files are kept for as long as files may be.
    pub(crate) fn new(prefix: &str, owner: Caller, endpoint: String, input_file_id: String) -> BatchRecord {
        let (window, seconds) = WINDOW;
        let created_at = now();
        BatchRecord {
            id: unique_id(prefix),
            owner: owner.number(),
            endpoint,
            input_file_id,
            completion_window: window.to_owned(),
            created_at,
            expires_at: created_at + seconds,
            status: Status::Validating,
            times: Times::default(),
            errors: Vec::new(),
            metadata: Map::new(),
            output_seconds: MAX_LIFETIME,
            output_id: unique_id("file-"),
            error_id: unique_id("file-"),
            has_output: false,
            has_failures: false,
            sums: Sums::default(),
        }
    }

    /// Whether the batch has Anthropic's form.
    pub(crate) fn is_of_messages(&self) -> bool {
        self.id.starts_with(MESSAGES_PREFIX)
    }

    /// Changes the state.
    pub(crate) fn enter(&mut self, status: Status, now: u64) {
        self.status = status;
        let times = &mut self.times;
        let time = match status {
            Status::Validating => return,
            Status::InProgress => &mut times.in_progress_at,
            Status::Finalizing => &mut times.finalizing_at,
            Status::Completed => &mut times.completed_at,
            Status::Failed => &mut times.failed_at,
            Status::Expired => &mut times.expired_at,
            Status::Cancelling => &mut times.cancelling_at,
            Status::Cancelled => &mut times.cancelled_at,
        };
        // A batch keeps its first time when a restart continues it.
        time.get_or_insert(now);
    }

    /// The batch in OpenAI's format.
    pub(crate) fn to_json(&self) -> Json {
        let errors = (!self.errors.is_empty()).then(|| json!({ "object": "list", "data": self.errors }));
        let mut batch = json!({
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.has_output.then_some(&self.output_id),
            "error_file_id": self.has_failures.then_some(&self.error_id),
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "request_counts": self.sums.counts(),
            "metadata": self.metadata,
            "usage": self.sums.usage(),
        });
        if let (Some(batch), Ok(Json::Object(times))) = (batch.as_object_mut(), serde_json::to_value(&self.times)) {
            batch.extend(times);
        }
        batch
    }
}
