//! Traces an exported program: every value becomes a slot of an SSA graph.
//!
//! Captured graphs write to buffers and to views of them. Each aliasing value records the call that
//! created it and the viewed value. A write gives the base a new version, and a later read
//! recreates the view from the new contents. Therefore the graph has no aliases, and a buffer's
//! last version is its state after a run.

mod alias;
mod autocast;
mod bind;
mod calls;
mod complex;
mod conditions;
mod control;
mod floats;
mod foreign;
mod masks;
mod names;
mod places;
mod promoted;
mod ranked;
mod repeat;
mod vmap;
mod written;

use std::collections::HashSet;

use flambeau_ir::{Slot, Tid, Vid};
use flambeau_lower::{Arg, Call, Item, Lower, OutMeta, Range, Refuse};
use flambeau_pt2::{Argument, Exported, Graph, Node, SymArg, View};
use flambeau_tensor::{DType, Expr};

use self::{
    alias::{Memory, TensorValue},
    names::{Binding, Names},
};
use crate::{
    Error, Options,
    classify::{CallKind, classify},
    error::ProgramError,
    fallback::Fallback,
    functionalize::{bare, is_view},
    report::{CallReport, Outcome, Precision},
    usage,
    vmap_mark::VmapMark,
    weights::Weights,
};

/// A mutable buffer.
#[derive(Clone, Debug)]
pub(crate) struct Buffer<'a> {
    pub(crate) name: String,
    pub(crate) before: Tid,
    pub(crate) initial: &'a View,
    /// The graph value with its contents, once bound.
    value: Option<String>,
}

/// An input of the method, in the order of the program's user inputs.
#[derive(Clone, Debug)]
pub(crate) enum MethodInput {
    Tensor(Tid),
    Int { slot: Vid, content: Expr },
    Constant(Argument),
}

/// An output of the method.
#[derive(Clone, Debug)]
pub(crate) enum MethodOutput {
    /// The graph's result with this number.
    Result(usize),
    Constant(Argument),
}

/// Inputs and outputs of the method.
#[derive(Debug, Default)]
pub(crate) struct Interface {
    pub(crate) inputs: Vec<MethodInput>,
    pub(crate) outputs: Vec<MethodOutput>,
    /// Slots that a run returns, in order.
    results: Vec<Slot>,
    /// Tensor inputs: name, slot and base.
    input_bases: Vec<(String, Tid, usize)>,
}

/// State that persists between runs.
#[derive(Debug)]
pub(crate) struct State<'a> {
    pub(crate) buffers: Vec<Buffer<'a>>,
    /// Stored tensors that at least one method writes.
    written: HashSet<&'a View>,
}

/// A traced program.
#[derive(Debug)]
pub(crate) struct Trace<'a> {
    exported: &'a Exported,
    pub(crate) lower: Lower,
    pub(crate) weights: Weights<'a>,
    names: Names<'a>,
    memory: Memory<'a>,
    pub(crate) state: State<'a>,
    pub(crate) interface: Interface,
    pub(crate) fallback: Fallback,
    /// The outcome of each call so far.
    pub(crate) calls: Vec<CallReport>,
    /// The type in which products compute in the current region of autocast.
    autocast: Option<DType>,
    /// Element types of the call that is being lowered, where they differ from the program's.
    precision: Option<Precision>,
}

