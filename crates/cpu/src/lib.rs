//! The CPU engine: a checked graph becomes a plan once, and each run walks the plan over recycled
//! buffers.
//!
//! - `array`: the contents of a tensor slot at run time, a strided view of shared storage.
//!   Transposes, slices and broadcasts make views; a write needs unshared storage and otherwise
//!   copies.
//! - `arena`: free storage of dead slots, by size, for reuse by later results.
//! - `liveness`: the last reader of each slot, after which its storage is free.
//! - `machine`: the state that lasts from node to node: slots, storage, threads, the session's
//!   state.
//! - `prepare`: the trait that turns a node into calls. Every node kind must implement it. Loading
//!   refuses a graph with a node whose implementation reports no support.
//! - `ops`: the nodes, by family.
//! - `plan`: the steps of a run for given input shapes, prepared once and executed by later runs.
//! - `batch`: runs of several sessions in one pass over the weights.

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
