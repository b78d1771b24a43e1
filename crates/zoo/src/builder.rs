//! Builds the graph of a program call by call. This file holds values, state and weights, and
//! submodules hold the operators.

mod arithmetic;
mod attention;
mod conv;
mod masks;
mod ops;
mod reductions;
mod views;

pub(crate) use attention::Rotary;
pub(crate) use conv::ConvParams;

use flambeau_pt2::{
    Argument, Exported, Graph, InputSpec, Metadata, NamedArgument, Node, OutputSpec, Range, Signature, Storage, SymArg, TensorMeta,
    View, Weight,
};
use flambeau_tensor::{AlignedBytes, DType, Expr, Symbol, Tensor, numel};
use indexmap::IndexMap;

use crate::{Error, Result};

/// A tensor value of the graph.
#[derive(Clone, Debug)]
pub(crate) struct Val {
    name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<Expr>,
}

/// An integer value of the graph, or a literal.
#[derive(Clone, Debug)]
pub(crate) struct Int {
    arg: SymArg<i64>,
    expr: Expr,
}

impl Val {
    /// One size, or 0 if it is symbolic.
    pub(crate) fn dim(&self, axis: usize) -> usize {
        self.dims.get(axis).and_then(Expr::as_int).map_or(0, |n| n as usize)
    }
}

impl Int {
    pub(crate) fn literal(value: i64) -> Int {
        Int { arg: SymArg::Literal(value), expr: Expr::Int(value) }
    }

    /// The inferred size (-1) in the sizes of a view. The caller guarantees that it equals `expr`.
    pub(crate) fn rest(expr: Expr) -> Int {
        Int { arg: SymArg::Literal(-1), expr }
    }
}

impl From<usize> for Int {
    fn from(value: usize) -> Int {
        Int::literal(value as i64)
    }
}

/// A graph under construction. Weights become inputs at first use, and the finished program places
/// them before the caller's inputs.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    graph: Graph,
    /// Parameters, buffers, constants.
    held: [Vec<InputSpec>; 3],
    users: Vec<InputSpec>,
    ranges: IndexMap<Symbol, Range>,
    weights: IndexMap<String, Weight>,
    constants: IndexMap<String, Weight>,
    /// Path of the module being written.
    module: String,
    /// Names of weights that are not quantized.
    floats: Vec<String>,
}

const PARAMETERS: usize = 0;
const BUFFERS: usize = 1;
const CONSTANTS: usize = 2;

impl Builder {
    /// Sets the module of the next calls.
    pub(crate) fn enter(&mut self, module: impl Into<String>) {
        self.module = module.into();
    }

    /// Adds a symbolic size with a range, which the caller determines.
    pub(crate) fn symbol(&mut self, name: &str, low: usize, high: usize) -> Expr {
        let symbol = Symbol::new(name);
        self.ranges.insert(symbol.clone(), (Some(low as i64), Some(high as i64)));
        Expr::symbol(symbol)
    }

    /// Adds an input tensor of the caller.
    pub(crate) fn input(&mut self, name: &str, dtype: DType, dims: Vec<Expr>) -> Val {
        let value = self.define(name.to_owned(), dtype, dims);
        self.users.push(InputSpec::UserInput(Argument::Tensor(value.name.clone())));
        value
    }

    /// A weight by its qualified name. Equal names give the same value.
    pub(crate) fn parameter(&mut self, name: &str, weight: Weight) -> Val {
        let arg = format!("p_{}", name.replace('.', "_"));
        if !self.weights.contains_key(name) {
            self.held[PARAMETERS].push(InputSpec::Parameter { arg: arg.clone(), name: name.to_owned() });
        }
        let value = self.held_value(arg, &weight);
        self.weights.insert(name.to_owned(), weight);
        value
    }

    /// Excludes a weight from quantization.
    pub(crate) fn keep_floats(&mut self, name: &str) {
        if !self.floats.iter().any(|known| known == name) {
            self.floats.push(name.to_owned());
        }
    }

    /// Takes the names of weights that are not quantized.
    pub(crate) fn take_floats(&mut self) -> Vec<String> {
        std::mem::take(&mut self.floats)
    }

    /// Adds a buffer that starts as zeros.
    ///
    /// # Errors
    /// [`Error::Option`] if it is too large to be addressed.
    pub(crate) fn buffer(&mut self, name: &str, dtype: DType, shape: Vec<usize>) -> Result<Val> {
        let len = numel(&shape).and_then(|n| n.checked_mul(dtype.size())).filter(|&n| isize::try_from(n).is_ok());
        let too_large =
            || Error::Option { option: "max_seq_len", expected: "a smaller cache".into(), found: format!("{shape:?} {dtype}") };
        let len = len.ok_or_else(too_large)?;
        let zeros = Storage::computed(name, len, move || Ok(AlignedBytes::zeroed(len).into_bytes()));
        let weight = Weight::Strided(View::row_major(dtype, shape, zeros));
        let arg = format!("b_{name}");
        self.held[BUFFERS].push(InputSpec::Buffer { arg: arg.clone(), name: name.to_owned(), persistent: false });
        let value = self.held_value(arg, &weight);
        self.constants.insert(name.to_owned(), weight);
        Ok(value)
    }

