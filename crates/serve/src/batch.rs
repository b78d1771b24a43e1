//! Files and batches: `/v1/files` and `/v1/batches`.
//!
//! A batch is a file of requests, one a line. They run in the background: the scheduler lets all
//! other requests go first.

pub(crate) mod call;
mod files;
pub(crate) mod line;
mod routes;
mod run;
pub(crate) mod validate;

pub(crate) use self::{
    files::add as add_files,
    routes::add as add_batches,
    run::{read_written, run},
};

/// Most requests of a batch, as OpenAI has it.
pub(crate) const MAX_LINES: usize = 50_000;

/// Paths that a batch may ask.
pub(crate) const ENDPOINTS: [&str; 6] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/rerank"];
