//! Running a plan.

use std::{ops::Range, sync::Arc, time::Duration};

use flambeau_ir::{Node, OutVid, Tid, engine::Profile};

use super::{
    Action, Call, DynamicNode, LayersCall, NodeResult, Operand, PlanStep, RunPlan, Window, Work, Workspace, check_buffer, run_now,
};
use crate::{
    array::{Array, Storage},
    error::{OpError, Result},
    machine::Machine,
    ops::{copy::duplicate, update::slice_of},
    session::LEND_SHARE,
};

/// A plan's parts that steps read while one of them runs.
struct Parts<'a> {
    windows: &'a mut Vec<Array>,
    scratch: &'a [usize],
}

impl RunPlan {
    /// Runs the main chain on the bound inputs, and leaves the results in the slots of the outputs.
    ///
    /// # Errors
    /// The first failure, with its place.
    pub(crate) fn run(&mut self, m: &mut Machine, workspace: &mut Workspace) -> Result<()> {
        self.begin(m, workspace);
        let result = self.take(0..self.steps.len(), m, workspace).and_then(|()| self.put_results(m, workspace));
        workspace.release(m);
        result
    }

    /// Acquires storage for the steps; [`Workspace::release`] returns it.
    pub(crate) fn begin(&self, m: &mut Machine, workspace: &mut Workspace) {
        workspace.reserve(m, &self.scratch, self.held);
        m.counts.planned += self.prepared;
    }

    /// Leaves the results in the slots of the outputs, after the last step.
    ///
    /// # Errors
    /// If one holds nothing.
    pub(crate) fn put_results(&self, m: &mut Machine, workspace: &Workspace) -> Result<()> {
        for (tid, operand) in &self.results {
            let array = workspace.array(m, &self.windows, operand)?;
            m.set(*tid, array);
        }
        Ok(())
    }

    /// Takes some of the steps, in order.
    ///
    /// # Errors
    /// The first failure, with its place.
    pub(crate) fn take(&mut self, steps: Range<usize>, m: &mut Machine, workspace: &mut Workspace) -> Result<()> {
        let mut parts = Parts { windows: &mut self.windows, scratch: &self.scratch };
        for i in steps {
            let PlanStep { node, name, action } = &mut self.steps[i];
            let start = m.profile.as_ref().map(Profile::now);
            let result = run_action(m, workspace, &mut parts, (*node, action));
            if result.is_err() || start.is_some() {
                let graph = Arc::clone(&m.graph);
                let at = node_at(&graph, *node);
                result.map_err(|error| error.at(graph.main, *node, at))?;
                if let (Some(start), Some(profile)) = (start, &mut m.profile) {
                    let cost = if let Action::Call(call) = action { call.cost() } else { [0, 0] };
                    profile.add((Some(*node as u32), at), Arc::clone(name), start, cost);
                }
            }
            if let Some(next) = self.next[i] {
                m.cx.pool.prefetch(self.steps[next].weights());
            }
        }
        Ok(())
    }

    /// Binds a step's layers to storage until [`unbind_layers`](Self::unbind_layers).
    ///
    /// # Errors
    /// If an operand holds nothing; then nothing has storage.
    pub(crate) fn bind_layers(&mut self, at: usize, m: &mut Machine, workspace: &mut Workspace) -> Result<()> {
        let parts = Parts { windows: &mut self.windows, scratch: &self.scratch };
        let PlanStep { node, action: Action::Call(call), .. } = &mut self.steps[at] else { return Ok(()) };
        bind_call(m, workspace, &parts, call).map_err(|error| {
            unbind_call(workspace, call);
            error.at(m.graph.main, *node, node_at(&m.graph, *node))
        })
    }

