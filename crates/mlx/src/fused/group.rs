//! The steps of a decoder layer in one launch, separated by grid-wide barriers.
//!
//! Layers may differ: some attend, others keep a recurrent state. Consecutive uniform layers run
//! through [`Layers`](super::layers::Layers) instead.

use std::{cell::Cell, collections::BTreeMap, ops::Range, sync::Arc};

use flambeau_ir::{Node, Role, Slot as GraphSlot, Tid};

use super::{FusedNodes, Kind, StepState, find::Scope, launch::Builder, layers::Snapshot, refusal::Form};
use crate::{cx::Machine, error::Result};

/// The steps of a layer.
#[derive(Debug)]
pub(crate) struct Group {
    pub(super) end: usize,
    /// The slot of its result.
    pub(super) out: Tid,
    /// Slots written by the nodes, and the subset that later nodes read.
    written: Vec<Tid>,
    pub(super) live: Vec<Tid>,
}

/// A stage of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A norm and products.
    Projections,
    /// Attention or a recurrence: it mixes tokens.
    Mixer,
    /// A product and the residual sum, or a product that the next step adds to the row.
    Sum,
    /// A norm and gated products.
    Gated,
    /// A product that gates a layer's extra input.
    GatedInput,
    /// All of a mixture of experts.
    Mixture,
}

fn stage(step: &FusedNodes) -> Option<Stage> {
    match &step.kind {
        Kind::Linear(l) if l.gated_input.is_some() => Some(Stage::GatedInput),
        Kind::Linear(l) if l.norm.is_some() && l.residual.is_none() => {
            Some(if l.gated { Stage::Gated } else { Stage::Projections })
        }
        Kind::Linear(l) if l.norm.is_none() && (l.residual.is_some() || l.weights.len() == 1) => Some(Stage::Sum),
        Kind::Linear(_) => None,
        Kind::Attention(_) | Kind::Delta(_) => Some(Stage::Mixer),
        Kind::Mixture(mixture) => mixture.is_whole().then_some(Stage::Mixture),
    }
}

/// Whether a node may occur between steps: it computes a size or a position.
fn may_stand_between(node: &Node) -> bool {
    matches!(
        node,
        Node::SymSize(_)
            | Node::AddInt(_)
            | Node::SubtractInt(_)
            | Node::ItemInt(_)
            | Node::Take(_)
            | Node::ExpandDims(_)
            | Node::Equal(_)
            | Node::Full(_)
    )
}

/// The next step from a node on, and where it begins.
fn next_step<'a>(scope: &Scope<'_>, steps: &'a BTreeMap<usize, FusedNodes>, mut at: usize) -> Option<(usize, &'a FusedNodes)> {
    loop {
        match steps.get(&at) {
            Some(step) => return Some((at, step)),
            None if may_stand_between(scope.nodes.get(at)?) => at += 1,
            None => return None,
        }
    }
}

/// End of the layer that starts at a step, and the slot of its result.
fn layer(scope: &Scope<'_>, steps: &BTreeMap<usize, FusedNodes>, first: usize) -> Option<(usize, Tid)> {
    scope.candidate(Form::Layer, first, |place| layer_from(scope, steps, place))
}

fn layer_from(scope: &Scope<'_>, steps: &BTreeMap<usize, FusedNodes>, place: &Cell<usize>) -> Option<(usize, Tid)> {
    let (mut at, mut stages) = (place.get(), Vec::new());
    loop {
        place.set(at);
        let (_, step) = next_step(scope, steps, at)?;
        stages.push(stage(step)?);
        at = step.end;
        let goes_on = |stage_of_next: Stage| next_step(scope, steps, at).and_then(|(_, next)| stage(next)) == Some(stage_of_next);
        let is_whole = match stages.strip_prefix(&[Stage::Projections, Stage::Mixer, Stage::Sum]) {
            Some([Stage::Mixture] | [Stage::Gated, Stage::Sum, Stage::GatedInput, Stage::Sum]) => true,
            Some([Stage::Gated, Stage::Sum]) => !goes_on(Stage::GatedInput),
            Some([] | [Stage::Gated] | [Stage::Gated, Stage::Sum, Stage::GatedInput]) => false,
            None if [Stage::Projections, Stage::Mixer].starts_with(&stages) => false,
            _ => return None,
        };
        if is_whole {
            return Some((at, step.out()));
        }
    }
}

