//! Views, casts, copies, joins and splits.

use flambeau_ir::{
    BroadcastTo, Concatenate, Flip, In, InferError, Int, Out, Repeat, Roll, Slice, Split, Squeeze, Stack, Take, Tid, Tile, Tril,
    Triu,
};
use flambeau_tensor::{Expr, normalize_axis};

use super::{RuleRow, one, row};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Operators that return their operand: layout, aliasing and training-only operators.
fn same(_: &mut Lower, call: &Call) -> Items {
    one(call.tensor("self")?)
}

fn to_dtype(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    one(cx.cast(x, call.out(0)?.dtype)?)
}

fn copy(cx: &mut Lower, call: &Call) -> Items {
    let (x, src) = (call.tensor("self")?, call.tensor("src")?);
    let dtype = cx.spec(x).dtype;
    let src = cx.cast(src, dtype)?;
    let dims = cx.spec(x).dims.to_vec();
    one(expand_to(cx, src, &dims)?)
}

/// `x` broadcast to these sizes.
pub(super) fn expand_to(cx: &mut Lower, x: Tid, dims: &[Expr]) -> Result<Tid, Refuse> {
    if *cx.spec(x).dims == *dims {
        return Ok(x);
    }
    let shape = cx.ints(dims)?;
    cx.emit(BroadcastTo { x: In(x), out: NEW, shape })
}

/// The sizes of a reshape, with -1 resolved.
pub(super) fn resolved(cx: &Lower, x: Tid, sizes: &[Expr]) -> Result<Vec<Expr>, Refuse> {
    let rest = sizes.iter().filter(|d| d.as_int() != Some(-1)).fold(Expr::Int(1), |n, d| n * d.clone());
    let numel = cx.spec(x).numel();
    let infer = || match rest.as_int() {
        Some(0) => unsupported("a size cannot be inferred from an empty shape"),
        _ => Ok(numel.exact_div(&rest).unwrap_or_else(|| numel.floor_div(&rest))),
    };
    sizes.iter().map(|d| if d.as_int() == Some(-1) { infer() } else { Ok(d.clone()) }).collect()
}

fn view(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let param = if call.arg("size").is_some() { "size" } else { "shape" };
    let dims = resolved(cx, x, &call.sizes(param)?)?;
    one(cx.reshape(x, &dims)?)
}

fn view_as(cx: &mut Lower, call: &Call) -> Items {
    let dims = cx.spec(call.tensor("other")?).dims.to_vec();
    one(cx.reshape(call.tensor("self")?, &dims)?)
}

fn flatten(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let dims = cx.spec(x).dims.to_vec();
    if dims.is_empty() {
        return one(cx.reshape(x, &[Expr::Int(1)])?);
    }
    let (start, end) = (cx.axis(call, "start_dim", 0, dims.len())?, cx.axis(call, "end_dim", -1, dims.len())?);
    let joined = dims[start..=end].iter().cloned().fold(Expr::Int(1), |n, d| n * d);
    let dims = [&dims[..start], &[joined], &dims[end + 1..]].concat();
    one(cx.reshape(x, &dims)?)
}

fn unflatten(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let dims = cx.spec(x).dims.to_vec();
    let at = cx.axis(call, "dim", 0, dims.len())?;
    let sizes = call.sizes("sizes")?;
    let rest = sizes.iter().filter(|d| d.as_int() != Some(-1)).fold(Expr::Int(1), |n, d| n * d.clone());
    let split =
        sizes.iter().map(|d| if d.as_int() == Some(-1) { dims[at].floor_div(&rest) } else { d.clone() }).collect::<Vec<_>>();
    let dims = [&dims[..at], &split, &dims[at + 1..]].concat();
    one(cx.reshape(x, &dims)?)
}

/// The listed axes; a rank-0 tensor counts as rank 1.
fn axes(call: &Call, param: &str, rank: usize) -> Result<Vec<usize>, Refuse> {
    let one = |&axis: &i64| normalize_axis(axis, rank.max(1)).ok_or(Refuse::Infer(InferError::Axis { axis, rank }));
    call.ints(param)?.iter().map(one).collect()
}

