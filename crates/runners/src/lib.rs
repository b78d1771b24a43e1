//! Loops over methods: language models that generate text, speech models that transcribe.
//!
//! [`llm::LanguageModel`] adapts the signatures and metadata of exported models to "tokens in, logits out"; [`llm::generate`] is
//! the loop of prefill, sampling, stopping and streaming around it. [`speech::Transcriber`] turns samples into text with times, window
//! by window. Clocks, seeds and cancellation are passed in.

#![forbid(unsafe_code)]

mod error;
pub mod llm;
mod logits;
#[cfg(feature = "speech")]
pub mod speech;

pub use error::Error;

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