/// Whether nodes of `range` depend on the slot's contents before node `from`.
fn depends(scope: &Scope<'_>, from: usize, tid: Tid, range: Range<usize>) -> bool {
    let mut derived = vec![tid];
    for (i, node) in scope.nodes.iter().enumerate().take(range.end).skip(from) {
        let (mut reads, mut writes) = (false, Vec::new());
        node.walk(&mut |role, slot| {
            let GraphSlot::Tensor(tid) = slot else { return };
            reads |= role != Role::Write && derived.contains(&tid);
            writes.extend((role != Role::Read).then_some(tid));
        });
        if reads && i >= range.start {
            return true;
        }
        derived.retain(|tid| !writes.contains(tid));
        derived.extend(writes.into_iter().filter(|_| reads));
    }
    false
}

/// The longest chain of layers in which each reads the result of the previous one. Independent
/// launches could run concurrently, and then neither grid would be fully resident.
pub(super) fn find(scope: &Scope<'_>, steps: &BTreeMap<usize, FusedNodes>) -> BTreeMap<usize, Group> {
    let mut rows: Vec<BTreeMap<usize, Group>> = Vec::new();
    let (mut last, mut done) = (None, 0);
    for (&at, step) in steps {
        if at < done {
            continue;
        }
        let Some((end, out)) = layer(scope, steps, at) else { continue };
        let follows = last.is_some_and(|(before, x)| depends(scope, before, x, at..step.end));
        match rows.last_mut().filter(|_| follows) {
            Some(row) => drop(row.insert(at, group(scope, steps, at, (end, out)))),
            None => rows.push(BTreeMap::from([(at, group(scope, steps, at, (end, out)))])),
        }
        (last, done) = (Some((end, out)), end);
    }
    rows.into_iter().max_by_key(BTreeMap::len).unwrap_or_default()
}

fn group(scope: &Scope<'_>, steps: &BTreeMap<usize, FusedNodes>, at: usize, (end, out): (usize, Tid)) -> Group {
    let mut written = Vec::new();
    for node in &scope.nodes[at..end] {
        node.walk(&mut |role, slot| match slot {
            GraphSlot::Tensor(tid) if role != Role::Read && !scope.is_buffer(tid) => written.push(tid),
            _ => {}
        });
    }
    written.sort_unstable();
    written.dedup();
    let outs = steps.range(at..end).flat_map(|(_, step)| step.outs());
    let mut live: Vec<Tid> = outs.filter(|&tid| !scope.is_dead(tid, end)).collect();
    live.sort_unstable();
    live.dedup();
    Group { end, out, written, live }
}

impl Group {
    /// Adds the launch to MLX's graph. Returns `false` and leaves every slot unchanged if the
    /// kernels do not support the steps.
    ///
    /// # Errors
    /// If MLX fails.
    pub(super) fn run(
        &self,
        m: &mut Machine,
        shared: &mut StepState,
        steps: &BTreeMap<usize, FusedNodes>,
        at: usize,
    ) -> Result<bool> {
        let Some(device) = m.residency()? else { return Ok(false) };
        // A trace computes nothing, so it cannot create the counters that later runs share.
        if device.shared_memory == 0 || m.open.is_some() && shared.counters.is_none() {
            return Ok(false);
        }
        let before = Snapshot::of(m, self.written.iter())?;
        let mut builder = Builder::new(Some(device));
        if !self.build(m, shared, &mut builder, steps, at)? {
            before.restore(m);
            return Ok(false);
        }
        builder.launch_joined(m, shared, &self.live)?;
        Ok(true)
    }

    fn build(
        &self,
        m: &mut Machine,
        shared: &mut StepState,
        builder: &mut Builder,
        steps: &BTreeMap<usize, FusedNodes>,
        mut at: usize,
    ) -> Result<bool> {
        let graph = Arc::clone(&m.graph);
        let nodes = &graph.chains[graph.main as usize];
        while at < self.end {
            let (fits, next) = match steps.get(&at) {
                Some(step) => (step.build(m, shared, builder)?, step.end),
                None => (builder.keep(m, &nodes[at])?, at + 1),
            };
            if !fits {
                return Ok(false);
            }
            at = next;
        }
        Ok(true)
    }
}
