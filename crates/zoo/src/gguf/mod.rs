//! GGUF files: metadata, tensors, and the models and tokenizers in them.

mod config;
mod file;
mod kind;
mod names;
mod reader;
mod value;
mod vocab;

pub use file::{Gguf, TensorInfo};
pub use kind::Kind;
pub use value::{Array, Value};
pub use vocab::GgufVocab;

pub(crate) use {config::config, names::sources, vocab::vocab};
