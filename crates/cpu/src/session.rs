//! A loaded graph with its own buffers.

use std::sync::Arc;

use flambeau_ir::{
    ChainId, OutVid, Slot, Tid,
    engine::{BoundInput, EngineError, Profile, Session, Span, StateMap, StatePart, Steps, Value, bind_inputs},
};
use flambeau_kernels::Pool;
use flambeau_tensor::{Bytes, Tensor};

use crate::{
    array::{Array, Storage},
    error::{OpError, Result},
    machine::Machine,
    obstacle::Dynamic,
    ops,
    plan::{self, OutputRows, RunPlan, Workspace, run_now},
    shared::Shared,
    state,
};

/// Arrays that use less than this part of their storage are copied out of it where they last.
pub(crate) const LEND_SHARE: usize = 2;

/// Maximum number of cached plans, one for each of the latest sets of input shapes.
const MAX_PLANS: usize = 4;

/// Execution mode of a session's runs.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    /// The latest first.
    plans: Vec<RunPlan>,
    workspace: Workspace,
}

impl PlanCache {
    /// Number of steps of the latest plan.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> usize {
        self.plans.first().map_or(0, RunPlan::len)
    }

    /// The plan for the bound inputs, created on first use.
    ///
    /// # Errors
    /// The first node that cannot work on them. The failed plan is not kept.
    fn plan(&mut self, m: &mut Machine, rows: OutputRows) -> Result<(&mut RunPlan, &mut Workspace)> {
        match self.plans.iter().position(|plan| plan.fits(m, rows)) {
            Some(i) => self.plans[..=i].rotate_right(1),
            None => {
                let plan = plan::build(m, &self.workspace, rows)?;
                self.plans.truncate(MAX_PLANS - 1);
                self.plans.insert(0, plan);
            }
        }
        Ok((&mut self.plans[0], &mut self.workspace))
    }
}

/// The parts that execute the steps of a run after [`CpuSession::begin`].
pub(crate) type Ongoing<'a> = (&'a mut RunPlan, &'a mut Machine, &'a mut Workspace);

/// A session of the CPU engine.
#[derive(Debug)]
pub(crate) struct CpuSession {
    pub(crate) machine: Machine,
    pub(crate) plans: PlanCache,
    /// Buffer contents after the init chain; empty for zeros.
    pub(crate) initial: Vec<(Tid, Option<Array>)>,
    /// Holds the shared buffers between runs; present if buffers are shared.
    pub(crate) shared: Option<Shared>,
    /// The map that owns the shared buffers.
    pub(crate) state: Option<Arc<StateMap>>,
    pub(crate) spare: Spare,
    /// A pool without workers, for running on one thread beside other sessions.
    pub(crate) solo: Option<Arc<Pool>>,
    /// Whether the nodes of the main chain run one by one, to be compared with its plan.
    #[cfg(test)]
    pub(crate) node_by_node: bool,
}

/// Allocations reused from run to run.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// Unshared, empty handles for inputs.
    inputs: Vec<Arc<Storage>>,
    /// An empty list of results' storage.
    lent: Vec<Arc<Storage>>,
}

