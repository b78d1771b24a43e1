//! What goes wrong while a node runs.

pub use flambeau_ir::engine::{At, OpError};

/// Result of running a node.
pub(crate) type Result<T, E = OpError> = std::result::Result<T, E>;
