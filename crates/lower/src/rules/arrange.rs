//! Compositions of views and joins, and differences of neighbours.

use flambeau_ir::{Flip, In, Int, ItemInt, Slice, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
    shape::{expand_to, recorded_lengths, sections, slice_axis},
};
use crate::{
    Call, ConstExpr, Item, Lower, Origin, Refuse,
    call::unsupported,
    lower::{NEW, NEW_VALUE},
};

type Items = Result<Vec<Item>, Refuse>;

/// The `n`-th difference of neighbours; for booleans, whether neighbours differ. For `n` 0, PyTorch
/// ignores `prepend` and `append` too.
fn diff(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let x = cx.operand(call, "self", dtype)?;
    let n = call.int_or("n", 1)?;
    if n == 0 {
        return one(x);
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    let mut parts = vec![x];
    if call.arg("prepend").is_some() {
        parts.insert(0, cx.operand(call, "prepend", dtype)?);
    }
    if call.arg("append").is_some() {
        parts.push(cx.operand(call, "append", dtype)?);
    }
    let mut x = ops::concat(cx, &parts, axis)?;
    for _ in 0..n {
        let last = cx.spec(x).dims[axis].clone() - Expr::Int(1);
        let later = slice_axis(cx, x, axis, &Expr::Int(1), &Expr::Int(i64::MAX), 1)?;
        let earlier = slice_axis(cx, x, axis, &Expr::Int(0), &last, 1)?;
        x = if dtype == DType::Bool { ops::ne(cx, later, earlier)? } else { ops::sub(cx, later, earlier)? };
    }
    one(x)
}

/// The operands in the result's type, each raised to a minimum rank by `raise`.
fn raised(cx: &mut Lower, call: &Call, raise: fn(&mut Lower, Tid) -> Emitted) -> Result<Vec<Tid>, Refuse> {
    let dtype = call.out(0)?.dtype;
    call.tensors("tensors")?.into_iter().map(|t| cx.cast(t, dtype).and_then(|t| raise(cx, t))).collect()
}

fn at_least_1d(cx: &mut Lower, t: Tid) -> Emitted {
    if cx.spec(t).rank() == 0 { cx.unsqueeze(t, 0) } else { Ok(t) }
}

fn at_least_2d(cx: &mut Lower, t: Tid) -> Emitted {
    let t = at_least_1d(cx, t)?;
    if cx.spec(t).rank() == 1 { cx.unsqueeze(t, 0) } else { Ok(t) }
}

fn at_least_3d(cx: &mut Lower, t: Tid) -> Emitted {
    let t = at_least_2d(cx, t)?;
    if cx.spec(t).rank() == 2 { cx.unsqueeze(t, 2) } else { Ok(t) }
}

/// Raises one tensor, or each of a list.
fn at_least(cx: &mut Lower, call: &Call, raise: fn(&mut Lower, Tid) -> Emitted) -> Items {
    if call.arg("self").is_some() {
        return one(raise(cx, call.tensor("self")?)?);
    }
    let raised = call.tensors("tensors")?.into_iter().map(|t| raise(cx, t));
    Ok(vec![Item::Tensors(raised.collect::<Result<_, _>>()?)])
}

/// Places matrices along the diagonal of a matrix of zeros.
fn block_diag(cx: &mut Lower, call: &Call) -> Items {
    let blocks = raised(cx, call, at_least_2d)?;
    let columns: Vec<Expr> = blocks.iter().map(|&t| cx.spec(t).dims[1].clone()).collect();
    let mut rows = Vec::new();
    for (i, &block) in blocks.iter().enumerate() {
        let widths = (ops::total_of(&columns[..i]), ops::total_of(&columns[i + 1..]));
        rows.push(ops::pad(cx, block, &[(Expr::Int(0), Expr::Int(0)), widths], "constant", 0.0)?);
    }
    one(ops::concat(cx, &rows, 0)?)
}

/// The Cartesian product of vectors, one combination per row.
fn cartesian_prod(cx: &mut Lower, call: &Call) -> Items {
    let vectors = call.tensors("tensors")?;
    if let [only] = vectors[..] {
        return one(only);
    }
    let sizes: Vec<Expr> = vectors.iter().map(|&t| cx.spec(t).numel()).collect();
    let total = ops::volume(&sizes);
    let mut columns = Vec::new();
    for (axis, &t) in vectors.iter().enumerate() {
        let laid = ops::along(cx, t, axis, sizes.len())?;
        let grid = expand_to(cx, laid, &sizes)?;
        columns.push(cx.reshape(grid, &[total.clone(), Expr::Int(1)])?);
    }
    one(ops::concat(cx, &columns, 1)?)
}

/// Rolls every axis by half its size, up or down.
fn shifted(cx: &mut Lower, call: &Call, up: bool) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let axes = match call.ints_opt("dim")? {
        Some(list) => list.into_iter().map(|a| flambeau_tensor::normalize_axis(a, rank)).collect::<Option<Vec<_>>>(),
        None => Some((0..rank).collect()),
    };
    let Some(axes) = axes else { return unsupported("an axis that the tensor lacks") };
    let sizes: Vec<Expr> = axes.iter().map(|&a| cx.spec(x).dims[a].clone()).collect();
    if axes.is_empty() {
        return one(x);
    }
    let half = |n: &Expr| (n.clone() + Expr::Int(i64::from(!up))).floor_div(&Expr::Int(2));
    let shift = cx.ints(&sizes.iter().map(half).collect::<Vec<_>>())?;
    one(cx.emit(flambeau_ir::Roll { x: In(x), out: NEW, shift, axes: axes.iter().map(|&a| a as i32).collect() })?)
}

