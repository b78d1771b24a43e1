//! Voxtral: windows of 30 seconds in place of a prompt's tokens.

mod listener;
mod model;

pub(crate) use listener::VoxtralListener;
pub use model::Voxtral;

use crate::Error;

/// Name of the family.
pub(super) const FAMILY: &str = "Voxtral";

fn unfit(what: &str) -> Error {
    Error::NoSpeechModel { family: FAMILY, what: what.into() }
}
