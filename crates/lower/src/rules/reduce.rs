//! Reductions.

use flambeau_ir::{All, Any, Argmax, Argmin, In, LogSumExp, Max, Mean, Min, Prod, Std, Sum, Tid, Var};
use flambeau_tensor::{DType, Expr, normalize_axis};

use super::{RuleRow, lifted, one, ops, row};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// The axes listed in `dim`; all axes if none is given.
pub(super) fn axes(cx: &Lower, call: &Call, x: Tid) -> Result<Vec<i32>, Refuse> {
    let rank = cx.spec(x).rank();
    let listed = call.ints_opt("dim")?.unwrap_or_default();
    let one = |&axis: &i64| {
        flambeau_tensor::normalize_axis(axis, rank.max(1)).ok_or(Refuse::Infer(flambeau_ir::InferError::Axis { axis, rank }))
    };
    let axes = listed.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    Ok(if rank == 0 { Vec::new() } else { axes.into_iter().map(|a| a as i32).collect() })
}

/// Reductions that accumulate in the result's type.
macro_rules! reductions {
    ($($name:ident => $node:ident, $cast:expr;)*) => { $(
        fn $name(cx: &mut Lower, call: &Call) -> Items {
            let x = call.tensor("self")?;
            let x = if $cast { cx.cast(x, call.out(0)?.dtype)? } else { x };
            let axes = axes(cx, call, x)?;
            one(cx.emit($node { x: In(x), out: NEW, axes, keepdims: call.bool_or("keepdim", false)? })?)
        }
    )* };
}

reductions! {
    sum => Sum, true;
    mean => Mean, true;
    prod => Prod, true;
    amax => Max, false;
    amin => Min, false;
    any => Any, false;
    all => All, false;
}

fn logsumexp(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let x = cx.cast(x, call.out(0)?.dtype)?;
    let mut axes = axes(cx, call, x)?;
    if axes.is_empty() {
        // An empty list of axes reduces nothing in a node, and everything in PyTorch.
        axes = (0..cx.spec(x).rank() as i32).collect();
    }
    if axes.iter().any(|&a| cx.spec(x).dims[a as usize] == Expr::Int(0)) {
        let (dims, dtype) = (call.out(0)?.dims.clone(), call.out(0)?.dtype);
        return one(ops::full(cx, f64::NEG_INFINITY, &dims, dtype)?);
    }
    one(cx.emit(LogSumExp { x: In(x), out: NEW, axes, keepdims: call.bool_or("keepdim", false)? })?)
}

/// The correction of the divisor: `correction`, or `unbiased` in the older overload.
fn correction(call: &Call) -> Result<f64, Refuse> {
    match call.arg("unbiased") {
        Some(_) => Ok(f64::from(u8::from(call.bool_or("unbiased", true)?))),
        None => call.float_or("correction", 1.0),
    }
}

/// A correction that variance nodes support: a whole number.
fn whole_correction(correction: f64) -> Option<i32> {
    (correction.fract() == 0.0 && (0.0..1e6).contains(&correction)).then_some(correction as i32)
}

/// The variance with a correction that nodes lack: the biased variance times
/// `n / max(n - correction, 0)`.
fn corrected_var(cx: &mut Lower, call: &Call, correction: f64) -> Result<Tid, Refuse> {
    let x = call.tensor("self")?;
    let (axes, keepdims) = (axes(cx, call, x)?, call.bool_or("keepdim", false)?);
    let dims = &cx.spec(x).dims;
    let counted = |a: &usize| axes.is_empty() || axes.contains(&(*a as i32));
    let sizes: Vec<Expr> = (0..dims.len()).filter(counted).map(|a| dims[a].clone()).collect();
    let n = ops::volume(&sizes);
    let x = cx.cast(x, ops::wide(cx.spec(x).dtype))?;
    let biased = cx.emit(Var { x: In(x), out: NEW, axes, keepdims, ddof: 0 })?;
    if let Some(n) = n.as_int() {
        return ops::mul_number(cx, biased, n as f64 / (n as f64 - correction).max(0.0));
    }
    let count = ops::size_number(cx, &n, 1.0, 0.0, DType::F32)?;
    let less = ops::size_number(cx, &n, 1.0, -correction, DType::F32)?;
    let zero = cx.number(0.0, DType::F32)?;
    let less = ops::maximum(cx, less, zero)?;
    let factor = ops::div(cx, count, less)?;
    let factor = cx.cast(factor, cx.spec(biased).dtype)?;
    ops::mul(cx, biased, factor)
}

