//! Sliding windows, and rearrangements between channels and space.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow,
    geometry::Windows,
    one,
    ops::{self, Emitted},
    row,
    shape::slice_axis,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// A constant index `[rows, columns]`.
fn index_table(cx: &mut Lower, name: &str, rows: i64, columns: i64, at: impl Fn(i64, i64) -> i64) -> Emitted {
    let values: Vec<i64> = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))).map(|(r, c)| at(r, c)).collect();
    let table = cx.integers(name, &values, DType::I32)?;
    cx.reshape(table, &[Expr::Int(rows), Expr::Int(columns)])
}

fn axis_size(cx: &Lower, x: Tid, axis: usize) -> Result<i64, Refuse> {
    let size = &cx.spec(x).dims[axis];
    size.as_int().ok_or_else(|| Refuse::Dynamic { param: format!("size {axis}"), found: size.to_string() })
}

/// Windows of an axis, with their elements as a new last axis.
fn unfold(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return one(cx.unsqueeze(x, 0)?);
    }
    let axis = cx.axis(call, "dimension", 0, cx.spec(x).rank())?;
    let (size, step) = (call.int("size")?, call.int("step")?.max(1));
    let total = cx.spec(x).dims[axis].clone();
    if total.as_int().is_none() {
        let windows = (total - Expr::Int(size)).floor_div(&Expr::Int(step)) + Expr::Int(1);
        let (starts, places) = (ops::count(cx, &windows, DType::I32)?, ops::count(cx, &Expr::Int(size), DType::I32)?);
        let starts = ops::mul_number(cx, starts, step as f64)?;
        let starts = cx.unsqueeze(starts, 1)?;
        let table = ops::add(cx, starts, places)?;
        let taken = ops::take(cx, x, table, axis)?;
        return one(ops::axis_last(cx, taken, axis + 1)?);
    }
    let windows = (axis_size(cx, x, axis)? - size).div_euclid(step) + 1;
    let table = index_table(cx, "_unfold", windows.max(0), size, |w, i| w * step + i)?;
    let taken = ops::take(cx, x, table, axis)?;
    one(ops::axis_last(cx, taken, axis + 1)?)
}

/// The windows of `im2col` and `col2im` over the two axes of an image.
fn patches(call: &Call) -> Result<[Windows; 2], Refuse> {
    match Windows::of_call(call, 2)?[..] {
        [rows, columns] => Ok([rows, columns]),
        _ => unsupported("patches over other than two axes"),
    }
}

/// Patches `[N, C * Kh * Kw, L]` of an image `[N, C, H, W]`.
fn im2col(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let ([rows, columns], rank) = (patches(call)?, cx.spec(x).rank());
    if !(3..=4).contains(&rank) {
        return unsupported(format!("patches of a tensor of rank {rank}"));
    }
    let (h, w) = (rank - 2, rank - 1);
    let counts = ops::known("image sizes", &[rows.count(&cx.spec(x).dims[h]), columns.count(&cx.spec(x).dims[w])])?;
    let mut widths = vec![(Expr::Int(0), Expr::Int(0)); rank];
    for (axis, p) in [(h, rows.walk.padding), (w, columns.walk.padding)] {
        widths[axis] = (Expr::Int(p), Expr::Int(p));
    }
    let padded = ops::pad(cx, x, &widths, "constant", 0.0)?;
    let row_table = index_table(cx, "_patch_rows", counts[0], rows.kernel, |o, k| rows.place(o, k))?;
    let column_table = index_table(cx, "_patch_columns", counts[1], columns.kernel, |o, k| columns.place(o, k))?;
    let taken = ops::take(cx, padded, column_table, w)?;
    let taken = ops::take(cx, taken, row_table, h)?;
    // [.., C, Oh, Kh, Ow, Kw]
    let perm: Vec<usize> = (0..h).chain([h + 1, h + 3, h, h + 2]).collect();
    let moved = cx.permute(taken, &perm)?;
    one(cx.reshape(moved, &call.out(0)?.dims)?)
}

