//! The CPU engine: a checked graph becomes a plan once, and each run walks the plan over recycled
//! buffers.
//!
//! - `array`: the contents of a tensor slot at run time, a strided view of shared storage.
//!   Transposes, slices and broadcasts make views; a write needs unshared storage and otherwise
//!   copies.
//! - `arena`: storage of dead slots, by size, for the results to come.
//! - `liveness`: when each slot dies.
//! - `machine`: the state that lasts from node to node: slots, storage, threads, the session's
//!   state.
//! - `prepare`: how each node becomes calls. A node without a `Prepare` does not build; one that is
//!   listed as lacking makes loading refuse the graph.
//! - `ops`: the nodes, by family.
//! - `plan`: a run laid out ahead for given input shapes, which later runs execute.
//! - `together`: runs of several sessions at once, which read each weight once.

#![forbid(unsafe_code)]

mod arena;
mod array;
mod batch;
mod copy;
mod dtypes;
mod engine;
mod error;
mod kv;
mod liveness;
mod machine;
mod obstacle;
mod ops;
mod plan;
mod prepare;
mod random_keys;
mod session;
mod shared;
mod state;

pub use engine::CpuEngine;
