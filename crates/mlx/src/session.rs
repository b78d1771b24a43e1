//! A loaded graph with its own buffers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use flambeau_ir::{
    ChainId, Checked, Node, Slot as GraphSlot, SlotClass, Tid,
    engine::{EngineError, KvCacheConfig, Session, Value},
};
use flambeau_tensor::Shape;

use crate::{
    Device,
    cx::{Machine, Slot, cast},
    engine::Upload,
    error::{At, OpError, Result},
    eval::{self, Support},
    ffi::{Api, Array, Unary},
    fused::Plan,
    kv::KvCache,
    owner::Owner,
    trace::Traces,
};

/// All mutable buffers of a session together.
const MAX_BUFFER_BYTES: u64 = 1 << 36;

/// A session of the MLX engine. Its state lives on the device's thread while it runs.
#[derive(Debug)]
pub(crate) struct MlxSession {
    owner: Arc<Owner>,
    state: Option<Box<State>>,
}

impl MlxSession {
    pub(crate) fn new(owner: Arc<Owner>, state: Box<State>) -> MlxSession {
        MlxSession { owner, state: Some(state) }
    }

    /// Runs `f` on the state, on the device's thread.
    fn with_state<T: Send + 'static>(&mut self, f: impl FnOnce(&mut State) -> T + Send + 'static) -> Result<T, EngineError> {
        let lost = || EngineError::Arguments("an earlier run of this session panicked; load the program again".into());
        let mut state = self.state.take().ok_or_else(lost)?;
        let done = self.owner.call(move || {
            let result = f(&mut state);
            (state, result)
        });
        let (state, result) = done.map_err(|_| lost())?;
        self.state = Some(state);
        Ok(result)
    }
}

impl Session for MlxSession {
    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let inputs = inputs.to_vec();
        self.with_state(move |state| state.run(&inputs))?
    }

    fn reset(&mut self) {
        // A session that has lost its state says so when it runs.
        let _ = self.with_state(State::reset);
    }
}

impl Drop for MlxSession {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.owner.post(move || drop(state));
        }
    }
}

/// A result before it is computed.
enum Pending {
    Array(Array),
    Int(i32),
}

/// What a session keeps from run to run.
#[derive(Debug)]
pub(crate) struct State {
    machine: Machine,
    /// What the init chain left in buffers; empty where it is zero.
    initial: Vec<(Tid, Option<Slot>)>,
    traces: Traces,
    /// Present if runs of a signature that comes again are compiled: their count.
    compiles: Option<Arc<AtomicU64>>,
    /// Keeps the constants shared.
    _uploads: Vec<Arc<Upload>>,
}

/// Runs a chain's instructions in order.
///
/// # Errors
/// The first failure, with its place.
pub(crate) fn run_chain(m: &mut Machine, chain: ChainId) -> Result<()> {
    let graph = Arc::clone(&m.graph);
    let nodes = graph.chains.get(chain.0 as usize).ok_or_else(|| OpError::value(format!("there is no chain {}", chain.0)))?;
    let mut plan = if chain.0 == graph.main { m.fused.take() } else { None };
    let mut at = 0;
    let mut run = || {
        while let Some(node) = nodes.get(at) {
            let fused = match &mut plan {
                Some(plan) => plan.run(m, at)?,
                None => None,
            };
            at = match fused {
                Some(next) => next,
                None => eval::eval(node, &mut crate::cx::Cx { m: &mut *m }).map(|()| at + 1)?,
            };
        }
        Ok(())
    };
    let result = run();
    if plan.is_some() {
        m.fused = plan;
    }
    result.map_err(|error| match nodes.get(at) {
        Some(node) => located(error, chain.0, at, node),
        None => error,
    })
}