impl<'a> Trace<'a> {
    /// Traces a whole program. Buffers named in `state` are mutable. `calls` lists calls that
    /// cannot be lowered, with their reasons.
    pub(crate) fn run(exported: &'a Exported, options: &Options, state: &HashSet<String>) -> Result<Trace<'a>, Error> {
        let buffers = usage::stored_buffers(exported).filter(|(name, _)| state.contains(*name)).map(|(_, view)| view);
        let mut trace = Trace {
            exported,
            lower: Lower::new(),
            weights: Weights::new(options.threads, options.statistics.clone()),
            names: Names::new(usage::used_names(&exported.graph)),
            memory: Memory::default(),
            state: State { buffers: Vec::new(), written: usage::mutated_weights(exported).into_iter().chain(buffers).collect() },
            interface: Interface::default(),
            fallback: Fallback::new(options),
            calls: Vec::new(),
            autocast: None,
            precision: None,
        };
        for (symbol, &(min, max)) in &exported.ranges {
            trace.lower.set_range(symbol.clone(), Range { min, max });
        }
        for (argument, spec) in exported.graph.inputs.iter().zip(&exported.signature.inputs) {
            trace.bind_input(argument, spec)?;
        }
        trace.run_graph(&exported.graph)?;
        trace.bind_outputs()?;
        Ok(trace)
    }

    /// Returns the graph with its results and buffers set.
    pub(crate) fn into_graph(mut self) -> Result<(flambeau_lower::SsaGraph, Trace<'a>), Error> {
        let mut buffers = Vec::with_capacity(self.state.buffers.len());
        for buffer in self.state.buffers.clone() {
            let value = buffer.value.ok_or(ProgramError::NotAnInput(buffer.name))?;
            buffers.push((buffer.before, self.current(&value).map_err(lost)?));
        }
        let mut ssa = std::mem::take(&mut self.lower).into_graph();
        ssa.results = std::mem::take(&mut self.interface.results);
        ssa.buffers = buffers;
        Ok((ssa, self))
    }

    /// Traces the calls of a graph whose inputs are bound.
    pub(crate) fn run_graph(&mut self, graph: &'a Graph) -> Result<(), Error> {
        self.run_nodes(graph, &graph.nodes)
    }

    fn run_nodes(&mut self, graph: &'a Graph, nodes: &'a [Node]) -> Result<(), Error> {
        let mut rest = nodes;
        while let Some((node, after)) = rest.split_first() {
            rest = after;
            match classify(node) {
                CallKind::Assertion => self.report(node, Outcome::Absorbed),
                CallKind::SizePredicate => self.predicate(graph, node),
                CallKind::SubclassField => self.read_field(node)?,
                CallKind::Inline(body) => self.inline(node, body)?,
                CallKind::Autocast(body, dtype) => {
                    let outside = std::mem::replace(&mut self.autocast, dtype);
                    let done = self.inline(node, body);
                    self.autocast = outside;
                    done?;
                }
                CallKind::Cond => self.cond(graph, node)?,
                CallKind::Vmap(VmapMark::Begin) => {
                    let whole = &nodes[nodes.len() - after.len() - 1..];
                    match vmap::length(whole) {
                        Some(length) => {
                            self.region(graph, &whole[..length])?;
                            rest = &whole[length..];
                        }
                        None => self.refuse(node, "a region of vmap that does not end".to_owned()),
                    }
                }
                CallKind::Vmap(_) => self.report(node, Outcome::Absorbed),
                CallKind::Scan => self.scan(node)?,
                CallKind::While => self.while_loop(node)?,
                CallKind::AutoFunctionalized => self.functionalized(graph, node),
                CallKind::Mutation(mutation) => self.write_call(graph, node, &mutation),
                CallKind::Refused(reason) => self.refuse(node, reason),
                CallKind::Operator => self.plain_call(graph, node),
            }
        }
        Ok(())
    }

    fn report(&mut self, node: &Node, outcome: Outcome) {
        let name = node.name.clone().unwrap_or_default();
        let precision = self.precision.take();
        self.calls.push(CallReport { target: bare(&node.target).to_owned(), name, source: Default::default(), outcome, precision });
    }

    /// Records that a call cannot be lowered. Its results become absent, so dependent calls are not
    /// reported again.
    fn refuse(&mut self, node: &Node, reason: String) {
        self.report(node, Outcome::Refused(reason));
        if let Some(call) = self.calls.last_mut() {
            call.source = node.source();
        }
        self.lose(node);
    }

    /// Refuses a call, unless it only depends on a call that is already refused.
    fn fail(&mut self, node: &Node, reason: &Refuse) {
        match reason {
            Refuse::Reported => {
                self.lose(node);
                self.report(node, Outcome::Absorbed);
            }
            reason => self.refuse(node, reason.to_string()),
        }
    }

    /// Binds a field of a quantized weight as a constant.
    fn read_field(&mut self, node: &'a Node) -> Result<(), Error> {
        let weight = node.inputs.first().and_then(|i| i.arg.as_tensor()).and_then(|n| self.names.resolve(&self.names.key(n)));
        let field = node.inputs.get(1).and_then(|i| i.arg.as_str());
        if let (Some(Binding::Subclass(name, subclass)), Some(field)) = (weight, field)
            && let (Some(view), Some(out)) = (subclass.tensors.get(field), node.output_names().first())
        {
            let slot = self.weight_slot(&format!("{name}.{field}"), view)?;
            self.names.bind(out, Binding::Tensor(slot));
            self.report(node, Outcome::Absorbed);
        } else {
            self.refuse(node, "it reads a field that the weight does not have".to_owned());
        }
        Ok(())
    }

    /// Reads the arguments of a call, and gives the call another target.
    fn call_of(&mut self, graph: &Graph, node: &Node, target: &str) -> Result<Call, Refuse> {
        let mut args = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            args.push((input.name.clone(), self.arg(&input.arg)?));
        }
        let outputs = node.outputs.iter().flat_map(|o| self.metas(graph, o)).collect();
        Ok(Call { target: target.to_owned(), args, outputs })
    }

