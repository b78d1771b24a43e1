//! The state of a session: a loaded graph with its own buffers.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use flambeau_ir::{
    ChainId, Checked, Slot as GraphSlot, SlotClass, Tid,
    engine::{BoundInput, EngineError, KvCacheConfig, SharedState, Value, bind_inputs},
};
use flambeau_tensor::Shape;

use crate::{
    Device,
    cx::{Machine, Support},
    error::{OpError, Result},
    eval,
    ffi::{Api, Array, Memory, Unary},
    kv,
    main_chain::MainChain,
    ops::shape::Window,
    owner::Queue,
    shared::{OnDevice, Shared},
    tokens::InFlight,
    trace::Traces,
    uploads::Upload,
    values::{Feedback, Slot, cast},
};

/// All mutable buffers of a session together.
const MAX_BUFFER_BYTES: u64 = 1 << 36;

/// A session's state, on the way to the device's thread. It is empty after a panic.
pub(crate) type StateHandle = Arc<Mutex<Option<Box<State>>>>;

/// Runs `f` on the state, buffers that are shared included, unless a panic took it.
pub(crate) fn on<T>(state: &Mutex<Option<Box<State>>>, f: impl FnOnce(&mut State) -> T) -> Option<T> {
    state.lock().ok()?.as_mut().map(|state| state.with_buffers(f))
}

/// The part of the results that the caller reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    All,
    /// The last entry along the second-to-last axis.
    Last,
}

/// A result before it is computed.
#[derive(Debug)]
pub(crate) enum Pending {
    Array(Array),
    Int(i32),
}

impl Pending {
    /// The array that MLX has to compute.
    pub(crate) fn array(&self) -> Option<&Array> {
        match self {
            Pending::Array(array) => Some(array),
            Pending::Int(_) => None,
        }
    }

    /// Copies a result out that is computed.
    pub(crate) fn read(self) -> Result<Value> {
        match self {
            Pending::Array(array) => Ok(Value::Tensor(array.to_tensor()?)),
            Pending::Int(value) => Ok(Value::Int(value)),
        }
    }
}

/// A run before it is computed.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) results: Vec<Pending>,
    /// Handles to the callers' inputs. When MLX evaluates, it may overwrite the memory of an array
    /// with a single handle.
    _inputs: Vec<Array>,
}

/// The state of a session between runs.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) machine: Machine,
    pub(crate) main: MainChain,
    /// Buffer contents after the init chain; empty for zeros.
    initial: Vec<(Tid, Option<Slot>)>,
    traces: Traces,
    /// Number of compiled runs; present if repeated signatures are compiled.
    compiles: Option<Arc<AtomicU64>>,
    pub(crate) in_flight: InFlight,
    /// The buffers that runs carry on and write as a whole.
    pub(crate) carried: Vec<Tid>,
    /// Whether in-flight kernels may hold buffer addresses that MLX does not track.
    pub(crate) is_used_unseen: bool,
    /// Holds the shared buffers between runs; present if buffers are shared.
    shared: Option<Shared>,
    /// Keeps the constants shared.
    uploads: Vec<Arc<Upload>>,
}

/// Zeros in the declared type and shape of a slot.
fn zeros_of_meta(m: &Machine, tid: Tid) -> Result<Slot> {
    let meta = m.graph.meta.get(tid.0 as usize).ok_or_else(|| OpError::value("it has no metadata"))?;
    let shape = meta.static_shape().ok_or_else(|| OpError::value("its shape is not static"))?;
    let array = Array::full(m.api, &shape, 0.0, meta.dtype)?;
    Ok(Slot::new(array, meta.dtype, Shape::from_slice(&shape)))
}