    /// The layers of a step, which have their storage.
    pub(crate) fn layers(&mut self, at: usize) -> Option<LayersCall<'_>> {
        match &mut self.steps[at].action {
            Action::Call(Call { work: Work::Layers(layers), ins, outs, .. }) => Some(LayersCall { layers, ins, outs }),
            _ => None,
        }
    }

    /// Computes the layers of a step, which have their storage.
    ///
    /// # Errors
    /// If an operand does not fit.
    pub(crate) fn run_layers(&mut self, at: usize, m: &Machine, workspace: &mut Workspace) -> Result<()> {
        let Some(mut layers) = self.layers(at) else { return Ok(()) };
        let result = layers.run(&m.cx.pool);
        let node = self.steps[at].node;
        result.map_err(|error| {
            self.unbind_layers(at, workspace);
            error.at(m.graph.main, node, node_at(&m.graph, node))
        })
    }

    /// Unbinds a step's layers from storage.
    pub(crate) fn unbind_layers(&mut self, at: usize, workspace: &mut Workspace) {
        if let Action::Call(call) = &mut self.steps[at].action {
            unbind_call(workspace, call);
        }
    }

    /// Records a step that this run executed for several runs, and announces the next step to idle
    /// threads.
    pub(crate) fn took_for(&self, runs: usize, at: usize, start: Option<Duration>, m: &mut Machine) {
        let PlanStep { node, name, action } = &self.steps[at];
        if let (Some(start), Action::Call(call), Some(profile)) = (start, action, &mut m.profile) {
            let [bytes, flops] = call.cost();
            let graph = Arc::clone(&m.graph);
            profile.add((Some(*node as u32), node_at(&graph, *node)), Arc::clone(name), start, [bytes, flops * runs as u64]);
        }
        if let Some(next) = self.next[at] {
            m.cx.pool.prefetch(self.steps[next].weights());
        }
    }
}

/// A node of the main chain.
fn node_at(graph: &flambeau_ir::Checked, at: usize) -> &Node {
    &graph.chains[graph.main as usize][at]
}

fn run_action(m: &mut Machine, w: &mut Workspace, parts: &mut Parts<'_>, (node, action): (usize, &mut Action)) -> Result<()> {
    match action {
        Action::Call(call) => run_call(m, w, parts, call),
        Action::Update(buffer, call) => update(m, w, parts, *buffer, call),
        Action::Dynamic(dynamic) => run_node(m, w, parts.windows, node, dynamic),
        Action::Set(out, value) => {
            m.cx.set_value(*out, *value);
            Ok(())
        }
        Action::Infer(out) => infer_value(m, node, *out),
        Action::Read(out, operand, read) => {
            let value = with_operand(m, w, parts.windows, operand, *read)?;
            m.cx.set_value(*out, value);
            Ok(())
        }
        Action::Window(window) => place(m, parts.windows, window),
        Action::Hold(tid, number) => {
            let array = m.get(*tid)?;
            w.hold(m, *number, array);
            Ok(())
        }
        Action::Assign(buffer, operand) => assign(m, w, parts.windows, *buffer, operand),
    }
}

/// Gives a call's operands their storage. On an error some may have it.
fn bind_all(m: &Machine, w: &Workspace, windows: &[Array], call: &mut Call) -> Result<()> {
    call.ins.iter_mut().zip(&call.places).try_for_each(|(array, &place)| w.bind(m, windows, place, array))
}

fn unbind_all(w: &Workspace, call: &mut Call) {
    call.ins.iter_mut().zip(&call.places).for_each(|(array, &(location, _))| w.unbind(location, array));
}

/// Gives a call's operands and results their storage. On an error some may have it.
fn bind_call(m: &mut Machine, w: &mut Workspace, parts: &Parts<'_>, call: &mut Call) -> Result<()> {
    bind_all(m, w, parts.windows, call)?;
    for (array, &number) in call.outs.iter_mut().zip(&call.targets) {
        array.data = w.claim(m, number, parts.scratch[number]);
    }
    Ok(())
}

fn unbind_call(w: &mut Workspace, call: &mut Call) {
    unbind_all(w, call);
    for (array, &number) in call.outs.iter_mut().zip(&call.targets) {
        w.store(number, array);
    }
}

fn run_call(m: &mut Machine, w: &mut Workspace, parts: &Parts<'_>, call: &mut Call) -> Result<()> {
    let result = bind_call(m, w, parts, call).and_then(|()| call.work.run(&mut m.cx, &call.ins, &mut call.outs));
    unbind_call(w, call);
    result
}

fn update(m: &mut Machine, w: &Workspace, parts: &Parts<'_>, buffer: Tid, call: &mut Call) -> Result<()> {
    let result = bind_all(m, w, parts.windows, call).and_then(|()| {
        let mut old = m.take(buffer)?;
        let result = if old.is_unique() {
            call.work.run(&mut m.cx, &call.ins, std::slice::from_mut(&mut old))
        } else {
            duplicate(&mut m.cx, &old).and_then(|copy| {
                old = copy;
                call.work.run(&mut m.cx, &call.ins, std::slice::from_mut(&mut old))
            })
        };
        // The buffer stays bound when the update does not fit it.
        m.set(buffer, old);
        result
    });
    unbind_all(w, call);
    result
}

