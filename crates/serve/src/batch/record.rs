//! A file and a batch as they are kept and as clients see them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};

use super::sums::Sums;

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    pub(super) id: String,
    /// Number of the caller to whom it belongs.
    pub(super) owner: u64,
    pub(super) bytes: u64,
    /// Seconds since 1970, like all times here.
    pub(super) created_at: u64,
    pub(super) filename: String,
    pub(super) purpose: String,
    pub(super) expires_at: Option<u64>,
}

impl FileRecord {
    /// OpenAI's form.
    pub(super) fn to_json(&self) -> Json {
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
pub(super) enum Status {
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
    /// Whether nothing more happens to the batch.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Status::Failed | Status::Completed | Status::Expired | Status::Cancelled)
    }
}

/// Why a batch cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BatchError {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) param: Option<String>,
    /// Line of the input, from 1.
    pub(super) line: Option<usize>,
}

/// When a batch came to its states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) in_progress_at: Option<u64>,
    pub(super) finalizing_at: Option<u64>,
    pub(super) completed_at: Option<u64>,
    pub(super) failed_at: Option<u64>,
    pub(super) expired_at: Option<u64>,
    pub(super) cancelling_at: Option<u64>,
    pub(super) cancelled_at: Option<u64>,
}

/// A batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BatchRecord {
    pub(super) id: String,
    pub(super) owner: u64,
    pub(super) endpoint: String,
    pub(super) input_file_id: String,
    pub(super) completion_window: String,
    pub(super) created_at: u64,
    pub(super) expires_at: u64,
    pub(super) status: Status,
    pub(super) times: Times,
    pub(super) errors: Vec<BatchError>,
    pub(super) metadata: Map<String, Json>,
    /// Seconds after which its output files expire.
    pub(super) output_seconds: u64,
    /// Ids of the files of answers and of failures. They become files at the end, unless they are
    /// empty.
    pub(super) output_id: String,
    pub(super) error_id: String,
    pub(super) has_output: bool,
    pub(super) has_failures: bool,
    pub(super) sums: Sums,
}

impl BatchRecord {
    /// Comes to a state.
    pub(super) fn enter(&mut self, status: Status, now: u64) {
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
        // A batch that goes on after a restart began earlier.
        time.get_or_insert(now);
    }

    /// OpenAI's form.
    pub(super) fn to_json(&self) -> Json {
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
