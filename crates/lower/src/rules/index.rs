//! Lookups and writes by index.

use flambeau_ir::{In, Index, SliceUpdate, Take, TakeAlongAxis, Tid};
use flambeau_tensor::{DType, Expr};

use super::{RuleRow, lifted, one, ops, row, shape::expand_to};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

fn embedding(cx: &mut Lower, call: &Call) -> Items {
    let (weight, indices) = (call.tensor("weight")?, call.tensor("indices")?);
    one(cx.emit(Take { x: In(weight), out: NEW, index: Index::Tid(indices), axis: 0 })?)
}

fn index_select(cx: &mut Lower, call: &Call) -> Items {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())? as i32;
    let index = if cx.spec(index).rank() == 0 { cx.unsqueeze(index, 0)? } else { index };
    one(cx.emit(Take { x: In(x), out: NEW, index: Index::Tid(index), axis })?)
}

/// `x[.., index[..], ..]`, with the other axes of `x` cut to the extents of the index.
fn gather(cx: &mut Lower, call: &Call) -> Items {
    let (mut x, index) = (call.tensor("self")?, call.tensor("index")?);
    let rank = cx.spec(x).rank();
    if cx.spec(index).numel().as_int() == Some(0) {
        let (dims, dtype) = (cx.spec(index).dims.to_vec(), cx.spec(x).dtype);
        return one(ops::full(cx, 0.0, &dims, dtype)?);
    }
    if rank == 0 || cx.spec(index).rank() != rank {
        return unsupported("gather from or by a rank-0 tensor");
    }
    let axis = cx.axis(call, "dim", 0, rank)?;
    for other in (0..rank).filter(|&a| a != axis) {
        let extent = cx.spec(index).dims[other].clone();
        if cx.spec(x).dims[other] != extent {
            x = super::shape::slice_axis(cx, x, other, &Expr::Int(0), &extent, 1)?;
        }
    }
    one(cx.emit(TakeAlongAxis { x: In(x), indices: In(index), out: NEW, axis: axis as i32 })?)
}

fn slice_scatter(cx: &mut Lower, call: &Call) -> Items {
    let (x, src) = (call.tensor("self")?, call.tensor("src")?);
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let size = cx.spec(x).dims[axis].clone();
    let start = cx.int(&call.size_opt("start")?.unwrap_or(Expr::Int(0)))?;
    let stop = call.size_opt("end")?.filter(|e| e.as_int() != Some(i64::MAX)).unwrap_or(size);
    let stop = cx.int(&stop)?;
    let dtype = cx.spec(x).dtype;
    let src = cx.cast(src, dtype)?;
    let step = call.int_or("step", 1)? as i32;
    one(cx.emit(SliceUpdate {
        dst: In(x),
        update: In(src),
        out: NEW,
        axis: flambeau_ir::Int::Lit(axis as i64),
        start,
        stop,
        step,
    })?)
}

/// Writes one slice of an axis: the inverse of `select`.
fn select_scatter(cx: &mut Lower, call: &Call) -> Items {
    let (x, src) = (call.tensor("self")?, call.tensor("src")?);
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let mut index = call.size("index")?;
    if index.as_int().is_some_and(|i| i < 0) {
        index = index + cx.spec(x).dims[axis].clone();
    }
    let dtype = cx.spec(x).dtype;
    let src = cx.cast(src, dtype)?;
    let src = cx.unsqueeze(src, axis)?;
    let (start, stop) = (cx.int(&index)?, cx.int(&(index.clone() + Expr::Int(1)))?);
    one(super::attention::update_axis(cx, x, src, axis as i64, start, stop)?)
}

/// `x[.., index, ..]` with one index tensor; several index tensors become a gather of single
/// elements.
pub(super) fn index(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let indices = call.tensors_opt("indices")?;
    let given: Vec<(usize, Tid)> = indices.iter().enumerate().filter_map(|(a, t)| t.map(|t| (a, t))).collect();
    if given.iter().any(|(_, t)| matches!(cx.spec(*t).dtype, DType::Bool | DType::U8)) {
        return unsupported("a boolean index makes a size that depends on the data");
    }
    match given[..] {
        [] => one(x),
        [(axis, index)] => one(cx.emit(Take { x: In(x), out: NEW, index: Index::Tid(index), axis: axis as i32 })?),
        _ => gather_elements(cx, call, x, &given),
    }
}

