//! [`Lower`], the graph that rules write to: slots, chains and known results.

use std::{collections::HashMap, sync::Arc};

use flambeau_ir::{Effect, Infer, InferError, Int, Node, Out, OutVid, Role, ShapeCx, Slot, SlotRef, Spec, Tid, Vid};
use flambeau_tensor::{DType, Expr, Shape, Symbol};

use crate::{
    ConstExpr, Constant, Origin, Range, Refuse, TensorInfo,
    ssa::{SsaGraph, SsaNode},
};

/// Placeholder for a new slot in a node passed to [`Lower::emit`].
pub(crate) const NEW: Out = Out(Tid(u32::MAX));

/// Placeholder for a new value slot in a node passed to [`Lower::emit_value`].
pub(crate) const NEW_VALUE: OutVid = OutVid(Vid(u32::MAX));

/// First character of symbols made by inference.
const FRESH: char = '?';

/// Builds an [`SsaGraph`] call by call. Emits equal nodes once and omits nodes without effect.
#[derive(Debug, Default)]
pub struct Lower {
    ssa: SsaGraph,
    /// Indices of the open chains, innermost last.
    open: Vec<usize>,
    /// Per open chain, the computed nodes: node without results → results.
    known: Vec<HashMap<String, Vec<Slot>>>,
    /// Per open chain, the value slots that it sets, by content.
    values: Vec<HashMap<Expr, Vid>>,
    /// Constants by type, shape and literal bytes.
    literals: HashMap<(DType, Shape, Vec<u8>), Tid>,
    /// Chain and index of the node that writes a slot.
    producers: HashMap<Tid, (usize, usize)>,
    /// For a rank-0 tensor, an integer that is zero exactly if the tensor is. Conditions use it
    /// without reading the tensor.
    flags: HashMap<Tid, Int>,
    /// For a complex tensor's slot, the real tensor `[.., 2]` of its real and imaginary parts.
    /// Nodes have no complex type.
    pairs: HashMap<Tid, Tid>,
    n_unknown: u32,
    call: u32,
}

/// A snapshot of the graph's sizes, to undo a failed call.
#[derive(Debug)]
struct Mark {
    nodes: Vec<usize>,
    tensors: usize,
    values: usize,
}

impl Lower {
    /// Creates an empty graph with one open chain.
    pub fn new() -> Lower {
        let ssa = SsaGraph { chains: vec![Vec::new()], ..SsaGraph::default() };
        Lower { ssa, open: vec![0], known: vec![HashMap::new()], values: vec![HashMap::new()], ..Lower::default() }
    }

    /// The graph built so far.
    pub fn graph(&self) -> &SsaGraph {
        &self.ssa
    }

    /// Returns the finished graph.
    pub fn into_graph(self) -> SsaGraph {
        self.ssa
    }

    /// Sets the bounds of a symbol.
    pub fn set_range(&mut self, symbol: Symbol, range: Range) {
        self.ssa.ranges.insert(symbol, range);
    }

    /// Adds a slot that no node writes.
    pub fn slot(&mut self, spec: Spec, origin: Origin) -> Tid {
        self.ssa.tensors.push(TensorInfo { spec, origin });
        Tid(self.ssa.tensors.len() as u32 - 1)
    }

    /// Adds a value slot for an integer argument with this content.
    pub fn value_input(&mut self, argument: u32, content: Expr) -> Vid {
        let vid = Vid(self.ssa.values.len() as u32);
        self.ssa.values.push(content.clone());
        self.ssa.value_inputs.push((argument, vid));
        self.values[0].insert(content, vid);
        vid
    }

    /// Adds a constant slot. Short literals (at most 64 bytes) with equal type, shape and bytes
    /// share a slot.
    pub fn constant(&mut self, constant: Constant) -> Tid {
        let key = match &constant.expr {
            ConstExpr::Literal(bytes) if bytes.len() <= 64 => Some((constant.dtype, constant.shape.clone(), bytes.to_vec())),
            _ => None,
        };
        if let Some(t) = key.as_ref().and_then(|k| self.literals.get(k)) {
            return *t;
        }
        let t = self.slot(constant.spec(), Origin::Constant(Arc::new(constant)));
        if let Some(key) = key {
            self.literals.insert(key, t);
        }
        t
    }

