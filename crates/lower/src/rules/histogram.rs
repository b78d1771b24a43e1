//! Histograms: counts or weights of the elements between edges.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// Maximum number of bins; the comparison of every element with more bins takes too much memory.
const MAX_BINS: i64 = 1 << 16;

fn bin_count(call: &Call) -> Result<i64, Refuse> {
    match call.int_or("bins", 100)? {
        bins if (1..=MAX_BINS).contains(&bins) => Ok(bins),
        bins => unsupported(format!("a histogram of {bins} bins")),
    }
}

/// The elements in one row, in the result's type, in which PyTorch computes.
fn flat(cx: &mut Lower, call: &Call, param: &str) -> Emitted {
    let x = cx.operand(call, param, call.out(0)?.dtype)?;
    let numel = cx.spec(x).numel();
    cx.reshape(x, &[numel])
}

/// The outer edges: as given if they differ, else the least and largest element. Equal edges are
/// moved `margin` outward.
fn outer_edges(cx: &mut Lower, x: Tid, given: Option<(f64, f64)>, margin: f64) -> Result<[Tid; 2], Refuse> {
    let is_empty = cx.spec(x).numel().as_int() == Some(0);
    let own = given.filter(|(low, high)| low != high || is_empty);
    let (low, high) = match own {
        Some((low, high)) => (ops::number_like(cx, x, low)?, ops::number_like(cx, x, high)?),
        None if is_empty => (ops::number_like(cx, x, 0.0)?, ops::number_like(cx, x, 0.0)?),
        None => (ops::min(cx, x, &[0], false)?, ops::max(cx, x, &[0], false)?),
    };
    let equal = ops::eq(cx, low, high)?;
    let (below, above) = (ops::add_number(cx, low, -margin)?, ops::add_number(cx, high, margin)?);
    Ok([ops::select(cx, equal, below, low)?, ops::select(cx, equal, above, high)?])
}

/// Sums the weights, or ones, in the bin of each element. Elements outside the edges add 0 to bin
/// 0.
fn summed(cx: &mut Lower, bin: Tid, inside: Tid, weight: Option<Tid>, bins: i64) -> Emitted {
    let zeros = ops::full(cx, 0.0, &[Expr::Int(bins)], DType::F32)?;
    let ones = cx.cast(inside, DType::F32)?;
    let zero = ops::number_like(cx, ones, 0.0)?;
    let updates = match weight {
        Some(weight) => {
            let weight = cx.cast(weight, DType::F32)?;
            ops::select(cx, inside, weight, zero)?
        }
        None => ones,
    };
    let none = ops::number_like(cx, bin, 0.0)?;
    let bin = ops::select(cx, inside, bin, none)?;
    ops::scatter_add(cx, zeros, bin, updates, 0)
}

/// Whether elements are between the outer edges; NaN is not.
fn inside(cx: &mut Lower, x: Tid, low: Tid, high: Tid) -> Emitted {
    let (from, to) = (ops::ge(cx, x, low)?, ops::le(cx, x, high)?);
    ops::logical_and(cx, from, to)
}

fn histc(cx: &mut Lower, call: &Call) -> Items {
    let bins = bin_count(call)?;
    let x = flat(cx, call, "self")?;
    let given = (call.float_or("min", 0.0)?, call.float_or("max", 0.0)?);
    let [low, high] = outer_edges(cx, x, Some(given), 1.0)?;
    let inside = inside(cx, x, low, high)?;
    let (way, width) = (ops::sub(cx, x, low)?, ops::sub(cx, high, low)?);
    let scaled = ops::mul_number(cx, way, bins as f64)?;
    let at = ops::div(cx, scaled, width)?;
    let at = ops::clip(cx, at, 0.0, (bins - 1) as f64)?;
    let none = ops::number_like(cx, at, 0.0)?;
    let at = ops::select(cx, inside, at, none)?;
    let bin = cx.cast(at, DType::I32)?;
    one(summed(cx, bin, inside, None, bins)?)
}

