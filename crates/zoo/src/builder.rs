//! Writes the graph of a program call by call.

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

impl From<usize> for Int {
    fn from(value: usize) -> Int {
        Int { arg: SymArg::Literal(value as i64), expr: Expr::Int(value as i64) }
    }
}

fn tensor(name: &str, value: &Val) -> NamedArgument {
    NamedArgument::positional(name, Argument::Tensor(value.name.clone()))
}

fn int(name: &str, value: i64) -> NamedArgument {
    NamedArgument::positional(name, Argument::Int(value))
}

fn position(name: &str, value: &Int) -> NamedArgument {
    NamedArgument::positional(name, Argument::SymInt(value.arg.clone()))
}

/// How the rotary operator turns pairs: the constants of all its calls.
#[derive(Clone, Debug)]
pub(crate) struct Rotary {
    pub(crate) dims: usize,
    pub(crate) base: f64,
    pub(crate) scale: f64,
    pub(crate) periods: Option<Val>,
}

/// The graph so far. Weights become inputs when they are first read, and come before the caller's inputs in the end.
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
}

const PARAMETERS: usize = 0;
const BUFFERS: usize = 1;
const CONSTANTS: usize = 2;

impl Builder {
    /// States for what module the next calls are.
    pub(crate) fn enter(&mut self, module: impl Into<String>) {
        self.module = module.into();
    }

    /// A size that the caller chooses, within a range.
    pub(crate) fn symbol(&mut self, name: &str, low: usize, high: usize) -> Expr {
        let symbol = Symbol::new(name);
        self.ranges.insert(symbol.clone(), (Some(low as i64), Some(high as i64)));
        Expr::symbol(symbol)
    }

    /// A tensor of the caller.
    pub(crate) fn input(&mut self, name: &str, dtype: DType, dims: Vec<Expr>) -> Val {
        let value = self.define(name.to_owned(), dtype, dims);
        self.users.push(InputSpec::UserInput(Argument::Tensor(value.name.clone())));
        value
    }

    /// A weight by its qualified name; the same value for the same name.
    pub(crate) fn parameter(&mut self, name: &str, weight: Weight) -> Val {
        let arg = format!("p_{}", name.replace('.', "_"));
        if !self.weights.contains_key(name) {
            self.held[PARAMETERS].push(InputSpec::Parameter { arg: arg.clone(), name: name.to_owned() });
        }
        let value = self.held_value(arg, &weight);
        self.weights.insert(name.to_owned(), weight);
        value
    }

    /// State of the program that starts as zeros.
    ///
    /// # Errors
    /// [`Error::Option`] if it cannot be addressed.
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