/// Runs a chain's nodes in order, each prepared when its turn comes.
///
/// # Errors
/// The first failure, with its place.
pub(crate) fn run_chain(m: &mut Machine, chain: ChainId) -> Result<()> {
    let (graph, liveness) = (Arc::clone(&m.graph), Arc::clone(&m.liveness));
    let (nodes, deaths) = match (graph.chains.get(chain.0 as usize), liveness.chains.get(chain.0 as usize)) {
        (Some(nodes), Some(deaths)) => (nodes, deaths),
        _ => return Err(OpError::value(format!("there is no chain {}", chain.0))),
    };
    for (i, (node, deaths)) in nodes.iter().zip(deaths).enumerate() {
        let start = m.profile.as_ref().map(Profile::now);
        m.counts.dynamic(node, Dynamic::InChain);
        if let Err(error) = run_now(m, node, &deaths.dying) {
            return Err(error.at(chain.0, i, node));
        }
        for &tid in &deaths.drops {
            m.empty(tid);
        }
        if let (Some(start), Some(profile)) = (start, &mut m.profile) {
            let at = (chain.0 == graph.main).then_some(i as u32);
            profile.add((at, node), node.name().into(), start, [0, 0]);
        }
    }
    Ok(())
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
                BoundInput::Int(vid, v) => m.cx.set_value(OutVid(vid), v),
            }
        }
        Ok(())
    }

    fn run_main(&mut self, rows: OutputRows) -> Result<()> {
        #[cfg(test)]
        if self.node_by_node {
            let main = ChainId(self.machine.graph.main);
            return run_chain(&mut self.machine, main);
        }
        let (plan, workspace) = self.plans.plan(&mut self.machine, rows)?;
        plan.run(&mut self.machine, workspace)
    }

    fn results(&mut self, lent: &mut Vec<Arc<Storage>>) -> Result<Vec<Value>> {
        let graph = Arc::clone(&self.machine.graph);
        graph.outputs.iter().map(|slot| self.result(*slot, lent)).collect()
    }

    /// A result as the caller sees it; its storage is listed in `lent`.
    fn result(&mut self, slot: Slot, lent: &mut Vec<Arc<Storage>>) -> Result<Value> {
        let m = &mut self.machine;
        let tid = match slot {
            Slot::Tensor(tid) => tid,
            Slot::Value(vid) => return m.cx.value(vid).map(Value::Int),
        };
        let array = m.get(tid)?;
        let dtype = m.graph.meta.get(tid.0 as usize).map_or(array.dtype, |meta| meta.dtype);
        let array = ops::copy::cast(&mut m.cx, &array, dtype)?;
        let mut array = ops::copy::contiguous(&mut m.cx, array)?;
        let used = array.numel() * dtype.size();
        if used * LEND_SHARE < array.data.bytes().len() {
            array = ops::copy::duplicate(&mut m.cx, &array)?;
        }
        lent.push(Arc::clone(&array.data));
        let start = if used == 0 { 0 } else { array.offset * dtype.size() };
        let bytes = Bytes::from_owner(Lent(Arc::clone(&array.data))).slice(start..start + used);
        Tensor::new(dtype, &array.shape, bytes).map(Value::Tensor).map_err(|e| OpError::value(e.to_string()))
    }

    /// Runs `f` with every buffer bound, those that are shared included.
    fn with_buffers<T>(&mut self, f: impl FnOnce(&mut CpuSession) -> T) -> T {
        let Some(shared) = self.shared.take() else { return f(self) };
        let result = shared.with(self, |session| &mut session.machine, f);
        self.shared = Some(shared);
        result
    }

    /// Resets buffers to their contents after loading.
    fn restore(&mut self) {
        let m = &mut self.machine;
        for (tid, initial) in &self.initial {
            if let Some(array) = initial {
                m.set(*tid, array.clone());
            } else if let Some(array) = m.tensors.get_mut(tid.0 as usize).and_then(Option::take) {
                m.cx.arena.free(array);
                if let Ok(zeros) = ops::copy::zeros_of_meta(m, *tid) {
                    m.set(*tid, zeros);
                }
            }
        }
        // The cache needs no reset: a step reads only positions before its own end, and the new
        // sequence rewrites these.
    }

    fn run_for(&mut self, inputs: &[Value], rows: OutputRows) -> Result<Vec<Value>, EngineError> {
        self.machine.cx.arena.collect();
        let ran = self.bind(inputs).and_then(|()| self.run_main(rows).map_err(EngineError::from));
        self.finish(ran)
    }

    /// Whether the session may run beside another one: neither changes buffers of the other.
    pub(crate) fn is_independent_of(&self, other: &CpuSession) -> bool {
        !matches!((&self.state, &other.state), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
    }

    /// Whether the session runs from a plan and so can run step by step.
    pub(crate) fn is_planned(&self) -> bool {
        #[cfg(test)]
        if self.node_by_node {
            return false;
        }
        true
    }

    /// Begins a run that is taken [step by step](Self::ongoing), as [`Session::run_last`] takes it.
    pub(crate) fn begin(&mut self, inputs: &[Value]) -> Result<(), EngineError> {
        self.machine.cx.arena.collect();
        self.bind(inputs)?;
        let (plan, workspace) = self.plans.plan(&mut self.machine, OutputRows::Last)?;
        plan.begin(&mut self.machine, workspace);
        Ok(())
    }

    /// The run that has begun.
    pub(crate) fn ongoing(&mut self) -> Option<Ongoing<'_>> {
        let PlanCache { plans, workspace } = &mut self.plans;
        Some((plans.first_mut()?, &mut self.machine, workspace))
    }

    /// The plan of the run that has begun.
    pub(crate) fn plan(&self) -> Option<&RunPlan> {
        self.plans.plans.first()
    }

    /// Ends a run executed step by step. Returns its results if every step succeeded.
    pub(crate) fn end(&mut self, ran: Result<(), EngineError>) -> Result<Vec<Value>, EngineError> {
        let ran = ran.and_then(|()| match self.ongoing() {
            Some((plan, m, workspace)) => plan.put_results(m, workspace).map_err(EngineError::from),
            None => Ok(()),
        });
        self.plans.workspace.release(&mut self.machine);
        self.finish(ran)
    }

    /// The results of a successful run. Frees the run's memory in any case.
    fn finish(&mut self, ran: Result<(), EngineError>) -> Result<Vec<Value>, EngineError> {
        let mut lent = std::mem::take(&mut self.spare.lent);
        let result = ran.and_then(|()| self.results(&mut lent).map_err(EngineError::from));
        self.clear();
        lent.drain(..).for_each(|data| self.machine.cx.arena.lend(data));
        self.spare.lent = lent;
        result
    }

    /// Runs `f` on this thread alone.
    pub(crate) fn on_one_thread<T>(&mut self, f: impl FnOnce(&mut CpuSession) -> T) -> T {
        let pool = &self.machine.cx.pool;
        let solo = self.solo.take().or_else(|| Pool::with_isa(1, pool.isa()).map(Arc::new)).unwrap_or_else(|| Arc::clone(pool));
        let shared = std::mem::replace(&mut self.machine.cx.pool, solo);
        let result = f(self);
        self.solo = Some(std::mem::replace(&mut self.machine.cx.pool, shared));
        result
    }

    /// Empties every slot that does not last from run to run.
    fn clear(&mut self) {
        let m = &mut self.machine;
        let (first, slots) = (m.graph.slots.constants, m.graph.slots);
        let inputs = m.tensors.iter_mut().skip(first as usize).take(slots.inputs as usize);
        for mut data in inputs.filter_map(|slot| Some(slot.take()?.data)) {
            // Storage with other handles stays unchanged.
            if let Some(contents @ Storage::Shared(_)) = Arc::get_mut(&mut data) {
                *contents = Storage::Shared(Bytes::new());
                self.spare.inputs.push(data);
            }
        }
        for tid in (first..first + slots.inputs + slots.outputs).chain(slots.non_temp() as u32..slots.total() as u32) {
            m.empty(Tid(tid));
        }
        m.cx.values.fill(None);
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

    fn read_state(&mut self, parts: &[StatePart]) -> Option<Result<Vec<Tensor>, EngineError>> {
        let read = |session: &mut CpuSession| parts.iter().map(|&part| state::read(&session.machine, part)).collect::<Result<_>>();
        Some(self.with_buffers(read).map_err(EngineError::from))
    }

    fn write_state(&mut self, parts: &[(StatePart, &Tensor)]) -> Result<(), EngineError> {
        let write =
            |session: &mut CpuSession| parts.iter().try_for_each(|&(part, copy)| state::write(&mut session.machine, part, copy));
        self.with_buffers(write).map_err(EngineError::from)
    }

    fn steps(&self) -> Option<Steps> {
        Some(self.machine.counts.steps())
    }

    fn take_profile(&mut self) -> Vec<(&'static str, u64, u64)> {
        self.machine.profile.as_mut().map(Profile::take_nodes).unwrap_or_default()
    }

    fn take_spans(&mut self) -> Vec<Span> {
        self.machine.profile.as_mut().map(Profile::take_spans).unwrap_or_default()
    }
}
