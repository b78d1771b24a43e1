//! A run laid out ahead, for one set of input shapes: kernel calls whose operands have their places, shapes and strides.
//!
//! The first run with given input shapes walks the main chain once, on what is known of each slot, and writes down what is left
//! to do (`build`). From then on views cost nothing, results lie in scratch storage whose reuse is decided, and constants are
//! bound. Integers that only running tells stay open: slices that depend on them are windows whose bounds each run fills in, and
//! what no call here covers runs as the node it is. Every later run with these shapes replays the tape.

mod build;
mod calls;
mod replay;
mod value;
mod views;

use flambeau_ir::{Int, Slot, Tid, Vid};
use flambeau_kernels::Pool;
use flambeau_tensor::{DType, Shape};

pub(crate) use self::{build::build, replay::Frame};
use crate::{array::Array, cx::Machine, error::Result};

/// Where an operand lies when a tape runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// In the operand itself, since the tape was built.
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
enum Sizes {
    /// The operand itself.
    Fixed,
    /// A window, by number.
    Window(usize),
    /// Whatever array the source holds.
    Whole,
}

/// An operand of a step. Unless it is constant, its array has storage only while the step runs.
#[derive(Clone, Debug)]
struct Operand {
    source: Source,
    sizes: Sizes,
    array: Array,
}

/// What a call does with its operands; results are row-major and alone see their storage.
type Work = Box<dyn Fn(&Pool, &[Array], &mut [Array]) -> Result<()> + Send>;

/// A kernel call on operands that get their storage before it and lose it after it.
struct Call {
    work: Work,
    places: Vec<(Source, Sizes)>,
    ins: Vec<Array>,
    /// Scratch numbers of the results.
    targets: Vec<usize>,
    outs: Vec<Array>,
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
    /// Sizes and strides of what is sliced.
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

/// A step, and the node that it belongs to.
#[derive(Debug)]
struct Step {
    node: usize,
    action: Action,
}

/// A run of the main chain for one set of input shapes.
#[derive(Debug)]
pub(crate) struct Tape {
    inputs: Vec<Option<(DType, Shape)>>,
    steps: Vec<Step>,
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

impl Tape {
    /// Whether the tape was laid out for inputs like those that are bound.
    pub(crate) fn fits(&self, m: &Machine) -> bool {
        self.inputs.iter().zip(input_shapes(m)).all(|(known, found)| match (known, found) {
            (Some((dtype, shape)), Some(array)) => *dtype == array.dtype && *shape == array.shape,
            (None, None) => true,
            _ => false,
        })
    }
}

/// Whether every buffer lies as tapes count on: row-major, in the shape and type that the graph declares.
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
