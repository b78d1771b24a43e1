//! Records a plan: prepares every node of the main chain once.

use std::sync::Arc;

use flambeau_ir::{In, Int, Node, Slot, SlotClass, Tid};

use super::{
    Action, Call, Layout, OutputRows, Planner, RunPlan, Window, Work, Workspace, check_buffer, dynamic, fused,
    implied::LeftOut,
    linear,
    memref::{MemRef, Place},
    packed,
    planner::{Cost, Deferred, Mode},
    recorder::{Recorder, SlotState},
};
use crate::{
    error::Result,
    machine::Machine,
    obstacle::{Dynamic, Obstacle, Prepared},
};

/// The plan for the bound inputs.
///
/// # Errors
/// The first node that cannot work on them, with its place.
pub(crate) fn build(m: &mut Machine, workspace: &Workspace, rows: OutputRows) -> Result<RunPlan> {
    let mut needed = Vec::new();
    loop {
        match lay_out(m, workspace, rows, &needed)? {
            Ok(plan) => return Ok(plan),
            Err(missing) => needed.push(missing),
        }
    }
}

/// Records a plan. `Err` inside names a kind of values that the plan must compute after all.
fn lay_out(m: &mut Machine, workspace: &Workspace, rows: OutputRows, needed: &[LeftOut]) -> Result<Result<RunPlan, LeftOut>> {
    let (graph, liveness) = (Arc::clone(&m.graph), Arc::clone(&m.liveness));
    let mut recorder = Recorder::new(m, workspace, needed);
    let main = graph.main as usize;
    for (at, (node, deaths)) in graph.chains[main].iter().zip(&liveness.chains[main]).enumerate() {
        recorder.at = at;
        let recorded = Planner { m, mode: Mode::Ahead(&mut recorder) }.record(node);
        if let Some(missing) = recorder.missing {
            return Ok(Err(missing));
        }
        recorded.map_err(|error| error.at(graph.main, at, node))?;
        deaths.drops.iter().for_each(|&tid| recorder.clear(tid));
    }
    let finished = Planner { m, mode: Mode::Ahead(&mut recorder) }.finish(rows);
    if let Some(missing) = recorder.missing {
        return Ok(Err(missing));
    }
    finished?;
    recorder.plan(m, rows).map(Ok)
}

