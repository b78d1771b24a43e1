//! Operators of models, each with the sizes of its result. This file holds integers, products and
//! lookups, and its siblings hold the rest.

use flambeau_pt2::{Argument, NamedArgument, SymArg};
use flambeau_tensor::{DType, Expr};

use super::{Builder, Int, Val};
use crate::codes::Codes;

pub(super) fn arg(name: &str, value: Argument) -> NamedArgument {
    NamedArgument::positional(name, value)
}

pub(super) fn tensor(name: &str, value: &Val) -> NamedArgument {
    arg(name, Argument::Tensor(value.name.clone()))
}

pub(super) fn tensors(name: &str, list: &[&Val]) -> NamedArgument {
    arg(name, Argument::Tensors(list.iter().map(|v| v.name.clone()).collect()))
}

pub(super) fn int(name: &str, value: i64) -> NamedArgument {
    arg(name, Argument::Int(value))
}

pub(super) fn float(name: &str, value: f64) -> NamedArgument {
    arg(name, Argument::Float(value))
}

pub(super) fn size(name: &str, value: &Int) -> NamedArgument {
    arg(name, Argument::SymInt(value.arg.clone()))
}

pub(super) fn dtype(name: &str, value: DType) -> NamedArgument {
    arg(name, Argument::ScalarType(value.into()))
}

/// Broadcast shape of two shapes.
pub(super) fn broadcast(a: &[Expr], b: &[Expr]) -> Vec<Expr> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let lead = long.len() - short.len();
    let mut dims = long.to_vec();
    for (d, s) in dims[lead..].iter_mut().zip(short) {
        if *d == Expr::Int(1) {
            *d = s.clone();
        }
    }
    dims
}

/// Sizes and integers.
impl Builder {
    /// One size of `x` as an integer value.
    pub(crate) fn size(&mut self, x: &Val, dim: usize) -> Int {
        let expr = x.dims.get(dim).cloned().unwrap_or(Expr::Int(1));
        self.call_int("torch.ops.aten.sym_size.int", vec![tensor("self", x), int("dim", dim as i64)], expr)
    }

    /// The first element of an integer vector [n], as a tensor [] and as an integer value. The
    /// caller guarantees that it equals `expr`.
    pub(crate) fn first(&mut self, x: &Val, expr: Expr) -> (Val, Int) {
        let select = vec![tensor("self", x), int("dim", 0), int("index", 0)];
        let item = self.call("aten.select.int", select, x.dtype, Vec::new());
        let value = self.call_int("torch.ops.aten.item.default", vec![tensor("self", &item)], expr);
        (item, value)
    }

    /// The integers `start..end`, f32 [end - start].
    pub(crate) fn places(&mut self, start: &Int, end: &Int) -> Val {
        let inputs = vec![size("start", start), size("end", end), dtype("dtype", DType::F32)];
        self.call("aten.arange.start", inputs, DType::F32, vec![end.expr.clone() - start.expr.clone()])
    }

    /// `a + b`.
    pub(crate) fn add_int(&mut self, a: &Int, b: &Int) -> Int {
        let expr = a.expr.clone() + b.expr.clone();
        if let (SymArg::Literal(a), SymArg::Literal(b)) = (&a.arg, &b.arg) {
            return Int { arg: SymArg::Literal(a + b), expr };
        }
        self.call_int("_operator.add", vec![size("a", a), size("b", b)], expr)
    }

    /// `a * b`.
    pub(crate) fn mul_int(&mut self, a: &Int, b: &Int) -> Int {
        self.call_int("_operator.mul", vec![size("a", a), size("b", b)], a.expr.clone() * b.expr.clone())
    }

    /// `a - b`.
    pub(crate) fn sub_int(&mut self, a: &Int, b: &Int) -> Int {
        self.call_int("_operator.sub", vec![size("a", a), size("b", b)], a.expr.clone() - b.expr.clone())
    }

    /// The integers below `end`, i64 [end].
    pub(crate) fn count(&mut self, end: &Int) -> Val {
        let inputs = vec![size("end", end), dtype("dtype", DType::I64)];
        self.call("aten.arange.default", inputs, DType::I64, vec![end.expr.clone()])
    }
}

/// Products and lookups.
impl Builder {
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

    /// `a` [.., n, k] times `b` [.., k, m], leading axes broadcast.
    pub(crate) fn matmul(&mut self, a: &Val, b: &Val) -> Val {
        let mut dims = broadcast(&a.dims[..a.dims.len() - 2], &b.dims[..b.dims.len() - 2]);
        dims.extend([a.dims[a.dims.len() - 2].clone(), b.dims[b.dims.len() - 1].clone()]);
        self.call("aten.matmul.default", vec![tensor("self", a), tensor("other", b)], a.dtype, dims)
    }

    /// `x` [n, k or 1, 1, in] times the matrices of the `chosen` experts [n, k] in `weights`
    /// [experts, in, out]. Returns [n, k, 1, out].
    pub(crate) fn gather_matmul(&mut self, x: &Val, weights: &Val, chosen: &Val) -> Val {
        let dims = chosen.dims.iter().chain([&Expr::Int(1), &weights.dims[2]]).cloned().collect();
        self.call("mlx.gather_mm.default", vec![tensor("a", x), tensor("b", weights), tensor("rhs_indices", chosen)], x.dtype, dims)
    }

    /// Rows of `weight` [n, d] by `ids` [..].
    pub(crate) fn embedding(&mut self, weight: &Val, ids: &Val) -> Val {
        let dims = ids.dims.iter().chain(weight.dims.last()).cloned().collect();
        self.call("aten.embedding.default", vec![tensor("weight", weight), tensor("indices", ids)], weight.dtype, dims)
    }

    /// Entries of `x` [n, ..] by integers [..].
    pub(crate) fn pick(&mut self, x: &Val, ids: &Val) -> Val {
        let dims = ids.dims.iter().chain(&x.dims[1..]).cloned().collect();
        let indices = arg("indices", Argument::OptionalTensors(vec![Some(ids.name.clone())]));
        self.call("aten.index.Tensor", vec![tensor("self", x), indices], x.dtype, dims)
    }

    /// Elements of `x` along its last axis by `ids` of the same rank.
    pub(crate) fn gather_last(&mut self, x: &Val, ids: &Val) -> Val {
        self.call("aten.gather.default", vec![tensor("self", x), int("dim", -1), tensor("index", ids)], x.dtype, ids.dims.clone())
    }

    /// Values of packed codes `[.., rows, words]`, as matrices `[.., rows, cols]` of type `to`.
    pub(crate) fn dequantize(&mut self, [words, scales]: [&Val; 2], biases: Option<&Val>, codes: Codes, to: DType) -> Val {
        let inputs = vec![
            tensor("words", words),
            tensor("scales", scales),
            biases.map_or(arg("biases", Argument::None), |biases| tensor("biases", biases)),
            int("group_size", codes.group as i64),
            int("bits", codes.bits as i64),
            arg("mode", Argument::String(codes.mode.name().into())),
            dtype("output_dtype", to),
        ];
        let mut dims = scales.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = last.clone() * Expr::Int(codes.group as i64);
        }
        self.call("flambeau.dequantize_packed.default", inputs, to, dims)
    }
}
