//! Running a plan.

use std::sync::Arc;

use flambeau_ir::{ChainId, InferError, Tid, engine::Profile};
use flambeau_tensor::AlignedBytes;
use smallvec::SmallVec;

use super::{Action, Call, Kept, Layout, Location, Operand, Rows, RunPlan, Step, Update, Window};
use crate::{
    array::{Array, Storage},
    cx::Machine,
    error::{OpError, Result},
    eval,
    ops::{
        copy::{cast_into, duplicate},
        index::{integers, wrap},
        shape::with_region,
        update::{copy_rows, slice_of},
    },
    session::located,
};

/// What lies outside of slots while a plan runs.
#[derive(Debug)]
pub(crate) struct Workspace {
    scratch: Vec<Option<Arc<Storage>>>,
    held: Vec<Option<Array>>,
    /// In place of the storage that an operand lacks between steps.
    pub(super) nothing: Arc<Storage>,
}

impl Default for Workspace {
    fn default() -> Workspace {
        let nothing = Arc::new(Storage::Owned(AlignedBytes::zeroed(0)));
        Workspace { scratch: Vec::new(), held: Vec::new(), nothing }
    }
}

impl Workspace {
    /// Gives an operand its storage, and its sizes where they are open.
    fn bind(&self, m: &Machine, windows: &[Array], (location, layout): (Location, Layout), array: &mut Array) -> Result<()> {
        let held = match location {
            Location::Constant => return Ok(()),
            Location::Slot(tid) => m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref),
            Location::Held(i) => self.held.get(i).and_then(Option::as_ref),
            Location::Scratch(i) => {
                array.data = self.scratch.get(i).and_then(Option::clone).ok_or_else(unset)?;
                None
            }
        };
        match (held, layout) {
            (Some(held), Layout::Whole) => *array = held.clone(),
            (Some(held), _) => array.data = Arc::clone(&held.data),
            (None, _) if matches!(location, Location::Scratch(_)) => {}
            (None, _) => return Err(unset()),
        }
        if let Layout::Window(number) = layout {
            let window = &windows[number];
            array.shape.copy_from_slice(&window.shape);
            array.strides.copy_from_slice(&window.strides);
            array.offset = window.offset;
        }
        Ok(())
    }

    /// A copy of an operand that has storage.
    fn array(&self, m: &Machine, windows: &[Array], operand: &Operand) -> Result<Array> {
        let mut array = operand.array.clone();
        self.bind(m, windows, (operand.location, operand.layout), &mut array)?;
        Ok(array)
    }

    /// Scratch storage that nobody else sees.
    fn claim(&mut self, m: &mut Machine, number: usize, bytes: usize) -> Arc<Storage> {
        let found = self.scratch.get_mut(number).and_then(Option::take);
        // What a buffer or a caller has taken a share of stays theirs.
        found.filter(|data| Arc::strong_count(data) == 1).unwrap_or_else(|| m.arena.storage(bytes))
    }

    fn call(&mut self, m: &mut Machine, plan: &mut Parts<'_>, call: &mut Call) -> Result<()> {
        let mut result = Ok(());
        for (array, &place) in call.ins.iter_mut().zip(&call.places) {
            result = result.and_then(|()| self.bind(m, plan.windows, place, array));
        }
        for (array, &number) in call.outs.iter_mut().zip(&call.targets) {
            if result.is_ok() {
                array.data = self.claim(m, number, plan.scratch[number]);
            }
        }
        let result = result.and_then(|()| (call.work)(&m.pool, &call.ins, &mut call.outs));
        for (array, &(location, _)) in call.ins.iter_mut().zip(&call.places) {
            if location != Location::Constant {
                array.data = Arc::clone(&self.nothing);
            }
        }
        for (array, &number) in call.outs.iter_mut().zip(&call.targets) {
            let data = std::mem::replace(&mut array.data, Arc::clone(&self.nothing));
            if !Arc::ptr_eq(&data, &self.nothing) {
                self.scratch[number] = Some(data);
            }
        }
        result
    }

    fn node(&mut self, m: &mut Machine, windows: &[Array], at: usize, ins: &[(Tid, Operand)], outs: &[Kept]) -> Result<()> {
        for (tid, operand) in ins {
            let array = self.array(m, windows, operand)?;
            m.set(*tid, array);
        }
        let graph = Arc::clone(&m.graph);
        let node = &graph.chains[graph.main as usize][at];
        eval::eval(node, &mut m.cx(&[]))?;
        for kept in outs {
            self.keep(m, kept)?;
        }
        for (tid, _) in ins.iter().filter(|(tid, _)| !outs.iter().any(|kept| kept.held.is_none() && kept.tid == *tid)) {
            m.empty(*tid);
        }
        Ok(())
    }

    /// Takes a node's result out of its slot, in the form that later steps count on.
    fn keep(&mut self, m: &mut Machine, kept: &Kept) -> Result<()> {
        let found = m.env.tensors.get_mut(kept.tid.0 as usize).and_then(Option::take);
        let mut array = found.ok_or_else(|| OpError::from(InferError::Unset(kept.tid)))?;
        if let Some((dtype, shape)) = &kept.expected {
            if array.dtype != *dtype || array.shape != *shape {
                let found = (array.dtype, &array.shape);
                return Err(OpError::value(format!("expected {dtype} {shape:?}, found {} {:?}", found.0, found.1)));
            }
            let is_plain = array.offset == 0 && array.is_contiguous();
            if !is_plain || (kept.held.is_none() && !array.is_unique()) {
                array = duplicate(&mut m.cx(&[]), &array)?;
            }
        }
        match kept.held {
            None => m.set(kept.tid, array),
            Some(number) => {
                if let Some(old) = self.held[number].replace(array) {
                    m.arena.free(old);
                }
            }
        }
        Ok(())
    }

    fn update(&mut self, m: &mut Machine, windows: &[Array], update: &Update, operands: &mut [Operand]) -> Result<()> {
        for operand in operands.iter_mut() {
            self.bind(m, windows, (operand.location, operand.layout), &mut operand.array)?;
        }
        let slot = m.env.tensors.get_mut(update.buffer.0 as usize);
        let mut dst = slot.and_then(Option::take).ok_or_else(|| OpError::from(InferError::Unset(update.buffer)))?;
        let result = replace(m, update, operands, &mut dst);
        // The buffer stays bound when the update does not fit it.
        m.set(update.buffer, dst);
        for operand in operands.iter_mut().filter(|o| o.location != Location::Constant) {
            operand.array.data = Arc::clone(&self.nothing);
        }
        result
    }

    fn release(&mut self, m: &mut Machine) {
        self.scratch.drain(..).flatten().for_each(|data| m.arena.free_storage(data));
        self.held.drain(..).flatten().for_each(|array| m.arena.free(array));
    }
}

