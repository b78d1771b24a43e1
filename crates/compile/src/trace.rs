//! Walking an exported program: every value becomes a slot of a flow.
//!
//! Captured graphs write to buffers and to views of them. Here a value that aliases another remembers which call made it a view
//! of what; a write gives its base a new version, and a view that is read later is made again from the new contents. So the
//! flow never aliases, and a buffer's last version is what a run leaves in it.

use std::collections::{HashMap, HashSet};

use flambeau_ir::{Slot, Spec, Tid};
use flambeau_lower::{Arg, Call, Constant, Item, Lower, Origin, OutMeta, Range, Recipe, Refuse};
use flambeau_pt2::{Argument, Exported, Graph, InputSpec, Node, OutputSpec, SymArg, View, Weight};
use flambeau_tensor::{DType, Expr, Shape, Symbol};

use crate::{
    Error,
    inline::{self, Special},
    report::{CallReport, Outcome},
    scatter, subclass,
    weights::Weights,
};

/// Stored weights with at most this many elements are read while tracing, so that rules can see their values.
const MAX_LITERAL: usize = 16;

/// A tensor value.
#[derive(Clone, Debug)]
pub(crate) struct TensorValue {
    tid: Tid,
    base: usize,
    /// Version of the base that `tid` shows.
    version: u32,
    /// For a view: the value that it is a view of, the call that made it, and which of its results it is.
    view: Option<(String, Node, usize)>,
}

/// What a name stands for.
#[derive(Clone, Debug)]
enum Value<'a> {
    Tensor(TensorValue),
    /// Another name of the same tensor.
    Same(String),
    Int(Expr),
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
    Tensor { name: String, spec: Spec },
    Int { name: String, content: Expr },
    Constant(Argument),
}

/// An output of the method.
#[derive(Clone, Debug)]
pub(crate) enum MethodOutput {
    /// The flow's result of that number.
    Result(usize),
    Constant(Argument),
}