fn gather_elements(cx: &mut Lower, call: &Call, mut x: Tid, given: &[(usize, Tid)]) -> Items {
    let spec = cx.spec(x).clone();
    let axes: Vec<usize> = given.iter().map(|(a, _)| *a).collect();
    if axes.iter().any(|&a| spec.dims[a].as_int() == Some(0)) {
        // Only empty indices fit an axis without elements, but the node requires an element there.
        let size = |(a, d): (usize, &Expr)| if axes.contains(&a) { Expr::Int(1) } else { d.clone() };
        let dims: Vec<Expr> = spec.dims.iter().enumerate().map(size).collect();
        x = ops::full(cx, 0.0, &dims, spec.dtype)?;
    }
    let size = |a: usize| if axes.contains(&a) { Some(1) } else { spec.dims[a].as_int() };
    let sizes: Option<Vec<i64>> = (0..spec.rank()).map(size).collect();
    let out = match sizes {
        Some(sizes) => gather_slices(cx, x, given, &sizes)?,
        None => take_elements(cx, x, given)?,
    };
    let dims = call.out(0)?.dims.clone();
    one(if cx.spec(out).rank() == dims.len() { out } else { expand_to(cx, out, &dims)? })
}

/// As [`gather_elements`], by one gather of slices of these sizes.
fn gather_slices(cx: &mut Lower, x: Tid, given: &[(usize, Tid)], sizes: &[i64]) -> ops::Emitted {
    let spec = cx.spec(x).clone();
    let axes: Vec<usize> = given.iter().map(|(a, _)| *a).collect();
    let adjacent = axes.windows(2).all(|w| w[1] == w[0] + 1);
    let indices: Vec<In> = given.iter().map(|(_, t)| In(*t)).collect();
    let gathered = cx.emit(flambeau_ir::Gather {
        x: In(x),
        indices,
        out: NEW,
        axes: axes.iter().map(|&a| a as i32).collect(),
        slice_sizes: sizes.iter().map(|&s| s as i32).collect(),
    })?;
    // The gathered shape is the indices' common shape, then every axis of x, with size 1 for
    // indexed axes.
    let n_index = cx.spec(gathered).rank() - spec.rank();
    let common = cx.spec(gathered).dims[..n_index].to_vec();
    let kept: Vec<usize> = (0..spec.rank()).filter(|a| !axes.contains(a)).collect();
    let rest: Vec<Expr> = kept.iter().map(|&a| spec.dims[a].clone()).collect();
    let flat = cx.reshape(gathered, &[common, rest].concat())?;
    let lead = if adjacent { kept.iter().filter(|&&a| a < axes[0]).count() } else { 0 };
    let order = |i: usize| {
        if i < lead {
            n_index + i
        } else if i < lead + n_index {
            i - lead
        } else {
            i
        }
    };
    let perm: Vec<usize> = (0..n_index + kept.len()).map(order).collect();
    cx.permute(flat, &perm)
}

