//! Abstract interpretation: tracks the contents of slots while the chains run.

use std::collections::{HashMap, HashSet};

use flambeau_tensor::Expr;

use super::{CheckError, Content, Fault, Place, Result, refuse, structure::field_of};
use crate::{
    Graph, Infer, InferError, MetaDim, Node, ShapeCx, Slot, SlotClass, Spec, TensorMeta, Tid, Vid,
    infer::{
        Env,
        control::{enter_scan, leave_scan},
    },
    limits::MAX_DIM,
};

/// Called for each node with its chain, its position and the slot contents before it.
pub(crate) type Observer<'a> = dyn FnMut(usize, usize, &Node, &Env) + 'a;

/// Runs the rules of the init chain and then of the main chain. Returns the contents of the
/// outputs.
pub(crate) fn check(graph: &Graph, observe: &mut Observer<'_>) -> Result<Vec<Content>> {
    let mut flow = Flow { graph, env: Env::new(), journals: Vec::new(), observe };
    for class in [SlotClass::Constant, SlotClass::Buffer] {
        flow.set_declared(class);
    }
    if let Some(init) = graph.init {
        flow.chain(init as usize)?;
        flow.check_buffers(init as usize)?;
        flow.forget_run();
    }
    flow.set_inputs();
    flow.chain(graph.main as usize)?;
    flow.check_buffers(graph.main as usize)?;
    graph.outputs.iter().enumerate().map(|(index, &slot)| flow.result(index, slot)).collect()
}

/// Contents of a slot before a write.
struct Overwritten(Slot, Option<Content>);

struct Flow<'g, 'o> {
    graph: &'g Graph,
    observe: &'g mut Observer<'o>,
    env: Env,
    /// Writes since the start of each open branch, innermost last. Their size depends on the
    /// branch's writes, not on the number of slots.
    journals: Vec<Vec<Overwritten>>,
}

impl ShapeCx for Flow<'_, '_> {
    fn spec(&self, tid: Tid) -> Result<Spec, InferError> {
        self.env.spec(tid)
    }

    fn value(&self, vid: Vid) -> Result<Expr, InferError> {
        self.env.value(vid)
    }

    fn set(&mut self, tid: Tid, spec: Spec) {
        self.put(Slot::Tensor(tid), Some(Content::Tensor(spec)));
    }

    fn set_value(&mut self, vid: Vid, value: Expr) {
        self.put(Slot::Value(vid), Some(Content::Value(value)));
    }

    fn unknown(&mut self) -> Expr {
        self.env.unknown()
    }

    fn bounds(&self, size: &Expr) -> (i64, i64) {
        self.env.bounds(size)
    }
}

impl Flow<'_, '_> {
    /// Sets or unsets a slot, and returns its old contents.
    fn swap(&mut self, slot: Slot, content: Option<Content>) -> Option<Content> {
        match (slot, content) {
            (Slot::Tensor(tid), Some(Content::Tensor(spec))) => self.env.replace(tid, Some(spec)).map(Content::Tensor),
            (Slot::Tensor(tid), _) => self.env.replace(tid, None).map(Content::Tensor),
            (Slot::Value(vid), Some(Content::Value(value))) => self.env.replace_value(vid, Some(value)).map(Content::Value),
            (Slot::Value(vid), _) => self.env.replace_value(vid, None).map(Content::Value),
        }
    }

    fn put(&mut self, slot: Slot, content: Option<Content>) {
        let before = self.swap(slot, content);
        if let Some(journal) = self.journals.last_mut() {
            journal.push(Overwritten(slot, before));
        }
    }

    fn get(&self, slot: Slot) -> Option<Content> {
        match slot {
            Slot::Tensor(tid) => self.env.get(tid).cloned().map(Content::Tensor),
            Slot::Value(vid) => self.env.get_value(vid).cloned().map(Content::Value),
        }
    }

    /// Sets the slots of a class as their metadata declare.
    fn set_declared(&mut self, class: SlotClass) {
        let graph = self.graph;
        for (index, meta) in graph.meta.iter().enumerate() {
            let tid = Tid(index as u32);
            if graph.slots.class(tid) == Some(class) {
                let spec = self.declared(meta);
                self.set(tid, spec);
            }
        }
    }

    /// The declared type and shape of a tensor. Dynamic sizes become fresh symbols.
    fn declared(&mut self, meta: &TensorMeta) -> Spec {
        let dim = |dim: &MetaDim| match *dim {
            MetaDim::Static(n) => Expr::Int(n.into()),
            MetaDim::Dynamic { min, max: Some(max) } if min == max => Expr::Int(min.into()),
            MetaDim::Dynamic { min, max } => self.env.fresh(min.into(), max.map_or(MAX_DIM, i64::from)),
        };
        Spec { dtype: meta.dtype, dims: meta.shape.iter().map(dim).collect() }
    }

    fn set_inputs(&mut self) {
        let graph = self.graph;
        for &slot in &graph.inputs {
            match slot {
                Slot::Tensor(tid) => {
                    let Some(meta) = graph.meta.get(tid.0 as usize) else { continue };
                    let spec = self.declared(meta);
                    self.set(tid, spec);
                }
                Slot::Value(vid) => {
                    let value = self.unknown();
                    self.set_value(vid, value);
                }
            }
        }
    }

