//! A run laid out ahead, for one set of input shapes: kernel calls whose operands have their
//! places, shapes and strides.
//!
//! The first run with given input shapes prepares every node of the main chain from the known slots
//! and records the calls. In the plan, views cost nothing, results have fixed places in scratch
//! storage, and constants are bound. Every later run with these shapes executes the plan.
//!
//! Some work depends on data, not only on shapes. Integers stay open until the run. Slices that
//! depend on them are windows with bounds set by each run, and calls read integers from their
//! slots. A node with sizes that depend on data, or with chains of its own, is a dynamic step. The
//! same code prepares it at run time, and its calls run at once.

mod codes;
mod dynamic;
mod execute;
mod fused;
mod implied;
mod layers;
mod linear;
mod memref;
mod packed;
mod planner;
mod record;
mod recorder;
mod scores;
#[cfg(test)]
mod tests;
mod workspace;

use std::sync::Arc;

use flambeau_ir::{Int, MetaDim, OutVid, Slot, TensorMeta, Tid};
use flambeau_tensor::{DType, Shape};

use self::layers::Layers;
pub(crate) use self::{
    execute::settle_in_slot,
    fused::Fusible,
    implied::{Keys, Spans, pairs},
    layers::LayersCall,
    memref::MemRef,
    planner::{Cost, Planner, run_now},
    record::build,
    workspace::Workspace,
};
use crate::{
    array::Array,
    error::{OpError, Result},
    machine::{Context, Machine},
    obstacle::Dynamic,
};

/// The part of the results that the caller reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputRows {
    All,
    /// The last entry along the second-to-last axis.
    Last,
}

/// The location of an operand while a plan runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Location {
    /// In the operand itself, since the plan was built.
    Constant,
    /// In the slot of an input or a buffer.
    Slot(Tid),
    /// In scratch storage, by number.
    Scratch(usize),
    /// In an array that outlasts its step, by number.
    Held(usize),
}

/// Origin of an operand's sizes and strides.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// The operand itself.
    Fixed,
    /// A window, by number.
    Window(usize),
    /// Whatever array the location holds.
    Dynamic,
}

/// An operand of a step. Unless it is constant, its array has storage only while the step runs.
#[derive(Clone, Debug)]
struct Operand {
    location: Location,
    layout: Layout,
    array: Array,
}

/// The work of a call. Results are row-major in unshared storage.
enum Work {
    /// Linear layers, which several runs may compute at once.
    Layers(Layers),
    Other(OtherWork),
}

type OtherWork = Box<dyn Fn(&mut Context, &[Array], &mut [Array]) -> Result<()> + Send>;

impl Work {
    fn run(&self, cx: &mut Context, ins: &[Array], outs: &mut [Array]) -> Result<()> {
        match self {
            Work::Layers(layers) => layers.run(&cx.pool, ins, outs),
            Work::Other(work) => work(cx, ins, outs),
        }
    }
}

/// A kernel call on operands that get their storage before it and lose it after it.
struct Call {
    work: Work,
    cost: Cost,
    places: Vec<(Location, Layout)>,
    ins: Vec<Array>,
    /// Scratch numbers of the results.
    targets: Vec<usize>,
    outs: Vec<Array>,
}

impl Call {
    /// Bytes of all operands and results, and floating-point operations.
    fn cost(&self) -> [u64; 2] {
        let size = |array: &Array| array.numel() * array.dtype.size();
        let whole = usize::from(self.cost == Cost::Lookup);
        let written: usize = self.outs.iter().map(size).sum();
        let read: usize = self.ins.iter().skip(whole).map(size).sum();
        let bytes = read + written * (1 + whole);
        let flops = match (self.cost, &self.ins[..]) {
            (Cost::Flops(flops), _) => flops,
            (Cost::Attention, [q, k, v, ..]) => {
                // Rows of codes have a separate axis for groups.
                let width = |array: &Array| array.shape.iter().skip(3).product::<usize>();
                let queries = q.numel() / width(q).max(1);
                let keys = k.shape.get(2).copied().unwrap_or(0);
                2 * (queries * keys * (width(q) + width(v))) as u64
            }
            (Cost::Attention | Cost::Lookup, _) => 0,
        };
        [bytes as u64, flops]
    }

    /// The weights of a product.
    fn weights(&self) -> impl Iterator<Item = &[u8]> {
        let is_product = matches!(self.cost, Cost::Flops(1..));
        let is_weight = move |location: Location| is_product && location == Location::Constant;
        let constants = self.ins.iter().zip(&self.places).filter(move |(_, (location, _))| is_weight(*location));
        constants.map(|(array, _)| {
            let bytes = array.data.bytes();
            let start = (array.offset * array.dtype.size()).min(bytes.len());
            &bytes[start..bytes.len().min(start + array.numel() * array.dtype.size())]
        })
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("places", &self.places).field("targets", &self.targets).finish_non_exhaustive()
    }
}

/// A slice with bounds known only at run time.
#[derive(Clone, Debug)]
struct Window {
    number: usize,
    /// Sizes and strides of the sliced array.
    of: Array,
    axis: usize,
    start: Int,
    stop: Int,
    step: usize,
}

/// A node prepared at run time, over operands bound to its slots.
#[derive(Debug)]
struct DynamicNode {
    why: Dynamic,
    ins: Vec<(Tid, Operand)>,
    outs: Vec<NodeResult>,
}

