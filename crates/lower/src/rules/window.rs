//! Sliding windows, and rearrangements between channels and space.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr, WindowAxis};

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

/// The indices `[windows, taps]` into the padded axis: a constant if the number is known.
fn places(cx: &mut Lower, name: &str, windows: &Windows, count: &Expr) -> Emitted {
    if let Some(count) = count.as_int() {
        return index_table(cx, name, count.max(0), windows.kernel, |w, tap| windows.place(w, tap));
    }
    let (starts, taps) = (ops::count(cx, count, DType::I32)?, ops::count(cx, &Expr::Int(windows.kernel), DType::I32)?);
    let starts = ops::mul_number(cx, starts, windows.walk.stride as f64)?;
    let starts = cx.unsqueeze(starts, 1)?;
    let taps = ops::mul_number(cx, taps, windows.walk.dilation as f64)?;
    ops::add(cx, starts, taps)
}

/// Windows of an axis, with their elements as a new last axis.
fn unfold(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).rank() == 0 {
        return one(cx.unsqueeze(x, 0)?);
    }
    let axis = cx.axis(call, "dimension", 0, cx.spec(x).rank())?;
    let (size, step) = (call.int("size")?, call.int("step")?.max(1));
    let windows = Windows { kernel: size, walk: WindowAxis { stride: step, ..WindowAxis::default() } };
    let count = windows.count(&cx.spec(x).dims[axis]);
    let table = places(cx, "_unfold", &windows, &count)?;
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
    let counts = [rows.count(&cx.spec(x).dims[h]), columns.count(&cx.spec(x).dims[w])];
    let mut widths = vec![(Expr::Int(0), Expr::Int(0)); rank];
    for (axis, p) in [(h, rows.walk.padding), (w, columns.walk.padding)] {
        widths[axis] = (Expr::Int(p), Expr::Int(p));
    }
    let padded = ops::pad(cx, x, &widths, "constant", 0.0)?;
    let row_table = places(cx, "_patch_rows", &rows, &counts[0])?;
    let column_table = places(cx, "_patch_columns", &columns, &counts[1])?;
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
    let out = call.sizes("output_size")?;
    let [h, w] = &out[..] else { return unsupported("an output of other than two axes") };
    let wide = |size: &Expr, p: &Windows| size.clone() + Expr::Int(2 * p.walk.padding);
    let padded = [wide(h, &rows), wide(w, &columns)];
    let dims = call.out(0)?.dims.clone();
    let Some(lead) = dims.len().checked_sub(2) else { return unsupported("a result without an image") };
    let index = patch_places(cx, [&rows, &columns], [&rows.count(h), &columns.count(w)], &padded[1])?;
    let n = cx.spec(index).dims[0].clone();
    let updates = cx.reshape(x, &[&dims[..lead], &[n]].concat())?;
    let index = ops::along(cx, index, lead, lead + 1)?;
    let update_dims = cx.spec(updates).dims.to_vec();
    let index = super::shape::expand_to(cx, index, &update_dims)?;
    let flat = [&dims[..lead], &[ops::volume(&padded)]].concat();
    let zeros = ops::full(cx, 0.0, &flat, cx.spec(x).dtype)?;
    let summed = ops::scatter_add(cx, zeros, index, updates, lead)?;
    let mut image = cx.reshape(summed, &[&dims[..lead], &padded].concat())?;
    for (axis, (size, p)) in [(lead, (h, rows.walk.padding)), (lead + 1, (w, columns.walk.padding))] {
        image = slice_axis(cx, image, axis, &Expr::Int(p), &(size.clone() + Expr::Int(p)), 1)?;
    }
    one(image)
}

/// The places `[Kh * Kw * Oh * Ow]` of all patches in a flat padded image, whose rows have `width`
/// elements.
fn patch_places(cx: &mut Lower, [rows, columns]: [&Windows; 2], counts: [&Expr; 2], width: &Expr) -> Emitted {
    if let (Some(oh), Some(ow), Some(width)) = (counts[0].as_int(), counts[1].as_int(), width.as_int()) {
        let mut places = Vec::new();
        for (ky, kx) in (0..rows.kernel).flat_map(|y| (0..columns.kernel).map(move |x| (y, x))) {
            for (oy, ox) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
                places.push(rows.place(oy, ky) * width + columns.place(ox, kx));
            }
        }
        return cx.integers("_patch_places", &places, DType::I32);
    }
    let row_table = places(cx, "_patch_rows", rows, counts[0])?;
    let width = cx.size_tensor(width)?;
    let width = cx.cast(width, DType::I32)?;
    let starts = ops::mul(cx, row_table, width)?;
    let column_table = places(cx, "_patch_columns", columns, counts[1])?;
    // [Oh, Kh] and [Ow, Kw] to [Kh, 1, Oh, 1] and [Kw, 1, Ow].
    let starts = cx.permute(starts, &[1, 0])?;
    let starts = cx.reshape(starts, &[Expr::Int(rows.kernel), Expr::Int(1), counts[0].clone(), Expr::Int(1)])?;
    let taps = cx.permute(column_table, &[1, 0])?;
    let taps = cx.unsqueeze(taps, 1)?;
    let all = ops::add(cx, starts, taps)?;
    let n = ops::volume(&cx.spec(all).dims);
    cx.reshape(all, &[n])
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
    // A run fails in `reshape` if the sizes do not divide.
    let (h, w) = (h.floor_div(&r), w.floor_div(&r));
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