/// As [`gather_elements`], by one lookup in the indexed axes joined into one. The sizes of the
/// other axes may be unknown.
fn take_elements(cx: &mut Lower, x: Tid, given: &[(usize, Tid)]) -> ops::Emitted {
    let axes: Vec<usize> = given.iter().map(|(a, _)| *a).collect();
    let is_joined = axes.windows(2).all(|w| w[1] == w[0] + 1);
    let kept = (0..cx.spec(x).rank()).filter(|a| !axes.contains(a));
    // Indices of axes that do not follow each other put the results' axes first.
    let (x, lead) =
        if is_joined { (x, axes[0]) } else { (cx.permute(x, &axes.iter().copied().chain(kept).collect::<Vec<_>>())?, 0) };
    let dims = cx.spec(x).dims.to_vec();
    let (before, rest) = dims.split_at(lead);
    let (indexed, after) = rest.split_at(axes.len());
    let flat = cx.reshape(x, &[before, &[ops::volume(indexed)], after].concat())?;
    let mut place: Option<Tid> = None;
    for (size, &(_, index)) in indexed.iter().zip(given) {
        let index = cx.cast(index, DType::I64)?;
        let count = ops::size_number(cx, size, 1.0, 0.0, DType::I64)?;
        let zero = ops::number_like(cx, index, 0.0)?;
        let (is_from_end, from_end) = (ops::lt(cx, index, zero)?, ops::add(cx, index, count)?);
        let index = ops::select(cx, is_from_end, from_end, index)?;
        place = Some(match place {
            None => index,
            Some(outer) => {
                let start = ops::mul(cx, outer, count)?;
                ops::add(cx, start, index)?
            }
        });
    }
    let Some(place) = place else { return unsupported("a lookup without indices") };
    ops::take(cx, flat, place, lead)
}

/// Elements of the flattened tensor by index.
fn take(cx: &mut Lower, call: &Call) -> Items {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let numel = cx.spec(x).numel();
    let flat = cx.reshape(x, &[numel])?;
    one(ops::take(cx, flat, index, 0)?)
}

fn take_along_dim(cx: &mut Lower, call: &Call) -> Items {
    let (x, indices) = (call.tensor("self")?, call.tensor("indices")?);
    if call.arg("dim").is_some() {
        let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
        return one(ops::take_along(cx, x, indices, axis)?);
    }
    let (n, m) = (cx.spec(x).numel(), cx.spec(indices).numel());
    let (x, indices) = (cx.reshape(x, &[n])?, cx.reshape(indices, &[m])?);
    one(ops::take(cx, x, indices, 0)?)
}

fn one_hot(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let n = call.int_or("num_classes", -1)?;
    if n < 1 {
        return unsupported("a number of classes that depends on the data; state `num_classes`");
    }
    let (rank, dtype) = (cx.spec(x).rank(), cx.spec(x).dtype);
    let x = cx.unsqueeze(x, rank)?;
    let classes = ops::count(cx, &Expr::Int(n), dtype)?;
    one(ops::eq(cx, x, classes)?)
}

/// The length of every bag, if the offsets are known to be evenly spaced.
fn bag_length(cx: &Lower, offsets: Tid) -> Option<i64> {
    match cx.producer(offsets) {
        Some(flambeau_ir::Node::ARange(r)) if r.start == flambeau_ir::Int::Lit(0) => match r.step {
            flambeau_ir::Int::Lit(step) if step > 0 => Some(step),
            _ => None,
        },
        _ => None,
    }
}

/// The excluded row, if any. Only the public operator accepts a negative row, counted from the end.
fn padding_of(cx: &Lower, call: &Call) -> Result<Option<i64>, Refuse> {
    let Some(_) = call.arg("padding_idx") else { return Ok(None) };
    let row = call.int("padding_idx")?;
    if row >= 0 {
        return Ok(Some(row));
    }
    if call.target != "aten.embedding_bag.padding_idx" {
        return Ok(None);
    }
    let rows = cx.spec(call.tensor("weight")?).dims.first().and_then(Expr::as_int);
    rows.map(|n| Some(n + row)).ok_or_else(|| Refuse::Dynamic { param: "number of rows".into(), found: "symbolic".into() })
}

