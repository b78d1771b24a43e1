//! A plan while it is recorded: its steps, its storage, and each slot's contents as a place and a
//! view of it.

use std::{rc::Rc, sync::Arc};

use flambeau_ir::{Checked, In, Int, Node, Role, Slot, SlotClass, Spec, Tid, infer};
use flambeau_tensor::{DType, Expr, Shape};
use smallvec::{SmallVec, smallvec};

use super::{
    Action, Call, Layout, OutputRows, PlanStep, RunPlan, Work, Workspace, check_buffer,
    codes::Undecoded,
    implied::{Implied, LeftOut},
    input_shapes, linear,
    memref::{MemRef, Place},
    next_weights,
    planner::{Cost, Deferred},
};
use crate::{
    arena::MAX_TENSOR_BYTES,
    array::{Array, Storage},
    error::{OpError, Result},
    liveness::Liveness,
    machine::Machine,
};

/// The state of a slot.
#[derive(Clone, Debug)]
pub(super) enum SlotState {
    Ready(MemRef),
    /// A value that no step computes before its first reader.
    Deferred(Deferred),
    /// A value that no step computes, for attention.
    Implied(Box<Implied>),
}

impl SlotState {
    /// The arrays that a reader of the slot reads, unless they stay as they are.
    fn views_mut(&mut self) -> SmallVec<[&mut MemRef; 4]> {
        match self {
            SlotState::Ready(x) => smallvec![x],
            SlotState::Deferred(_) => SmallVec::new(),
            SlotState::Implied(implied) => implied.operands_mut(),
        }
    }
}

/// The known slots while the main chain is recorded, and the steps so far.
pub(super) struct Recorder {
    pub(super) graph: Arc<Checked>,
    pub(super) liveness: Arc<Liveness>,
    pub(super) env: infer::Env,
    pub(super) slots: Vec<Option<SlotState>>,
    steps: Vec<PlanStep>,
    /// Handle and bytes of each scratch storage.
    scratch: Vec<(Rc<usize>, usize)>,
    held: Vec<Rc<usize>>,
    pub(super) windows: Vec<Array>,
    pub(super) undecoded: Undecoded,
    /// Kinds of values to compute in this plan.
    needed: Vec<LeftOut>,
    /// A kind of left-out values that a node needs.
    pub(super) missing: Option<LeftOut>,
    /// The node being prepared.
    pub(super) at: usize,
    nothing: Arc<Storage>,
}

impl Recorder {
    /// The state before the first node: constants, inputs and buffers are set.
    pub(super) fn new(m: &Machine, workspace: &Workspace, needed: &[LeftOut]) -> Recorder {
        let is_decoded = needed.contains(&LeftOut::Decoded);
        let undecoded = if is_decoded { Undecoded::default() } else { Undecoded::of(&m.graph, &m.liveness) };
        let mut recorder = Recorder {
            graph: Arc::clone(&m.graph),
            liveness: Arc::clone(&m.liveness),
            env: infer::Env::new(),
            slots: vec![None; m.graph.slots.total() as usize],
            steps: Vec::new(),
            scratch: Vec::new(),
            held: Vec::new(),
            windows: Vec::new(),
            undecoded,
            needed: needed.to_vec(),
            missing: None,
            at: 0,
            nothing: Arc::clone(&workspace.nothing),
        };
        for (tid, array) in (0..).map(Tid).zip(&m.tensors) {
            let Some(array) = array else { continue };
            recorder.env.replace(tid, Some(Spec::fixed(array.dtype, &array.shape)));
            let (place, array) = match m.graph.slots.class(tid) {
                Some(SlotClass::Constant) => (Place::Constant, array.clone()),
                _ => (Place::Slot(tid), recorder.bare(array)),
            };
            recorder.put(tid, MemRef { place, layout: Layout::Fixed, array });
        }
        for slot in &m.graph.inputs {
            if let Slot::Value(vid) = slot {
                let symbol = flambeau_ir::ShapeCx::unknown(&mut recorder.env);
                recorder.env.replace_value(*vid, Some(symbol));
            }
        }
        recorder
    }

