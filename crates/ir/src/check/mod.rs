//! The checker: which graphs may be executed or written. Its module documentation is its checklist.
//!
//! **Counts.** Slots, values, chains, nodes of a chain, entries of maps, names, metadata and lists are within
//! [`limits`](crate::limits). The main chain exists, and the init chain if one is named.
//!
//! **Maps.** Input maps name input slots and values, each once; output maps name output slots and values; the buffer map
//! names every buffer slot once. Names refer to slots that exist. Every constant has a name that is not empty.
//!
//! **Metadata.** There is one entry for every slot that is not temporary. Ranks are within the limit, element types are those of
//! [`DType::is_node_dtype`](flambeau_tensor::DType::is_node_dtype), sizes fit 32 bits, dynamic bounds are in order, and a dim
//! order is row-major. Constants and buffers have static shapes of bounded size.
//!
//! **Nodes.** Every slot of every node exists, in every chain, reached or not. Nodes never write inputs, and write constants only
//! in chains that the init chain alone reaches.
//!
//! **Calls.** Chains that nodes run exist; no chain reaches itself; calls nest to a bounded depth; and the nodes of all chains,
//! counted once for every place that runs them, are boundedly many.
//!
//! **Flow.** The rules of [`infer`](crate::infer) accept the init chain and then the main chain, where a dynamic size is a symbol
//! within its bounds:
//! - no slot is read before it is written. At the start of the init chain constants and buffers are set; at the start of the
//!   main chain inputs are too, and temporaries, outputs and values are not;
//! - what the branches of an `If` leave is merged: sizes and values that differ become unknown, and a slot that one branch
//!   leaves unset, or the two leave with different types or ranks, is unset;
//! - the body of a `Scan` is accepted with its slices, and stacks what it leaves;
//! - every output is set at the end of the main chain;
//! - each chain leaves buffers with their declared element types and shapes, as far as sizes are known.
//!
//! What remains for an engine to prove: that the data of a constant have the length of its metadata; sizes that depend on the
//! call, by the same rules; that each step of a `Scan` leaves what the first one did, for the checker follows the body once; and
//! that a run leaves buffers in their declared shapes.

pub(crate) mod flow;
mod structure;
#[cfg(test)]
mod tests;

use std::fmt;

use flambeau_tensor::Expr;

use crate::{Graph, InferError, Node, Slot, SlotClass, Spec, Tid, infer::Env};

/// A graph that [`check`] has accepted, with what it found out on the way.
#[derive(Clone, Debug)]
pub struct Checked {
    graph: Graph,
    results: Vec<Content>,
}

impl Checked {
    /// The graph, no longer marked as accepted.
    pub fn into_inner(self) -> Graph {
        self.graph
    }

    /// Contents of each entry of the output map after a run, in order. Sizes that depend on the call are symbolic. Element types
    /// are those that nodes produce; a caller may ask for others (see [`Session::run`](crate::engine::Session::run)).
    pub fn results(&self) -> &[Content] {
        &self.results
    }

    /// Calls `f` on every node that a run can reach, in order, with what slots hold before it.
    pub fn visit(&self, f: &mut dyn FnMut(&Node, &Env)) {
        let seen = flow::check(&self.graph, &mut |_, _, node, env| f(node, env));
        debug_assert!(seen.is_ok(), "the graph was accepted before");
    }
}

impl std::ops::Deref for Checked {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        &self.graph
    }
}

/// Contents of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Tensor(Spec),
    Value(Expr),
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Tensor(spec) => spec.fmt(f),
            Content::Value(value) => value.fmt(f),
        }
    }
}

/// Why a graph is refused, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct CheckError {
    pub place: Place,
    pub fault: Box<Fault>,
}

/// The part of a graph that an error speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The graph as a whole.
    Graph,
    /// A chain as a whole.
    Chain(usize),
    /// A node. The field is the one that names the slot at fault, if the fault is about a slot.
    Node { chain: usize, instruction: usize, node: &'static str, field: Option<&'static str> },
    /// An entry of a map or list of the graph.
    Entry { list: &'static str, index: usize },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Graph => f.write_str("graph"),
            Place::Chain(chain) => write!(f, "chain {chain}"),
            Place::Entry { list, index } => write!(f, "{list} {index}"),
            Place::Node { chain, instruction, node, field } => {
                write!(f, "chain {chain}, instruction {instruction}, {node}")?;
                field.map_or(Ok(()), |field| write!(f, ".{field}"))
            }
        }
    }
}

/// Error of a refused graph.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    #[error("{found} {what}, at most {limit} are allowed")]
    TooMany { what: &'static str, found: u64, limit: u64 },
    #[error("chain {found} does not exist, there are {chains}")]
    NoChain { found: u64, chains: usize },
    #[error("slot {0} does not exist")]
    NoSlot(Slot),
    #[error("slot {slot} is of class {found:?}, expected {expected:?}")]
    Class { slot: Tid, found: SlotClass, expected: SlotClass },
    #[error("slot {0} occurs twice")]
    Twice(Slot),
    #[error("buffer {0} is not in the buffer map")]
    Unmapped(Tid),
    #[error("constant {0} has no name, so nothing says what its data are")]
    Unnamed(Tid),
    #[error("{found} metadata entries for {expected} slots that are not temporary")]
    MetaCount { found: usize, expected: u64 },
    #[error("metadata of {slot}: {what}")]
    Meta { slot: Tid, what: String },
    #[error("writes input {0}")]
    WritesInput(Tid),
    #[error("writes constant {0} outside of the init chain")]
    WritesConstant(Tid),
    #[error("runs itself")]
    Recursion,
    #[error("{0} is not set when the main chain ends")]
    NoResult(Slot),
    #[error("leaves buffer {slot} as {found}, declared as {declared}")]
    Buffer { slot: Tid, found: String, declared: String },
    #[error(transparent)]
    Infer(#[from] InferError),
}

type Result<T, E = CheckError> = std::result::Result<T, E>;

fn refuse<T>(place: Place, fault: Fault) -> Result<T> {
    Err(CheckError { place, fault: Box::new(fault) })
}

/// Accepts or refuses a graph. Takes time and memory in proportion to the graph's nodes, whatever numbers stand in them.
///
/// # Errors
/// [`CheckError`] says where and why.
pub fn check(graph: Graph) -> Result<Checked> {
    structure::check(&graph)?;
    let results = flow::check(&graph, &mut |_, _, _, _| {})?;
    Ok(Checked { graph, results })
}
