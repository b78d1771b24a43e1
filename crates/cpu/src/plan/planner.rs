//! Laying out a run: the main chain is walked once, and what each slot holds is followed as a place and a view of it.

use std::{rc::Rc, sync::Arc};

use flambeau_ir::{In, Infer, Int, Node, Out, OutVid, Role, Slot, SlotClass, Spec, Tid, infer::Env};
use flambeau_kernels::Pool;
use flambeau_tensor::{DType, Expr, Shape};

use super::{
    Action, Call, Flops, Kept, Layout, OutputRows, RunPlan, Step, Work, Workspace, calls,
    fused::{self, Fused},
    has_shape, input_shapes,
    linear::{self, Linear},
    memref::{MemRef, Place},
    next_weights, views,
};
use crate::{
    arena::MAX_TENSOR_BYTES,
    array::{Array, Storage},
    cx::Machine,
    error::{OpError, Result},
    ops::copy::{cast_into, copy_into},
};

/// What a slot holds.
#[derive(Clone, Debug)]
enum SlotState {
    Ready(MemRef),
    /// What no step computes before somebody reads it.
    Deferred(Deferred),
}

/// What is computed together with what comes after it.
#[derive(Clone, Debug)]
pub(super) enum Deferred {
    Linear(Box<Linear>),
    Fused(Fused),
}

/// What is known while the chain is walked.
pub(super) struct Planner<'a> {
    pub(super) m: &'a Machine,
    pub(super) env: Env,
    slots: Vec<Option<SlotState>>,
    steps: Vec<Step>,
    /// Handle and bytes of each scratch storage.
    scratch: Vec<(Rc<usize>, usize)>,
    held: Vec<Rc<usize>>,
    windows: Vec<Array>,
    /// The node being walked.
    at: usize,
    nothing: Arc<Storage>,
}

/// The plan for the bound inputs; `None` where runs do not follow one: the chain runs others, or a buffer is replaced while its
/// old contents are in use.
pub(crate) fn build(m: &Machine, workspace: &Workspace, rows: OutputRows) -> Option<RunPlan> {
    let mut b = Planner {
        m,
        env: Env::new(),
        slots: vec![None; m.graph.slots.total() as usize],
        steps: Vec::new(),
        scratch: Vec::new(),
        held: Vec::new(),
        windows: Vec::new(),
        at: 0,
        nothing: Arc::clone(&workspace.nothing),
    };
    b.seed();
    b.walk().ok()?;
    b.finish(rows).ok()
}

/// A run that no plan can follow.
pub(super) fn unplannable<T>(why: &str) -> Result<T> {
    Err(OpError::value(why))
}

