//! A loaded graph with its own buffers.

use std::sync::Arc;

use flambeau_ir::{
    ChainId, Node, Slot, Tid,
    engine::{BoundInput, EngineError, Profile, Session, Span, Value, bind_inputs},
};
use flambeau_tensor::{Bytes, Tensor};

use crate::{
    array::{Array, Storage},
    common::Common,
    cx::Machine,
    error::{At, OpError, Result},
    eval, ops,
    plan::{self, OutputRows, RunPlan, Workspace},
};

/// Results that use less than this part of their storage are copied out of it.
const LEND_SHARE: usize = 2;

/// Plans that a session keeps, one for each set of input shapes that it met last.
const MAX_PLANS: usize = 4;

/// How runs of a session go.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    /// The latest first.
    plans: Vec<RunPlan>,
    workspace: Workspace,
    /// Runs go node by node: no plan can follow this graph.
    pub(crate) is_refused: bool,
}

impl PlanCache {
    /// Number of steps of the latest plan.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> usize {
        self.plans.first().map_or(0, RunPlan::len)
    }

    /// The plan for the bound inputs, laid out now if there is none; `None` if the run has to go node by node.
    fn plan(&mut self, m: &Machine, rows: OutputRows) -> Option<(&mut RunPlan, &mut Workspace)> {
        if self.is_refused || !plan::buffers_lie_plainly(m) {
            return None;
        }
        match self.plans.iter().position(|plan| plan.fits(m, rows)) {
            Some(0) => {}
            Some(i) => self.plans[..=i].rotate_right(1),
            None => {
                let plan = plan::build(m, &self.workspace, rows);
                self.is_refused = plan.is_none();
                self.plans.truncate(MAX_PLANS - 1);
                self.plans.insert(0, plan?);
            }
        }
        Some((&mut self.plans[0], &mut self.workspace))
    }
}

/// A session of the CPU engine.
#[derive(Debug)]
pub(crate) struct CpuSession {
    pub(crate) machine: Machine,
    pub(crate) plans: PlanCache,
    /// What the init chain left in buffers; empty where it is zero.
    pub(crate) initial: Vec<(Tid, Option<Array>)>,
    /// Present if buffers are shared; they lie there between runs.
    pub(crate) common: Option<Common>,
    pub(crate) spare: Spare,
}

/// What runs need again and again, kept from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// Handles of inputs that nobody holds, without contents.
    inputs: Vec<Arc<Storage>>,
    /// An empty list of results' storage.
    lent: Vec<Arc<Storage>>,
}

/// Runs a chain's instructions in order.
///
/// # Errors
/// The first failure, with its place.
pub(crate) fn run_chain(m: &mut Machine, chain: ChainId) -> Result<()> {
    let (graph, liveness) = (Arc::clone(&m.graph), Arc::clone(&m.liveness));
    let (nodes, steps) = match (graph.chains.get(chain.0 as usize), liveness.chains.get(chain.0 as usize)) {
        (Some(nodes), Some(steps)) => (nodes, steps),
        _ => return Err(OpError::value(format!("there is no chain {}", chain.0))),
    };
    for (i, (node, step)) in nodes.iter().zip(steps).enumerate() {
        let start = m.profile.as_ref().map(Profile::now);
        let mut cx = m.cx(&step.dying);
        if let Err(error) = eval::eval(node, &mut cx) {
            return Err(located(error, chain.0, i, node));
        }
        for &tid in &step.drops {
            m.empty(tid);
        }
        if let (Some(start), Some(profile)) = (start, &mut m.profile) {
            profile.add(node, node.name().into(), start, [0, 0]);
        }
    }
    Ok(())
}

/// The innermost place wins: an instruction that runs a chain passes on where that chain failed.
pub(crate) fn located(error: OpError, chain: u32, instruction: usize, node: &Node) -> OpError {
    match error {
        OpError::At(_) => error,
        cause => OpError::At(Box::new(At { chain, instruction: instruction as u32, node: node.name(), cause })),
    }
}

/// The error as the seam states it.
pub(crate) fn engine_error(error: OpError) -> EngineError {
    match error {
        OpError::At(at) => {
            EngineError::Node { chain: at.chain, instruction: at.instruction, node: at.node, what: at.cause.to_string() }
        }
        other => EngineError::Arguments(other.to_string()),
    }
}

