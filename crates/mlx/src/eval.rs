//! The engine's half of every node.

use flambeau_ir::{Node, for_each_node};

use crate::{
    cx::Cx,
    error::Result,
    rows::{One, Rows},
};

/// How the engine runs a kind of node.
pub(crate) trait Eval {
    /// Whether the rule runs on the actual sizes first. Nodes that only move slot contents or run
    /// chains need no rule.
    const HAS_RULE: bool = true;

    /// Whether the engine can run this node.
    fn is_supported(&self, _context: &Support) -> bool {
        true
    }

    /// How the node runs once for several sequences, given the slots of one; `None` if it runs per
    /// sequence.
    fn rows(&self, _one: One<'_>) -> Option<Rows> {
        None
    }

    /// Reads the operands and binds the results, which MLX computes later.
    ///
    /// # Errors
    /// If the operands' values break the node's contract; types and shapes have passed the rule.
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()>;
}

/// The properties that decide whether a node is supported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Support {
    /// Whether Metal source can run.
    pub(crate) has_metal: bool,
    /// Whether products with weights in nvfp4, mxfp4 and mxfp8 come out right.
    pub(crate) multiplies_float_codes: bool,
    /// Whether source text of unknown kernels may run.
    pub(crate) allows_custom: bool,
    /// Whether a launch may fill the device and synchronise its blocks: no other thread of the
    /// process launches there.
    pub(crate) fills_device: bool,
}

macro_rules! dispatch_eval {
    ($(#[doc = $doc:literal] $tag:literal $name:ident { $($fields:tt)* } $facts:tt;)*) => {
        /// Whether the engine can run the node.
        pub(crate) fn is_supported(node: &Node, support: &Support) -> bool {
            match node { $(Node::$name(n) => n.is_supported(support)),* }
        }

        /// How the node runs once for several sequences.
        pub(crate) fn rows(node: &Node, one: One<'_>) -> Option<Rows> {
            match node { $(Node::$name(n) => n.rows(one)),* }
        }

        /// Runs a node: its rule on the actual sizes, then its implementation.
        pub(crate) fn eval(node: &Node, cx: &mut Cx<'_>) -> Result<()> {
            if cx.m.trace.is_some() {
                crate::trace::admit(node, cx)?;
            }
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