    /// Types and sizes that the program states for the tensors of an output.
    fn metas(&self, graph: &Graph, output: &Argument) -> Vec<OutMeta> {
        let meta = |name: &str| match graph.tensors.get(name) {
            Some(meta) => {
                let dims = meta.sizes.iter().map(|e| self.names.expr(e)).collect();
                OutMeta { dtype: meta.dtype, dims, used: self.names.used.contains(name) }
            }
            // No slot can hold this type, so the call is refused if its result is used.
            None => OutMeta { dtype: DType::F64, dims: Vec::new(), used: self.names.used.contains(name) },
        };
        match output {
            Argument::Tensor(name) | Argument::OptionalTensor(Some(name)) => vec![meta(name)],
            Argument::Tensors(names) => names.iter().map(|n| meta(n)).collect(),
            Argument::None | Argument::OptionalTensor(None) => {
                vec![OutMeta { dtype: DType::F32, dims: Vec::new(), used: false }]
            }
            _ => Vec::new(),
        }
    }

    fn bind_results(&mut self, graph: &'a Graph, node: &'a Node, items: Vec<Item>) {
        let is_view = is_view(graph, node);
        let parent = node.inputs.first().and_then(|i| i.arg.as_tensor()).filter(|_| is_view).map(|n| self.names.key(n));
        let mut at = 0;
        for (output, item) in node.outputs.iter().zip(items) {
            let tensors = match item {
                Item::Tensor(t) => vec![Some(t)],
                Item::Tensors(list) => list.into_iter().map(Some).collect(),
                Item::None => vec![None],
                Item::Int(value) => {
                    self.bind_int(graph, output, value);
                    continue;
                }
            };
            for (name, tid) in output.names().into_iter().zip(tensors) {
                let value = match tid {
                    Some(tid) => Binding::Tensor(self.result_value(tid, parent.as_deref(), graph, node, at)),
                    None => Binding::absent("nothing was expected to read it"),
                };
                self.names.bind(name, value);
                at += 1;
            }
        }
    }

