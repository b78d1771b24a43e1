//! Plain calls are lowered to nodes, rewritten as several calls, or assigned to a fallback kernel.

use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, Item, OutMeta, Refuse, rule_for};
use flambeau_pt2::{Argument, Graph, Node, SymArg, SymFloat, parse_real};
use flambeau_tensor::{DType, Expr, Real};

use super::{Binding, Trace};
use crate::{
    functionalize::{bare, lowered_target},
    report::{Outcome, Precision},
};

impl<'a> Trace<'a> {
    /// Traces a plain call. An inexpressible call is dropped if nothing reads its results.
    pub(super) fn plain_call(&mut self, graph: &'a Graph, node: &'a Node) {
        if let Some(name) = float_item(node) {
            return self.float_item(node, name);
        }
        if self.float_arithmetic(node) {
            return;
        }
        if self.is_number(graph, node) {
            return self.number(graph, node);
        }
        match self.lower_node(graph, node) {
            Ok(items) => {
                self.bind_results(graph, node, items);
                self.report(node, Outcome::Absorbed);
            }
            Err(_) if !may_write(node) && node.output_names().iter().all(|name| !self.names.used.contains(*name)) => {
                self.lose(node);
                self.report(node, Outcome::Absorbed);
            }
            Err(reason) => self.fail(node, &reason),
        }
    }

    /// Whether the program states all results of a call as functions of sizes, and one result is a
    /// float or no rule computes them.
    fn is_number(&self, graph: &Graph, node: &Node) -> bool {
        let names = node.output_names();
        let stated = |n: &&str| graph.sym_ints.contains_key(*n) || graph.sym_floats.contains_key(*n);
        let has_float = names.iter().any(|n| graph.sym_floats.contains_key(*n));
        !names.is_empty() && names.iter().all(stated) && (has_float || rule_for(bare(&node.target)).is_none())
    }

    /// Binds numbers computed from sizes. A number that nodes cannot compute is an error only if it
    /// is read.
    fn number(&mut self, graph: &'a Graph, node: &'a Node) {
        for name in node.output_names() {
            let value = match (graph.sym_ints.get(name), graph.sym_floats.get(name)) {
                (Some(size), _) => {
                    let size = self.names.expr(size);
                    match size.has_opaque() {
                        true => Binding::absent(format!("the size {size} cannot be computed by graph nodes")),
                        false => Binding::Int(size),
                    }
                }
                (None, Some(float)) => match self.float_value(float) {
                    Ok(t) => Binding::Tensor(self.memory.new_base(t)),
                    Err(reason) => Binding::Absent(reason),
                },
                (None, None) => Binding::absent(format!("nothing is said of `{name}`")),
            };
            self.names.bind(name, value);
        }
        self.report(node, Outcome::Absorbed);
    }

    /// A float computed from sizes, as a tensor of rank 0.
    fn float_value(&mut self, float: &SymFloat) -> Result<Tid, Refuse> {
        let real = match float {
            SymFloat::Known(value) => Some(Real::number(*value)),
            SymFloat::Expr(text) => parse_real(text).ok().flatten(),
        };
        let real = real.and_then(|x| x.substitute(&|s| Some(self.names.expr(&Expr::symbol(s.clone())))));
        match real {
            Some(real) => self.lower.real_tensor(&real),
            None => Err(Refuse::Unsupported("a float that is not made of sizes".to_owned())),
        }
    }

    /// A float read from a tensor stays a tensor of rank 0, which behaves like a number in
    /// arithmetic.
    fn float_item(&mut self, node: &'a Node, name: &str) {
        let source = node.inputs.first().and_then(|i| i.arg.as_tensor()).map(|n| self.names.key(n));
        let value = source.ok_or_else(|| Refuse::Missing("self".to_owned())).and_then(|key| {
            let mut x = self.current(&key)?;
            if self.lower.spec(x).dtype == DType::F64 {
                self.precision = Some(Precision { asked: DType::F64, used: DType::F32 });
                x = self.converted(x, DType::F32, self.calls.len() as u32)?;
            }
            let outputs = vec![OutMeta { dtype: DType::F32, dims: Vec::new(), used: true }];
            let args = vec![("self".to_owned(), Arg::Tensor(x)), ("size".to_owned(), Arg::Ints(Vec::new()))];
            self.lower.call(&Call { target: "aten.view.default".to_owned(), args, outputs }, self.calls.len() as u32)
        });
        match value.and_then(|items| tensor_arg(&items)) {
            Ok(Arg::Tensor(t)) => {
                let value = Binding::Tensor(self.memory.new_base(t));
                self.names.bind(name, value);
                self.report(node, Outcome::Absorbed);
            }
            Ok(_) => self.refuse(node, "it reads no tensor".to_owned()),
            Err(reason) => self.fail(node, &reason),
        }
    }