/// The innermost place wins: an instruction that runs a chain passes on where that chain failed.
fn located(error: OpError, chain: u32, instruction: usize, node: &Node) -> OpError {
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

/// Zeros in the declared type and shape of a slot.
fn zeros_of_meta(m: &Machine, tid: Tid) -> Result<Slot> {
    let meta = m.graph.meta.get(tid.0 as usize).ok_or_else(|| OpError::value("it has no metadata"))?;
    let shape = meta.static_shape().ok_or_else(|| OpError::value("its shape is not static"))?;
    let array = Array::full(m.api, &shape, 0.0, meta.dtype)?;
    Ok(Slot::new(array, meta.dtype, Shape::from_slice(&shape)))
}

fn bytes_of(slot: &Slot) -> u64 {
    slot.shape.iter().fold(slot.dtype.size() as u64, |n, &d| n.saturating_mul(d as u64))
}

impl State {
    /// Binds constants and buffers and runs the init chain.
    pub(crate) fn new(
        graph: Arc<Checked>,
        (api, device, support, compiles): (Api, Device, Support, Option<Arc<AtomicU64>>),
        kv: Option<&KvCacheConfig>,
        uploads: Vec<(Slot, Arc<Upload>)>,
    ) -> Result<Box<State>> {
        let kv = kv.map(|config| KvCache::new(api, config)).transpose()?;
        let mut machine = Machine::new(Arc::clone(&graph), api, device, support, kv);
        let mut kept = Vec::with_capacity(uploads.len());
        for ((slot, upload), tid) in uploads.into_iter().zip((0..).map(Tid)) {
            machine.set(tid, slot);
            kept.push(upload);
        }
        let buffers = bind_buffers(&mut machine)?;
        if let Some(init) = graph.init {
            run_chain(&mut machine, ChainId(init))?;
            let constants: Vec<Array> =
                (0..graph.slots.constants).map(Tid).filter_map(|t| handle(&machine, t).transpose()).collect::<Result<_>>()?;
            api.eval(&constants)?;
        }
        let initial = buffers.into_iter().map(|tid| Ok((tid, written(&machine, tid)?))).collect::<Result<_>>()?;
        // Steps with kernels of their own take their position from the host.
        let compiles = compiles.filter(|_| !machine.fused.as_ref().is_some_and(Plan::attends));
        Ok(Box::new(State { machine, initial, traces: Traces::default(), compiles, _uploads: kept }))
    }

    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        if let Some(result) = self.run_compiled(inputs) {
            return result.map_err(engine_error);
        }
        let main = ChainId(self.machine.graph.main);
        // MLX may not write memory that callers own, and takes a lone handle for leave to do so.
        let held = self.bind(inputs)?;
        let result = run_chain(&mut self.machine, main).and_then(|()| self.finish()).map_err(engine_error);
        clear(&mut self.machine);
        drop(held);
        if result.is_err() {
            self.settle();
        }
        result
    }

    /// Runs a compiled form of the main chain; `None` if there is none for these inputs.
    fn run_compiled(&mut self, inputs: &[Value]) -> Option<Result<Vec<Value>>> {
        let count = self.compiles.clone().filter(|_| self.check_inputs(inputs).is_ok())?;
        let outputs = match self.traces.run(&mut self.machine, inputs)? {
            Ok(outputs) => outputs,
            Err(error) => return Some(Err(error)),
        };
        let computed = self.buffers().and_then(|buffers| {
            self.machine.api.eval(outputs.iter().chain(&buffers))?;
            outputs.iter().map(|array| Ok(Value::Tensor(array.to_tensor()?))).collect()
        });
        if computed.is_err() {
            self.settle();
        }
        count.fetch_add(1, Ordering::Relaxed);
        Some(computed)
    }

    fn bind(&mut self, inputs: &[Value]) -> Result<Vec<Array>, EngineError> {
        self.check_inputs(inputs)?;
        let m = &mut self.machine;
        let graph = Arc::clone(&m.graph);
        let mut held = Vec::with_capacity(inputs.len());
        for (slot, value) in graph.inputs.iter().zip(inputs) {
            match (slot, value) {
                (GraphSlot::Tensor(tid), Value::Tensor(tensor)) => {
                    let slot = Slot::from_tensor(m.api, tensor).map_err(engine_error)?;
                    held.push(slot.array.share().map_err(|e| engine_error(e.into()))?);
                    m.set(*tid, slot);
                }
                (GraphSlot::Value(vid), Value::Int(v)) => {
                    if let Some(value) = m.env.values.get_mut(vid.0 as usize) {
                        *value = Some(*v);
                    }
                }
                _ => return Err(EngineError::Arguments("an input has the wrong kind".into())),
            }
        }
        Ok(held)
    }

    fn check_inputs(&self, inputs: &[Value]) -> Result<(), EngineError> {
        let graph = &self.machine.graph;
        if inputs.len() != graph.inputs.len() {
            let (expected, found) = (graph.inputs.len(), inputs.len());
            return Err(EngineError::Arguments(format!("expected {expected} inputs, found {found}")));
        }
        for (i, (slot, value)) in graph.inputs.iter().zip(inputs).enumerate() {
            let refuse = |expected: &str| Err(EngineError::Arguments(format!("input {i}: expected {expected}")));
            match (slot, value) {
                (GraphSlot::Tensor(tid), Value::Tensor(tensor)) => match graph.meta.get(tid.0 as usize) {
                    Some(meta) if meta.dtype != tensor.dtype() => {
                        return refuse(&format!("a tensor of {}, found {}", meta.dtype, tensor.dtype()));
                    }
                    _ => {}
                },
                (GraphSlot::Value(_), Value::Int(_)) => {}
                (GraphSlot::Tensor(_), Value::Int(_)) => return refuse("a tensor, found an integer"),
                (GraphSlot::Value(_), Value::Tensor(_)) => return refuse("an integer, found a tensor"),
            }
        }
        Ok(())
    }

    /// Computes outputs and buffers together, and copies the outputs out.
    fn finish(&mut self) -> Result<Vec<Value>> {
        let graph = Arc::clone(&self.machine.graph);
        let mut results = Vec::with_capacity(graph.outputs.len());
        for slot in &graph.outputs {
            let cx = crate::cx::Cx { m: &mut self.machine };
            results.push(match *slot {
                GraphSlot::Value(vid) => Pending::Int(cx.value(vid)?),
                GraphSlot::Tensor(tid) => {
                    let slot = cx.peek(tid)?;
                    let dtype = graph.meta.get(tid.0 as usize).map_or(slot.dtype, |meta| meta.dtype);
                    Pending::Array(cast(slot, dtype)?.unary(Unary::Contiguous)?)
                }
            });
        }
        // Only then do intermediate arrays have no handle but MLX's own, so that MLX may reuse their storage.
        clear(&mut self.machine);
        let buffers = self.buffers()?;
        let arrays = results.iter().filter_map(|result| match result {
            Pending::Array(array) => Some(array),
            Pending::Int(_) => None,
        });
        self.machine.api.eval(arrays.chain(&buffers))?;
        let read = |result| match result {
            Pending::Array(array) => Ok(Value::Tensor(array.to_tensor()?)),
            Pending::Int(value) => Ok(Value::Int(value)),
        };
        results.into_iter().map(read).collect()
    }

    /// Handles to everything that lasts.
    fn buffers(&self) -> Result<Vec<Array>> {
        let mut arrays: Vec<Array> =
            self.initial.iter().filter_map(|(tid, _)| handle(&self.machine, *tid).transpose()).collect::<Result<_>>()?;
        if let Some(kv) = &self.machine.kv {
            arrays.extend(kv.arrays()?);
        }
        Ok(arrays)
    }

    /// After a failure: buffers that cannot be computed are as loading left them.
    fn settle(&mut self) {
        let tids: Vec<Tid> = self.initial.iter().map(|(tid, _)| *tid).collect();
        for (i, tid) in tids.into_iter().enumerate() {
            let computed = handle(&self.machine, tid).and_then(|array| Ok(self.machine.api.eval(&array)?));
            if computed.is_err() {
                self.restore(i);
            }
        }
    }

    fn restore(&mut self, index: usize) {
        let (tid, initial) = &self.initial[index];
        let fresh = match initial {
            Some(slot) => slot.share(),
            None => zeros_of_meta(&self.machine, *tid),
        };
        if let Ok(slot) = fresh {
            self.machine.set(*tid, slot);
        }
    }

    fn reset(&mut self) {
        (0..self.initial.len()).for_each(|i| self.restore(i));
        // The cache needs nothing: a step reads only positions before its own end, which the new sequence writes again.
    }
}

