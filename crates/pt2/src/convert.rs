//! Converts the archive's JSON to the public types.

use std::collections::HashMap;

use flambeau_tensor::{Bytes, Expr, Symbol};
use indexmap::IndexMap;

use crate::{
    Argument, Device, Dialect, Error, Graph, GraphFault, InputSpec, Layout, Limited, MemoryFormat, Metadata, NamedArgument, Node,
    OutputSpec, Passing, Result, ScalarType, Signature, Subgraph, SymArg, SymBool, SymFloat, TensorMeta,
    exported::Range,
    limits::{MAX_GRAPH_NESTING, MAX_NODES, MAX_RANK},
    schema, symbolic,
};

/// A tensor entry. The graph keeps full metadata only for storable element types.
pub(crate) enum Meta {
    Known(TensorMeta),
    Foreign(ScalarType, Vec<Expr>),
}

/// Converts one program. Symbolic texts recur often, so each is parsed once.
pub(crate) struct Converter<'a> {
    json: &'a Bytes,
    expressions: HashMap<String, Expr>,
    /// Largest size that the program records for each symbol.
    recorded: HashMap<Symbol, i64>,
    nodes: usize,
    depth: usize,
}

impl<'a> Converter<'a> {
    /// Creates a converter. `json` is the source text of the schema values.
    pub(crate) fn new(json: &'a Bytes) -> Converter<'a> {
        Converter { json, expressions: HashMap::new(), recorded: HashMap::new(), nodes: 0, depth: 0 }
    }

    fn expr(&mut self, text: String) -> Result<Expr> {
        if let Some(known) = self.expressions.get(&text) {
            return Ok(known.clone());
        }
        let expr = symbolic::parse_int(&text)?;
        self.expressions.insert(text, expr.clone());
        Ok(expr)
    }

    /// Ranges of symbols and of expressions. Keys that cannot be parsed are skipped, because they
    /// constrain no evaluable value. If a symbol's recorded size exceeds its range, the range is
    /// extended, because the exporter ran the program with that size.
    pub(crate) fn ranges(
        &self,
        constraints: IndexMap<String, schema::RangeConstraint>,
    ) -> (IndexMap<Symbol, Range>, Vec<(Expr, Range)>) {
        let (mut symbols, mut expressions) = (IndexMap::new(), Vec::new());
        for (key, constraint) in constraints {
            let mut range = (constraint.min_val, constraint.max_val);
            match symbolic::parse_int(&key) {
                Ok(expr) => match expr.as_symbol() {
                    Some(symbol) => {
                        range.1 = range.1.max(self.recorded.get(symbol).copied().filter(|_| range.1.is_some()));
                        symbols.insert(symbol.clone(), range);
                    }
                    None => expressions.push((expr, range)),
                },
                Err(_) => continue,
            }
        }
        (symbols, expressions)
    }

    fn sym_int(&mut self, value: schema::SymInt) -> Result<Expr> {
        match value {
            schema::SymInt::AsInt(v) => Ok(Expr::Int(v)),
            schema::SymInt::AsExpr(e) => {
                let (expr, size) = (self.expr(e.expr_str)?, e.hint.and_then(|hint| hint.as_int));
                if let (Some(symbol), Some(size)) = (expr.as_symbol(), size) {
                    let recorded = self.recorded.entry(symbol.clone()).or_insert(size);
                    *recorded = size.max(*recorded);
                }
                Ok(expr)
            }
        }
    }

    pub(crate) fn tensor_meta(&mut self, meta: schema::TensorMeta) -> Result<Meta> {
        let rank = meta.sizes.len().max(meta.strides.len());
        if rank > MAX_RANK {
            return Err(Error::limit(Limited::Rank, rank, MAX_RANK));
        }
        let sizes = meta.sizes.into_iter().map(|s| self.sym_int(s)).collect::<Result<Vec<_>>>()?;
        let dtype = match ScalarType::from_number(meta.dtype)? {
            ScalarType::Known(dtype) => dtype,
            foreign => return Ok(Meta::Foreign(foreign, sizes)),
        };
        Ok(Meta::Known(TensorMeta {
            dtype,
            sizes,
            strides: meta.strides.into_iter().map(|s| self.sym_int(s)).collect::<Result<_>>()?,
            storage_offset: self.sym_int(meta.storage_offset)?,
            layout: Layout::from_number(meta.layout)?,
            device: device(meta.device),
            requires_grad: meta.requires_grad,
        }))
    }

    pub(crate) fn graph(&mut self, graph: schema::Graph<'_>) -> Result<Graph> {
        self.depth += 1;
        if self.depth > MAX_GRAPH_NESTING {
            return Err(Error::limit(Limited::Nesting, self.depth, MAX_GRAPH_NESTING));
        }
        self.nodes = self.nodes.saturating_add(graph.nodes.len());
        if self.nodes > MAX_NODES {
            return Err(Error::limit(Limited::Nodes, self.nodes, MAX_NODES));
        }
        let mut out = Graph { single_tensor_return: graph.is_single_tensor_return, ..Graph::default() };
        for (name, meta) in graph.tensor_values {
            match self.tensor_meta(meta)? {
                Meta::Known(meta) => drop(out.tensors.insert(name, meta)),
                Meta::Foreign(dtype, _) => drop(out.foreign_tensors.insert(name, dtype)),
            }
        }
        for (name, value) in graph.sym_int_values {
            out.sym_ints.insert(name, self.sym_int(value)?);
        }
        for (name, value) in graph.sym_bool_values {
            out.sym_bools.insert(name, sym_bool(value)?);
        }
        out.sym_floats = graph.sym_float_values.into_iter().map(|(name, value)| (name, sym_float(value))).collect();
        out.inputs = self.arguments(graph.inputs)?;
        out.nodes = graph.nodes.into_iter().map(|node| self.node(node)).collect::<Result<_>>()?;
        out.outputs = self.arguments(graph.outputs)?;
        self.depth -= 1;
        Ok(out)
    }

    fn node(&mut self, node: schema::Node<'_>) -> Result<Node> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in node.inputs {
            let passing = if input.kind == Some(2) { Passing::Keyword } else { Passing::Positional };
            inputs.push(NamedArgument { name: input.name, passing, arg: self.argument(input.arg)? });
        }
        let metadata = node.metadata.map(|raw| Metadata::from_json(self.json.slice_ref(raw.get().as_bytes())));
        Ok(Node {
            target: node.target,
            name: node.name,
            inputs,
            outputs: self.arguments(node.outputs)?,
            metadata: metadata.unwrap_or_default(),
            hop_single_tensor: node.is_hop_single_tensor_return,
        })
    }

