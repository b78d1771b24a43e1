//! Parakeet: recordings to tokens by CTC or by a transducer.

mod decode;
mod listener;
mod live;
mod model;
mod words;

pub use decode::{TimedToken, Trace};
pub(crate) use listener::ParakeetListener;
pub(crate) use live::LiveParakeet;
pub use model::Parakeet;

use crate::Error;

/// The family's name in messages.
pub(super) const FAMILY: &str = "Parakeet";

fn unfit(what: impl Into<String>) -> Error {
    Error::NoSpeechModel { family: FAMILY, what: what.into() }
}
