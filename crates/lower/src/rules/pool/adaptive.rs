//! Adaptive pooling: a fixed number of bins, with lengths that follow from the size of an axis.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    super::{
        geometry, one,
        ops::{self, Emitted},
        resize::{apply_matrix, apply_tensor},
    },
    Axis, Items, Windows, recorded,
    rounded::rounded_mean,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

/// Start and end (exclusive) of bin `i` of `out` over `size` elements.
pub(super) fn bin(i: i64, size: i64, out: i64) -> (i64, i64) {
    (i * size / out, ((i + 1) * size + out - 1) / out)
}

/// The forms of adaptive pooling.
enum Adaptive {
    /// One bin on every axis.
    Global,
    /// Equal bins: (kernel = stride) by axis.
    Even(Vec<i64>),
    /// Bins of different lengths: (size, bins) by axis.
    Uneven(Vec<(i64, i64)>),
    /// Bins of different lengths over symbolic sizes: (size, bins) by axis.
    Open(Vec<(Expr, Expr)>),
}

fn adaptive(cx: &Lower, call: &Call, x: Tid, n: usize) -> Result<Adaptive, Refuse> {
    let rank = cx.spec(x).rank();
    if rank < n {
        return unsupported(format!("pooling {n} axes of a tensor of rank {rank}"));
    }
    let out = (rank - n..rank).map(|axis| recorded(call, axis)).collect::<Result<Vec<_>, _>>()?;
    if out.iter().all(|o| o.as_int() == Some(1)) {
        return Ok(Adaptive::Global);
    }
    if out.iter().any(|o| o.as_int().is_some_and(|o| o < 1)) {
        return unsupported("an empty result");
    }
    let axes = || cx.spec(x).dims[rank - n..].iter().zip(&out);
    if let Some(kernels) = axes().map(|(s, o)| s.exact_div(o)?.as_int()).collect::<Option<Vec<_>>>() {
        return Ok(Adaptive::Even(kernels));
    }
    let known = axes().map(|(s, o)| Some((s.as_int()?, o.as_int()?))).collect::<Option<Vec<_>>>();
    Ok(known.map_or_else(|| Adaptive::Open(axes().map(|(s, o)| (s.clone(), o.clone())).collect()), Adaptive::Uneven))
}

/// (Size, bins) by axis, if sizes are known and there are several bins.
fn known_bins(cx: &Lower, x: Tid, form: &Adaptive) -> Option<Vec<(i64, i64)>> {
    match form {
        Adaptive::Even(kernels) => {
            let dims = &cx.spec(x).dims;
            let sizes = dims[dims.len() - kernels.len()..].iter().zip(kernels);
            sizes.map(|(size, kernel)| size.as_int().map(|size| (size, size / kernel.max(&1)))).collect()
        }
        Adaptive::Uneven(axes) => Some(axes.clone()),
        Adaptive::Global | Adaptive::Open(_) => None,
    }
}

/// Starts and ends (exclusive) of an axis's bins, both i64 `[O]`.
fn open_bins(cx: &mut Lower, size: &Expr, out: &Expr) -> Result<(Tid, Tid), Refuse> {
    let dtype = DType::I64;
    let (size, bins) = (ops::size_number(cx, size, 1.0, 0.0, dtype)?, ops::size_number(cx, out, 1.0, 0.0, dtype)?);
    let count = ops::count(cx, out, dtype)?;
    let start = ops::mul(cx, count, size)?;
    // Rounds the quotient upward: the addend is less than one bin.
    let end = ops::add(cx, start, size)?;
    let end = ops::add(cx, end, bins)?;
    let end = ops::add_number(cx, end, -1.0)?;
    Ok((ops::floor_div(cx, start, bins)?, ops::floor_div(cx, end, bins)?))
}

/// The matrix `[O, S]` that computes the mean of each bin of an axis as a product.
fn mean_of_bins(cx: &mut Lower, size: &Expr, out: &Expr) -> Emitted {
    let (start, end) = open_bins(cx, size, out)?;
    let (start, end) = (cx.unsqueeze(start, 1)?, cx.unsqueeze(end, 1)?);
    let places = ops::count(cx, size, DType::I64)?;
    let (after, before) = (ops::ge(cx, places, start)?, ops::lt(cx, places, end)?);
    let inside = ops::logical_and(cx, after, before)?;
    let inside = cx.cast(inside, DType::F32)?;
    let length = ops::sub(cx, end, start)?;
    let length = cx.cast(length, DType::F32)?;
    ops::div(cx, inside, length)
}

