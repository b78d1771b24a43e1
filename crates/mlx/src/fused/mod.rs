//! Fusion for steps of one token on CUDA devices: runs of nodes become few launches. Fused are
//! linear layers, attention, gated delta nets, routed experts, and whole decoder layers of these.
//!
//! A plan does not change the program's nodes; it marks runs of nodes that a kernel can replace. If
//! a step does not fit the kernel (more tokens, other types), its nodes run one by one.

mod attention;
mod delta;
mod find;
mod group;
mod launch;
mod layers;
mod layers_text;
mod linear;
mod low_rank;
mod mixture;
mod refusal;
mod report;
mod rows;

use std::collections::BTreeMap;

use flambeau_ir::{Checked, Node, Slot as GraphSlot, Tid};

pub(crate) use attention::Attention;
pub(crate) use delta::Delta;
use flambeau_tensor::DType;
use group::Group;
use launch::Builder;
use layers::Layers;
pub(crate) use linear::Linear;
pub(crate) use mixture::Mixture;
use refusal::{Form, Refusal};
pub(crate) use report::NoKernels;
pub use report::{Region, SingleNode, StepPlan};
pub(crate) use rows::{MAX_ROWS, RowSteps, Scratch};

use crate::{
    cx::Machine,
    error::Result,
    ffi::{Api, Array},
};

/// A kernel for the nodes from its own index up to `end`.
#[derive(Debug)]
pub(crate) struct FusedNodes {
    pub(crate) end: usize,
    pub(crate) kind: Kind,
}

impl FusedNodes {
    /// A slot that the step writes.
    fn out(&self) -> Tid {
        match &self.kind {
            Kind::Linear(linear) => linear.out(),
            Kind::Attention(attention) => attention.out(),
            Kind::Mixture(mixture) => mixture.out(),
            Kind::Delta(delta) => delta.out,
        }
    }

    /// All slots that the step writes.
    pub(crate) fn outs(&self) -> Vec<Tid> {
        match &self.kind {
            Kind::Linear(linear) => linear.outs.iter().copied().chain(linear.joined.as_ref().map(|j| j.out)).collect(),
            Kind::Delta(delta) => delta.outs().to_vec(),
            Kind::Attention(_) | Kind::Mixture(_) => vec![self.out()],
        }
    }

    /// Adds the step's parts; `false` if no kernel supports its sizes.
    fn build(&self, m: &mut Machine, shared: &mut StepState, builder: &mut Builder) -> Result<bool> {
        match &self.kind {
            Kind::Linear(linear) => linear.build(m, builder),
            Kind::Attention(attention) => attention.build(m, shared, builder),
            Kind::Mixture(mixture) => mixture.build(m, builder),
            Kind::Delta(delta) => delta.build(m, builder),
        }
    }
}

/// The kind of a step.
#[derive(Debug)]
pub(crate) enum Kind {
    Linear(Box<Linear>),
    Attention(Box<Attention>),
    Mixture(Box<Mixture>),
    Delta(Box<Delta>),
}

/// The steps of a program's main chain, by the index of their first node.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    steps: BTreeMap<usize, FusedNodes>,
    /// Steps that share a launch: all uniform layers in one, other layers one each.
    layers: Option<Layers>,
    groups: BTreeMap<usize, Group>,
    /// Runs of nodes that match no kernel, in order.
    refusals: Vec<Refusal>,
    shared: StepState,
    /// Launches of this run.
    launches: usize,
    /// Whether the device has other work while the host builds this run. If so, nothing is
    /// submitted before the run is complete.
    pub(crate) is_pipelined: bool,
}

/// Number of launches after which they are submitted while the host builds the rest of the run.
const LAUNCHES_TO_SUBMIT: usize = 16;

/// State shared by the steps of a session.
#[derive(Debug, Default)]
pub(crate) struct StepState {
    /// The position of the step's token, on the device.
    position: Option<(i32, Array)>,
    /// Counters that every launch resets to zero. In order: one per key head, the grid barriers'
    /// counters, one per key head of each of several sequences.
    counters: Option<Array>,
    /// Addresses of the caches of several sequences.
    caches: rows::Caches,
}

impl StepState {
    fn counters(&mut self, api: Api) -> Result<Array> {
        let counters = match self.counters.take() {
            Some(counters) => counters,
            None => {
                let count = (1 + MAX_ROWS) * attention::MAX_HEADS + layers_text::COUNTERS;
                let zeros = Array::full(api, &[count], 0.0, DType::U32)?;
                api.eval([&zeros])?;
                zeros
            }
        };
        Ok(self.counters.insert(counters).share()?)
    }
}

