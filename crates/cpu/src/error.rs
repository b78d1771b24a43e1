//! What goes wrong while a node runs.

use flambeau_ir::InferError;
use flambeau_tensor::DType;

/// Why a node did not run. The session adds the chain, the instruction and the node's name. Long causes are boxed: every step of
/// the interpreter returns this type.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// The node's rule refuses its operands.
    #[error(transparent)]
    Infer(Box<InferError>),
    /// A kernel refuses its operands.
    #[error(transparent)]
    Kernel(Box<flambeau_kernels::Error>),
    /// The node does not take this element type.
    #[error("it does not take {0}")]
    DType(DType),
    /// A tensor would be larger than the engine allows.
    #[error("a tensor of shape {0:?} is too large")]
    TooLarge(Box<[usize]>),
    /// The rule left a size open that must be known at run time.
    #[error("the shape of {0} is not known")]
    Open(flambeau_ir::Tid),
    /// An index lies outside of its axis.
    #[error("index {index} is out of range for size {size}")]
    Index {
        /// The index as given.
        index: i64,
        /// Size of the axis.
        size: usize,
    },
    /// A node of a chain failed.
    #[error("chain {}, instruction {} ({}): {}", .0.chain, .0.instruction, .0.node, .0.cause)]
    At(Box<At>),
    /// The operands' values break the node's contract.
    #[error("{0}")]
    Value(String),
}

/// Where a node failed, and why.
#[derive(Clone, Debug)]
pub struct At {
    /// Index of the chain.
    pub chain: u32,
    /// Index in the chain.
    pub instruction: u32,
    /// The node's name.
    pub node: &'static str,
    /// What it said.
    pub cause: OpError,
}

impl From<InferError> for OpError {
    fn from(error: InferError) -> OpError {
        OpError::Infer(Box::new(error))
    }
}

impl From<flambeau_kernels::Error> for OpError {
    fn from(error: flambeau_kernels::Error) -> OpError {
        OpError::Kernel(Box::new(error))
    }
}

impl OpError {
    /// An [`OpError::TooLarge`].
    pub(crate) fn too_large(shape: &[usize]) -> OpError {
        OpError::TooLarge(shape.into())
    }

    /// An [`OpError::Value`].
    pub(crate) fn value(what: impl Into<String>) -> OpError {
        OpError::Value(what.into())
    }
}

/// Result of running a node.
pub(crate) type Result<T, E = OpError> = std::result::Result<T, E>;