    /// A computed constant. Equal names give the same value.
    pub(crate) fn constant(&mut self, name: &str, constant: &Tensor) -> Val {
        let weight = Weight::from_tensor(name, constant);
        let arg = format!("c_{name}");
        if !self.constants.contains_key(name) {
            self.held[CONSTANTS].push(InputSpec::TensorConstant { arg: arg.clone(), name: name.to_owned() });
        }
        let value = self.held_value(arg, &weight);
        self.constants.insert(name.to_owned(), weight);
        value
    }

    fn held_value(&mut self, arg: String, weight: &Weight) -> Val {
        let dims = weight.shape().iter().map(|&n| Expr::Int(n as i64)).collect();
        self.define(arg, weight.dtype().dtype().unwrap_or(DType::F32), dims)
    }

    fn define(&mut self, name: String, dtype: DType, dims: Vec<Expr>) -> Val {
        self.graph.tensors.insert(name.clone(), TensorMeta::new(dtype, dims.clone()));
        Val { name, dtype, dims }
    }

    /// A new name based on an operator's name.
    fn fresh(&self, target: &str) -> String {
        let op = target.split('.').nth(1).unwrap_or(target);
        format!("{op}_{}", self.graph.nodes.len())
    }

    fn push(&mut self, target: String, inputs: Vec<NamedArgument>, outputs: Vec<Argument>) {
        let mut node = Node::call(target, inputs, outputs);
        let stack = format!("{0},{0},Module", self.module);
        node.metadata = Metadata::from_entries([("nn_module_stack", stack.as_str())]);
        self.graph.nodes.push(node);
    }

    /// Adds a call with one tensor result.
    fn call(&mut self, target: &str, inputs: Vec<NamedArgument>, dtype: DType, dims: Vec<Expr>) -> Val {
        let name = self.fresh(target);
        self.push(format!("torch.ops.{target}"), inputs, vec![Argument::Tensor(name.clone())]);
        self.define(name, dtype, dims)
    }

    /// Adds a call with two tensor results of equal sizes.
    fn call_pair(&mut self, target: &str, inputs: Vec<NamedArgument>, dtypes: [DType; 2], dims: &[Expr]) -> [Val; 2] {
        let name = self.fresh(target);
        let names = [name.clone(), format!("{name}_1")];
        self.push(format!("torch.ops.{target}"), inputs, names.iter().cloned().map(Argument::Tensor).collect());
        let [first, second] = names;
        [self.define(first, dtypes[0], dims.to_vec()), self.define(second, dtypes[1], dims.to_vec())]
    }

    /// Adds a call with an integer result. `target` is the operator with its namespace.
    fn call_int(&mut self, target: &str, inputs: Vec<NamedArgument>, expr: Expr) -> Int {
        let name = self.fresh(target.trim_start_matches("torch.ops."));
        self.push(target.to_owned(), inputs, vec![Argument::SymInt(SymArg::Name(name.clone()))]);
        self.graph.sym_ints.insert(name.clone(), expr.clone());
        Int { arg: SymArg::Name(name), expr }
    }

    /// Finishes the program that returns `outputs`.
    ///
    /// # Errors
    /// If a value is used before its definition.
    pub(crate) fn finish(self, outputs: &[&Val]) -> Result<Exported> {
        let Builder { mut graph, held, users, ranges, weights, constants, .. } = self;
        let inputs: Vec<InputSpec> = held.into_iter().flatten().chain(users).collect();
        let mut names = Vec::new();
        for spec in &inputs {
            match spec {
                InputSpec::Parameter { arg, .. } | InputSpec::Buffer { arg, .. } | InputSpec::TensorConstant { arg, .. } => {
                    graph.inputs.push(Argument::Tensor(arg.clone()));
                }
                InputSpec::UserInput(arg) => {
                    graph.inputs.push(arg.clone());
                    names.extend(arg.names().into_iter().map(str::to_owned));
                }
                _ => {}
            }
        }
        graph.outputs = outputs.iter().map(|output| Argument::Tensor(output.name.clone())).collect();
        graph.check()?;
        let outputs: Vec<OutputSpec> = graph.outputs.iter().cloned().map(OutputSpec::UserOutput).collect();
        Ok(Exported {
            out_spec: out_spec(outputs.len()),
            graph,
            signature: Signature { inputs, outputs },
            ranges,
            expression_ranges: Vec::new(),
            guards: Vec::new(),
            in_spec: in_spec(&names),
            forward_arg_names: names,
            torch_version: String::new(),
            dialect: flambeau_pt2::Dialect::Training,
            weights,
            constants,
        })
    }
}

const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

/// PyTorch's structure text of one tensor, or of a tuple of tensors.
fn out_spec(outputs: usize) -> String {
    if outputs == 1 {
        return format!("[1, {LEAF}]");
    }
    let leaves = vec![LEAF; outputs].join(", ");
    format!(r#"[1, {{"type": "builtins.tuple", "context": "null", "children_spec": [{leaves}]}}]"#)
}

/// PyTorch's structure text of keyword inputs with these names.
fn in_spec(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().map(|n| format!("\\\"{n}\\\"")).collect();
    let leaves = vec![LEAF; names.len()].join(", ");
    let kwargs = format!(r#"{{"type": "builtins.dict", "context": "[{}]", "children_spec": [{leaves}]}}"#, quoted.join(", "));
    let args = r#"{"type": "builtins.tuple", "context": "null", "children_spec": []}"#;
    format!(r#"[1, {{"type": "builtins.tuple", "context": "null", "children_spec": [{args}, {kwargs}]}}]"#)
}