/// Sums, means or maxima of looked-up rows.
fn embedding_bag(cx: &mut Lower, call: &Call) -> Items {
    if (1..4).any(|i| call.is_used(i)) {
        return unsupported("the counts of bags are used");
    }
    let (weight, indices, offsets) = (call.tensor("weight")?, call.tensor("indices")?, call.tensor("offsets")?);
    let whole = padding_of(cx, call)?.is_none() && !call.bool_or("include_last_offset", false)?;
    let length = bag_length(cx, offsets).filter(|_| whole);
    let count = cx.spec(indices).numel();
    let bags = length.and_then(|n| Some((n, count.exact_div(&Expr::Int(n))?)));
    let Some((length, bags)) = bags else { return uneven_bags(cx, call) };
    let indices = cx.reshape(indices, &[bags.clone(), Expr::Int(length)])?;
    let mut rows = ops::take(cx, weight, indices, 0)?;
    if call.arg("per_sample_weights").is_some() {
        // Halves are summed in f32 and rounded once.
        rows = cx.cast(rows, ops::wide(cx.spec(rows).dtype))?;
        let weights = cx.operand(call, "per_sample_weights", cx.spec(rows).dtype)?;
        let weights = cx.reshape(weights, &[bags, Expr::Int(length), Expr::Int(1)])?;
        rows = ops::mul(cx, rows, weights)?;
    }
    let bag = match call.int_or("mode", 0)? {
        0 => ops::sum(cx, rows, &[1], false)?,
        1 => ops::mean(cx, rows, &[1], false)?,
        _ => ops::max(cx, rows, &[1], false)?,
    };
    Ok(vec![Item::Tensor(bag), Item::None, Item::None, Item::None])
}

/// `[B, L]`: whether bag `b` holds the `l`-th looked-up row. With `open`, the last bag holds all
/// remaining rows.
fn bag_members(cx: &mut Lower, call: &Call, indices: Tid, offsets: Tid, open: bool) -> Result<Tid, Refuse> {
    let offsets = cx.cast(offsets, DType::I64)?;
    let (count, given) = (cx.spec(indices).numel(), cx.spec(offsets).dims[0].clone());
    let (mut starts, mut bags) = (offsets, given.clone());
    if call.bool_or("include_last_offset", false)? {
        bags = given.clone() - Expr::Int(1);
        starts = super::shape::slice_axis(cx, offsets, 0, &Expr::Int(0), &bags, 1)?;
    }
    let ends = if bags != given && !open {
        super::shape::slice_axis(cx, offsets, 0, &Expr::Int(1), &given, 1)?
    } else {
        let later = super::shape::slice_axis(cx, offsets, 0, &Expr::Int(1), &bags, 1)?;
        let end = cx.size_tensor(&count)?;
        let end = cx.reshape(end, &[Expr::Int(1)])?;
        ops::concat(cx, &[later, end], 0)?
    };
    let places = ops::count(cx, &count, DType::I64)?;
    let (starts, ends) = (cx.unsqueeze(starts, 1)?, cx.unsqueeze(ends, 1)?);
    let (begun, open) = (ops::ge(cx, places, starts)?, ops::lt(cx, places, ends)?);
    let members = ops::logical_and(cx, begun, open)?;
    let Some(padding) = padding_of(cx, call)? else { return Ok(members) };
    let padding = ops::number_like(cx, indices, padding as f64)?;
    let counts = ops::ne(cx, indices, padding)?;
    ops::logical_and(cx, members, counts)
}

/// Bags with offsets known only at run time.
fn uneven_bags(cx: &mut Lower, call: &Call) -> Items {
    let (weight, indices, offsets) = (call.tensor("weight")?, call.tensor("indices")?, call.tensor("offsets")?);
    let count = cx.spec(indices).numel();
    let indices = cx.reshape(indices, std::slice::from_ref(&count))?;
    let rows = ops::take(cx, weight, indices, 0)?;
    let mut rows = cx.cast(rows, ops::wide(cx.spec(rows).dtype))?;
    let dtype = cx.spec(rows).dtype;
    if call.arg("per_sample_weights").is_some() {
        let weights = cx.operand(call, "per_sample_weights", dtype)?;
        let weights = cx.reshape(weights, &[count, Expr::Int(1)])?;
        rows = ops::mul(cx, rows, weights)?;
    }
    let members = bag_members(cx, call, indices, offsets, false)?;
    let mode = call.int_or("mode", 0)?;
    let weights = cx.cast(members, dtype)?;
    // PyTorch divides the last bag by the count of all remaining rows, even if a last offset ends
    // it earlier.
    let counted = if mode == 1 { bag_members(cx, call, indices, offsets, true)? } else { members };
    let counted = cx.cast(counted, dtype)?;
    let lengths = ops::sum(cx, counted, &[1], true)?;
    let bag = if mode == 2 {
        let members = cx.unsqueeze(members, 2)?;
        let lowest = ops::number_like(cx, rows, f64::NEG_INFINITY)?;
        let candidates = ops::select(cx, members, rows, lowest)?;
        let most = ops::max(cx, candidates, &[1], false)?;
        let zero = ops::number_like(cx, rows, 0.0)?;
        let empty = ops::eq(cx, lengths, zero)?;
        ops::select(cx, empty, zero, most)?
    } else {
        let sum = super::linalg::product(cx, weights, rows)?;
        let unit = ops::number_like(cx, rows, 1.0)?;
        let divisor = ops::maximum(cx, lengths, unit)?;
        if mode == 1 { ops::div(cx, sum, divisor)? } else { sum }
    };
    Ok(vec![Item::Tensor(bag), Item::None, Item::None, Item::None])
}

