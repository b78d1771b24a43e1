//! Pooling: windows as a strided view, then one reduction over them.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, geometry, one,
    ops::{self, Emitted},
    resize::apply_matrix,
    row,
    shape::slice_axis,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// One pooled axis.
#[derive(Clone)]
struct Axis {
    size: Expr,
    windows: geometry::Windows,
    /// Number of windows.
    out: Expr,
}

impl Axis {
    /// Elements to add at the end, so that the last window fits: negative if some are never looked at.
    fn extra(&self) -> Expr {
        let w = &self.windows;
        (self.out.clone() - Expr::Int(1)) * Expr::Int(w.walk.stride) + Expr::Int(w.span() - w.walk.padding) - self.size.clone()
    }
}

/// A call's windows over the last `n` axes.
struct Windows {
    x: Tid,
    axes: Vec<Axis>,
    ceil_mode: bool,
}

impl Windows {
    fn new(cx: &Lower, call: &Call, x: Tid, n: usize) -> Result<Windows, Refuse> {
        let rank = cx.spec(x).rank();
        if rank < n {
            return unsupported(format!("pooling {n} axes of a tensor of rank {rank}"));
        }
        let ceil_mode = call.bool_or("ceil_mode", false)?;
        let mut axes = Vec::with_capacity(n);
        for (windows, size) in geometry::Windows::of_call(call, n)?.into_iter().zip(&cx.spec(x).dims[rank - n..]) {
            let out = match (ceil_mode, size.as_int()) {
                (true, Some(size)) => Expr::Int(windows.count_up(size)),
                (true, None) => return unsupported("windows counted upward along a symbolic axis"),
                (false, _) => windows.count(size),
            };
            axes.push(Axis { size: size.clone(), windows, out });
        }
        Ok(Windows { x, axes, ceil_mode })
    }

    /// Sizes before the pooled axes.
    fn lead(&self, cx: &Lower) -> Vec<Expr> {
        let dims = &cx.spec(self.x).dims;
        dims[..dims.len() - self.axes.len()].to_vec()
    }

    fn out_dims(&self) -> Vec<Expr> {
        self.axes.iter().map(|a| a.out.clone()).collect()
    }

    /// The windows and the axes to reduce: `[.., O1, K1, O2, K2 ..]` if they tile, else `[.., O1, O2, .., K1, K2 ..]`.
    fn view(&self, cx: &mut Lower, fill: f64) -> Result<(Tid, Vec<usize>), Refuse> {
        let lead = self.lead(cx);
        let (n, at) = (self.axes.len(), lead.len());
        if self.axes.iter().all(|a| a.windows.tile() && a.extra().as_int().is_none_or(|e| e <= 0)) {
            let mut x = self.x;
            let mut dims = lead;
            for (i, axis) in self.axes.iter().enumerate() {
                x = slice_axis(cx, x, at + i, &Expr::Int(0), &(axis.out.clone() * Expr::Int(axis.windows.kernel)), 1)?;
                dims.extend([axis.out.clone(), Expr::Int(axis.windows.kernel)]);
            }
            return Ok((cx.reshape(x, &dims)?, (0..n).map(|i| at + 2 * i + 1).collect()));
        }
        let (x, sizes) = self.padded(cx, fill)?;
        let mut dims = [&lead[..], &self.out_dims()].concat();
        dims.extend(self.axes.iter().map(|a| Expr::Int(a.windows.kernel)));
        let all = [&lead[..], &sizes].concat();
        let unit: Vec<Expr> = (0..all.len()).map(|i| ops::volume(&all[i + 1..])).collect();
        let mut strides = unit[..at].to_vec();
        strides.extend(self.axes.iter().zip(&unit[at..]).map(|(a, u)| u.clone() * Expr::Int(a.windows.walk.stride)));
        strides.extend(self.axes.iter().zip(&unit[at..]).map(|(a, u)| u.clone() * Expr::Int(a.windows.walk.dilation)));
        let view = ops::as_strided(cx, x, &dims, &strides, 0)?;
        Ok((view, (at + n..at + 2 * n).collect()))
    }