/// The destination of a dynamic node's result.
#[derive(Clone, Debug)]
struct NodeResult {
    tid: Tid,
    /// The number to hold it under; a buffer's new contents stay in their slot.
    held: Option<usize>,
    /// Element type and sizes that later steps require, row-major from the start of the storage.
    expected: Option<(DType, Shape)>,
}

/// The action of a step.
#[derive(Debug)]
enum Action {
    Call(Call),
    /// A call that writes part of a buffer in place.
    Update(Tid, Call),
    Dynamic(DynamicNode),
    /// An integer that the shapes decide.
    Set(OutVid, i32),
    /// An integer that follows from others by the node's rule.
    Infer(OutVid),
    /// An integer that an operand holds.
    Read(OutVid, Operand, fn(&Array) -> Result<i32>),
    Window(Window),
    /// Preserves a slot's contents across its next write.
    Hold(Tid, usize),
    /// Gives a buffer new contents.
    Assign(Tid, Operand),
}

/// A step and its node: the last one listed in `name`.
#[derive(Debug)]
struct PlanStep {
    node: usize,
    name: Arc<str>,
    action: Action,
}

impl PlanStep {
    fn weights(&self) -> impl Iterator<Item = &[u8]> {
        let call = if let Action::Call(call) = &self.action { Some(call) } else { None };
        call.into_iter().flat_map(Call::weights)
    }

    fn meeting(&self) -> Option<Meeting> {
        match &self.action {
            Action::Call(Call { work: Work::Layers(_), .. }) => Some(Meeting::Layers),
            Action::Call(Call { cost: Cost::Flops(1..) | Cost::Attention, .. }) | Action::Dynamic(_) => Some(Meeting::Work),
            _ => None,
        }
    }
}

/// The reason why joint runs meet at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// Its weights are read once for all of them.
    Layers,
    /// It may be work for all threads.
    Work,
}

/// Minimum number of floating-point operations for which all threads share a step: some tens of
/// microseconds of one thread.
const SHARED_FLOPS: u64 = 1 << 20;

/// A run of the main chain for one set of input shapes.
#[derive(Debug)]
pub(crate) struct RunPlan {
    inputs: Vec<Option<(DType, Shape)>>,
    rows: OutputRows,
    steps: Vec<PlanStep>,
    /// Number of steps that are calls prepared ahead.
    prepared: u64,
    /// Steps at which joint runs may meet.
    meetings: Vec<(usize, Meeting)>,
    /// For each step that multiplies by weights, the next one, in this run or another.
    next: Vec<Option<usize>>,
    /// Bytes of each scratch storage.
    scratch: Vec<usize>,
    /// Number of arrays that outlast their step.
    held: usize,
    /// The latest array of each window, by number.
    windows: Vec<Array>,
    results: Vec<(Tid, Operand)>,
}

/// Element types and shapes of the inputs as they are bound; integers have none.
fn input_shapes(m: &Machine) -> impl Iterator<Item = Option<&Array>> {
    m.graph.inputs.iter().map(|slot| match slot {
        Slot::Tensor(tid) => m.tensors.get(tid.0 as usize).and_then(Option::as_ref),
        Slot::Value(_) => None,
    })
}

/// For each step, the next step that multiplies by weights.
fn next_weights(steps: &[PlanStep]) -> Vec<Option<usize>> {
    let products: Vec<usize> = (0..steps.len()).filter(|&i| steps[i].weights().next().is_some()).collect();
    let mut next = vec![None; steps.len()];
    for (&i, &after) in products.iter().zip(products.iter().cycle().skip(1)) {
        next[i] = Some(after);
    }
    next
}

impl RunPlan {
    /// Number of steps.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Steps at which joint runs may meet, in order.
    pub(crate) fn meetings(&self) -> &[(usize, Meeting)] {
        &self.meetings
    }

    /// Whether a step took so much work when it ran last that all threads should share it.
    pub(crate) fn is_long(&self, at: usize) -> bool {
        match &self.steps[at].action {
            Action::Call(call) => call.cost()[1] >= SHARED_FLOPS,
            action => matches!(action, Action::Dynamic(_)),
        }
    }

    /// Whether both plans are of one graph's runs on inputs of the same sizes, given that they are
    /// of one graph.
    pub(crate) fn is_like(&self, other: &RunPlan) -> bool {
        let are_steps_alike = self.steps.len() == other.steps.len() && self.meetings == other.meetings;
        are_steps_alike && self.inputs == other.inputs && self.rows == other.rows
    }

    /// Whether the plan was laid out for inputs like those that are bound.
    pub(crate) fn fits(&self, m: &Machine, rows: OutputRows) -> bool {
        let mut shapes = self.inputs.iter().zip(input_shapes(m));
        let fits = shapes.all(|(known, found)| match (known, found) {
            (Some((dtype, shape)), Some(array)) => *dtype == array.dtype && *shape == array.shape,
            (None, None) => true,
            _ => false,
        });
        fits && self.rows == rows
    }
}

/// Refuses contents that differ from a buffer's declared element type and shape.
fn check_buffer(meta: &TensorMeta, tid: Tid, dtype: DType, shape: &[usize]) -> Result<()> {
    let is_size = |(dim, &n): (&MetaDim, &usize)| matches!(dim, MetaDim::Static(d) if *d as usize == n);
    if dtype == meta.dtype && meta.shape.len() == shape.len() && meta.shape.iter().zip(shape).all(is_size) {
        return Ok(());
    }
    let declared = meta.static_shape().unwrap_or_default();
    let what = format!("{tid} is left as {dtype} {shape:?}, and declared as {} {declared:?}", meta.dtype);
    Err(OpError::value(what))
}