    /// Element type and sizes of a slot.
    pub fn spec(&self, t: Tid) -> &Spec {
        self.ssa.spec(t)
    }

    /// Sets the spec of a slot after the chains that write it have run.
    pub(crate) fn set_spec(&mut self, t: Tid, spec: Spec) {
        if let Some(info) = self.ssa.tensors.get_mut(t.0 as usize) {
            info.spec = spec;
        }
    }

    /// The integer that is zero exactly if the rank-0 tensor is.
    pub(crate) fn flag(&self, t: Tid) -> Option<Int> {
        self.flags.get(&t).copied()
    }

    /// Records an integer that is zero exactly if the rank-0 tensor is.
    pub(crate) fn set_flag(&mut self, t: Tid, value: Int) {
        self.flags.insert(t, value);
    }

    /// The value slot that an open chain sets to this size.
    pub(crate) fn known_value(&self, size: &Expr) -> Option<Vid> {
        self.values.iter().rev().find_map(|scope| scope.get(size)).copied()
    }

    /// Records the symbolic content of a value slot, whose number is known only at run time.
    pub(crate) fn know_value(&mut self, vid: Vid, content: &Expr) {
        if let Some(slot) = self.ssa.values.get_mut(vid.0 as usize) {
            *slot = content.clone();
        }
        if let Some(scope) = self.values.last_mut() {
            scope.insert(content.clone(), vid);
        }
    }

    /// The node of an open chain that writes a slot.
    pub(crate) fn producer(&self, t: Tid) -> Option<&Node> {
        let &(chain, at) = self.producers.get(&t)?;
        self.open.contains(&chain).then(|| &self.ssa.chains[chain][at].node)
    }

    /// Number of the call whose nodes are being emitted.
    pub(crate) fn call_id(&self) -> u32 {
        self.call
    }

    /// Emits the nodes of call `id` by `emit`, and restores the graph if it fails.
    pub(crate) fn attempt<T>(&mut self, id: u32, emit: impl FnOnce(&mut Lower) -> Result<T, Refuse>) -> Result<T, Refuse> {
        self.call = id;
        let mark = self.mark();
        let result = emit(self);
        if result.is_err() {
            self.rewind(&mark);
        }
        result
    }

    /// The real and imaginary parts `[.., 2]` of a complex tensor.
    ///
    /// # Errors
    /// Fails if no call has set them.
    pub fn pair(&self, t: Tid) -> Result<Tid, Refuse> {
        let pair = self.pairs.get(&t).copied();
        pair.ok_or_else(|| Refuse::Unsupported("real and imaginary parts of a complex tensor that no node can read".to_owned()))
    }

    /// Sets the real and imaginary parts of a complex tensor.
    pub fn set_pair(&mut self, t: Tid, pair: Tid) {
        self.pairs.insert(t, pair);
    }

    /// Adds a slot for the complex tensor with these real and imaginary parts `[.., 2]`. No node
    /// writes the slot.
    pub fn complex(&mut self, pair: Tid) -> Tid {
        let mut dims = self.spec(pair).dims.clone();
        dims.pop();
        let dtype = if self.spec(pair).dtype == DType::F16 { DType::C32 } else { DType::C64 };
        let t = self.slot(Spec { dtype, dims }, Origin::Node);
        self.pairs.insert(t, pair);
        t
    }