    /// The array's sizes and strides without its storage.
    fn bare(&self, array: &Array) -> Array {
        Array { data: Arc::clone(&self.nothing), ..array.clone() }
    }

    /// A row-major array of these sizes without storage.
    fn row_major(&self, dtype: DType, shape: &[usize]) -> Array {
        Array::row_major(dtype, shape, Arc::clone(&self.nothing))
    }

    /// The node being prepared.
    pub(super) fn node(&self) -> &Node {
        &self.graph.chains[self.graph.main as usize][self.at]
    }

    pub(super) fn push(&mut self, action: Action) {
        let name = self.node().name().into();
        self.steps.push(PlanStep { node: self.at, name, action });
    }

    /// Binds a result.
    pub(super) fn put(&mut self, tid: Tid, x: MemRef) {
        self.slots[tid.0 as usize] = Some(SlotState::Ready(x));
    }

    /// Binds a result that its first reader computes.
    pub(super) fn defer(&mut self, tid: Tid, what: Deferred) {
        self.slots[tid.0 as usize] = Some(SlotState::Deferred(what));
    }

    /// Binds a result that no step computes.
    pub(super) fn put_implied(&mut self, tid: Tid, what: Implied) {
        self.slots[tid.0 as usize] = Some(SlotState::Implied(Box::new(what)));
    }

    /// The value in a slot, if no step computes it.
    pub(super) fn implied(&self, tid: Tid) -> Option<&Implied> {
        match self.slots.get(tid.0 as usize)? {
            Some(SlotState::Implied(implied)) => Some(implied),
            _ => None,
        }
    }

    /// The slice in a slot, if its bounds are known only at run time.
    pub(super) fn window_in(&self, slot: In) -> Option<MemRef> {
        match self.slots.get(slot.0.0 as usize)? {
            Some(SlotState::Ready(x)) if matches!(x.layout, Layout::Window(_)) => Some(x.clone()),
            _ => None,
        }
    }

    /// The constant in a slot.
    pub(super) fn constant_in(&self, slot: In) -> Option<MemRef> {
        match self.slots.get(slot.0.0 as usize)? {
            Some(SlotState::Ready(x)) if x.is_constant() => Some(x.clone()),
            _ => None,
        }
    }

    /// Whether the plan leaves out values of a kind.
    pub(super) fn leaves_out(&self, kind: LeftOut) -> bool {
        !self.needed.contains(&kind)
    }

    pub(super) fn clear(&mut self, tid: Tid) {
        self.slots[tid.0 as usize] = None;
    }

    /// Empties the slots that the node being prepared would write.
    pub(super) fn clear_results(&mut self) {
        let graph = Arc::clone(&self.graph);
        graph.chains[graph.main as usize][self.at].walk(&mut |role, slot| match slot {
            Slot::Tensor(tid) if role != Role::Read => self.clear(tid),
            _ => {}
        });
    }

    /// Whether a slot holds something.
    pub(super) fn holds(&self, tid: Tid) -> bool {
        matches!(self.slots.get(tid.0 as usize), Some(Some(_)))
    }

    /// The deferred computation in a slot.
    pub(super) fn deferred(&self, slot: In) -> Option<&Deferred> {
        match self.slots.get(slot.0.0 as usize) {
            Some(Some(SlotState::Deferred(deferred))) => Some(deferred),
            _ => None,
        }
    }

    /// Element type of a slot's contents; the current node may be about to replace them.
    pub(super) fn dtype(&self, slot: In) -> Option<DType> {
        match self.slots.get(slot.0.0 as usize)?.as_ref()? {
            SlotState::Ready(x) => Some(x.array.dtype),
            SlotState::Deferred(deferred) => Some(deferred.dtype()),
            SlotState::Implied(implied) => Some(implied.dtype()),
        }
    }

    /// The layer deferred in a slot.
    pub(super) fn linear(&self, slot: In) -> Option<&linear::Linear> {
        self.deferred(slot).and_then(|deferred| if let Deferred::Linear(linear) = deferred { Some(&**linear) } else { None })
    }

