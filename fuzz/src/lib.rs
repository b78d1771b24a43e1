//! Shared code of the fuzz targets.

#![forbid(unsafe_code)]

mod archive;
#[cfg(feature = "engine")]
mod session;
mod tokenizer;

pub use archive::{archive_with, read_weights, zip};
#[cfg(feature = "engine")]
pub use session::{Zeros, arguments, is_cheap, with_static_inputs};
pub use tokenizer::{keep_unwinding, use_tokenizer};