    /// Replaces sizes that a rule left open, such as clamps of slices, by the recorded sizes.
    pub(crate) fn state_sizes(&mut self, t: Tid, recorded: &[Expr]) {
        let Some(info) = self.ssa.tensors.get_mut(t.0 as usize).filter(|info| matches!(info.origin, Origin::Node)) else { return };
        for (size, recorded) in info.spec.dims.iter_mut().zip(recorded) {
            let is_fresh = size.as_symbol().is_some_and(|s| s.name().starts_with(FRESH));
            if !is_fresh && size.as_int().is_none() && !recorded.has_opaque() {
                *size = recorded.clone();
            }
        }
    }

    fn mark(&self) -> Mark {
        let nodes = self.ssa.chains.iter().map(Vec::len).collect();
        Mark { nodes, tensors: self.ssa.tensors.len(), values: self.ssa.values.len() }
    }

    fn rewind(&mut self, mark: &Mark) {
        self.ssa.chains.truncate(mark.nodes.len());
        for (chain, &n) in self.ssa.chains.iter_mut().zip(&mark.nodes) {
            chain.truncate(n);
        }
        self.open.retain(|&c| c < mark.nodes.len());
        self.known.truncate(self.open.len());
        let (tensors, values) = (mark.tensors, mark.values);
        let old = |s: &Slot| match s {
            Slot::Tensor(t) => (t.0 as usize) < tensors,
            Slot::Value(v) => (v.0 as usize) < values,
        };
        for scope in &mut self.known {
            scope.retain(|_, slots| slots.iter().all(old));
        }
        self.values.truncate(self.open.len());
        self.values.iter_mut().for_each(|scope| scope.retain(|_, v| (v.0 as usize) < values));
        self.literals.retain(|_, t| (t.0 as usize) < tensors);
        self.producers.retain(|t, _| (t.0 as usize) < tensors);
        self.flags.retain(|t, _| (t.0 as usize) < tensors);
        self.pairs.retain(|t, pair| (t.0.max(pair.0) as usize) < tensors);
        self.ssa.tensors.truncate(tensors);
        self.ssa.values.truncate(values);
    }

    /// Adds a node without simplification, unless an equal one is known; returns all its results.
    pub(crate) fn emit_all(&mut self, mut node: Node) -> Result<Vec<Slot>, Refuse> {
        let is_pure = node.effect() == Effect::Pure;
        let key = format!("{node:?}");
        if is_pure && let Some(slots) = self.known.iter().find_map(|scope| scope.get(&key)) {
            return Ok(slots.clone());
        }
        self.refuse_types(&node, Role::Read)?;
        let slots = self.fill_results(&mut node);
        infer_into(&mut self.ssa, &mut self.n_unknown, &node)?;
        self.refuse_types(&node, Role::Write)?;
        for slot in &slots {
            if let Slot::Value(v) = slot
                && let Some(scope) = self.values.last_mut()
            {
                scope.entry(self.ssa.values[v.0 as usize].clone()).or_insert(*v);
            }
        }
        let (chain, call) = (self.open[self.open.len() - 1], self.call);
        for slot in &slots {
            if let Slot::Tensor(t) = slot {
                self.producers.insert(*t, (chain, self.ssa.chains[chain].len()));
            }
        }
        self.ssa.chains[chain].push(SsaNode { node, call });
        if is_pure && let Some(scope) = self.known.last_mut() {
            scope.insert(key, slots.clone());
        }
        Ok(slots)
    }

    /// Refuses a node that reads or writes an element type without nodes.
    fn refuse_types(&self, node: &Node, role: Role) -> Result<(), Refuse> {
        let mut foreign = None;
        node.walk(&mut |r, slot| {
            if let (true, Slot::Tensor(t)) = (r == role, slot)
                && let Some(info) = self.ssa.tensors.get(t.0 as usize)
                && !info.spec.dtype.is_node_dtype()
            {
                foreign = Some(info.spec.dtype);
            }
        });
        foreign.map_or(Ok(()), |dtype| Err(Refuse::DType(dtype)))
    }

