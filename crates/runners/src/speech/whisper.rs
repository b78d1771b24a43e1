//! Whisper: windows of 30 seconds to tokens.

mod align;
mod decode;
mod model;
mod rules;
mod vocabulary;
mod window;

pub use align::{AlignedWord, align};
pub use decode::{Decoding, Request, decode, detect_language};
pub(crate) use decode::{compression_ratio, text};
pub use model::Whisper;
pub use rules::Rules;
pub use vocabulary::{Language, Vocabulary};
pub use window::{Span, spans};
