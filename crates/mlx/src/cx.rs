//! The execution context of a node.

use std::{cell::OnceCell, sync::Arc};

use flambeau_ir::{
    Checked, In, InferError, Int, Node, Out, OutVid, SlotClass, Tid, Vid,
    engine::Profile,
    infer::run::{Contents, Inferred, OutSpec},
};
use flambeau_tensor::{DType, Shape, Tensor};

use crate::{
    Device,
    error::{OpError, Result},
    ffi::{Api, Array, Kernels, Memory},
    keys::KeySequence,
    kv::KvCache,
    open::{OpenIntegers, Origin},
    residency::{self, Residency},
    values::{Env, Slot, cast},
};

/// The properties that decide whether a node is supported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Support {
    /// Whether Metal source can run.
    pub(crate) has_metal: bool,
    /// Whether products with weights in nvfp4, mxfp4 and mxfp8 come out right.
    pub(crate) multiplies_float_codes: bool,
    /// Whether source text of unknown kernels may run.
    pub(crate) allows_custom: bool,
    /// Whether a launch may fill the device and synchronise its blocks: no other thread of the
    /// process launches there.
    pub(crate) fills_device: bool,
}

/// Everything that lasts from node to node.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) graph: Arc<Checked>,
    pub(crate) api: Api,
    pub(crate) device: Device,
    pub(crate) support: Support,
    pub(crate) env: Env,
    pub(crate) kv: Option<KvCache>,
    pub(crate) keys: KeySequence,
    pub(crate) kernels: Kernels,
    /// Present while a run is recorded for later runs.
    pub(crate) open: Option<OpenIntegers>,
    /// Maximum bytes of one tensor. On a CPU, MLX does not survive a failed allocation.
    limit: u64,
    /// The measured residency of the device; empty before the measurement.
    residency: OnceCell<Residency>,
    /// Present if the session measures.
    pub(crate) profile: Option<Profile>,
    /// Identifies the current arrays of the buffers; created on first use.
    stamp: Option<Arc<()>>,
    /// Inferred results of the running node.
    inferred: Inferred,
}

/// The running node's view of the machine.
#[derive(Debug)]
pub(crate) struct Cx<'a> {
    pub(crate) m: &'a mut Machine,
}

impl Machine {
    pub(crate) fn new(graph: Arc<Checked>, api: Api, device: Device, support: Support, kv: Option<KvCache>) -> Machine {
        let tensors = (0..graph.slots.total()).map(|_| None).collect();
        let count = graph.values as usize;
        let env = Env { tensors, values: vec![None; count], origins: vec![None; count] };
        let (keys, kernels) = (KeySequence::default(), Kernels::default());
        let limit = api.memory(Memory::Limit, 0).unwrap_or(u64::MAX);
        Machine {
            graph,
            api,
            device,
            support,
            env,
            kv,
            keys,
            kernels,
            residency: OnceCell::new(),
            open: None,
            limit,
            profile: None,
            stamp: None,
            inferred: Inferred::default(),
        }
    }

    /// A token for the current buffer arrays. While the caller keeps it, no other machine has the
    /// same one, and this machine gets a new one when a buffer's array is replaced.
    pub(crate) fn stamp(&mut self) -> Arc<()> {
        Arc::clone(self.stamp.get_or_insert_default())
    }

    /// Records that a buffer's array is replaced.
    pub(crate) fn renew_stamp(&mut self) {
        self.stamp = None;
    }

    /// The device's residency, measured on first use. `None` while a run is recorded before the
    /// first measurement, because a recording computes nothing.
    ///
    /// # Errors
    /// If MLX fails.
    pub(crate) fn residency(&self) -> Result<Option<Residency>> {
        match self.residency.get() {
            None if self.open.is_some() => Ok(None),
            None => {
                let measured = residency::measure(self.api)?;
                Ok(Some(*self.residency.get_or_init(|| measured)))
            }
            known => Ok(known.copied()),
        }
    }

