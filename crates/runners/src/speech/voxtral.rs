//! Voxtral: windows of 30 seconds in the place of a prompt's tokens.

mod listener;
mod model;

pub(crate) use listener::VoxtralListener;
pub use model::Voxtral;

/// What the family is called.
const FAMILY: &str = "Voxtral";
