//! Pattern matching on an SSA graph, and replacement of the matched nodes.

use std::collections::{HashMap, HashSet};

use flambeau_ir::{Node, Out, Role, Slot, SlotRef, Spec, Tid};
use flambeau_tensor::{DType, Expr};

use crate::{
    Constant, Origin, SsaGraph, TensorInfo,
    lower::{NEW, infer_into},
    ssa::SsaNode,
};

/// One rewrite attempt on an SSA graph: queries for the pattern, and the nodes of the replacement.
#[derive(Debug)]
pub(crate) struct Rewrite<'a> {
    ssa: &'a mut SsaGraph,
    producers: &'a HashMap<Tid, Node>,
    /// Number of the root's call.
    call: u32,
    emitted: Vec<SsaNode>,
    n_unknown: u32,
}

impl Rewrite<'_> {
    /// The node that writes a slot.
    pub(crate) fn def(&self, t: Tid) -> Option<&Node> {
        self.producers.get(&t)
    }

    /// Element type and sizes of a slot.
    pub(crate) fn spec(&self, t: Tid) -> &Spec {
        self.ssa.spec(t)
    }

    /// Element type of a slot.
    pub(crate) fn dtype(&self, t: Tid) -> DType {
        self.spec(t).dtype
    }

    /// Sizes of a slot.
    pub(crate) fn dims(&self, t: Tid) -> &[Expr] {
        &self.spec(t).dims
    }

    /// The value of a constant with one element.
    pub(crate) fn scalar(&self, t: Tid) -> Option<f64> {
        self.ssa.scalar(t)
    }

    /// The constant that a slot holds.
    pub(crate) fn constant(&self, t: Tid) -> Option<&std::sync::Arc<Constant>> {
        self.ssa.constant(t)
    }

    /// The operand of a cast, or the slot itself.
    pub(crate) fn uncast(&self, t: Tid) -> Tid {
        match self.def(t) {
            Some(Node::AsType(n)) => n.x.0,
            _ => t,
        }
    }

    /// The operand under any number of size-1 axes, reshapes and broadcasts that keep every element
    /// and its order.
    pub(crate) fn unview(&self, t: Tid) -> Tid {
        match self.def(t) {
            Some(Node::ExpandDims(n)) => self.unview(n.x.0),
            Some(Node::Squeeze(n)) => self.unview(n.x.0),
            Some(Node::Reshape(n)) => self.unview(n.x.0),
            _ => t,
        }
    }

    /// Adds a constant.
    pub(crate) fn add_constant(&mut self, constant: Constant) -> Tid {
        self.add_slot(constant.spec(), Origin::Constant(constant.into()))
    }

    fn add_slot(&mut self, spec: Spec, origin: Origin) -> Tid {
        self.ssa.tensors.push(TensorInfo { spec, origin });
        Tid(self.ssa.tensors.len() as u32 - 1)
    }

    /// Adds a node with one result, written as [`NEW`].
    pub(crate) fn emit(&mut self, node: impl Into<Node>) -> Option<Tid> {
        let out = self.add_slot(Spec::fixed(DType::F32, &[]), Origin::Node);
        self.emit_to(out, node)?;
        Some(out)
    }

    /// Adds the last node of the replacement; its result, written as [`NEW`], becomes the root's.
    /// Adds a cast if the root has another element type; declines the rewrite if the shapes differ.
    pub(crate) fn finish(&mut self, root: Out, node: impl Into<Node>) -> Option<()> {
        let node = node.into();
        let wanted = self.spec(root.0).clone();
        let out = self.emit(node)?;
        let got = self.spec(out).clone();
        let same = |(a, b): (&Expr, &Expr)| a.known_eq(b) != Some(false);
        if got.rank() != wanted.rank() || !got.dims.iter().zip(&wanted.dims).all(same) {
            return None;
        }
        if got.dtype != wanted.dtype {
            let cast = flambeau_ir::AsType { x: flambeau_ir::In(out), out: NEW, scalar_type: wanted.dtype };
            return self.emit_to(root.0, cast);
        }
        let last = self.emitted.last_mut()?;
        last.node.walk_mut(&mut |_, slot| {
            if let SlotRef::Tensor(t) = slot
                && *t == out
            {
                *t = root.0;
            }
        });
        Some(())
    }

    fn emit_to(&mut self, out: Tid, node: impl Into<Node>) -> Option<()> {
        let mut node = node.into();
        node.walk_mut(&mut |role, slot| {
            if let (Role::Write, SlotRef::Tensor(t)) = (role, slot)
                && *t == NEW.0
            {
                *t = out;
            }
        });
        infer_into(self.ssa, &mut self.n_unknown, &node).ok()?;
        self.emitted.push(SsaNode { node, call: self.call });
        Some(())
    }
}

