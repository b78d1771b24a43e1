//! Runners: loops over a program's methods that generate text, compute text embeddings, and
//! transcribe speech.
//!
//! [`llm::Model`] adapts the signatures and metadata of exported models to "tokens in, logits out",
//! and creates [sequences](llm::Sequence). An [`llm::Generator`] prefills, samples, stops and
//! streams on a sequence, step by step. [`speech::Transcriber`] turns audio samples into text with
//! timestamps, window by window. [`embed::Embedder`] computes text embeddings. Callers pass in
//! clocks, seeds and cancellation flags.

#![forbid(unsafe_code)]

pub mod embed;
mod error;
pub mod llm;
mod logits;
#[cfg(feature = "speech")]
pub mod speech;

pub use error::Error;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