fn permute(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return one(x);
    }
    let perm = axes(call, "dims", cx.spec(x).rank())?;
    one(cx.permute(x, &perm)?)
}

fn transpose(cx: &mut Lower, call: &Call) -> Items {
    swapped(cx, call, ["dim0", "dim1"])
}

/// Exchanges the two axes that these parameters name.
fn swapped(cx: &mut Lower, call: &Call, [first, second]: [&str; 2]) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let mut perm: Vec<usize> = (0..rank).collect();
    if rank > 0 {
        perm.swap(cx.axis(call, first, 0, rank)?, cx.axis(call, second, 1, rank)?);
    }
    one(cx.permute(x, &perm)?)
}

fn t(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let perm: Vec<usize> = (0..cx.spec(x).rank()).rev().collect();
    one(cx.permute(x, &perm)?)
}

fn matrix_transpose(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let mut perm: Vec<usize> = (0..rank).collect();
    if rank < 2 {
        return unsupported("a matrix transpose needs two dims");
    }
    perm.swap(rank - 2, rank - 1);
    one(cx.permute(x, &perm)?)
}

fn movedim(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    if rank == 0 {
        return one(x);
    }
    let (source, destination) = (axes(call, "source", rank)?, axes(call, "destination", rank)?);
    let mut perm = vec![usize::MAX; rank];
    for (&s, &d) in source.iter().zip(&destination) {
        perm[d] = s;
    }
    let mut rest = (0..rank).filter(|a| !source.contains(a));
    for p in &mut perm {
        if *p == usize::MAX {
            *p = rest.next().unwrap_or(0);
        }
    }
    one(cx.permute(x, &perm)?)
}

fn unsqueeze(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let at = cx.axis(call, "dim", 0, cx.spec(x).rank() + 1)?;
    one(cx.unsqueeze(x, at)?)
}

/// Removes the listed axes of size 1; PyTorch ignores the others.
fn squeeze_axes(cx: &mut Lower, x: Tid, wanted: &[usize]) -> Items {
    let dims = &cx.spec(x).dims;
    let dims: Vec<i32> =
        wanted.iter().filter(|&&a| dims.get(a).is_some_and(|d| d.as_int() == Some(1))).map(|&a| a as i32).collect();
    if dims.is_empty() {
        return one(x);
    }
    one(cx.emit(Squeeze { x: In(x), out: NEW, dims })?)
}

fn squeeze(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let wanted = match call.arg("dim") {
        None => (0..rank).collect(),
        Some(Arg::Int(_)) => vec![cx.axis(call, "dim", 0, rank.max(1))?],
        Some(_) => axes(call, "dim", rank)?,
    };
    squeeze_axes(cx, x, &wanted)
}

fn expand(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let sizes = call.sizes("size")?;
    let dims = &cx.spec(x).dims;
    let lead = sizes.len().saturating_sub(dims.len());
    let keep = |(i, d): (usize, &Expr)| if d.as_int() == Some(-1) && i >= lead { dims[i - lead].clone() } else { d.clone() };
    let target: Vec<Expr> = sizes.iter().enumerate().map(keep).collect();
    one(expand_to(cx, x, &target)?)
}

fn expand_as(cx: &mut Lower, call: &Call) -> Items {
    let dims = cx.spec(call.tensor("other")?).dims.to_vec();
    one(expand_to(cx, call.tensor("self")?, &dims)?)
}

/// `x[start:stop]` along an axis.
pub(super) fn slice_axis(cx: &mut Lower, x: Tid, axis: usize, start: &Expr, stop: &Expr, step: i32) -> Result<Tid, Refuse> {
    let (start, stop) = (cx.int(start)?, cx.int(stop)?);
    cx.emit(Slice { x: In(x), out: NEW, axis: Int::Lit(axis as i64), start, stop, step })
}

fn slice(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let start = call.size_opt("start")?.unwrap_or(Expr::Int(0));
    let stop = call.size_opt("end")?.unwrap_or(Expr::Int(i64::MAX));
    one(slice_axis(cx, x, axis, &start, &stop, call.int_or("step", 1)? as i32)?)
}

