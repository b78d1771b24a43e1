//! Runs of nodes that a CUDA device computes in one launch when a step has one token: linear layers, attention, whole decoder layers of those,
//! and the experts that a router chooses.
//!
//! A program's nodes stay what it consists of: a plan only says where a run of them begins that one kernel replaces. If a step
//! does not fit the kernel (more tokens, other types), its nodes run one by one.

mod attention;
mod chosen;
mod find;
mod layers;
mod layers_text;
mod linear;

use std::collections::BTreeMap;

use flambeau_ir::{Checked, Node, Slot as GraphSlot, Tid};

pub(crate) use attention::Attention;
pub(crate) use chosen::Chosen;
use flambeau_tensor::DType;
use layers::Layers;
pub(crate) use linear::Linear;

use crate::{
    cx::Machine,
    error::Result,
    ffi::{Api, Array, Kernel},
};

/// A kernel for the nodes from where it stands up to `end`.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) end: usize,
    pub(crate) kind: Kind,
}

impl Step {
    /// A slot that the step writes.
    fn out(&self) -> Tid {
        match &self.kind {
            Kind::Linear(linear) => linear.out(),
            Kind::Attention(attention) => attention.out(),
            Kind::Chosen(chosen) => chosen.out(),
        }
    }
}

/// What a step computes.
#[derive(Debug)]
pub(crate) enum Kind {
    Linear(Box<Linear>),
    Attention(Box<Attention>),
    Chosen(Box<Chosen>),
}

/// The steps of a program's main chain, by the index of their first node.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    steps: BTreeMap<usize, Step>,
    /// Steps that one launch takes together.
    layers: Option<Layers>,
    shared: Shared,
    /// Launches of this run.
    launches: usize,
    /// Whether the device has work while the host builds this run: it then need not begin before the run is whole.
    pub(crate) is_pipelined: bool,
}

/// Launches after which the device begins to work, while the host goes on with the rest of the run.
const LAUNCHES_TO_SUBMIT: usize = 16;

/// What the steps of a session share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The position of the step's token, on the device.
    position: Option<(i32, Array)>,
    /// Counters that every launch leaves at zero: one for each key head, then what [`Layers`] need.
    counters: Option<Array>,
}

impl Shared {
    fn counters(&mut self, api: Api) -> Result<Array> {
        let counters = match self.counters.take() {
            Some(counters) => counters,
            None => {
                let zeros = Array::full(api, &[attention::MAX_HEADS + layers_text::COUNTERS], 0.0, DType::U32)?;
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
            let step = attention::find(&scope, at).or_else(|| linear::find(&scope, at)).or_else(|| chosen::find(&scope, at));
            let next = step.as_ref().map_or(at + 1, |step| step.end);
            steps.extend(step.map(|step| (at, step)));
            at = next;
        }
        let layers = fills_device.then(|| layers::find(&scope, &steps)).flatten();
        Plan { steps, layers, ..Plan::default() }
    }

    /// Runs the step that begins at a node; where the next node stands, or `None` if the nodes have to run one by one.
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
        let Some(step) = self.steps.get_mut(&at) else { return Ok(None) };
        let done = match &mut step.kind {
            Kind::Linear(linear) => linear.run(m)?,
            Kind::Attention(attention) => attention.run(m, &mut self.shared)?,
            Kind::Chosen(chosen) => chosen.run(m)?,
        };
        if !done {
            return Ok(None);
        }
        self.launches += 1;
        if m.trace.is_none()
            && !self.is_pipelined
            && self.launches.is_multiple_of(LAUNCHES_TO_SUBMIT)
            && let Some(slot) = m.env.tensors.get(step.out().0 as usize).and_then(Option::as_ref)
        {
            m.api.submit([&slot.array])?;
        }
        Ok(Some(step.end))
    }
}

/// A kernel that is made when it is first needed, for the sizes that it then has.
type Made<K> = Option<(K, Kernel)>;

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