    /// Binds an integer result, and identifies its symbol in the archive.
    fn bind_int(&mut self, graph: &Graph, output: &Argument, value: Expr) {
        let Some(name) = output.names().first().map(|n| (*n).to_owned()) else { return };
        if let Some(Expr::Sum(_)) = graph.sym_ints.get(&name)
            && let Some(symbol) = graph.sym_ints[&name].as_symbol()
            && !self.names.symbols.contains_key(symbol)
            && value.as_symbol() != Some(symbol)
        {
            if let Some(fresh) = value.as_symbol()
                && let Some(&(min, max)) = self.exported.ranges.get(symbol)
                && !self.lower.graph().ranges.contains_key(fresh)
            {
                self.lower.set_range(fresh.clone(), Range { min, max });
            }
            self.names.symbols.insert(symbol.clone(), value.clone());
        }
        self.names.bind(&name, Binding::Int(value));
    }

    fn arg(&mut self, argument: &Argument) -> Result<Arg, Refuse> {
        let tensor = |trace: &mut Self, name: &str| {
            let key = trace.names.key(name);
            match trace.names.resolve(&key) {
                Some(Binding::Int(e)) => Ok(Arg::Int(e)),
                _ => trace.current(&key).map(Arg::Tensor),
            }
        };
        let one = |trace: &mut Self, name: &String| trace.current(&trace.names.key(name)).map(Some);
        match argument {
            Argument::Tensor(name) | Argument::OptionalTensor(Some(name)) => tensor(self, name),
            Argument::Tensors(names) => names.iter().map(|n| one(self, n)).collect::<Result<_, _>>().map(Arg::Tensors),
            Argument::OptionalTensors(names) => {
                let each = |n: &Option<String>| n.as_ref().map_or(Ok(None), |n| one(self, n));
                names.iter().map(each).collect::<Result<_, _>>().map(Arg::Tensors)
            }
            Argument::SymBool(SymArg::Name(name)) => self.known_condition(name),
            Argument::SymFloat(SymArg::Name(name)) => self.current(&self.names.key(name)).map(Arg::Tensor),
            other => scalar_arg(&self.names, &self.names.scope, other),
        }
    }
}

/// Converts a refusal outside of any call to an error.
fn lost(reason: Refuse) -> Error {
    Error::Program(ProgramError::Value(reason))
}

/// Reads arguments that are not tensors.
fn scalar_arg(names: &Names<'_>, scope: &str, argument: &Argument) -> Result<Arg, Refuse> {
    let int = |arg: &SymArg<i64>| match arg {
        SymArg::Literal(v) => Ok(Expr::Int(*v)),
        SymArg::Name(name) => match names.values.get(&format!("{scope}{name}")) {
            Some(Binding::Int(e)) => Ok(e.clone()),
            _ => Err(Refuse::Reported),
        },
    };
    Ok(match argument {
        Argument::None | Argument::OptionalTensor(None) => Arg::None,
        Argument::Int(v) => Arg::Int(Expr::Int(*v)),
        Argument::Ints(list) => Arg::Ints(list.iter().map(|&v| Expr::Int(v)).collect()),
        Argument::Float(v) => Arg::Float(*v),
        Argument::Complex(re, im) => Arg::Complex(*re, *im),
        Argument::Floats(list) => Arg::Floats(list.clone()),
        Argument::Bool(v) => Arg::Bool(*v),
        Argument::String(s) => Arg::Str(s.clone()),
        Argument::SymInt(arg) => Arg::Int(int(arg)?),
        Argument::SymInts(list) => Arg::Ints(list.iter().map(int).collect::<Result<_, _>>()?),
        Argument::SymFloat(SymArg::Literal(v)) => Arg::Float(*v),
        Argument::SymBool(SymArg::Literal(v)) => Arg::Bool(*v),
        Argument::ScalarType(t) => match t.dtype() {
            Some(dtype) => Arg::DType(dtype),
            None => return Err(Refuse::Unsupported(format!("element type {t:?}"))),
        },
        Argument::MemoryFormat(_) => Arg::Opaque("memory format"),
        Argument::Layout(_) => Arg::Opaque("layout"),
        Argument::Device(_) => Arg::Opaque("device"),
        Argument::Bools(list) => Arg::Ints(list.iter().map(|&b| Expr::Int(i64::from(b))).collect()),
        _ => Arg::Opaque("value"),
    })
}
