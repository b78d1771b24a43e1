//! The operators that decoders are made of, each with the sizes of its result.

use flambeau_pt2::{Argument, NamedArgument, SymArg};
use flambeau_tensor::{DType, Expr};

use super::{Builder, Int, Val};
use crate::source::Codes;

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

fn size(name: &str, value: &Int) -> NamedArgument {
    arg(name, Argument::SymInt(value.arg.clone()))
}

fn dtype(name: &str, value: DType) -> NamedArgument {
    arg(name, Argument::ScalarType(value.into()))
}

/// What two shapes broadcast to.
fn broadcast(a: &[Expr], b: &[Expr]) -> Vec<Expr> {
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

/// How the rotary operator turns pairs: the constants of all its calls.
#[derive(Clone, Debug)]
pub(crate) struct Rotary {
    pub(crate) dims: usize,
    pub(crate) base: f64,
    pub(crate) scale: f64,
    pub(crate) interleaved: bool,
    pub(crate) periods: Option<Val>,
}

/// Sizes and integers.
impl Builder {
    /// One size of `x` as an integer value.
    pub(crate) fn size(&mut self, x: &Val, dim: usize) -> Int {
        let expr = x.dims.get(dim).cloned().unwrap_or(Expr::Int(1));
        self.call_int("torch.ops.aten.sym_size.int", vec![tensor("self", x), int("dim", dim as i64)], expr)
    }

    /// The first element of an integer vector [n], as a tensor [] and as an integer value, which the caller promises to be `expr`.
    pub(crate) fn first(&mut self, x: &Val, expr: Expr) -> (Val, Int) {
        let select = vec![tensor("self", x), int("dim", 0), int("index", 0)];
        let item = self.call("aten.select.int", select, x.dtype, Vec::new());
        let value = self.call_int("torch.ops.aten.item.default", vec![tensor("self", &item)], expr);
        (item, value)
    }

    /// The integers from `start` to before `end`, f32 [end - start].
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

    /// For each of `chosen` [n, k] experts, `x` [n, k or 1, 1, in] times its matrix of `weights` [experts, in, out]: [n, k, 1, out].
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

/// Arithmetic.
impl Builder {
    pub(super) fn unary(&mut self, target: &str, x: &Val) -> Val {
        self.call(target, vec![tensor("self", x)], x.dtype, x.dims.clone())
    }

    fn binary(&mut self, target: &str, a: &Val, b: &Val) -> Val {
        let dims = broadcast(&a.dims, &b.dims);
        self.call(target, vec![tensor("self", a), tensor("other", b)], a.dtype, dims)
    }

    fn with_number(&mut self, target: &str, x: &Val, number: f64) -> Val {
        self.call(target, vec![tensor("self", x), float("other", number)], x.dtype, x.dims.clone())
    }

    /// `a + b`, broadcast.
    pub(crate) fn add(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.add.Tensor", a, b)
    }

    /// `a * b`, broadcast.
    pub(crate) fn mul(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.mul.Tensor", a, b)
    }

    /// `a / b`, broadcast.
    pub(crate) fn div(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.div.Tensor", a, b)
    }

    /// `a - b`, broadcast.
    pub(crate) fn sub(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.sub.Tensor", a, b)
    }

    /// `x + number`; `x` itself for 0.
    pub(crate) fn shift(&mut self, x: &Val, number: f64) -> Val {
        if number == 0.0 { x.clone() } else { self.with_number("aten.add.Tensor", x, number) }
    }

    /// `x * factor`; `x` itself for 1.
    pub(crate) fn scale(&mut self, x: &Val, factor: f64) -> Val {
        if factor == 1.0 { x.clone() } else { self.with_number("aten.mul.Tensor", x, factor) }
    }

    /// `x / divisor`; `x` itself for 1.
    pub(crate) fn divide(&mut self, x: &Val, divisor: f64) -> Val {
        if divisor == 1.0 { x.clone() } else { self.with_number("aten.div.Tensor", x, divisor) }
    }

    pub(crate) fn tanh(&mut self, x: &Val) -> Val {
        self.unary("aten.tanh.default", x)
    }

    /// `cap * tanh(x / cap)`.
    pub(crate) fn soft_cap(&mut self, x: &Val, cap: f64) -> Val {
        let x = self.divide(x, cap);
        let x = self.tanh(&x);
        self.scale(&x, cap)
    }

    pub(crate) fn relu(&mut self, x: &Val) -> Val {
        self.unary("aten.relu.default", x)
    }

    pub(crate) fn sin(&mut self, x: &Val) -> Val {
        self.unary("aten.sin.default", x)
    }

    pub(crate) fn cos(&mut self, x: &Val) -> Val {
        self.unary("aten.cos.default", x)
    }

    /// `x mod divisor` of integers, from 0 on.
    pub(crate) fn remainder(&mut self, x: &Val, divisor: i64) -> Val {
        self.call("aten.remainder.Scalar", vec![tensor("self", x), int("other", divisor)], x.dtype, x.dims.clone())
    }

    /// `x` within bounds; an infinite one is none.
    pub(crate) fn clamp(&mut self, x: &Val, low: f64, high: f64) -> Val {
        let bound = |name: &str, value: f64| if value.is_finite() { float(name, value) } else { arg(name, Argument::None) };
        let inputs = vec![tensor("self", x), bound("min", low), bound("max", high)];
        self.call("aten.clamp.default", inputs, x.dtype, x.dims.clone())
    }

    pub(crate) fn abs(&mut self, x: &Val) -> Val {
        self.unary("aten.abs.default", x)
    }

    /// The nearest integer, ties to even.
    pub(crate) fn round(&mut self, x: &Val) -> Val {
        self.unary("aten.round.default", x)
    }

    /// `x * sigmoid(x)`.
    pub(crate) fn silu(&mut self, x: &Val) -> Val {
        self.unary("aten.silu.default", x)
    }

    /// The Gaussian unit, by its tanh approximation or by erf.
    pub(crate) fn gelu(&mut self, x: &Val, by_tanh: bool) -> Val {
        let approximate = arg("approximate", Argument::String(if by_tanh { "tanh" } else { "none" }.into()));
        self.call("aten.gelu.default", vec![tensor("self", x), approximate], x.dtype, x.dims.clone())
    }

    pub(crate) fn sigmoid(&mut self, x: &Val) -> Val {
        self.unary("aten.sigmoid.default", x)
    }

    pub(crate) fn exp(&mut self, x: &Val) -> Val {
        self.unary("aten.exp.default", x)
    }

    /// `log(1 + exp(x))`.
    pub(crate) fn softplus(&mut self, x: &Val) -> Val {
        self.unary("aten.softplus.default", x)
    }

    /// `x` in another type; `x` itself if it has that type.
    pub(crate) fn cast(&mut self, x: &Val, to: DType) -> Val {
        if x.dtype == to {
            return x.clone();
        }
        self.call("aten.to.dtype", vec![tensor("self", x), dtype("dtype", to)], to, x.dims.clone())
    }
}

/// Comparisons and masks.
impl Builder {
    /// Whether `x` is `number`, elementwise.
    pub(crate) fn equals(&mut self, x: &Val, number: i64) -> Val {
        self.call("aten.eq.Scalar", vec![tensor("self", x), int("other", number)], DType::Bool, x.dims.clone())
    }

    /// Whether `x >= number`, elementwise.
    pub(crate) fn at_least(&mut self, x: &Val, number: i64) -> Val {
        self.call("aten.ge.Scalar", vec![tensor("self", x), int("other", number)], DType::Bool, x.dims.clone())
    }

    /// Whether `x < number`, elementwise.
    pub(crate) fn below(&mut self, x: &Val, number: i64) -> Val {
        self.call("aten.lt.Scalar", vec![tensor("self", x), int("other", number)], DType::Bool, x.dims.clone())
    }

    /// Whether `a <= b`, broadcast.
    pub(crate) fn at_most(&mut self, a: &Val, b: &Val) -> Val {
        let dims = broadcast(&a.dims, &b.dims);
        self.call("aten.le.Tensor", vec![tensor("self", a), tensor("other", b)], DType::Bool, dims)
    }

    pub(crate) fn and(&mut self, a: &Val, b: &Val) -> Val {
        self.binary("aten.logical_and.default", a, b)
    }

    pub(crate) fn not(&mut self, x: &Val) -> Val {
        self.unary("aten.logical_not.default", x)
    }

    /// `x` with `number` where `mask`, which broadcasts to it, is true.
    pub(crate) fn masked_fill(&mut self, x: &Val, mask: &Val, number: f64) -> Val {
        let inputs = vec![tensor("self", x), tensor("mask", mask), float("value", number)];
        self.call("aten.masked_fill.Scalar", inputs, x.dtype, x.dims.clone())
    }

    /// `x` with `number` at the places `ids` of its last axis.
    pub(crate) fn scatter_last(&mut self, x: &Val, ids: &Val, number: f64) -> Val {
        let inputs = vec![tensor("self", x), int("dim", -1), tensor("index", ids), float("value", number)];
        self.call("aten.scatter.value", inputs, x.dtype, x.dims.clone())
    }
}

/// What reduces or normalizes the last axis.
impl Builder {
    /// Root-mean-square norm, in the type of `x` and computed in f32.
    pub(crate) fn rms_norm(&mut self, x: &Val, weight: Option<&Val>, eps: f64) -> Val {
        let shape = x.dims.last().and_then(Expr::as_int).into_iter().collect();
        let shape = arg("normalized_shape", Argument::Ints(shape));
        let weight = weight.map_or(arg("weight", Argument::None), |w| tensor("weight", w));
        self.call("aten.rms_norm.default", vec![tensor("input", x), shape, weight, float("eps", eps)], x.dtype, x.dims.clone())
    }

    /// Layer norm, in the type of `x` and computed in f32.
    pub(crate) fn layer_norm(&mut self, x: &Val, weight: &Val, bias: Option<&Val>, eps: f64) -> Val {
        let shape = arg("normalized_shape", Argument::Ints(x.dims.last().and_then(Expr::as_int).into_iter().collect()));
        let bias = bias.map_or(arg("bias", Argument::None), |bias| tensor("bias", bias));
        let inputs = vec![tensor("input", x), shape, tensor("weight", weight), bias, float("eps", eps)];
        self.call("aten.layer_norm.default", inputs, x.dtype, x.dims.clone())
    }

    /// `x` [1, C, ..] by the mean and the variance [C] that each channel had in training, scaled and shifted, computed in f32.
    pub(crate) fn batch_norm(&mut self, x: &Val, [mean, variance]: [&Val; 2], [weight, bias]: [&Val; 2], eps: f64) -> Val {
        let inputs = vec![
            tensor("input", x),
            tensor("weight", weight),
            tensor("bias", bias),
            tensor("running_mean", mean),
            tensor("running_var", variance),
            arg("training", Argument::Bool(false)),
            float("momentum", 0.1),
            float("eps", eps),
            arg("cudnn_enabled", Argument::Bool(false)),
        ];
        self.call("aten.batch_norm.default", inputs, x.dtype, x.dims.clone())
    }

    /// `x` [1, C, ..] by the mean and the variance of all its elements, each channel scaled and shifted, computed in f32.
    pub(crate) fn whole_norm(&mut self, x: &Val, [weight, bias]: [&Val; 2], eps: f64) -> Val {
        let inputs =
            vec![tensor("input", x), int("num_groups", 1), tensor("weight", weight), tensor("bias", bias), float("eps", eps)];
        self.call("aten.group_norm.default", inputs, x.dtype, x.dims.clone())
    }

    pub(crate) fn softmax(&mut self, x: &Val) -> Val {
        self.call("aten.softmax.int", vec![tensor("self", x), int("dim", -1)], x.dtype, x.dims.clone())
    }

    fn reduced(x: &Val) -> Vec<Expr> {
        let mut dims = x.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = Expr::Int(1);
        }
        dims
    }

    /// The sum, of size 1.
    pub(crate) fn sum(&mut self, x: &Val) -> Val {
        let inputs = vec![tensor("self", x), arg("dim", Argument::Ints(vec![-1])), arg("keepdim", Argument::Bool(true))];
        self.call("aten.sum.dim_IntList", inputs, x.dtype, Self::reduced(x))
    }

    /// The largest element, of size 1.
    pub(crate) fn largest(&mut self, x: &Val) -> Val {
        let inputs = vec![tensor("self", x), arg("dim", Argument::Ints(vec![-1])), arg("keepdim", Argument::Bool(true))];
        self.call("aten.amax.default", inputs, x.dtype, Self::reduced(x))
    }

    /// The sum over an axis, which goes.
    pub(crate) fn sum_over(&mut self, x: &Val, axis: usize) -> Val {
        let mut dims = x.dims.clone();
        dims.remove(axis);
        let inputs = vec![tensor("self", x), arg("dim", Argument::Ints(vec![axis as i64])), arg("keepdim", Argument::Bool(false))];
        self.call("aten.sum.dim_IntList", inputs, x.dtype, dims)
    }

    /// The logarithm of the sum of exponentials, of size 1.
    pub(crate) fn log_sum_exp(&mut self, x: &Val) -> Val {
        let inputs = vec![tensor("self", x), arg("dim", Argument::Ints(vec![-1])), arg("keepdim", Argument::Bool(true))];
        self.call("aten.logsumexp.default", inputs, x.dtype, Self::reduced(x))
    }

    /// The `k` largest, and their places.
    pub(crate) fn top(&mut self, x: &Val, k: usize) -> [Val; 2] {
        let mut dims = x.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = Expr::Int(k as i64);
        }
        self.call_pair("aten.topk.default", vec![tensor("self", x), int("k", k as i64)], [x.dtype, DType::I64], &dims)
    }
}