impl Planner<'_> {
    /// The recorder, if nodes are prepared before a run.
    pub(super) fn recorder(&mut self) -> Option<&mut Recorder> {
        match &mut self.mode {
            Mode::Now(_) => None,
            Mode::Ahead(recorder) => Some(recorder),
        }
    }

    /// Records a node of the main chain.
    fn record(&mut self, node: &Node) -> Result<()> {
        let Mode::Ahead(recorder) = &mut self.mode else { return Ok(()) };
        let (at, is_left_out) = (recorder.at, recorder.undecoded.has(recorder.at));
        let serves = is_left_out || recorder.undecoded.is_read_by(at);
        let prepared = match dynamic::infer(&mut recorder.env, &self.m.graph, node)? {
            None if is_left_out => self.keep_codes(at, node),
            None => self.imply(node).and_then(|is_left_out| if is_left_out { Ok(()) } else { self.prepare(node) }),
            Some(why) => match node {
                // Some loops need no chain.
                Node::Scan(_) => self.prepare(node).map_err(|obstacle| match obstacle {
                    Obstacle::Dynamic(_) => Obstacle::Dynamic(why),
                    failed => failed,
                }),
                _ => Err(Obstacle::Dynamic(why)),
            },
        };
        match prepared {
            Ok(()) => Ok(()),
            Err(Obstacle::Dynamic(_)) if serves => {
                if let Some(recorder) = self.recorder() {
                    recorder.missing = Some(LeftOut::Decoded);
                }
                Ok(())
            }
            Err(Obstacle::Dynamic(why)) => self.record_dynamic(node, why),
            Err(Obstacle::Failed(error)) => Err(error),
        }
    }

    /// A slot's contents; computes them now if they are deferred.
    ///
    /// # Errors
    /// If nothing was written to the slot, or nothing but an implied value. In the latter case the
    /// plan is laid out again.
    pub(super) fn recorded(&mut self, tid: Tid) -> Result<MemRef> {
        let slot = In(tid);
        if let Some(recorder) = self.recorder()
            && let Some(implied) = recorder.implied(tid)
        {
            recorder.missing = Some(implied.kind());
        }
        match self.recorder().and_then(|recorder| recorder.deferred(slot).cloned()) {
            Some(Deferred::Linear(_)) => linear::emit_with_siblings(self, slot)?,
            Some(Deferred::Fused(fused)) => {
                let x = fused::emit(self, *fused).map_err(Obstacle::at_run)?;
                self.put(flambeau_ir::Out(tid), x);
            }
            Some(Deferred::Packed(packed)) => {
                let x = packed::emit(self, *packed).map_err(Obstacle::at_run)?;
                self.put(flambeau_ir::Out(tid), x);
            }
            None => {}
        }
        match self.recorder().map(|recorder| recorder.slots.get(tid.0 as usize)) {
            Some(Some(Some(SlotState::Ready(x)))) => Ok(x.clone()),
            _ => Err(flambeau_ir::InferError::Unset(tid).into()),
        }
    }

    /// The buffer that holds all of `dst`, if an update in place is valid. No other slot may view
    /// it. The result must replace the buffer at once or before the buffer's next reader.
    pub(super) fn updated_in_place(&mut self, dst: In, out: flambeau_ir::Out, ins: &[&MemRef]) -> Prepared<Option<Tid>> {
        let old = self.get(dst)?;
        let Place::Slot(buffer) = old.place else { return Ok(None) };
        let Some(recorder) = self.recorder() else { return Ok(None) };
        let is_buffer = recorder.graph.slots.class(buffer) == Some(SlotClass::Buffer);
        if !is_buffer || !recorder.is_whole(&old, buffer) || ins.iter().any(|x| x.is_in(buffer)) {
            return Ok(None);
        }
        if recorder.is_seen(buffer, &[buffer, dst.0, out.0]) || (out.0 != buffer && !recorder.is_replaced_next(buffer)) {
            return Ok(None);
        }
        // A second name of the old contents must not outlive them.
        let outlives = dst.0 != buffer && dst.0 != out.0 && !recorder.dies(dst.0);
        Ok((!outlives).then_some(buffer))
    }

    /// A call that finds a buffer in its result and leaves it there.
    pub(super) fn record_update(&mut self, buffer: Tid, ins: &[&MemRef], work: Work) {
        if let Some(recorder) = self.recorder() {
            recorder.push(Action::Update(buffer, Call::new(work, Cost::Flops(0), ins, &[])));
        }
    }

    /// A slice of `x` along `axis` with bounds known only at run time.
    pub(crate) fn window(&mut self, x: &MemRef, axis: usize, (start, stop): (Int, Int), step: usize) -> Prepared<MemRef> {
        let Some(recorder) = self.recorder() else { return Err(Obstacle::Dynamic(Dynamic::Integer)) };
        let mut array = x.array.clone();
        array.strides[axis] = array.strides[axis].wrapping_mul(step as isize);
        array.shape[axis] = 0;
        let number = recorder.windows.len();
        recorder.windows.push(array.clone());
        recorder.push(Action::Window(Window { number, of: x.array.clone(), axis, start, stop, step }));
        Ok(MemRef { place: x.place.clone(), layout: Layout::Window(number), array })
    }

    /// Moves a buffer's contents into the buffer's own slot.
    pub(super) fn settle(&mut self, buffer: Tid) -> Result<()> {
        let x = self.recorded(buffer)?;
        let Some(recorder) = self.recorder() else { return Ok(()) };
        if recorder.is_whole(&x, buffer) {
            return Ok(());
        }
        if x.is_fixed() {
            check_buffer(&recorder.graph.meta[buffer.0 as usize], buffer, x.array.dtype, &x.array.shape)?;
        }
        recorder.hold_views_of(buffer);
        recorder.push(Action::Assign(buffer, x.operand()));
        recorder.put_in_slot(buffer);
        Ok(())
    }

    /// Computes the remaining deferred values and stores the buffers' new contents.
    fn finish(&mut self, rows: OutputRows) -> Result<()> {
        let graph = Arc::clone(&self.m.graph);
        for slot in &graph.outputs {
            if let Slot::Tensor(tid) = slot {
                if rows == OutputRows::Last
                    && let Some(recorder) = self.recorder()
                    && let Some(Some(SlotState::Deferred(Deferred::Linear(linear)))) = recorder.slots.get_mut(tid.0 as usize)
                {
                    linear.keep_last();
                }
                self.recorded(*tid)?;
            }
        }
        for &buffer in &graph.buffers {
            self.recorded(buffer)?;
        }
        graph.buffers.iter().try_for_each(|&buffer| self.settle(buffer))
    }
}