fn hstack(cx: &mut Lower, call: &Call) -> Items {
    let tensors = raised(cx, call, at_least_1d)?;
    let axis = usize::from(tensors.first().is_some_and(|&t| cx.spec(t).rank() > 1));
    one(ops::concat(cx, &tensors, axis)?)
}

fn vstack(cx: &mut Lower, call: &Call) -> Items {
    let tensors = raised(cx, call, at_least_2d)?;
    one(ops::concat(cx, &tensors, 0)?)
}

fn dstack(cx: &mut Lower, call: &Call) -> Items {
    let tensors = raised(cx, call, at_least_3d)?;
    one(ops::concat(cx, &tensors, 2)?)
}

fn column_stack(cx: &mut Lower, call: &Call) -> Items {
    let column = |cx: &mut Lower, t: Tid| {
        let t = at_least_1d(cx, t)?;
        if cx.spec(t).rank() == 1 { cx.unsqueeze(t, 1) } else { Ok(t) }
    };
    let tensors = raised(cx, call, column)?;
    one(ops::concat(cx, &tensors, 1)?)
}

/// Expands each vector along its own axis of a common grid; `xy` swaps the first two axes.
fn meshgrid(cx: &mut Lower, call: &Call) -> Items {
    let mut axes: Vec<usize> = (0..call.tensors("tensors")?.len()).collect();
    if call.str_or("indexing", "ij")? == "xy" && axes.len() >= 2 {
        axes.swap(0, 1);
    }
    let n = axes.len();
    let mut dims = vec![Expr::Int(1); n];
    let mut vectors = Vec::new();
    for (t, &axis) in call.tensors("tensors")?.into_iter().zip(&axes) {
        let t = at_least_1d(cx, t)?;
        dims[axis] = cx.spec(t).dims[0].clone();
        vectors.push(ops::along(cx, t, axis, n)?);
    }
    let grids = vectors.into_iter().map(|t| expand_to(cx, t, &dims)).collect::<Result<Vec<_>, _>>()?;
    Ok(vec![Item::Tensors(grids)])
}

