//! Voxtral Realtime: a token for every 80 ms, while they are heard.

mod listener;
mod model;

pub(crate) use listener::RealtimeListener;
pub use model::VoxtralRealtime;

/// Name of the family.
pub(super) const FAMILY: &str = "Voxtral Realtime";