/// Views.
impl Builder {
    /// The same elements in other sizes.
    pub(crate) fn reshape(&mut self, x: &Val, sizes: &[Int]) -> Val {
        let shape = arg("shape", Argument::SymInts(sizes.iter().map(|s| s.arg.clone()).collect()));
        let dims = sizes.iter().map(|s| s.expr.clone()).collect();
        self.call("aten.reshape.default", vec![tensor("self", x), shape], x.dtype, dims)
    }

    /// Two axes exchanged.
    pub(crate) fn transpose(&mut self, x: &Val, a: usize, b: usize) -> Val {
        let mut dims = x.dims.clone();
        dims.swap(a, b);
        let inputs = vec![tensor("self", x), int("dim0", a as i64), int("dim1", b as i64)];
        self.call("aten.transpose.int", inputs, x.dtype, dims)
    }

    /// An axis of size 1 more.
    pub(crate) fn unsqueeze(&mut self, x: &Val, axis: usize) -> Val {
        let mut dims = x.dims.clone();
        dims.insert(axis, Expr::Int(1));
        self.call("aten.unsqueeze.default", vec![tensor("self", x), int("dim", axis as i64)], x.dtype, dims)
    }

    /// `start..end` of an axis.
    pub(crate) fn slice(&mut self, x: &Val, axis: usize, start: &Int, end: &Int) -> Val {
        let mut dims = x.dims.clone();
        dims[axis] = end.expr.clone() - start.expr.clone();
        let inputs = vec![tensor("self", x), int("dim", axis as i64), size("start", start), size("end", end)];
        self.call("aten.slice.Tensor", inputs, x.dtype, dims)
    }

