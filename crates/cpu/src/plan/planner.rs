//! The planner through which nodes prepare themselves: operands, sizes, calls.

use std::sync::Arc;

use flambeau_ir::{Graph, In, Int, Node, Out, OutVid, SlotClass, Tid, infer::run::OutSpec};
use flambeau_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::{
    Action, MemRef, Work, fused::Fused, layers::Layers, linear::Linear, memref::Place, packed::PackedMatrix, recorder::Recorder,
};
use crate::{
    array::Array,
    error::{OpError, Result},
    machine::{Context, Machine, check_size},
    obstacle::{Dynamic, Obstacle, Prepared},
    ops::copy::{cast_into, copy_into, duplicate},
};

/// Prepares nodes, before a run or during it.
pub(crate) struct Planner<'a> {
    pub(super) m: &'a mut Machine,
    pub(super) mode: Mode<'a>,
}

/// The mode of a planner: run calls at once, or record them.
pub(super) enum Mode<'a> {
    /// They run at once on the slots' contents. The node may take the listed operands.
    Now(&'a [Tid]),
    /// They become steps of a plan.
    Ahead(&'a mut Recorder),
}

/// The cost of a call besides its bytes, for profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// It reads as many bytes of its first operand as it writes.
    Lookup,
    /// Floating-point operations of products.
    Flops(u64),
    /// The operations of attention over its operands' sizes at run time.
    Attention,
}

/// A computation deferred to be fused with its readers.
#[derive(Clone, Debug)]
pub(super) enum Deferred {
    Linear(Box<Linear>),
    Fused(Box<Fused>),
    Packed(Box<PackedMatrix>),
}

impl Deferred {
    pub(super) fn dtype(&self) -> DType {
        match self {
            Deferred::Linear(linear) => linear.dtype,
            Deferred::Fused(fused) => fused.dtype,
            Deferred::Packed(packed) => packed.dtype,
        }
    }
}

/// Runs a node: its rule on the actual sizes, then its calls.
///
/// # Errors
/// If the node refuses its operands.
pub(crate) fn run_now(m: &mut Machine, node: &Node, dying: &[Tid]) -> Result<()> {
    m.infer(node)?;
    Planner { m, mode: Mode::Now(dying) }.prepare(node).map_err(Obstacle::at_run)
}