/// Empties every slot that does not last from run to run.
pub(crate) fn clear(m: &mut Machine) {
    let (first, slots) = (m.graph.slots.constants, m.graph.slots);
    for tid in (first..first + slots.inputs + slots.outputs).chain(slots.non_temp() as u32..slots.total() as u32) {
        m.empty(Tid(tid));
    }
    m.env.values.fill(None);
    m.env.origins.fill(None);
}

/// A handle to what a slot holds, if it holds something.
fn handle(m: &Machine, tid: Tid) -> Result<Option<Array>> {
    let slot = m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref);
    Ok(slot.map(|s| s.array.share()).transpose()?)
}

/// What the init chain left in a buffer, computed; `None` if no chain that runs at load writes it.
fn written(m: &Machine, tid: Tid) -> Result<Option<Slot>> {
    let writes = m.graph.init.is_some_and(|init| chain_writes(m, init, tid, 0));
    if !writes {
        return Ok(None);
    }
    let slot = m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref).map(Slot::share).transpose()?;
    if let Some(slot) = &slot {
        m.api.eval([&slot.array])?;
    }
    Ok(slot)
}

/// Whether a chain, or one that it runs, writes the slot. The checker bounds the depth.
fn chain_writes(m: &Machine, chain: u32, tid: Tid, depth: usize) -> bool {
    let nodes = m.graph.chains.get(chain as usize);
    nodes.into_iter().flatten().any(|node| {
        let mut writes = false;
        node.walk(&mut |role, slot| writes |= slot == GraphSlot::Tensor(tid) && role != flambeau_ir::Role::Read);
        writes
            || depth < flambeau_ir::limits::MAX_CHAIN_DEPTH as usize
                && node.chains().iter().any(|c| chain_writes(m, c.0, tid, depth + 1))
    })
}

fn bind_buffers(m: &mut Machine) -> Result<Vec<Tid>> {
    let slots = m.graph.slots;
    let first = slots.constants + slots.inputs + slots.outputs;
    let buffers: Vec<Tid> = (first..first + slots.buffers).map(Tid).collect();
    debug_assert!(buffers.iter().all(|&t| slots.class(t) == Some(SlotClass::Buffer)));
    let mut total = 0u64;
    for &tid in &buffers {
        let zeros = zeros_of_meta(m, tid).map_err(|e| OpError::value(format!("mutable buffer {tid}: {e}")))?;
        total = total.saturating_add(bytes_of(&zeros));
        if total > MAX_BUFFER_BYTES {
            return Err(OpError::value(format!("the program's buffers take over {MAX_BUFFER_BYTES} bytes")));
        }
        m.set(tid, zeros);
    }
    Ok(buffers)
}