    /// Every `step`th element of the last axis from `start` on.
    pub(crate) fn every(&mut self, x: &Val, start: usize, step: usize) -> Val {
        let axis = x.dims.len() - 1;
        let mut dims = x.dims.clone();
        dims[axis] = Expr::Int((x.dim(axis).saturating_sub(start)).div_ceil(step) as i64);
        let end = int("end", i64::MAX);
        let inputs = vec![tensor("self", x), int("dim", axis as i64), int("start", start as i64), end, int("step", step as i64)];
        self.call("aten.slice.Tensor", inputs, x.dtype, dims)
    }

    /// The last axis in parts of these sizes.
    pub(crate) fn split<const N: usize>(&mut self, x: &Val, sizes: [usize; N]) -> [Val; N] {
        let mut start = 0;
        sizes.map(|size| {
            let from = start;
            start += size;
            self.slice(x, x.dims.len() - 1, &from.into(), &start.into())
        })
    }

    /// One index of an axis, which goes.
    pub(crate) fn select(&mut self, x: &Val, axis: usize, index: i64) -> Val {
        let mut dims = x.dims.clone();
        dims.remove(axis);
        self.call("aten.select.int", vec![tensor("self", x), int("dim", axis as i64), int("index", index)], x.dtype, dims)
    }

