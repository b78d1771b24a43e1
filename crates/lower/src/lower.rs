//! [`Lower`], the graph builder that rules write to.

use std::{collections::HashMap, sync::Arc};

use flambeau_ir::{
    AsType, ChainId, Effect, ExpandDims, Float, Full, IdCopy, If, In, Infer, InferError, Int, ItemInt, Node, Out, OutVid, Reshape,
    Role, ShapeCx, Slot, SlotRef, Spec, Tid, Transpose, Vid,
};
use flambeau_tensor::{AlignedBytes, DType, Expr, Shape, Symbol, Tensor};

use crate::{
    Arg, Call, ConstExpr, Constant, Item, Origin, Range, Refuse, TensorInfo,
    call::unsupported,
    refusal,
    rules::{complex, rule_for},
    simplify::simplify,
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

    /// Records the content of a value slot that only a run can tell.
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

    /// Lowers one call; `id` is its number for reports. The results have the types that the program
    /// records.
    ///
    /// # Errors
    /// Returns the reason if nodes cannot express the call; the graph is unchanged then.
    pub fn call(&mut self, call: &Call, id: u32) -> Result<Vec<Item>, Refuse> {
        if complex::is_complex(self, call) {
            self.call = id;
            return self.attempt(|cx| complex::lower(cx, call).and_then(|items| cx.conform(items, call)));
        }
        let row = rule_for(&call.target).ok_or_else(|| refusal(&call.target).map_or(Refuse::NoRule, Refuse::Kind))?;
        // Element types without nodes exist only as constants: views and casts of them are
        // constants too.
        let carried = |t: &Tid| Some(self.spec(*t).dtype).filter(|_| self.ssa.constant(*t).is_none());
        let mut reads = call.args.iter().filter_map(|(_, a)| if let Arg::Tensor(t) = a { carried(t) } else { None });
        if let Some(dtype) = reads.find(|d| !d.is_node_dtype()) {
            return Err(Refuse::DType(dtype));
        }
        self.call = id;
        let lowered = self.attempt(|cx| (row.rule)(cx, call).and_then(|items| cx.conform(items, call)));
        lowered.or_else(|reason| self.attempt(|cx| cx.empty_results(call, row.operator.schema())).map_err(|_| reason))
    }

    /// Lowers a call that is a part of the current call.
    pub(crate) fn inner_call(&mut self, call: &Call) -> Result<Vec<Item>, Refuse> {
        self.call(call, self.call)
    }

    /// Runs `emit`, and restores the graph if it fails.
    fn attempt<T>(&mut self, emit: impl FnOnce(&mut Lower) -> Result<T, Refuse>) -> Result<T, Refuse> {
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

    /// Casts results to the recorded types, and refuses results of another shape.
    fn conform(&mut self, mut items: Vec<Item>, call: &Call) -> Result<Vec<Item>, Refuse> {
        let mut i = 0;
        for item in &mut items {
            match item {
                Item::Tensor(t) => *t = self.conform_one(*t, call, &mut i)?,
                Item::Tensors(list) => {
                    for t in list {
                        *t = self.conform_one(*t, call, &mut i)?;
                    }
                }
                Item::None => i += 1,
                Item::Int(_) => {}
            }
        }
        Ok(items)
    }

    fn conform_one(&mut self, t: Tid, call: &Call, i: &mut usize) -> Result<Tid, Refuse> {
        let Some(out) = call.outputs.get(*i) else { return Ok(t) };
        *i += 1;
        let dims = &self.spec(t).dims;
        let differs = dims.len() != out.dims.len() || dims.iter().zip(&out.dims).any(|(a, b)| a.known_eq(b) == Some(false));
        if differs && out.used {
            return unsupported(format!("the rule for it gives shape {dims:?} where the program has {:?}", out.dims));
        }
        if !out.used {
            return Ok(t);
        }
        let t = if self.spec(t).dtype == out.dtype { t } else { self.cast(t, out.dtype)? };
        self.state_sizes(t, &out.dims);
        Ok(t)
    }

    /// Replaces sizes that a rule left open, such as clamps of slices, by the recorded sizes.
    fn state_sizes(&mut self, t: Tid, recorded: &[Expr]) {
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

    /// Adds a node with results written as [`NEW`]; returns its first tensor result.
    pub(crate) fn emit(&mut self, node: impl Into<Node>) -> Result<Tid, Refuse> {
        let node = node.into();
        if let Some(t) = simplify(self, &node)? {
            return Ok(t);
        }
        match self.emit_all(node)?.first() {
            Some(Slot::Tensor(t)) => Ok(*t),
            _ => unsupported("the node has no tensor result"),
        }
    }

    /// Adds a node with an integer result written as [`NEW_VALUE`].
    pub(crate) fn emit_value(&mut self, node: impl Into<Node>) -> Result<Vid, Refuse> {
        match self.emit_all(node.into())?.first() {
            Some(Slot::Value(v)) => Ok(*v),
            _ => unsupported("the node has no integer result"),
        }
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

    /// Copies `from` into `to`, a slot made by [`Lower::slot`].
    ///
    /// # Errors
    /// Fails if `from` has no value.
    pub fn copy(&mut self, from: Tid, to: Tid) -> Result<(), Refuse> {
        self.emit_all(Node::IdCopy(IdCopy { x: In(from), out: Out(to) })).map(drop)
    }

    /// Runs chain `then` if `condition`, a tensor of one boolean or integer, is not zero, else
    /// chain `otherwise`.
    ///
    /// # Errors
    /// Fails if the condition has another type or more elements.
    pub fn branch(&mut self, condition: Tid, then: u32, otherwise: u32) -> Result<(), Refuse> {
        let condition = Int::Vid(self.emit_value(ItemInt { x: In(condition), out: NEW_VALUE })?);
        let (then_chain_idx, else_chain_idx) = (ChainId(then), ChainId(otherwise));
        self.emit_all(Node::If(If { cond: condition, then_chain_idx, else_chain_idx })).map(drop)
    }

    /// Adds a rank-0 constant.
    pub(crate) fn number(&mut self, value: f64, dtype: DType) -> Result<Tid, Refuse> {
        self.filled(value, dtype, &[])
    }

    /// Adds a constant with all elements equal.
    pub(crate) fn filled(&mut self, value: f64, dtype: DType, shape: &[usize]) -> Result<Tid, Refuse> {
        let values = vec![value; shape.iter().product()];
        self.numbers(&format!("_scalar_{value}_{dtype}"), &values, dtype, shape)
    }

    /// Adds a rank-0 integer constant; bits beyond the type are dropped.
    pub(crate) fn integer(&mut self, value: i64, dtype: DType) -> Result<Tid, Refuse> {
        let wide = Tensor::from_slice(&[value], &[]).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        let narrow = flambeau_tensor::cast(&wide, dtype).map_err(|_| Refuse::DType(dtype))?;
        Ok(self.literal(&format!("_scalar_{value}_{dtype}"), narrow))
    }

    /// Adds a vector of integers as a constant.
    pub(crate) fn integers(&mut self, name: &str, values: &[i64], dtype: DType) -> Result<Tid, Refuse> {
        let wide = Tensor::from_slice(values, &[values.len()]).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        let narrow = flambeau_tensor::cast(&wide, dtype).map_err(|_| Refuse::DType(dtype))?;
        Ok(self.literal(name, narrow))
    }

    /// Adds a constant of these floats in row-major order.
    pub(crate) fn floats(&mut self, name: &str, values: &[f32], shape: &[usize]) -> Result<Tid, Refuse> {
        let tensor = Tensor::from_slice(values, shape).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        Ok(self.literal(name, tensor))
    }

    /// Adds a constant of these numbers in row-major order.
    pub(crate) fn numbers(&mut self, name: &str, values: &[f64], dtype: DType, shape: &[usize]) -> Result<Tid, Refuse> {
        let wide = Tensor::from_slice(values, shape).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        let narrow = flambeau_tensor::cast(&wide, dtype).map_err(|_| Refuse::DType(dtype))?;
        Ok(self.literal(name, narrow))
    }

    fn literal(&mut self, name: &str, tensor: Tensor) -> Tid {
        let bytes = AlignedBytes::copy_of(tensor.bytes()).into_bytes();
        let shape = Shape::from_slice(tensor.shape());
        self.constant(Constant { name: name.to_owned(), dtype: tensor.dtype(), shape, expr: ConstExpr::Literal(bytes) })
    }

    /// Reads an argument as a tensor of element type `dtype`. Casts a tensor, makes a number a
    /// rank-0 constant, and fills a tensor with a symbolic integer.
    pub(crate) fn operand(&mut self, call: &Call, param: &str, dtype: DType) -> Result<Tid, Refuse> {
        match call.arg(param) {
            Some(Arg::Tensor(t)) => self.cast(*t, dtype),
            Some(Arg::Int(e)) if e.as_int().is_none() => {
                let v = Float::Vid(self.vid(e)?);
                self.emit(Full { out: NEW, shape: Vec::new(), v, scalar_type: dtype })
            }
            // A float cannot represent every 64-bit integer.
            Some(Arg::Int(Expr::Int(v))) if !dtype.is_float() => self.integer(*v, dtype),
            Some(_) => {
                let value = call.float_or(param, 0.0)?;
                self.number(value, dtype)
            }
            None => Err(Refuse::Missing(param.to_owned())),
        }
    }

    /// Casts `t` to an element type.
    pub(crate) fn cast(&mut self, t: Tid, dtype: DType) -> Result<Tid, Refuse> {
        self.emit(AsType { x: In(t), out: NEW, scalar_type: dtype })
    }

    /// Reshapes `t` to these sizes.
    pub(crate) fn reshape(&mut self, t: Tid, dims: &[Expr]) -> Result<Tid, Refuse> {
        if *self.spec(t).dims == *dims {
            return Ok(t);
        }
        // The engine infers a single unknown size, so no node computes it.
        let unknown: Vec<usize> = (0..dims.len()).filter(|&i| dims[i].as_int().is_none()).collect();
        let inferred = match unknown[..] {
            [only] if dims.iter().all(|d| d.as_int() != Some(0)) => Some(only),
            _ => None,
        };
        let size = |(i, d): (usize, &Expr)| if inferred == Some(i) { Ok(Int::Lit(-1)) } else { self.int(d) };
        let shape = dims.iter().enumerate().map(size).collect::<Result<_, _>>()?;
        let out = self.emit(Reshape { x: In(t), out: NEW, shape })?;
        Ok(out)
    }

    /// Permutes the axes of `t`.
    pub(crate) fn permute(&mut self, t: Tid, perm: &[usize]) -> Result<Tid, Refuse> {
        self.emit(Transpose { x: In(t), out: NEW, perm: perm.iter().map(|&p| p as i32).collect() })
    }

    /// Inserts an axis of size 1 into `t`.
    pub(crate) fn unsqueeze(&mut self, t: Tid, axis: usize) -> Result<Tid, Refuse> {
        self.emit(ExpandDims { x: In(t), out: NEW, axis: axis as i32 })
    }

    /// The axis that an argument selects, counted from the front.
    pub(crate) fn axis(&self, call: &Call, param: &str, default: i64, rank: usize) -> Result<usize, Refuse> {
        let axis = call.int_or(param, default)?;
        flambeau_tensor::normalize_axis(axis, rank).ok_or(Refuse::Infer(InferError::Axis { axis, rank }))
    }
}

/// Infers and records the specs of a node's results.
pub(crate) fn infer_into(ssa: &mut SsaGraph, n_unknown: &mut u32, node: &Node) -> Result<(), InferError> {
    node.infer(&mut FlowCx { ssa, n_unknown })
}

/// Inference context on an SSA graph: results get inferred specs; sizes that only a run can tell
/// become fresh symbols.
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
