//! Model families as functions from a checkpoint to an exported program, without Python.
//!
//! A [`Checkpoint`] is a config, named tensors and a tokenizer, read from a Hugging Face folder, a
//! GGUF file or a NeMo file. [`build`] writes the family's forward pass as a graph in the form of
//! PyTorch's capture. Constant methods hold the metadata for runners. The crate does not read from
//! disk. Callers pass bytes, mapped or not, and tensors are slices of them. Cast, reordered or
//! repacked tensors are computed on request and dropped after use.
//!
//! Quantized GGUF blocks keep their codes. Each supported kind has an exact affine form (`scale *
//! code + bias` per group), which the program expresses by `flambeau.dequantize_packed`.

#![forbid(unsafe_code)]

mod adapter;
mod alibi;
mod architecture;
mod block;
mod build;
mod builder;
mod checkpoint;
mod codes;
mod ctranslate2;
mod encoder;
mod error;
mod family;
mod fields;
mod folder;
mod ggml;
mod low_rank;
mod mistral;
mod model;
mod nemo;
mod options;
mod rope;
mod rows;
mod source;
mod spec;
mod speech;
mod writer;

pub mod gguf;
pub mod limits;

pub use adapter::Adapter;
pub use build::build;
pub use checkpoint::{Checkpoint, TokenizerSource};
pub use error::Error;
pub use family::{Family, families};
pub use folder::parse_json;
pub use model::{MethodConstant, Model};
pub use options::{KvCache, Logits, Options, ScalePrecision};

pub(crate) use source::CheckpointTensor;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