fn unset() -> OpError {
    OpError::value("an operand is read before anything is written to it")
}

/// Writes the update's operand over part of `dst`.
fn replace(m: &mut Machine, update: &Update, operands: &[Operand], dst: &mut Array) -> Result<()> {
    let axis = update.axis;
    if !dst.is_unique() {
        *dst = duplicate(&mut m.cx(&[]), dst)?;
    }
    let (pool, n) = (Arc::clone(&m.pool), dst.shape[axis]);
    match (update.rows, operands) {
        (Rows::Slice { start, stop, step }, [new]) => {
            let cx = m.cx(&[]);
            let (start, count) = slice_of(cx.int(start)?, cx.int(stop)?, step, n);
            if count == 0 {
                return Ok(());
            }
            with_region(dst, &[(axis, start, count, step)], |region| cast_into(&pool, &new.array, region))
        }
        (Rows::Listed, [new, list]) => {
            let rows = integers(&mut m.cx(&[]), &list.array)?;
            let rows = rows.iter().map(|&i| wrap(i, n)).collect::<Result<SmallVec<[usize; 8]>>>()?;
            copy_rows(&pool, dst, axis, &rows, &new.array)
        }
        _ => Err(OpError::value("an update lacks an operand")),
    }
}

/// The parts of a plan that steps read while one of them runs.
struct Parts<'a> {
    windows: &'a mut Vec<Array>,
    scratch: &'a [usize],
}

impl Parts<'_> {
    fn place(&mut self, m: &mut Machine, window: &Window) -> Result<()> {
        let cx = m.cx(&[]);
        let (of, to, axis) = (&window.of, &mut self.windows[window.number], window.axis);
        let (start, count) = slice_of(cx.int(window.start)?, cx.int(window.stop)?, window.step, of.shape[axis]);
        to.offset = if count > 0 { (of.offset as isize + start as isize * of.strides[axis]) as usize } else { of.offset };
        to.shape[axis] = count;
        Ok(())
    }
}

impl RunPlan {
    /// Runs the main chain on the bound inputs, and leaves the results in the slots of the outputs.
    ///
    /// # Errors
    /// The first failure, with its place.
    pub(crate) fn run(&mut self, m: &mut Machine, workspace: &mut Workspace) -> Result<()> {
        workspace.scratch.clear();
        for &bytes in &self.scratch {
            workspace.scratch.push(Some(m.arena.storage(bytes)));
        }
        workspace.held.clear();
        workspace.held.resize_with(self.held, || None);
        let result = self.all_steps(m, workspace);
        let result = result.and_then(|()| {
            for (tid, operand) in &self.results {
                let array = workspace.array(m, &self.windows, operand)?;
                m.set(*tid, array);
            }
            Ok(())
        });
        workspace.release(m);
        result
    }

    fn all_steps(&mut self, m: &mut Machine, workspace: &mut Workspace) -> Result<()> {
        let mut parts = Parts { windows: &mut self.windows, scratch: &self.scratch };
        for i in 0..self.steps.len() {
            let Step { node, name, action } = &mut self.steps[i];
            let start = m.profile.as_ref().map(Profile::now);
            let result = match action {
                Action::Call(call) => workspace.call(m, &mut parts, call),
                Action::Node { ins, outs } => workspace.node(m, parts.windows, *node, ins, outs),
                Action::Set(vid, value) => {
                    m.cx(&[]).put_value(flambeau_ir::OutVid(*vid), *value);
                    Ok(())
                }
                Action::Window(window) => parts.place(m, window),
                Action::Update(update, operands) => workspace.update(m, parts.windows, update, operands),
            };
            if result.is_err() || start.is_some() {
                let graph = Arc::clone(&m.graph);
                let at = &graph.chains[graph.main as usize][*node];
                result.map_err(|error| located(error, ChainId(graph.main).0, *node, at))?;
                if let (Some(start), Some(profile)) = (start, &mut m.profile) {
                    let cost = if let Action::Call(call) = action { call.cost() } else { [0, 0] };
                    profile.add(at, Arc::clone(name), start, cost);
                }
            }
            if let Some(next) = self.next[i] {
                m.pool.prefetch(self.steps[next].weights());
            }
        }
        Ok(())
    }
}