/// Rotates by quarter turns in the plane of two axes.
fn rot90(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let plane = call.ints_opt("dims")?.unwrap_or_else(|| vec![0, 1]);
    let axis = |a: i64| flambeau_tensor::normalize_axis(a, rank).ok_or_else(|| Refuse::Missing("dims".to_owned()));
    let [a, b] = plane[..] else { return unsupported("a rotation in other than a plane") };
    let (a, b) = (axis(a)?, axis(b)?);
    let mut swapped: Vec<usize> = (0..rank).collect();
    swapped.swap(a, b);
    let turned = match call.int_or("k", 1)?.rem_euclid(4) {
        0 => x,
        1 => {
            let flipped = ops::flip(cx, x, b)?;
            cx.permute(flipped, &swapped)?
        }
        2 => cx.emit(Flip { x: In(x), out: NEW, axes: vec![a as i32, b as i32] })?,
        _ => {
            let moved = cx.permute(x, &swapped)?;
            ops::flip(cx, moved, b)?
        }
    };
    one(turned)
}

fn flip_axis(cx: &mut Lower, call: &Call, axis: usize) -> Items {
    let x = call.tensor("self")?;
    one(ops::flip(cx, x, axis)?)
}

fn hsplit(cx: &mut Lower, call: &Call) -> Items {
    let axis = usize::from(cx.spec(call.tensor("self")?).rank() > 1);
    split_axis(cx, call, axis)
}

/// Splits into parts of nearly equal length, or at given indices.
fn tensor_split(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    split_axis(cx, call, axis)
}

/// Splits into parts given by a tensor: their number, or the start of each part except the first.
fn tensor_split_by_tensor(cx: &mut Lower, call: &Call) -> Items {
    let (x, by) = (call.tensor("self")?, call.tensor("tensor_indices_or_sections")?);
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let size = cx.spec(x).dims[axis].clone();
    if cx.spec(by).rank() == 0 {
        let [size] = ops::known("split size", &[size])?[..] else { return unsupported("one size") };
        return parts(cx, x, axis, &even_ends(call.outputs.len() as i64, size));
    }
    let by = cx.cast(by, DType::I64)?;
    let size = cx.size_tensor(&size)?;
    let zero = cx.number(0.0, DType::I64)?;
    let negative = ops::lt(cx, by, zero)?;
    let from_end = ops::add(cx, by, size)?;
    let place = ops::select(cx, negative, from_end, by)?;
    let place = ops::maximum(cx, place, zero)?;
    let place = ops::minimum(cx, place, size)?;
    let mut begin = zero;
    let mut made = Vec::with_capacity(call.outputs.len());
    for i in 0..call.outputs.len() {
        let next = if i + 1 < call.outputs.len() { ops::take_one(cx, place, i as i64, 0)? } else { size };
        let end = ops::maximum(cx, next, begin)?;
        let mut bound = |t: Tid| cx.emit_value(ItemInt { x: In(t), out: NEW_VALUE }).map(Int::Vid);
        let (start, stop) = (bound(begin)?, bound(end)?);
        made.push(cx.emit(Slice { x: In(x), out: NEW, axis: Int::Lit(axis as i64), start, stop, step: 1 })?);
        begin = next;
    }
    Ok(vec![Item::Tensors(made)])
}

/// The ends of the parts whose starts, except the first one's, are `indices`.
fn ends_at(indices: &[i64], size: i64) -> Vec<i64> {
    let place = |&i: &i64| if i < 0 { (i + size).max(0) } else { i.min(size) };
    indices.iter().map(place).chain([size]).collect()
}

fn even_ends(n: i64, size: i64) -> Vec<i64> {
    let n = n.max(1);
    (1..=n).map(|i| i * (size / n) + i.min(size % n)).collect()
}

/// Splits an axis. If its size is symbolic, the parts have the lengths that the program records.
fn split_axis(cx: &mut Lower, call: &Call, axis: usize) -> Items {
    let x = call.tensor("self")?;
    let size = cx.spec(x).dims[axis].clone();
    let Some(size) = size.as_int() else {
        let lengths = recorded_lengths(call, axis).filter(|lengths| ops::total_of(lengths) == size);
        return match lengths {
            Some(lengths) => sections(cx, x, axis, &lengths),
            None => unsupported(format!("parts of an axis of {size} elements that do not follow one another")),
        };
    };
    let ends = match call.arg("indices") {
        Some(_) => ends_at(&call.ints("indices")?, size),
        None => even_ends(call.int("sections")?, size),
    };
    parts(cx, x, axis, &ends)
}

