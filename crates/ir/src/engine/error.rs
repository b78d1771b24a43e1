//! Errors of engines.

use std::{error::Error, fmt, sync::Arc};

use flambeau_tensor::DType;

use super::shared::StateMismatch;
use crate::{Node, Tid};

/// Error of an engine, with readable text.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine has no implementation of some of the program's nodes.
    #[error("the {engine} engine does not implement {}", .nodes.join(", "))]
    Unsupported { engine: &'static str, nodes: Vec<String> },
    /// A constant is missing or has the wrong length.
    #[error("constant `{key}`: {what}")]
    Constant { key: String, what: String },
    /// The device has too little memory for the program. The text states the needed, available and
    /// allowed memory.
    #[error("out of memory: {0}")]
    Memory(String),
    /// The call's arguments do not match the program.
    #[error("{0}")]
    Arguments(String),
    /// Sessions that share state describe it differently.
    #[error(transparent)]
    Shared(#[from] StateMismatch),
    /// A node failed.
    #[error("chain {chain}, instruction {instruction} ({node}): {what}")]
    Node { chain: u32, instruction: u32, node: &'static str, what: String },
}

/// Reason why a node failed. Every step of an engine may return it, so long causes are behind a
/// pointer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OpError {
    /// The node's rule, a kernel or a library refuses the operands.
    Refused(Arc<dyn Error + Send + Sync>),
    /// The node does not support this element type.
    DType(DType),
    /// A tensor of this shape exceeds the engine's limit.
    TooLarge(Box<[usize]>),
    /// The rule did not determine a size that must be known at run time.
    Open(Tid),
    /// An index is outside of its axis.
    Index { index: i64, size: usize },
    /// The operands' values violate the node's contract.
    Value(String),
    /// A node of a chain failed.
    At(Box<At>),
}

/// Place and cause of a node's failure.
#[derive(Clone, Debug)]
pub struct At {
    /// Index of the chain.
    pub chain: u32,
    /// Index in the chain.
    pub instruction: u32,
    /// The node's name.
    pub node: &'static str,
    pub cause: OpError,
}

impl OpError {
    /// An [`OpError::Value`].
    pub fn value(what: impl Into<String>) -> OpError {
        OpError::Value(what.into())
    }

    /// An [`OpError::TooLarge`].
    pub fn too_large(shape: &[usize]) -> OpError {
        OpError::TooLarge(shape.into())
    }

    /// Adds the node's place to a failure. The innermost place is kept: a node that runs a chain
    /// reports the place inside that chain.
    pub fn at(self, chain: u32, instruction: usize, node: &Node) -> OpError {
        match self {
            OpError::At(_) => self,
            cause => OpError::At(Box::new(At { chain, instruction: instruction as u32, node: node.name(), cause })),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for OpError {
    fn from(cause: E) -> OpError {
        OpError::Refused(Arc::new(cause))
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpError::Refused(cause) => cause.fmt(f),
            OpError::DType(dtype) => write!(f, "it does not take {dtype}"),
            OpError::TooLarge(shape) => write!(f, "a tensor of shape {shape:?} is too large"),
            OpError::Open(tid) => write!(f, "the shape of {tid} is not known"),
            OpError::Index { index, size } => write!(f, "index {index} is out of range for size {size}"),
            OpError::Value(what) => f.write_str(what),
            OpError::At(at) => write!(f, "chain {}, instruction {} ({}): {}", at.chain, at.instruction, at.node, at.cause),
        }
    }
}

impl From<OpError> for EngineError {
    fn from(error: OpError) -> EngineError {
        match error {
            OpError::At(at) => {
                let At { chain, instruction, node, cause } = *at;
                EngineError::Node { chain, instruction, node, what: cause.to_string() }
            }
            other => EngineError::Arguments(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InferError, Noop};

    #[test]
    fn the_innermost_place_wins() {
        let node = Node::from(Noop {});
        let inner = OpError::from(InferError::Unset(Tid(3))).at(2, 5, &node);
        let error = EngineError::from(inner.at(0, 1, &node));
        assert_eq!(error.to_string(), format!("chain 2, instruction 5 (Noop): {}", InferError::Unset(Tid(3))));
        assert_eq!(EngineError::from(OpError::value("no")).to_string(), "no");
    }
}