/// A traced program.
#[derive(Debug)]
pub(crate) struct Trace<'a> {
    exported: &'a Exported,
    pub(crate) lower: Lower,
    pub(crate) weights: Weights<'a>,
    values: HashMap<String, Value<'a>>,
    /// Versions of the bases.
    bases: Vec<u32>,
    /// Constants and buffers by what they view: equal views are one tensor.
    views: HashMap<&'a View, TensorValue>,
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
    /// Traces a whole program. Calls that cannot be lowered are in `calls` with their reasons.
    pub(crate) fn run(exported: &'a Exported) -> Result<Trace<'a>, Error> {
        let mut trace = Trace {
            exported,
            lower: Lower::new(),
            weights: Weights::default(),
            values: HashMap::new(),
            bases: Vec::new(),
            views: HashMap::new(),
            symbols: HashMap::new(),
            unpacked: HashMap::new(),
            used: inline::used_names(&exported.graph),
            mutated: inline::mutated_weights(exported),
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

    /// The flow, with its results and buffers stated.
    pub(crate) fn into_flow(mut self) -> Result<(flambeau_lower::Flow, Trace<'a>), Error> {
        let ends = self.buffers.clone().into_iter().map(|b| Ok((b.before, self.current(&b.value).map_err(lost)?)));
        let buffers = ends.collect::<Result<Vec<_>, Error>>()?;
        let mut flow = std::mem::take(&mut self.lower).into_flow();
        flow.results = std::mem::take(&mut self.results);
        flow.buffers = buffers;
        Ok((flow, self))
    }

    fn bind_input(&mut self, argument: &Argument, spec: &'a InputSpec) -> Result<(), Error> {
        match spec {
            InputSpec::Parameter { arg, name } | InputSpec::Buffer { arg, name, .. } | InputSpec::TensorConstant { arg, name } => {
                let weight = self.exported.weight_of(spec);
                let weight = weight.ok_or_else(|| Error::Program(format!("`{name}` has no data in the archive")))?;
                self.bind_weight(arg, name, weight)
            }
            InputSpec::UserInput(user) => self.bind_user_input(user),
            InputSpec::ConstantInput { value, .. } => {
                self.inputs.push(MethodInput::Constant(value.clone()));
                Ok(())
            }
            InputSpec::Token { .. } => Ok(()),
            InputSpec::CustomObj { name, .. } => {
                for n in argument.names() {
                    self.values.insert(n.to_owned(), Value::Absent(format!("`{name}` is a script object")));
                }
                Ok(())
            }
        }
    }

    fn bind_weight(&mut self, arg: &str, name: &'a str, weight: &'a Weight) -> Result<(), Error> {
        let value = match weight {
            Weight::Strided(view) => Value::Tensor(self.weight_slot(name, view)?),
            Weight::Subclass(subclass) => Value::Subclass(name, subclass),
            Weight::Foreign { dtype, .. } => Value::Absent(format!("`{name}` has element type {dtype:?}")),
        };
        self.values.insert(arg.to_owned(), value);
        if let Value::Tensor(t) = &self.values[arg]
            && let Origin::Buffer(i) = self.lower.flow().tensors[t.tid.0 as usize].origin
            && self.buffers[i as usize].value.is_empty()
        {
            self.buffers[i as usize].value = arg.to_owned();
        }
        Ok(())
    }

    /// The slot of a stored tensor: a mutable buffer if the program writes to it, else a constant.
    fn weight_slot(&mut self, name: &str, view: &'a View) -> Result<TensorValue, Error> {
        if let Some(value) = self.views.get(view) {
            return Ok(value.clone());
        }
        let tid = if self.mutated.contains(view) {
            let i = self.buffers.len() as u32;
            let before = self.lower.slot(Spec::fixed(view.dtype, &view.shape), Origin::Buffer(i));
            self.buffers.push(Buffer { name: name.to_owned(), before, initial: view, value: String::new() });
            before
        } else {
            self.constant(name, view)?
        };
        let value = self.new_base(tid);
        self.views.insert(view, value.clone());
        Ok(value)
    }

    fn constant(&mut self, name: &str, view: &'a View) -> Result<Tid, Error> {
        let shape = Shape::from_slice(&view.shape);
        let small = view.shape.iter().product::<usize>() <= MAX_LITERAL && view.dtype.is_node_dtype();
        let recipe = if small { Recipe::Literal(view.tensor()?.bytes().clone()) } else { Recipe::Stored(self.weights.add(view)) };
        Ok(self.lower.constant(Constant { name: name.to_owned(), dtype: view.dtype, shape, recipe }))
    }

    fn new_base(&mut self, tid: Tid) -> TensorValue {
        self.bases.push(0);
        TensorValue { tid, base: self.bases.len() - 1, version: 0, view: None }
    }

    fn bind_user_input(&mut self, argument: &Argument) -> Result<(), Error> {
        let number = self.inputs.len() as u32;
        match argument {
            Argument::Tensor(name) => {
                let meta = self.exported.graph.tensor(name)?;
                let spec = Spec { dtype: meta.dtype, dims: meta.sizes.iter().map(|e| self.expr(e)).collect() };
                self.inputs.push(MethodInput::Tensor { name: name.clone(), spec: spec.clone() });
                let tid = self.lower.slot(spec, Origin::Input(number));
                let value = self.new_base(tid);
                self.values.insert(name.clone(), Value::Tensor(value));
                Ok(())
            }
            Argument::SymInt(SymArg::Name(name)) => {
                let content = self.exported.graph.sym_ints.get(name).cloned();
                let content = content.ok_or_else(|| Error::Program(format!("nothing is known of input `{name}`")))?;
                self.lower.value_input(number, content.clone());
                self.inputs.push(MethodInput::Int { name: name.clone(), content: content.clone() });
                self.values.insert(name.clone(), Value::Int(content));
                Ok(())
            }
            literal => {
                self.inputs.push(MethodInput::Constant(literal.clone()));
                Ok(())
            }
        }
    }

    /// An archived expression with the symbols that this trace has identified.
    pub(crate) fn expr(&self, e: &Expr) -> Expr {
        e.substitute(&|s| Some(self.symbols.get(s).cloned().unwrap_or_else(|| Expr::symbol(s.clone())))).unwrap_or_else(|| e.clone())
    }

    /// Traces the calls of a graph whose inputs are bound.
    pub(crate) fn run_graph(&mut self, graph: &'a Graph) -> Result<(), Error> {
        for node in &graph.nodes {
            match inline::special(node) {
                Special::Fact => self.report(node, Outcome::Absorbed),
                Special::Field => self.read_field(node)?,
                Special::Inline(body) => self.inline(node, body)?,
                Special::Write { target, written } => self.write_call(graph, node, &target, written),
                Special::Refused(reason) => self.refuse(node, reason),
                Special::Plain => self.plain_call(graph, node),
            }
        }
        Ok(())
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
        for name in node.output_names() {
            self.values.insert(name.to_owned(), Value::Absent(String::new()));
        }
    }

    /// Refuses a call, unless it only hangs on one that was refused before: that would say nothing new.
    fn fail(&mut self, node: &Node, reason: &Refuse) {
        match reason {
            Refuse::Unsupported(reason) if reason.is_empty() => {
                for name in node.output_names() {
                    self.values.insert(name.to_owned(), Value::Absent(String::new()));
                }
                self.report(node, Outcome::Absorbed);
            }
            reason => self.refuse(node, reason.to_string()),
        }
    }

    /// A field of a quantized weight, as a constant.
    fn read_field(&mut self, node: &'a Node) -> Result<(), Error> {
        let weight = node.inputs.first().and_then(|i| i.arg.as_tensor()).and_then(|n| self.values.get(n));
        let field = node.inputs.get(1).and_then(|i| i.arg.as_str());
        if let (Some(Value::Subclass(name, subclass)), Some(field)) = (weight, field)
            && let (Some(view), Some(out)) = (subclass.tensors.get(field), node.output_names().first())
        {
            let slot = self.weight_slot(&format!("{name}.{field}"), view)?;
            self.values.insert((*out).to_owned(), Value::Tensor(slot));
            self.report(node, Outcome::Absorbed);
        } else {
            self.refuse(node, "it reads a field that the weight does not have".to_owned());
        }
        Ok(())
    }

    /// Runs a sub-graph in place: its inputs are the operands, its outputs the call's results.
    fn inline(&mut self, node: &'a Node, body: &'a Graph) -> Result<(), Error> {
        let after_graph = node.inputs.iter().skip_while(|i| !matches!(i.arg, Argument::Graph(_))).skip(1);
        let operands: Vec<&str> = after_graph.flat_map(|i| i.arg.names()).collect();
        let inner: Vec<&str> = body.inputs.iter().flat_map(Argument::names).collect();
        let bound: Vec<_> = operands.iter().map(|n| self.values.get(*n).cloned().unwrap_or(Value::Absent(String::new()))).collect();
        self.report(node, Outcome::Absorbed);
        // A sub-graph has its own name space; whatever it hides comes back afterwards.
        let outer = self.values.clone();
        self.used.extend(inline::used_names(body));
        for ((name, value), operand) in inner.iter().zip(bound).zip(&operands) {
            let value = if matches!(value, Value::Tensor(_)) && name != operand { Value::Same(hidden(operand)) } else { value };
            self.values.insert((*name).to_owned(), value);
        }
        for operand in &operands {
            if let Some(value) = outer.get(*operand) {
                self.values.insert(hidden(operand), value.clone());
            }
        }
        self.run_graph(body)?;
        let inner_results: Vec<_> = body.outputs.iter().flat_map(Argument::names).map(|n| self.resolve(n)).collect();
        let written: Vec<_> = operands.iter().map(|n| self.values.get(&hidden(n)).cloned()).collect();
        self.values = outer;
        for (operand, value) in operands.iter().zip(written) {
            if let Some(value) = value {
                self.values.insert((*operand).to_owned(), value);
            }
        }
        for (out, value) in node.output_names().into_iter().zip(inner_results) {
            self.values.insert(out.to_owned(), value.unwrap_or(Value::Absent(String::new())));
        }
        Ok(())
    }

    /// A name's value with renamings followed.
    fn resolve(&self, name: &str) -> Option<Value<'a>> {
        match self.values.get(name)? {
            Value::Same(other) => self.resolve(other),
            value => Some(value.clone()),
        }
    }

    fn plain_call(&mut self, graph: &Graph, node: &Node) {
        match self.lower_node(graph, node) {
            Ok(items) => {
                self.bind_results(graph, node, items);
                self.report(node, Outcome::Absorbed);
            }
            Err(reason) => self.fail(node, &reason),
        }
    }

    fn lower_node(&mut self, graph: &Graph, node: &Node) -> Result<Vec<Item>, Refuse> {
        let call = self.call_of(graph, node, bare(&node.target))?;
        let id = self.calls.len() as u32;
        self.lower.call(&call, id)
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

    fn bind_results(&mut self, graph: &Graph, node: &Node, items: Vec<Item>) {
        let is_view = inline::is_view(node);
        let parent = node.inputs.first().and_then(|i| i.arg.as_tensor()).filter(|_| is_view).map(str::to_owned);
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
                    Some(tid) => Value::Tensor(self.result_value(tid, parent.as_deref(), node, at)),
                    None => Value::Absent("nothing was expected to read it".to_owned()),
                };
                self.values.insert(name.to_owned(), value);
                at += 1;
            }
        }
    }

    fn result_value(&mut self, tid: Tid, parent: Option<&str>, node: &Node, at: usize) -> TensorValue {
        let parent = parent.and_then(|p| Some((p, self.resolve(p)?)));
        match parent {
            Some((name, Value::Tensor(p))) => {
                TensorValue { tid, base: p.base, version: self.bases[p.base], view: Some((name.to_owned(), node.clone(), at)) }
            }
            _ => self.new_base(tid),
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
                && !self.lower.flow().ranges.contains_key(fresh)
            {
                self.lower.set_range(fresh.clone(), Range { min, max });
            }
            self.symbols.insert(symbol.clone(), value.clone());
        }
        self.values.insert(name, Value::Int(value));
    }

    /// A call that writes to one of its operands: the functional form, then a new version of what it wrote to.
    fn write_call(&mut self, graph: &Graph, node: &Node, target: &str, written: &str) {
        let Some(name) = node.arg(written).and_then(Argument::as_tensor).map(str::to_owned) else {
            return self.refuse(node, "it writes to something that is not a tensor".to_owned());
        };
        match self.try_write(graph, node, target, &name) {
            Ok(()) => {
                for out in node.output_names() {
                    self.values.insert(out.to_owned(), Value::Same(name.clone()));
                }
                self.report(node, Outcome::Absorbed);
            }
            Err(reason) => self.fail(node, &reason),
        }
    }

    fn try_write(&mut self, graph: &Graph, node: &Node, target: &str, name: &str) -> Result<(), Refuse> {
        let before = self.current(name)?;
        let spec = self.lower.spec(before).clone();
        let mut call = self.call_of(graph, node, target)?;
        call.outputs = vec![OutMeta { dtype: spec.dtype, dims: spec.dims.to_vec(), used: true }];
        let id = self.calls.len() as u32;
        match self.lower.call(&inline::functional_arguments(call), id)?.first() {
            Some(Item::Tensor(t)) => self.assign(name, *t),
            _ => Err(Refuse::Unsupported("its functional form has no tensor result".to_owned())),
        }
    }

    /// Makes `tid` the contents of a value, and of everything that shares its memory.
    pub(crate) fn assign(&mut self, name: &str, tid: Tid) -> Result<(), Refuse> {
        let (name, value) = self.tensor(name)?;
        let version = match &value.view {
            None => {
                self.refuse_constant(value.tid)?;
                self.bases[value.base] += 1;
                self.bases[value.base]
            }
            Some((parent, node, at)) => {
                let whole = self.current(parent)?;
                let id = self.calls.len() as u32;
                let whole = scatter::into_parent(&mut self.lower, node, *at, whole, tid, id, |a| self_arg(&self.values, a))?;
                self.assign(parent, whole)?;
                self.bases[value.base]
            }
        };
        self.values.insert(name, Value::Tensor(TensorValue { tid, version, ..value }));
        Ok(())
    }

    fn refuse_constant(&self, tid: Tid) -> Result<(), Refuse> {
        match &self.lower.flow().tensors[tid.0 as usize].origin {
            Origin::Constant(c) if matches!(c.recipe, Recipe::Stored(_)) => {
                Err(Refuse::Unsupported(format!("it writes to the constant `{}`", c.name)))
            }
            Origin::Input(_) => Err(Refuse::Unsupported("it writes to an input of the method".to_owned())),
            _ => Ok(()),
        }
    }

    /// The tensor behind a name, with the name that holds it.
    fn tensor(&self, name: &str) -> Result<(String, TensorValue), Refuse> {
        match self.values.get(name) {
            Some(Value::Tensor(t)) => Ok((name.to_owned(), t.clone())),
            Some(Value::Same(other)) => self.tensor(other),
            Some(Value::Absent(reason)) => Err(Refuse::Unsupported(reason.clone())),
            Some(Value::Subclass(weight, s)) => Err(Refuse::Unsupported(format!("`{weight}` is a {}, read as a plain tensor", s.class))),
            Some(Value::Int(_)) => Err(Refuse::Unsupported(format!("`{name}` is an integer, read as a tensor"))),
            None => Err(Refuse::Unsupported(format!("`{name}` has no value"))),
        }
    }

    /// The slot that holds a value's contents now; a view is made again if its base was written since.
    pub(crate) fn current(&mut self, name: &str) -> Result<Tid, Refuse> {
        if let Some(Value::Subclass(weight, subclass)) = self.resolve(name) {
            return self.unpack(weight, subclass);
        }
        let (name, value) = self.tensor(name)?;
        let version = self.bases[value.base];
        let Some((_, node, at)) = value.view.clone().filter(|_| value.version != version) else { return Ok(value.tid) };
        let exported = self.exported;
        let items = self.lower_node(&exported.graph, &node)?;
        let tensors = items.into_iter().flat_map(|item| match item {
            Item::Tensor(t) => vec![t],
            Item::Tensors(list) => list,
            _ => Vec::new(),
        });
        let tid = tensors.into_iter().nth(at).ok_or_else(|| Refuse::Unsupported("a view lost one of its parts".to_owned()))?;
        self.values.insert(name, Value::Tensor(TensorValue { tid, version, ..value }));
        Ok(tid)
    }

    /// A quantized weight read as a plain tensor: its class's own dequantization of its fields.
    fn unpack(&mut self, weight: &'a str, subclass: &'a flambeau_pt2::Subclass) -> Result<Tid, Refuse> {
        if let Some(tid) = self.unpacked.get(weight) {
            return Ok(*tid);
        }
        let (target, scalars) = subclass::dequantization(subclass)?;
        let mut args = Vec::new();
        for (field, view) in &subclass.tensors {
            let slot = self.weight_slot(&format!("{weight}.{field}"), view).map_err(|e| Refuse::Unsupported(e.to_string()))?;
            args.push((subclass::parameter(target, field).to_owned(), Arg::Tensor(slot.tid)));
        }
        args.extend(scalars);
        let dtype = subclass.dtype.dtype().ok_or_else(|| Refuse::Unsupported(format!("element type {:?}", subclass.dtype)))?;
        let dims = subclass.shape.iter().map(|&d| Expr::Int(d as i64)).collect();
        let call = Call { target: target.to_owned(), args, outputs: vec![OutMeta { dtype, dims, used: true }] };
        match self.lower.call(&call, self.calls.len() as u32)?.first() {
            Some(Item::Tensor(tid)) => {
                self.unpacked.insert(weight, *tid);
                Ok(*tid)
            }
            _ => Err(Refuse::Unsupported(format!("`{weight}` cannot be dequantized"))),
        }
    }

    fn arg(&mut self, argument: &Argument) -> Result<Arg, Refuse> {
        let tensor = |trace: &mut Self, name: &str| match trace.values.get(name) {
            Some(Value::Int(e)) => Ok(Arg::Int(e.clone())),
            _ => trace.current(name).map(Arg::Tensor),
        };
        match argument {
            Argument::Tensor(name) | Argument::OptionalTensor(Some(name)) => tensor(self, name),
            Argument::Tensors(names) => names.iter().map(|n| self.current(n).map(Some)).collect::<Result<_, _>>().map(Arg::Tensors),
            Argument::OptionalTensors(names) => {
                let one = |n: &Option<String>| n.as_ref().map(|n| self.current(n)).transpose();
                names.iter().map(one).collect::<Result<_, _>>().map(Arg::Tensors)
            }
            other => self_arg(&self.values, other),
        }
    }

    fn bind_outputs(&mut self) -> Result<(), Error> {
        let exported = self.exported;
        let outputs = exported.graph.outputs.iter().zip(&exported.signature.outputs);
        for (argument, spec) in outputs {
            match spec {
                OutputSpec::UserOutput(_) | OutputSpec::LossOutput { .. } => self.bind_output(argument)?,
                OutputSpec::BufferMutation { arg, name } => self.bind_mutation(arg, name)?,
                OutputSpec::Token { .. } => {}
                other => return Err(Error::Program(format!("output {other:?} is not supported"))),
            }
        }
        Ok(())
    }

    fn bind_output(&mut self, argument: &Argument) -> Result<(), Error> {
        let slot = match argument {
            Argument::Tensor(name) | Argument::OptionalTensor(Some(name)) => match self.resolve(name) {
                // What made it absent has been reported.
                Some(Value::Absent(reason)) if reason.is_empty() => return Ok(()),
                _ => Slot::Tensor(self.current(name).map_err(lost)?),
            },
            Argument::SymInt(SymArg::Name(name)) => match self.values.get(name).cloned() {
                Some(Value::Int(Expr::Int(v))) => {
                    self.outputs.push(MethodOutput::Constant(Argument::Int(v)));
                    return Ok(());
                }
                Some(Value::Int(e)) => Slot::Value(self.lower.size_slot(&e).map_err(lost)?),
                _ => return Err(Error::Program(format!("output `{name}` has no value"))),
            },
            literal => {
                self.outputs.push(MethodOutput::Constant(literal.clone()));
                return Ok(());
            }
        };
        self.outputs.push(MethodOutput::Result(self.results.len()));
        self.results.push(slot);
        Ok(())
    }

    /// A functional program's statement of what a buffer holds afterwards.
    fn bind_mutation(&mut self, arg: &str, name: &str) -> Result<(), Error> {
        let exported = self.exported;
        let weight = exported.weights.get(name).or_else(|| exported.constants.get(name));
        let buffer = self.buffers.iter_mut().find(|b| matches!(weight, Some(Weight::Strided(v)) if v == b.initial));
        match buffer {
            Some(buffer) => buffer.value = arg.to_owned(),
            None => return Err(Error::Program(format!("the mutated buffer `{name}` is not an input"))),
        }
        Ok(())
    }
}

/// A reason that surfaces outside of any call.
fn lost(reason: Refuse) -> Error {
    Error::Program(reason.to_string())
}

/// An operand's name while a sub-graph that may reuse it runs.
fn hidden(name: &str) -> String {
    format!("{name} (outside)")
}

/// Arguments that are not tensors.
fn self_arg(values: &HashMap<String, Value<'_>>, argument: &Argument) -> Result<Arg, Refuse> {
    let int = |arg: &SymArg<i64>| match arg {
        SymArg::Literal(v) => Ok(Expr::Int(*v)),
        SymArg::Name(name) => match values.get(name) {
            Some(Value::Int(e)) => Ok(e.clone()),
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