impl Planner<'_> {
    /// The graph of the node.
    pub(crate) fn graph(&self) -> &Graph {
        &self.m.graph
    }

    /// The machine, for a node that runs chains.
    ///
    /// # Errors
    /// If the node is prepared before a run.
    pub(crate) fn machine(&mut self) -> Prepared<&mut Machine> {
        match self.mode {
            Mode::Now(_) => Ok(&mut *self.m),
            Mode::Ahead(_) => Err(Obstacle::Dynamic(Dynamic::Chains)),
        }
    }

    /// An operand's contents in any layout.
    ///
    /// # Errors
    /// If nothing has been written to it.
    pub(crate) fn get(&mut self, slot: In) -> Result<MemRef> {
        match self.mode {
            Mode::Now(_) => self.m.get(slot.0).map(MemRef::bound),
            Mode::Ahead(_) => self.recorded(slot.0),
        }
    }

    /// An operand's contents.
    ///
    /// # Errors
    /// If its sizes and strides are not known yet.
    pub(crate) fn operand(&mut self, slot: In) -> Prepared<MemRef> {
        let x = self.get(slot)?;
        if x.is_fixed() { Ok(x) } else { Err(Obstacle::Dynamic(Dynamic::Operand)) }
    }

    /// As [`operand`](Self::operand), for an operand that may be left out.
    pub(crate) fn operand_opt(&mut self, slot: Option<In>) -> Prepared<Option<MemRef>> {
        slot.map(|slot| self.operand(slot)).transpose()
    }

    /// As [`operand`](Self::operand), for several.
    pub(crate) fn operands(&mut self, slots: &[In]) -> Prepared<SmallVec<[MemRef; 3]>> {
        slots.iter().map(|&slot| self.operand(slot)).collect()
    }

    /// Element type of an operand, which may be deferred.
    ///
    /// # Errors
    /// If it is not known yet.
    pub(crate) fn dtype(&self, slot: In) -> Prepared<DType> {
        match &self.mode {
            Mode::Now(_) => Ok(self.m.get(slot.0)?.dtype),
            Mode::Ahead(recorder) => recorder.dtype(slot).ok_or(Obstacle::Dynamic(Dynamic::Operand)),
        }
    }

    /// Element type and shape of a result.
    ///
    /// # Errors
    /// If they are not known yet, or too large.
    pub(crate) fn spec(&self, slot: Out) -> Prepared<OutSpec> {
        let spec = match &self.mode {
            Mode::Now(_) => self.m.inferred(slot)?,
            Mode::Ahead(recorder) => recorder.spec(slot.0).ok_or(Obstacle::Dynamic(Dynamic::Result))?,
        };
        Ok(check_size(spec)?)
    }

    /// An integer, if it is known.
    ///
    /// # Errors
    /// If nothing has been written to its slot.
    pub(crate) fn known(&self, int: Int) -> Result<Option<i64>> {
        match &self.mode {
            Mode::Now(_) => self.m.cx.int(int).map(Some),
            Mode::Ahead(recorder) => Ok(recorder.int(int)),
        }
    }

    /// An integer.
    ///
    /// # Errors
    /// If it is not known yet.
    pub(crate) fn int(&self, int: Int) -> Prepared<i64> {
        self.known(int)?.ok_or(Obstacle::Dynamic(Dynamic::Integer))
    }

    /// An integer result that the rule inferred, if it is known.
    pub(crate) fn known_result(&self, slot: OutVid) -> Result<Option<i32>> {
        match &self.mode {
            Mode::Now(_) => self.m.inferred_value(slot).map(Some),
            Mode::Ahead(recorder) => Ok(recorder.int(Int::Vid(slot.0)).and_then(|v| i32::try_from(v).ok())),
        }
    }

    /// Binds an integer result.
    pub(crate) fn set_value(&mut self, slot: OutVid, value: i32) {
        match &mut self.mode {
            Mode::Now(_) => self.m.cx.set_value(slot, value),
            Mode::Ahead(recorder) => recorder.push(Action::Set(slot, value)),
        }
    }

    /// Binds an integer result that follows from other integers by the node's rule.
    pub(crate) fn infer_value(&mut self, slot: OutVid) -> Prepared {
        match (self.known_result(slot)?, &mut self.mode) {
            (Some(value), _) => self.set_value(slot, value),
            (None, Mode::Ahead(recorder)) => recorder.push(Action::Infer(slot)),
            (None, Mode::Now(_)) => return Err(Obstacle::Dynamic(Dynamic::Integer)),
        }
        Ok(())
    }

    /// Binds an integer result that `read` extracts from an operand.
    pub(crate) fn read_value(&mut self, slot: OutVid, x: &MemRef, read: fn(&Array) -> Result<i32>) -> Prepared {
        match &mut self.mode {
            Mode::Now(_) => {
                let value = read(&x.array)?;
                self.m.cx.set_value(slot, value);
            }
            Mode::Ahead(recorder) => recorder.push(Action::Read(slot, x.operand(), read)),
        }
        Ok(())
    }

    /// A call with one new row-major result.
    pub(crate) fn call(
        &mut self,
        ins: &[&MemRef],
        (dtype, shape): (DType, &[usize]),
        work: impl Fn(&mut Context, &[Array], &mut Array) -> Result<()> + Send + 'static,
    ) -> Prepared<MemRef> {
        self.call_of(Cost::Flops(0), ins, (dtype, shape), work)
    }

    /// Like [`call`](Self::call), with its cost.
    pub(crate) fn call_of(
        &mut self,
        cost: Cost,
        ins: &[&MemRef],
        (dtype, shape): (DType, &[usize]),
        work: impl Fn(&mut Context, &[Array], &mut Array) -> Result<()> + Send + 'static,
    ) -> Prepared<MemRef> {
        let work = move |cx: &mut Context, ins: &[Array], outs: &mut [Array]| work(cx, ins, &mut outs[0]);
        let mut outs = self.call_many((None, cost), ins, &[(dtype, shape)], work)?;
        outs.pop().ok_or_else(|| OpError::value("a call has no result").into())
    }

    /// A call with any number of results, under its own name or the node's.
    pub(crate) fn call_many(
        &mut self,
        (name, cost): (Option<Arc<str>>, Cost),
        ins: &[&MemRef],
        outs: &[(DType, &[usize])],
        work: impl Fn(&mut Context, &[Array], &mut [Array]) -> Result<()> + Send + 'static,
    ) -> Prepared<SmallVec<[MemRef; 2]>> {
        match &mut self.mode {
            Mode::Now(_) => Ok(call_now(&mut self.m.cx, ins, outs, &work)?),
            Mode::Ahead(recorder) => Ok(recorder.call((name, cost), ins, outs, Work::Other(Box::new(work)))?),
        }
    }

    /// A call that computes linear layers.
    pub(super) fn call_layers(
        &mut self,
        (name, cost): (Arc<str>, Cost),
        ins: &[&MemRef],
        outs: &[(DType, &[usize])],
        layers: Layers,
    ) -> Prepared<SmallVec<[MemRef; 2]>> {
        match &mut self.mode {
            Mode::Now(_) => Ok(call_now(&mut self.m.cx, ins, outs, &|cx, ins, outs| layers.run(&cx.pool, ins, outs))?),
            Mode::Ahead(recorder) => Ok(recorder.call((Some(name), cost), ins, outs, Work::Layers(layers))?),
        }
    }

    /// Replaces part of `dst`: in place if its storage is unshared, else on a copy. `work` gets the
    /// old contents in its result. After an error, the result is unchanged or partly updated.
    pub(crate) fn update(
        &mut self,
        dst: In,
        out: Out,
        ins: &[&MemRef],
        work: impl Fn(&mut Context, &[Array], &mut Array) -> Result<()> + Send + 'static,
    ) -> Prepared {
        if let Mode::Now(dying) = self.mode {
            let may_take = dying.contains(&dst.0);
            return Ok(update_now(self.m, (dst, may_take), out, ins, &work)?);
        }
        let old = self.operand(dst)?;
        if let Some(buffer) = self.updated_in_place(dst, out, ins)? {
            self.record_update(buffer, ins, Work::Other(Box::new(move |cx, ins, outs| work(cx, ins, &mut outs[0]))));
            self.put(out, old);
            return Ok(());
        }
        let (dtype, shape) = (old.array.dtype, old.array.shape.clone());
        let all: SmallVec<[&MemRef; 4]> = std::iter::once(&old).chain(ins.iter().copied()).collect();
        let new = self.call(&all, (dtype, &shape), move |cx, ins, y| {
            copy_into(&cx.pool, &ins[0], y)?;
            work(cx, &ins[1..], y)
        })?;
        self.put(out, new);
        Ok(())
    }

    /// Binds a result.
    pub(crate) fn put(&mut self, slot: Out, x: MemRef) {
        match &mut self.mode {
            Mode::Now(_) => self.m.set(slot.0, x.array),
            Mode::Ahead(recorder) => recorder.put(slot.0, x),
        }
    }

    /// Binds a result deferred to its reader when recording; else computes it now.
    pub(super) fn defer(&mut self, slot: Out, what: Deferred) -> Prepared {
        if let Mode::Ahead(recorder) = &mut self.mode {
            recorder.defer(slot.0, what);
            return Ok(());
        }
        let x = match what {
            Deferred::Linear(linear) => super::linear::emit(self, &[*linear])?.swap_remove(0),
            Deferred::Fused(fused) => super::fused::emit(self, *fused)?,
            Deferred::Packed(packed) => super::packed::emit(self, *packed)?,
        };
        self.put(slot, x);
        Ok(())
    }

    /// Whether a step may read the array after its node's position.
    pub(super) fn stays(&self, x: &MemRef) -> bool {
        match x.place {
            Place::Slot(tid) => self.m.graph.slots.class(tid) != Some(SlotClass::Buffer),
            _ => true,
        }
    }

    /// The array row-major: itself, or a copy.
    pub(crate) fn contiguous(&mut self, x: MemRef) -> Prepared<MemRef> {
        if x.array.is_contiguous() {
            return Ok(x);
        }
        let (dtype, shape) = (x.array.dtype, x.array.shape.clone());
        self.call(&[&x], (dtype, &shape), |cx, ins, y| copy_into(&cx.pool, &ins[0], y))
    }

    /// The array in an element type, converted if needed. Broadcast axes stay broadcast.
    pub(crate) fn in_type(&mut self, x: MemRef, dtype: DType) -> Prepared<MemRef> {
        if x.array.dtype == dtype {
            return Ok(x);
        }
        let whole = x.array.shape.clone();
        let repeats = |(&d, &s): (&usize, &isize)| if s == 0 && d > 0 { 1 } else { d };
        let once: Shape = whole.iter().zip(&x.array.strides).map(repeats).collect();
        let narrow = x.seen(x.array.restrided(once.clone(), x.array.strides.clone(), x.array.offset));
        let y = self.call(&[&narrow], (dtype, &once), |cx, ins, y| cast_into(&cx.pool, &ins[0], y))?;
        let array = y.array.broadcast(&whole).ok_or_else(|| OpError::too_large(&whole))?;
        Ok(y.seen(array))
    }

    /// The array in an element type and row-major.
    pub(crate) fn rows_in_type(&mut self, x: MemRef, dtype: DType) -> Prepared<MemRef> {
        let x = self.in_type(x, dtype)?;
        self.contiguous(x)
    }

    /// The array in another shape with as many elements: a view, or else of a copy.
    pub(crate) fn reshaped(&mut self, x: MemRef, shape: &[usize]) -> Prepared<MemRef> {
        if let Some(array) = x.array.reshaped(shape) {
            return Ok(x.seen(array));
        }
        let mut copy = self.contiguous(x)?;
        copy.array.set_shape(shape);
        Ok(copy)
    }
}