    /// Runs a node's inference rule on the actual sizes and keeps the inferred results.
    pub(crate) fn infer(&mut self, node: &Node) -> Result<()> {
        Ok(self.inferred.run(node, &self.env)?)
    }

    /// The shape that the rule last run gave a result.
    pub(crate) fn inferred_shape(&self, tid: Tid) -> Option<Shape> {
        self.inferred.tensor(Out(tid)).map(|spec| spec.shape)
    }

    /// The contents of a slot.
    ///
    /// # Errors
    /// If it holds nothing.
    pub(crate) fn slot(&self, tid: Tid) -> Result<&Slot> {
        let slot = self.env.tensors.get(tid.0 as usize).and_then(Option::as_ref);
        slot.ok_or_else(|| InferError::Unset(tid).into())
    }

    pub(crate) fn set(&mut self, tid: Tid, slot: Slot) {
        if self.graph.slots.class(tid) == Some(SlotClass::Buffer) {
            self.renew_stamp();
        }
        if let Some(place) = self.env.tensors.get_mut(tid.0 as usize) {
            *place = Some(slot);
        }
    }

    /// Empties every slot that does not last from run to run.
    pub(crate) fn clear(&mut self) {
        let (first, slots) = (self.graph.slots.constants, self.graph.slots);
        for tid in (first..first + slots.inputs + slots.outputs).chain(slots.non_temp() as u32..slots.total() as u32) {
            self.empty(Tid(tid));
        }
        self.env.values.fill(None);
        self.env.origins.fill(None);
    }

    pub(crate) fn empty(&mut self, tid: Tid) {
        if let Some(place) = self.env.tensors.get_mut(tid.0 as usize) {
            *place = None;
        }
    }
}

