//! GGUF files: metadata, tensors, and the models and tokenizers in them.

mod architecture;
mod config;
mod decays;
mod encoder;
mod file;
mod fused;
mod gemma4;
mod gpt;
mod hybrids;
mod importance;
mod keys;
mod llamas;
mod names;
mod reader;
mod sparse;
mod tensor_type;
mod value;
mod variants;
mod vocab;

pub use crate::rows::{codebooks::Codebook, two_bits::TwoBits};
pub use file::{Gguf, TensorInfo};
pub use importance::importance;
pub use tensor_type::TensorType;
pub use value::{Array, MetadataValue};

pub(crate) use {config::read, vocab::vocab};