    fn fill_results(&mut self, node: &mut Node) -> Vec<Slot> {
        let mut slots = Vec::new();
        let ssa = &mut self.ssa;
        let blank = || Spec::fixed(DType::F32, &[]);
        node.walk_mut(&mut |role, slot| match (role, slot) {
            (Role::Write, SlotRef::Tensor(t)) if *t == NEW.0 => {
                *t = Tid(ssa.tensors.len() as u32);
                ssa.tensors.push(TensorInfo { spec: blank(), origin: Origin::Node });
                slots.push(Slot::Tensor(*t));
            }
            (Role::Write, SlotRef::Value(v)) if *v == NEW_VALUE.0 => {
                *v = Vid(ssa.values.len() as u32);
                ssa.values.push(Expr::Int(0));
                slots.push(Slot::Value(*v));
            }
            _ => {}
        });
        slots
    }

    /// Runs `body` with a new open chain; returns the chain's number and the body's result.
    ///
    /// To write a slot for readers outside the chain, create it first with [`Lower::slot`] and
    /// [`Origin::Node`].
    pub(crate) fn chain<T>(&mut self, body: impl FnOnce(&mut Lower) -> Result<T, Refuse>) -> Result<(u32, T), Refuse> {
        let chain = self.open_chain();
        let result = body(self);
        self.close_chain();
        Ok((chain, result?))
    }

    /// Opens a chain, which receives calls until [`Lower::close_chain`]. Returns its number.
    pub fn open_chain(&mut self) -> u32 {
        let chain = self.ssa.chains.len();
        self.ssa.chains.push(Vec::new());
        self.reopen_chain(chain as u32);
        chain as u32
    }

    /// Reopens a closed chain; new nodes follow its last node.
    pub fn reopen_chain(&mut self, chain: u32) {
        self.open.push(chain as usize);
        self.known.push(HashMap::new());
        self.values.push(HashMap::new());
    }

    /// Closes the innermost chain.
    pub fn close_chain(&mut self) {
        if self.open.len() > 1 {
            self.open.pop();
            self.known.pop();
            self.values.pop();
        }
    }
}

/// Infers and records the specs of a node's results.
pub(crate) fn infer_into(ssa: &mut SsaGraph, n_unknown: &mut u32, node: &Node) -> Result<(), InferError> {
    node.infer(&mut FlowCx { ssa, n_unknown })
}

/// Inference context on an SSA graph. Results get inferred specs. Sizes that are known only at run
/// time become fresh symbols.
struct FlowCx<'a> {
    ssa: &'a mut SsaGraph,
    n_unknown: &'a mut u32,
}

impl ShapeCx for FlowCx<'_> {
    fn spec(&self, tid: Tid) -> Result<Spec, InferError> {
        self.ssa.tensors.get(tid.0 as usize).map(|t| t.spec.clone()).ok_or(InferError::Unset(tid))
    }

    fn value(&self, vid: Vid) -> Result<Expr, InferError> {
        self.ssa.values.get(vid.0 as usize).cloned().ok_or(InferError::UnsetValue(vid))
    }

    fn set(&mut self, tid: Tid, spec: Spec) {
        if let Some(info) = self.ssa.tensors.get_mut(tid.0 as usize) {
            info.spec = spec;
        }
    }

    fn set_value(&mut self, vid: Vid, value: Expr) {
        if let Some(slot) = self.ssa.values.get_mut(vid.0 as usize) {
            *slot = value;
        }
    }

    fn unknown(&mut self) -> Expr {
        *self.n_unknown += 1;
        Expr::symbol(Symbol::new(&format!("{FRESH}{}", self.n_unknown)))
    }

    /// Bounds of a size, from the program's bounds of its symbols cut to the range of a 32-bit
    /// integer.
    fn bounds(&self, size: &Expr) -> (i64, i64) {
        size.bounds(&|symbol| {
            let range = self.ssa.ranges.get(symbol).copied().unwrap_or_default();
            let (least, most) = (i64::from(i32::MIN), i64::from(i32::MAX));
            (range.min.unwrap_or(least).max(least), range.max.unwrap_or(most).min(most))
        })
    }
}
