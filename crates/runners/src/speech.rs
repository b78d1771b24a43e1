//! Speech to text.

mod segment;
mod transcriber;
pub mod whisper;

pub use segment::{Segment, Word};
pub use transcriber::{Progress, Settings, Task, Transcriber};

/// Samples a second that the models here listen to.
pub const SAMPLE_RATE: u32 = 16_000;