/// Storage that a caller holds as a result.
struct Lent(Arc<Storage>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl CpuSession {
    fn bind(&mut self, inputs: &[Value]) -> Result<(), EngineError> {
        let m = &mut self.machine;
        let graph = Arc::clone(&m.graph);
        for input in bind_inputs(&graph, inputs)? {
            match input? {
                BoundInput::Tensor(tid, tensor) => {
                    let handle = self.spare.inputs.pop();
                    m.set(tid, Array::from_tensor_in(tensor, handle));
                }
                BoundInput::Int(vid, v) => {
                    if let Some(value) = m.env.values.get_mut(vid.0 as usize) {
                        *value = Some(v);
                    }
                }
            }
        }
        Ok(())
    }

    fn run_main(&mut self, main: ChainId, rows: OutputRows) -> Result<()> {
        match self.plans.plan(&self.machine, rows) {
            Some((plan, workspace)) => plan.run(&mut self.machine, workspace),
            None => run_chain(&mut self.machine, main),
        }
    }

    fn results(&mut self, lent: &mut Vec<Arc<Storage>>) -> Result<Vec<Value>> {
        let graph = Arc::clone(&self.machine.graph);
        graph.outputs.iter().map(|slot| self.result(*slot, lent)).collect()
    }

    /// A result as the caller sees it; its storage is listed in `lent`.
    fn result(&mut self, slot: Slot, lent: &mut Vec<Arc<Storage>>) -> Result<Value> {
        let mut cx = self.machine.cx(&[]);
        let tid = match slot {
            Slot::Tensor(tid) => tid,
            Slot::Value(vid) => return cx.value(vid).map(Value::Int),
        };
        let array = cx.get_slot(tid)?;
        let dtype = cx.m.graph.meta.get(tid.0 as usize).map_or(array.dtype, |meta| meta.dtype);
        let array = ops::copy::cast(&mut cx, &array, dtype)?;
        let mut array = ops::copy::contiguous(&mut cx, array)?;
        let used = array.numel() * dtype.size();
        if used * LEND_SHARE < array.data.bytes().len() {
            array = ops::copy::duplicate(&mut cx, &array)?;
        }
        lent.push(Arc::clone(&array.data));
        let start = if used == 0 { 0 } else { array.offset * dtype.size() };
        let bytes = Bytes::from_owner(Lent(Arc::clone(&array.data))).slice(start..start + used);
        Tensor::new(dtype, &array.shape, bytes).map(Value::Tensor).map_err(|e| OpError::value(e.to_string()))
    }

    /// Runs `f` with every buffer bound, those that are shared included.
    fn with_buffers<T>(&mut self, f: impl FnOnce(&mut CpuSession) -> T) -> T {
        let Some(common) = self.common.take() else { return f(self) };
        let result = common.with(self, f);
        self.common = Some(common);
        result
    }

    /// Sets buffers back to what loading left.
    fn restore(&mut self) {
        let m = &mut self.machine;
        for (tid, initial) in &self.initial {
            if let Some(array) = initial {
                m.set(*tid, array.clone());
            } else if let Some(array) = m.env.tensors.get_mut(tid.0 as usize).and_then(Option::take) {
                // A run may have bound an array of another shape or type: the metadata says what a fresh buffer is.
                m.arena.free(array);
                if let Ok(zeros) = ops::copy::zeros_of_meta(m, *tid) {
                    m.set(*tid, zeros);
                }
            }
        }
        // The cache needs nothing: a step reads only positions before its own end, which the new sequence writes again.
    }

    fn run_for(&mut self, inputs: &[Value], rows: OutputRows) -> Result<Vec<Value>, EngineError> {
        self.machine.arena.collect();
        let (main, mut lent) = (ChainId(self.machine.graph.main), std::mem::take(&mut self.spare.lent));
        let result = self
            .bind(inputs)
            .and_then(|()| self.run_main(main, rows).map_err(engine_error))
            .and_then(|()| self.results(&mut lent).map_err(engine_error));
        self.clear();
        lent.drain(..).for_each(|data| self.machine.arena.lend(data));
        self.spare.lent = lent;
        result
    }

    /// Empties every slot that does not last from run to run.
    fn clear(&mut self) {
        let m = &mut self.machine;
        let (first, slots) = (m.graph.slots.constants, m.graph.slots);
        let inputs = m.env.tensors.iter_mut().skip(first as usize).take(slots.inputs as usize);
        for mut data in inputs.filter_map(|slot| Some(slot.take()?.data)) {
            // What is still seen elsewhere stays as it is.
            if let Some(contents @ Storage::Shared(_)) = Arc::get_mut(&mut data) {
                *contents = Storage::Shared(Bytes::new());
                self.spare.inputs.push(data);
            }
        }
        for tid in (first..first + slots.inputs + slots.outputs).chain(slots.non_temp() as u32..slots.total() as u32) {
            m.empty(Tid(tid));
        }
        m.env.values.fill(None);
    }
}

impl Session for CpuSession {
    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        self.with_buffers(|session| session.run_for(inputs, OutputRows::All))
    }

    fn run_last(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        self.with_buffers(|session| session.run_for(inputs, OutputRows::Last))
    }

    fn reset(&mut self) {
        self.with_buffers(CpuSession::restore);
    }

    fn take_profile(&mut self) -> Vec<(&'static str, u64, u64)> {
        self.machine.profile.as_mut().map(Profile::take_nodes).unwrap_or_default()
    }

    fn take_spans(&mut self) -> Vec<Span> {
        self.machine.profile.as_mut().map(Profile::take_spans).unwrap_or_default()
    }
}
