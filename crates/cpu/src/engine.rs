//! The engine: binds constants and buffers, plans, runs the init chain.

use std::sync::Arc;

use flambeau_ir::{
    ChainId, Checked, Graph, Node, Role, Slot, SlotClass, Tid,
    engine::{Constants, Engine, EngineError, LoadOptions, Profile, Session},
};
use flambeau_kernels::Pool;
use flambeau_tensor::Tensor;

use crate::{
    array::Array,
    common::Common,
    cx::Machine,
    eval,
    kv::KvCache,
    ops::copy::zeros_of_meta,
    plan::Plan,
    session::{CpuSession, Spare, Tapes, engine_error, run_chain},
};

/// All mutable buffers of a session together.
const MAX_BUFFER_BYTES: u64 = 1 << 36;

/// Runs graphs on the CPU. Sessions share its threads.
#[derive(Debug)]
pub struct CpuEngine {
    pool: Arc<Pool>,
    profile: bool,
}

impl CpuEngine {
    /// An engine with its own pool of `threads` threads, the caller's included; `None` means one per available core.
    pub fn new(threads: Option<usize>) -> CpuEngine {
        CpuEngine { pool: Arc::new(Pool::new(threads.unwrap_or(0))), profile: false }
    }

    /// Whether sessions loaded from here on measure the time of each node.
    #[must_use]
    pub fn with_profile(mut self, profile: bool) -> CpuEngine {
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
}

impl CpuEngine {
    pub(crate) fn session(
        &self,
        graph: Arc<Checked>,
        constants: &dyn Constants,
        options: &LoadOptions,
    ) -> Result<CpuSession, EngineError> {
        refuse_lacking(&graph)?;
        let plan = Arc::new(Plan::new(&graph));
        let kv = options.kv_cache.as_ref().map(KvCache::new).transpose().map_err(engine_error)?;
        let mut machine = Machine::new(Arc::clone(&graph), plan, Arc::clone(&self.pool), kv);
        bind_constants(&mut machine, constants)?;
        let buffers = bind_buffers(&mut machine)?;
        let written = match graph.init {
            Some(init) => {
                run_chain(&mut machine, ChainId(init)).map_err(engine_error)?;
                written_by(&graph, init)
            }
            None => Vec::new(),
        };
        let kept = |tid: Tid| written.get(tid.0 as usize).copied().unwrap_or(false);
        let initial = buffers
            .iter()
            .map(|&tid| (tid, kept(tid).then(|| machine.env.tensors.get(tid.0 as usize).cloned().flatten()).flatten()))
            .collect();
        machine.profile = self.profile.then(Profile::default);
        let common = options.shared.clone().map(|state| Common::join(&mut machine, &buffers, state)).transpose()?;
        Ok(CpuSession { machine, tapes: Tapes::default(), initial, common, spare: Spare::default() })
    }
}

fn refuse_lacking(graph: &Graph) -> Result<(), EngineError> {
    let mut nodes: Vec<String> = Vec::new();
    for node in graph.chains.iter().flatten().filter(|n| !eval::is_supported(n)) {
        let name = match node {
            Node::MetalKernel(kernel) => format!("MetalKernel `{}`", kernel.name),
            node => node.name().to_owned(),
        };
        if !nodes.contains(&name) {
            nodes.push(name);
        }
    }
    if nodes.is_empty() { Ok(()) } else { Err(EngineError::Unsupported { engine: "cpu", nodes }) }
}

fn bind_constants(m: &mut Machine, constants: &dyn Constants) -> Result<(), EngineError> {
    let graph = Arc::clone(&m.graph);
    let mut names: Vec<Option<&str>> = vec![None; graph.slots.constants as usize];
    for (name, slot) in &graph.names {
        if let Slot::Tensor(tid) = slot
            && let Some(entry) = names.get_mut(tid.0 as usize)
        {
            *entry = Some(name);
        }
    }
    for (name, tid) in names.into_iter().zip((0..).map(Tid)) {
        let key = name.map_or_else(|| tid.to_string(), str::to_owned);
        let fail = |what: String| EngineError::Constant { key: key.clone(), what };
        let name = name.ok_or_else(|| fail("the program gives it no name".into()))?;
        let meta = graph.meta.get(tid.0 as usize).ok_or_else(|| fail("it has no metadata".into()))?;
        let shape = meta.static_shape().ok_or_else(|| fail("its shape is not static".into()))?;
        let bytes = constants.get(name).ok_or_else(|| fail("its data is missing".into()))?;
        let tensor = Tensor::new(meta.dtype, &shape, bytes).map_err(|e| fail(e.to_string()))?;
        m.set(tid, Array::from_tensor(&tensor));
    }
    Ok(())
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

/// The slots that a chain and those it runs may write.
fn written_by(graph: &Graph, chain: u32) -> Vec<bool> {
    let mut written = vec![false; graph.slots.total() as usize];
    let (mut seen, mut todo) = (vec![false; graph.chains.len()], vec![ChainId(chain)]);
    while let Some(ChainId(chain)) = todo.pop() {
        let Some(nodes) = graph.chains.get(chain as usize).filter(|_| !std::mem::replace(&mut seen[chain as usize], true)) else {
            continue;
        };
        for node in nodes {
            todo.extend(node.chains());
            node.walk(&mut |role, slot| {
                if let Slot::Tensor(tid) = slot
                    && role != Role::Read
                    && graph.slots.class(tid) == Some(SlotClass::Buffer)
                {
                    written[tid.0 as usize] = true;
                }
            });
        }
    }
    written
}