    /// A constant of the family's own making.
    pub(crate) fn constant(&mut self, name: &str, constant: &Tensor) -> Val {
        let weight = Weight::from_tensor(name, constant);
        let arg = format!("c_{name}");
        self.held[CONSTANTS].push(InputSpec::TensorConstant { arg: arg.clone(), name: name.to_owned() });
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

    /// A call with results under a new name made from its operator's.
    fn node(&mut self, target: &str, inputs: Vec<NamedArgument>, output: impl FnOnce(String) -> Argument) -> String {
        let op = target.split('.').nth(1).unwrap_or(target);
        let name = format!("{op}_{}", self.graph.nodes.len());
        let mut node = Node::call(format!("torch.ops.{target}"), inputs, vec![output(name.clone())]);
        let stack = format!("{0},{0},Module", self.module);
        node.metadata = Metadata::from_entries([("nn_module_stack", stack.as_str())]);
        self.graph.nodes.push(node);
        name
    }

    /// A call with one tensor result.
    pub(crate) fn call(&mut self, target: &str, inputs: Vec<NamedArgument>, dtype: DType, dims: Vec<Expr>) -> Val {
        let name = self.node(target, inputs, Argument::Tensor);
        self.define(name, dtype, dims)
    }

    fn call_int(&mut self, target: &str, inputs: Vec<NamedArgument>, expr: Expr) -> Int {
        let name = self.node(target, inputs, |name| Argument::SymInt(SymArg::Name(name)));
        self.graph.sym_ints.insert(name.clone(), expr.clone());
        Int { arg: SymArg::Name(name), expr }
    }

    /// One size of `x` as an integer value.
    pub(crate) fn size(&mut self, x: &Val, dim: usize) -> Int {
        let expr = x.dims.get(dim).cloned().unwrap_or(Expr::Int(1));
        self.call_int("aten.sym_size.int", vec![tensor("self", x), int("dim", dim as i64)], expr)
    }

    /// The first element of an integer vector [n] as an integer value, which the caller promises to be `expr`.
    pub(crate) fn first(&mut self, x: &Val, expr: Expr) -> Int {
        let select = vec![tensor("self", x), int("dim", 0), int("index", 0)];
        let item = self.call("aten.select.int", select, x.dtype, Vec::new());
        self.call_int("aten.item.default", vec![tensor("self", &item)], expr)
    }

    /// `x` [.., in] times `weight` [out, in] transposed, plus `bias` [out].
    pub(crate) fn linear(&mut self, x: &Val, weight: &Val, bias: Option<&Val>) -> Val {
        let mut inputs = vec![tensor("input", x), tensor("weight", weight)];
        inputs.extend(bias.map(|b| tensor("bias", b)));
        let mut dims = x.dims.clone();
        if let (Some(last), Some(out)) = (dims.last_mut(), weight.dims.first()) {
            *last = out.clone();
        }
        self.call("aten.linear.default", inputs, x.dtype, dims)
    }

    /// Rows of `weight` [n, d] by `ids` [..].
    pub(crate) fn embedding(&mut self, weight: &Val, ids: &Val) -> Val {
        let dims = ids.dims.iter().chain(weight.dims.last()).cloned().collect();
        self.call("aten.embedding.default", vec![tensor("weight", weight), tensor("indices", ids)], weight.dtype, dims)
    }

    /// Values of packed codes `[rows, words]`, as a matrix `[rows, cols]` of `dtype`.
    pub(crate) fn dequantize(&mut self, [words, scales, biases]: [&Val; 3], group: usize, bits: usize, dtype: DType) -> Val {
        let inputs = vec![
            tensor("words", words),
            tensor("scales", scales),
            tensor("biases", biases),
            int("group_size", group as i64),
            int("bits", bits as i64),
            NamedArgument::positional("mode", Argument::String("affine".into())),
            NamedArgument::positional("output_dtype", Argument::ScalarType(dtype.into())),
        ];
        let mut dims = scales.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = last.clone() * Expr::Int(group as i64);
        }
        self.call("flambeau.dequantize_packed.default", inputs, dtype, dims)
    }

    /// Root-mean-square norm over the last axis.
    pub(crate) fn rms_norm(&mut self, x: &Val, weight: &Val, eps: f64) -> Val {
        let shape = weight.dims.iter().filter_map(Expr::as_int).collect();
        let shape = NamedArgument::positional("normalized_shape", Argument::Ints(shape));
        let eps = NamedArgument::positional("eps", Argument::Float(eps));
        let inputs = vec![tensor("input", x), shape, tensor("weight", weight), eps];
        self.call("aten.rms_norm.default", inputs, x.dtype, x.dims.clone())
    }

    fn binary(&mut self, target: &str, a: &Val, b: &Val) -> Val {
        self.call(target, vec![tensor("self", a), tensor("other", b)], a.dtype, a.dims.clone())
    }

    /// `a + b`, `b` of the shape of `a` or one that broadcasts to it.
    pub(crate) fn add(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.add.Tensor", a, b)
    }

    /// `a * b`, `b` of the shape of `a` or one that broadcasts to it.
    pub(crate) fn mul(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.mul.Tensor", a, b)
    }

    /// `x * sigmoid(x)`.
    pub(crate) fn silu(&mut self, x: &Val) -> Val {
        self.call("aten.silu.default", vec![tensor("self", x)], x.dtype, x.dims.clone())
    }

    /// The same elements in other sizes.
    pub(crate) fn reshape(&mut self, x: &Val, sizes: &[Int]) -> Val {
        let shape = Argument::SymInts(sizes.iter().map(|s| s.arg.clone()).collect());
        let dims = sizes.iter().map(|s| s.expr.clone()).collect();
        self.call("aten.reshape.default", vec![tensor("self", x), NamedArgument::positional("shape", shape)], x.dtype, dims)
    }