fn var(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let correction = correction(call)?;
    let Some(ddof) = whole_correction(correction) else { return one(corrected_var(cx, call, correction)?) };
    let (axes, keepdims) = (axes(cx, call, x)?, call.bool_or("keepdim", false)?);
    one(cx.emit(Var { x: In(x), out: NEW, axes, keepdims, ddof })?)
}

fn std(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let correction = correction(call)?;
    let Some(ddof) = whole_correction(correction) else {
        let variance = corrected_var(cx, call, correction)?;
        return one(ops::sqrt(cx, variance)?);
    };
    let (axes, keepdims) = (axes(cx, call, x)?, call.bool_or("keepdim", false)?);
    one(cx.emit(Std { x: In(x), out: NEW, axes, keepdims, ddof })?)
}

/// The operand in the result's type with 0 for NaN, the mask of numbers, and the axes.
fn without_nan(cx: &mut Lower, call: &Call) -> Result<(Tid, Tid, Vec<usize>), Refuse> {
    let x = call.tensor("self")?;
    let axes = axes(cx, call, x)?.into_iter().map(|a| a as usize).collect();
    let number = ops::eq(cx, x, x)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    let x = ops::select(cx, number, x, zero)?;
    Ok((cx.cast(x, call.out(0)?.dtype)?, number, axes))
}

fn nansum(cx: &mut Lower, call: &Call) -> Items {
    let (x, _, axes) = without_nan(cx, call)?;
    one(ops::sum(cx, x, &axes, call.bool_or("keepdim", false)?)?)
}

fn nanmean(cx: &mut Lower, call: &Call) -> Items {
    let (x, number, axes) = without_nan(cx, call)?;
    let keepdims = call.bool_or("keepdim", false)?;
    let counted = cx.cast(number, cx.spec(x).dtype)?;
    let (total, count) = (ops::sum(cx, x, &axes, keepdims)?, ops::sum(cx, counted, &axes, keepdims)?);
    one(ops::div(cx, total, count)?)
}

fn var_mean(cx: &mut Lower, call: &Call) -> Items {
    let mut items = if call.is_used(0) { var(cx, call)? } else { vec![Item::None] };
    items.extend(if call.is_used(1) { mean_of(cx, call)? } else { vec![Item::None] });
    Ok(items)
}

fn std_mean(cx: &mut Lower, call: &Call) -> Items {
    let mut items = if call.is_used(0) { std(cx, call)? } else { vec![Item::None] };
    items.extend(if call.is_used(1) { mean_of(cx, call)? } else { vec![Item::None] });
    Ok(items)
}

fn mean_of(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axes = axes(cx, call, x)?;
    one(cx.emit(Mean { x: In(x), out: NEW, axes, keepdims: call.bool_or("keepdim", false)? })?)
}

fn count_nonzero(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axes = axes(cx, call, x)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    let counted = ops::ne(cx, x, zero)?;
    one(cx.emit(Sum { x: In(counted), out: NEW, axes, keepdims: false })?)
}

fn aminmax(cx: &mut Lower, call: &Call) -> Items {
    let mut items = if call.is_used(0) { amin(cx, call)? } else { vec![Item::None] };
    items.extend(if call.is_used(1) { amax(cx, call)? } else { vec![Item::None] });
    Ok(items)
}

/// The largest or smallest element along an axis, and the index of its first occurrence.
macro_rules! extreme_with_index {
    ($($name:ident => $value:ident, $index:ident;)*) => { $(
        fn $name(cx: &mut Lower, call: &Call) -> Items {
            let x = call.tensor("self")?;
            if cx.spec(x).rank() == 0 {
                return Ok(vec![Item::Tensor(x), Item::Tensor(cx.number(0.0, DType::I64)?)]);
            }
            let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())? as i32;
            let keepdims = call.bool_or("keepdim", false)?;
            let mut items = vec![Item::None, Item::None];
            if call.is_used(0) {
                items[0] = Item::Tensor(cx.emit($value { x: In(x), out: NEW, axes: vec![axis], keepdims })?);
            }
            if call.is_used(1) {
                items[1] = Item::Tensor(cx.emit($index { x: In(x), out: NEW, axis, keepdims })?);
            }
            Ok(items)
        }
    )* };
}

extreme_with_index! {
    max_dim => Max, Argmax;
    min_dim => Min, Argmin;
}

