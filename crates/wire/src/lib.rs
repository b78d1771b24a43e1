//! Bytes and values: the MLX payload ([`mlx`]), ExecuTorch programs ([`pte`]) and external data files ([`ptd`]).
//!
//! Reading is total: any byte string gives a value or an [`Error`] that names the offset, the field and what to do. Segments are
//! views of the caller's [`Bytes`](flambeau_tensor::Bytes), never copies. Decoded graphs are unchecked; only a
//! [`Checked`](flambeau_ir::Checked) graph is encoded. Writing streams: a blob is produced, written and dropped.
//!
//! This crate executes nothing and opens no file.

#![forbid(unsafe_code)]

mod blob;
mod error;
mod flat;
pub mod limits;
pub mod mlx;
pub mod ptd;
pub mod pte;
mod segment;

pub use blob::Blob;
pub use error::Error;
pub use pte::{Program, ProgramWriter, read_program};
pub use segment::Segment;