impl Plan {
    /// Finds the steps of the main chain; layers of them only where a launch may fill the device.
    pub(crate) fn of(graph: &Checked, fills_device: bool) -> Plan {
        let nodes = graph.chains.get(graph.main as usize).map_or(&[][..], |chain| &chain[..]);
        let scope = find::Scope::new(graph, nodes);
        let mut steps = BTreeMap::new();
        let mut at = 0;
        while at < nodes.len() {
            let step = attention::find(&scope, at)
                .or_else(|| linear::find(&scope, at))
                .or_else(|| mixture::find(&scope, at))
                .or_else(|| delta::find(&scope, at));
            let next = step.as_ref().map_or(at + 1, |step| step.end);
            steps.extend(step.map(|step| (at, step)));
            at = next;
        }
        // If an attention step produces no cache slices, all their readers have to be steps too.
        let attends = |steps: &BTreeMap<usize, FusedNodes>, node: usize| {
            let step = steps.range(..=node).next_back();
            step.is_some_and(|(_, step)| node < step.end && matches!(step.kind, Kind::Attention(_)))
        };
        let is_whole = |step: &FusedNodes| match &step.kind {
            Kind::Attention(attention) => attention.readers.iter().all(|&node| attends(&steps, node)),
            _ => true,
        };
        let apart: Vec<(usize, usize)> =
            steps.iter().filter(|(_, step)| !is_whole(step)).map(|(&at, step)| (at, step.end)).collect();
        for (at, end) in apart {
            steps.remove(&at);
            scope.refuse(Form::Attention, at..end, "a node outside of attention steps reads a slice of the cache");
        }
        let layers = fills_device.then(|| layers::find(&scope, &steps)).flatten();
        let has_groups = fills_device && layers.is_none();
        let groups = if has_groups { group::find(&scope, &steps) } else { BTreeMap::new() };
        Plan { steps, layers, groups, refusals: scope.into_refusals(), ..Plan::default() }
    }

    /// Whether a step of one sequence runs as few launches of whole layers.
    pub(crate) fn takes_layers(&self) -> bool {
        self.layers.is_some() || !self.groups.is_empty()
    }

    /// The steps by their first nodes, and their shared state.
    pub(crate) fn parts(&mut self) -> (&BTreeMap<usize, FusedNodes>, &mut StepState) {
        (&self.steps, &mut self.shared)
    }

    /// Runs the step that begins at a node. Returns the index of the next node, or `None` if the
    /// nodes have to run one by one.
    ///
    /// # Errors
    /// If MLX refuses the kernel.
    pub(crate) fn run(&mut self, m: &mut Machine, at: usize) -> Result<Option<usize>> {
        if let Some(layers) = &mut self.layers
            && layers.at == at
            && layers.run(m, &mut self.shared, &self.steps)?
        {
            return Ok(Some(layers.end));
        }
        if let Some(group) = self.groups.get(&at)
            && group.run(m, &mut self.shared, &self.steps, at)?
        {
            let (out, end) = (group.out, group.end);
            self.note_launches(m, 1, out)?;
            return Ok(Some(end));
        }
        let Some(step) = self.steps.get(&at) else { return Ok(None) };
        let mut builder = Builder::new(None);
        if !step.build(m, &mut self.shared, &mut builder)? {
            return Ok(None);
        }
        let (out, end) = (step.out(), step.end);
        let launches = builder.launch_each(m)?;
        self.note_launches(m, launches, out)?;
        Ok(Some(end))
    }

    /// Counts launches, and lets the device begin after some of them.
    fn note_launches(&mut self, m: &Machine, launches: usize, out: Tid) -> Result<()> {
        let before = self.launches / LAUNCHES_TO_SUBMIT;
        self.launches += launches;
        if m.open.is_none()
            && !self.is_pipelined
            && self.launches / LAUNCHES_TO_SUBMIT > before
            && let Some(slot) = m.env.tensors.get(out.0 as usize).and_then(Option::as_ref)
        {
            m.api.submit([&slot.array])?;
        }
        Ok(())
    }
}

/// Whether a node reads or writes a slot.
fn uses(node: &Node, tid: Tid) -> (bool, bool) {
    let (mut reads, mut writes) = (false, false);
    node.walk(&mut |role, slot| {
        if slot == GraphSlot::Tensor(tid) {
            reads |= role != flambeau_ir::Role::Write;
            writes |= role != flambeau_ir::Role::Read;
        }
    });
    (reads, writes)
}

#[cfg(test)]
mod tests;
