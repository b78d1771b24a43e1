//! What recognising runs of nodes needs to know of the chain around them.

use std::collections::BTreeMap;

use flambeau_ir::{Checked, In, Node, Role, Slot as GraphSlot, SlotClass, Tid};

use super::uses;

/// A chain and its graph.
pub(super) struct Scope<'a> {
    pub(super) graph: &'a Checked,
    pub(super) nodes: &'a [Node],
}

impl<'a> Scope<'a> {
    pub(super) fn new(graph: &'a Checked, nodes: &'a [Node]) -> Scope<'a> {
        Scope { graph, nodes }
    }

    pub(super) fn is_constant(&self, tid: Tid) -> bool {
        self.graph.slots.class(tid) == Some(SlotClass::Constant)
    }

    pub(super) fn is_buffer(&self, tid: Tid) -> bool {
        self.graph.slots.class(tid) == Some(SlotClass::Buffer)
    }

    /// Whether nobody reads what the slot holds before node `end`, from there on.
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

/// Reads nodes in order, and knows which of them wrote what a slot holds.
pub(super) struct Reader<'s, 'a> {
    pub(super) scope: &'s Scope<'a>,
    pub(super) at: usize,
    pub(super) writers: BTreeMap<Tid, usize>,
    /// What the node in hand reads, and who wrote it before.
    reads: Vec<Content>,
    /// Nodes of other matters that stand between.
    pub(super) kept: Vec<Node>,
}

/// The next node of a reader, if it is of a kind.
macro_rules! node {
    ($reader:expr, $kind:ident) => {
        match $reader.next()? {
            Node::$kind(node) => node,
            _ => return None,
        }
    };
}
pub(super) use node;

/// What the next node of a reader leaves, if it is of a kind with one operand, and that is the given content.
macro_rules! applied {
    ($reader:expr, $kind:ident, $x:expr) => {{
        let node = node!($reader, $kind);
        $reader.reads(node.x, $x)?;
        $reader.wrote(node.out.0)
    }};
}
pub(super) use applied;

impl<'s, 'a> Reader<'s, 'a> {
    pub(super) fn new(scope: &'s Scope<'a>, at: usize) -> Reader<'s, 'a> {
        Reader { scope, at, writers: BTreeMap::new(), reads: Vec::new(), kept: Vec::new() }
    }

    /// The next node, behind those that compute sizes.
    pub(super) fn next(&mut self) -> Option<&'a Node> {
        let mut node = self.scope.nodes.get(self.at)?;
        while matches!(node, Node::SymSize(_) | Node::AddInt(_) | Node::ItemInt(_) | Node::Full(_)) {
            self.keep(node)?;
            self.at += 1;
            node = self.scope.nodes.get(self.at)?;
        }
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

    /// A node of another matter: it has no part in what the others compute.
    fn keep(&mut self, node: &Node) -> Option<()> {
        let mut free = true;
        node.walk(&mut |_, slot| free &= !matches!(slot, GraphSlot::Tensor(tid) if self.writers.contains_key(&tid)));
        self.kept.push(node.clone());
        free.then_some(())
    }

    /// What the node in hand reads from a slot.
    pub(super) fn read(&self, slot: In) -> Option<Content> {
        self.reads.iter().find(|(tid, _)| *tid == slot.0).copied()
    }

    /// Whether the node in hand reads a content from a slot.
    pub(super) fn reads(&self, slot: In, content: Content) -> Option<()> {
        (self.read(slot) == Some(content)).then_some(())
    }

    /// What the node in hand wrote.
    pub(super) fn wrote(&self, tid: Tid) -> Content {
        (tid, Some(self.at - 1))
    }

    /// Whether the node in hand reads two contents, in either order.
    pub(super) fn reads_both(&self, a: In, b: In, one: Content, other: Content) -> Option<()> {
        let found = (self.read(a), self.read(b));
        (found == (Some(one), Some(other)) || found == (Some(other), Some(one))).then_some(())
    }

    /// The other operand of two, one of which is a content.
    pub(super) fn beside(&self, a: In, b: In, one: Content) -> Option<Content> {
        match (self.read(a)?, self.read(b)?) {
            (found, other) if found == one => Some(other),
            (other, found) if found == one => Some(other),
            _ => None,
        }
    }

    /// The constant among two operands of which the other is a content.
    pub(super) fn constant_beside(&self, a: In, b: In, one: Content) -> Option<Tid> {
        self.beside(a, b, one).map(|(tid, _)| tid).filter(|&tid| self.scope.is_constant(tid))
    }

    /// Whether nobody reads what the nodes left, but for some slots.
    pub(super) fn leaves_only(&self, outs: &[Tid]) -> Option<()> {
        let kept = |tid: Tid| self.kept.iter().any(|node| super::uses(node, tid).1);
        self.writers.keys().all(|&t| outs.contains(&t) || kept(t) || self.scope.is_dead(t, self.at)).then_some(())
    }
}
