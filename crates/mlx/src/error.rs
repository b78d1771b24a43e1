//! What goes wrong between Flambeau and MLX, and while a node runs.

use std::path::PathBuf;

use flambeau_ir::InferError;
use flambeau_tensor::DType;

use crate::ffi::Failure;

/// Why the engine cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No MLX was found.
    #[error("no MLX was found; looked at {}; install it with `pip install mlx` (on Linux: `mlx[cpu]`, or `mlx[cuda13]` for NVIDIA GPUs), or pass --mlx-path", list(.0))]
    Missing(Vec<PathBuf>),
    /// The folder holds no MLX.
    #[error("{path} holds no MLX: {what}")]
    Incomplete { path: PathBuf, what: String },
    /// The version is none that the shim was made for.
    #[error("MLX {version} in {path} is not supported; versions 0.30 to 0.32 are")]
    Version { path: PathBuf, version: String },
    /// The C++ compiler is missing or refuses the shim.
    #[error(
        "cannot compile the C interface to MLX: {0}; it needs a compiler of C++20, by the name c++, g++ or clang++, or in $CXX"
    )]
    Compile(String),
    /// The shim or libmlx does not load.
    #[error("cannot load {path}: {what}")]
    Load { path: PathBuf, what: String },
    /// The loaded library fails a first computation.
    #[error("MLX {version} does not work here: {what}")]
    Probe { version: String, what: String },
    /// The device is not there.
    #[error("device `{device}`: {what}")]
    Device { device: String, what: String },
    /// A file operation failed.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Why a node did not run. The session adds the chain, the instruction and the node's name.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum OpError {
    /// The node's rule refuses its operands.
    #[error(transparent)]
    Infer(Box<InferError>),
    /// MLX refuses.
    #[error(transparent)]
    Mlx(#[from] Failure),
    /// The node does not take this element type.
    #[error("it does not take {0}")]
    DType(DType),
    /// The rule left a size open that must be known at run time.
    #[error("the shape of {0} is not known")]
    Open(flambeau_ir::Tid),
    /// An index lies outside of its axis.
    #[error("index {index} is out of range for size {size}")]
    Index { index: i64, size: usize },
    /// A node of a chain failed.
    #[error("chain {}, instruction {} ({}): {}", .0.chain, .0.instruction, .0.node, .0.cause)]
    At(Box<At>),
    /// The operands' values break the node's contract.
    #[error("{0}")]
    Value(String),
}

/// Where a node failed, and why.
#[derive(Clone, Debug)]
pub(crate) struct At {
    pub(crate) chain: u32,
    pub(crate) instruction: u32,
    pub(crate) node: &'static str,
    pub(crate) cause: OpError,
}

impl From<InferError> for OpError {
    fn from(error: InferError) -> OpError {
        OpError::Infer(Box::new(error))
    }
}

impl OpError {
    /// An [`OpError::Value`].
    pub(crate) fn value(what: impl Into<String>) -> OpError {
        OpError::Value(what.into())
    }
}

/// Result of running a node.
pub(crate) type Result<T, E = OpError> = std::result::Result<T, E>;
