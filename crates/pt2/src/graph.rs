//! Graphs of calls as plain data.

use std::collections::HashSet;

use flambeau_tensor::{DType, Expr};
use indexmap::IndexMap;

use crate::{Device, Error, GraphFault, Layout, MemoryFormat, Metadata, Result, ScalarType, SourceLocation, SymBool, SymFloat};

/// Metadata of a tensor value. Strides and offset count elements.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMeta {
    pub dtype: DType,
    pub sizes: Vec<Expr>,
    pub strides: Vec<Expr>,
    pub storage_offset: Expr,
    pub layout: Layout,
    pub device: Device,
    pub requires_grad: bool,
}

impl TensorMeta {
    /// Metadata of a row-major tensor on the host.
    pub fn new(dtype: DType, sizes: Vec<Expr>) -> TensorMeta {
        let mut strides = vec![Expr::Int(1); sizes.len()];
        for i in (1..sizes.len()).rev() {
            strides[i - 1] = strides[i].clone() * sizes[i].maximum(&Expr::Int(1));
        }
        let (layout, device) = (Layout::Strided, Device::cpu());
        TensorMeta { dtype, sizes, strides, storage_offset: Expr::Int(0), layout, device, requires_grad: false }
    }
}

/// A scalar operand: a literal, or the name of a scalar value of the graph.
#[derive(Clone, Debug, PartialEq)]
pub enum SymArg<T> {
    Literal(T),
    Name(String),
}

/// A graph that a control-flow call runs. It has a separate name space for values.
#[derive(Clone, Debug, PartialEq)]
pub struct Subgraph {
    pub name: String,
    pub graph: Graph,
}

/// An operand or result of a call. Strings in tensor variants are value names.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    None,
    Tensor(String),
    OptionalTensor(Option<String>),
    Tensors(Vec<String>),
    OptionalTensors(Vec<Option<String>>),
    NestedTensors(Vec<Vec<String>>),
    Int(i64),
    Ints(Vec<i64>),
    IntLists(Vec<Vec<i64>>),
    Float(f64),
    Floats(Vec<f64>),
    FloatLists(Vec<Vec<f64>>),
    Bool(bool),
    Bools(Vec<bool>),
    String(String),
    Strings(Vec<String>),
    /// Real and imaginary part.
    Complex(f64, f64),
    SymInt(SymArg<i64>),
    SymInts(Vec<SymArg<i64>>),
    SymFloat(SymArg<f64>),
    SymFloats(Vec<SymArg<f64>>),
    SymBool(SymArg<bool>),
    SymBools(Vec<SymArg<bool>>),
    ScalarType(ScalarType),
    MemoryFormat(MemoryFormat),
    Layout(Layout),
    Device(Device),
    Graph(Box<Subgraph>),
    CustomObj {
        name: String,
        class: String,
    },
    /// A dispatcher operator such as `torch.ops.ns.name.overload`.
    Operator(String),
    Dict(IndexMap<String, Argument>),
}

impl Argument {
    /// The value name, if this is one tensor.
    pub fn as_tensor(&self) -> Option<&str> {
        match self {
            Argument::Tensor(name) | Argument::OptionalTensor(Some(name)) => Some(name),
            _ => None,
        }
    }

    /// The value, if this is an integer literal.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Argument::Int(v) | Argument::SymInt(SymArg::Literal(v)) => Some(*v),
            _ => None,
        }
    }

    /// The value, if this is a boolean literal.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Argument::Bool(v) | Argument::SymBool(SymArg::Literal(v)) => Some(*v),
            _ => None,
        }
    }

    /// The string, if this is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Argument::String(v) => Some(v),
            _ => None,
        }
    }

    /// Whether this is Python's `None`.
    pub fn is_none(&self) -> bool {
        matches!(self, Argument::None | Argument::OptionalTensor(None))
    }

    /// Calls `visit` with every value name, in order, without names in sub-graphs.
    pub fn visit_names<'a>(&'a self, visit: &mut dyn FnMut(&'a str)) {
        fn names<'a, T>(args: &'a [SymArg<T>], visit: &mut dyn FnMut(&'a str)) {
            for arg in args {
                if let SymArg::Name(name) = arg {
                    visit(name);
                }
            }
        }
        match self {
            Argument::Tensor(name) | Argument::OptionalTensor(Some(name)) | Argument::CustomObj { name, .. } => visit(name),
            Argument::Tensors(list) => list.iter().for_each(|name| visit(name)),
            Argument::OptionalTensors(list) => list.iter().flatten().for_each(|name| visit(name)),
            Argument::NestedTensors(lists) => lists.iter().flatten().for_each(|name| visit(name)),
            Argument::SymInt(arg) => names(std::slice::from_ref(arg), visit),
            Argument::SymInts(args) => names(args, visit),
            Argument::SymFloat(arg) => names(std::slice::from_ref(arg), visit),
            Argument::SymFloats(args) => names(args, visit),
            Argument::SymBool(arg) => names(std::slice::from_ref(arg), visit),
            Argument::SymBools(args) => names(args, visit),
            Argument::Dict(map) => map.values().for_each(|arg| arg.visit_names(visit)),
            _ => {}
        }
    }

    /// Every value name, in order.
    pub fn names(&self) -> Vec<&str> {
        let mut out = Vec::new();
        self.visit_names(&mut |name| out.push(name));
        out
    }
}

