//! Quantiles, and positions of values in sorted sequences.

use flambeau_ir::{In, Round, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow,
    elementwise::promoted,
    one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// The elements to take quantiles of, along the last axis.
fn rows(cx: &mut Lower, call: &Call) -> Emitted {
    let x = cx.operand(call, "self", call.out(0)?.dtype)?;
    let rank = cx.spec(x).rank();
    if call.arg("dim").is_some() && rank > 0 {
        let axis = cx.axis(call, "dim", 0, rank)?;
        return ops::axis_last(cx, x, axis);
    }
    let numel = cx.spec(x).numel();
    cx.reshape(x, &[numel])
}

/// Fractional index `[.., Q]` of each quantile in `[.., n]` sorted elements. NaN sorts last:
/// `skips_nan` ignores it, otherwise a row with NaN gives NaN.
fn ranks(cx: &mut Lower, x: Tid, q: Tid, skips_nan: bool) -> Emitted {
    let axis = cx.spec(x).rank() - 1;
    let n = cx.spec(x).dims[axis].clone();
    let last = cx.size_tensor(&(n - Expr::Int(1)))?;
    let last = cx.cast(last, cx.spec(x).dtype)?;
    if skips_nan {
        let number = ops::eq(cx, x, x)?;
        let number = cx.cast(number, cx.spec(x).dtype)?;
        let count = ops::sum(cx, number, &[axis], true)?;
        let before = ops::add_number(cx, count, -1.0)?;
        let at = ops::mul(cx, q, before)?;
        let zero = ops::number_like(cx, at, 0.0)?;
        return ops::maximum(cx, at, zero);
    }
    let at = ops::mul(cx, q, last)?;
    let is_nan = ops::ne(cx, x, x)?;
    let any = ops::any(cx, is_nan, &[axis], true)?;
    ops::select(cx, any, last, at)
}

/// The elements at integer indices `[.., Q]` of an axis.
fn taken(cx: &mut Lower, sorted: Tid, at: Tid) -> Emitted {
    let axis = cx.spec(sorted).rank() - 1;
    let index = cx.cast(at, DType::I32)?;
    let dims = [&cx.spec(sorted).dims[..axis], &cx.spec(index).dims[axis..]].concat();
    let index = super::shape::expand_to(cx, index, &dims)?;
    ops::take_along(cx, sorted, index, axis)
}

/// Interpolates between the sorted elements on both sides of each fractional index.
fn quantile_of(cx: &mut Lower, call: &Call, skips_nan: bool) -> Items {
    let x = rows(cx, call)?;
    let dtype = cx.spec(x).dtype;
    let q = cx.operand(call, "q", dtype)?;
    let several = cx.spec(q).rank() > 0;
    let n = cx.spec(q).numel();
    let q = cx.reshape(q, &[n])?;
    let last = cx.spec(x).rank() - 1;
    let sorted = ops::sort(cx, x, last)?;
    let at = ranks(cx, x, q, skips_nan)?;
    let below = ops::floor(cx, at)?;
    let value = match call.str_or("interpolation", "linear")? {
        "lower" => taken(cx, sorted, below)?,
        "higher" => {
            let above = ops::ceil(cx, at)?;
            taken(cx, sorted, above)?
        }
        "nearest" => {
            let nearest = cx.emit(Round { x: In(at), out: NEW, decimals: 0 })?;
            taken(cx, sorted, nearest)?
        }
        mode @ ("linear" | "midpoint") => {
            let above = ops::ceil(cx, at)?;
            let part = if mode == "linear" { ops::sub(cx, at, below)? } else { ops::number_like(cx, at, 0.5)? };
            let (low, high) = (taken(cx, sorted, below)?, taken(cx, sorted, above)?);
            between(cx, low, high, part)?
        }
        other => return unsupported(format!("interpolation {other:?}")),
    };
    // The quantile axis comes first in the result.
    let value = if several { ops::axis_first(cx, value, last)? } else { value };
    let dims = call.out(0)?.dims.clone();
    one(cx.reshape(value, &dims)?)
}

/// The point at the fraction `part` from `low` to `high`, computed from the nearer end.
fn between(cx: &mut Lower, low: Tid, high: Tid, part: Tid) -> Emitted {
    let way = ops::sub(cx, high, low)?;
    let rest = ops::number_minus(cx, 1.0, part)?;
    let (up, down) = (ops::mul(cx, way, part)?, ops::mul(cx, way, rest)?);
    let (from, to) = (ops::add(cx, low, up)?, ops::sub(cx, high, down)?);
    let half = ops::number_like(cx, part, 0.5)?;
    let is_low = ops::lt(cx, part, half)?;
    ops::select(cx, is_low, from, to)
}

fn quantile(cx: &mut Lower, call: &Call) -> Items {
    quantile_of(cx, call, false)
}

fn nanquantile(cx: &mut Lower, call: &Call) -> Items {
    quantile_of(cx, call, true)
}

/// Insertion index of each value in the sorted sequence; NaN comes last.
pub(super) fn places(cx: &mut Lower, sequence: Tid, values: Tid, right: bool) -> Emitted {
    /// Longest sequence that is compared with the values element by element.
    const COMPARED: i64 = 512;
    let length = cx.spec(sequence).dims.last().and_then(Expr::as_int);
    if let Some(n) = length.filter(|&n| n > COMPARED && n < 1 << 30) {
        return bisected(cx, sequence, values, n, right);
    }
    let values = cx.unsqueeze(values, cx.spec(values).rank())?;
    let n = cx.spec(sequence).rank();
    let sequence = if n > 1 { cx.unsqueeze(sequence, n - 1)? } else { sequence };
    let beyond = if right { ops::gt(cx, sequence, values)? } else { ops::ge(cx, sequence, values)? };
    let before = ops::logical_not(cx, beyond)?;
    let last = cx.spec(before).rank() - 1;
    ops::sum(cx, before, &[last], false)
}

/// Insertion indices in a sorted sequence of `n` elements, by bisection.
fn bisected(cx: &mut Lower, sequence: Tid, values: Tid, n: i64, right: bool) -> Emitted {
    let last = cx.spec(sequence).rank() - 1;
    let dims = cx.spec(values).dims.to_vec();
    let mut at = ops::full(cx, 0.0, &dims, DType::I32)?;
    for step in (0..=n.ilog2()).rev().map(|bit| f64::from(1 << bit)) {
        let next = ops::add_number(cx, at, step)?;
        let (index, last_index) = (ops::add_number(cx, next, -1.0)?, ops::number_like(cx, at, (n - 1) as f64)?);
        let is_inside = ops::le(cx, index, last_index)?;
        let index = ops::minimum(cx, index, last_index)?;
        let element = if last > 0 { ops::take_along(cx, sequence, index, last)? } else { ops::take(cx, sequence, index, 0)? };
        let beyond = if right { ops::gt(cx, element, values)? } else { ops::ge(cx, element, values)? };
        let before = ops::logical_not(cx, beyond)?;
        let before = ops::logical_and(cx, before, is_inside)?;
        at = ops::select(cx, before, next, at)?;
    }
    Ok(at)
}

fn search(cx: &mut Lower, call: &Call, sequence: &str, values: &str) -> Items {
    let right = call.bool_or("right", false)? || call.str_or("side", "left")? == "right";
    let dtype = promoted(cx, call, &[sequence, values])?;
    let (mut sequence, values) = (cx.operand(call, sequence, dtype)?, cx.operand(call, values, dtype)?);
    if let Some(sorter) = call.tensor_opt("sorter")? {
        let last = cx.spec(sequence).rank() - 1;
        sequence = ops::take_along(cx, sequence, sorter, last)?;
    }
    one(places(cx, sequence, values, right)?)
}

fn searchsorted(cx: &mut Lower, call: &Call) -> Items {
    search(cx, call, "sorted_sequence", "self")
}

fn bucketize(cx: &mut Lower, call: &Call) -> Items {
    search(cx, call, "boundaries", "self")
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.bucketize.Scalar", bucketize),
    row("aten.bucketize.Tensor", bucketize),
    row("aten.nanquantile.default", nanquantile),
    row("aten.nanquantile.scalar", nanquantile),
    row("aten.quantile.default", quantile),
    row("aten.quantile.scalar", quantile),
    row("aten.searchsorted.Scalar", searchsorted),
    row("aten.searchsorted.Tensor", searchsorted),
];