    /// All deferred layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = (Tid, &linear::Linear)> {
        (0..self.slots.len() as u32).map(Tid).filter_map(|tid| Some((tid, self.linear(In(tid))?)))
    }

    /// Whether the node being prepared is the last to read the slot's value, and names it once.
    pub(super) fn is_dying(&self, tid: Tid) -> bool {
        self.liveness.chains[self.graph.main as usize][self.at].dying.contains(&tid)
    }

    /// Whether the slot's value has no reader after the current node.
    pub(super) fn dies(&self, tid: Tid) -> bool {
        self.liveness.chains[self.graph.main as usize][self.at].drops.contains(&tid)
    }

    /// An integer that the shapes decide.
    pub(super) fn int(&self, int: Int) -> Option<i64> {
        match int {
            Int::Lit(v) => Some(v.clamp(i64::from(i32::MIN), i64::from(i32::MAX))),
            Int::Vid(vid) => self.env.get_value(vid).and_then(Expr::as_int),
        }
    }

    /// Element type and shape of a slot's contents, if known.
    pub(super) fn spec(&self, tid: Tid) -> Option<infer::run::OutSpec> {
        let spec = self.env.get(tid)?;
        Some(infer::run::OutSpec { dtype: spec.dtype, shape: spec.shape()? })
    }

    /// A place for a row-major result.
    fn scratch(&mut self, dtype: DType, shape: &[usize]) -> Result<MemRef> {
        let bytes = flambeau_tensor::numel(shape).and_then(|n| n.checked_mul(dtype.size()));
        let bytes = bytes.filter(|&n| n <= MAX_TENSOR_BYTES).ok_or_else(|| OpError::too_large(shape))?;
        let free = self.scratch.iter_mut().filter(|(handle, _)| Rc::strong_count(handle) == 1);
        // The closest in size: growing a large storage a little is cheaper than growing a small one
        // a lot.
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
        Ok(MemRef { place: Place::Scratch(number), layout: Layout::Fixed, array: self.row_major(dtype, shape) })
    }

    /// A number for an array that outlasts its step.
    fn held(&mut self) -> Rc<usize> {
        let free = self.held.iter().find(|number| Rc::strong_count(number) == 1).cloned();
        free.unwrap_or_else(|| {
            self.held.push(Rc::new(self.held.len()));
            Rc::clone(&self.held[self.held.len() - 1])
        })
    }

    /// Binds a slot to a dynamic node's result. Returns the number of the held result.
    pub(super) fn put_held(&mut self, tid: Tid, expected: Option<&(DType, Shape)>) -> usize {
        let (layout, array) = match expected {
            Some((dtype, shape)) => (Layout::Fixed, self.row_major(*dtype, shape)),
            None => (Layout::Dynamic, self.row_major(DType::U8, &[0])),
        };
        let number = self.held();
        let held = *number;
        self.put(tid, MemRef { place: Place::Held(number), layout, array });
        held
    }

    /// Binds a buffer to its slot's contents.
    pub(super) fn put_in_slot(&mut self, buffer: Tid) {
        let meta = &self.graph.meta[buffer.0 as usize];
        let array = self.row_major(meta.dtype, &meta.static_shape().unwrap_or_default());
        self.put(buffer, MemRef { place: Place::Slot(buffer), layout: Layout::Fixed, array });
    }

    /// A call with results in scratch storage.
    pub(super) fn call(
        &mut self,
        (name, cost): (Option<Arc<str>>, Cost),
        ins: &[&MemRef],
        outs: &[(DType, &[usize])],
        work: Work,
    ) -> Result<SmallVec<[MemRef; 2]>> {
        let results = outs.iter().map(|(dtype, shape)| self.scratch(*dtype, shape)).collect::<Result<SmallVec<[MemRef; 2]>>>()?;
        let call = Call::new(work, cost, ins, &results);
        self.push(Action::Call(call));
        if let (Some(name), Some(step)) = (name, self.steps.last_mut()) {
            step.name = name;
        }
        Ok(results)
    }

    /// Whether a slot other than those listed shows part of a buffer, or something that is kept
    /// does.
    pub(super) fn is_seen(&self, buffer: Tid, except: &[Tid]) -> bool {
        let mut shown = (0..).map(Tid).zip(&self.slots).filter(|(tid, _)| !except.contains(tid));
        let is_part = |state: &SlotState| match state {
            SlotState::Ready(x) => x.is_in(buffer),
            SlotState::Deferred(_) => false,
            SlotState::Implied(implied) => implied.operands().iter().any(|x| x.is_in(buffer)),
        };
        shown.any(|(_, state)| state.as_ref().is_some_and(is_part)) || self.undecoded.kept.values().any(|x| x.is_in(buffer))
    }

    /// Whether the reference is a whole buffer in its own layout.
    pub(super) fn is_whole(&self, x: &MemRef, buffer: Tid) -> bool {
        let is_plain = x.is_fixed() && x.array.offset == 0 && x.array.is_contiguous();
        x.is_in(buffer)
            && is_plain
            && check_buffer(&self.graph.meta[buffer.0 as usize], buffer, x.array.dtype, &x.array.shape).is_ok()
    }

    /// Whether the next node that names a buffer's slot only writes it.
    pub(super) fn is_replaced_next(&self, buffer: Tid) -> bool {
        let chain = &self.graph.chains[self.graph.main as usize];
        for node in chain.iter().skip(self.at + 1) {
            if !node.chains().is_empty() {
                return false;
            }
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

    /// Preserves the contents of slots that view a buffer across the buffer's next write.
    pub(super) fn hold_views_of(&mut self, buffer: Tid) {
        if !self.is_seen(buffer, &[buffer]) {
            return;
        }
        let number = self.held();
        self.push(Action::Hold(buffer, *number));
        let others = (0..).map(Tid).zip(&mut self.slots).filter(|(tid, _)| *tid != buffer);
        let views = others.flat_map(|(_, state)| state.as_mut().into_iter().flat_map(SlotState::views_mut));
        for x in views.chain(self.undecoded.kept.values_mut()).filter(|x| x.is_in(buffer)) {
            x.place = Place::Held(Rc::clone(&number));
        }
    }

    pub(super) fn plan(self, m: &Machine, rows: OutputRows) -> Result<RunPlan> {
        let mut results = Vec::new();
        for slot in &self.graph.outputs {
            if let Slot::Tensor(tid) = slot
                && let Some(Some(SlotState::Ready(x))) = self.slots.get(tid.0 as usize)
                && !x.is_in(*tid)
                && self.graph.slots.class(*tid) != Some(SlotClass::Constant)
            {
                results.push((*tid, x.operand()));
            }
        }
        let is_prepared = |step: &&PlanStep| !matches!(step.action, Action::Dynamic(_));
        Ok(RunPlan {
            inputs: input_shapes(m).map(|array| array.map(|a| (a.dtype, a.shape.clone()))).collect(),
            rows,
            prepared: self.steps.iter().filter(is_prepared).count() as u64,
            meetings: self.steps.iter().enumerate().filter_map(|(i, step)| Some((i, step.meeting()?))).collect(),
            next: next_weights(&self.steps),
            steps: self.steps,
            scratch: self.scratch.iter().map(|(_, bytes)| *bytes).collect(),
            held: self.held.len(),
            windows: self.windows,
            results,
        })
    }
}

impl Call {
    pub(super) fn new(work: Work, cost: Cost, ins: &[&MemRef], outs: &[MemRef]) -> Call {
        let operands: Vec<_> = ins.iter().map(|x| x.operand()).collect();
        let targets = outs.iter().filter_map(|x| if let Place::Scratch(number) = &x.place { Some(**number) } else { None });
        Call {
            work,
            cost,
            places: operands.iter().map(|o| (o.location, o.layout)).collect(),
            ins: operands.into_iter().map(|o| o.array).collect(),
            targets: targets.collect(),
            outs: outs.iter().map(|x| x.array.clone()).collect(),
        }
    }
}