    /// Ends the init chain: only constants and buffers persist.
    fn forget_run(&mut self) {
        let mut env = std::mem::take(&mut self.env);
        env.retain_tensors(&|tid| matches!(self.graph.slots.class(tid), Some(SlotClass::Constant | SlotClass::Buffer)));
        env.forget_values();
        self.env = env;
    }

    /// Contents of an output slot at the end.
    fn result(&self, index: usize, slot: Slot) -> Result<Content> {
        match self.get(slot) {
            Some(content) => Ok(content),
            None => refuse(Place::Entry { list: "output", index }, Fault::NoResult(slot)),
        }
    }

    /// Refuses a chain that leaves a buffer in a form that the next run cannot use.
    fn check_buffers(&mut self, chain: usize) -> Result<()> {
        let graph = self.graph;
        for slot in (0..graph.slots.buffers).map(|i| graph.slot(SlotClass::Buffer, i)) {
            let (Some(meta), Some(found)) = (graph.meta.get(slot.0 as usize), self.env.get(slot)) else { continue };
            let found = found.clone();
            let declared = self.declared(meta);
            let fits = |(a, b): (&Expr, &Expr)| a.as_int().is_none() || a == b;
            let same = found.dtype == declared.dtype && found.rank() == declared.rank();
            if !same || !found.dims.iter().zip(&declared.dims).all(fits) {
                let (found, declared) = (found.to_string(), declared.to_string());
                return refuse(Place::Chain(chain), Fault::Buffer { slot, found, declared });
            }
            // The run proves the declared sizes, so the next run starts with them.
            self.set(slot, declared);
        }
        Ok(())
    }

    fn chain(&mut self, chain: usize) -> Result<()> {
        let graph = self.graph;
        for (instruction, node) in graph.chains[chain].iter().enumerate() {
            let locate = |fault: InferError| CheckError {
                place: Place::Node { chain, instruction, node: node.name(), field: unset_field(node, &fault) },
                fault: Box::new(Fault::Infer(fault)),
            };
            (self.observe)(chain, instruction, node, &self.env);
            match node {
                Node::If(branch) => {
                    branch.infer(self).map_err(locate)?;
                    self.branches(branch.then_chain_idx.0 as usize, branch.else_chain_idx.0 as usize)?;
                }
                Node::Scan(scan) => {
                    let steps = enter_scan(scan, self).map_err(locate)?;
                    self.chain(scan.body_chain_idx.0 as usize)?;
                    leave_scan(scan, &steps, self).map_err(locate)?;
                }
                node => node.infer(self).map_err(locate)?,
            }
        }
        Ok(())
    }

    /// Runs a chain and undoes its writes. Returns each written slot with its final contents.
    fn trial(&mut self, chain: usize) -> Result<Vec<(Slot, Option<Content>)>> {
        self.journals.push(Vec::new());
        self.chain(chain)?;
        let journal = self.journals.pop().unwrap_or_default();
        let mut seen = HashSet::new();
        let left = journal.iter().rev().filter(|b| seen.insert(b.0)).map(|b| (b.0, self.get(b.0))).collect();
        for Overwritten(slot, before) in journal.into_iter().rev() {
            self.swap(slot, before);
        }
        Ok(left)
    }

    fn branches(&mut self, then_chain: usize, else_chain: usize) -> Result<()> {
        let mut merged: Vec<(Slot, Option<Content>, Option<Content>)> = Vec::new();
        let mut place = HashMap::new();
        for (slot, left) in self.trial(then_chain)? {
            place.insert(slot, merged.len());
            merged.push((slot, left, self.get(slot)));
        }
        for (slot, left) in self.trial(else_chain)? {
            match place.get(&slot) {
                Some(&i) => merged[i].2 = left,
                None => merged.push((slot, self.get(slot), left)),
            }
        }
        for (slot, a, b) in merged {
            let content = self.merge(a, b);
            self.put(slot, content);
        }
        Ok(())
    }

    /// Merges the facts of a slot that holds one of two contents.
    fn merge(&mut self, a: Option<Content>, b: Option<Content>) -> Option<Content> {
        match (a?, b?) {
            (a, b) if a == b => Some(a),
            (Content::Value(_), Content::Value(_)) => Some(Content::Value(self.env.unknown())),
            (Content::Tensor(a), Content::Tensor(b)) if a.dtype == b.dtype && a.rank() == b.rank() => {
                let dims = a.dims.into_iter().zip(b.dims);
                let dims = dims.map(|(a, b)| if a == b { a } else { self.env.fresh(0, MAX_DIM) }).collect();
                Some(Content::Tensor(Spec { dtype: a.dtype, dims }))
            }
            _ => None,
        }
    }
}

/// The field with the slot that a rule found unset.
fn unset_field(node: &Node, fault: &InferError) -> Option<&'static str> {
    match *fault {
        InferError::Unset(tid) => field_of(node, Slot::Tensor(tid)),
        InferError::UnsetValue(vid) => field_of(node, Slot::Value(vid)),
        _ => None,
    }
}
