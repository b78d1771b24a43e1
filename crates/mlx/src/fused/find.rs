//! Pattern matching over the nodes of a chain.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Range,
};

use flambeau_ir::{Checked, In, Node, Role, Slot as GraphSlot, SlotClass, Tid};
use flambeau_tensor::DType;

use super::{
    refusal::{Form, Refusal},
    uses,
};

/// A chain and its graph.
pub(super) struct Scope<'a> {
    pub(super) graph: &'a Checked,
    pub(super) nodes: &'a [Node],
    /// Runs of nodes that match no kernel.
    refusals: RefCell<Vec<Refusal>>,
    /// The last requirement that the current candidate did not meet.
    unmet: Cell<Option<&'static str>>,
}

impl<'a> Scope<'a> {
    pub(super) fn new(graph: &'a Checked, nodes: &'a [Node]) -> Scope<'a> {
        Scope { graph, nodes, refusals: RefCell::default(), unmet: Cell::new(None) }
    }

    /// `None`, with the reason kept for the current candidate, if a requirement is not met.
    pub(super) fn require(&self, is_met: bool, why: &'static str) -> Option<()> {
        if !is_met {
            self.unmet.set(Some(why));
        }
        is_met.then_some(())
    }

    /// Matches a form from node `from` on. `find` keeps the index of its latest node in the cell.
    /// After a failed match, that node is recorded.
    pub(super) fn candidate<T>(&self, form: Form, from: usize, find: impl FnOnce(&Cell<usize>) -> Option<T>) -> Option<T> {
        self.unmet.set(None);
        let at = Cell::new(from);
        let found = find(&at);
        if found.is_none() {
            let why = self.unmet.take();
            self.refusals.borrow_mut().push(Refusal { form, from, at: at.get(), why });
        }
        found
    }

    /// Records a match that is no step after all.
    pub(super) fn refuse(&self, form: Form, nodes: Range<usize>, why: &'static str) {
        self.refusals.borrow_mut().push(Refusal { form, from: nodes.start, at: nodes.end - 1, why: Some(why) });
    }

    /// The recorded refusals, in the order of their first nodes.
    pub(super) fn into_refusals(self) -> Vec<Refusal> {
        let mut refusals = self.refusals.into_inner();
        refusals.sort_by_key(|refusal| refusal.from);
        refusals
    }

    pub(super) fn is_constant(&self, tid: Tid) -> bool {
        self.graph.slots.class(tid) == Some(SlotClass::Constant)
    }

    pub(super) fn is_buffer(&self, tid: Tid) -> bool {
        self.graph.slots.class(tid) == Some(SlotClass::Buffer)
    }

    /// Whether no node from `end` on reads the slot's contents from before `end`.
    pub(super) fn is_dead(&self, tid: Tid, end: usize) -> bool {
        if self.graph.slots.class(tid) != Some(SlotClass::Temp) {
            return false;
        }
        for node in &self.nodes[end.min(self.nodes.len())..] {
            let (reads, writes) = uses(node, tid);
            if reads || !node.chains().is_empty() {
                return false;
            }
            if writes {
                return true;
            }
        }
        true
    }
}

/// A slot's content: the slot, and the node of the run that wrote it, if one did.
pub(super) type Content = (Tid, Option<usize>);

/// Reads nodes in order and tracks the last writer of each slot.
pub(super) struct Matcher<'s, 'a> {
    pub(super) scope: &'s Scope<'a>,
    pub(super) at: usize,
    pub(super) writers: BTreeMap<Tid, usize>,
    /// The current node's operands, with their writers.
    reads: Vec<Content>,
    /// Unrelated interleaved nodes.
    pub(super) kept: Vec<Node>,
    /// The latest node.
    place: &'s Cell<usize>,
}

/// The next node of a reader, if it is of the given kind.
macro_rules! node {
    ($reader:expr, $kind:ident) => {
        match $reader.next()? {
            Node::$kind(node) => node,
            _ => return None,
        }
    };
}
pub(super) use node;

/// The result of the next node, if it is of the given one-operand kind and its operand is the given
/// content.
macro_rules! applied {
    ($reader:expr, $kind:ident, $x:expr) => {{
        let node = node!($reader, $kind);
        $reader.reads(node.x, $x)?;
        $reader.wrote(node.out.0)
    }};
}
pub(super) use applied;

