//! The engine's half of every node.

use flambeau_ir::{Node, for_each_node};

use crate::{cx::Cx, error::Result};

/// How the engine runs a kind of node.
pub(crate) trait Eval {
    /// Whether the rule runs on the actual sizes first. Nodes that only move what slots hold or run chains do without.
    const HAS_RULE: bool = true;

    /// Whether the engine can run this node.
    fn is_supported(&self) -> bool {
        true
    }

    /// Reads the operands and binds the results.
    ///
    /// # Errors
    /// If the operands' values break the node's contract; types and shapes have passed the rule.
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()>;
}

macro_rules! dispatch_eval {
    ($(#[doc = $doc:literal] $tag:literal $name:ident { $($fields:tt)* } $facts:tt;)*) => {
        /// Whether the engine can run the node.
        pub(crate) fn is_supported(node: &Node) -> bool {
            match node { $(Node::$name(n) => n.is_supported()),* }
        }

        /// Runs a node: its rule on the actual sizes, then its implementation.
        #[inline]
        pub(crate) fn eval(node: &Node, cx: &mut Cx<'_>) -> Result<()> {
            match node { $(Node::$name(n) => {
                if <flambeau_ir::$name as Eval>::HAS_RULE {
                    cx.m.infer(node)?;
                }
                n.eval(cx)
            }),* }
        }
    };
}
for_each_node!(dispatch_eval);