    /// The last position of `x` [1, s, d], as [1, 1, d].
    pub(crate) fn last_position(&mut self, x: &Val) -> Val {
        let last = self.select(x, 1, -1);
        self.unsqueeze(&last, 1)
    }

    /// `a` and `b` one after the other along an axis.
    pub(crate) fn concatenate(&mut self, a: &Val, b: &Val, axis: usize) -> Val {
        self.concatenate_all(a, &[b], axis)
    }

    /// `first` and `others` one after the other along an axis.
    pub(crate) fn concatenate_all(&mut self, first: &Val, others: &[&Val], axis: usize) -> Val {
        let mut dims = first.dims.clone();
        for other in others {
            dims[axis] = dims[axis].clone() + other.dims[axis].clone();
        }
        let list: Vec<&Val> = std::iter::once(first).chain(others.iter().copied()).collect();
        self.call("aten.cat.default", vec![tensors("tensors", &list), int("dim", axis as i64)], first.dtype, dims)
    }
}

/// Attention and state.
impl Builder {
    /// Rotary embedding of `x` [1, H, s, D] whose first position is `pos`.
    pub(crate) fn rope(&mut self, x: &Val, pos: &Int, rotary: &Rotary) -> Val {
        let mut inputs = vec![
            tensor("x", x),
            int("dims", rotary.dims as i64),
            size("pos", pos),
            arg("traditional", Argument::Bool(rotary.interleaved)),
            float("base", rotary.base),
            float("scale", rotary.scale),
        ];
        inputs.extend(rotary.periods.as_ref().map(|periods| tensor("freqs", periods)));
        self.call("mlx.rope.default", inputs, x.dtype, x.dims.clone())
    }

