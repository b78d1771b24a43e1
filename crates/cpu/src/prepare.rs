//! Preparation of nodes: their conversion to calls.

use flambeau_ir::{Node, for_each_node};

use crate::{obstacle::Prepared, plan::Planner};

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
    /// An [`Obstacle`](crate::obstacle::Obstacle): `Dynamic` if the work depends on unknown values,
    /// returned before the first call, so that no call is wasted; `Failed` if the operands break
    /// the node's contract.
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared;
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
