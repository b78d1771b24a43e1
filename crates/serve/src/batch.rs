//! Files and batches: `/v1/files`, `/v1/batches`, and batches without a server.
//!
//! A batch is a file of requests, one a line. They run in the background: the scheduler lets all
//! other requests go first.

mod call;
mod files;
mod line;
mod offline;
mod record;
mod routes;
mod run;
mod store;
mod sums;
mod validate;

use std::path::PathBuf;

pub use self::offline::{BatchFile, BatchFileError, Progress};
pub(crate) use self::{files::add as add_files, routes::add as add_batches, run::run, store::Store};

/// Most requests of a batch, as OpenAI has it.
pub(crate) const MAX_LINES: usize = 50_000;

/// Paths that a batch may ask.
pub(crate) const ENDPOINTS: [&str; 5] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"];

/// Where files and batches are kept, and their bounds.
#[derive(Clone, Debug)]
pub struct BatchConfig {
    /// A folder that no other process uses.
    pub folder: PathBuf,
    /// Most bytes of all files.
    pub bytes: u64,
    /// Most bytes of one file.
    pub file_bytes: usize,
    /// Requests of all batches that run at the same time, at least 1.
    pub at_once: usize,
}