    /// `x` with padding at both ends, and the padded sizes.
    fn padded(&self, cx: &mut Lower, fill: f64) -> Result<(Tid, Vec<Expr>), Refuse> {
        let none = (Expr::Int(0), Expr::Int(0));
        let mut widths = vec![none; cx.spec(self.x).rank() - self.axes.len()];
        let mut sizes = Vec::new();
        for axis in &self.axes {
            // The stated padding always suffices beyond a symbolic end.
            let hi = axis.extra().as_int().map_or(axis.windows.walk.padding, |e| e.max(0));
            widths.push((Expr::Int(axis.windows.walk.padding), Expr::Int(hi)));
            sizes.push(axis.size.clone() + Expr::Int(axis.windows.walk.padding + hi));
        }
        Ok((ops::pad(cx, self.x, &widths, "constant", fill)?, sizes))
    }
}

fn max_of(cx: &mut Lower, windows: &Windows) -> Emitted {
    let fill = ops::lowest(cx.spec(windows.x).dtype);
    let (view, axes) = windows.view(cx, fill)?;
    ops::max(cx, view, &axes, false)
}

fn max_pool(cx: &mut Lower, call: &Call, n: usize) -> Items {
    let x = call.tensor("self")?;
    let windows = Windows::new(cx, call, x, n)?;
    let values = if call.is_used(0) { Item::Tensor(max_of(cx, &windows)?) } else { Item::None };
    if call.outputs.len() < 2 {
        return Ok(vec![values]);
    }
    let indices = if call.is_used(1) { Item::Tensor(max_indices(cx, &windows)?) } else { Item::None };
    Ok(vec![values, indices])
}

/// Place of each window's largest element in the unpadded plane.
fn max_indices(cx: &mut Lower, windows: &Windows) -> Emitted {
    let fill = ops::lowest(cx.spec(windows.x).dtype);
    let out = ops::known("pooled sizes", &windows.out_dims())?;
    let sizes: Vec<Expr> = windows.axes.iter().map(|a| a.size.clone()).collect();
    let sizes = ops::known("pooled sizes", &sizes)?;
    let (view, axes) = windows.view(cx, fill)?;
    let lead = windows.lead(cx);
    let (n, at) = (windows.axes.len(), lead.len());
    let kept: Vec<usize> = (0..at + 2 * n).filter(|a| !axes.contains(a)).collect();
    let view = cx.permute(view, &[&kept[..], &axes].concat())?;
    let kernel: Vec<i64> = windows.axes.iter().map(|a| a.windows.kernel).collect();
    let flat = [&lead[..], &windows.out_dims(), &[Expr::Int(kernel.iter().product())]].concat();
    let flat = cx.reshape(view, &flat)?;
    let best = ops::argmax(cx, flat, at + n, false)?;
    let unit: Vec<i64> = (0..n).map(|i| sizes[i + 1..].iter().product()).collect();
    let place = |counts: &[i64], step: &dyn Fn(usize, i64) -> i64| -> Vec<i64> {
        let total = counts.iter().product::<i64>();
        let digit = |p: i64, i: usize| (p / counts[i + 1..].iter().product::<i64>()) % counts[i];
        (0..total).map(|p| (0..n).map(|i| unit[i] * step(i, digit(p, i))).sum()).collect()
    };
    let within = place(&kernel, &|i, k| windows.axes[i].windows.walk.dilation * k);
    let origin = place(&out, &|i, o| windows.axes[i].windows.walk.stride * o - windows.axes[i].windows.walk.padding);
    let within = cx.integers("_pool_offsets", &within, DType::I64)?;
    let origin = cx.integers("_pool_origins", &origin, DType::I64)?;
    let origin = cx.reshape(origin, &windows.out_dims())?;
    let offset = ops::take(cx, within, best, 0)?;
    ops::add(cx, offset, origin)
}

/// How many elements each window of an axis divides by.
fn window_counts(axis: &Axis, size: i64, out: i64, include_pad: bool) -> Vec<f32> {
    let count = |o: i64| {
        let start = o * axis.windows.walk.stride - axis.windows.walk.padding;
        let end = (start + axis.windows.kernel).min(size + axis.windows.walk.padding);
        if include_pad { end - start } else { end.min(size) - start.max(0) }
    };
    (0..out).map(|o| count(o).max(1) as f32).collect()
}

