//! Lookups and writes by index.

use flambeau_ir::{In, Index, SliceUpdate, Take, TakeAlongAxis};
use flambeau_tensor::{DType, Expr};

use super::{RuleRow, one, ops, row, shape::expand_to};
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

/// `x[.., index[..], ..]`: other axes of `x` are cut to the extents of the index.
fn gather(cx: &mut Lower, call: &Call) -> Items {
    let (mut x, index) = (call.tensor("self")?, call.tensor("index")?);
    let rank = cx.spec(x).rank();
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

/// Writes one slice of an axis; the counterpart of `select`.
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

/// `x[.., index, ..]` with one index tensor; several are a gather of single elements.
fn index(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let indices = call.tensors_opt("indices")?;
    let given: Vec<(usize, flambeau_ir::Tid)> = indices.iter().enumerate().filter_map(|(a, t)| t.map(|t| (a, t))).collect();
    if given.iter().any(|(_, t)| matches!(cx.spec(*t).dtype, DType::Bool | DType::U8)) {
        return unsupported("a boolean index makes a size that depends on the data");
    }
    match given[..] {
        [] => one(x),
        [(axis, index)] => one(cx.emit(Take { x: In(x), out: NEW, index: Index::Tid(index), axis: axis as i32 })?),
        _ => gather_elements(cx, call, x, &given),
    }
}

fn gather_elements(cx: &mut Lower, call: &Call, x: flambeau_ir::Tid, given: &[(usize, flambeau_ir::Tid)]) -> Items {
    let spec = cx.spec(x).clone();
    let axes: Vec<usize> = given.iter().map(|(a, _)| *a).collect();
    let adjacent = axes.windows(2).all(|w| w[1] == w[0] + 1);
    let size = |a: usize| if axes.contains(&a) { Some(1) } else { spec.dims[a].as_int() };
    let sizes: Option<Vec<i64>> = (0..spec.rank()).map(size).collect();
    let Some(sizes) = sizes else { return unsupported("several indices beside an axis whose size is not known") };
    let indices: Vec<In> = given.iter().map(|(_, t)| In(*t)).collect();
    let gathered = cx.emit(flambeau_ir::Gather {
        x: In(x),
        indices,
        out: NEW,
        axes: axes.iter().map(|&a| a as i32).collect(),
        slice_sizes: sizes.iter().map(|&s| s as i32).collect(),
    })?;
    // The gathered shape is the indices' common shape, then every axis of x, the indexed ones with size 1.
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
    let out = cx.permute(flat, &perm)?;
    let dims = call.out(0)?.dims.clone();
    one(if cx.spec(out).rank() == dims.len() { out } else { expand_to(cx, out, &dims)? })
}

/// Elements of the flattened tensor.
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

/// Sums, means or maxima of looked-up rows, where every bag is known to have the same length.
fn embedding_bag(cx: &mut Lower, call: &Call) -> Items {
    if (1..4).any(|i| call.is_used(i)) || call.int_or("padding_idx", -1)? >= 0 {
        return unsupported("bags with padding, or whose counts are used");
    }
    let (weight, indices, offsets) = (call.tensor("weight")?, call.tensor("indices")?, call.tensor("offsets")?);
    let length = match cx.producer(offsets) {
        Some(flambeau_ir::Node::ARange(r)) if r.start == flambeau_ir::Int::Lit(0) => match r.step {
            flambeau_ir::Int::Lit(step) if step > 0 => step,
            _ => return unsupported("bags of unknown lengths"),
        },
        _ => return unsupported("bags of unknown lengths"),
    };
    let count = cx.spec(indices).numel();
    let Some(bags) = count.exact_div(&Expr::Int(length)) else { return unsupported("bags of different lengths") };
    let indices = cx.reshape(indices, &[bags.clone(), Expr::Int(length)])?;
    let mut rows = ops::take(cx, weight, indices, 0)?;
    if call.arg("per_sample_weights").is_some() {
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

const BAG: &str = "weight indices offsets scale_grad_by_freq mode sparse per_sample_weights include_last_offset padding_idx";

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.embedding.default", "weight indices padding_idx scale_grad_by_freq sparse", embedding),
    row("aten.gather.default", "self dim index sparse_grad", gather),
    row("aten.index.Tensor", "self indices", index),
    row("aten.index_select.default", "self dim index", index_select),
    row("aten.select_scatter.default", "self src dim index", select_scatter),
    row("aten.slice_scatter.default", "self src dim start end step", slice_scatter),
    row("aten._embedding_bag.default", BAG, embedding_bag),
    row("aten._embedding_bag_forward_only.default", BAG, embedding_bag),
    row("aten._unsafe_index.Tensor", "self indices", index),
    row("aten.embedding_bag.padding_idx", BAG, embedding_bag),
    row("aten.one_hot.default", "self num_classes", one_hot),
    row("aten.take.default", "self index", take),
    row("aten.take_along_dim.default", "self indices dim", take_along_dim),
];
