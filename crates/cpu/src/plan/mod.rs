//! A run laid out ahead, for one set of input shapes: kernel calls whose operands have their places, shapes and strides.
//!
//! The first run with given input shapes walks the main chain once, on what is known of each slot, and writes down what is left
//! to do (`build`). From then on views cost nothing, results lie in scratch storage whose reuse is decided, and constants are
//! bound. Integers that only running tells stay open: slices that depend on them are windows whose bounds each run fills in, and
//! what no call here covers runs as the node it is. Every later run with these shapes executes the plan.

mod calls;
mod execute;
mod fused;
mod linear;
mod memref;
mod planner;
#[cfg(test)]
mod tests;
mod views;

use std::sync::Arc;

use flambeau_ir::{Int, Slot, Tid, Vid};
use flambeau_kernels::Pool;
use flambeau_tensor::{DType, Shape};

pub(crate) use self::{execute::Workspace, planner::build};
use crate::{array::Array, cx::Machine, error::Result};

/// What the caller reads of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputRows {
    All,
    /// The last entry along the second-to-last axis.
    Last,
}

/// Where an operand lies when a plan runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Location {
    /// In the operand itself, since the plan was built.
    Constant,
    /// In the slot of an input or a buffer.
    Slot(Tid),
    /// In scratch storage, by number.
    Scratch(usize),
    /// In a result that a node left, by number.
    Held(usize),
}

/// Where an operand's sizes and strides come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// The operand itself.
    Fixed,
    /// A window, by number.
    Window(usize),
    /// Whatever array the location holds.
    Whole,
}

/// An operand of a step. Unless it is constant, its array has storage only while the step runs.
#[derive(Clone, Debug)]
struct Operand {
    location: Location,
    layout: Layout,
    array: Array,
}

/// What a call does with its operands; results are row-major and alone see their storage.
type Work = Box<dyn Fn(&Pool, &[Array], &mut [Array]) -> Result<()> + Send>;

/// Floating-point operations of a call, and what it reads, for those who measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flops {
    /// None, and of its first operand it reads as much as it writes.
    Lookup,
    Known(u64),
    /// Those of attention over the sizes that the operands have when it runs.
    Attention,
}

/// A kernel call on operands that get their storage before it and lose it after it.
struct Call {
    work: Work,
    flops: Flops,
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
        let whole = usize::from(self.flops == Flops::Lookup);
        let written: usize = self.outs.iter().map(size).sum();
        let read: usize = self.ins.iter().skip(whole).map(size).sum();
        let bytes = read + written * (1 + whole);
        let flops = match (self.flops, &self.ins[..]) {
            (Flops::Known(flops), _) => flops,
            (Flops::Attention, [q, k, v, ..]) => {
                let width = |array: &Array| array.shape.last().copied().unwrap_or(0);
                let queries = q.numel() / width(q).max(1);
                let keys = k.shape.get(2).copied().unwrap_or(0);
                2 * (queries * keys * (width(q) + width(v))) as u64
            }
            (Flops::Attention | Flops::Lookup, _) => 0,
        };
        [bytes as u64, flops]
    }
}

impl Call {
    /// The weights of a product.
    fn weights(&self) -> impl Iterator<Item = &[u8]> {
        let is_product = matches!(self.flops, Flops::Known(1..));
        let constants =
            self.ins.iter().zip(&self.places).filter(move |(_, (location, _))| is_product && *location == Location::Constant);
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

/// What becomes of a result of a node that runs as it is.
#[derive(Clone, Debug)]
struct Kept {
    tid: Tid,
    /// The number to hold it under; a buffer's new contents stay in their slot.
    held: Option<usize>,
    /// What later steps count on: element type and sizes, row-major from the start of the storage.
    expected: Option<(DType, Shape)>,
}

/// A slice whose bounds depend on integers that only running tells.
#[derive(Clone, Debug)]
struct Window {
    number: usize,
    /// Layout and strides of what is sliced.
    of: Array,
    axis: usize,
    start: Int,
    stop: Int,
    step: usize,
}

/// Part of a buffer that is replaced where it lies.
#[derive(Clone, Debug)]
struct Update {
    buffer: Tid,
    axis: usize,
    rows: Rows,
}

/// The entries of an axis that an update replaces.
#[derive(Clone, Copy, Debug)]
enum Rows {
    Slice {
        start: Int,
        stop: Int,
        step: usize,
    },
    /// Those that the second operand lists.
    Listed,
}

/// What a step does.
#[derive(Debug)]
enum Action {
    Call(Call),
    /// The node as it is, over operands bound to the slots that it names.
    Node {
        ins: Vec<(Tid, Operand)>,
        outs: Vec<Kept>,
    },
    /// An integer that the shapes decide.
    Set(Vid, i32),
    Window(Window),
    Update(Update, Vec<Operand>),
}

/// A step, and the node that it belongs to: the last of those that `name` lists.
#[derive(Debug)]
struct Step {
    node: usize,
    name: Arc<str>,
    action: Action,
}

impl Step {
    fn weights(&self) -> impl Iterator<Item = &[u8]> {
        let call = if let Action::Call(call) = &self.action { Some(call) } else { None };
        call.into_iter().flat_map(Call::weights)
    }
}

/// A run of the main chain for one set of input shapes.
#[derive(Debug)]
pub(crate) struct RunPlan {
    inputs: Vec<Option<(DType, Shape)>>,
    rows: OutputRows,
    steps: Vec<Step>,
    /// For each step that multiplies by weights, the next one, in this run or another.
    next: Vec<Option<usize>>,
    /// Bytes of each scratch storage.
    scratch: Vec<usize>,
    /// Number of results that nodes leave.
    held: usize,
    /// What each window was last, by number.
    windows: Vec<Array>,
    results: Vec<(Tid, Operand)>,
}

/// Element types and shapes of the inputs as they are bound; integers have none.
fn input_shapes(m: &Machine) -> impl Iterator<Item = Option<&Array>> {
    m.graph.inputs.iter().map(|slot| match slot {
        Slot::Tensor(tid) => m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref),
        Slot::Value(_) => None,
    })
}

/// Which step multiplies by weights after each that does.
fn next_weights(steps: &[Step]) -> Vec<Option<usize>> {
    let products: Vec<usize> = (0..steps.len()).filter(|&i| steps[i].weights().next().is_some()).collect();
    let mut next = vec![None; steps.len()];
    for (&i, &after) in products.iter().zip(products.iter().cycle().skip(1)) {
        next[i] = Some(after);
    }
    next
}

impl RunPlan {
    /// Number of steps.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
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

/// Whether every buffer lies as plans count on: row-major, in the shape and type that the graph declares.
pub(crate) fn buffers_lie_plainly(m: &Machine) -> bool {
    let slots = m.graph.slots;
    let first = slots.constants + slots.inputs + slots.outputs;
    (first..first + slots.buffers).all(|tid| {
        let array = m.env.tensors.get(tid as usize).and_then(Option::as_ref);
        let meta = m.graph.meta.get(tid as usize);
        array.zip(meta).is_some_and(|(array, meta)| {
            array.offset == 0 && array.is_contiguous() && array.dtype == meta.dtype && has_shape(meta, &array.shape)
        })
    })
}

/// Whether the metadata declares exactly this shape.
fn has_shape(meta: &flambeau_ir::TensorMeta, shape: &[usize]) -> bool {
    let is_size = |(dim, &n): (&flambeau_ir::MetaDim, &usize)| matches!(dim, flambeau_ir::MetaDim::Static(d) if *d as usize == n);
    meta.shape.len() == shape.len() && meta.shape.iter().zip(shape).all(is_size)
}
