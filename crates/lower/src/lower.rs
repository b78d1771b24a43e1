//! The builder that rules write to.

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

/// How symbols begin that inference makes up.
const FRESH: char = '?';

/// Grows an [`SsaGraph`] call by call. Equal nodes are emitted once, and nodes that change nothing not at all.
#[derive(Debug, Default)]
pub struct Lower {
    ssa: SsaGraph,
    /// Indices of the chains being written, innermost last.
    open: Vec<usize>,
    /// What each open chain computes already: node without results → results.
    known: Vec<HashMap<String, Vec<Slot>>>,
    /// Value slots by content, for those that each open chain sets.
    values: Vec<HashMap<Expr, Vid>>,
    /// Constants by type, shape and literal bytes.
    literals: HashMap<(DType, Shape, Vec<u8>), Tid>,
    /// Chain and place of the node that writes a slot.
    producers: HashMap<Tid, (usize, usize)>,
    /// Integers that are zero exactly if a rank-0 tensor is, so that the tensor need not be read.
    flags: HashMap<Tid, Int>,
    /// Slots of complex tensors, which nodes do not have: the real and imaginary parts `[.., 2]` of each, where nodes can read them.
    pairs: HashMap<Tid, Tid>,
    n_unknown: u32,
    call: u32,
}

/// A state to go back to.
#[derive(Debug)]
struct Mark {
    nodes: Vec<usize>,
    tensors: usize,
    values: usize,
}

impl Lower {
    /// An empty graph with one open chain.
    pub fn new() -> Lower {
        let ssa = SsaGraph { chains: vec![Vec::new()], ..SsaGraph::default() };
        Lower { ssa, open: vec![0], known: vec![HashMap::new()], values: vec![HashMap::new()], ..Lower::default() }
    }

    /// The graph so far.
    pub fn graph(&self) -> &SsaGraph {
        &self.ssa
    }

    /// The finished graph.
    pub fn into_graph(self) -> SsaGraph {
        self.ssa
    }

    /// States the bounds of a symbol.
    pub fn set_range(&mut self, symbol: Symbol, range: Range) {
        self.ssa.ranges.insert(symbol, range);
    }

    /// A slot that is not written by a node.
    pub fn slot(&mut self, spec: Spec, origin: Origin) -> Tid {
        self.ssa.tensors.push(TensorInfo { spec, origin });
        Tid(self.ssa.tensors.len() as u32 - 1)
    }

    /// A slot for an integer argument with that content.
    pub fn value_input(&mut self, argument: u32, content: Expr) -> Vid {
        let vid = Vid(self.ssa.values.len() as u32);
        self.ssa.values.push(content.clone());
        self.ssa.value_inputs.push((argument, vid));
        self.values[0].insert(content, vid);
        vid
    }

    /// A constant slot. Literals with equal type, shape and bytes share one.
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

    /// States what a slot holds once the chains that write it have run.
    pub(crate) fn set_spec(&mut self, t: Tid, spec: Spec) {
        if let Some(info) = self.ssa.tensors.get_mut(t.0 as usize) {
            info.spec = spec;
        }
    }

    /// An integer that is zero exactly if a rank-0 tensor is.
    pub(crate) fn flag(&self, t: Tid) -> Option<Int> {
        self.flags.get(&t).copied()
    }

    /// States that a rank-0 tensor is zero exactly if an integer is.
    pub(crate) fn set_flag(&mut self, t: Tid, value: Int) {
        self.flags.insert(t, value);
    }

    /// The value slot that an open chain sets to a size.
    pub(crate) fn known_value(&self, size: &Expr) -> Option<Vid> {
        self.values.iter().rev().find_map(|scope| scope.get(size)).copied()
    }

    /// States the content of a value slot that only running can tell.
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

    /// Lowers one call; `id` is its number for reports. The results have the types that the program states.
    ///
    /// # Errors
    /// Why the call cannot be expressed in nodes; the graph is unchanged then.
    pub fn call(&mut self, call: &Call, id: u32) -> Result<Vec<Item>, Refuse> {
        if complex::is_complex(self, call) {
            self.call = id;
            return self.attempt(|cx| complex::lower(cx, call).and_then(|items| cx.conform(items, call)));
        }
        let row = rule_for(&call.target).ok_or_else(|| refusal(&call.target).map_or(Refuse::NoRule, Refuse::Kind))?;
        // Types that graphs lack exist as constants: views and casts of them are constants too.
        let carried = |t: &Tid| Some(self.spec(*t).dtype).filter(|_| self.ssa.constant(*t).is_none());
        let mut reads = call.args.iter().filter_map(|(_, a)| if let Arg::Tensor(t) = a { carried(t) } else { None });
        if let Some(dtype) = reads.find(|d| !d.is_node_dtype()) {
            return Err(Refuse::DType(dtype));
        }
        self.call = id;
        self.attempt(|cx| (row.rule)(cx, call).and_then(|items| cx.conform(items, call)))
    }

