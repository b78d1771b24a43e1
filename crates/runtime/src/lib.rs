//! ExecuTorch programs that run: files, methods, and the instructions around delegates.
//!
//! A [`Program`] is a mapped `.pte` file, with a `.ptd` file of weights if there is one. A [`Method`] is one of its entry points,
//! loaded on an [`Engine`]: delegates become sessions, kernel calls become graphs of a few nodes for
//! the same engine by the rules that the compiler uses. Weights are shared with the file; every method has mutable state of its own,
//! or shares it with others by [`SharedState`].
//!
//! Nothing here reads the environment, keeps global state or looks at a clock.

#![deny(unsafe_code)]

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
mod together;
mod value;

pub use error::{ConstantError, Error, InstructionError, OperatorError, Place};
pub use flambeau_ir::engine::{Engine, EngineError, KvCacheConfig, KvLayer, LoadOptions, Outcome, Sampling, SharedState};
pub use map::{map_file, map_file_locked};
pub use method::Method;
pub use operators::operator_names;
pub use program::{MLX_BACKEND, Program};
pub use registry::Engines;
pub use value::{DimSpec, TensorSpec, Value, ValueKind, ValueSpec};

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
