//! Runs ExecuTorch programs: files, methods, and the instructions around delegates.
//!
//! A [`Program`] is a mapped `.pte` file, with an optional `.ptd` file of weights. A [`Method`] is
//! one of its entry points, loaded on an [`Engine`]. Delegates become sessions. The compiler's
//! rules turn kernel calls into graphs of a few nodes for the same engine. Weights are shared with
//! the file. Each method has separate mutable state, unless [`SharedState`] shares it with others.
//!
//! The crate uses no environment variables, no global state, and no clock but the caller's.

#![deny(unsafe_code)]

mod batch;
mod error;
mod kernel;
mod map;
mod method;
mod operators;
mod pipelined;
mod prim;
mod program;
mod registry;
mod run;
mod saved;
mod shared_values;
mod state;
mod trace;
mod value;
pub mod verify;
mod views;

pub use error::{ConstantError, Error, InstructionError, OperatorError, Place};
pub use flambeau_ir::engine::{Engine, EngineError, KvCacheConfig, KvLayer, LoadOptions, Outcome, Sampling, SharedState};
pub use map::{map_file, map_file_locked};
pub use method::Method;
pub use operators::operator_names;
pub use program::{MLX_BACKEND, Program};
pub use registry::Engines;
pub use trace::{InstructionTrace, RunTrace};
pub use value::{DimSpec, TensorSpec, Value, ValueKind, ValueSpec};

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
