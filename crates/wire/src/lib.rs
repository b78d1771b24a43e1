//! Reads and writes MLX payloads ([`mlx`]), ExecuTorch programs ([`pte`]) and external data files
//! ([`ptd`]). Reads bundled programs ([`bundled`]), and writes profiles
//! ([`etdump`]).
//!
//! Readers accept any bytes and return a value or an [`Error`]. The error names the offset, the
//! field and a remedy. Segments are views of the caller's [`Bytes`](flambeau_tensor::Bytes), never
//! copies. Decoded graphs are unchecked, but only a [`Checked`](flambeau_ir::Checked) graph can be
//! encoded. Writers stream: each blob is produced, written and dropped.
//!
//! This crate neither runs programs nor opens files.

#![forbid(unsafe_code)]

mod blob;
pub mod bundled;
mod error;
pub mod etdump;
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