fn parts(cx: &mut Lower, x: Tid, axis: usize, ends: &[i64]) -> Items {
    let starts = [0].into_iter().chain(ends.iter().copied());
    let parts = starts.zip(ends).map(|(start, &end)| slice_axis(cx, x, axis, &Expr::Int(start), &Expr::Int(end.max(start)), 1));
    Ok(vec![Item::Tensors(parts.collect::<Result<_, _>>()?)])
}

/// Strides over a tensor in row-major memory: an argument or a constant.
fn as_strided(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if matches!(cx.graph().tensors[x.0 as usize].origin, Origin::Node) {
        return unsupported("strides over a computed tensor, whose layout a graph does not fix");
    }
    let offset = u64::try_from(call.int_or("storage_offset", 0)?).map_err(|_| Refuse::Missing("storage_offset".to_owned()))?;
    one(ops::as_strided(cx, x, &call.sizes("size")?, &call.sizes("stride")?, offset)?)
}

/// Reinterprets the bits of a constant as another type of the same size.
fn view_dtype(cx: &mut Lower, call: &Call) -> Items {
    let (x, dtype) = (call.tensor("self")?, call.out(0)?.dtype);
    if cx.spec(x).dtype == dtype {
        return one(x);
    }
    match cx.graph().constant(x).cloned() {
        Some(c) if c.dtype.size() == dtype.size() => {
            let name = format!("{}_as_{dtype}", c.name);
            let shape = c.shape.clone();
            one(cx.constant(crate::Constant { name, dtype, shape, expr: ConstExpr::Reinterpret(c) }))
        }
        _ => unsupported("bits of a computed tensor read as another type"),
    }
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.as_strided.default", as_strided),
    row("aten.as_strided_copy.default", as_strided),
    row("aten.atleast_1d.Sequence", |cx, call| at_least(cx, call, at_least_1d)),
    row("aten.atleast_1d.default", |cx, call| at_least(cx, call, at_least_1d)),
    row("aten.atleast_2d.Sequence", |cx, call| at_least(cx, call, at_least_2d)),
    row("aten.atleast_2d.default", |cx, call| at_least(cx, call, at_least_2d)),
    row("aten.atleast_3d.Sequence", |cx, call| at_least(cx, call, at_least_3d)),
    row("aten.atleast_3d.default", |cx, call| at_least(cx, call, at_least_3d)),
    row("aten.block_diag.default", block_diag),
    row("aten.cartesian_prod.default", cartesian_prod),
    row("aten.column_stack.default", column_stack),
    row("aten.dsplit.array", |cx, call| split_axis(cx, call, 2)),
    row("aten.dsplit.int", |cx, call| split_axis(cx, call, 2)),
    row("aten.fft_fftshift.default", |cx, call| shifted(cx, call, true)),
    row("aten.fft_ifftshift.default", |cx, call| shifted(cx, call, false)),
    row("aten.hsplit.array", hsplit),
    row("aten.hsplit.int", hsplit),
    row("aten.vsplit.array", |cx, call| split_axis(cx, call, 0)),
    row("aten.vsplit.int", |cx, call| split_axis(cx, call, 0)),
    row("aten.diff.default", diff),
    row("aten.dstack.default", dstack),
    row("aten.fliplr.default", |cx, call| flip_axis(cx, call, 1)),
    row("aten.flipud.default", |cx, call| flip_axis(cx, call, 0)),
    row("aten.hstack.default", hstack),
    row("aten.meshgrid.default", meshgrid),
    row("aten.meshgrid.indexing", meshgrid),
    row("aten.rot90.default", rot90),
    row("aten.tensor_split.indices", tensor_split),
    row("aten.tensor_split.sections", tensor_split),
    row("aten.tensor_split.tensor_indices_or_sections", tensor_split_by_tensor),
    row("aten.view.dtype", view_dtype),
    row("aten.view_copy.dtype", view_dtype),
    row("aten.row_stack.default", vstack),
    row("aten.vstack.default", vstack),
];
