//! The checker decides which graphs may be executed or written. This documentation is its
//! checklist.
//!
//! **Counts.** Slots, values, chains, nodes of a chain, entries of maps, names, metadata and lists
//! are within [`limits`](crate::limits). The main chain exists, and so does the init chain if one
//! is named.
//!
//! **Maps.** Input maps name input slots and values, each once. Output maps name output slots and
//! values. The buffer map names every buffer slot once. Names refer to existing slots. Every
//! constant has a non-empty name.
//!
//! **Metadata.** There is one entry for every slot that is not temporary. Ranks are within the
//! limit, sizes fit 32 bits, and dynamic bounds are in order. Element types satisfy
//! [`DType::is_node_dtype`](flambeau_tensor::DType::is_node_dtype). A dim order is row-major.
//! Constants and buffers have static shapes of bounded size.
//!
//! **Nodes.** Every slot of every node exists, also in chains that no run reaches. Nodes never
//! write inputs. They write constants only in chains that only the init chain reaches.
//!
//! **Calls.** Chains that nodes run exist, and no chain reaches itself. The depth of calls is
//! bounded. The total number of nodes is bounded, where a chain counts once per call site.
//!
//! **Flow.** The rules of [`infer`](crate::infer) accept the init chain and then the main chain. A
//! dynamic size is a symbol within its bounds.
//! - No slot is read before it is written. Constants and buffers are set at the start of the init
//!   chain. Inputs are set at the start of the main chain, but temporaries, outputs and values are
//!   not.
//! - The contents after both branches of an `If` are merged. Different sizes and values become
//!   unknown. A slot is unset if one branch leaves it unset, or if types or ranks differ.
//! - The body of a `Scan` is accepted with its slices, and its outputs are stacked.
//! - Every output is set at the end of the main chain.
//! - Each chain leaves buffers with their declared element types and shapes, as far as sizes are
//!   known.
//!
//! Engines must prove the rest. The data of a constant have the length of its metadata. Sizes that
//! depend on the call satisfy the same rules. Each step of a `Scan` leaves the same types and
//! shapes as the first, because the checker follows the body once. A run leaves buffers in their
//! declared shapes.

pub(crate) mod flow;
mod structure;
#[cfg(test)]
mod tests;

use std::fmt;

use flambeau_tensor::Expr;

use crate::{Graph, InferError, Node, Slot, SlotClass, Spec, Tid, infer::Env};

/// A graph that [`check`] has accepted, with the inferred results.
#[derive(Clone, Debug)]
pub struct Checked {
    graph: Graph,
    results: Vec<Content>,
}

impl Checked {
    /// Returns the graph without the proof of the check.
    pub fn into_inner(self) -> Graph {
        self.graph
    }

    /// Contents of each entry of the output map after a run, in order. Sizes that depend on the
    /// call are symbolic. Nodes determine the element types. Results of a run have the types of the
    /// metadata instead (see [`Session::run`](crate::engine::Session::run)).
    pub fn results(&self) -> &[Content] {
        &self.results
    }

    /// Calls `f` on every node that a run can reach, in order, with the slot contents before it.
    pub fn visit(&self, f: &mut dyn FnMut(&Node, &Env)) {
        self.visit_places(&mut |_, _, node, env| f(node, env));
    }

    /// As [`visit`](Checked::visit), with the chain and the position of each node.
    pub fn visit_places(&self, f: &mut dyn FnMut(usize, usize, &Node, &Env)) {
        let seen = flow::check(&self.graph, f);
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

/// Reason why a graph is refused, with its place.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct CheckError {
    pub place: Place,
    pub fault: Box<Fault>,
}

/// The part of a graph that an error concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The graph as a whole.
    Graph,
    /// A chain as a whole.
    Chain(usize),
    /// A node. `field` holds the slot at fault, if the fault concerns a slot.
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

/// Accepts or refuses a graph. Time and memory are proportional to the number of nodes, independent
/// of the numbers in them.
///
/// # Errors
/// [`CheckError`] states the place and the reason.
pub fn check(graph: Graph) -> Result<Checked> {
    structure::check(&graph)?;
    let results = flow::check(&graph, &mut |_, _, _, _| {})?;
    Ok(Checked { graph, results })
}