/// A norm with a constant weight, and an optional conversion of its result.
pub(super) struct Norm {
    /// The row before the norm.
    pub(super) x: Tid,
    pub(super) weight: Tid,
    pub(super) eps: f32,
    /// The type after the conversion.
    pub(super) narrows: Option<DType>,
    /// The row after both.
    pub(super) row: Content,
}

impl<'s, 'a> Matcher<'s, 'a> {
    /// Reads from a node on, and stores the index of the latest node in `place`.
    pub(super) fn new(scope: &'s Scope<'a>, place: &'s Cell<usize>) -> Matcher<'s, 'a> {
        Matcher { scope, at: place.get(), writers: BTreeMap::new(), reads: Vec::new(), kept: Vec::new(), place }
    }

    /// The next node that does not compute sizes.
    pub(super) fn next(&mut self) -> Option<&'a Node> {
        let mut node = self.scope.nodes.get(self.at)?;
        while matches!(node, Node::SymSize(_) | Node::AddInt(_) | Node::ItemInt(_) | Node::Full(_)) {
            self.keep(node)?;
            self.at += 1;
            node = self.scope.nodes.get(self.at)?;
        }
        self.place.set(self.at);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        node.walk(&mut |role, slot| {
            if let GraphSlot::Tensor(tid) = slot {
                if role == Role::Write { writes.push(tid) } else { reads.push((tid, self.writers.get(&tid).copied())) }
            }
        });
        self.reads = reads;
        self.writers.extend(writes.into_iter().map(|tid| (tid, self.at)));
        self.at += 1;
        Some(node)
    }

    /// Keeps an unrelated node, which must not read the results of the matched nodes.
    fn keep(&mut self, node: &Node) -> Option<()> {
        let mut free = true;
        node.walk(&mut |_, slot| free &= !matches!(slot, GraphSlot::Tensor(tid) if self.writers.contains_key(&tid)));
        self.kept.push(node.clone());
        self.scope.require(free, "a node among the others reads a result inside")
    }

    /// The current node's content for a slot that it reads.
    pub(super) fn read(&self, slot: In) -> Option<Content> {
        self.reads.iter().find(|(tid, _)| *tid == slot.0).copied()
    }

    /// Whether the current node reads the given content from a slot.
    pub(super) fn reads(&self, slot: In, content: Content) -> Option<()> {
        (self.read(slot) == Some(content)).then_some(())
    }

    /// The content that the current node wrote.
    pub(super) fn wrote(&self, tid: Tid) -> Content {
        (tid, Some(self.at - 1))
    }

    /// Whether the current node reads two contents, in either order.
    pub(super) fn reads_both(&self, a: In, b: In, one: Content, other: Content) -> Option<()> {
        let found = (self.read(a), self.read(b));
        (found == (Some(one), Some(other)) || found == (Some(other), Some(one))).then_some(())
    }

    /// The operand beside the given content.
    pub(super) fn other_operand(&self, a: In, b: In, one: Content) -> Option<Content> {
        match (self.read(a)?, self.read(b)?) {
            (found, other) if found == one => Some(other),
            (other, found) if found == one => Some(other),
            _ => None,
        }
    }

    /// The constant operand beside the given content.
    pub(super) fn constant_operand(&self, a: In, b: In, one: Content) -> Option<Tid> {
        self.other_operand(a, b, one).map(|(tid, _)| tid).filter(|&tid| self.scope.is_constant(tid))
    }

    /// A norm, with the conversion that may follow.
    pub(super) fn norm(&mut self) -> Option<Norm> {
        let norm = node!(self, RMSNorm);
        let weight = norm.weight.filter(|w| self.scope.is_constant(w.0))?.0;
        let (mut row, mut narrows) = (self.wrote(norm.out.0), None);
        if let Some(Node::AsType(cast)) = self.scope.nodes.get(self.at) {
            self.next()?;
            self.reads(cast.x, row)?;
            (row, narrows) = (self.wrote(cast.out.0), Some(cast.scalar_type));
        }
        Some(Norm { x: norm.x.0, weight, eps: norm.eps, narrows, row })
    }

    /// Whether all results except `outs` are dead.
    pub(super) fn leaves_only(&self, outs: &[Tid]) -> Option<()> {
        let kept = |tid: Tid| self.kept.iter().any(|node| super::uses(node, tid).1);
        let is_dead = self.writers.keys().all(|&t| outs.contains(&t) || kept(t) || self.scope.is_dead(t, self.at));
        self.scope.require(is_dead, "a later node reads a result inside")
    }
}