fn narrow(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    if let Some(Arg::Tensor(start)) = call.arg("start") {
        let start = *start;
        return narrow_from(cx, x, axis, start, &call.size("length")?);
    }
    let (mut start, length) = (call.size("start")?, call.size("length")?);
    if cx.graph().bounds(&start).1 < 0 {
        start = start + cx.spec(x).dims[axis].clone();
    }
    let stop = start.clone() + length;
    one(slice_axis(cx, x, axis, &start, &stop, 1)?)
}

/// A slice of an axis with its start in a one-element tensor.
fn narrow_from(cx: &mut Lower, x: Tid, axis: usize, start: Tid, length: &Expr) -> Items {
    let start = cx.cast(start, flambeau_tensor::DType::I64)?;
    let start = cx.reshape(start, &[])?;
    let places = super::ops::count(cx, length, flambeau_tensor::DType::I64)?;
    let places = super::ops::add(cx, places, start)?;
    one(super::ops::take(cx, x, places, axis)?)
}

fn select(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let index = match cx.int(&call.size("index")?)? {
        Int::Lit(v) => flambeau_ir::Index::Lit(v),
        Int::Vid(v) => flambeau_ir::Index::Vid(v),
    };
    one(cx.emit(Take { x: In(x), out: NEW, index, axis: axis as i32 })?)
}

/// Drops empty rank-1 tensors, which PyTorch lets join anything.
fn joinable(cx: &Lower, tensors: Vec<Tid>) -> Vec<Tid> {
    let legacy_empty = |t: &Tid| cx.spec(*t).rank() == 1 && cx.spec(*t).dims[0].as_int() == Some(0);
    let kept: Vec<Tid> = tensors.iter().copied().filter(|t| !legacy_empty(t)).collect();
    if kept.is_empty() { tensors } else { kept }
}

fn cat(cx: &mut Lower, call: &Call) -> Items {
    let tensors = joinable(cx, call.tensors("tensors")?);
    let dtype = call.out(0)?.dtype;
    let tensors = tensors.into_iter().map(|t| cx.cast(t, dtype)).collect::<Result<Vec<_>, _>>()?;
    let first = *tensors.first().ok_or_else(|| Refuse::Missing("tensors[0]".to_owned()))?;
    let axis = cx.axis(call, "dim", 0, cx.spec(first).rank())? as i32;
    if tensors.len() == 1 {
        return one(first);
    }
    one(cx.emit(Concatenate { tensors: tensors.into_iter().map(In).collect(), out: NEW, axis })?)
}

fn stack(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let tensors = call.tensors("tensors")?.into_iter().map(|t| cx.cast(t, dtype)).collect::<Result<Vec<_>, _>>()?;
    let rank = tensors.first().map_or(0, |&t| cx.spec(t).rank());
    let axis = cx.axis(call, "dim", 0, rank + 1)? as i32;
    one(cx.emit(Stack { tensors: tensors.into_iter().map(In).collect(), out: NEW, axis })?)
}

/// Sections of these lengths along an axis.
pub(super) fn sections(cx: &mut Lower, x: Tid, axis: usize, lengths: &[Expr]) -> Items {
    if lengths.len() == 1 {
        return Ok(vec![Item::Tensors(vec![x])]);
    }
    let sizes = cx.ints(lengths)?;
    let outs: Vec<Out> = lengths.iter().map(|_| NEW).collect();
    let slots = cx.emit_all(Split { x: In(x), outs, sizes, axis: axis as i32 }.into())?;
    let tensors = slots.into_iter().filter_map(|s| if let flambeau_ir::Slot::Tensor(t) = s { Some(t) } else { None });
    Ok(vec![Item::Tensors(tensors.collect())])
}

fn split_with_sizes(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let param = if call.arg("split_sizes").is_some() { "split_sizes" } else { "split_size" };
    sections(cx, x, axis, &call.sizes(param)?)
}

/// Lengths of chunks of `chunk` that cover a known size.
fn chunk_lengths(total: i64, chunk: i64) -> Vec<Expr> {
    (0..total).step_by(chunk.max(1) as usize).map(|start| Expr::Int(chunk.min(total - start))).collect()
}

/// Lengths of the parts, as recorded by the program.
pub(super) fn recorded_lengths(call: &Call, axis: usize) -> Option<Vec<Expr>> {
    let lengths = call.outputs.iter().map(|o| o.dims.get(axis).cloned()).collect::<Option<Vec<_>>>()?;
    (!lengths.is_empty()).then_some(lengths)
}