/// Computes results from operands.
type CallWork<'a> = dyn Fn(&mut Context, &[Array], &mut [Array]) -> Result<()> + 'a;

/// Writes operands over part of an array.
type UpdateWork<'a> = dyn Fn(&mut Context, &[Array], &mut Array) -> Result<()> + 'a;

fn call_now(cx: &mut Context, ins: &[&MemRef], outs: &[(DType, &[usize])], work: &CallWork<'_>) -> Result<SmallVec<[MemRef; 2]>> {
    let ins: SmallVec<[Array; 4]> = ins.iter().map(|x| x.array.clone()).collect();
    let mut results = outs.iter().map(|(dtype, shape)| cx.alloc(*dtype, shape)).collect::<Result<SmallVec<[Array; 2]>>>()?;
    work(cx, &ins, &mut results)?;
    Ok(results.into_iter().map(MemRef::bound).collect())
}

fn update_now(m: &mut Machine, (dst, may_take): (In, bool), out: Out, ins: &[&MemRef], work: &UpdateWork<'_>) -> Result<()> {
    let ins: SmallVec<[Array; 4]> = ins.iter().map(|x| x.array.clone()).collect();
    let mut array = if may_take { m.take(dst.0)? } else { m.get(dst.0)? };
    // A broadcast view names one element many times: it cannot be written as it is.
    let is_writable = array.is_unique() && array.is_contiguous();
    let result = if is_writable {
        work(&mut m.cx, &ins, &mut array)
    } else {
        duplicate(&mut m.cx, &array).and_then(|mut copy| {
            work(&mut m.cx, &ins, &mut copy)?;
            array = copy;
            Ok(())
        })
    };
    // An operand stays bound when the update does not fit it.
    match result {
        Ok(()) => m.set(out.0, array),
        Err(_) if may_take => m.set(dst.0, array),
        Err(_) => {}
    }
    result
}
