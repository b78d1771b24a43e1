//! Errors between Flambeau and MLX.

use std::path::PathBuf;

pub(crate) use flambeau_ir::engine::OpError;

/// Reason why the engine is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No MLX was found.
    #[error("no MLX was found; looked at {}; install it with `pip install mlx` (on Linux: `mlx[cpu]`, or `mlx[cuda13]` for NVIDIA GPUs), or pass --mlx-path", list(.0))]
    Missing(Vec<PathBuf>),
    /// The folder holds no MLX.
    #[error("{path} holds no MLX: {what}")]
    Incomplete { path: PathBuf, what: String },
    /// The shim does not support this version.
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

/// Result of running a node.
pub(crate) type Result<T, E = OpError> = std::result::Result<T, E>;