fn known_size(cx: &Lower, x: Tid, axis: usize) -> Result<i64, Refuse> {
    let size = &cx.spec(x).dims[axis];
    size.as_int().ok_or_else(|| Refuse::Dynamic { param: format!("size {axis}"), found: size.to_string() })
}

fn split(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let lengths = match (cx.spec(x).dims[axis].as_int(), call.size("split_size")?.as_int()) {
        (Some(total), Some(chunk)) => chunk_lengths(total, chunk),
        _ => recorded_lengths(call, axis).ok_or_else(|| Refuse::Unsupported("an unknown number of parts".into()))?,
    };
    sections(cx, x, axis, &lengths)
}

fn chunk(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let n = call.int("chunks")?.max(1);
    let lengths = match cx.spec(x).dims[axis].as_int() {
        Some(total) => chunk_lengths(total, (total + n - 1) / n),
        None => recorded_lengths(call, axis).ok_or_else(|| Refuse::Unsupported("an unknown number of parts".into()))?,
    };
    sections(cx, x, axis, &lengths)
}

fn unbind(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let n = known_size(cx, x, axis)?;
    let element = |i| flambeau_ir::Index::Lit(i);
    let parts = (0..n).map(|i| cx.emit(Take { x: In(x), out: NEW, index: element(i), axis: axis as i32 }));
    Ok(vec![Item::Tensors(parts.collect::<Result<_, _>>()?)])
}

fn repeat(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let param = if call.arg("repeats").is_some() { "repeats" } else { "dims" };
    let reps = cx.ints(&call.sizes(param)?)?;
    one(cx.emit(Tile { x: In(x), out: NEW, reps })?)
}

fn repeat_interleave(cx: &mut Lower, call: &Call) -> Items {
    let (x, axis) = super::ops::axis_or_flat(cx, call)?;
    let repeats = cx.int(&call.size("repeats")?)?;
    one(cx.emit(Repeat { x: In(x), out: NEW, repeats, axis: axis as i32 })?)
}

fn roll(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let shift = cx.ints(&call.sizes("shifts")?)?;
    let spec = cx.spec(x).clone();
    let axes: Vec<i32> = call.ints_opt("dims")?.unwrap_or_default().iter().map(|&a| a as i32).collect();
    if axes.is_empty() {
        let flat = cx.reshape(x, &[spec.numel()])?;
        let rolled = cx.emit(Roll { x: In(flat), out: NEW, shift, axes: vec![0] })?;
        return one(cx.reshape(rolled, &spec.dims)?);
    }
    one(cx.emit(Roll { x: In(x), out: NEW, shift, axes })?)
}

fn flip(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axes: Vec<i32> = axes(call, "dims", cx.spec(x).rank())?.into_iter().map(|a| a as i32).collect();
    if axes.is_empty() || cx.spec(x).rank() == 0 {
        return one(x);
    }
    one(cx.emit(Flip { x: In(x), out: NEW, axes })?)
}

fn tril(cx: &mut Lower, call: &Call) -> Items {
    one(cx.emit(Tril { x: In(call.tensor("self")?), out: NEW, k: call.int_or("diagonal", 0)? as i32 })?)
}

