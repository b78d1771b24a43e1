//! OpenAI's protocol: requests into jobs, and what comes of them into responses.

mod answers;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod logprobs;
pub(crate) mod messages;
pub(crate) mod params;
mod prompt;
pub(crate) mod usage;

/// Tells builds apart, as `seed` asks for.
pub(crate) const FINGERPRINT: &str = concat!("flambeau-", env!("CARGO_PKG_VERSION"));

/// Fields that change no result.
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