/// Indices `[O, L]` of the elements of each bin; short bins repeat their last element.
fn places_of_bins(cx: &mut Lower, size: &Expr, out: &Expr) -> Emitted {
    let (start, end) = open_bins(cx, size, out)?;
    let (start, end) = (cx.unsqueeze(start, 1)?, cx.unsqueeze(end, 1)?);
    let longest = (size.clone() + out.clone() - Expr::Int(1)).floor_div(out) + Expr::Int(1);
    let steps = ops::count(cx, &longest, DType::I64)?;
    let place = ops::add(cx, start, steps)?;
    let last = ops::add_number(cx, end, -1.0)?;
    ops::minimum(cx, place, last)
}

/// Indices `[cells, taps]` in the plane of the elements of each cell.
fn places_of_cells(cx: &mut Lower, axes: &[(Expr, Expr)]) -> Emitted {
    let n = axes.len();
    let mut plane: Option<Tid> = None;
    for (i, (size, out)) in axes.iter().enumerate() {
        let own = places_of_bins(cx, size, out)?;
        let mut dims = vec![Expr::Int(1); 2 * n];
        (dims[i], dims[n + i]) = (cx.spec(own).dims[0].clone(), cx.spec(own).dims[1].clone());
        let own = cx.reshape(own, &dims)?;
        plane = Some(match plane {
            None => own,
            Some(outer) => {
                let size = ops::size_number(cx, size, 1.0, 0.0, DType::I64)?;
                let outer = ops::mul(cx, outer, size)?;
                ops::add(cx, outer, own)?
            }
        });
    }
    let Some(plane) = plane else { return unsupported("a pooling over no axis") };
    let dims = cx.spec(plane).dims.to_vec();
    cx.reshape(plane, &[ops::volume(&dims[..n]), ops::volume(&dims[n..])])
}

/// Reshapes equal bins into axes of their own.
fn even_bins(cx: &mut Lower, x: Tid, kernels: &[i64]) -> Result<(Tid, Vec<usize>), Refuse> {
    let axes = |cx: &Lower| {
        let dims = &cx.spec(x).dims;
        let at = dims.len() - kernels.len();
        let axis = |(i, &kernel): (usize, &i64)| {
            let size = dims[at + i].clone();
            let out = size.floor_div(&Expr::Int(kernel));
            Axis { size, windows: geometry::Windows::tiling(kernel), out }
        };
        kernels.iter().enumerate().map(axis).collect()
    };
    let windows = Windows { x, axes: axes(cx), ceil_mode: false };
    windows.view(cx, 0.0)
}

pub(super) fn adaptive_avg_pool(cx: &mut Lower, call: &Call, n: usize) -> Items {
    let mut x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let pooled: Vec<usize> = (rank.saturating_sub(n)..rank).collect();
    let form = adaptive(cx, call, x, n)?;
    let dtype = cx.spec(x).dtype;
    if n == 3
        && ops::wide(dtype) != dtype
        && let Some(axes) = known_bins(cx, x, &form)
        && let Some(mean) = rounded_mean(cx, x, &axes)
    {
        return one(mean?);
    }
    match form {
        Adaptive::Global => one(ops::mean(cx, x, &pooled, true)?),
        Adaptive::Even(kernels) => {
            let (view, axes) = even_bins(cx, x, &kernels)?;
            one(ops::mean(cx, view, &axes, false)?)
        }
        Adaptive::Uneven(axes) => {
            x = cx.cast(x, DType::F32)?;
            for (&axis, (size, out)) in pooled.iter().zip(axes) {
                let mut matrix = vec![0.0; (size * out) as usize];
                for i in 0..out {
                    let (start, end) = bin(i, size, out);
                    for j in start..end {
                        matrix[(i * size + j) as usize] = 1.0 / (end - start) as f32;
                    }
                }
                x = apply_matrix(cx, x, axis, "_adaptive_mean", &matrix, out as usize)?;
            }
            one(x)
        }
        Adaptive::Open(axes) => {
            x = cx.cast(x, DType::F32)?;
            for (&axis, (size, out)) in pooled.iter().zip(&axes).filter(|(_, (size, out))| size != out) {
                let matrix = mean_of_bins(cx, size, out)?;
                x = apply_tensor(cx, x, axis, matrix)?;
            }
            one(x)
        }
    }
}

