//! Walking an exported program: every value becomes a slot of an SSA graph.
//!
//! Captured graphs write to buffers and to views of them. Here a value that aliases another remembers which call made it a view
//! of what; a write gives its base a new version, and a view that is read later is made again from the new contents. So the
//! graph never aliases, and a buffer's last version is what a run leaves in it.

mod alias;
mod bind;
mod calls;
mod conditions;
mod control;

use std::collections::{HashMap, HashSet};

use flambeau_ir::{Slot, Tid, Vid};
use flambeau_lower::{Arg, Call, Item, Lower, OutMeta, Range, Refuse};
use flambeau_pt2::{Argument, Exported, Graph, Node, SymArg, SymBool, View};
use flambeau_tensor::{DType, Expr, Symbol};

use self::alias::TensorValue;
use crate::{
    Error, Options,
    error::ProgramError,
    fallback::FallbackCall,
    inline::{self, Special},
    report::{CallReport, Outcome},
    weights::Weights,
};

/// What a name stands for.
#[derive(Clone, Debug)]
enum Binding<'a> {
    Tensor(TensorValue<'a>),
    /// Another key of the same tensor.
    Same(String),
    Int(Expr),
    /// A condition on sizes.
    Bool(SymBool),
    /// A quantized weight, of which calls read the fields.
    Subclass(&'a str, &'a flambeau_pt2::Subclass),
    /// A value that no slot can hold, and why; an error only if something needs it.
    Absent(String),
}

/// A mutable buffer.
#[derive(Clone, Debug)]
pub(crate) struct Buffer<'a> {
    pub(crate) name: String,
    pub(crate) before: Tid,
    pub(crate) initial: &'a View,
    /// The graph value that holds its contents.
    value: String,
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
    /// The graph's result of that number.
    Result(usize),
    Constant(Argument),
}

/// A traced program.
#[derive(Debug)]
pub(crate) struct Trace<'a> {
    exported: &'a Exported,
    pub(crate) lower: Lower,
    pub(crate) weights: Weights<'a>,
    /// What names stand for; a name inside of a sub-graph has the sub-graph's scope in front.
    values: HashMap<String, Binding<'a>>,
    /// Scope of the graph that is being traced.
    scope: String,
    /// How many chains of control flow are open.
    depth: usize,
    /// Targets that the caller keeps out of delegates.
    undelegated: Vec<String>,
    /// Whether a call without nodes may become a kernel call.
    may_fall_back: bool,
    /// Calls that portable kernels run between delegates.
    pub(crate) fallbacks: Vec<FallbackCall>,
    /// Tensor inputs: name, slot and base.
    input_bases: Vec<(String, Tid, usize)>,
    /// Bases that nothing may write to, and why.
    guards: HashMap<usize, String>,
    /// Versions of the bases.
    bases: Vec<u32>,
    /// Constants and buffers by what they view: equal views are one tensor.
    views: HashMap<&'a View, TensorValue<'a>>,
    symbols: HashMap<Symbol, Expr>,
    /// Quantized weights that calls read as plain tensors, by name in the model.
    unpacked: HashMap<&'a str, Tid>,
    used: HashSet<String>,
    mutated: HashSet<&'a View>,
    pub(crate) buffers: Vec<Buffer<'a>>,
    pub(crate) inputs: Vec<MethodInput>,
    pub(crate) outputs: Vec<MethodOutput>,
    pub(crate) calls: Vec<CallReport>,
    results: Vec<Slot>,
}

/// Target without the prefix that dispatcher operators have.
pub(crate) fn bare(target: &str) -> &str {
    target.strip_prefix("torch.ops.").unwrap_or(target)
}