    /// Two axes exchanged.
    pub(crate) fn transpose(&mut self, x: &Val, a: usize, b: usize) -> Val {
        let mut dims = x.dims.clone();
        dims.swap(a, b);
        let inputs = vec![tensor("self", x), int("dim0", a as i64), int("dim1", b as i64)];
        self.call("aten.transpose.int", inputs, x.dtype, dims)
    }

    /// The last position of `x` [1, s, d], as [1, 1, d].
    pub(crate) fn last_position(&mut self, x: &Val) -> Val {
        let (mut one, mut none) = (x.dims.clone(), x.dims.clone());
        none.remove(1);
        one[1] = Expr::Int(1);
        let select = vec![tensor("self", x), int("dim", 1), int("index", -1)];
        let last = self.call("aten.select.int", select, x.dtype, none);
        self.call("aten.unsqueeze.default", vec![tensor("self", &last), int("dim", 1)], x.dtype, one)
    }

    /// Rotary embedding of `x` [1, H, s, D] whose first position is `pos`.
    pub(crate) fn rope(&mut self, x: &Val, pos: &Int, rotary: &Rotary) -> Val {
        let mut inputs = vec![
            tensor("x", x),
            int("dims", rotary.dims as i64),
            position("pos", pos),
            NamedArgument::positional("traditional", Argument::Bool(false)),
            NamedArgument::positional("base", Argument::Float(rotary.base)),
            NamedArgument::positional("scale", Argument::Float(rotary.scale)),
        ];
        inputs.extend(rotary.periods.as_ref().map(|periods| tensor("freqs", periods)));
        self.call("mlx.rope.default", inputs, x.dtype, x.dims.clone())
    }

    /// Writes `new` [1, H, s, D] into the buffer `cache` [1, H, n, D] from row `pos` on.
    pub(crate) fn cache_update(&mut self, cache: &Val, new: &Val, pos: &Int) {
        let inputs = vec![tensor("cache", cache), tensor("new_values", new), position("start_pos", pos)];
        // The operator's own result says nothing.
        self.call("mlx.kv_cache_update.default", inputs, cache.dtype, vec![Expr::Int(1)]);
    }

    /// Causal attention of queries [1, H, s, D] over the first `pos + s` rows of caches [1, Hk, n, D].
    pub(crate) fn attention(&mut self, [q, k, v]: [&Val; 3], pos: &Int, scale: f64) -> Val {
        let inputs = vec![
            tensor("query", q),
            tensor("key", k),
            tensor("value", v),
            position("start_pos", pos),
            NamedArgument::positional("attn_mask", Argument::None),
            NamedArgument::positional("dropout_p", Argument::Float(0.0)),
            NamedArgument::positional("is_causal", Argument::Bool(true)),
            NamedArgument::positional("scale", Argument::Float(scale)),
        ];
        self.call("mlx.custom_sdpa.default", inputs, q.dtype, q.dims.clone())
    }

    /// The program that returns `output`.
    ///
    /// # Errors
    /// A value that is used before it is defined.
    pub(crate) fn finish(self, output: &Val) -> Result<Exported> {
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
        let result = Argument::Tensor(output.name.clone());
        graph.outputs = vec![result.clone()];
        graph.check()?;
        let outputs = vec![OutputSpec::UserOutput(result)];
        Ok(Exported {
            graph,
            signature: Signature { inputs, outputs },
            ranges,
            expression_ranges: Vec::new(),
            guards: Vec::new(),
            in_spec: in_spec(&names),
            out_spec: format!("[1, {LEAF}]"),
            forward_arg_names: names,
            torch_version: String::new(),
            dialect: flambeau_pt2::Dialect::Training,
            weights,
            constants,
        })
    }
}

const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

/// Keyword inputs of these names and no others, as PyTorch writes the structure.
fn in_spec(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().map(|n| format!("\\\"{n}\\\"")).collect();
    let leaves = vec![LEAF; names.len()].join(", ");
    let kwargs = format!(r#"{{"type": "builtins.dict", "context": "[{}]", "children_spec": [{leaves}]}}"#, quoted.join(", "));
    let args = r#"{"type": "builtins.tuple", "context": "null", "children_spec": []}"#;
    format!(r#"[1, {{"type": "builtins.tuple", "context": "null", "children_spec": [{args}, {kwargs}]}}]"#)
}
