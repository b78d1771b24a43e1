//! Errors of a running node.

pub(crate) use flambeau_ir::engine::OpError;

/// Result of running a node.
pub(crate) type Result<T, E = OpError> = std::result::Result<T, E>;
