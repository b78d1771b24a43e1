//! The engine's half of every node.

use std::sync::Arc;

use flambeau_ir::{ChainId, Checked, Effect, Node, Role, Slot as GraphSlot, engine::Profile, for_each_node};

use crate::{
    cx::{Cx, Machine, Support},
    error::{OpError, Result},
    profile,
    rows::{One, Rows},
};

/// Evaluation of a kind of node.
pub(crate) trait Eval {
    /// Whether the rule runs on the actual sizes first. Nodes that only move slot contents or run
    /// chains need no rule.
    const HAS_RULE: bool = true;

    /// Whether the engine can run this node.
    fn is_supported(&self, _context: &Support) -> bool {
        true
    }

    /// Joint evaluation for several sequences, given the slots of one; `None` if the node runs
    /// per sequence.
    fn rows(&self, _one: One<'_>) -> Option<Rows> {
        None
    }

    /// Reads the operands and binds the results, which MLX computes later.
    ///
    /// # Errors
    /// If the operands' values break the node's contract; types and shapes have passed the rule.
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()>;
}

/// Refuses a node that would fix an open value of the recorded run.
fn admit(node: &Node, cx: &Cx<'_>) -> Result<()> {
    let takes_values =
        matches!(node, Node::AddInt(_) | Node::SubtractInt(_) | Node::Slice(_) | Node::SliceUpdate(_) | Node::Rope(_));
    let takes_padded = matches!(node, Node::Sdpa(_) | Node::Contiguous(_) | Node::IdCopy(_) | Node::SymSize(_));
    let mut fault = match node.effect() {
        Effect::Stateful => Some("state outside of the graph"),
        Effect::Random(None) => Some("random numbers without a seed"),
        Effect::Random(Some(_)) | Effect::Pure | Effect::RunsChains => None,
    };
    node.walk(&mut |role, slot| match slot {
        _ if role == Role::Write => {}
        GraphSlot::Value(vid) if !takes_values && cx.origin(vid).is_some() => fault = Some("an open integer"),
        GraphSlot::Tensor(tid) if !takes_padded && cx.peek(tid).is_ok_and(|s| s.padded.is_some()) => {
            fault = Some("a tensor of open length");
        }
        _ => {}
    });
    fault.map_or(Ok(()), |what| Err(OpError::value(format!("cannot trace {what}"))))
}

/// The nodes of a chain.
///
/// # Errors
/// If the graph has no such chain.
pub(crate) fn nodes_of(graph: &Checked, chain: ChainId) -> Result<&[Node]> {
    let nodes = graph.chains.get(chain.0 as usize).map(|chain| &chain[..]);
    nodes.ok_or_else(|| OpError::value(format!("there is no chain {}", chain.0)))
}

/// Runs a chain's nodes one by one.
///
/// # Errors
/// The first failure, with its place.
pub(crate) fn run_chain(m: &mut Machine, chain: ChainId) -> Result<()> {
    let graph = Arc::clone(&m.graph);
    for (at, node) in nodes_of(&graph, chain)?.iter().enumerate() {
        let start = m.profile.as_ref().map(Profile::now);
        let result = eval(node, &mut Cx { m: &mut *m });
        let step = ((chain.0 == graph.main).then_some(at as u32), std::slice::from_ref(node));
        let result = result.and_then(|()| start.map_or(Ok(()), |start| profile::finish(m, step, start)));
        result.map_err(|error| error.at(chain.0, at, node))?;
    }
    Ok(())
}

macro_rules! dispatch_eval {
    ($(#[doc = $doc:literal] $tag:literal $name:ident { $($fields:tt)* } $facts:tt;)*) => {
        /// Whether the engine can run the node.
        pub(crate) fn is_supported(node: &Node, support: &Support) -> bool {
            match node { $(Node::$name(n) => n.is_supported(support)),* }
        }

        /// Joint evaluation for several sequences.
        pub(crate) fn rows(node: &Node, one: One<'_>) -> Option<Rows> {
            match node { $(Node::$name(n) => n.rows(one)),* }
        }

        /// Runs a node: its rule on the actual sizes, then its implementation.
        pub(crate) fn eval(node: &Node, cx: &mut Cx<'_>) -> Result<()> {
            if cx.m.open.is_some() {
                admit(node, cx)?;
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
