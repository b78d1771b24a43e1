//! What recognising runs of nodes needs to know of the chain around them.

use flambeau_ir::{Checked, Node, SlotClass, Tid};

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