    /// Lowers a call that is a part of another one.
    pub(crate) fn inner_call(&mut self, call: &Call) -> Result<Vec<Item>, Refuse> {
        self.call(call, self.call)
    }

    /// Runs `emit`, and leaves the graph unchanged if it fails.
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
    /// If nothing has stated them.
    pub fn pair(&self, t: Tid) -> Result<Tid, Refuse> {
        let pair = self.pairs.get(&t).copied();
        pair.ok_or_else(|| Refuse::Unsupported("real and imaginary parts of a complex tensor that no node can read".to_owned()))
    }

    /// States the real and imaginary parts of a complex tensor.
    pub fn set_pair(&mut self, t: Tid, pair: Tid) {
        self.pairs.insert(t, pair);
    }

    /// The complex tensor with these real and imaginary parts `[.., 2]`. Its slot is one that no node writes.
    pub fn complex(&mut self, pair: Tid) -> Tid {
        let mut dims = self.spec(pair).dims.clone();
        dims.pop();
        let dtype = if self.spec(pair).dtype == DType::F16 { DType::C32 } else { DType::C64 };
        let t = self.slot(Spec { dtype, dims }, Origin::Node);
        self.pairs.insert(t, pair);
        t
    }

    /// Casts results to the types that the program records, and refuses results of another shape.
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

    /// What the program records of a result's sizes holds where the rule left them open, as clamps of slices do.
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

    /// Adds a node whose results are written as [`NEW`]; returns its first tensor result.
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

    /// Adds a node whose result is an integer written as [`NEW_VALUE`].
    pub(crate) fn emit_value(&mut self, node: impl Into<Node>) -> Result<Vid, Refuse> {
        match self.emit_all(node.into())?.first() {
            Some(Slot::Value(v)) => Ok(*v),
            _ => unsupported("the node has no integer result"),
        }
    }

    /// Adds a node as it is, unless an equal one is known; returns all its results.
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

    /// Refuses a node that reads or writes elements of a type that graphs lack.
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

    /// Runs `body` with a new chain open and returns the chain's number with what `body` returned.
    ///
    /// Slots that the body needs to write for others to read are made before by [`Lower::slot`] with [`Origin::Node`].
    pub(crate) fn chain<T>(&mut self, body: impl FnOnce(&mut Lower) -> Result<T, Refuse>) -> Result<(u32, T), Refuse> {
        let chain = self.open_chain();
        let result = body(self);
        self.close_chain();
        Ok((chain, result?))
    }

    /// Begins a chain: calls are lowered into it until [`Lower::close_chain`]. Returns its number.
    pub fn open_chain(&mut self) -> u32 {
        let chain = self.ssa.chains.len();
        self.ssa.chains.push(Vec::new());
        self.reopen_chain(chain as u32);
        chain as u32
    }

    /// Continues a chain that was closed, at its end.
    pub fn reopen_chain(&mut self, chain: u32) {
        self.open.push(chain as usize);
        self.known.push(HashMap::new());
        self.values.push(HashMap::new());
    }

    /// Ends the innermost chain.
    pub fn close_chain(&mut self) {
        if self.open.len() > 1 {
            self.open.pop();
            self.known.pop();
            self.values.pop();
        }
    }

    /// Puts the contents of `from` into `to`, a slot made by [`Lower::slot`].
    ///
    /// # Errors
    /// As for every node: if `from` holds nothing.
    pub fn copy(&mut self, from: Tid, to: Tid) -> Result<(), Refuse> {
        self.emit_all(Node::IdCopy(IdCopy { x: In(from), out: Out(to) })).map(drop)
    }

    /// Runs chain `then` if `condition`, a tensor of one boolean or integer, is not zero, else chain `otherwise`.
    ///
    /// # Errors
    /// If the condition has another type or more elements.
    pub fn branch(&mut self, condition: Tid, then: u32, otherwise: u32) -> Result<(), Refuse> {
        let condition = Int::Vid(self.emit_value(ItemInt { x: In(condition), out: NEW_VALUE })?);
        let (then_chain_idx, else_chain_idx) = (ChainId(then), ChainId(otherwise));
        self.emit_all(Node::If(If { cond: condition, then_chain_idx, else_chain_idx })).map(drop)
    }

    /// A rank-0 constant of that value and type.
    pub(crate) fn number(&mut self, value: f64, dtype: DType) -> Result<Tid, Refuse> {
        self.filled(value, dtype, &[])
    }