fn run_node(m: &mut Machine, w: &mut Workspace, windows: &[Array], at: usize, dynamic: &DynamicNode) -> Result<()> {
    let (graph, liveness) = (Arc::clone(&m.graph), Arc::clone(&m.liveness));
    // A branch that was not taken may leave a slot unset; only a reader of the slot fails.
    for (tid, operand) in dynamic.ins.iter().filter(|(_, operand)| w.is_set(operand)) {
        let array = w.array(m, windows, operand)?;
        m.set(*tid, array);
    }
    let node = node_at(&graph, at);
    m.counts.dynamic(node, dynamic.why);
    run_now(m, node, &liveness.chains[graph.main as usize][at].dying)?;
    for result in &dynamic.outs {
        keep(m, w, result)?;
    }
    dynamic.ins.iter().for_each(|(tid, _)| m.empty(*tid));
    Ok(())
}

/// Takes a node's result out of its slot, in the form that later steps count on.
fn keep(m: &mut Machine, w: &mut Workspace, result: &NodeResult) -> Result<()> {
    let Some(number) = result.held else { return settle_in_slot(m, result.tid) };
    let found = m.tensors.get_mut(result.tid.0 as usize).and_then(Option::take);
    let array = match (found, &result.expected) {
        (Some(array), None) => array,
        // A branch that is not taken leaves its results unset; a reader reports this.
        (None, _) => return Ok(()),
        (Some(array), Some((dtype, shape))) if array.dtype != *dtype || array.shape != *shape => {
            let (found, sizes) = (array.dtype, &array.shape);
            return Err(OpError::value(format!("expected {dtype} {shape:?}, found {found} {sizes:?}")));
        }
        (Some(array), Some(_)) if array.offset == 0 && array.is_contiguous() => array,
        (Some(array), Some(_)) => duplicate(&mut m.cx, &array)?,
    };
    w.hold(m, number, array);
    Ok(())
}

/// Proves that a buffer has its declared form, and gives it the layout that plans require:
/// row-major in its own storage.
///
/// # Errors
/// If it has another element type or shape.
pub(crate) fn settle_in_slot(m: &mut Machine, buffer: Tid) -> Result<()> {
    let array = m.get(buffer)?;
    check_buffer(&m.graph.meta[buffer.0 as usize], buffer, array.dtype, &array.shape)?;
    let array = owned(m, array)?;
    m.set(buffer, array);
    Ok(())
}

/// An array fit for a buffer: row-major, in the engine's storage, and using most of that storage.
fn owned(m: &mut Machine, array: Array) -> Result<Array> {
    let bytes = array.data.bytes().len();
    let is_plain = array.offset == 0 && array.is_contiguous() && matches!(*array.data, Storage::Owned(_));
    let is_small = array.numel() * array.dtype.size() * LEND_SHARE < bytes;
    if is_plain && !is_small { Ok(array) } else { duplicate(&mut m.cx, &array) }
}

fn assign(m: &mut Machine, w: &Workspace, windows: &[Array], buffer: Tid, operand: &Operand) -> Result<()> {
    let array = w.array(m, windows, operand)?;
    check_buffer(&m.graph.meta[buffer.0 as usize], buffer, array.dtype, &array.shape)?;
    let array = owned(m, array)?;
    m.set(buffer, array);
    Ok(())
}

fn infer_value(m: &mut Machine, at: usize, out: OutVid) -> Result<()> {
    let graph = Arc::clone(&m.graph);
    m.infer(node_at(&graph, at))?;
    let value = m.inferred_value(out)?;
    m.cx.set_value(out, value);
    Ok(())
}

fn with_operand<R>(
    m: &Machine,
    w: &Workspace,
    windows: &[Array],
    operand: &mut Operand,
    f: impl FnOnce(&Array) -> Result<R>,
) -> Result<R> {
    w.bind(m, windows, (operand.location, operand.layout), &mut operand.array)?;
    let result = f(&operand.array);
    w.unbind(operand.location, &mut operand.array);
    result
}

fn place(m: &Machine, windows: &mut [Array], window: &Window) -> Result<()> {
    let (of, to, axis) = (&window.of, &mut windows[window.number], window.axis);
    let (start, count) = slice_of(m.cx.int(window.start)?, m.cx.int(window.stop)?, window.step, of.shape[axis]);
    to.offset = if count > 0 { (of.offset as isize + start as isize * of.strides[axis]) as usize } else { of.offset };
    to.shape[axis] = count;
    Ok(())
}
