//! Decodes recordings to samples, and computes the input features of speech models.
//!
//! A [`Recording`] decodes a file or a stream block by block, mixes its channels down and resamples
//! it. So memory does not grow with its length. [`LogMel`] computes Whisper's log-mel spectrograms,
//! [`ParakeetMel`] Parakeet's. [`VoiceActivity`] finds speech.

#![forbid(unsafe_code)]

mod activity;
mod bins;
mod container;
mod error;
mod filters;
mod limits;
mod mel;
mod mix;
mod opus;
mod parakeet_mel;
mod pcm;
mod recording;
mod resample;
mod spectrum;
mod wav;

pub use activity::VoiceActivity;
pub use error::Error;
pub use limits::{MAX_CHANNELS, RATES};
pub use mel::{LogMel, LogMelStream};
pub use parakeet_mel::ParakeetMel;
pub use pcm::{Pcm, Sample};
pub use recording::Recording;

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