/// The sum of overlapping patches: the adjoint of `im2col`.
fn col2im(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let [rows, columns] = patches(call)?;
    let out = call.ints("output_size")?;
    let &[h, w] = &out[..] else { return unsupported("an output of other than two axes") };
    let counts = ops::known("output_size", &[rows.count(&Expr::Int(h)), columns.count(&Expr::Int(w))])?;
    let padded = [h + 2 * rows.walk.padding, w + 2 * columns.walk.padding];
    let dims = call.out(0)?.dims.clone();
    let Some(lead) = dims.len().checked_sub(2) else { return unsupported("a result without an image") };
    let mut places = Vec::new();
    for (ky, kx) in (0..rows.kernel).flat_map(|y| (0..columns.kernel).map(move |x| (y, x))) {
        for (oy, ox) in (0..counts[0]).flat_map(|y| (0..counts[1]).map(move |x| (y, x))) {
            places.push(rows.place(oy, ky) * padded[1] + columns.place(ox, kx));
        }
    }
    let n = Expr::Int(places.len() as i64);
    let updates = cx.reshape(x, &[&dims[..lead], &[n]].concat())?;
    let index = cx.integers("_patch_places", &places, DType::I32)?;
    let index = ops::along(cx, index, lead, lead + 1)?;
    let update_dims = cx.spec(updates).dims.to_vec();
    let index = super::shape::expand_to(cx, index, &update_dims)?;
    let flat = [&dims[..lead], &[Expr::Int(padded[0] * padded[1])]].concat();
    let zeros = ops::full(cx, 0.0, &flat, cx.spec(x).dtype)?;
    let summed = ops::scatter_add(cx, zeros, index, updates, lead)?;
    let mut image = cx.reshape(summed, &[&dims[..lead], &[Expr::Int(padded[0]), Expr::Int(padded[1])]].concat())?;
    for (axis, (size, p)) in [(lead, (h, rows.walk.padding)), (lead + 1, (w, columns.walk.padding))] {
        image = slice_axis(cx, image, axis, &Expr::Int(p), &Expr::Int(p + size), 1)?;
    }
    one(image)
}

/// The sizes `[.., C, H, W]` of an image as (lead, C, H, W).
fn image(cx: &Lower, x: Tid) -> Result<(Vec<Expr>, [Expr; 3]), Refuse> {
    match &cx.spec(x).dims[..] {
        [lead @ .., c, h, w] => Ok((lead.to_vec(), [c.clone(), h.clone(), w.clone()])),
        dims => unsupported(format!("an image of rank {}", dims.len())),
    }
}

fn exact(size: &Expr, by: &Expr) -> Result<Expr, Refuse> {
    size.exact_div(by).ok_or_else(|| Refuse::Unsupported(format!("{size} elements do not divide by {by}")))
}

/// `[.., C r², H, W]` to `[.., C, H r, W r]`.
fn pixel_shuffle(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let r = Expr::Int(call.int("upscale_factor")?);
    let (lead, [c, h, w]) = image(cx, x)?;
    let channels = exact(&c, &(r.clone() * r.clone()))?;
    let n = lead.len();
    let split = [&lead[..], &[channels.clone(), r.clone(), r.clone(), h.clone(), w.clone()]].concat();
    let split = cx.reshape(x, &split)?;
    let perm: Vec<usize> = (0..n).chain([n, n + 3, n + 1, n + 4, n + 2]).collect();
    let moved = cx.permute(split, &perm)?;
    one(cx.reshape(moved, &[&lead[..], &[channels, h * r.clone(), w * r]].concat())?)
}

/// `[.., C, H r, W r]` to `[.., C r², H, W]`.
fn pixel_unshuffle(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let r = Expr::Int(call.int("downscale_factor")?);
    let (lead, [c, h, w]) = image(cx, x)?;
    let (h, w) = (exact(&h, &r)?, exact(&w, &r)?);
    let n = lead.len();
    let split = [&lead[..], &[c.clone(), h.clone(), r.clone(), w.clone(), r.clone()]].concat();
    let split = cx.reshape(x, &split)?;
    let perm: Vec<usize> = (0..n).chain([n, n + 2, n + 4, n + 1, n + 3]).collect();
    let moved = cx.permute(split, &perm)?;
    one(cx.reshape(moved, &[&lead[..], &[c * r.clone() * r, h, w]].concat())?)
}

/// Interleaves the channels of the groups.
fn channel_shuffle(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let groups = Expr::Int(call.int("groups")?);
    let dims = cx.spec(x).dims.to_vec();
    if dims.len() < 2 {
        return unsupported("a tensor without channels");
    }
    let per_group = exact(&dims[1], &groups)?;
    let split = cx.reshape(x, &[&dims[..1], &[groups, per_group], &dims[2..]].concat())?;
    let mut perm: Vec<usize> = (0..=dims.len()).collect();
    perm.swap(1, 2);
    let moved = cx.permute(split, &perm)?;
    one(cx.reshape(moved, &dims)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.channel_shuffle.default", channel_shuffle),
    row("aten.col2im.default", col2im),
    row("aten.im2col.default", im2col),
    row("aten.native_channel_shuffle.default", channel_shuffle),
    row("aten.pixel_shuffle.default", pixel_shuffle),
    row("aten.pixel_unshuffle.default", pixel_unshuffle),
    row("aten.unfold.default", unfold),
    row("aten.unfold_copy.default", unfold),
];