/// How an operand is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Passing {
    #[default]
    Positional,
    Keyword,
}

/// An operand with its name in the operator's schema. Positional operands of higher-order calls
/// have an empty name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedArgument {
    pub name: String,
    pub passing: Passing,
    pub arg: Argument,
}

impl NamedArgument {
    /// Creates an operand passed by position.
    pub fn positional(name: impl Into<String>, arg: Argument) -> NamedArgument {
        NamedArgument { name: name.into(), passing: Passing::Positional, arg }
    }
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The called operator: `torch.ops.aten.linear.default`, `_operator.add`,
    /// `torch.ops.higher_order.cond`, …
    pub target: String,
    /// A label, which older archives lack.
    pub name: Option<String>,
    /// Operands in schema order. Operands with default values may be absent, so read operands by
    /// name.
    pub inputs: Vec<NamedArgument>,
    /// One entry per result of the schema. A list result is one entry.
    pub outputs: Vec<Argument>,
    pub metadata: Metadata,
    /// For a higher-order call with one result: whether it returns a bare value instead of a tuple.
    pub hop_single_tensor: Option<bool>,
}

impl Node {
    /// Creates a call without annotations, labelled with its first result's name.
    pub fn call(target: impl Into<String>, inputs: Vec<NamedArgument>, outputs: Vec<Argument>) -> Node {
        let name = outputs.first().and_then(|o| o.names().first().map(|&n| n.to_owned()));
        Node { target: target.into(), name, inputs, outputs, metadata: Metadata::default(), hop_single_tensor: None }
    }

    /// The operand with this name, if given.
    pub fn arg(&self, name: &str) -> Option<&Argument> {
        self.inputs.iter().find(|input| input.name == name).map(|input| &input.arg)
    }

    /// Source location of the call, for diagnostics.
    pub fn source(&self) -> SourceLocation {
        self.metadata.source()
    }

    /// Names of all results, in order.
    pub fn output_names(&self) -> Vec<&str> {
        self.outputs.iter().flat_map(Argument::names).collect()
    }
}

/// Calls in order of execution, with metadata of every value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    pub nodes: Vec<Node>,
    /// Metadata of every tensor value, including unused results.
    pub tensors: IndexMap<String, TensorMeta>,
    /// Tensor values whose element type has no [`DType`]. They are absent from `tensors`.
    pub foreign_tensors: IndexMap<String, ScalarType>,
    pub sym_ints: IndexMap<String, Expr>,
    pub sym_bools: IndexMap<String, SymBool>,
    pub sym_floats: IndexMap<String, SymFloat>,
    /// For a sub-graph with one output: whether it is returned bare instead of in a tuple.
    pub single_tensor_return: bool,
}

impl Graph {
    /// Metadata of a tensor value.
    ///
    /// # Errors
    /// [`Error::ElementType`] for a value in [`Graph::foreign_tensors`], [`Error::Graph`] for a
    /// name without an entry.
    pub fn tensor(&self, name: &str) -> Result<&TensorMeta> {
        match (self.tensors.get(name), self.foreign_tensors.get(name)) {
            (Some(meta), _) => Ok(meta),
            (None, Some(&dtype)) => Err(Error::ElementType { name: name.into(), dtype }),
            (None, None) => Err(Error::Graph(GraphFault::Unknown(name.into()))),
        }
    }

