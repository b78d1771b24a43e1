//! Nodes of a plan that are prepared when their turn comes.

use std::sync::Arc;

use flambeau_ir::{
    Chain, ChainId, Graph, Infer, InferError, Int, Node, Role, ShapeCx, Slot, SlotClass, Tid, Vid,
    infer::{
        Env,
        control::{enter_scan, leave_scan},
    },
};

use super::{Action, DynamicNode, NodeResult, Planner};
use crate::{error::Result, obstacle::Dynamic};

/// Slots used by a node and its chains.
#[derive(Debug, Default)]
struct Named {
    reads: Vec<Tid>,
    writes: Vec<Tid>,
    values: Vec<Vid>,
}

impl Named {
    fn by(node: &Node, chains: &[Chain]) -> Named {
        let mut named = Named::default();
        named.add(node, chains);
        named
    }

    fn add(&mut self, node: &Node, chains: &[Chain]) {
        node.walk(&mut |role, slot| match slot {
            Slot::Tensor(tid) => {
                if role != Role::Write && !self.reads.contains(&tid) {
                    self.reads.push(tid);
                }
                if role != Role::Read && !self.writes.contains(&tid) {
                    self.writes.push(tid);
                }
            }
            Slot::Value(vid) => {
                if role != Role::Read {
                    self.values.push(vid);
                }
            }
        });
        for ChainId(chain) in node.chains() {
            chains.get(chain as usize).into_iter().flatten().for_each(|node| self.add(node, chains));
        }
    }
}

/// Runs a node's inference rule on the sizes known ahead of a run. `Some` if the node's work
/// depends on the run.
///
/// # Errors
/// If no possible run could execute the node on its known operands.
pub(super) fn infer(env: &mut Env, graph: &Graph, node: &Node) -> Result<Option<Dynamic>> {
    let runs_chains = !node.chains().is_empty();
    if !runs_chains && !is_open(env, node) {
        node.infer(env)?;
        return Ok(None);
    }
    let why = if runs_chains { Dynamic::Chains } else { Dynamic::Operand };
    if follow(env, graph, node).is_ok() {
        return Ok(runs_chains.then_some(why));
    }
    let named = Named::by(node, &graph.chains);
    for tid in named.writes {
        env.replace(tid, None);
    }
    for vid in named.values {
        let unknown = env.unknown();
        env.replace_value(vid, Some(unknown));
    }
    Ok(Some(why))
}

/// Whether something that the node reads is not known.
fn is_open(env: &Env, node: &Node) -> bool {
    let mut is_open = false;
    node.walk(&mut |role, slot| {
        is_open |= role != Role::Write
            && match slot {
                Slot::Tensor(tid) => env.get(tid).and_then(|spec| spec.shape()).is_none(),
                Slot::Value(vid) => env.get_value(vid).and_then(|value| value.as_int()).is_none(),
            };
    });
    is_open
}

/// Runs the rules of a node and of the chains that it runs.
fn follow(env: &mut Env, graph: &Graph, node: &Node) -> Result<(), InferError> {
    match node {
        Node::If(n) => {
            n.infer(env)?;
            let mut other = env.clone();
            chain(env, graph, n.then_chain_idx)?;
            chain(&mut other, graph, n.else_chain_idx)?;
            merge(env, &other, &Named::by(node, &graph.chains));
            Ok(())
        }
        Node::Scan(n) => {
            let steps = enter_scan(n, env)?;
            chain(env, graph, n.body_chain_idx)?;
            leave_scan(n, &steps, env)
        }
        Node::Slice(n) => {
            node.infer(env)?;
            open(env, n)
        }
        _ => node.infer(env),
    }
}

fn chain(env: &mut Env, graph: &Graph, ChainId(chain): ChainId) -> Result<(), InferError> {
    graph.chains.get(chain as usize).into_iter().flatten().try_for_each(|node| follow(env, graph, node))
}

/// Keeps the knowledge on which both branches agree.
fn merge(env: &mut Env, other: &Env, named: &Named) {
    for &tid in &named.writes {
        if env.get(tid) != other.get(tid) {
            env.replace(tid, None);
        }
    }
    for &vid in &named.values {
        if env.get_value(vid) != other.get_value(vid) {
            let unknown = env.unknown();
            env.replace_value(vid, Some(unknown));
        }
    }
}

/// A slice with bounds known only at run time may be shorter than its rule assumes.
fn open(env: &mut Env, slice: &flambeau_ir::Slice) -> Result<(), InferError> {
    let known = |int: Int| match int {
        Int::Lit(v) => Some(v),
        Int::Vid(vid) => env.get_value(vid).and_then(|value| value.as_int()),
    };
    let Some(mut spec) = env.get(slice.out.0).cloned() else { return Ok(()) };
    let Some(axis) = known(slice.axis) else {
        env.replace(slice.out.0, None);
        return Ok(());
    };
    let axis = flambeau_tensor::normalize_axis(axis, spec.rank()).ok_or(InferError::Axis { axis, rank: spec.rank() })?;
    let is_known = known(slice.start).is_some() && known(slice.stop).is_some();
    if !is_known || spec.dims[axis].as_int().is_none() {
        spec.dims[axis] = env.unknown();
        env.replace(slice.out.0, Some(spec));
    }
    Ok(())
}

impl Planner<'_> {
    /// Records a step that prepares the node at run time, over operands bound to its slots.
    pub(super) fn record_dynamic(&mut self, node: &Node, why: Dynamic) -> Result<()> {
        let graph = Arc::clone(&self.m.graph);
        let named = Named::by(node, &graph.chains);
        let class = |tid: Tid| graph.slots.class(tid);
        let mut ins = Vec::new();
        for &tid in named.reads.iter().chain(&named.writes) {
            let is_held = self.recorder().is_some_and(|recorder| recorder.holds(tid));
            // A slot that the node's chains write before reading may be unset here.
            if !is_held && (named.writes.contains(&tid) || why == Dynamic::Chains) {
                continue;
            }
            match class(tid) {
                Some(SlotClass::Constant) => {}
                Some(SlotClass::Buffer) => self.settle(tid)?,
                _ if named.reads.contains(&tid) || why == Dynamic::Chains => {
                    let x = self.recorded(tid)?;
                    if !x.is_in(tid) {
                        ins.push((tid, x.operand()));
                    }
                }
                _ => {}
            }
        }
        let outs = named.writes.iter().map(|&tid| self.record_result(tid)).collect();
        if let Some(recorder) = self.recorder() {
            // The step runs after its operands are computed and before its results are read.
            recorder.push(Action::Dynamic(DynamicNode { why, ins, outs }));
        }
        Ok(())
    }

    /// Destination of a result of a node that is prepared at its turn.
    fn record_result(&mut self, tid: Tid) -> NodeResult {
        let Some(recorder) = self.recorder() else { return NodeResult { tid, held: None, expected: None } };
        if recorder.graph.slots.class(tid) == Some(SlotClass::Buffer) {
            recorder.hold_views_of(tid);
            let meta = &recorder.graph.meta[tid.0 as usize];
            let shape = meta.static_shape().unwrap_or_default();
            let expected = Some((meta.dtype, shape.into_iter().collect()));
            recorder.put_in_slot(tid);
            return NodeResult { tid, held: None, expected };
        }
        let expected = recorder.spec(tid).map(|spec| (spec.dtype, spec.shape));
        let held = Some(recorder.put_held(tid, expected.as_ref()));
        NodeResult { tid, held, expected }
    }
}
