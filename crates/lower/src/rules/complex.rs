//! Complex tensors. Nodes support none, so a pair replaces each: a real tensor with the real and
//! imaginary parts along a last axis of size 2.

mod arithmetic;
mod moves;
mod products;
mod statistics;

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use self::{
    arithmetic::{added, conjugate, divided, exponential, from_polar, logarithm, power, product, quotient, sum},
    moves::{moved, over_axes, padded, permuted, sized_as_result, transpose, unflattened},
    products::{bilinear, einsum, linear},
};
use super::{one, ops, shape::expand_to};
use crate::{Arg, Call, Item, Lower, OutMeta, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// A rule for calls with complex operands or results.
type Rule = fn(&mut Lower, &Call) -> Items;

/// Rules by operator name, for all overloads.
const RULES: &[(&str, Rule)] = &[
    ("_conj", |cx, call| mapped(cx, call, conjugate)),
    ("_conj_physical", |cx, call| mapped(cx, call, conjugate)),
    ("_to_copy", converted),
    ("_unsafe_view", |cx, call| moved(cx, call, Some("size"), &[], 0)),
    ("abs", |cx, call| to_real(cx, call, "aten.hypot.default", false)),
    ("add", |cx, call| sum(cx, call, 1.0)),
    ("alias", |cx, call| mapped(cx, call, |_, x| Ok(x))),
    ("angle", |cx, call| to_real(cx, call, "aten.atan2.default", true)),
    ("bmm", |cx, call| bilinear(cx, call, ["self", "mat2"])),
    ("cat", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("chalf", converted),
    ("chunk", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("clone", |cx, call| mapped(cx, call, |_, x| Ok(x))),
    ("complex", |cx, call| {
        let dims = call.out(0)?.dims.clone();
        let (re, im) = (broadcast(cx, call, "real", &dims)?, broadcast(cx, call, "imag", &dims)?);
        let made = stack(cx, re, im);
        result(cx, call, made)
    }),
    ("conj", |cx, call| mapped(cx, call, conjugate)),
    ("conj_physical", |cx, call| mapped(cx, call, conjugate)),
    ("constant_pad_nd", padded),
    ("contiguous", |cx, call| mapped(cx, call, |_, x| Ok(x))),
    ("copy", copied),
    ("cumsum", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("detach", |cx, call| mapped(cx, call, |_, x| Ok(x))),
    ("diag_embed", by_parts),
    ("diagonal", by_parts),
    ("diagonal_scatter", by_parts),
    ("diff", by_parts),
    ("div", quotient),
    ("dot", |cx, call| bilinear(cx, call, ["self", "tensor"])),
    ("einsum", einsum),
    ("empty", |cx, call| filled(cx, call, 0.0)),
    ("empty_like", |cx, call| filled(cx, call, 0.0)),
    ("exp", |cx, call| mapped(cx, call, exponential)),
    ("expand", |cx, call| moved(cx, call, Some("size"), &[], 0)),
    ("expand_as", sized_as_result),
    ("fft_fftshift", |cx, call| over_axes(cx, call, "dim")),
    ("fft_ifftshift", |cx, call| over_axes(cx, call, "dim")),
    ("flatten", |cx, call| moved(cx, call, None, &["start_dim", "end_dim"], 0)),
    ("flip", |cx, call| moved(cx, call, None, &["dims"], 0)),
    ("full", |cx, call| filled(cx, call, 0.0)),
    ("full_like", |cx, call| filled(cx, call, 0.0)),
    ("gather", by_parts),
    ("imag", |cx, call| half(cx, call, 1)),
    ("index", |cx, call| moved(cx, call, None, &[], 0)),
    ("index_add", by_parts),
    ("index_copy", by_parts),
    ("index_put", |cx, call| moved(cx, call, None, &[], 0)),
    ("index_select", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("isfinite", |cx, call| statistics::of_parts(cx, call, ops::logical_and)),
    ("isinf", |cx, call| statistics::of_parts(cx, call, ops::logical_or)),
    ("isnan", |cx, call| statistics::of_parts(cx, call, ops::logical_or)),
    ("isreal", statistics::is_real),
    ("lift_fresh_copy", |cx, call| mapped(cx, call, |_, x| Ok(x))),
    ("linalg_matrix_norm", statistics::norm),
    ("linalg_norm", statistics::norm),
    ("linalg_vector_norm", statistics::norm),
    ("linear", linear),
    ("log", |cx, call| mapped(cx, call, logarithm)),
    ("mT", |cx, call| transpose(cx, call, false)),
    ("mH", |cx, call| transpose(cx, call, true)),
    ("masked_fill", |cx, call| selected(cx, call, "mask", ["value", "self"])),
    ("matmul", |cx, call| bilinear(cx, call, ["self", "other"])),
    ("mean", |cx, call| over_axes(cx, call, "dim")),
    ("mm", |cx, call| bilinear(cx, call, ["self", "mat2"])),
    ("movedim", |cx, call| moved(cx, call, None, &["source", "destination"], 0)),
    ("mul", |cx, call| {
        let (a, b) = (Operand::of(cx, call, "self")?, Operand::of(cx, call, "other")?);
        let made = product(cx, a, b);
        result(cx, call, made)
    }),
    ("mv", |cx, call| bilinear(cx, call, ["self", "vec"])),
    ("nan_to_num", by_parts),
    ("narrow", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("neg", |cx, call| mapped(cx, call, ops::neg)),
    ("new_empty", |cx, call| filled(cx, call, 0.0)),
    ("new_full", |cx, call| filled(cx, call, 0.0)),
    ("new_ones", |cx, call| filled(cx, call, 1.0)),
    ("new_zeros", |cx, call| filled(cx, call, 0.0)),
    ("norm", statistics::norm),
    ("ones", |cx, call| filled(cx, call, 1.0)),
    ("ones_like", |cx, call| filled(cx, call, 1.0)),
    ("outer", |cx, call| bilinear(cx, call, ["self", "vec2"])),
    ("pad", by_parts),
    ("permute", permuted),
    ("polar", |cx, call| {
        let dims = call.out(0)?.dims.clone();
        let (length, angle) = (broadcast(cx, call, "abs", &dims)?, broadcast(cx, call, "angle", &dims)?);
        let made = from_polar(cx, length, angle);
        result(cx, call, made)
    }),
    ("pow", power),
    ("real", |cx, call| half(cx, call, 0)),
    ("reciprocal", |cx, call| {
        mapped(cx, call, |cx, x| {
            let one = cx.number(1.0, cx.spec(x).dtype)?;
            divided(cx, Operand::Real(one), Operand::Complex(x))
        })
    }),
    ("repeat", |cx, call| moved(cx, call, Some("repeats"), &[], 0)),
    ("repeat_interleave", by_parts),
    ("reshape", |cx, call| moved(cx, call, Some("shape"), &[], 0)),
    ("reshape_as", sized_as_result),
    ("resolve_conj", |cx, call| mapped(cx, call, |_, x| Ok(x))),
    ("resolve_neg", |cx, call| mapped(cx, call, |_, x| Ok(x))),
    // Without axes, the elements roll in their flat order.
    ("roll", |cx, call| match call.arg("dims") {
        Some(Arg::Ints(dims)) if !dims.is_empty() => moved(cx, call, None, &["dims"], 0),
        _ => by_parts(cx, call),
    }),
    ("rot90", by_parts),
    ("rsub", |cx, call| {
        let (a, b) = (Operand::of(cx, call, "self")?, Operand::of(cx, call, "other")?);
        let made = added(cx, b, a, -call.float_or("alpha", 1.0)?);
        result(cx, call, made)
    }),
    ("scatter_add", by_parts),
    ("select", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("select_scatter", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("slice", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("slice_scatter", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("split", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("split_with_sizes", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("square", |cx, call| mapped(cx, call, |cx, x| product(cx, Operand::Complex(x), Operand::Complex(x)))),
    ("squeeze", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("std", statistics::std),
    ("stack", |cx, call| moved(cx, call, None, &["dim"], 1)),
    ("sub", |cx, call| sum(cx, call, -1.0)),
    ("sum", |cx, call| over_axes(cx, call, "dim")),
    ("swapaxes", |cx, call| moved(cx, call, None, &["axis0", "axis1"], 0)),
    ("swapdims", |cx, call| moved(cx, call, None, &["dim0", "dim1"], 0)),
    ("t", |cx, call| transpose(cx, call, false)),
    ("numpy_T", |cx, call| transpose(cx, call, false)),
    ("adjoint", |cx, call| transpose(cx, call, true)),
    ("take", by_parts),
    ("take_along_dim", by_parts),
    ("tile", by_parts),
    ("to", converted),
    ("trace", by_parts),
    ("transpose", |cx, call| moved(cx, call, None, &["dim0", "dim1"], 0)),
    ("tril", by_parts),
    ("triu", by_parts),
    ("type_as", converted),
    ("unbind", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("unflatten", unflattened),
    ("unfold", by_parts),
    ("unsafe_split", |cx, call| moved(cx, call, None, &["dim"], 0)),
    ("unsqueeze", |cx, call| moved(cx, call, None, &["dim"], 1)),
    ("var", statistics::var),
    ("view", |cx, call| moved(cx, call, Some("size"), &[], 0)),
    ("view_as", sized_as_result),
    ("view_as_complex", viewed),
    ("view_as_complex_copy", viewed),
    ("view_as_real", |cx, call| one(first(cx, call)?)),
    ("view_as_real_copy", |cx, call| one(first(cx, call)?)),
    ("where", |cx, call| selected(cx, call, "condition", ["self", "other"])),
    ("zeros", |cx, call| filled(cx, call, 0.0)),
    ("zeros_like", |cx, call| filled(cx, call, 0.0)),
];

fn rule_of(target: &str) -> Option<Rule> {
    let name = target.strip_prefix("aten.")?.split('.').next()?;
    RULES.iter().find(|(known, _)| *known == name).map(|(_, rule)| *rule)
}

/// Whether a target has a rule for complex operands or results.
pub fn has_complex_rule(target: &str) -> bool {
    rule_of(target).is_some()
}

/// Lowers a call with complex operands or results.
pub(crate) fn lower(cx: &mut Lower, call: &Call) -> Items {
    let Some(rule) = rule_of(&call.target) else {
        return unsupported("it has no form for complex numbers; work on real and imaginary parts");
    };
    for t in call.reads() {
        if cx.spec(t).dtype.part().is_some_and(|p| !p.is_node_dtype()) {
            return Err(Refuse::DType(cx.spec(t).dtype));
        }
    }
    if let Some(out) = call.outputs.iter().find(|o| o.dtype.part().unwrap_or(o.dtype) == DType::F64) {
        return Err(Refuse::DType(out.dtype));
    }
    rule(cx, call)
}

/// Whether a call has complex operands or results.
pub(crate) fn is_complex(cx: &Lower, call: &Call) -> bool {
    let reads = call.reads().any(|t| cx.spec(t).dtype.part().is_some());
    reads || call.outputs.iter().any(|out| out.dtype.part().is_some())
}

/// The element type in which a call computes the parts.
fn part_type(cx: &Lower, call: &Call) -> Result<DType, Refuse> {
    let out = call.out(0)?.dtype;
    let reads = || call.reads().find_map(|t| cx.spec(t).dtype.part());
    // PyTorch computes complex halves in f32.
    Ok(ops::wide(out.part().or_else(reads).unwrap_or(DType::F32)))
}

/// An operand whose parts have the call's element type.
#[derive(Clone, Copy, Debug)]
enum Operand {
    /// `[.., 2]`.
    Complex(Tid),
    Real(Tid),
}

impl Operand {
    fn of(cx: &mut Lower, call: &Call, param: &str) -> Result<Operand, Refuse> {
        let dtype = part_type(cx, call)?;
        match call.arg(param) {
            Some(Arg::Tensor(t)) if cx.spec(*t).dtype.part().is_some() => {
                let pair = cx.pair(*t)?;
                Ok(Operand::Complex(cx.cast(pair, dtype)?))
            }
            Some(Arg::Complex(re, im)) => {
                let pair = cx.floats(&format!("_complex_{re}_{im}"), &[*re as f32, *im as f32], &[2])?;
                Ok(Operand::Complex(cx.cast(pair, dtype)?))
            }
            _ => Ok(Operand::Real(cx.operand(call, param, dtype)?)),
        }
    }

    /// The pair of the operand, with a zero imaginary part if it is real.
    fn pair(self, cx: &mut Lower) -> Result<Tid, Refuse> {
        match self {
            Operand::Complex(pair) => Ok(pair),
            Operand::Real(x) => {
                let (dims, dtype) = (cx.spec(x).dims.to_vec(), cx.spec(x).dtype);
                let zero = ops::full(cx, 0.0, &dims, dtype)?;
                stack(cx, x, zero)
            }
        }
    }
}

/// The pair of a tensor; a real tensor gets a zero imaginary part.
fn pair_of(cx: &mut Lower, t: Tid, dtype: DType) -> Result<Tid, Refuse> {
    if cx.spec(t).dtype.part().is_some() {
        let pair = cx.pair(t)?;
        return cx.cast(pair, dtype);
    }
    let t = cx.cast(t, dtype)?;
    Operand::Real(t).pair(cx)
}

/// Stacks `re` and `im` of one shape along a new last axis.
fn stack(cx: &mut Lower, re: Tid, im: Tid) -> Result<Tid, Refuse> {
    let rank = cx.spec(re).rank();
    let (re, im) = (cx.unsqueeze(re, rank)?, cx.unsqueeze(im, rank)?);
    ops::concat(cx, &[re, im], rank)
}

/// Splits a pair into its real and imaginary parts.
fn halves(cx: &mut Lower, pair: Tid) -> Result<(Tid, Tid), Refuse> {
    let axis = cx.spec(pair).rank() - 1;
    Ok((ops::take_one(cx, pair, 0, axis)?, ops::take_one(cx, pair, 1, axis)?))
}

fn broadcast(cx: &mut Lower, call: &Call, param: &str, dims: &[Expr]) -> Result<Tid, Refuse> {
    let dtype = part_type(cx, call)?;
    let x = cx.operand(call, param, dtype)?;
    expand_to(cx, x, dims)
}

/// The complex result of a call, made from its pair.
fn result(cx: &mut Lower, call: &Call, pair: Result<Tid, Refuse>) -> Items {
    let out = call.out(0)?;
    let dims: Vec<Expr> = out.dims.iter().cloned().chain([Expr::Int(2)]).collect();
    let pair = cx.cast(pair?, out.dtype.part().unwrap_or(out.dtype))?;
    let pair = expand_to(cx, pair, &dims)?;
    one(cx.complex(pair))
}

/// The pair of the first operand.
fn first(cx: &mut Lower, call: &Call) -> Result<Tid, Refuse> {
    let x = call.tensor("self")?;
    cx.pair(x)
}

fn mapped(cx: &mut Lower, call: &Call, f: fn(&mut Lower, Tid) -> Result<Tid, Refuse>) -> Items {
    let pair = first(cx, call)?;
    let made = f(cx, pair);
    result(cx, call, made)
}

/// Lowers a call on real tensors; `dims` and `dtype` describe its result.
fn real_call(cx: &mut Lower, target: &str, args: &[(&str, Tid)], dims: Vec<Expr>, dtype: DType) -> Result<Tid, Refuse> {
    let args = args.iter().map(|(name, t)| ((*name).to_owned(), Arg::Tensor(*t))).collect();
    let call = Call { target: target.to_owned(), args, outputs: vec![OutMeta { dtype, dims, used: true }] };
    match cx.inner_call(&call)?.first() {
        Some(Item::Tensor(t)) => Ok(*t),
        _ => unsupported("it has no tensor result"),
    }
}

/// A real function of both parts; `swapped` passes the imaginary part first.
fn to_real(cx: &mut Lower, call: &Call, target: &str, swapped: bool) -> Items {
    let pair = first(cx, call)?;
    let (re, im) = halves(cx, pair)?;
    let (a, b) = if swapped { (im, re) } else { (re, im) };
    let dtype = cx.spec(re).dtype;
    one(real_call(cx, target, &[("self", a), ("other", b)], call.out(0)?.dims.clone(), dtype)?)
}

fn half(cx: &mut Lower, call: &Call, index: i64) -> Items {
    let pair = first(cx, call)?;
    let axis = cx.spec(pair).rank() - 1;
    one(ops::take_one(cx, pair, index, axis)?)
}

/// Lowers a call that treats both parts alike, once for each part.
fn by_parts(cx: &mut Lower, call: &Call) -> Items {
    if call.float_or("value", 0.0)? != 0.0 {
        return unsupported("a border of complex numbers other than 0");
    }
    let out = call.out(0)?.clone();
    let mut part = |index: i64| {
        let outputs = vec![OutMeta { dtype: part_type(cx, call)?, ..out.clone() }];
        let mut call = Call { outputs, ..call.clone() };
        for (_, arg) in &mut call.args {
            if let Arg::Tensor(t) = arg
                && cx.spec(*t).dtype.part().is_some()
            {
                let pair = cx.pair(*t)?;
                *t = ops::take_one(cx, pair, index, cx.spec(pair).rank() - 1)?;
            }
        }
        match cx.inner_call(&call)?.first() {
            Some(Item::Tensor(t)) => Ok(*t),
            _ => unsupported("it has no tensor result"),
        }
    };
    let (re, im) = (part(0)?, part(1)?);
    let made = stack(cx, re, im);
    result(cx, call, made)
}

/// Views a real tensor of pairs as complex.
fn viewed(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let pair = cx.cast(x, part_type(cx, call)?)?;
    one(cx.complex(pair))
}

/// Converts to another type; from complex to real, keeps the real part.
fn converted(cx: &mut Lower, call: &Call) -> Items {
    let (x, out) = (call.tensor("self")?, call.out(0)?.clone());
    match (cx.spec(x).dtype.part(), out.dtype.part()) {
        (_, Some(part)) => {
            let pair = pair_of(cx, x, part);
            result(cx, call, pair)
        }
        (Some(_), None) => half(cx, call, 0),
        (None, None) => unsupported("it has no complex operand"),
    }
}

fn filled(cx: &mut Lower, call: &Call, usual: f64) -> Items {
    let (out, dtype) = (call.out(0)?.clone(), part_type(cx, call)?);
    let (re, im) = match call.arg("fill_value") {
        Some(Arg::Complex(re, im)) => (*re, *im),
        _ => (call.float_or("fill_value", usual)?, 0.0),
    };
    let (re, im) = (ops::full(cx, re, &out.dims, dtype)?, ops::full(cx, im, &out.dims, dtype)?);
    let made = stack(cx, re, im);
    result(cx, call, made)
}

fn selected(cx: &mut Lower, call: &Call, condition: &str, [yes, no]: [&str; 2]) -> Items {
    let condition = call.tensor(condition)?;
    let (yes, no) = (Operand::of(cx, call, yes)?, Operand::of(cx, call, no)?);
    let (yes, no) = (yes.pair(cx)?, no.pair(cx)?);
    let rank = cx.spec(condition).rank();
    let condition = cx.unsqueeze(condition, rank)?;
    let made = ops::select(cx, condition, yes, no);
    result(cx, call, made)
}

/// Copies the second operand over the first.
fn copied(cx: &mut Lower, call: &Call) -> Items {
    let source = Operand::of(cx, call, "src")?;
    let made = source.pair(cx);
    result(cx, call, made)
}

#[cfg(test)]
mod tests {
    use flambeau_ir::Spec;

    use super::*;
    use crate::Origin;

    fn call(target: &str, args: Vec<(&str, Arg)>, dtype: DType, dims: &[i64]) -> Call {
        let args = args.into_iter().map(|(name, arg)| (name.to_owned(), arg)).collect();
        let dims = dims.iter().map(|&d| Expr::Int(d)).collect();
        Call { target: target.to_owned(), args, outputs: vec![OutMeta { dtype, dims, used: true }] }
    }

    fn run(cx: &mut Lower, call: &Call) -> Tid {
        match cx.call(call, 0).unwrap_or_else(|e| panic!("{}: {e}", call.target)).first() {
            Some(Item::Tensor(t)) => *t,
            other => panic!("{}: {other:?}", call.target),
        }
    }

    fn nodes(cx: &Lower) -> Vec<&'static str> {
        cx.graph().chains[0].iter().map(|n| n.node.name()).collect()
    }

    /// A complex tensor `[2, 3]` over the parts of input `n`.
    fn complex(cx: &mut Lower, n: u32) -> Tid {
        let x = cx.slot(Spec::fixed(DType::F32, &[2, 3, 2]), Origin::Input(n));
        run(cx, &call("aten.view_as_complex.default", vec![("self", Arg::Tensor(x))], DType::C64, &[2, 3]))
    }

    #[test]
    fn products_between_views_are_real_nodes() {
        let mut cx = Lower::new();
        let (a, b) = (complex(&mut cx, 0), complex(&mut cx, 1));
        let product = call("aten.mul.Tensor", vec![("self", Arg::Tensor(a)), ("other", Arg::Tensor(b))], DType::C64, &[2, 3]);
        let product = run(&mut cx, &product);
        let real = run(&mut cx, &call("aten.view_as_real.default", vec![("self", Arg::Tensor(product))], DType::F32, &[2, 3, 2]));
        assert_eq!(cx.pair(product), Ok(real));
        let multiplied = nodes(&cx).iter().filter(|n| **n == "Multiply").count();
        assert_eq!((multiplied, nodes(&cx).last()), (4, Some(&"Concatenate")));
    }

    #[test]
    fn axes_count_from_the_front_of_the_complex_tensor() {
        let mut cx = Lower::new();
        let z = complex(&mut cx, 0);
        let int = |v| Arg::Int(Expr::Int(v));
        let args = vec![("self", Arg::Tensor(z)), ("dim0", int(-1)), ("dim1", int(0))];
        let transposed = run(&mut cx, &call("aten.transpose.int", args, DType::C64, &[3, 2]));
        assert_eq!(cx.spec(cx.pair(transposed).unwrap()), &Spec::fixed(DType::F32, &[3, 2, 2]));
        let sum = run(&mut cx, &call("aten.sum.default", vec![("self", Arg::Tensor(transposed))], DType::C64, &[]));
        assert_eq!(cx.spec(cx.pair(sum).unwrap()), &Spec::fixed(DType::F32, &[2]));
    }

    #[test]
    fn what_has_no_form_on_pairs_is_refused() {
        let mut cx = Lower::new();
        let z = complex(&mut cx, 0);
        let cosh = cx.call(&call("aten.cosh.default", vec![("self", Arg::Tensor(z))], DType::C64, &[2, 3]), 0);
        assert!(matches!(cosh, Err(Refuse::Unsupported(_))), "{cosh:?}");
        let outside = cx.slot(Spec::fixed(DType::C64, &[2]), Origin::Input(1));
        let neg = cx.call(&call("aten.neg.default", vec![("self", Arg::Tensor(outside))], DType::C64, &[2]), 0);
        assert!(neg.is_err(), "its parts are nowhere");
    }
}