/// Tries a rewrite at every node in order, except at nodes that the rewrite emits.
pub(crate) fn apply_everywhere(ssa: &mut SsaGraph, apply: fn(&mut Rewrite<'_>, &Node) -> Option<()>) {
    let producers = producers(ssa);
    for c in 0..ssa.chains.len() {
        let old = std::mem::take(&mut ssa.chains[c]);
        let mut new = Vec::with_capacity(old.len());
        for entry in old {
            let n_tensors = ssa.tensors.len();
            let mut attempt = Rewrite { ssa, producers: &producers, call: entry.call, emitted: Vec::new(), n_unknown: 1 << 20 };
            if apply(&mut attempt, &entry.node).is_some() {
                new.append(&mut attempt.emitted);
            } else {
                ssa.tensors.truncate(n_tensors);
                new.push(entry);
            }
        }
        ssa.chains[c] = new;
    }
}

fn producers(ssa: &SsaGraph) -> HashMap<Tid, Node> {
    let mut map = HashMap::new();
    let mut twice = HashSet::new();
    for entry in ssa.chains.iter().flatten() {
        entry.node.walk(&mut |role, slot| {
            if let (Role::Write | Role::ReadWrite, Slot::Tensor(t)) = (role, slot)
                && map.insert(t, entry.node.clone()).is_some()
            {
                twice.insert(t);
            }
        });
    }
    // A slot that both branches of a condition write has no single producer.
    map.retain(|t, _| !twice.contains(t));
    map
}

/// Drops nodes without a reader, in every chain that still runs.
pub fn drop_unread(ssa: &mut SsaGraph) {
    let mut live: HashSet<Slot> = ssa.results.iter().copied().collect();
    live.extend(ssa.buffers.iter().map(|&(_, after)| Slot::Tensor(after)));
    let mut kept = vec![Vec::new(); ssa.chains.len()];
    // A chain that another chain runs has a higher number than its caller, so it is visited once
    // its caller is known to be live.
    mark_chain(ssa, 0, &mut live, &mut kept);
    for (chain, keep) in ssa.chains.iter_mut().zip(&kept) {
        let mut keep = keep.iter();
        chain.retain(|_| keep.next().copied().unwrap_or(false));
    }
}

fn mark_chain(ssa: &SsaGraph, c: usize, live: &mut HashSet<Slot>, kept: &mut [Vec<bool>]) {
    let mut keep = vec![false; ssa.chains[c].len()];
    for (i, entry) in ssa.chains[c].iter().enumerate().rev() {
        let chains = entry.node.chains();
        let mut needed = writes_any(&entry.node, live);
        for &sub in &chains {
            needed |= ssa.chains.get(sub.0 as usize).is_some_and(|body| body.iter().any(|e| writes_any(&e.node, live)));
        }
        if !needed {
            continue;
        }
        keep[i] = true;
        entry.node.walk(&mut |role, slot| {
            if role != Role::Write {
                live.insert(slot);
            }
        });
        for sub in chains {
            mark_chain(ssa, sub.0 as usize, live, kept);
        }
    }
    kept[c] = keep;
}

fn writes_any(node: &Node, live: &HashSet<Slot>) -> bool {
    let mut any = false;
    node.walk(&mut |role, slot| any |= role != Role::Read && live.contains(&slot));
    any
}
