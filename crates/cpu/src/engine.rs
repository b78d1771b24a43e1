//! The engine: binds constants and buffers, plans, runs the init chain.

use std::sync::Arc;

use flambeau_ir::{
    ChainId, Checked, Tid,
    engine::{Clock, Constants, Engine, EngineError, LoadOptions, Outcome, Profile, Run, Session, check_supported, constants_of},
};
use flambeau_kernels::Pool;

use crate::{
    array::Array,
    batch, kv,
    liveness::Liveness,
    machine::{Counts, Machine},
    ops::copy::zeros_of_meta,
    plan, prepare,
    session::{CpuSession, PlanCache, Spare, run_chain},
    shared::{InMemory, Shared},
};

/// All mutable buffers of a session together.
const MAX_BUFFER_BYTES: u64 = 1 << 36;

/// Runs graphs on the CPU. Sessions share its threads.
#[derive(Debug)]
pub struct CpuEngine {
    pool: Arc<Pool>,
    profile: Option<Clock>,
}

impl CpuEngine {
    /// An engine with its own pool of `threads` threads, the caller's included; `None` means one
    /// per available core.
    pub fn new(threads: Option<usize>) -> CpuEngine {
        CpuEngine { pool: Arc::new(Pool::new(threads.unwrap_or(0))), profile: None }
    }

    /// A clock makes sessions loaded from here on measure the time of each node.
    #[must_use]
    pub fn with_profile(mut self, profile: Option<Clock>) -> CpuEngine {
        self.profile = profile;
        self
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

impl Engine for CpuEngine {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn load(&self, graph: Arc<Checked>, constants: &dyn Constants, options: &LoadOptions) -> Result<Box<dyn Session>, EngineError> {
        Ok(Box::new(self.session(graph, constants, options)?))
    }

    fn run_last_of_each(&self, runs: &mut [Run<'_>]) -> Vec<Outcome> {
        batch::run_last_of_each(&self.pool, runs)
    }
}

impl CpuEngine {
    pub(crate) fn session(
        &self,
        graph: Arc<Checked>,
        constants: &dyn Constants,
        options: &LoadOptions,
    ) -> Result<CpuSession, EngineError> {
        check_supported("cpu", &graph, prepare::is_supported)?;
        let liveness = Arc::new(Liveness::new(&graph));
        let kv = options.kv_cache.as_ref().map(kv::empty).transpose()?;
        let mut machine = Machine::new(Arc::clone(&graph), liveness, Arc::clone(&self.pool), kv);
        for (tensor, tid) in constants_of(&graph, constants)?.iter().zip((0..).map(Tid)) {
            machine.set(tid, Array::from_tensor(tensor));
        }
        let buffers = bind_buffers(&mut machine)?;
        let written = match graph.init {
            Some(init) => {
                run_chain(&mut machine, ChainId(init))?;
                graph.buffers_written_by(ChainId(init))
            }
            None => Vec::new(),
        };
        for &tid in &written {
            plan::settle_in_slot(&mut machine, tid)?;
        }
        machine.counts = Counts::default();
        let initial = buffers
            .iter()
            .map(|&tid| (tid, written.contains(&tid).then(|| machine.tensors.get(tid.0 as usize).cloned().flatten()).flatten()))
            .collect();
        machine.profile = self.profile.clone().map(Profile::new);
        let shared = options.shared.clone().map(|state| Shared::join(&graph, &mut machine, state, InMemory)).transpose()?;
        Ok(CpuSession {
            machine,
            plans: PlanCache::default(),
            initial,
            shared,
            state: options.shared.as_ref().map(|state| Arc::clone(&state.engine)),
            spare: Spare::default(),
            solo: None,
            #[cfg(test)]
            node_by_node: false,
        })
    }
}

fn bind_buffers(m: &mut Machine) -> Result<Vec<Tid>, EngineError> {
    let slots = m.graph.slots;
    let first = slots.constants + slots.inputs + slots.outputs;
    let buffers: Vec<Tid> = (first..first + slots.buffers).map(Tid).collect();
    let mut total = 0u64;
    for &tid in &buffers {
        let fail = |what: String| EngineError::Arguments(format!("mutable buffer {tid}: {what}"));
        let zeros = zeros_of_meta(m, tid).map_err(|e| fail(e.to_string()))?;
        total += zeros.data.bytes().len() as u64;
        if total > MAX_BUFFER_BYTES {
            return Err(fail(format!("the program's buffers take over {MAX_BUFFER_BYTES} bytes")));
        }
        m.set(tid, zeros);
    }
    Ok(buffers)
}