impl Cx<'_> {
    pub(crate) fn api(&self) -> Api {
        self.m.api
    }

    /// Whether MLX's own CPU backend computes: its half-precision kernels round after every step.
    pub(crate) fn is_cpu(&self) -> bool {
        self.m.device == Device::Cpu
    }

    /// Whether MLX's CUDA backend computes.
    pub(crate) fn is_cuda(&self) -> bool {
        !self.is_cpu() && !cfg!(target_os = "macos")
    }

    /// A shared handle to an operand's contents.
    pub(crate) fn get(&self, slot: In) -> Result<Slot> {
        self.get_slot(slot.0)
    }

    /// A shared handle to a slot's contents.
    pub(crate) fn get_slot(&self, tid: Tid) -> Result<Slot> {
        self.peek(tid)?.share()
    }

    /// The contents of a slot.
    pub(crate) fn peek(&self, tid: Tid) -> Result<&Slot> {
        self.m.slot(tid)
    }

    /// An optional operand.
    pub(crate) fn get_opt(&self, slot: Option<In>) -> Result<Option<Slot>> {
        slot.map(|s| self.get(s)).transpose()
    }

    /// An operand's array in an element type.
    pub(crate) fn get_as(&self, slot: In, dtype: DType) -> Result<Array> {
        let slot = self.peek(slot.0)?;
        cast(slot, dtype)
    }

    /// An optional operand's array in an element type.
    pub(crate) fn get_opt_as(&self, slot: Option<In>, dtype: DType) -> Result<Option<Array>> {
        slot.map(|s| self.get_as(s, dtype)).transpose()
    }

    /// Element type and shape that the rule inferred for a result.
    pub(crate) fn out(&self, slot: Out) -> Result<OutSpec> {
        self.m.inferred.tensor(slot).ok_or(OpError::Open(slot.0))
    }

    /// Binds a result that the rule has inferred: converted to its type where MLX chose another.
    ///
    /// # Errors
    /// If MLX made another shape, or the tensor is larger than MLX's memory limit.
    pub(crate) fn put(&mut self, slot: Out, array: Array) -> Result<()> {
        let spec = self.out(slot)?;
        let (dtype, shape) = array.spec()?;
        if shape != spec.shape {
            let (found, expected) = (&shape[..], &spec.shape[..]);
            return Err(OpError::value(format!("MLX made shape {found:?}, expected {expected:?}")));
        }
        let bytes = shape.iter().fold(spec.dtype.size() as u64, |n, &d| n.saturating_mul(d as u64));
        if bytes > self.m.limit {
            return Err(OpError::value(format!("a tensor of {bytes} bytes, where MLX may allocate {}", self.m.limit)));
        }
        let array = if dtype == spec.dtype { array } else { array.cast(spec.dtype)? };
        self.m.set(slot.0, Slot::new(array, spec.dtype, shape));
        Ok(())
    }

    /// Binds a result with its host copy, or with the origin of its only element if it is open.
    pub(crate) fn put_host(&mut self, slot: Out, array: Array, host: Option<Tensor>, origin: Option<Origin>) -> Result<()> {
        self.put(slot, array)?;
        if let Some(bound) = self.m.env.tensors.get_mut(slot.0.0 as usize).and_then(Option::as_mut) {
            bound.origin = origin.filter(|_| bound.shape.iter().all(|&d| d == 1));
            bound.host = host.filter(|h| h.dtype() == bound.dtype && h.shape() == &bound.shape[..]);
        }
        Ok(())
    }

    /// The elements of a slot: from the host's copy, or computed now.
    pub(crate) fn read(&self, tid: Tid) -> Result<Tensor> {
        let slot = self.peek(tid)?;
        match &slot.host {
            Some(host) => Ok(host.clone()),
            None => Ok(slot.array.unary(crate::ffi::Unary::Contiguous)?.to_tensor()?),
        }
    }

    /// A literal, clamped to 32 bits as every size is, or a value slot's content.
    pub(crate) fn int(&self, int: Int) -> Result<i64> {
        Ok(self.m.env.int(int)?)
    }

    /// A value slot's content.
    pub(crate) fn value(&self, vid: Vid) -> Result<i32> {
        Ok(self.m.env.value(vid)?)
    }

    /// Binds an integer result.
    pub(crate) fn put_value(&mut self, slot: OutVid, value: i32) {
        if let Some(v) = self.m.env.values.get_mut(slot.0.0 as usize) {
            *v = Some(value);
        }
        self.put_open(slot, None);
    }

    /// Binds the integer that the rule inferred.
    pub(crate) fn put_inferred(&mut self, slot: OutVid) -> Result<()> {
        let value = self.m.inferred.value(slot)?;
        self.put_value(slot, value);
        Ok(())
    }

    /// A rank-0 array.
    pub(crate) fn scalar(&self, value: f64, dtype: DType) -> Result<Array> {
        Ok(Array::full(self.api(), &[], value, dtype)?)
    }

    /// Origin of a value slot's content, if it is open.
    pub(crate) fn origin(&self, vid: Vid) -> Option<Origin> {
        self.m.env.origins.get(vid.0 as usize).copied().flatten()
    }

    /// The origin of an operand.
    pub(crate) fn origin_of(&self, int: Int) -> Option<Origin> {
        match int {
            Int::Lit(_) => None,
            Int::Vid(vid) => self.origin(vid),
        }
    }

    /// The open integers of the recorded run; there are no origins without them.
    pub(crate) fn open(&mut self) -> Result<&mut OpenIntegers> {
        self.m.open.as_mut().ok_or_else(|| OpError::value("no run is recorded"))
    }

    /// Binds an open integer result.
    pub(crate) fn put_open(&mut self, slot: OutVid, origin: Option<Origin>) {
        if let Some(place) = self.m.env.origins.get_mut(slot.0.0 as usize) {
            *place = origin;
        }
    }

    /// The open integer as an array of i32.
    pub(crate) fn open_array(&mut self, origin: Origin) -> Result<Array> {
        let api = self.api();
        self.open()?.array(api, origin)
    }
}
