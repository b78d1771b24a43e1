//! Reasons why a node is not prepared.

use flambeau_ir::InferError;

use crate::error::{OpError, Result};

/// Result of preparing a node.
pub(crate) type Prepared<T = ()> = Result<T, Obstacle>;

/// Reason why a node is not prepared.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// It has to wait for its turn.
    Dynamic(Dynamic),
    /// It cannot work on these operands, now or later.
    Failed(OpError),
}

/// Reason why a node is prepared at its turn rather than ahead of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Dynamic {
    #[error("sizes of its operands depend on data")]
    Operand,
    #[error("sizes of its results depend on data")]
    Result,
    #[error("an integer that it needs depends on data")]
    Integer,
    #[error("it runs other chains")]
    Chains,
    #[error("a node runs its chain")]
    InChain,
}

impl Dynamic {
    /// Every reason, in order.
    pub(crate) const ALL: [Dynamic; 5] = [Dynamic::Operand, Dynamic::Result, Dynamic::Integer, Dynamic::Chains, Dynamic::InChain];
}

impl From<OpError> for Obstacle {
    fn from(error: OpError) -> Obstacle {
        Obstacle::Failed(error)
    }
}

impl From<InferError> for Obstacle {
    fn from(error: InferError) -> Obstacle {
        Obstacle::Failed(error.into())
    }
}

impl From<flambeau_kernels::Error> for Obstacle {
    fn from(error: flambeau_kernels::Error) -> Obstacle {
        Obstacle::Failed(error.into())
    }
}

impl Obstacle {
    /// The obstacle as a failure of a run, in which nothing is left to wait for.
    pub(crate) fn at_run(self) -> OpError {
        match self {
            Obstacle::Failed(error) => error,
            Obstacle::Dynamic(why) => OpError::value(why.to_string()),
        }
    }
}
