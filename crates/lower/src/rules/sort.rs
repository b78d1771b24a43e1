//! Sorting, and selection by rank.

use flambeau_ir::{ArgPartition, In, Int, Partition, Slice, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow,
    elementwise::promoted,
    one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Minimum axis size at which selecting the largest elements is faster than sorting.
const SELECT_FROM: i64 = 2048;

/// The sorting permutation, i64. Descending order is stable too, with NaN first.
fn order(cx: &mut Lower, x: Tid, axis: usize, descending: bool) -> Emitted {
    if !descending {
        return ops::argsort(cx, x, axis);
    }
    let n = cx.spec(x).dims[axis].clone();
    let reversed = ops::flip(cx, x, axis)?;
    let ascending = ops::argsort(cx, reversed, axis)?;
    let descending = ops::flip(cx, ascending, axis)?;
    let descending = cx.cast(descending, DType::I64)?;
    let last = match n.as_int() {
        Some(n) => cx.number((n - 1) as f64, DType::I64)?,
        None => {
            let v = flambeau_ir::Float::Vid(cx.vid(&(n - Expr::Int(1)))?);
            cx.emit(flambeau_ir::Full { out: NEW, shape: Vec::new(), v, scalar_type: DType::I64 })?
        }
    };
    ops::sub(cx, last, descending)
}

/// A rank-0 tensor is sorted already, with index 0.
fn trivial(cx: &mut Lower, x: Tid) -> Items {
    Ok(vec![Item::Tensor(x), Item::Tensor(cx.number(0.0, DType::I64)?)])
}

fn sort(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return trivial(cx, x);
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    let descending = call.bool_or("descending", false)?;
    if !call.is_used(1) {
        let mut values = ops::sort(cx, x, axis)?;
        if descending {
            values = ops::flip(cx, values, axis)?;
        }
        return Ok(vec![Item::Tensor(values), Item::None]);
    }
    let indices = order(cx, x, axis, descending)?;
    let values = if call.is_used(0) { Item::Tensor(ops::take_along(cx, x, indices, axis)?) } else { Item::None };
    Ok(vec![values, Item::Tensor(indices)])
}

fn argsort(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return one(cx.number(0.0, DType::I64)?);
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    one(order(cx, x, axis, call.bool_or("descending", false)?)?)
}

/// `x[start:stop:step]`, with negative bounds passed through.
fn raw_slice(cx: &mut Lower, x: Tid, axis: usize, start: i64, stop: i64, step: i32) -> Emitted {
    cx.emit(Slice { x: In(x), out: NEW, axis: Int::Lit(axis as i64), start: Int::Lit(start), stop: Int::Lit(stop), step })
}

/// The last `k` elements of an axis in reverse, or the first `k`.
fn extremes(cx: &mut Lower, sorted: Tid, axis: usize, k: &Expr, largest: bool) -> Emitted {
    match k.as_int() {
        Some(k) if largest => raw_slice(cx, sorted, axis, -1, -(k + 1), -1),
        _ => {
            let sorted = if largest { ops::flip(cx, sorted, axis)? } else { sorted };
            super::shape::slice_axis(cx, sorted, axis, &Expr::Int(0), k, 1)
        }
    }
}

fn topk(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return trivial(cx, x);
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    let (k, largest) = (call.size("k")?, call.bool_or("largest", true)?);
    let selects = cx.spec(x).dims[axis].as_int().is_none_or(|n| n >= SELECT_FROM);
    if let Some(known) = k.as_int().filter(|&k| selects && k > 0) {
        return select(cx, call, x, axis, known, largest);
    }
    if !call.is_used(1) {
        let sorted = ops::sort(cx, x, axis)?;
        return Ok(vec![Item::Tensor(extremes(cx, sorted, axis, &k, largest)?), Item::None]);
    }
    let sorted = ops::argsort(cx, x, axis)?;
    let indices = extremes(cx, sorted, axis, &k, largest)?;
    let values = if call.is_used(0) { Item::Tensor(ops::take_along(cx, x, indices, axis)?) } else { Item::None };
    Ok(vec![values, Item::Tensor(indices)])
}

/// Partitions the axis, then sorts the selected elements.
fn select(cx: &mut Lower, call: &Call, x: Tid, axis: usize, k: i64, largest: bool) -> Items {
    let kth = Int::Lit(if largest { -k } else { k - 1 });
    let part =
        |cx: &mut Lower, t: Tid| if largest { raw_slice(cx, t, axis, -k, i64::MAX, 1) } else { raw_slice(cx, t, axis, 0, k, 1) };
    let count = Expr::Int(k);
    if !call.is_used(1) {
        let partitioned = cx.emit(Partition { x: In(x), out: NEW, kth, axis: axis as i32 })?;
        let selected = part(cx, partitioned)?;
        let sorted = ops::sort(cx, selected, axis)?;
        return Ok(vec![Item::Tensor(extremes(cx, sorted, axis, &count, largest)?), Item::None]);
    }
    let partitioned = cx.emit(ArgPartition { x: In(x), out: NEW, kth, axis: axis as i32 })?;
    let selected = part(cx, partitioned)?;
    let values = ops::take_along(cx, x, selected, axis)?;
    let sorted = ops::argsort(cx, values, axis)?;
    let best = extremes(cx, sorted, axis, &count, largest)?;
    let indices = ops::take_along(cx, selected, best, axis)?;
    let values = if call.is_used(0) { Item::Tensor(ops::take_along(cx, values, best, axis)?) } else { Item::None };
    Ok(vec![values, Item::Tensor(indices)])
}

/// Results of selecting one element; `index` is `[.., 1, ..]` along the axis.
fn selected(cx: &mut Lower, call: &Call, x: Tid, axis: usize, index: Tid) -> Items {
    let keep = call.bool_or("keepdim", false)?;
    let shape = |cx: &mut Lower, t: Tid| match keep {
        true => Ok(t),
        false => cx.emit(flambeau_ir::Squeeze { x: In(t), out: NEW, dims: vec![axis as i32] }),
    };
    let value = match call.is_used(0) {
        true => {
            let value = ops::take_along(cx, x, index, axis)?;
            Item::Tensor(shape(cx, value)?)
        }
        false => Item::None,
    };
    Ok(vec![value, Item::Tensor(shape(cx, index)?)])
}

fn kthvalue(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return trivial(cx, x);
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    let k = call.int("k")?;
    let order = ops::argsort(cx, x, axis)?;
    let index = raw_slice(cx, order, axis, k - 1, k, 1)?;
    selected(cx, call, x, axis, index)
}

/// The lower of the two middle elements; NaN if the row has a NaN.
fn median_dim(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return trivial(cx, x);
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    let n = cx.spec(x).dims[axis].clone();
    let middle = (n.clone() - Expr::Int(1)).floor_div(&Expr::Int(2));
    let order = ops::argsort(cx, x, axis)?;
    if !cx.spec(x).dtype.is_float() {
        let next = middle.clone() + Expr::Int(1);
        let index = super::shape::slice_axis(cx, order, axis, &middle, &next, 1)?;
        return selected(cx, call, x, axis, index);
    }
    let is_nan = ops::ne(cx, x, x)?;
    let n_nan = ops::sum(cx, is_nan, &[axis], true)?;
    let n_nan = cx.cast(n_nan, DType::I64)?;
    let (zero, middle, n) = (cx.number(0.0, DType::I64)?, cx.size_tensor(&middle)?, cx.size_tensor(&n)?);
    let any = ops::gt(cx, n_nan, zero)?;
    let first_nan = ops::sub(cx, n, n_nan)?;
    let at = ops::select(cx, any, first_nan, middle)?;
    let index = ops::take_along(cx, order, at, axis)?;
    selected(cx, call, x, axis, index)
}

/// One element of a vector, as a rank-0 tensor.
fn element(cx: &mut Lower, x: Tid, place: &Expr) -> Emitted {
    match place.as_int() {
        Some(place) => ops::take_one(cx, x, place, 0),
        None => {
            let place = cx.size_tensor(place)?;
            ops::take(cx, x, place, 0)
        }
    }
}

fn median(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let numel = cx.spec(x).numel();
    let x = cx.reshape(x, &[numel])?;
    let sorted = ops::sort(cx, x, 0)?;
    let last = cx.spec(x).dims[0].clone() - Expr::Int(1);
    let middle = element(cx, sorted, &last.floor_div(&Expr::Int(2)))?;
    if !cx.spec(x).dtype.is_float() {
        return one(middle);
    }
    let last = element(cx, sorted, &last)?;
    let is_nan = ops::ne(cx, last, last)?;
    one(ops::select(cx, is_nan, last, middle)?)
}

/// [`median_dim`] of the numbers only; NaN for rows without numbers.
fn nanmedian_dim(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return trivial(cx, x);
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    let index = middle_number(cx, x, axis)?;
    selected(cx, call, x, axis, index)
}

fn nanmedian(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let numel = cx.spec(x).numel();
    let x = cx.reshape(x, &[numel])?;
    let index = middle_number(cx, x, 0)?;
    let value = ops::take(cx, x, index, 0)?;
    one(cx.reshape(value, &[])?)
}

/// Index of the lower middle number along an axis, which keeps size 1.
fn middle_number(cx: &mut Lower, x: Tid, axis: usize) -> Emitted {
    let order = ops::argsort(cx, x, axis)?;
    let number = ops::eq(cx, x, x)?;
    let count = ops::sum(cx, number, &[axis], true)?;
    let count = cx.cast(count, DType::I64)?;
    let (unit, zero, two) = (cx.number(1.0, DType::I64)?, cx.number(0.0, DType::I64)?, cx.number(2.0, DType::I64)?);
    let before = ops::sub(cx, count, unit)?;
    let middle = ops::floor_div(cx, before, two)?;
    let at = ops::maximum(cx, middle, zero)?;
    ops::take_along(cx, order, at, axis)
}

/// The most frequent element and the index of its last occurrence; among equally frequent ones, the
/// smallest.
fn mode(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return trivial(cx, x);
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    let order = ops::argsort(cx, x, axis)?;
    let sorted = ops::take_along(cx, x, order, axis)?;
    // Equal elements form runs, numbered from 0.
    let (n, dims) = (cx.spec(x).dims[axis].clone(), cx.spec(x).dims.to_vec());
    let last = n.clone() - Expr::Int(1);
    let before = super::shape::slice_axis(cx, sorted, axis, &Expr::Int(0), &last, 1)?;
    let after = super::shape::slice_axis(cx, sorted, axis, &Expr::Int(1), &n, 1)?;
    let begins = ops::ne(cx, before, after)?;
    let begins = cx.cast(begins, DType::I32)?;
    let mut widths = vec![(Expr::Int(0), Expr::Int(0)); dims.len()];
    widths[axis].0 = Expr::Int(1);
    let begins = ops::pad(cx, begins, &widths, "constant", 0.0)?;
    let run = ops::cumsum(cx, begins, axis)?;
    let (zeros, ones) = (ops::full(cx, 0.0, &dims, DType::I32)?, ops::full(cx, 1.0, &dims, DType::I32)?);
    let counts = ops::scatter_add(cx, zeros, run, ones, axis)?;
    let best = ops::argmax(cx, counts, axis, true)?;
    let ends = ops::cumsum(cx, counts, axis)?;
    let end = ops::take_along(cx, ends, best, axis)?;
    let last = ops::add_number(cx, end, -1.0)?;
    let index = ops::take_along(cx, order, last, axis)?;
    selected(cx, call, x, axis, index)
}

/// Whether each element occurs in the test elements.
fn isin(cx: &mut Lower, call: &Call) -> Items {
    let params = ["elements", "test_elements"].map(|p| if call.arg(p).is_some() { p } else { &p[..p.len() - 1] });
    let dtype = promoted(cx, call, &params)?;
    let (x, tests) = (cx.operand(call, params[0], dtype)?, cx.operand(call, params[1], dtype)?);
    let found = if cx.spec(tests).rank() == 0 {
        ops::eq(cx, x, tests)?
    } else {
        let n = cx.spec(tests).numel();
        let tests = cx.reshape(tests, &[n])?;
        let rank = cx.spec(x).rank();
        let x = cx.unsqueeze(x, rank)?;
        let hits = ops::eq(cx, x, tests)?;
        ops::any(cx, hits, &[rank], false)?
    };
    one(if call.bool_or("invert", false)? { ops::logical_not(cx, found)? } else { found })
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.argsort.default", argsort),
    row("aten.argsort.stable", argsort),
    row("aten.isin.Scalar_Tensor", isin),
    row("aten.isin.Tensor_Scalar", isin),
    row("aten.isin.Tensor_Tensor", isin),
    row("aten.kthvalue.default", kthvalue),
    row("aten.median.default", median),
    row("aten.median.dim", median_dim),
    row("aten.mode.default", mode),
    row("aten.nanmedian.default", nanmedian),
    row("aten.nanmedian.dim", nanmedian_dim),
    row("aten.msort.default", |cx, call| {
        let x = call.tensor("self")?;
        one(ops::sort(cx, x, 0)?)
    }),
    row("aten.sort.default", sort),
    row("aten.sort.stable", sort),
    row("aten.topk.default", topk),
];