impl Planner<'_> {
    /// Sets what holds values before the first node: constants, inputs, buffers.
    fn seed(&mut self) {
        let slots = self.m.graph.slots;
        for (tid, array) in (0..).map(Tid).zip(&self.m.env.tensors) {
            let Some(array) = array else { continue };
            let place = match slots.class(tid) {
                Some(SlotClass::Constant) => Place::Constant,
                _ => Place::Slot(tid),
            };
            let array = if matches!(place, Place::Constant) { array.clone() } else { self.bare(array) };
            self.env.replace(tid, Some(Spec::fixed(array.dtype, &array.shape)));
            self.slots[tid.0 as usize] = Some(SlotState::Ready(MemRef { place, layout: Layout::Fixed, array }));
        }
        for slot in &self.m.graph.inputs {
            if let Slot::Value(vid) = slot {
                let symbol = flambeau_ir::ShapeCx::unknown(&mut self.env);
                self.env.replace_value(*vid, Some(symbol));
            }
        }
    }

    /// The array's sizes and strides without its storage.
    fn bare(&self, array: &Array) -> Array {
        Array { data: Arc::clone(&self.nothing), ..array.clone() }
    }

    fn walk(&mut self) -> Result<()> {
        let graph = Arc::clone(&self.m.graph);
        let liveness = Arc::clone(&self.m.liveness);
        let main = graph.main as usize;
        for (at, (node, step)) in graph.chains[main].iter().zip(&liveness.chains[main]).enumerate() {
            self.at = at;
            self.node(node)?;
            step.drops.iter().for_each(|tid| self.slots[tid.0 as usize] = None);
        }
        Ok(())
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        if matches!(node, Node::If(_) | Node::Scan(_)) {
            return unplannable("it runs other chains");
        }
        node.infer(&mut self.env)?;
        if let Node::Slice(slice) = node {
            self.open(slice)?;
        }
        let is_deferred = self.integers(node) || linear::lower(self, node)? || fused::lower(self, node)?;
        let _ = is_deferred || views::lower(self, node)? || calls::lower(self, node)? || self.as_it_is(node)?;
        Ok(())
    }

    /// A slice with bounds that only running tells may be shorter than its rule assumes.
    fn open(&mut self, slice: &flambeau_ir::Slice) -> Result<()> {
        let Some(axis) = self.int(slice.axis) else { return unplannable("a slice's axis is not known") };
        let Some(x) = self.env.get(slice.x.0) else { return unplannable("a slice has no operand") };
        let axis = crate::ops::shape::axis_of(axis, x.rank())?;
        if self.int(slice.start).is_some() && self.int(slice.stop).is_some() && x.dims[axis].as_int().is_some() {
            return Ok(());
        }
        let size = flambeau_ir::ShapeCx::unknown(&mut self.env);
        if let Some(mut spec) = self.env.get(slice.out.0).cloned() {
            spec.dims[axis] = size;
            self.env.replace(slice.out.0, Some(spec));
        }
        Ok(())
    }

    /// Nodes whose only result is an integer that the shapes decide.
    fn integers(&mut self, node: &Node) -> bool {
        let out: OutVid = match node {
            Node::SymSize(n) => n.out,
            Node::AddInt(n) => n.out,
            Node::SubtractInt(n) => n.out,
            Node::MultiplyInt(n) => n.out,
            Node::FloorDivideInt(n) => n.out,
            Node::ModInt(n) => n.out,
            _ => return false,
        };
        let value = self.env.get_value(out.0).and_then(Expr::as_int).and_then(|v| i32::try_from(v).ok());
        if let Some(value) = value {
            self.push(Action::Set(out.0, value));
        }
        value.is_some()
    }

    /// The node runs as it is, over operands bound to the slots that it names.
    fn as_it_is(&mut self, node: &Node) -> Result<bool> {
        let (mut reads, mut writes): (Vec<Tid>, Vec<Tid>) = Default::default();
        node.walk(&mut |role, slot| {
            if let Slot::Tensor(tid) = slot {
                if role != Role::Write && !reads.contains(&tid) {
                    reads.push(tid);
                }
                if role != Role::Read && !writes.contains(&tid) {
                    writes.push(tid);
                }
            }
        });
        let mut ins = Vec::new();
        for &tid in &reads {
            let val = self.get(In(tid))?;
            // What lies in the slot already needs no binding.
            let is_there = self.m.graph.slots.class(tid) == Some(SlotClass::Constant) || val.is_in(tid);
            if !is_there {
                ins.push((tid, val.operand()));
            }
        }
        let outs = writes.iter().map(|&tid| self.keep(tid)).collect::<Result<Vec<_>>>()?;
        self.push(Action::Node { ins, outs });
        Ok(true)
    }

    /// Where a result of a node that runs as it is goes.
    fn keep(&mut self, tid: Tid) -> Result<Kept> {
        let expected = self.spec(Out(tid));
        let class = self.m.graph.slots.class(tid);
        let array = match &expected {
            Some((dtype, shape)) => Array::row_major(*dtype, shape, Arc::clone(&self.nothing)),
            None => Array::row_major(DType::U8, &[0], Arc::clone(&self.nothing)),
        };
        let layout = if expected.is_some() { Layout::Fixed } else { Layout::Whole };
        if class == Some(SlotClass::Buffer) {
            let meta = &self.m.graph.meta[tid.0 as usize];
            let fits = expected.as_ref().is_some_and(|(dtype, shape)| *dtype == meta.dtype && has_shape(meta, shape));
            if !fits || self.is_seen(tid, &[tid]) {
                return unplannable("a buffer changes its form, or while it is in use");
            }
            self.slots[tid.0 as usize] = Some(SlotState::Ready(MemRef { place: Place::Slot(tid), layout, array }));
            return Ok(Kept { tid, held: None, expected });
        }
        self.check_writable(tid)?;
        let free = self.held.iter().find(|number| Rc::strong_count(number) == 1).cloned();
        let number = free.unwrap_or_else(|| {
            self.held.push(Rc::new(self.held.len()));
            Rc::clone(&self.held[self.held.len() - 1])
        });
        let held = Some(*number);
        self.slots[tid.0 as usize] = Some(SlotState::Ready(MemRef { place: Place::Held(number), layout, array }));
        Ok(Kept { tid, held, expected })
    }

    /// Whether a slot other than those listed shows part of a buffer.
    pub(super) fn is_seen(&self, buffer: Tid, except: &[Tid]) -> bool {
        let mut shown = (0..).map(Tid).zip(&self.slots).filter(|(tid, _)| !except.contains(tid));
        shown.any(|(_, known)| matches!(known, Some(SlotState::Ready(val)) if val.is_in(buffer)))
    }

    /// Whether the value shows all of a buffer as it lies.
    pub(super) fn is_whole(&self, val: &MemRef, buffer: Tid) -> bool {
        let array = &val.array;
        let is_plain = val.is_fixed() && array.offset == 0 && array.is_contiguous();
        is_plain && self.m.graph.meta.get(buffer.0 as usize).is_some_and(|meta| has_shape(meta, &array.shape))
    }

    /// Whether the next node that names a buffer's slot only writes it.
    pub(super) fn is_replaced_next(&self, buffer: Tid) -> bool {
        let chain = &self.m.graph.chains[self.m.graph.main as usize];
        for node in chain.iter().skip(self.at + 1) {
            let (mut is_read, mut is_written) = (false, false);
            node.walk(&mut |role, slot| {
                if slot == Slot::Tensor(buffer) {
                    is_read |= role != Role::Write;
                    is_written |= role != Role::Read;
                }
            });
            if is_read || is_written {
                return !is_read;
            }
        }
        false
    }

    /// Whether nobody reads the slot's value after the node being walked.
    pub(super) fn dies(&self, tid: Tid) -> bool {
        self.m.liveness.chains[self.m.graph.main as usize][self.at].drops.contains(&tid)
    }

    fn check_writable(&self, tid: Tid) -> Result<()> {
        match self.m.graph.slots.class(tid) {
            Some(SlotClass::Temp | SlotClass::Output) => Ok(()),
            _ => unplannable("it writes to an input, a constant or part of a buffer"),
        }
    }

    pub(super) fn push(&mut self, action: Action) {
        let name = self.name();
        self.push_named(name, action);
    }

    /// Name of the node being walked.
    pub(super) fn name(&self) -> Arc<str> {
        self.m.graph.chains[self.m.graph.main as usize][self.at].name().into()
    }

    fn push_named(&mut self, name: Arc<str>, action: Action) {
        self.steps.push(Step { node: self.at, name, action });
    }

    /// What an operand holds; computed now, if it was deferred.
    pub(super) fn get(&mut self, slot: In) -> Result<MemRef> {
        match self.deferred_in(slot).cloned() {
            Some(Deferred::Linear(_)) => {
                let slots = linear::together(self, slot);
                let linears: Vec<Linear> = slots.iter().filter_map(|&tid| self.linear_in(In(tid)).cloned()).collect();
                for (tid, val) in slots.into_iter().zip(linear::compute(self, &linears)?) {
                    self.slots[tid.0 as usize] = Some(SlotState::Ready(val));
                }
            }
            Some(Deferred::Fused(fused)) => {
                let val = fused::compute(self, &fused)?;
                self.slots[slot.0.0 as usize] = Some(SlotState::Ready(val));
            }
            None => {}
        }
        match self.slots.get(slot.0.0 as usize) {
            Some(Some(SlotState::Ready(val))) => Ok(val.clone()),
            _ => Err(flambeau_ir::InferError::Unset(slot.0).into()),
        }
    }

    /// What an operand holds, if its sizes and strides are known.
    pub(super) fn fixed(&mut self, slot: In) -> Result<Option<MemRef>> {
        self.get(slot).map(|val| val.is_fixed().then_some(val))
    }

    /// As [`fixed`](Self::fixed), for an operand that may be left out: `Some(None)` if it is.
    pub(super) fn fixed_opt(&mut self, slot: Option<In>) -> Result<Option<Option<MemRef>>> {
        slot.map_or(Ok(Some(None)), |slot| Ok(self.fixed(slot)?.map(Some)))
    }

    /// What is deferred in a slot.
    pub(super) fn deferred_in(&self, slot: In) -> Option<&Deferred> {
        match self.slots.get(slot.0.0 as usize) {
            Some(Some(SlotState::Deferred(defer))) => Some(defer),
            _ => None,
        }
    }

    /// The layer deferred in a slot.
    pub(super) fn linear_in(&self, slot: In) -> Option<&Linear> {
        self.deferred_in(slot).and_then(|defer| if let Deferred::Linear(linear) = defer { Some(&**linear) } else { None })
    }

    /// All deferred layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = (Tid, &Linear)> {
        (0..self.slots.len() as u32).map(Tid).filter_map(|tid| Some((tid, self.linear_in(In(tid))?)))
    }

    /// Whether the node being walked is the last to read the slot's value, and names it once.
    pub(super) fn is_dying(&self, tid: Tid) -> bool {
        self.m.liveness.chains[self.m.graph.main as usize][self.at].dying.contains(&tid)
    }

    /// Binds a result that is computed when somebody reads it.
    pub(super) fn defer(&mut self, slot: Out, what: Deferred) -> Result<()> {
        self.check_writable(slot.0)?;
        self.slots[slot.0.0 as usize] = Some(SlotState::Deferred(what));
        Ok(())
    }

    /// Binds a result.
    ///
    /// # Errors
    /// If the slot is one that only nodes as they are may write.
    pub(super) fn put(&mut self, slot: Out, val: MemRef) -> Result<()> {
        self.check_writable(slot.0)?;
        self.slots[slot.0.0 as usize] = Some(SlotState::Ready(val));
        Ok(())
    }

    /// Binds a buffer to what already lies in its slot.
    pub(super) fn put_in_place(&mut self, slot: Out, val: MemRef) {
        self.slots[slot.0.0 as usize] = Some(SlotState::Ready(val));
    }

    /// An integer that the shapes decide.
    pub(super) fn int(&self, int: Int) -> Option<i64> {
        match int {
            Int::Lit(v) => Some(v.clamp(i64::from(i32::MIN), i64::from(i32::MAX))),
            Int::Vid(vid) => self.env.get_value(vid).and_then(Expr::as_int),
        }
    }

    /// Element type and shape of a result, if they are known.
    pub(super) fn spec(&self, slot: Out) -> Option<(DType, Shape)> {
        let spec = self.env.get(slot.0)?;
        Some((spec.dtype, spec.shape()?))
    }

    /// A place for a row-major result.
    fn scratch(&mut self, dtype: DType, shape: &[usize]) -> Result<MemRef> {
        let bytes = flambeau_tensor::numel(shape).and_then(|n| n.checked_mul(dtype.size()));
        let bytes = bytes.filter(|&n| n <= MAX_TENSOR_BYTES).ok_or_else(|| OpError::too_large(shape))?;
        let free = self.scratch.iter_mut().filter(|(handle, _)| Rc::strong_count(handle) == 1);
        // The closest in size: growing a large storage a little is cheaper than growing a small one a lot.
        let best = free.min_by_key(|(_, size)| size.abs_diff(bytes));
        let number = match best {
            Some((handle, size)) => {
                *size = (*size).max(bytes);
                Rc::clone(handle)
            }
            None => {
                let handle = Rc::new(self.scratch.len());
                self.scratch.push((Rc::clone(&handle), bytes));
                handle
            }
        };
        let array = Array::row_major(dtype, shape, Arc::clone(&self.nothing));
        Ok(MemRef { place: Place::Scratch(number), layout: Layout::Fixed, array })
    }

    /// A call with one result.
    pub(super) fn call(
        &mut self,
        ins: &[&MemRef],
        (dtype, shape): (DType, &[usize]),
        work: impl Fn(&Pool, &[Array], &mut Array) -> Result<()> + Send + 'static,
    ) -> Result<MemRef> {
        let work: Work = Box::new(move |pool, ins, outs| work(pool, ins, &mut outs[0]));
        let name = self.name();
        let flops = match &*name {
            "Sdpa" => Flops::Attention,
            "Take" => Flops::Lookup,
            _ => Flops::Known(0),
        };
        let mut outs = self.call_many(ins, &[(dtype, shape)], work, (name, flops))?;
        outs.pop().ok_or_else(|| OpError::value("a call has no result"))
    }

    /// A call with any number of results.
    pub(super) fn call_many(
        &mut self,
        ins: &[&MemRef],
        outs: &[(DType, &[usize])],
        work: Work,
        (name, flops): (Arc<str>, Flops),
    ) -> Result<Vec<MemRef>> {
        let operands: Vec<_> = ins.iter().map(|val| val.operand()).collect();
        let results = outs.iter().map(|(dtype, shape)| self.scratch(*dtype, shape)).collect::<Result<Vec<MemRef>>>()?;
        let targets = results.iter().filter_map(|val| match &val.place {
            Place::Scratch(number) => Some(**number),
            _ => None,
        });
        let call = Call {
            work,
            flops,
            places: operands.iter().map(|o| (o.location, o.layout)).collect(),
            ins: operands.into_iter().map(|o| o.array).collect(),
            targets: targets.collect(),
            outs: results.iter().map(|val| val.array.clone()).collect(),
        };
        self.push_named(name, Action::Call(call));
        Ok(results)
    }

    /// The value row-major: itself, or a copy.
    pub(super) fn contiguous(&mut self, val: MemRef) -> Result<MemRef> {
        if val.array.is_contiguous() {
            return Ok(val);
        }
        let (dtype, shape) = (val.array.dtype, val.array.shape.clone());
        self.call(&[&val], (dtype, &shape), |pool, ins, y| copy_into(pool, &ins[0], y))
    }

    /// The value in an element type: itself, or converted. Axes along which it repeats one element stay that way.
    pub(super) fn in_type(&mut self, val: MemRef, dtype: DType) -> Result<MemRef> {
        if val.array.dtype == dtype {
            return Ok(val);
        }
        let whole = val.array.shape.clone();
        let repeats = |(&d, &s): (&usize, &isize)| if s == 0 && d > 0 { 1 } else { d };
        let once: Shape = whole.iter().zip(&val.array.strides).map(repeats).collect();
        let narrow = val.seen(val.array.restrided(once.clone(), val.array.strides.clone(), val.array.offset));
        let out = self.call(&[&narrow], (dtype, &once), |pool, ins, y| cast_into(pool, &ins[0], y))?;
        let array = out.array.broadcast(&whole).ok_or_else(|| OpError::too_large(&whole))?;
        Ok(out.seen(array))
    }

    /// A number for a window of this form.
    pub(super) fn window(&mut self, array: &Array) -> usize {
        self.windows.push(array.clone());
        self.windows.len() - 1
    }

    /// Leaves out all but the last row of a layer that nobody has read yet.
    fn keep_last(&mut self, tid: Tid) {
        if let Some(Some(SlotState::Deferred(Deferred::Linear(linear)))) = self.slots.get_mut(tid.0 as usize) {
            linear.keep_last();
        }
    }

    fn finish(mut self, rows: OutputRows) -> Result<RunPlan> {
        let m = self.m;
        let mut results = Vec::new();
        for slot in &m.graph.outputs {
            if let Slot::Tensor(tid) = slot {
                if rows == OutputRows::Last {
                    self.keep_last(*tid);
                }
                let val = self.get(In(*tid))?;
                if !val.is_in(*tid) && m.graph.slots.class(*tid) != Some(SlotClass::Constant) {
                    results.push((*tid, val.operand()));
                }
            }
        }
        for tid in self.m.graph.buffers.iter() {
            let stays = matches!(&self.slots[tid.0 as usize], Some(SlotState::Ready(val)) if val.is_in(*tid));
            if !stays {
                return unplannable("a buffer ends elsewhere");
            }
        }
        let inputs = input_shapes(m).map(|array| array.map(|a| (a.dtype, a.shape.clone()))).collect();
        let scratch = self.scratch.iter().map(|(_, bytes)| *bytes).collect();
        let next = next_weights(&self.steps);
        Ok(RunPlan { inputs, rows, steps: self.steps, next, scratch, held: self.held.len(), windows: self.windows, results })
    }
}
