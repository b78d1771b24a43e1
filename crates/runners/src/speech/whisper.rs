//! Whisper: windows of 30 seconds to tokens.

mod align;
mod batch;
mod beam;
mod branches;
mod coverage;
mod decode;
mod listener;
mod live;
mod model;
mod rules;
mod vocabulary;
mod window;

pub use align::{AlignedWord, align};
pub(crate) use batch::WhisperBatch;
pub use beam::Search;
pub(crate) use decode::text;
pub use decode::{Decoding, Request, decode, detect_language};
pub(crate) use listener::WhisperListener;
pub(crate) use live::LiveWhisper;
pub use model::Whisper;
pub use rules::Rules;
pub use vocabulary::{Language, Vocabulary};
pub use window::{Span, spans};

use crate::Error;

/// The family's name in messages.
pub(super) const FAMILY: &str = "Whisper";

fn unfit(what: impl Into<String>) -> Error {
    Error::NoSpeechModel { family: FAMILY, what: what.into() }
}