    fn arguments(&mut self, args: Vec<schema::Argument<'_>>) -> Result<Vec<Argument>> {
        args.into_iter().map(|arg| self.argument(arg)).collect()
    }

    fn argument(&mut self, arg: schema::Argument<'_>) -> Result<Argument> {
        use schema::Argument as A;
        Ok(match arg {
            A::AsNone(_) => Argument::None,
            A::AsTensor(t) => Argument::Tensor(t.name),
            A::AsTensors(list) => Argument::Tensors(names(list)),
            A::AsNestedTensors(lists) => Argument::NestedTensors(lists.into_iter().map(names).collect()),
            A::AsOptionalTensor(t) => Argument::OptionalTensor(optional(t)),
            A::AsOptionalTensors(list) => Argument::OptionalTensors(list.into_iter().map(optional).collect()),
            A::AsInt(v) => Argument::Int(v),
            A::AsInts(v) => Argument::Ints(v),
            A::AsIntLists(v) => Argument::IntLists(v),
            A::AsFloat(v) => Argument::Float(v.0),
            A::AsFloats(v) => Argument::Floats(floats(v)),
            A::AsFloatLists(v) => Argument::FloatLists(v.into_iter().map(floats).collect()),
            A::AsBool(v) => Argument::Bool(v),
            A::AsBools(v) => Argument::Bools(v),
            A::AsString(v) => Argument::String(v),
            A::AsStrings(v) => Argument::Strings(v),
            A::AsComplex(v) => Argument::Complex(v.real.0, v.imag.0),
            A::AsSymInt(v) => Argument::SymInt(sym_arg(v, |i| i)),
            A::AsSymInts(v) => Argument::SymInts(v.into_iter().map(|v| sym_arg(v, |i| i)).collect()),
            A::AsSymFloat(v) => Argument::SymFloat(sym_arg(v, |d| d.0)),
            A::AsSymFloats(v) => Argument::SymFloats(v.into_iter().map(|v| sym_arg(v, |d| d.0)).collect()),
            A::AsSymBool(v) => Argument::SymBool(sym_arg(v, |b| b)),
            A::AsSymBools(v) => Argument::SymBools(v.into_iter().map(|v| sym_arg(v, |b| b)).collect()),
            A::AsScalarType(v) => Argument::ScalarType(ScalarType::from_number(v)?),
            A::AsMemoryFormat(v) => Argument::MemoryFormat(MemoryFormat::from_number(v)?),
            A::AsLayout(v) => Argument::Layout(Layout::from_number(v)?),
            A::AsDevice(v) => Argument::Device(device(v)),
            A::AsGraph(v) => Argument::Graph(Box::new(Subgraph { name: v.name, graph: self.graph(v.graph)? })),
            A::AsCustomObj(v) => Argument::CustomObj { name: v.name, class: v.class_fqn },
            A::AsOperator(v) => Argument::Operator(v),
            A::AsStringToArgument(map) => {
                let entries = map.into_iter().map(|(key, arg)| Ok((key, self.argument(arg)?)));
                Argument::Dict(entries.collect::<Result<IndexMap<_, _>>>()?)
            }
        })
    }