/// The edges of bins of equal width, each computed from the nearer end.
fn even_edges(cx: &mut Lower, low: Tid, high: Tid, bins: i64) -> Emitted {
    let n = bins + 1;
    let lower: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let upper: Vec<f32> = (0..n).map(|i| (bins - i) as f32).collect();
    let nearer: Vec<f32> = (0..n).map(|i| f32::from(u8::from(i < n / 2))).collect();
    let size = [n as usize];
    let (lower, upper) = (cx.floats("_edges_up", &lower, &size)?, cx.floats("_edges_down", &upper, &size)?);
    let dtype = cx.spec(low).dtype;
    let (lower, upper) = (cx.cast(lower, dtype)?, cx.cast(upper, dtype)?);
    let nearer = cx.floats("_edges_nearer", &nearer, &size)?;
    let nearer = cx.cast(nearer, DType::Bool)?;
    let width = ops::sub(cx, high, low)?;
    let step = ops::div_number(cx, width, bins as f64)?;
    let (up, down) = (ops::mul(cx, lower, step)?, ops::mul(cx, upper, step)?);
    let (from, to) = (ops::add(cx, low, up)?, ops::sub(cx, high, down)?);
    ops::select(cx, nearer, from, to)
}

/// The range argument as two bounds, if given.
fn listed_range(call: &Call) -> Result<Option<(f64, f64)>, Refuse> {
    match call.arg("range") {
        None => Ok(None),
        Some(Arg::Floats(list)) if list.len() == 2 => Ok(Some((list[0], list[1]))),
        Some(_) => unsupported("a range that is no pair of numbers"),
    }
}

/// The histogram and its edges. The last bin includes its upper edge.
fn histogram(cx: &mut Lower, call: &Call) -> Items {
    let x = flat(cx, call, "self")?;
    let edges = match call.arg("bins") {
        Some(Arg::Tensor(_)) => flat(cx, call, "bins")?,
        _ => {
            let bins = bin_count(call)?;
            let [low, high] = outer_edges(cx, x, listed_range(call)?, 0.5)?;
            even_edges(cx, low, high, bins)?
        }
    };
    let Some(n) = cx.spec(edges).numel().as_int().filter(|n| (2..=MAX_BINS).contains(n)) else {
        return unsupported("a histogram of an unknown number of bins");
    };
    let bins = n - 1;
    let (low, high) = (ops::take_one(cx, edges, 0, 0)?, ops::take_one(cx, edges, bins, 0)?);
    let inside = inside(cx, x, low, high)?;
    let beyond = super::quantile::places(cx, edges, x, true)?;
    let beyond = cx.cast(beyond, DType::I32)?;
    let bin = ops::add_number(cx, beyond, -1.0)?;
    let last = ops::number_like(cx, bin, (bins - 1) as f64)?;
    let bin = ops::minimum(cx, bin, last)?;
    let weight = call.arg("weight").map(|_| flat(cx, call, "weight")).transpose()?;
    let mut counts = summed(cx, bin, inside, weight, bins)?;
    if call.bool_or("density", false)? {
        let total = ops::sum(cx, counts, &[0], false)?;
        let parts = ops::div(cx, counts, total)?;
        let (from, to) = (Expr::Int(0), Expr::Int(bins));
        let left = super::shape::slice_axis(cx, edges, 0, &from, &to, 1)?;
        let right = super::shape::slice_axis(cx, edges, 0, &Expr::Int(1), &Expr::Int(n), 1)?;
        let widths = ops::sub(cx, right, left)?;
        let widths = cx.cast(widths, DType::F32)?;
        counts = ops::div(cx, parts, widths)?;
    }
    Ok(vec![Item::Tensor(counts), Item::Tensor(edges)])
}

pub(super) const ROWS: &[RuleRow] =
    &[row("aten.histc.default", histc), row("aten.histogram.bin_ct", histogram), row("aten.histogram.bins_tensor", histogram)];
