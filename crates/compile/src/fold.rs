//! Constant folding: nodes that do not depend on the inputs run at compile time.
//!
//! The caller's engine runs once each node that has only small constants as operands. Views of
//! constants are not folded: they cost nothing at run time, and folding would store the data twice.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use flambeau_ir::{
    Cost, Effect, Node, Role, Slot, Tid, check,
    engine::{Constants, Engine, LoadOptions, Value},
};
use flambeau_lower::{ConstExpr, Constant, Origin, SsaGraph};
use flambeau_tensor::{AlignedBytes, Bytes, Shape};

use crate::{Error, error::FoldError, evaluate::evaluate, slots, weights::Weights};

/// Largest operand or result of folding, in bytes.
const MAX_BYTES: usize = 1 << 20;

struct Folding<'f> {
    ssa: &'f SsaGraph,
    /// Slots with known contents, and whether a computation produced them.
    known: HashMap<Tid, bool>,
    /// Slots that several nodes write, such as the carried slots of loops.
    rewritten: HashSet<Tid>,
}

/// Replaces slots that hold the same contents in every run by constants.
pub(crate) fn fold(ssa: &mut SsaGraph, weights: &Weights<'_>, engine: &dyn Engine) -> Result<(), Error> {
    let folding = Folding { ssa, known: HashMap::new(), rewritten: rewritten(ssa) }.run();
    let (nodes, results) = folding.selection();
    if results.is_empty() {
        return Ok(());
    }
    let chain = nodes.iter().map(|&i| ssa.chains[0][i].clone()).collect();
    let part = SsaGraph {
        chains: vec![chain],
        tensors: ssa.tensors.clone(),
        results: results.iter().map(|&t| Slot::Tensor(t)).collect(),
        ..SsaGraph::default()
    };
    for (t, constant) in results.iter().zip(run(part, weights, engine)?) {
        ssa.tensors[t.0 as usize].origin = Origin::Constant(Arc::new(constant));
    }
    let folded: HashSet<Tid> = results.into_iter().collect();
    ssa.chains[0].retain(|entry| !writes_any(&entry.node, &folded));
    Ok(())
}

fn rewritten(ssa: &SsaGraph) -> HashSet<Tid> {
    let (mut seen, mut again) = (HashSet::new(), HashSet::new());
    for entry in ssa.chains.iter().flatten() {
        entry.node.walk(&mut |role, slot| match (role, slot) {
            (Role::Write | Role::ReadWrite, Slot::Tensor(t)) if !seen.insert(t) => drop(again.insert(t)),
            _ => {}
        });
    }
    again
}

fn writes_any(node: &Node, slots: &HashSet<Tid>) -> bool {
    let mut any = false;
    node.walk(&mut |role, slot| any |= role != Role::Read && matches!(slot, Slot::Tensor(t) if slots.contains(&t)));
    any
}