fn triu(cx: &mut Lower, call: &Call) -> Items {
    one(cx.emit(Triu { x: In(call.tensor("self")?), out: NEW, k: call.int_or("diagonal", 0)? as i32 })?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._to_copy.default", to_dtype),
    row("aten._unsafe_view.default", view),
    row("aten.alias.default", same),
    row("aten.alias_copy.default", same),
    row("aten.broadcast_to.default", expand),
    row("aten.cat.default", cat),
    row("aten.chunk.default", chunk),
    row("aten.clone.default", same),
    row("aten.contiguous.default", same),
    row("aten.copy.default", copy),
    row("aten.detach.default", same),
    row("aten.expand.default", expand),
    row("aten.expand_as.default", expand_as),
    row("aten.expand_copy.default", expand),
    row("aten.flatten.using_ints", flatten),
    row("aten.flip.default", flip),
    row("aten.lift_fresh_copy.default", same),
    row("aten.mT.default", matrix_transpose),
    row("aten.movedim.int", movedim),
    row("aten.movedim.intlist", movedim),
    row("aten.narrow.Tensor", narrow),
    row("aten.narrow.default", narrow),
    row("aten.numpy_T.default", t),
    row("aten.permute.default", permute),
    row("aten.permute_copy.default", permute),
    row("aten.repeat.default", repeat),
    row("aten.repeat_interleave.self_int", repeat_interleave),
    row("aten.reshape.default", view),
    row("aten.roll.default", roll),
    row("aten.select.int", select),
    row("aten.select_copy.int", select),
    row("aten.slice.Tensor", slice),
    row("aten.slice_copy.Tensor", slice),
    row("aten.split.Tensor", split),
    row("aten.split.sizes", split_with_sizes),
    row("aten.split_with_sizes.default", split_with_sizes),
    row("aten.split_with_sizes_copy.default", split_with_sizes),
    row("aten.squeeze.default", squeeze),
    row("aten.squeeze.dim", squeeze),
    row("aten.squeeze.dims", squeeze),
    row("aten.squeeze_copy.dims", squeeze),
    row("aten.stack.default", stack),
    row("aten.swapaxes.default", |cx, call| swapped(cx, call, ["axis0", "axis1"])),
    row("aten.t.default", t),
    row("aten.tile.default", repeat),
    row("aten.to.device", to_dtype),
    row("aten.to.dtype", to_dtype),
    row("aten.to.dtype_layout", to_dtype),
    row("aten.to.other", to_dtype),
    row("aten.transpose.int", transpose),
    row("aten.transpose_copy.int", transpose),
    row("aten.tril.default", tril),
    row("aten.triu.default", triu),
    row("aten.type_as.default", to_dtype),
    row("aten.unbind.int", unbind),
    row("aten.unflatten.int", unflatten),
    row("aten.unsqueeze.default", unsqueeze),
    row("aten.unsqueeze_copy.default", unsqueeze),
    row("aten.view.default", view),
    row("aten.view_as.default", view_as),
    row("aten.view_copy.default", view),
    row("aten._reshape_alias.default", view),
    row("aten._shape_as_tensor.default", |cx, call| {
        let dims = cx.spec(call.tensor("self")?).dims.to_vec();
        let sizes = dims.iter().map(|d| d.as_int()).collect::<Option<Vec<_>>>();
        if let Some(sizes) = sizes {
            return one(cx.integers("_shape", &sizes, flambeau_tensor::DType::I64)?);
        }
        let sizes = dims.iter().map(|d| cx.size_tensor(d)).collect::<Result<Vec<_>, _>>()?;
        one(cx.emit(Stack { tensors: sizes.into_iter().map(In).collect(), out: NEW, axis: 0 })?)
    }),
    row("aten.adjoint.default", matrix_transpose),
    row("aten.conj.default", same),
    row("aten.conj_physical.default", same),
    row("aten.mH.default", matrix_transpose),
    row("aten.matrix_H.default", matrix_transpose),
    row("aten.reshape_as.default", view_as),
    row("aten.concat.default", cat),
    row("aten.concatenate.default", cat),
    row("aten.detach_.default", same),
    row("aten.detach_copy.default", same),
    row("aten.lift.default", same),
    row("aten.lift_fresh.default", same),
    row("aten.moveaxis.int", movedim),
    row("aten.moveaxis.intlist", movedim),
    row("aten.narrow_copy.default", narrow),
    row("aten.positive.default", same),
    row("aten.ravel.default", flatten),
    row("aten.real.default", same),
    row("aten.resolve_conj.default", same),
    row("aten.resolve_neg.default", same),
    row("aten.squeeze_copy.default", squeeze),
    row("aten.squeeze_copy.dim", squeeze),
    row("aten.split_copy.Tensor", split),
    row("aten.swapdims.default", transpose),
    row("aten.t_copy.default", t),
    row("aten.unbind_copy.int", unbind),
    row("aten.unsafe_chunk.default", chunk),
    row("aten.unsafe_split.Tensor", split),
    row("aten.unsafe_split_with_sizes.default", split_with_sizes),
];