/// Gathers the elements of every bin by a constant index into the plane; short bins repeat their
/// last element.
fn adaptive_max_places(cx: &mut Lower, call: &Call, n: usize) -> Items {
    let x = call.tensor("self")?;
    let dims = cx.spec(x).dims.to_vec();
    let (lead, plane) = dims.split_at(dims.len() - n);
    let out = call.out(0)?.dims[lead.len()..].to_vec();
    let axes: Vec<(Expr, Expr)> = plane.iter().cloned().zip(out.iter().cloned()).collect();
    let known = axes.iter().map(|(s, o)| Some((s.as_int()?, o.as_int()?))).collect::<Option<Vec<_>>>();
    let index = match known {
        Some(known) => known_places(cx, &known)?,
        None => places_of_cells(cx, &axes)?,
    };
    let [cells, longest] = &cx.spec(index).dims.to_vec()[..] else { return unsupported("a pooling over no axis") };
    let flat = cx.reshape(x, &[lead, &[ops::volume(plane)]].concat())?;
    let taken = ops::take(cx, flat, index, lead.len())?;
    let axis = lead.len() + 1;
    let (largest, best) = (ops::max(cx, taken, &[axis], false)?, ops::argmax(cx, taken, axis, false)?);
    let best = cx.cast(best, DType::I64)?;
    let rows = ops::count(cx, cells, DType::I64)?;
    let width = ops::size_number(cx, longest, 1.0, 0.0, DType::I64)?;
    let rows = ops::mul(cx, rows, width)?;
    let at = ops::add(cx, best, rows)?;
    let table = cx.reshape(index, &[cells.clone() * longest.clone()])?;
    let places = ops::take(cx, table, at, 0)?;
    let shape = [lead, &out].concat();
    Ok(vec![Item::Tensor(cx.reshape(largest, &shape)?), Item::Tensor(cx.reshape(places, &shape)?)])
}

/// Indices `[cells, taps]` in the plane of the elements of each cell, from (size, bins) by axis.
fn known_places(cx: &mut Lower, axes: &[(i64, i64)]) -> Emitted {
    let (mut table, mut cells, mut longest) = (vec![vec![0_i64]], 1_i64, 1_i64);
    for &(size, count) in axes {
        let bins: Vec<(i64, i64)> = (0..count).map(|i| bin(i, size, count)).collect();
        let length = bins.iter().map(|(s, e)| e - s).max().unwrap_or(1);
        let place = |outer: i64, &(s, e): &(i64, i64)| (0..length).map(|j| outer * size + (s + j).min(e - 1)).collect::<Vec<_>>();
        let spread = |cell: &Vec<i64>, b| cell.iter().flat_map(|&outer| place(outer, b)).collect::<Vec<_>>();
        table = table.iter().flat_map(|cell| bins.iter().map(move |b| spread(cell, b)).collect::<Vec<_>>()).collect();
        (cells, longest) = (cells * count, longest * length);
    }
    let table = cx.integers("_adaptive_places", &table.concat(), DType::I64)?;
    cx.reshape(table, &[Expr::Int(cells), Expr::Int(longest)])
}

pub(super) fn adaptive_max_pool(cx: &mut Lower, call: &Call, n: usize) -> Items {
    if call.is_used(1) {
        return adaptive_max_places(cx, call, n);
    }
    let mut x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let pooled: Vec<usize> = (rank.saturating_sub(n)..rank).collect();
    let values = match adaptive(cx, call, x, n)? {
        Adaptive::Global => ops::max(cx, x, &pooled, true)?,
        Adaptive::Even(kernels) => {
            let (view, axes) = even_bins(cx, x, &kernels)?;
            ops::max(cx, view, &axes, false)?
        }
        Adaptive::Uneven(axes) => {
            for (&axis, (size, out)) in pooled.iter().zip(axes) {
                x = max_of_bins(cx, x, axis, size, out)?;
            }
            x
        }
        Adaptive::Open(axes) => {
            for (&axis, (size, out)) in pooled.iter().zip(&axes).filter(|(_, (size, out))| size != out) {
                let index = places_of_bins(cx, size, out)?;
                let taken = ops::take(cx, x, index, axis)?;
                x = ops::max(cx, taken, &[axis + 1], false)?;
            }
            x
        }
    };
    Ok(vec![Item::Tensor(values), Item::None])
}

/// Maximum of each bin. Short bins repeat their last element, which does not change the maximum.
fn max_of_bins(cx: &mut Lower, x: Tid, axis: usize, size: i64, out: i64) -> Emitted {
    let bins: Vec<(i64, i64)> = (0..out).map(|i| bin(i, size, out)).collect();
    let longest = bins.iter().map(|(s, e)| e - s).max().unwrap_or(1);
    let index: Vec<i64> = bins.iter().flat_map(|&(s, e)| (0..longest).map(move |j| (s + j).min(e - 1))).collect();
    let index = cx.integers(&format!("_adaptive_bins_{size}_{out}"), &index, DType::I32)?;
    let index = cx.reshape(index, &[Expr::Int(out), Expr::Int(longest)])?;
    let taken = ops::take(cx, x, index, axis)?;
    ops::max(cx, taken, &[axis + 1], false)
}