impl Folding<'_> {
    fn run(mut self) -> Self {
        for (t, info) in self.ssa.tensors.iter().enumerate() {
            if let Origin::Constant(c) = &info.origin
                && c.shape.iter().product::<usize>() * c.dtype.size() <= MAX_BYTES
            {
                self.known.insert(Tid(t as u32), false);
            }
        }
        for entry in &self.ssa.chains[0] {
            self.visit(&entry.node);
        }
        self
    }

    fn visit(&mut self, node: &Node) {
        // The results of these nodes are larger than the constant.
        let expands = matches!(node, Node::Dequantize(_) | Node::BroadcastTo(_));
        let is_view = matches!(node.cost(), Cost::View(_) | Cost::Relayout(_));
        let (mut foldable, mut computed) = (node.effect() == Effect::Pure && !expands, !is_view);
        let mut results = Vec::new();
        node.walk(&mut |role, slot| match (role, slot) {
            (Role::Write, Slot::Tensor(t)) => results.push(t),
            (_, Slot::Tensor(t)) => match self.known.get(&t) {
                Some(by_computing) => computed |= by_computing,
                None => foldable = false,
            },
            (_, Slot::Value(_)) => foldable = false,
        });
        let small = |t: &Tid| {
            let spec = self.ssa.spec(*t);
            spec.shape().is_some_and(|s| s.iter().product::<usize>() * spec.dtype.size() <= MAX_BYTES)
        };
        if foldable && results.iter().all(|t| small(t) && !self.rewritten.contains(t)) {
            self.known.extend(results.into_iter().map(|t| (t, computed)));
        }
    }

    /// Nodes to run, and the computed slots that other nodes or results read.
    fn selection(&self) -> (Vec<usize>, Vec<Tid>) {
        let is_known = |node: &Node| {
            let mut all = true;
            node.walk(&mut |role, slot| {
                all &= role == Role::Read || matches!(slot, Slot::Tensor(t) if self.known.contains_key(&t))
            });
            all
        };
        let main = &self.ssa.chains[0];
        let nodes: Vec<usize> = (0..main.len()).filter(|&i| is_known(&main[i].node)).collect();
        let inside: HashSet<usize> = nodes.iter().copied().collect();
        let mut wanted: HashSet<Tid> = HashSet::new();
        let mut want = |slot: Slot| {
            if let Slot::Tensor(t) = slot {
                wanted.insert(t);
            }
        };
        self.ssa.results.iter().copied().for_each(&mut want);
        self.ssa.buffers.iter().for_each(|b| want(Slot::Tensor(b.1)));
        let others = main.iter().enumerate().filter(|(i, _)| !inside.contains(i)).map(|(_, e)| e);
        for entry in others.chain(self.ssa.chains.iter().skip(1).flatten()) {
            entry.node.walk(&mut |role, slot| {
                if role != Role::Write {
                    want(slot);
                }
            });
        }
        let mut results: Vec<Tid> = wanted.into_iter().filter(|t| self.known.get(t) == Some(&true)).collect();
        results.sort_unstable();
        (nodes, results)
    }
}

struct Evaluated<'w> {
    constants: HashMap<String, Arc<Constant>>,
    weights: &'w Weights<'w>,
}

impl Constants for Evaluated<'_> {
    fn get(&self, key: &str) -> Option<Bytes> {
        let tensor = evaluate(self.constants.get(key)?, self.weights).ok()?;
        Some(tensor.bytes().clone())
    }
}

fn run(mut part: SsaGraph, weights: &Weights<'_>, engine: &dyn Engine) -> Result<Vec<Constant>, Error> {
    flambeau_lower::drop_unread(&mut part);
    let specs: Vec<_> = part
        .results
        .iter()
        .filter_map(|s| if let Slot::Tensor(t) = s { Some((*t, part.spec(*t).clone())) } else { None })
        .collect();
    let slotted = slots::assign(part, "fold", &[], false);
    let graph = Arc::new(check(slotted.graph).map_err(|e| Error::Fold(e.into()))?);
    let source = Evaluated { constants: slotted.constants.into_iter().collect(), weights };
    let mut session = engine.load(graph, &source, &LoadOptions::default()).map_err(|e| Error::Fold(e.into()))?;
    let values = session.run(&[]).map_err(|e| Error::Fold(e.into()))?;
    let constant = |((t, spec), value): (&(Tid, flambeau_ir::Spec), Value)| match value {
        Value::Tensor(tensor) if tensor.dtype() == spec.dtype => Ok(Constant {
            name: format!("_folded_{}", t.0),
            dtype: tensor.dtype(),
            shape: Shape::from_slice(tensor.shape()),
            expr: ConstExpr::Literal(AlignedBytes::copy_of(tensor.bytes()).into_bytes()),
        }),
        _ => Err(Error::Fold(FoldError::Type)),
    };
    specs.iter().zip(values).map(constant).collect()
}