    /// Checks definitions here and in sub-graphs. Every value must be defined once and before its
    /// use, and every tensor value must have an entry.
    ///
    /// # Errors
    /// [`Error::Graph`] names the node and the value.
    pub fn check(&self) -> Result<()> {
        let mut defined = HashSet::new();
        let define = |name: &str, by: &str, defined: &mut HashSet<String>| match defined.insert(name.to_owned()) {
            true => Ok(()),
            false => Err(Error::Graph(GraphFault::Redefined { value: name.into(), by: by.into() })),
        };
        for name in self.inputs.iter().flat_map(Argument::names) {
            define(name, "the inputs", &mut defined)?;
        }
        for node in &self.nodes {
            for input in &node.inputs {
                self.check_uses(&input.arg, &defined, &node.target)?;
            }
            for name in node.output_names() {
                define(name, &node.target, &mut defined)?;
            }
            node.outputs.iter().try_for_each(|arg| self.check_uses(arg, &defined, &node.target))?;
        }
        self.outputs.iter().try_for_each(|arg| self.check_uses(arg, &defined, "the outputs"))
    }

    fn check_uses(&self, arg: &Argument, defined: &HashSet<String>, user: &str) -> Result<()> {
        if let Argument::Graph(sub) = arg {
            return sub.graph.check();
        }
        if let Argument::Dict(map) = arg {
            return map.values().try_for_each(|arg| self.check_uses(arg, defined, user));
        }
        let is_tensor = matches!(
            arg,
            Argument::Tensor(_)
                | Argument::OptionalTensor(_)
                | Argument::Tensors(_)
                | Argument::OptionalTensors(_)
                | Argument::NestedTensors(_)
        );
        for name in arg.names() {
            if !defined.contains(name) {
                return Err(Error::Graph(GraphFault::Undefined { value: name.into(), user: user.into() }));
            }
            if is_tensor && !self.tensors.contains_key(name) && !self.foreign_tensors.contains_key(name) {
                return Err(Error::Graph(GraphFault::UnknownOperand { value: name.into(), user: user.into() }));
            }
        }
        Ok(())
    }

    /// The graphs that calls of this graph run directly, in order.
    pub fn subgraphs(&self) -> impl Iterator<Item = &Subgraph> {
        self.nodes.iter().flat_map(|node| &node.inputs).filter_map(|input| match &input.arg {
            Argument::Graph(sub) => Some(&**sub),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relu(x: &str, y: &str) -> Node {
        let inputs = vec![NamedArgument::positional("self", Argument::Tensor(x.into()))];
        Node::call("torch.ops.aten.relu.default", inputs, vec![Argument::Tensor(y.into())])
    }

    fn check(nodes: Vec<Node>, output: &str, want: &str) {
        let meta = TensorMeta::new(DType::F32, vec![Expr::Int(2), Expr::Int(3)]);
        let tensors = ["x", "y"].map(|n| (n.to_owned(), meta.clone())).into_iter().collect();
        let (inputs, outputs) = (vec![Argument::Tensor("x".into())], vec![Argument::Tensor(output.into())]);
        let graph = Graph { inputs, outputs, nodes, tensors, ..Graph::default() };
        assert_eq!(graph.check().map_or_else(|e| e.to_string(), |()| "ok".into()), want);
    }

    #[test]
    fn values_are_defined_once_and_before_use() {
        let target = "torch.ops.aten.relu.default";
        check(vec![relu("x", "y")], "y", "ok");
        check(vec![], "y", "graph: value `y` is used by the outputs before it is defined");
        check(vec![relu("y", "y")], "y", &format!("graph: value `y` is used by {target} before it is defined"));
        check(vec![relu("x", "x")], "x", &format!("graph: value `x` of {target} is defined twice"));
        check(vec![relu("x", "z")], "z", &format!("graph: nothing is known of tensor value `z` of {target}"));
    }

    #[test]
    fn row_major_strides_follow_the_sizes() {
        let s = Expr::symbol(flambeau_tensor::Symbol::new("s"));
        let meta = TensorMeta::new(DType::F32, vec![s, Expr::Int(3), Expr::Int(4)]);
        assert_eq!(meta.strides, [12, 4, 1].map(Expr::Int));
    }
}