/// The indices of the first `size` nonzero elements, `[size, rank]`, followed by a fill value.
fn nonzero_static(cx: &mut Lower, call: &Call) -> Items {
    let (x, size) = (call.tensor("self")?, call.size("size")?);
    let (dims, numel) = (cx.spec(x).dims.to_vec(), cx.spec(x).numel());
    if dims.is_empty() {
        return one(ops::full(cx, 0.0, &[size, Expr::Int(0)], DType::I64)?);
    }
    let flat = cx.reshape(x, &[numel])?;
    let zero = ops::number_like(cx, flat, 0.0)?;
    let is_zero = ops::eq(cx, flat, zero)?;
    // The sort is stable: the indices of nonzero elements come first, in order.
    let keys = cx.cast(is_zero, DType::I32)?;
    let order = ops::argsort(cx, keys, 0)?;
    let order = cx.cast(order, DType::I64)?;
    let padding = [(Expr::Int(0), size.clone())];
    let order = ops::pad(cx, order, &padding, "constant", 0.0)?;
    let order = super::shape::slice_axis(cx, order, 0, &Expr::Int(0), &size, 1)?;
    let found = ops::logical_not(cx, is_zero)?;
    let found = cx.cast(found, DType::I64)?;
    let count = ops::sum(cx, found, &[0], false)?;
    let count = cx.cast(count, DType::I64)?;
    let ranks = ops::count(cx, &size, DType::I64)?;
    let exists = ops::lt(cx, ranks, count)?;
    let exists = cx.unsqueeze(exists, 1)?;

    let mut columns = Vec::with_capacity(dims.len());
    let mut rest = order;
    for dim in dims.iter().rev() {
        let dim = cx.size_tensor(dim)?;
        let column = ops::remainder(cx, rest, dim)?;
        columns.push(cx.unsqueeze(column, 1)?);
        rest = ops::floor_div(cx, rest, dim)?;
    }
    columns.reverse();
    let places = ops::concat(cx, &columns, 1)?;
    let fill = ops::number_like(cx, places, call.int_or("fill_value", -1)? as f64)?;
    one(ops::select(cx, exists, places, fill)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.embedding.default", embedding),
    row("aten.gather.default", |cx, call| lifted(cx, call, &["self", "index"], gather)),
    row("aten.index.Tensor", index),
    row("aten.index_select.default", |cx, call| lifted(cx, call, &["self"], index_select)),
    row("aten.select_scatter.default", select_scatter),
    row("aten.slice_scatter.default", slice_scatter),
    row("aten._embedding_bag.default", embedding_bag),
    row("aten._embedding_bag_forward_only.default", embedding_bag),
    row("aten._unsafe_index.Tensor", index),
    row("aten.nonzero_static.default", nonzero_static),
    row("aten.embedding_bag.padding_idx", embedding_bag),
    row("aten.one_hot.default", one_hot),
    row("aten.take.default", take),
    row("aten.take_along_dim.default", |cx, call| lifted(cx, call, &["self", "indices"], take_along_dim)),
];
