//! Diagonals: extraction, insertion and sums.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// Extracts the diagonal of two axes, elements `(i, i + offset)`, as the last axis of the result.
pub(super) fn diagonal_of(cx: &mut Lower, x: Tid, offset: i64, a: usize, b: usize) -> Emitted {
    let dims = cx.spec(x).dims.to_vec();
    if a == b || a >= dims.len() || b >= dims.len() {
        return unsupported("a diagonal of one axis");
    }
    let (rows, columns) = (dims[a].clone(), dims[b].clone());
    let diagonal = Diagonal::new(cx, &rows, &columns, offset);
    let rest: Vec<usize> = (0..dims.len()).filter(|&i| i != a && i != b).collect();
    let moved = cx.permute(x, &[&rest[..], &[a, b]].concat())?;
    let lead: Vec<Expr> = rest.iter().map(|&i| dims[i].clone()).collect();
    let flat = cx.reshape(moved, &[&lead[..], &[rows.clone() * columns.clone()]].concat())?;
    let Diagonal { first_row, first_column, n } = diagonal;
    let places = match (rows.as_int(), columns.as_int(), n.as_int()) {
        (Some(rows), Some(columns), Some(n)) => {
            let places: Vec<i64> = (0..n).map(|i| (first_row + i) * columns + first_column + i).collect();
            cx.integers(&format!("_diagonal_{rows}_{columns}_{offset}"), &places, DType::I32)?
        }
        _ => {
            let step = ops::size_number(cx, &columns, 1.0, 1.0, DType::I64)?;
            let first = ops::size_number(cx, &columns, first_row as f64, first_column as f64, DType::I64)?;
            let count = ops::count(cx, &n, DType::I64)?;
            let along = ops::mul(cx, count, step)?;
            ops::add(cx, along, first)?
        }
    };
    ops::take(cx, flat, places, lead.len())
}

/// Start and length of a diagonal.
struct Diagonal {
    first_row: i64,
    first_column: i64,
    n: Expr,
}

impl Diagonal {
    /// The diagonal of elements `(i, i + offset)`.
    fn new(cx: &Lower, rows: &Expr, columns: &Expr, offset: i64) -> Diagonal {
        let (first_row, first_column) = ((-offset).max(0), offset.max(0));
        let (down, right) = (rows.clone() - Expr::Int(first_row), columns.clone() - Expr::Int(first_column));
        let n = cx.graph().larger(&cx.graph().smaller(&down, &right), &Expr::Int(0));
        Diagonal { first_row, first_column, n }
    }
}

/// Places each vector along the last axis on a diagonal of a matrix of zeros.
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
    // Row `i` of the result takes element `i` of the vector padded to the matrix's size.
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

/// `x` with its diagonal replaced: the inverse of `diagonal`.
fn diagonal_scatter(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let (a, b) = (cx.axis(call, "dim1", 0, rank)?, cx.axis(call, "dim2", 1, rank)?);
    let src = cx.operand(call, "src", cx.spec(x).dtype)?;
    one(with_diagonal(cx, x, src, call.int_or("offset", 0)?, a, b)?)
}

/// Replaces the elements `(i, i + offset)` of two axes by `src` `[.., n]`.
fn with_diagonal(cx: &mut Lower, x: Tid, src: Tid, offset: i64, a: usize, b: usize) -> Emitted {
    let dims = cx.spec(x).dims.to_vec();
    let (rows, columns) = (dims[a].clone(), dims[b].clone());
    let Diagonal { first_row, n, .. } = Diagonal::new(cx, &rows, &columns, offset);
    if n == Expr::Int(0) {
        return Ok(x);
    }
    // Row `i` takes element `i` of the diagonal, which is shifted down to its first row.
    let last = cx.spec(src).rank() - 1;
    let mut widths = vec![(Expr::Int(0), Expr::Int(0)); last + 1];
    widths[last] = (Expr::Int(first_row), rows.clone() - Expr::Int(first_row) - n);
    let column = ops::pad(cx, src, &widths, "constant", 0.0)?;
    let column = cx.unsqueeze(column, last + 1)?;
    let rest: Vec<usize> = (0..dims.len()).filter(|&i| i != a && i != b).collect();
    let perm = [&rest[..], &[a, b]].concat();
    let moved = cx.permute(x, &perm)?;
    let (i, j) = (ops::count(cx, &rows, DType::I32)?, ops::count(cx, &columns, DType::I32)?);
    let i = cx.unsqueeze(i, 1)?;
    let target = ops::add_number(cx, i, offset as f64)?;
    let on = ops::eq(cx, target, j)?;
    let put = ops::select(cx, on, column, moved)?;
    let back: Vec<usize> = (0..perm.len()).filter_map(|axis| perm.iter().position(|&p| p == axis)).collect();
    cx.permute(put, &back)
}

/// Fills the whole diagonal of a matrix with one value; refuses `wrap`.
fn fill_diagonal(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let dims = cx.spec(x).dims.to_vec();
    if dims.len() != 2 || call.bool_or("wrap", false)? {
        return unsupported("a diagonal that wraps, or of other than a matrix");
    }
    let (i, j) = (ops::count(cx, &dims[0], DType::I32)?, ops::count(cx, &dims[1], DType::I32)?);
    let i = cx.unsqueeze(i, 1)?;
    let on = ops::eq(cx, i, j)?;
    let value = cx.operand(call, "fill_value", cx.spec(x).dtype)?;
    one(ops::select(cx, on, value, x)?)
}

fn diagflat(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let numel = cx.spec(x).numel();
    let flat = cx.reshape(x, &[numel])?;
    one(embedded(cx, flat, call.int_or("offset", 0)?)?)
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
    row("aten.diag.default", diag),
    row("aten.diag_embed.default", diag_embed),
    row("aten.diagflat.default", diagflat),
    row("aten.diagonal.default", diagonal),
    row("aten.diagonal_copy.default", diagonal),
    row("aten.diagonal_scatter.default", diagonal_scatter),
    row("aten.fill_diagonal.default", fill_diagonal),
    row("aten.linalg_diagonal.default", linalg_diagonal),
    row("aten.trace.default", trace),
];