/// The norm of order `p` over `axes` (all if empty): `sum(|x|^p)^(1/p)`.
pub(super) fn norm_of(cx: &mut Lower, x: Tid, p: f64, axes: &[usize], keepdims: bool) -> Result<Tid, Refuse> {
    if p == 2.0 {
        let squares = ops::square(cx, x)?;
        let total = ops::sum(cx, squares, axes, keepdims)?;
        return ops::sqrt(cx, total);
    }
    let magnitude = ops::abs(cx, x)?;
    match p {
        f64::INFINITY => ops::max(cx, magnitude, axes, keepdims),
        f64::NEG_INFINITY => ops::min(cx, magnitude, axes, keepdims),
        0.0 => {
            let zero = ops::number_like(cx, x, 0.0)?;
            let counted = ops::ne(cx, x, zero)?;
            let dtype = cx.spec(x).dtype;
            let counted = cx.cast(counted, dtype)?;
            ops::sum(cx, counted, axes, keepdims)
        }
        1.0 => ops::sum(cx, magnitude, axes, keepdims),
        _ => {
            let order = ops::number_like(cx, x, p)?;
            let powers = ops::power(cx, magnitude, order)?;
            let total = ops::sum(cx, powers, axes, keepdims)?;
            let root = ops::number_like(cx, x, 1.0 / p)?;
            ops::power(cx, total, root)
        }
    }
}

/// Halves are summed in f32, because their squares overflow.
fn vector_norm(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let x = cx.cast(x, DType::F32)?;
    let axes: Vec<usize> = axes(cx, call, x)?.into_iter().map(|a| a as usize).collect();
    let p = if call.arg("p").is_some() { call.float_or("p", 2.0)? } else { call.float_or("ord", 2.0)? };
    one(norm_of(cx, x, p, &axes, call.bool_or("keepdim", false)?)?)
}

/// Norms of vectors (one axis in `dim`) or matrices (two axes). Norms by singular values are
/// refused.
fn linalg_norm(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let (x, rank) = (cx.cast(x, DType::F32)?, cx.spec(x).rank());
    let listed = call.ints_opt("dim")?.filter(|list| !list.is_empty());
    let named = listed.iter().flatten().map(|&axis| normalize_axis(axis, rank)).collect::<Option<Vec<_>>>();
    let Some(named) = named else { return unsupported("an axis that the tensor does not have") };
    let axes = if named.is_empty() { (0..rank).collect() } else { named };
    let made = match (call.arg("ord"), &axes[..]) {
        (None, _) => norm_of(cx, x, 2.0, &axes, true)?,
        (Some(Arg::Str(name)), [_, _]) if name == "fro" => norm_of(cx, x, 2.0, &axes, true)?,
        (Some(Arg::Str(name)), _) => return unsupported(format!("the norm `{name}`, which singular values define")),
        (Some(_), &[row, column]) => matrix_norm(cx, x, call.float_or("ord", 2.0)?, row, column)?,
        (Some(_), _) => norm_of(cx, x, call.float_or("ord", 2.0)?, &axes, true)?,
    };
    let dims = call.out(0)?.dims.clone();
    one(cx.reshape(made, &dims)?)
}

/// The largest or smallest sum of magnitudes of a column or row; both axes keep size 1.
fn matrix_norm(cx: &mut Lower, x: Tid, order: f64, row: usize, column: usize) -> Result<Tid, Refuse> {
    let (added, compared) = match order.abs() {
        1.0 => (row, column),
        f64::INFINITY => (column, row),
        _ => return unsupported(format!("the norm of order {order} of matrices, which singular values define")),
    };
    let magnitude = ops::abs(cx, x)?;
    let sums = ops::sum(cx, magnitude, &[added], true)?;
    if order > 0.0 { ops::max(cx, sums, &[compared], true) } else { ops::min(cx, sums, &[compared], true) }
}

/// [`linalg_norm`] of matrices; the defaults are the last two axes and the Frobenius norm.
fn linalg_matrix_norm(cx: &mut Lower, call: &Call) -> Items {
    let mut call = call.clone();
    if call.arg("dim").is_none() {
        call.args.push(("dim".to_owned(), Arg::Ints(vec![Expr::Int(-2), Expr::Int(-1)])));
    }
    linalg_norm(cx, &call)
}

/// Scales slices along `dim` with a norm above `maxnorm` down to it. As in PyTorch, norms are f32
/// and factors have the operand's type.
fn renorm(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let (dtype, rank) = (cx.spec(x).dtype, cx.spec(x).rank());
    let (axis, limit) = (cx.axis(call, "dim", 0, rank)?, call.float_or("maxnorm", 1.0)?);
    let wide = cx.cast(x, DType::F32)?;
    let others: Vec<usize> = (0..rank).filter(|&other| other != axis).collect();
    let norms = norm_of(cx, wide, call.float_or("p", 2.0)?, &others, true)?;
    let (unit, most) = (ops::number_like(cx, norms, 1.0)?, ops::number_like(cx, norms, limit)?);
    let is_above = ops::gt(cx, norms, most)?;
    let divisor = ops::add_number(cx, norms, 1e-7)?;
    let factor = ops::div(cx, most, divisor)?;
    let factor = ops::select(cx, is_above, factor, unit)?;
    let factor = cx.cast(factor, dtype)?;
    one(ops::mul(cx, x, factor)?)
}

