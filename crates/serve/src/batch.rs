//! Files and batches: `/v1/files`, `/v1/batches` and `/v1/messages/batches`.
//!
//! A batch is a file with one request per line. Batches run in the background: the scheduler serves
//! all other requests first.

pub(crate) mod call;
mod files;
pub(crate) mod line;
mod messages;
mod routes;
mod run;
pub(crate) mod validate;

pub(crate) use self::{
    files::add as add_files,
    messages::add as add_message_batches,
    routes::add as add_batches,
    run::{read_written, run},
};

/// Maximum number of requests in a batch: OpenAI's limit.
pub(crate) const MAX_LINES: usize = 50_000;

/// Paths allowed in batches.
pub(crate) const ENDPOINTS: [&str; 6] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/rerank"];