fn avg_pool(cx: &mut Lower, call: &Call, n: usize) -> Items {
    let x = cx.operand(call, "self", call.out(0)?.dtype)?;
    let windows = Windows::new(cx, call, x, n)?;
    let include_pad = call.bool_or("count_include_pad", true)?;
    let divisor = call.float_opt("divisor_override")?;
    let padded = windows.axes.iter().any(|a| a.windows.walk.padding > 0);
    let uneven = windows.ceil_mode && windows.axes.iter().any(|a| a.extra().as_int().is_none_or(|e| e > a.windows.walk.padding));
    let (view, axes) = windows.view(cx, 0.0)?;
    if divisor.is_none() && !uneven && (include_pad || !padded) {
        return one(ops::mean(cx, view, &axes, false)?);
    }
    let sum = ops::sum(cx, view, &axes, false)?;
    if let Some(divisor) = divisor {
        return one(ops::div_number(cx, sum, divisor)?);
    }
    let mut counts = vec![1.0_f32];
    let mut shape = Vec::new();
    for axis in &windows.axes {
        let [size, out] = ops::known("pooled sizes", &[axis.size.clone(), axis.out.clone()])?[..] else { continue };
        let own = window_counts(axis, size, out, include_pad);
        counts = counts.iter().flat_map(|c| own.iter().map(move |o| c * o)).collect();
        shape.push(own.len());
    }
    let counts = cx.floats("_pool_counts", &counts, &shape)?;
    let counts = cx.cast(counts, cx.spec(sum).dtype)?;
    one(ops::div(cx, sum, counts)?)
}

/// First and last-but-one element of bin `i` of `out` over `size` elements.
fn bin(i: i64, size: i64, out: i64) -> (i64, i64) {
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
}

fn adaptive(cx: &Lower, call: &Call, x: Tid, n: usize) -> Result<Adaptive, Refuse> {
    let rank = cx.spec(x).rank();
    if rank < n {
        return unsupported(format!("pooling {n} axes of a tensor of rank {rank}"));
    }
    let out = geometry::per_axis(call, "output_size", n)?.ok_or_else(|| Refuse::Missing("output_size".into()))?;
    if out.iter().all(|&o| o == 1) {
        return Ok(Adaptive::Global);
    }
    if out.iter().any(|&o| o < 1) {
        return unsupported("an empty result");
    }
    let sizes = ops::known("pooled sizes", &cx.spec(x).dims[rank - n..])?;
    if sizes.iter().zip(&out).all(|(s, o)| s % o == 0) {
        return Ok(Adaptive::Even(sizes.iter().zip(&out).map(|(s, o)| s / o).collect()));
    }
    Ok(Adaptive::Uneven(sizes.into_iter().zip(out).collect()))
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

fn adaptive_avg_pool(cx: &mut Lower, call: &Call, n: usize) -> Items {
    let mut x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let pooled: Vec<usize> = (rank.saturating_sub(n)..rank).collect();
    match adaptive(cx, call, x, n)? {
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
    }
}

/// Every bin's elements gathered by a constant index into the plane, bins filled up with their last element.
fn adaptive_max_places(cx: &mut Lower, call: &Call, n: usize) -> Items {
    let x = call.tensor("self")?;
    let dims = cx.spec(x).dims.to_vec();
    let (lead, plane) = dims.split_at(dims.len() - n);
    let sizes = ops::known("pooled sizes", plane)?;
    let out = call.out(0)?.dims[lead.len()..].to_vec();
    let counts = ops::known("pooled sizes", &out)?;
    let (mut table, mut cells, mut longest) = (vec![vec![0_i64]], 1_i64, 1_i64);
    for (&size, &count) in sizes.iter().zip(&counts) {
        let bins: Vec<(i64, i64)> = (0..count).map(|i| bin(i, size, count)).collect();
        let length = bins.iter().map(|(s, e)| e - s).max().unwrap_or(1);
        let place = |outer: i64, &(s, e): &(i64, i64)| (0..length).map(|j| outer * size + (s + j).min(e - 1)).collect::<Vec<_>>();
        let spread = |cell: &Vec<i64>, b| cell.iter().flat_map(|&outer| place(outer, b)).collect::<Vec<_>>();
        table = table.iter().flat_map(|cell| bins.iter().map(move |b| spread(cell, b)).collect::<Vec<_>>()).collect();
        (cells, longest) = (cells * count, longest * length);
    }
    let table = cx.integers("_adaptive_places", &table.concat(), DType::I64)?;
    let index = cx.reshape(table, &[Expr::Int(cells), Expr::Int(longest)])?;
    let flat = cx.reshape(x, &[lead, &[ops::volume(plane)]].concat())?;
    let taken = ops::take(cx, flat, index, lead.len())?;
    let axis = lead.len() + 1;
    let (largest, best) = (ops::max(cx, taken, &[axis], false)?, ops::argmax(cx, taken, axis, false)?);
    let best = cx.cast(best, DType::I64)?;
    let rows: Vec<i64> = (0..cells).map(|c| c * longest).collect();
    let rows = cx.integers("_adaptive_rows", &rows, DType::I64)?;
    let at = ops::add(cx, best, rows)?;
    let places = ops::take(cx, table, at, 0)?;
    let shape = [lead, &out].concat();
    Ok(vec![Item::Tensor(cx.reshape(largest, &shape)?), Item::Tensor(cx.reshape(places, &shape)?)])
}

fn adaptive_max_pool(cx: &mut Lower, call: &Call, n: usize) -> Items {
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
    };
    Ok(vec![Item::Tensor(values), Item::None])
}

