//! Moonshine: waveforms to tokens.

mod decode;
mod listener;
mod model;

pub use decode::Decoding;
pub(crate) use listener::MoonshineListener;
pub use model::Moonshine;

use crate::Error;

/// The family's name in messages.
const FAMILY: &str = "Moonshine";

fn unfit(what: impl Into<String>) -> Error {
    Error::NoSpeechModel { family: FAMILY, what: what.into() }
}
