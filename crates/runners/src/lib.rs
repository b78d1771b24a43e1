//! Loops over methods: language models that generate text, text encoders that make vectors, speech models that transcribe.
//!
//! [`llm::Model`] adapts the signatures and metadata of exported models to "tokens in, logits out", and gives out
//! [sequences](llm::Sequence); an [`llm::Generator`] prefills, samples, stops and streams on one of them, step by step. [`speech::Transcriber`] turns samples into text with times, window
//! by window; [`embed::Embedder`] makes vectors of texts. Clocks, seeds and cancellation are passed in.

#![forbid(unsafe_code)]

pub mod embed;
mod error;
pub mod llm;
mod logits;
#[cfg(feature = "speech")]
pub mod speech;

pub use error::Error;

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