    /// Writes `new` [1, H, s, D] into the buffer `cache` [1, H, n, D] from row `pos` on.
    pub(crate) fn cache_update(&mut self, cache: &Val, new: &Val, pos: &Int) {
        let inputs = vec![tensor("cache", cache), tensor("new_values", new), size("start_pos", pos)];
        // The operator's own result says nothing.
        self.call("mlx.kv_cache_update.default", inputs, cache.dtype, vec![Expr::Int(1)]);
    }

    /// Writes `new` [1, H, s, D] into the buffer `cache` [1, H, n, D], at rows [s].
    pub(crate) fn cache_scatter(&mut self, cache: &Val, new: &Val, rows: &Val) {
        let inputs = vec![tensor("self", cache), int("dim", 2), tensor("index", rows), tensor("source", new)];
        self.call("aten.index_copy_.default", inputs, cache.dtype, cache.dims.clone());
    }

    /// Writes `value` into a buffer of its sizes.
    pub(crate) fn store(&mut self, buffer: &Val, value: &Val) {
        self.call("aten.copy_.default", vec![tensor("self", buffer), tensor("src", value)], buffer.dtype, buffer.dims.clone());
    }

    /// Attention of queries [1, H, s, D] over the first `pos + s` rows of `k` [1, Hk, n, D] and `v` [1, Hk, n, Dv], as
    /// [1, H, s, Dv]: causal, or over the keys that a mask [s, pos + s] shows.
    pub(crate) fn attention(&mut self, [q, k, v]: [&Val; 3], pos: &Int, mask: Option<&Val>, scale: f64) -> Val {
        let causal = mask.is_none();
        let inputs = vec![
            tensor("query", q),
            tensor("key", k),
            tensor("value", v),
            size("start_pos", pos),
            mask.map_or(arg("attn_mask", Argument::None), |mask| tensor("attn_mask", mask)),
            float("dropout_p", 0.0),
            arg("is_causal", Argument::Bool(causal)),
            float("scale", scale),
        ];
        let mut dims = q.dims.clone();
        if let (Some(last), Some(width)) = (dims.last_mut(), v.dims.last()) {
            *last = width.clone();
        }
        self.call("mlx.custom_sdpa.default", inputs, q.dtype, dims)
    }

    /// Attention of queries [1, H, s, D] over all keys and values [1, H, n, D], as [1, H, s, D], with `scores` [1, H, s, n] added to
    /// the scaled products.
    pub(crate) fn attention_over_all(&mut self, [q, k, v]: [&Val; 3], scores: Option<&Val>, scale: f64) -> Val {
        let inputs = vec![
            tensor("query", q),
            tensor("key", k),
            tensor("value", v),
            scores.map_or(arg("attn_mask", Argument::None), |scores| tensor("attn_mask", scores)),
            float("dropout_p", 0.0),
            arg("is_causal", Argument::Bool(false)),
            float("scale", scale),
        ];
        self.call("aten.scaled_dot_product_attention.default", inputs, q.dtype, q.dims.clone())
    }

    /// The gated delta rule over q, k [1, s, Hk, Dk], v [1, s, Hv, Dv], g and beta [1, s, Hv], from the buffer `state`
    /// [1, Hv, Dv, Dk] on, into which the last state goes; results [1, s, Hv, Dv].
    pub(crate) fn delta_rule(&mut self, [q, k, v, g, beta]: [&Val; 5], state: &Val) -> Val {
        let inputs =
            vec![tensor("q", q), tensor("k", k), tensor("v", v), tensor("g", g), tensor("beta", beta), tensor("state", state)];
        self.call("mlx.gated_delta_rule.default", inputs, v.dtype, v.dims.clone())
    }
}