/// Bins filled up to equal lengths with their last element, which leaves the largest one alone.
fn max_of_bins(cx: &mut Lower, x: Tid, axis: usize, size: i64, out: i64) -> Emitted {
    let bins: Vec<(i64, i64)> = (0..out).map(|i| bin(i, size, out)).collect();
    let longest = bins.iter().map(|(s, e)| e - s).max().unwrap_or(1);
    let index: Vec<i64> = bins.iter().flat_map(|&(s, e)| (0..longest).map(move |j| (s + j).min(e - 1))).collect();
    let index = cx.integers(&format!("_adaptive_bins_{size}_{out}"), &index, DType::I32)?;
    let index = cx.reshape(index, &[Expr::Int(out), Expr::Int(longest)])?;
    let taken = ops::take(cx, x, index, axis)?;
    ops::max(cx, taken, &[axis + 1], false)
}

macro_rules! pools {
    ($($name:ident => $rule:ident($n:literal);)*) => { $(
        fn $name(cx: &mut Lower, call: &Call) -> Items {
            $rule(cx, call, $n)
        }
    )* };
}

pools! {
    adaptive_avg_pool1d => adaptive_avg_pool(1);
    adaptive_avg_pool2d => adaptive_avg_pool(2);
    adaptive_avg_pool3d => adaptive_avg_pool(3);
    adaptive_max_pool1d => adaptive_max_pool(1);
    adaptive_max_pool2d => adaptive_max_pool(2);
    adaptive_max_pool3d => adaptive_max_pool(3);
    avg_pool1d => avg_pool(1);
    avg_pool2d => avg_pool(2);
    avg_pool3d => avg_pool(3);
    max_pool1d => max_pool(1);
    max_pool2d => max_pool(2);
    max_pool3d => max_pool(3);
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._adaptive_avg_pool2d.default", adaptive_avg_pool2d),
    row("aten._adaptive_avg_pool3d.default", adaptive_avg_pool3d),
    row("aten.adaptive_avg_pool1d.default", adaptive_avg_pool1d),
    row("aten.adaptive_avg_pool2d.default", adaptive_avg_pool2d),
    row("aten.adaptive_avg_pool3d.default", adaptive_avg_pool3d),
    row("aten.adaptive_max_pool1d.default", adaptive_max_pool1d),
    row("aten.adaptive_max_pool2d.default", adaptive_max_pool2d),
    row("aten.adaptive_max_pool3d.default", adaptive_max_pool3d),
    row("aten.avg_pool1d.default", avg_pool1d),
    row("aten.avg_pool2d.default", avg_pool2d),
    row("aten.avg_pool3d.default", avg_pool3d),
    row("aten.max_pool1d.default", max_pool1d),
    row("aten.max_pool1d_with_indices.default", max_pool1d),
    row("aten.max_pool2d.default", max_pool2d),
    row("aten.max_pool2d_with_indices.default", max_pool2d),
    row("aten.max_pool3d.default", max_pool3d),
    row("aten.max_pool3d_with_indices.default", max_pool3d),
];