pub(crate) fn bytes_of(slot: &Slot) -> u64 {
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
        let kv = kv.map(|config| kv::empty(api, config)).transpose()?;
        let mut machine = Machine::new(Arc::clone(&graph), api, device, support, kv);
        let main = MainChain::of(&graph, device, &support);
        let mut kept = Vec::with_capacity(uploads.len());
        for ((slot, upload), tid) in uploads.into_iter().zip((0..).map(Tid)) {
            machine.set(tid, slot);
            kept.push(upload);
        }
        let buffers = bind_buffers(&mut machine)?;
        if let Some(init) = graph.init {
            eval::run_chain(&mut machine, ChainId(init))?;
            let constants: Vec<Array> =
                (0..graph.slots.constants).map(Tid).filter_map(|t| handle(&machine, t).transpose()).collect::<Result<_>>()?;
            api.eval(&constants)?;
        }
        let written = graph.init.map_or_else(Vec::new, |init| graph.buffers_written_by(ChainId(init)));
        let left = |tid| if written.contains(&tid) { computed(&machine, tid) } else { Ok(None) };
        let initial = buffers.into_iter().map(|tid| Ok((tid, left(tid)?))).collect::<Result<_>>()?;
        let carried = graph.carried_buffers();
        Ok(Box::new(State {
            machine,
            main,
            initial,
            carried,
            is_used_unseen: false,
            traces: Traces::of(&graph),
            compiles,
            in_flight: InFlight::default(),
            shared: None,
            uploads: kept,
        }))
    }

    /// Shares buffers and cache with the other sessions loaded with the same state.
    ///
    /// # Errors
    /// If the shared state does not fit the session's buffers.
    pub(crate) fn share(&mut self, state: SharedState, queue: Queue) -> Result<(), EngineError> {
        let (graph, keeper) = (Arc::clone(&self.machine.graph), OnDevice { queue, device: self.machine.device });
        self.shared = Some(Shared::join(&graph, &mut self.machine, state, keeper)?);
        Ok(())
    }

    /// Whether both sessions use the same uploaded constants.
    pub(crate) fn has_constants_of(&self, other: &State) -> bool {
        let pairs = self.uploads.iter().zip(&other.uploads);
        self.uploads.len() == other.uploads.len() && pairs.into_iter().all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Whether two sessions share buffers with each other.
    pub(crate) fn shares_with(&self, other: &State) -> bool {
        matches!((&self.shared, &other.shared), (Some(a), Some(b)) if a.is_one_with(b))
    }

    /// Takes the state shared with other sessions; [`State::put_shared`] puts it back.
    pub(crate) fn take_shared(&mut self) -> Option<Shared> {
        self.shared.take()
    }

    pub(crate) fn put_shared(&mut self, shared: Option<Shared>) {
        self.shared = shared;
    }

    /// A handle to a buffer.
    pub(crate) fn buffer(&self, tid: Tid) -> Result<Option<Array>> {
        handle(&self.machine, tid)
    }

    /// Runs `f` with every buffer bound, those that are shared included.
    fn with_buffers<T>(&mut self, f: impl FnOnce(&mut State) -> T) -> T {
        let Some(shared) = self.shared.take() else { return f(self) };
        let result = shared.with(self, |state| &mut state.machine, f);
        self.shared = Some(shared);
        result
    }

    pub(crate) fn run(&mut self, inputs: &[Value], wanted: Wanted) -> Result<Vec<Value>, EngineError> {
        let result = self.build(inputs, None).and_then(|built| self.compute(built, wanted).map_err(EngineError::from));
        if result.is_err() {
            self.settle();
        }
        result
    }

    /// Builds the run as arrays that MLX has not computed yet. After a failure, the caller
    /// [settles](State::settle).
    pub(crate) fn build(&mut self, inputs: &[Value], feedback: Option<&Feedback>) -> Result<Built, EngineError> {
        bind_inputs(&self.machine.graph, inputs)?.try_for_each(|input| input.map(drop))?;
        if let Some(result) = self.build_compiled(inputs, feedback) {
            return result.map_err(EngineError::from);
        }
        let held = self.bind(inputs, feedback)?;
        let results = self.main.run(&mut self.machine).and_then(|()| self.results()).map_err(EngineError::from);
        // Once slots are cleared, only MLX holds the intermediate arrays, so MLX may reuse their
        // storage.
        self.machine.clear();
        Ok(Built { results: results?, _inputs: held })
    }

    /// Runs a compiled form of the main chain; `None` if there is none for these inputs.
    fn build_compiled(&mut self, inputs: &[Value], feedback: Option<&Feedback>) -> Option<Result<Built>> {
        let count = self.compiles.clone()?;
        let traced = self.traces.run(&mut self.machine, &mut self.main, inputs, feedback)?;
        count.fetch_add(1, Ordering::Relaxed);
        Some(traced.map(|(outputs, held)| Built { results: outputs.into_iter().map(Pending::Array).collect(), _inputs: held }))
    }

    /// Computes results and buffers together, and copies the results out.
    fn compute(&mut self, built: Built, wanted: Wanted) -> Result<Vec<Value>> {
        let mut results = Vec::with_capacity(built.results.len());
        for result in built.results {
            results.push(match result {
                Pending::Array(array) if wanted == Wanted::Last => Pending::Array(last_entry(&array)?),
                other => other,
            });
        }
        let buffers = self.buffers()?;
        self.machine.api.eval(results.iter().filter_map(Pending::array).chain(&buffers))?;
        results.into_iter().map(Pending::read).collect()
    }

    /// Binds the inputs of a run, with host copies of small ones. Returns handles to their arrays.
    ///
    /// # Errors
    /// If MLX refuses one.
    pub(crate) fn bind(&mut self, inputs: &[Value], feedback: Option<&Feedback>) -> Result<Vec<Array>, EngineError> {
        let m = &mut self.machine;
        let graph = Arc::clone(&m.graph);
        let mut held = Vec::with_capacity(inputs.len());
        for (i, input) in bind_inputs(&graph, inputs)?.enumerate() {
            match input? {
                BoundInput::Tensor(tid, tensor) => {
                    let slot = match feedback.filter(|feedback| feedback.input == i) {
                        Some(feedback) => Slot::feedback(feedback, tensor),
                        None => Slot::from_tensor(m.api, tensor),
                    };
                    let slot = slot.map_err(EngineError::from)?;
                    held.push(slot.array.share().map_err(OpError::from)?);
                    m.set(tid, slot);
                }
                BoundInput::Int(vid, v) => {
                    if let Some(value) = m.env.values.get_mut(vid.0 as usize) {
                        *value = Some(v);
                    }
                }
            }
        }
        Ok(held)
    }

    /// The results of the main chain, which has run.
    fn results(&mut self) -> Result<Vec<Pending>> {
        let graph = Arc::clone(&self.machine.graph);
        let result = |slot: &GraphSlot| {
            let cx = crate::cx::Cx { m: &mut self.machine };
            Ok(match *slot {
                GraphSlot::Value(vid) => Pending::Int(cx.value(vid)?),
                GraphSlot::Tensor(tid) => {
                    let slot = cx.peek(tid)?;
                    let dtype = graph.meta.get(tid.0 as usize).map_or(slot.dtype, |meta| meta.dtype);
                    Pending::Array(cast(slot, dtype)?.unary(Unary::Contiguous)?)
                }
            })
        };
        graph.outputs.iter().map(result).collect()
    }

    /// Handles to everything that lasts from run to run.
    pub(crate) fn buffers(&self) -> Result<Vec<Array>> {
        let mut arrays: Vec<Array> =
            self.initial.iter().filter_map(|(tid, _)| handle(&self.machine, *tid).transpose()).collect::<Result<_>>()?;
        if let Some(kv) = &self.machine.kv {
            arrays.extend(kv::arrays(kv)?);
        }
        Ok(arrays)
    }

    /// Recovers after a failure. Resets buffers that cannot be computed to their initial contents,
    /// and returns the run's cached memory to the system.
    pub(crate) fn settle(&mut self) {
        let tids: Vec<Tid> = self.initial.iter().map(|(tid, _)| *tid).collect();
        for (i, tid) in tids.into_iter().enumerate() {
            let computed = handle(&self.machine, tid).and_then(|array| Ok(self.machine.api.eval(&array)?));
            if computed.is_err() {
                self.restore(i);
            }
        }
        if let Some(kv) = &mut self.machine.kv {
            kv::settle(kv, self.machine.api);
        }
        // The caller reports the run's own failure.
        let _ = self.machine.api.memory(Memory::ClearCache, 0);
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

    /// Waits for in-flight kernels. They use buffer addresses without MLX's tracking, and MLX could
    /// otherwise reuse that memory.
    pub(crate) fn wait_for_launches(&mut self) {
        if std::mem::take(&mut self.is_used_unseen) {
            // The receivers of the launches' results get the errors.
            let _ = self.machine.api.synchronize();
        }
    }

    pub(crate) fn reset(&mut self) {
        self.wait_for_launches();
        self.in_flight = InFlight::default();
        (0..self.initial.len()).for_each(|i| self.restore(i));
        // The cache needs no reset: a step reads only positions before its own end, and the new
        // sequence rewrites these.
    }
}

/// The last entry along the second-to-last axis, as an array of the same rank.
pub(crate) fn last_entry(array: &Array) -> Result<Array> {
    let (_, shape) = array.spec()?;
    let Some(axis) = shape.len().checked_sub(2).filter(|&axis| shape[axis] > 1) else { return Ok(array.share()?) };
    let last = Window::whole(&shape).narrow(axis, shape[axis] - 1, 1, 1).of(array)?;
    Ok(last.unary(Unary::Contiguous)?)
}

/// A handle to a slot's array, if the slot is set.
fn handle(m: &Machine, tid: Tid) -> Result<Option<Array>> {
    let slot = m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref);
    Ok(slot.map(|s| s.array.share()).transpose()?)
}

/// A slot's contents, computed; empty if the slot is unset.
fn computed(m: &Machine, tid: Tid) -> Result<Option<Slot>> {
    let slot = m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref).map(Slot::share).transpose()?;
    if let Some(slot) = &slot {
        m.api.eval([&slot.array])?;
    }
    Ok(slot)
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
