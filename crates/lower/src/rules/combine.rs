//! Tensors arranged from others: chunks, padded sequences, combinations, powers.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{RuleRow, one, ops, reduce::norm_of, row};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// Maximum number of result elements that constants may list.
const MAX_LISTED: usize = 1 << 22;

/// Pads each tensor to `num_chunks` equal chunks along the axis and flattens each chunk. Joins the
/// chunks of equal index.
fn chunk_cat(cx: &mut Lower, call: &Call) -> Items {
    let (tensors, chunks) = (call.tensors("tensors")?, call.int("num_chunks")?);
    let Some(&first) = tensors.first() else { return unsupported("chunks of no tensor") };
    let axis = cx.axis(call, "dim", 0, cx.spec(first).rank())?;
    let dtype = call.out(0)?.dtype;
    let mut parts = Vec::with_capacity(tensors.len());
    for t in tensors {
        let t = cx.cast(t, dtype)?;
        let dims = cx.spec(t).dims.to_vec();
        let size = ops::known("chunked size", &dims[axis..=axis])?[0];
        let padded = (size + chunks - 1) / chunks * chunks;
        let mut widths = vec![(Expr::Int(0), Expr::Int(0)); dims.len()];
        widths[axis].1 = Expr::Int(padded - size);
        let t = ops::pad(cx, t, &widths, "constant", 0.0)?;
        let part = Expr::Int(padded / chunks) * ops::volume(&dims[axis + 1..]);
        parts.push(cx.reshape(t, &[&dims[..axis], &[Expr::Int(chunks), part]].concat())?);
    }
    one(ops::concat(cx, &parts, axis + 1)?)
}

/// Stacks sequences along a new axis, padded to the longest.
fn pad_sequence(cx: &mut Lower, call: &Call) -> Items {
    let sequences = call.tensors("sequences")?;
    let lengths: Vec<Expr> = sequences.iter().filter_map(|&t| cx.spec(t).dims.first().cloned()).collect();
    let longest = ops::known("sequence length", &lengths)?.into_iter().max().unwrap_or(0);
    let (value, left) = (call.float_or("padding_value", 0.0)?, call.str_or("padding_side", "right")? == "left");
    let batch_axis = usize::from(!call.bool_or("batch_first", false)?);
    let mut padded = Vec::with_capacity(sequences.len());
    for (t, length) in sequences.into_iter().zip(lengths) {
        let mut widths = vec![(Expr::Int(0), Expr::Int(0)); cx.spec(t).rank()];
        let missing = Expr::Int(longest) - length;
        widths[0] = if left { (missing, Expr::Int(0)) } else { (Expr::Int(0), missing) };
        let t = ops::pad(cx, t, &widths, "constant", value)?;
        padded.push(cx.unsqueeze(t, batch_axis)?);
    }
    one(ops::concat(cx, &padded, batch_axis)?)
}

/// All combinations of `r` indices out of `n`, in lexical order; `again` allows repeated indices.
fn choices(n: i64, r: usize, again: bool) -> Option<Vec<Vec<i64>>> {
    let mut all = vec![Vec::new()];
    for _ in 0..r {
        let longer = all.iter().flat_map(|chosen: &Vec<i64>| {
            let from = chosen.last().map_or(0, |&last| if again { last } else { last + 1 });
            (from..n).map(|next| [&chosen[..], &[next]].concat())
        });
        all = longer.take(MAX_LISTED).collect();
        if all.len() * r >= MAX_LISTED {
            return None;
        }
    }
    Some(all)
}

fn combinations(cx: &mut Lower, call: &Call) -> Items {
    let (x, r) = (call.tensor("self")?, call.int_or("r", 2)?);
    if r == 0 {
        let dims = call.out(0)?.dims.clone();
        return one(ops::full(cx, 0.0, &dims, cx.spec(x).dtype)?);
    }
    let n = ops::known("number of elements", &cx.spec(x).dims)?.into_iter().product();
    let Some(chosen) = choices(n, usize::try_from(r).unwrap_or(0), call.bool_or("with_replacement", false)?) else {
        return unsupported(format!("more combinations of {n} elements than {MAX_LISTED}"));
    };
    let index = cx.integers("_choices", &chosen.concat(), DType::I32)?;
    let index = cx.reshape(index, &[Expr::Int(chosen.len() as i64), Expr::Int(r)])?;
    one(ops::take(cx, x, index, 0)?)
}

/// Powers of each element along a new last axis, rising from 0 or falling to 0.
fn powers(cx: &mut Lower, call: &Call, x: Tid, increasing: bool) -> Items {
    /// Maximum number of columns that are computed by one product each.
    const MAX_COLUMNS: i64 = 64;
    let dtype = call.out(0)?.dtype;
    let mut x = cx.cast(x, dtype)?;
    if cx.spec(x).rank() == 0 {
        x = cx.unsqueeze(x, 0)?;
    }
    let axis = cx.spec(x).rank();
    let n = call.size_opt("N")?.or_else(|| cx.spec(x).dims.last().cloned()).unwrap_or(Expr::Int(1));
    let Some(n) = n.as_int().filter(|n| (0..=MAX_COLUMNS).contains(n)) else { return many_powers(cx, x, &n, increasing) };
    if n == 0 {
        return one(ops::full(cx, 0.0, &call.out(0)?.dims.clone(), dtype)?);
    }
    let dims = cx.spec(x).dims.to_vec();
    let mut columns = vec![ops::full(cx, 1.0, &dims, dtype)?];
    for i in 1..n as usize {
        columns.push(if i == 1 { x } else { ops::mul(cx, columns[i - 1], x)? });
    }
    if !increasing {
        columns.reverse();
    }
    let columns: Vec<Tid> = columns.into_iter().map(|t| cx.unsqueeze(t, axis)).collect::<Result<_, _>>()?;
    one(ops::concat(cx, &columns, axis)?)
}

/// [`powers`] with a symbolic or large number of columns.
fn many_powers(cx: &mut Lower, x: Tid, n: &Expr, increasing: bool) -> Items {
    let dtype = cx.spec(x).dtype;
    let mut exponents = ops::count(cx, n, dtype)?;
    if !increasing {
        exponents = ops::flip(cx, exponents, 0)?;
    }
    let x = cx.unsqueeze(x, cx.spec(x).rank())?;
    one(ops::power(cx, x, exponents)?)
}

fn vander(cx: &mut Lower, call: &Call) -> Items {
    let (x, increasing) = (call.tensor("x")?, call.bool_or("increasing", false)?);
    powers(cx, call, x, increasing)
}

fn linalg_vander(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("x")?;
    powers(cx, call, x, true)
}

/// The norm over every axis except one; over all axes for -1.
fn norm_except_dim(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "v", ops::wide(call.out(0)?.dtype))?;
    let kept = usize::try_from(call.int_or("dim", 0)?).ok();
    let axes: Vec<usize> = (0..cx.spec(x).rank()).filter(|&a| Some(a) != kept).collect();
    let norm = norm_of(cx, x, call.int_or("pow", 2)? as f64, &axes, kept.is_some())?;
    one(norm)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._chunk_cat.default", chunk_cat),
    row("aten.combinations.default", combinations),
    row("aten.linalg_vander.default", linalg_vander),
    row("aten.norm_except_dim.default", norm_except_dim),
    row("aten.pad_sequence.default", pad_sequence),
    row("aten.vander.default", vander),
];
