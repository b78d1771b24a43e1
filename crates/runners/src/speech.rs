//! Speech to text.

mod facts;
mod gate;
mod inputs;
mod languages;
mod live;
mod model;
pub mod moonshine;
pub mod parakeet;
mod segment;
mod stream;
mod text_decoder;
mod transcriber;
mod transcript;
pub mod voxtral;
pub mod voxtral_realtime;
pub mod whisper;
mod words;

pub(crate) use facts::{Facts, has_methods};
pub use live::Draft;
pub use model::SpeechModel;
pub use segment::{Segment, Word};
pub use transcriber::{Progress, Settings, Task, Transcriber};
pub use transcript::Transcript;

/// Samples a second that the models here listen to.
pub const SAMPLE_RATE: u32 = 16_000;