fn dist(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
    let apart = ops::sub(cx, a, b)?;
    let apart = cx.cast(apart, ops::wide(dtype))?;
    one(norm_of(cx, apart, call.float_or("p", 2.0)?, &[], false)?)
}

/// Undoes a broadcast: sums over the axes that it added or expanded.
fn sum_to_size(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let (dims, target) = (cx.spec(x).dims.to_vec(), call.out(0)?.dims.clone());
    let lead = dims.len().saturating_sub(target.len());
    let stretched = |a: &usize| *a < lead || (target[a - lead].as_int() == Some(1) && dims[*a].as_int() != Some(1));
    let axes: Vec<usize> = (0..dims.len()).filter(stretched).collect();
    if axes.is_empty() {
        return one(x);
    }
    let sum = ops::sum(cx, x, &axes, true)?;
    one(cx.reshape(sum, &target)?)
}

/// Index of an extreme along an axis, or over all elements without an axis.
macro_rules! extreme_index {
    ($($name:ident => $node:ident;)*) => { $(
        fn $name(cx: &mut Lower, call: &Call) -> Items {
            let x = call.tensor("self")?;
            let keepdims = call.bool_or("keepdim", false)?;
            if call.arg("dim").is_some() {
                let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())? as i32;
                return one(cx.emit($node { x: In(x), out: NEW, axis, keepdims })?);
            }
            let numel = cx.spec(x).numel();
            let flat = cx.reshape(x, &[numel])?;
            let index = cx.emit($node { x: In(flat), out: NEW, axis: 0, keepdims: false })?;
            let dims = call.out(0)?.dims.clone();
            one(cx.reshape(index, &dims)?)
        }
    )* };
}

extreme_index! {
    argmax => Argmax;
    argmin => Argmin;
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.all.default", all),
    row("aten.all.dim", all),
    row("aten.all.dims", all),
    row("aten.amax.default", amax),
    row("aten.amin.default", amin),
    row("aten.any.default", any),
    row("aten.any.dim", any),
    row("aten.any.dims", any),
    row("aten.argmax.default", |cx, call| lifted(cx, call, &["self"], argmax)),
    row("aten.argmin.default", |cx, call| lifted(cx, call, &["self"], argmin)),
    row("aten.logsumexp.default", logsumexp),
    row("aten.max.default", amax),
    row("aten.mean.default", mean),
    row("aten.mean.dim", mean),
    row("aten.min.default", amin),
    row("aten.prod.default", prod),
    row("aten.prod.dim_int", prod),
    row("aten.std.correction", std),
    row("aten.std.dim", std),
    row("aten.sum.default", sum),
    row("aten.sum.dim_IntList", sum),
    row("aten.var.correction", var),
    row("aten.var.dim", var),
    row("aten.aminmax.default", aminmax),
    row("aten.count_nonzero.default", count_nonzero),
    row("aten.count_nonzero.dim_IntList", count_nonzero),
    row("aten.frobenius_norm.dim", vector_norm),
    row("aten.linalg_matrix_norm.default", linalg_matrix_norm),
    row("aten.linalg_matrix_norm.str_ord", linalg_matrix_norm),
    row("aten.linalg_norm.default", linalg_norm),
    row("aten.linalg_norm.ord_str", linalg_norm),
    row("aten.linalg_vector_norm.default", vector_norm),
    row("aten.dist.default", dist),
    row("aten.nanmean.default", nanmean),
    row("aten.nansum.default", nansum),
    row("aten.sum_to_size.default", sum_to_size),
    row("aten.max.dim", max_dim),
    row("aten.min.dim", min_dim),
    row("aten.norm.Scalar", vector_norm),
    row("aten.norm.ScalarOpt_dim", vector_norm),
    row("aten.norm.ScalarOpt_dim_dtype", vector_norm),
    row("aten.norm.ScalarOpt_dtype", vector_norm),
    row("aten.renorm.default", renorm),
    row("aten.special_logsumexp.default", logsumexp),
    row("aten.std.default", std),
    row("aten.std_mean.correction", std_mean),
    row("aten.std_mean.default", std_mean),
    row("aten.std_mean.dim", std_mean),
    row("aten.var.default", var),
    row("aten.var_mean.correction", var_mean),
    row("aten.var_mean.default", var_mean),
    row("aten.var_mean.dim", var_mean),
];