    pub(super) fn lower_node(&mut self, graph: &Graph, node: &Node) -> Result<Vec<Item>, Refuse> {
        if let Some(items) = self.strided_view(graph, node) {
            return items;
        }
        let mut call = self.call_of(graph, node, &lowered_target(bare(&node.target)))?;
        self.autocast(&mut call)?;
        if call.target.starts_with("quantized_decomposed.") {
            // These operators return f32 scales as 64-bit floats.
            for out in call.outputs.iter_mut().filter(|out| out.used && out.dtype == DType::F64) {
                out.dtype = DType::F32;
                self.precision = Some(Precision { asked: DType::F64, used: DType::F32 });
            }
        }
        if let Some(items) = self.float8(&mut call) {
            return items;
        }
        let foreign =
            node.output_names().into_iter().find_map(|n| graph.foreign_tensors.get(n).filter(|_| self.names.used.contains(n)));
        if let Some(dtype) = foreign {
            return Err(Refuse::Unsupported(format!("its result has element type {dtype}, which has no place in an MLX graph")));
        }
        let id = self.calls.len() as u32;
        let before = self.fallback.calls.len();
        if let Some(items) = self.unbound_lengths(&call, id) {
            if items.is_err() {
                self.fallback.calls.truncate(before);
            }
            return items;
        }
        if let Some(items) = self.ranked(graph, node, &call, id) {
            return Ok(items);
        }
        self.lower_call(&call, id)
    }

    /// Splits a call into a data-dependent kernel call and a call that nodes can express.
    fn unbound_lengths(&mut self, call: &Call, id: u32) -> Option<Result<Vec<Item>, Refuse>> {
        let first = call.outputs.first()?;
        match (&call.target[..], call.arg("repeats")) {
            ("aten.repeat_interleave.self_Tensor", Some(Arg::Tensor(t))) if self.lower.graph().constant(*t).is_none() => {
                Some(self.repeat_by_tensor(call, id))
            }
            ("aten.argwhere.default", _) => {
                let inner = Call { target: "aten.nonzero.default".to_owned(), ..call.clone() };
                Some(self.lower_call(&inner, id))
            }
            ("aten.nonzero_numpy.default" | "aten.where.default", _) => {
                let rank = Expr::Int(call.outputs.len() as i64);
                let outputs = vec![OutMeta { dtype: DType::I64, dims: vec![first.dims.first()?.clone(), rank], used: true }];
                let args = match self.rank_one(call, id) {
                    Ok(x) => vec![("self".to_owned(), x)],
                    Err(reason) => return Some(Err(reason)),
                };
                let inner = Call { target: "aten.nonzero.default".to_owned(), args, outputs };
                Some(self.lower_call(&inner, id).and_then(|items| {
                    let args = vec![("self".to_owned(), tensor_arg(&items)?), ("dim".to_owned(), Arg::Int(Expr::Int(1)))];
                    let call = Call { target: "aten.unbind.int".to_owned(), args, outputs: call.outputs.clone() };
                    self.lower_call(&call, id)
                }))
            }
            _ => None,
        }
    }

    /// The operand, with rank 0 reshaped to rank 1.
    fn rank_one(&mut self, call: &Call, id: u32) -> Result<Arg, Refuse> {
        let Some((_, Arg::Tensor(x))) = call.args.first() else { return Err(Refuse::Missing("self".to_owned())) };
        let (x, spec) = (*x, self.lower.spec(*x).clone());
        if spec.rank() > 0 {
            return Ok(Arg::Tensor(x));
        }
        let size = Arg::Ints(vec![Expr::Int(1)]);
        let args = vec![("self".to_owned(), Arg::Tensor(x)), ("size".to_owned(), size)];
        let outputs = vec![OutMeta { dtype: spec.dtype, dims: vec![Expr::Int(1)], used: true }];
        tensor_arg(&self.lower_call(&Call { target: "aten.view.default".to_owned(), args, outputs }, id)?)
    }

