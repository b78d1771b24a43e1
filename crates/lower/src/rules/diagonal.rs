//! Diagonals: taken out, put in, and summed.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// The diagonal of two axes as the last axis of the result: elements `(i, i + offset)`.
pub(super) fn diagonal_of(cx: &mut Lower, x: Tid, offset: i64, a: usize, b: usize) -> Emitted {
    let dims = cx.spec(x).dims.to_vec();
    if a == b || a >= dims.len() || b >= dims.len() {
        return unsupported("a diagonal of one axis");
    }
    let [rows, columns] = ops::known("diagonal sizes", &[dims[a].clone(), dims[b].clone()])?[..] else {
        return unsupported("a diagonal of one axis");
    };
    let (first_row, first_column) = ((-offset).max(0), offset.max(0));
    let n = (rows - first_row).min(columns - first_column).max(0);
    let rest: Vec<usize> = (0..dims.len()).filter(|&i| i != a && i != b).collect();
    let moved = cx.permute(x, &[&rest[..], &[a, b]].concat())?;
    let lead: Vec<Expr> = rest.iter().map(|&i| dims[i].clone()).collect();
    let flat = cx.reshape(moved, &[&lead[..], &[Expr::Int(rows * columns)]].concat())?;
    let places: Vec<i64> = (0..n).map(|i| (first_row + i) * columns + first_column + i).collect();
    let places = cx.integers(&format!("_diagonal_{rows}_{columns}_{offset}"), &places, DType::I32)?;
    ops::take(cx, flat, places, lead.len())
}

/// A vector on a diagonal of a matrix of zeros, for each vector along the last axis.
fn embedded(cx: &mut Lower, x: Tid, offset: i64) -> Emitted {
    let rank = cx.spec(x).rank();
    let n = cx.spec(x).dims.last().cloned().unwrap_or(Expr::Int(1));
    let size = n + Expr::Int(offset.abs());
    let widths = |lo: i64, hi: i64| {
        let mut widths = vec![(Expr::Int(0), Expr::Int(0)); rank];
        if let Some(last) = widths.last_mut() {
            *last = (Expr::Int(lo), Expr::Int(hi));
        }
        widths
    };
    // Row `i` of the result takes its element from place `i` of the vector padded to the matrix's size.
    let padded = if offset >= 0 { widths(0, offset) } else { widths(-offset, 0) };
    let padded = ops::pad(cx, x, &padded, "constant", 0.0)?;
    let column = cx.unsqueeze(padded, rank)?;
    let index = ops::count(cx, &size, DType::I32)?;
    let rows = cx.unsqueeze(index, 1)?;
    let target = ops::add_number(cx, rows, offset as f64)?;
    let on = ops::eq(cx, target, index)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    ops::select(cx, on, column, zero)
}

fn diagonal(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let (a, b) = (cx.axis(call, "dim1", 0, rank)?, cx.axis(call, "dim2", 1, rank)?);
    one(diagonal_of(cx, x, call.int_or("offset", 0)?, a, b)?)
}

fn linalg_diagonal(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("A")?;
    let rank = cx.spec(x).rank();
    let (a, b) = (cx.axis(call, "dim1", -2, rank)?, cx.axis(call, "dim2", -1, rank)?);
    one(diagonal_of(cx, x, call.int_or("offset", 0)?, a, b)?)
}

fn diag(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let offset = call.int_or("diagonal", 0)?;
    match cx.spec(x).rank() {
        1 => one(embedded(cx, x, offset)?),
        2 => one(diagonal_of(cx, x, offset, 0, 1)?),
        rank => unsupported(format!("the diagonal of a tensor of rank {rank}")),
    }
}

fn diag_embed(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank() + 1;
    let (a, b) = (cx.axis(call, "dim1", -2, rank)?, cx.axis(call, "dim2", -1, rank)?);
    let matrix = embedded(cx, x, call.int_or("offset", 0)?)?;
    let mut lead = 0..rank - 2;
    let source = |axis: usize| {
        if axis == a {
            rank - 2
        } else if axis == b {
            rank - 1
        } else {
            lead.next().unwrap_or(0)
        }
    };
    let perm: Vec<usize> = (0..rank).map(source).collect();
    one(cx.permute(matrix, &perm)?)
}

fn trace(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "self", call.out(0)?.dtype)?;
    let diagonal = diagonal_of(cx, x, 0, 0, 1)?;
    one(ops::sum(cx, diagonal, &[0], false)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.diag.default", "self diagonal", diag),
    row("aten.diag_embed.default", "self offset dim1 dim2", diag_embed),
    row("aten.diagonal.default", "self offset dim1 dim2", diagonal),
    row("aten.diagonal_copy.default", "self offset dim1 dim2", diagonal),
    row("aten.linalg_diagonal.default", "A offset dim1 dim2", linalg_diagonal),
    row("aten.trace.default", "self", trace),
];
