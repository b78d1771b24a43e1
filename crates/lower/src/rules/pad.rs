//! Padding in its modes.

use flambeau_ir::{In, Int, Slice, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
    shape::slice_axis,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Widths by axis from PyTorch's list, which starts with the last axis.
fn widths(cx: &Lower, x: Tid, list: &[Expr]) -> Result<Vec<(Expr, Expr)>, Refuse> {
    let rank = cx.spec(x).rank();
    if !list.len().is_multiple_of(2) || list.len() / 2 > rank {
        return unsupported(format!("{} padding widths for {rank} axes", list.len()));
    }
    let mut widths = vec![(Expr::Int(0), Expr::Int(0)); rank];
    for (width, pair) in widths.iter_mut().rev().zip(list.chunks_exact(2)) {
        *width = (pair[0].clone(), pair[1].clone());
    }
    Ok(widths)
}

/// Crops by negative widths and sets these to zero.
fn crop(cx: &mut Lower, mut x: Tid, widths: &mut [(Expr, Expr)]) -> Emitted {
    for (axis, (lo, hi)) in widths.iter_mut().enumerate() {
        let cut = |w: &Expr| w.as_int().filter(|&w| w < 0).map_or(0, i64::wrapping_neg);
        let (before, after) = (cut(lo), cut(hi));
        if before > 0 || after > 0 {
            let stop = cx.spec(x).dims[axis].clone() - Expr::Int(after);
            x = slice_axis(cx, x, axis, &Expr::Int(before), &stop, 1)?;
        }
        if before > 0 {
            *lo = Expr::Int(0);
        }
        if after > 0 {
            *hi = Expr::Int(0);
        }
    }
    Ok(x)
}

fn constant(cx: &mut Lower, x: Tid, list: &[Expr], value: f64) -> Items {
    let mut widths = widths(cx, x, list)?;
    let x = crop(cx, x, &mut widths)?;
    one(ops::pad(cx, x, &widths, "constant", value)?)
}

/// Repeats the end elements. Padding at one end may read elements that a negative width crops at
/// the other.
fn replicate(cx: &mut Lower, x: Tid, list: &[Expr]) -> Items {
    let mut widths = widths(cx, x, list)?;
    let known = cx.spec(x).dims.iter().all(|d| d.as_int().is_some_and(|n| n > 0));
    if known && widths.iter().any(|(lo, hi)| [lo, hi].iter().any(|w| w.as_int().is_some_and(|w| w < 0))) {
        return continued(cx, x, list, |i, n| i.clamp(0, n - 1), wrapped_ends);
    }
    let x = crop(cx, x, &mut widths)?;
    one(ops::pad(cx, x, &widths, "edge", 0.0)?)
}

/// Source index for index `i` of an axis of `n` elements padded at both ends.
type Continue = fn(i: i64, n: i64) -> i64;

fn mirrored(i: i64, n: i64) -> i64 {
    let period = 2 * (n - 1).max(1);
    let i = i.rem_euclid(period);
    if n == 1 { 0 } else { i.min(period - i) }
}

fn wrapped(i: i64, n: i64) -> i64 {
    i.rem_euclid(n)
}

/// Slices (start, stop, step) that pad an axis of unknown size before and after.
type Ends = fn(lo: i64, hi: i64) -> [(i64, i64, i32); 2];

fn mirrored_ends(lo: i64, hi: i64) -> [(i64, i64, i32); 2] {
    [(lo, 0, -1), (-2, -2 - hi, -1)]
}

fn wrapped_ends(lo: i64, hi: i64) -> [(i64, i64, i32); 2] {
    [(-lo, i64::MAX, 1), (0, hi, 1)]
}

fn continued(cx: &mut Lower, mut x: Tid, list: &[Expr], place: Continue, ends: Ends) -> Items {
    let widths = widths(cx, x, list)?;
    for (axis, (lo, hi)) in widths.into_iter().enumerate() {
        let [lo, hi] = ops::known("pad", &[lo, hi])?[..] else { continue };
        if lo == 0 && hi == 0 {
            continue;
        }
        x = match cx.spec(x).dims[axis].as_int() {
            Some(n) if n > 0 => {
                let index: Vec<i64> = (-lo..n + hi).map(|i| place(i, n)).collect();
                let index = cx.integers(&format!("_pad_{lo}_{hi}_{n}"), &index, DType::I32)?;
                ops::take(cx, x, index, axis)?
            }
            Some(_) => return unsupported("continuing an empty axis"),
            None => join_ends(cx, x, axis, [lo, hi], ends(lo, hi))?,
        };
    }
    one(x)
}

fn join_ends(cx: &mut Lower, x: Tid, axis: usize, widths: [i64; 2], ends: [(i64, i64, i32); 2]) -> Emitted {
    if widths.iter().any(|&w| w < 0) {
        return unsupported("cutting a symbolic axis by padding");
    }
    let mut part = |(start, stop, step): (i64, i64, i32)| {
        cx.emit(Slice { x: In(x), out: NEW, axis: Int::Lit(axis as i64), start: Int::Lit(start), stop: Int::Lit(stop), step })
    };
    let before = (widths[0] > 0).then(|| part(ends[0])).transpose()?;
    let after = (widths[1] > 0).then(|| part(ends[1])).transpose()?;
    let parts: Vec<Tid> = before.into_iter().chain([x]).chain(after).collect();
    ops::concat(cx, &parts, axis)
}

fn in_mode(cx: &mut Lower, x: Tid, list: &[Expr], mode: &str, value: f64) -> Items {
    match mode {
        "constant" => constant(cx, x, list, value),
        "reflect" => continued(cx, x, list, mirrored, mirrored_ends),
        "replicate" => replicate(cx, x, list),
        "circular" => circular(cx, x, list),
        other => unsupported(format!("padding mode {other:?}")),
    }
}

/// Circular padding of the axis left by negative widths.
fn circular(cx: &mut Lower, x: Tid, list: &[Expr]) -> Items {
    let mut widths = widths(cx, x, list)?;
    let x = crop(cx, x, &mut widths)?;
    let rest: Vec<Expr> = widths.into_iter().rev().flat_map(|(lo, hi)| [lo, hi]).collect();
    continued(cx, x, &rest, wrapped, wrapped_ends)
}

fn pad(cx: &mut Lower, call: &Call) -> Items {
    in_mode(cx, call.tensor("self")?, &call.sizes("pad")?, call.str_or("mode", "constant")?, call.float_or("value", 0.0)?)
}

fn reflection_pad(cx: &mut Lower, call: &Call) -> Items {
    in_mode(cx, call.tensor("self")?, &call.sizes("padding")?, "reflect", 0.0)
}

fn replication_pad(cx: &mut Lower, call: &Call) -> Items {
    in_mode(cx, call.tensor("self")?, &call.sizes("padding")?, "replicate", 0.0)
}

fn circular_pad(cx: &mut Lower, call: &Call) -> Items {
    in_mode(cx, call.tensor("self")?, &call.sizes("pad")?, "circular", 0.0)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._pad_circular.default", circular_pad),
    row("aten.constant_pad_nd.default", pad),
    row("aten.pad.default", pad),
    row("aten.reflection_pad1d.default", reflection_pad),
    row("aten.reflection_pad2d.default", reflection_pad),
    row("aten.reflection_pad3d.default", reflection_pad),
    row("aten.replication_pad1d.default", replication_pad),
    row("aten.replication_pad2d.default", replication_pad),
    row("aten.replication_pad3d.default", replication_pad),
];