    /// A constant of that shape with every element equal.
    pub(crate) fn filled(&mut self, value: f64, dtype: DType, shape: &[usize]) -> Result<Tid, Refuse> {
        let values = vec![value; shape.iter().product()];
        self.numbers(&format!("_scalar_{value}_{dtype}"), &values, dtype, shape)
    }

    /// A rank-0 integer constant; bits beyond the type are dropped.
    pub(crate) fn integer(&mut self, value: i64, dtype: DType) -> Result<Tid, Refuse> {
        let wide = Tensor::from_slice(&[value], &[]).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        let narrow = flambeau_tensor::cast(&wide, dtype).map_err(|_| Refuse::DType(dtype))?;
        Ok(self.literal(&format!("_scalar_{value}_{dtype}"), narrow))
    }

    /// A constant with these integers.
    pub(crate) fn integers(&mut self, name: &str, values: &[i64], dtype: DType) -> Result<Tid, Refuse> {
        let wide = Tensor::from_slice(values, &[values.len()]).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        let narrow = flambeau_tensor::cast(&wide, dtype).map_err(|_| Refuse::DType(dtype))?;
        Ok(self.literal(name, narrow))
    }

    /// A constant with these floats in row-major order.
    pub(crate) fn floats(&mut self, name: &str, values: &[f32], shape: &[usize]) -> Result<Tid, Refuse> {
        let tensor = Tensor::from_slice(values, shape).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        Ok(self.literal(name, tensor))
    }

    /// A constant with these numbers.
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

    /// A tensor of that type: a tensor argument cast to it, a number as a rank-0 constant, a symbolic integer as a fill.
    pub(crate) fn operand(&mut self, call: &Call, param: &str, dtype: DType) -> Result<Tid, Refuse> {
        match call.arg(param) {
            Some(Arg::Tensor(t)) => self.cast(*t, dtype),
            Some(Arg::Int(e)) if e.as_int().is_none() => {
                let v = Float::Vid(self.vid(e)?);
                self.emit(Full { out: NEW, shape: Vec::new(), v, scalar_type: dtype })
            }
            // Not every integer of 64 bits is a float.
            Some(Arg::Int(Expr::Int(v))) if !dtype.is_float() => self.integer(*v, dtype),
            Some(_) => {
                let value = call.float_or(param, 0.0)?;
                self.number(value, dtype)
            }
            None => Err(Refuse::Missing(param.to_owned())),
        }
    }

    /// `t` in that element type.
    pub(crate) fn cast(&mut self, t: Tid, dtype: DType) -> Result<Tid, Refuse> {
        self.emit(AsType { x: In(t), out: NEW, scalar_type: dtype })
    }

    /// `t` with these sizes, all of them stated.
    pub(crate) fn reshape(&mut self, t: Tid, dims: &[Expr]) -> Result<Tid, Refuse> {
        if *self.spec(t).dims == *dims {
            return Ok(t);
        }
        // One unknown size is left to the engine to infer, which saves computing it.
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

    /// `t` with its axes permuted.
    pub(crate) fn permute(&mut self, t: Tid, perm: &[usize]) -> Result<Tid, Refuse> {
        self.emit(Transpose { x: In(t), out: NEW, perm: perm.iter().map(|&p| p as i32).collect() })
    }

    /// `t` with an axis of size 1 inserted.
    pub(crate) fn unsqueeze(&mut self, t: Tid, axis: usize) -> Result<Tid, Refuse> {
        self.emit(ExpandDims { x: In(t), out: NEW, axis: axis as i32 })
    }

    /// The axis an argument names, counted from the front.
    pub(crate) fn axis(&self, call: &Call, param: &str, default: i64, rank: usize) -> Result<usize, Refuse> {
        let axis = call.int_or(param, default)?;
        flambeau_tensor::normalize_axis(axis, rank).ok_or(Refuse::Infer(InferError::Axis { axis, rank }))
    }
}

/// Records what a node's results hold.
pub(crate) fn infer_into(ssa: &mut SsaGraph, n_unknown: &mut u32, node: &Node) -> Result<(), InferError> {
    node.infer(&mut FlowCx { ssa, n_unknown })
}

/// Inference on an SSA graph: results get the specs that rules find; what only running can tell is a fresh symbol.
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

    /// What the program states of its symbols. Each is a 32-bit integer, whatever else is known.
    fn bounds(&self, size: &Expr) -> (i64, i64) {
        size.bounds(&|symbol| {
            let range = self.ssa.ranges.get(symbol).copied().unwrap_or_default();
            let (least, most) = (i64::from(i32::MIN), i64::from(i32::MAX));
            (range.min.unwrap_or(least).max(least), range.max.unwrap_or(most).min(most))
        })
    }
}
