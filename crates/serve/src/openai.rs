//! OpenAI's protocol: converts requests to jobs, and updates to responses.

mod answers;
pub(crate) mod chat;
pub(crate) mod completions;
mod form;
pub(crate) mod logprobs;
pub(crate) mod messages;
pub(crate) mod params;
mod prompt;
pub(crate) mod usage;

/// Build identifier for `system_fingerprint`, which clients compare when they set `seed`.
pub(crate) const FINGERPRINT: &str = concat!("flambeau-", env!("CARGO_PKG_VERSION"));

/// Ignored fields.
pub(crate) const HARMLESS: &[&str] = &[
    "id_slot",
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "return_progress",
    "safety_identifier",
    "service_tier",
    "session_id",
    "store",
    "timings_per_token",
    "user",
];
