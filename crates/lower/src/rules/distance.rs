//! Distances between rows, and their similarity.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, lifted, one,
    ops::{self, Emitted},
    product::pair,
    reduce::norm_of,
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// First and second member of each pair of `n` rows, i64, ordered by the first and then the second
/// member.
fn open_pairs(cx: &mut Lower, n: &Expr) -> Result<(Tid, Tid), Refuse> {
    let (whole, exact) = (DType::I64, DType::F32);
    let total = (n.clone() * (n.clone() - Expr::Int(1))).floor_div(&Expr::Int(2));
    let pairs = ops::count(cx, &total, whole)?;
    // Row `i` begins at pair `i (2n - 1 - i) / 2`. The float root is off by less than one; integer
    // comparisons correct it.
    let width = ops::size_number(cx, n, 2.0, -1.0, whole)?;
    let square = ops::mul(cx, width, width)?;
    let before = ops::mul_number(cx, pairs, 8.0)?;
    let under = ops::sub(cx, square, before)?;
    let under = cx.cast(under, exact)?;
    let root = ops::sqrt(cx, under)?;
    let wide = cx.cast(width, exact)?;
    let row = ops::sub(cx, wide, root)?;
    let row = ops::mul_number(cx, row, 0.5)?;
    let mut row = cx.cast(row, whole)?;
    let zero = cx.number(0.0, whole)?;
    row = ops::maximum(cx, row, zero)?;
    let start = |cx: &mut Lower, row: Tid| {
        let rest = ops::sub(cx, width, row)?;
        let twice = ops::mul(cx, row, rest)?;
        let two = cx.number(2.0, whole)?;
        ops::floor_div(cx, twice, two)
    };
    let first = start(cx, row)?;
    let late = ops::gt(cx, first, pairs)?;
    let late = cx.cast(late, whole)?;
    row = ops::sub(cx, row, late)?;
    let following = ops::add_number(cx, row, 1.0)?;
    let next = start(cx, following)?;
    let early = ops::le(cx, next, pairs)?;
    let early = cx.cast(early, whole)?;
    row = ops::add(cx, row, early)?;
    let first = start(cx, row)?;
    let within = ops::sub(cx, pairs, first)?;
    let second = ops::add(cx, row, within)?;
    Ok((row, ops::add_number(cx, second, 1.0)?))
}

/// Distances between all pairs of rows, each pair once.
fn pdist(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "self", call.out(0)?.dtype)?;
    let Some(rows) = cx.spec(x).dims.first().cloned() else { return unsupported("distances of a number") };
    let Some(n) = rows.as_int().filter(|&n| n <= 4096) else {
        let (first, second) = open_pairs(cx, &rows)?;
        let (a, b) = (ops::take(cx, x, first, 0)?, ops::take(cx, x, second, 0)?);
        let apart = ops::sub(cx, a, b)?;
        return one(norm_of(cx, apart, call.float_or("p", 2.0)?, &[1], false)?);
    };
    let pairs: Vec<(i64, i64)> = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))).collect();
    let mut side = |pick: fn(&(i64, i64)) -> i64| {
        let index = cx.integers("_pairs", &pairs.iter().map(pick).collect::<Vec<_>>(), DType::I32)?;
        ops::take(cx, x, index, 0)
    };
    let (a, b) = (side(|p| p.0)?, side(|p| p.1)?);
    let apart = ops::sub(cx, a, b)?;
    one(wide_norm(cx, call, apart, 1)?)
}

/// Distances between all rows of `[.., P, M]` and `[.., R, M]`.
fn cdist(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = pair(cx, call, "x1", "x2")?;
    let (n, m) = (cx.spec(a).rank(), cx.spec(b).rank());
    if n < 2 || m < 2 {
        return unsupported("distances of tensors that are no matrices");
    }
    let (a, b) = (cx.unsqueeze(a, n - 1)?, cx.unsqueeze(b, m - 2)?);
    let apart = ops::sub(cx, a, b)?;
    let last = cx.spec(apart).rank() - 1;
    one(wide_norm(cx, call, apart, last)?)
}

/// The norm of order `p` along an axis, of halves in f32, because powers of halves overflow.
fn wide_norm(cx: &mut Lower, call: &Call, x: Tid, axis: usize) -> Emitted {
    let x = cx.cast(x, ops::wide(cx.spec(x).dtype))?;
    norm_of(cx, x, call.float_or("p", 2.0)?, &[axis], false)
}

