//! Model families as functions from a checkpoint to an exported program, without Python.
//!
//! A [`Checkpoint`] is a config, named tensors and a tokenizer, out of a Hugging Face folder, a GGUF file or one of NeMo's. [`build`] writes the
//! family's forward pass as the graph that PyTorch's capture of it would be, and names what a runner must know as constant
//! methods. Nothing is read from disk here: callers hand in bytes, mapped or not, and tensors stay slices of them. Cast, reordered or repacked tensors are computed on request and dropped after use.
//!
//! Quantized GGUF blocks keep their codes: each supported kind has an exact affine form (`scale * code + bias` a group), which
//! enters the program as `flambeau.dequantize_packed`.

#![forbid(unsafe_code)]

mod block;
mod builder;
mod checkpoint;
mod ctranslate2;
mod encoder;
mod error;
mod family;
mod fields;
mod folder;
mod ggml;
mod mistral;
mod model;
mod nemo;
mod rope;
mod rows;
mod source;
mod spec;
mod speech;
mod writer;

pub mod gguf;
pub mod limits;

pub use checkpoint::{Checkpoint, TokenizerSource};
pub use error::Error;
pub use family::{Family, families};
pub use folder::parse_json;
pub use model::{KvCache, Logits, MethodConstant, Model, Options, ScalePrecision, build};

pub(crate) use source::CheckpointTensor;

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