    pub(crate) fn signature(&mut self, signature: schema::GraphSignature<'_>, graph: &Graph) -> Result<Signature> {
        let inputs = signature.input_specs.into_iter().map(|s| self.input_spec(s)).collect::<Result<Vec<_>>>()?;
        let outputs = signature.output_specs.into_iter().map(|s| self.output_spec(s)).collect::<Result<Vec<_>>>()?;
        for (what, specs, values) in [("inputs", inputs.len(), graph.inputs.len()), ("outputs", outputs.len(), graph.outputs.len())]
        {
            if specs != values {
                return Err(Error::Graph(GraphFault::Signature { what, specs, values }));
            }
        }
        Ok(Signature { inputs, outputs })
    }

    fn input_spec(&mut self, spec: schema::InputSpec<'_>) -> Result<InputSpec> {
        use schema::InputSpec as S;
        Ok(match spec {
            S::Parameter { arg, parameter_name } => InputSpec::Parameter { arg: arg.name, name: parameter_name },
            S::Buffer { arg, buffer_name, persistent } => InputSpec::Buffer { arg: arg.name, name: buffer_name, persistent },
            S::TensorConstant { arg, tensor_constant_name } => {
                InputSpec::TensorConstant { arg: arg.name, name: tensor_constant_name }
            }
            S::CustomObj { arg, custom_obj_name } => InputSpec::CustomObj { arg: arg.name, name: custom_obj_name },
            S::Token { arg } => InputSpec::Token { arg: arg.name },
            S::UserInput { arg } => InputSpec::UserInput(self.argument(arg)?),
            S::ConstantInput { name, value } => InputSpec::ConstantInput { name, value: self.argument(value)? },
        })
    }

    fn output_spec(&mut self, spec: schema::OutputSpec<'_>) -> Result<OutputSpec> {
        use schema::OutputSpec as S;
        Ok(match spec {
            S::UserOutput { arg } => OutputSpec::UserOutput(self.argument(arg)?),
            S::LossOutput { arg } => OutputSpec::LossOutput { arg: arg.name },
            S::BufferMutation { arg, buffer_name } => OutputSpec::BufferMutation { arg: arg.name, name: buffer_name },
            S::ParameterMutation { arg, parameter_name } => OutputSpec::ParameterMutation { arg: arg.name, name: parameter_name },
            S::GradientToParameter { arg, parameter_name } => {
                OutputSpec::GradientToParameter { arg: arg.name, name: parameter_name }
            }
            S::GradientToUserInput { arg, user_input_name } => {
                OutputSpec::GradientToUserInput { arg: arg.name, name: user_input_name }
            }
            S::UserInputMutation { arg, user_input_name } => OutputSpec::UserInputMutation { arg: arg.name, name: user_input_name },
            S::Token { arg } => OutputSpec::Token { arg: arg.name },
        })
    }
}

/// The dialect named by the verifiers. Archives without a name come from exporters of functional
/// graphs.
pub(crate) fn dialect(verifiers: &[String]) -> Dialect {
    if verifiers.iter().any(|v| v == "TRAINING") { Dialect::Training } else { Dialect::Aten }
}

fn names(list: Vec<schema::Name>) -> Vec<String> {
    list.into_iter().map(|n| n.name).collect()
}

fn floats(list: Vec<schema::Double>) -> Vec<f64> {
    list.into_iter().map(|d| d.0).collect()
}

fn optional(tensor: schema::OptionalTensor) -> Option<String> {
    match tensor {
        schema::OptionalTensor::Tensor(t) => Some(t.name),
        schema::OptionalTensor::None(_) => None,
    }
}

fn device(device: schema::Device) -> Device {
    Device { kind: device.kind, index: device.index }
}

fn sym_arg<T, U>(arg: schema::SymArg<T>, f: impl Fn(T) -> U) -> SymArg<U> {
    match arg {
        schema::SymArg::Name(name) => SymArg::Name(name),
        schema::SymArg::Literal(value) => SymArg::Literal(f(value)),
    }
}

fn sym_bool(value: schema::SymBool) -> Result<SymBool> {
    match value {
        schema::SymBool::AsBool(v) => Ok(SymBool::Known(v)),
        schema::SymBool::AsExpr(e) => symbolic::parse_bool(&e.expr_str),
    }
}

fn sym_float(value: schema::SymFloat) -> SymFloat {
    match value {
        schema::SymFloat::AsFloat(v) => SymFloat::Known(v.0),
        schema::SymFloat::AsExpr(e) => SymFloat::Expr(e.expr_str.into()),
    }
}