    fn repeat_by_tensor(&mut self, call: &Call, id: u32) -> Result<Vec<Item>, Refuse> {
        let (mut x, repeats, out) = (call.tensor("self")?, call.tensor("repeats")?, call.out(0)?.clone());
        let rank = self.lower.spec(x).rank();
        let axis = match call.arg("dim") {
            Some(_) => flambeau_tensor::normalize_axis(call.int("dim")?, rank).ok_or_else(|| Refuse::Missing("dim".to_owned()))?,
            None => {
                let numel = self.lower.spec(x).numel();
                let args = vec![("self".to_owned(), Arg::Tensor(x)), ("size".to_owned(), Arg::Ints(vec![numel.clone()]))];
                let spec = self.lower.spec(x).dtype;
                let outputs = vec![OutMeta { dtype: spec, dims: vec![numel], used: true }];
                x = match tensor_arg(&self.lower.call(&Call { target: "aten.view.default".to_owned(), args, outputs }, id)?)? {
                    Arg::Tensor(t) => t,
                    _ => x,
                };
                0
            }
        };
        let count = out.dims.get(axis).cloned().ok_or_else(|| Refuse::Missing("dim".to_owned()))?;
        let outputs = vec![OutMeta { dtype: DType::I64, dims: vec![count], used: true }];
        let args = vec![("repeats".to_owned(), Arg::Tensor(repeats))];
        let index = self.lower_call(&Call { target: "aten.repeat_interleave.Tensor".to_owned(), args, outputs }, id)?;
        let args = vec![
            ("self".to_owned(), Arg::Tensor(x)),
            ("dim".to_owned(), Arg::Int(Expr::Int(axis as i64))),
            ("index".to_owned(), tensor_arg(&index)?),
        ];
        self.lower_call(&Call { target: "aten.index_select.default".to_owned(), args, outputs: vec![out] }, id)
    }

    /// Lowers a call to nodes, or falls back to a kernel if that is allowed and possible.
    pub(super) fn lower_call(&mut self, call: &Call, id: u32) -> Result<Vec<Item>, Refuse> {
        if self.is_complex(call) {
            return self.complex_call(call, id);
        }
        if let Some(narrow) = self.narrowed(call, id)? {
            return self.lower_call(&narrow, id);
        }
        let reason = match self.fallback.is_forced(&call.target) {
            true => Refuse::Unsupported("it was asked to stay outside of delegates".to_owned()),
            false => match self.lower.call(call, id) {
                Err(reason) => reason,
                items => return items,
            },
        };
        if let Some(items) = self.by_positions(call, id) {
            return items.map_err(|_| reason);
        }
        if let Some(items) = self.computed(call) {
            return Ok(items);
        }
        let n_inputs = self.interface.inputs.len();
        match self.fallback.call(&mut self.lower, call, id, n_inputs, reason) {
            Err(reason) => self.in_f32(call, id).unwrap_or(Err(reason)),
            items => items,
        }
    }
}

/// The name of a float that a call reads from a tensor.
fn float_item(node: &Node) -> Option<&str> {
    match (bare(&node.target), node.outputs.first()?) {
        ("aten.item.default" | "aten._local_scalar_dense.default", Argument::SymFloat(SymArg::Name(name))) => Some(name),
        _ => None,
    }
}

/// Whether an operator that nothing else is known of may write to its operands. PyTorch's operators
/// tell by their names, others may do so if they return nothing.
fn may_write(node: &Node) -> bool {
    let (namespace, name) = bare(&node.target).split_once('.').unwrap_or_default();
    let (base, overload) = name.split_once('.').unwrap_or((name, ""));
    let named = base.ends_with('_') && !base.ends_with("__") || overload.ends_with("out");
    let reads_tensors = node.inputs.iter().any(|input| matches!(input.arg, Argument::Tensor(_) | Argument::Tensors(_)));
    let returns_nothing = node.outputs.iter().all(|out| matches!(out, Argument::None));
    let is_foreign = !matches!(namespace, "aten" | "profiler");
    reads_tensors && (named || is_foreign && returns_nothing)
}

/// The first result as an argument.
pub(super) fn tensor_arg(items: &[Item]) -> Result<Arg, Refuse> {
    match items.first() {
        Some(Item::Tensor(t)) => Ok(Arg::Tensor(*t)),
        _ => Err(Refuse::Missing("self".to_owned())),
    }
}
