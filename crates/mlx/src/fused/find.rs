//! Pattern matching over the nodes of a chain.

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
pub(super) struct Reader<'s, 'a> {
    pub(super) scope: &'s Scope<'a>,
    pub(super) at: usize,
    pub(super) writers: BTreeMap<Tid, usize>,
    /// The current node's operands, with their writers.
    reads: Vec<Content>,
    /// Unrelated interleaved nodes.
    pub(super) kept: Vec<Node>,
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

impl<'s, 'a> Reader<'s, 'a> {
    pub(super) fn new(scope: &'s Scope<'a>, at: usize) -> Reader<'s, 'a> {
        Reader { scope, at, writers: BTreeMap::new(), reads: Vec::new(), kept: Vec::new() }
    }

    /// The next node that does not compute sizes.
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

    /// Keeps an unrelated node, which must not read the results of the matched nodes.
    fn keep(&mut self, node: &Node) -> Option<()> {
        let mut free = true;
        node.walk(&mut |_, slot| free &= !matches!(slot, GraphSlot::Tensor(tid) if self.writers.contains_key(&tid)));
        self.kept.push(node.clone());
        free.then_some(())
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
    pub(super) fn beside(&self, a: In, b: In, one: Content) -> Option<Content> {
        match (self.read(a)?, self.read(b)?) {
            (found, other) if found == one => Some(other),
            (other, found) if found == one => Some(other),
            _ => None,
        }
    }

    /// The constant operand beside the given content.
    pub(super) fn constant_beside(&self, a: In, b: In, one: Content) -> Option<Tid> {
        self.beside(a, b, one).map(|(tid, _)| tid).filter(|&tid| self.scope.is_constant(tid))
    }

    /// Whether all results except `outs` are dead.
    pub(super) fn leaves_only(&self, outs: &[Tid]) -> Option<()> {
        let kept = |tid: Tid| self.kept.iter().any(|node| super::uses(node, tid).1);
        self.writers.keys().all(|&t| outs.contains(&t) || kept(t) || self.scope.is_dead(t, self.at)).then_some(())
    }
}