impl<'a> Trace<'a> {
    /// Traces a whole program, in which buffers of the names in `state` are mutable. Calls that cannot be lowered are in `calls`
    /// with their reasons.
    pub(crate) fn run(exported: &'a Exported, options: &Options, state: &HashSet<String>) -> Result<Trace<'a>, Error> {
        let buffers = inline::stored_buffers(exported).filter(|(name, _)| state.contains(*name)).map(|(_, view)| view);
        let mut trace = Trace {
            exported,
            lower: Lower::new(),
            weights: Weights::default(),
            values: HashMap::new(),
            scope: String::new(),
            depth: 0,
            undelegated: options.undelegated.clone(),
            may_fall_back: !options.require_full,
            fallbacks: Vec::new(),
            input_bases: Vec::new(),
            guards: HashMap::new(),
            bases: Vec::new(),
            views: HashMap::new(),
            symbols: HashMap::new(),
            unpacked: HashMap::new(),
            used: inline::used_names(&exported.graph),
            mutated: inline::mutated_weights(exported).into_iter().chain(buffers).collect(),
            buffers: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            calls: Vec::new(),
            results: Vec::new(),
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

    /// The graph, with its results and buffers stated.
    pub(crate) fn into_graph(mut self) -> Result<(flambeau_lower::SsaGraph, Trace<'a>), Error> {
        let ends = self.buffers.clone().into_iter().map(|b| Ok((b.before, self.current(&b.value).map_err(lost)?)));
        let buffers = ends.collect::<Result<Vec<_>, Error>>()?;
        let mut ssa = std::mem::take(&mut self.lower).into_graph();
        ssa.results = std::mem::take(&mut self.results);
        ssa.buffers = buffers;
        Ok((ssa, self))
    }

    /// An archived expression with the symbols that this trace has identified.
    pub(crate) fn expr(&self, e: &Expr) -> Expr {
        e.substitute(&|s| Some(self.symbols.get(s).cloned().unwrap_or_else(|| Expr::symbol(s.clone()))))
            .unwrap_or_else(|| e.clone())
    }

    /// Traces the calls of a graph whose inputs are bound.
    pub(crate) fn run_graph(&mut self, graph: &'a Graph) -> Result<(), Error> {
        for node in &graph.nodes {
            match inline::special(node) {
                Special::Fact => self.report(node, Outcome::Absorbed),
                Special::Predicate => self.predicate(graph, node),
                Special::Field => self.read_field(node)?,
                Special::Inline(body) => self.inline(node, body)?,
                Special::Cond => self.cond(graph, node)?,
                Special::Scan => self.scan(node)?,
                Special::While => self.while_loop(node)?,
                Special::Functionalized => self.functionalized(graph, node),
                Special::Write(effect) => self.write_call(graph, node, &effect),
                Special::Refused(reason) => self.refuse(node, reason),
                Special::Plain => self.plain_call(graph, node),
            }
        }
        Ok(())
    }

    /// A name of the graph that is being traced, as a key of `values`.
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.scope)
    }

    fn report(&mut self, node: &Node, outcome: Outcome) {
        let name = node.name.clone().unwrap_or_default();
        self.calls.push(CallReport { target: bare(&node.target).to_owned(), name, source: Default::default(), outcome });
    }

    /// Records that a call cannot be lowered. Its results are absent, so that what hangs on them is not reported again.
    fn refuse(&mut self, node: &Node, reason: String) {
        self.report(node, Outcome::Refused(reason));
        if let Some(call) = self.calls.last_mut() {
            call.source = node.source();
        }
        self.lose(node);
    }

    /// Refuses a call, unless it only hangs on one that was refused before: that would say nothing new.
    fn fail(&mut self, node: &Node, reason: &Refuse) {
        match reason {
            Refuse::Unsupported(reason) if reason.is_empty() => {
                self.lose(node);
                self.report(node, Outcome::Absorbed);
            }
            reason => self.refuse(node, reason.to_string()),
        }
    }

    /// A field of a quantized weight, as a constant.
    fn read_field(&mut self, node: &'a Node) -> Result<(), Error> {
        let weight = node.inputs.first().and_then(|i| i.arg.as_tensor()).and_then(|n| self.resolve(&self.key(n)));
        let field = node.inputs.get(1).and_then(|i| i.arg.as_str());
        if let (Some(Binding::Subclass(name, subclass)), Some(field)) = (weight, field)
            && let (Some(view), Some(out)) = (subclass.tensors.get(field), node.output_names().first())
        {
            let slot = self.weight_slot(&format!("{name}.{field}"), view)?;
            self.values.insert(self.key(out), Binding::Tensor(slot));
            self.report(node, Outcome::Absorbed);
        } else {
            self.refuse(node, "it reads a field that the weight does not have".to_owned());
        }
        Ok(())
    }

    /// The call with its arguments read, under another target's name.
    fn call_of(&mut self, graph: &Graph, node: &Node, target: &str) -> Result<Call, Refuse> {
        let mut args = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            args.push((input.name.clone(), self.arg(&input.arg)?));
        }
        let outputs = node.outputs.iter().flat_map(|o| self.metas(graph, o)).collect();
        Ok(Call { target: target.to_owned(), args, outputs })
    }

