//! Preparation of nodes: their conversion to calls.

use flambeau_ir::{InferError, Node, for_each_node};

use crate::{
    error::{OpError, Result},
    plan::Planner,
};

/// Preparation of a kind of node.
///
/// Each kind of node has one implementation. Usually a node is prepared ahead of a run, and its
/// calls become steps of a plan. If its work depends on the run, it is prepared at run time, and
/// its calls run at once.
pub(crate) trait Prepare {
    /// Whether the engine can run this node.
    fn is_supported(&self) -> bool {
        true
    }

    /// Plans the operations on the operands and binds the results. The node's rule has accepted
    /// types and sizes.
    ///
    /// # Errors
    /// [`Obstacle::Dynamic`] if the work depends on unknown values; returned before the first call,
    /// so that no call is wasted. [`Obstacle::Failed`] if the operands break the node's contract.
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared;
}

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

macro_rules! dispatch_prepare {
    ($(#[doc = $doc:literal] $tag:literal $name:ident { $($fields:tt)* } $facts:tt;)*) => {
        /// Whether the engine can run the node.
        pub(crate) fn is_supported(node: &Node) -> bool {
            match node { $(Node::$name(n) => n.is_supported()),* }
        }

        impl Planner<'_> {
            /// Prepares a node whose rule has run.
            #[inline]
            pub(crate) fn prepare(&mut self, node: &Node) -> Prepared {
                match node { $(Node::$name(n) => n.prepare(self)),* }
            }
        }
    };
}
for_each_node!(dispatch_prepare);
