//! Reductions of segments of an axis.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// Start and end of each of the `[.., S]` segments, i64.
fn bounds(cx: &mut Lower, call: &Call) -> Result<(Tid, Tid), Refuse> {
    if let Some(lengths) = call.tensor_opt("lengths")? {
        let lengths = cx.cast(lengths, DType::I64)?;
        let axis = cx.spec(lengths).rank() - 1;
        let ends = ops::cumsum(cx, lengths, axis)?;
        return Ok((ops::sub(cx, ends, lengths)?, ends));
    }
    let Some(offsets) = call.tensor_opt("offsets")? else { return unsupported("segments without lengths or offsets") };
    let offsets = cx.cast(offsets, DType::I64)?;
    let axis = cx.spec(offsets).rank() - 1;
    let n = cx.spec(offsets).dims[axis].clone();
    let last = n.clone() - Expr::Int(1);
    let starts = super::shape::slice_axis(cx, offsets, axis, &Expr::Int(0), &last, 1)?;
    Ok((starts, super::shape::slice_axis(cx, offsets, axis, &Expr::Int(1), &n, 1)?))
}

/// `[.., S, N, rest]`: whether element `n` of the axis is in segment `s`.
fn members(cx: &mut Lower, starts: Tid, ends: Tid, n: &Expr, rest: usize) -> Emitted {
    let axis = cx.spec(starts).rank();
    let (starts, ends) = (cx.unsqueeze(starts, axis)?, cx.unsqueeze(ends, axis)?);
    let places = ops::count(cx, n, DType::I64)?;
    let (begun, open) = (ops::ge(cx, places, starts)?, ops::lt(cx, places, ends)?);
    let mut members = ops::logical_and(cx, begun, open)?;
    for _ in 0..rest {
        members = cx.unsqueeze(members, cx.spec(members).rank())?;
    }
    Ok(members)
}

/// The result for an empty segment without an initial value.
fn neutral(reduce: &str) -> Result<f64, Refuse> {
    Ok(match reduce {
        "sum" | "mean" => 0.0,
        "prod" => 1.0,
        "max" => f64::NEG_INFINITY,
        "min" => f64::INFINITY,
        other => return unsupported(format!("reduction {other:?}")),
    })
}

/// The length of an axis whose sums and products in halves PyTorch rounds after each element.
/// Longer axes would take too many nodes, and are reduced in f32.
fn rounded_length(cx: &Lower, x: Tid, axis: usize, reduce: &str) -> Option<i64> {
    const MAX: i64 = 64;
    let spec = cx.spec(x);
    let rounds = ops::wide(spec.dtype) != spec.dtype && matches!(reduce, "sum" | "mean" | "prod");
    spec.dims[axis].as_int().filter(|n| rounds && (1..=MAX).contains(n))
}

/// Reduces an axis, with an initial value if there is one.
fn reduced(cx: &mut Lower, parts: Tid, axis: usize, reduce: &str, initial: Option<Tid>) -> Emitted {
    let over = [axis];
    let found = match reduce {
        "prod" => ops::prod(cx, parts, &over, false)?,
        "max" => ops::max(cx, parts, &over, false)?,
        "min" => ops::min(cx, parts, &over, false)?,
        _ => ops::sum(cx, parts, &over, false)?,
    };
    let Some(initial) = initial else { return Ok(found) };
    match reduce {
        "prod" => ops::mul(cx, found, initial),
        "max" => ops::maximum(cx, found, initial),
        "min" => ops::minimum(cx, found, initial),
        _ => ops::add(cx, found, initial),
    }
}

fn segment_reduce(cx: &mut Lower, call: &Call) -> Items {
    let reduce = call.str_or("reduce", "")?.to_owned();
    let data = call.tensor("data")?;
    let axis = cx.axis(call, "axis", 0, cx.spec(data).rank())?;
    let in_turns = rounded_length(cx, data, axis, &reduce);
    let out = call.out(0)?.dtype;
    let dtype = if in_turns.is_some() { out } else { ops::wide(out) };
    let x = cx.operand(call, "data", dtype)?;
    if call.arg("indices").is_some() {
        return unsupported("segments by indices; give their lengths");
    }
    let (starts, ends) = bounds(cx, call)?;
    if cx.spec(starts).rank() != axis + 1 {
        return unsupported("segments along another axis than the last of their lengths");
    }
    let neutral = neutral(&reduce)?;
    let n = cx.spec(x).dims[axis].clone();
    let rest = cx.spec(x).rank() - axis - 1;
    let members = members(cx, starts, ends, &n, rest)?;
    let spread = cx.unsqueeze(x, axis)?;
    let nothing = ops::number_like(cx, spread, neutral)?;
    let parts = ops::select(cx, members, spread, nothing)?;
    let initial = match call.arg("initial") {
        Some(_) => Some(cx.operand(call, "initial", dtype)?),
        None => None,
    };
    let mut found = match in_turns {
        Some(n) => {
            let first = match initial {
                Some(first) => first,
                None => ops::number_like(cx, x, neutral)?,
            };
            ops::fold_axis(cx, parts, axis + 1, 0..n, first, if reduce == "prod" { ops::mul } else { ops::add })?
        }
        None => reduced(cx, parts, axis + 1, &reduce, initial)?,
    };
    if reduce == "mean" {
        found = mean(cx, found, starts, ends, rest, initial.is_some())?;
    }
    one(found)
}

/// Sums divided by the lengths. Empty segments give NaN, or the initial value.
fn mean(cx: &mut Lower, sums: Tid, starts: Tid, ends: Tid, rest: usize, has_initial: bool) -> Emitted {
    let lengths = ops::sub(cx, ends, starts)?;
    let mut lengths = cx.cast(lengths, cx.spec(sums).dtype)?;
    for _ in 0..rest {
        lengths = cx.unsqueeze(lengths, cx.spec(lengths).rank())?;
    }
    if has_initial {
        let unit = ops::number_like(cx, lengths, 1.0)?;
        lengths = ops::maximum(cx, lengths, unit)?;
    }
    ops::div(cx, sums, lengths)
}

pub(super) const ROWS: &[RuleRow] = &[row("aten.segment_reduce.default", segment_reduce)];