    /// What the program says of the tensors in a result.
    fn metas(&self, graph: &Graph, output: &Argument) -> Vec<OutMeta> {
        let meta = |name: &str| match graph.tensors.get(name) {
            Some(meta) => {
                let dims = meta.sizes.iter().map(|e| self.expr(e)).collect();
                OutMeta { dtype: meta.dtype, dims, used: self.used.contains(name) }
            }
            // A type that nothing can hold: refused if the result is used.
            None => OutMeta { dtype: DType::F64, dims: Vec::new(), used: self.used.contains(name) },
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
        let is_view = inline::is_view(graph, node);
        let parent = node.inputs.first().and_then(|i| i.arg.as_tensor()).filter(|_| is_view).map(|n| self.key(n));
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
                    None => Binding::Absent("nothing was expected to read it".to_owned()),
                };
                self.values.insert(self.key(name), value);
                at += 1;
            }
        }
    }

    /// Binds an integer result, and identifies the symbol by which the archive calls it.
    fn bind_int(&mut self, graph: &Graph, output: &Argument, value: Expr) {
        let Some(name) = output.names().first().map(|n| (*n).to_owned()) else { return };
        if let Some(Expr::Sum(_)) = graph.sym_ints.get(&name)
            && let Some(symbol) = graph.sym_ints[&name].as_symbol()
            && !self.symbols.contains_key(symbol)
            && value.as_symbol() != Some(symbol)
        {
            if let Some(fresh) = value.as_symbol()
                && let Some(&(min, max)) = self.exported.ranges.get(symbol)
                && !self.lower.graph().ranges.contains_key(fresh)
            {
                self.lower.set_range(fresh.clone(), Range { min, max });
            }
            self.symbols.insert(symbol.clone(), value.clone());
        }
        self.values.insert(self.key(&name), Binding::Int(value));
    }

    fn arg(&mut self, argument: &Argument) -> Result<Arg, Refuse> {
        let tensor = |trace: &mut Self, name: &str| {
            let key = trace.key(name);
            match trace.resolve(&key) {
                Some(Binding::Int(e)) => Ok(Arg::Int(e)),
                _ => trace.current(&key).map(Arg::Tensor),
            }
        };
        let one = |trace: &mut Self, name: &String| trace.current(&trace.key(name)).map(Some);
        match argument {
            Argument::Tensor(name) | Argument::OptionalTensor(Some(name)) => tensor(self, name),
            Argument::Tensors(names) => names.iter().map(|n| one(self, n)).collect::<Result<_, _>>().map(Arg::Tensors),
            Argument::OptionalTensors(names) => {
                let each = |n: &Option<String>| n.as_ref().map_or(Ok(None), |n| one(self, n));
                names.iter().map(each).collect::<Result<_, _>>().map(Arg::Tensors)
            }
            Argument::SymBool(SymArg::Name(name)) => self.known_condition(name),
            Argument::SymFloat(SymArg::Name(name)) => self.current(&self.key(name)).map(Arg::Tensor),
            other => self_arg(&self.values, &self.scope, other),
        }
    }
}

/// A reason that surfaces outside of any call.
fn lost(reason: Refuse) -> Error {
    Error::Program(ProgramError::Value(reason))
}

/// A value that is missing because of something that was reported before.
fn nothing<'a>() -> Binding<'a> {
    Binding::Absent(String::new())
}

/// Arguments that are not tensors.
fn self_arg(values: &HashMap<String, Binding<'_>>, scope: &str, argument: &Argument) -> Result<Arg, Refuse> {
    let int = |arg: &SymArg<i64>| match arg {
        SymArg::Literal(v) => Ok(Expr::Int(*v)),
        SymArg::Name(name) => match values.get(&format!("{scope}{name}")) {
            Some(Binding::Int(e)) => Ok(e.clone()),
            _ => Err(Refuse::Unsupported(String::new())),
        },
    };
    Ok(match argument {
        Argument::None | Argument::OptionalTensor(None) => Arg::None,
        Argument::Int(v) => Arg::Int(Expr::Int(*v)),
        Argument::Ints(list) => Arg::Ints(list.iter().map(|&v| Expr::Int(v)).collect()),
        Argument::Float(v) => Arg::Float(*v),
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
