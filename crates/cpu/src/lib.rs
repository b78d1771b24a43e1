//! The CPU engine: a checked graph becomes a plan once, and each run walks the plan over recycled buffers.
//!
//! - `array`: what a tensor slot holds at run time, a strided view of shared storage. Transposes, slices and broadcasts make
//!   views; a write goes to storage that nobody else sees, or to a copy.
//! - `arena`: storage of dead slots, by size, for the results to come.
//! - `liveness`: when each slot dies.
//! - `plan`: a run laid out ahead for given input shapes, which later runs execute.
//! - `cx`: what a node sees while it runs: operands, results whose shapes the rules of [`flambeau_ir`] decided, the pool.
//! - `ops`: the nodes, by family. A node without an `Eval` does not build; one that is listed as lacking makes
//!   loading refuse the graph.

#![forbid(unsafe_code)]

mod arena;
mod array;
mod common;
mod cx;
mod engine;
mod error;
mod eval;
mod kv;
mod liveness;
mod ops;
mod plan;
mod session;

pub use engine::CpuEngine;
pub use error::{At, OpError};