fn pairwise_distance(cx: &mut Lower, call: &Call) -> Items {
    let dtype = super::elementwise::promoted(cx, call, &["x1", "x2"])?;
    let (a, b) = (cx.operand(call, "x1", dtype)?, cx.operand(call, "x2", dtype)?);
    let apart = ops::sub(cx, a, b)?;
    let apart = cx.cast(apart, call.out(0)?.dtype)?;
    let (p, eps) = (call.float_or("p", 2.0)?, call.float_or("eps", 1e-6)?);
    one(length(cx, apart, p, eps, call.bool_or("keepdim", false)?)?)
}

/// The norm of order `p` of `apart + eps` along the last axis.
fn length(cx: &mut Lower, apart: Tid, p: f64, eps: f64, keepdims: bool) -> Emitted {
    let apart = ops::add_number(cx, apart, eps)?;
    let last = cx.spec(apart).rank().saturating_sub(1);
    // Powers of halves overflow.
    let apart = cx.cast(apart, ops::wide(cx.spec(apart).dtype))?;
    norm_of(cx, apart, p, &[last], keepdims)
}

/// The distance of order `p` between the rows of two tensors; `eps` is added to the differences.
/// Differences of integers wrap around.
pub(super) fn distance(cx: &mut Lower, [a, b]: [Tid; 2], p: f64, eps: f64) -> Emitted {
    let apart = ops::sub(cx, a, b)?;
    let apart = cx.cast(apart, DType::F32)?;
    length(cx, apart, p, eps, false)
}

/// `sum(a b) / (max(|a|, eps) max(|b|, eps))`. Halves use
/// `sum((a / max(|a|, eps)) (b / max(|b|, eps)))`, which does not overflow. Lengths, quotients and
/// products round as in PyTorch.
fn cosine_similarity(cx: &mut Lower, call: &Call) -> Items {
    let (mut a, mut b) = pair(cx, call, "x1", "x2")?;
    let rank = cx.spec(a).rank().max(cx.spec(b).rank());
    let axis = cx.axis(call, "dim", 1, rank)?;
    // A broadcast axis counts toward the length as often as in the other operand.
    let sizes = [a, b].map(|t| (axis + cx.spec(t).rank()).checked_sub(rank).map_or(Expr::Int(1), |i| cx.spec(t).dims[i].clone()));
    if sizes[0] != sizes[1] {
        let common = ops::mul(cx, a, b)?;
        let dims = cx.spec(common).dims.to_vec();
        (a, b) = (super::shape::expand_to(cx, a, &dims)?, super::shape::expand_to(cx, b, &dims)?);
    }
    let eps = cx.number(call.float_or("eps", 1e-8)?, cx.spec(a).dtype)?;
    let dtype = cx.spec(a).dtype;
    let is_half = ops::wide(dtype) != dtype;
    let length = |cx: &mut Lower, t: Tid| {
        let own = (axis + cx.spec(t).rank()).checked_sub(rank);
        let wide = cx.cast(t, ops::wide(dtype))?;
        let norm = match own {
            Some(own) => norm_of(cx, wide, 2.0, &[own], is_half)?,
            None => ops::abs(cx, wide)?,
        };
        let norm = cx.cast(norm, dtype)?;
        ops::maximum(cx, norm, eps)
    };
    let lengths = [length(cx, a)?, length(cx, b)?];
    if is_half {
        let (a, b) = (ops::div(cx, a, lengths[0])?, ops::div(cx, b, lengths[1])?);
        let products = ops::mul(cx, a, b)?;
        return one(ops::sum(cx, products, &[axis], false)?);
    }
    let products = ops::mul(cx, a, b)?;
    let dot = ops::sum(cx, products, &[axis], false)?;
    let lengths = ops::mul(cx, lengths[0], lengths[1])?;
    one(ops::div(cx, dot, lengths)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._cdist_forward.default", cdist),
    row("aten._euclidean_dist.default", cdist),
    row("aten.cdist.default", cdist),
    row("aten.cosine_similarity.default", |cx, call| lifted(cx, call, &["x1", "x2"], cosine_similarity)),
    row("aten.pairwise_distance.default", pairwise_distance),
    row("aten.pdist.default", pdist),
    row("aten._pdist_forward.default", pdist),
];
