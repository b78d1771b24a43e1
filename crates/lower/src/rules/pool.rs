//! Pooling: a strided view of the windows, then one reduction over them.

mod adaptive;
mod rounded;

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use self::adaptive::{adaptive_avg_pool, adaptive_max_pool};
use super::{
    RuleRow, geometry, one,
    ops::{self, Emitted},
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
    /// Number of elements to append so that the last window fits; negative if the windows skip
    /// elements at the end.
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
                // The exporter decided which windows begin inside the axis.
                (true, None) => recorded(call, rank - n + axes.len())?,
                (false, _) => windows.count(size),
            };
            axes.push(Axis { size: size.clone(), windows, out });
        }
        Ok(Windows { x, axes, ceil_mode })
    }

    /// Sizes of the axes before the pooled ones.
    fn lead(&self, cx: &Lower) -> Vec<Expr> {
        let dims = &cx.spec(self.x).dims;
        dims[..dims.len() - self.axes.len()].to_vec()
    }

    fn out_dims(&self) -> Vec<Expr> {
        self.axes.iter().map(|a| a.out.clone()).collect()
    }

    /// The windows and the axes to reduce: `[.., O1, K1, O2, K2 ..]` if windows are adjacent, else
    /// `[.., O1, O2, .., K1, K2 ..]`.
    fn view(&self, cx: &mut Lower, fill: f64) -> Result<(Tid, Vec<usize>), Refuse> {
        let lead = self.lead(cx);
        let (n, at) = (self.axes.len(), lead.len());
        let inside = |extra: Expr| extra.as_int().map_or(!self.ceil_mode, |e| e <= 0);
        if self.axes.iter().all(|a| a.windows.tile() && inside(a.extra())) {
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

    /// `x` padded at both ends, and the padded sizes.
    fn padded(&self, cx: &mut Lower, fill: f64) -> Result<(Tid, Vec<Expr>), Refuse> {
        let none = (Expr::Int(0), Expr::Int(0));
        let mut widths = vec![none; cx.spec(self.x).rank() - self.axes.len()];
        let mut sizes = Vec::new();
        for axis in &self.axes {
            // At a symbolic end, the call's padding suffices; counting upward needs at most
            // `stride - 1` more.
            let walk = axis.windows.walk;
            let most = walk.padding + if self.ceil_mode { walk.stride - 1 } else { 0 };
            let hi = axis.extra().as_int().map_or(most, |e| e.max(0));
            widths.push((Expr::Int(axis.windows.walk.padding), Expr::Int(hi)));
            sizes.push(axis.size.clone() + Expr::Int(axis.windows.walk.padding + hi));
        }
        Ok((ops::pad(cx, self.x, &widths, "constant", fill)?, sizes))
    }
}

/// The recorded size of an axis of the first result.
fn recorded(call: &Call, axis: usize) -> Result<Expr, Refuse> {
    call.out(0)?.dims.get(axis).cloned().ok_or_else(|| Refuse::Missing(format!("size {axis} of the result")))
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

/// Index of each window's largest element in the unpadded plane.
fn max_indices(cx: &mut Lower, windows: &Windows) -> Emitted {
    let fill = ops::lowest(cx.spec(windows.x).dtype);
    let (view, axes) = windows.view(cx, fill)?;
    let lead = windows.lead(cx);
    let (n, at) = (windows.axes.len(), lead.len());
    let kept: Vec<usize> = (0..at + 2 * n).filter(|a| !axes.contains(a)).collect();
    let view = cx.permute(view, &[&kept[..], &axes].concat())?;
    let kernel: Vec<i64> = windows.axes.iter().map(|a| a.windows.kernel).collect();
    let flat = [&lead[..], &windows.out_dims(), &[Expr::Int(kernel.iter().product())]].concat();
    let flat = cx.reshape(view, &flat)?;
    let best = ops::argmax(cx, flat, at + n, false)?;
    let sizes: Option<Vec<i64>> = windows.axes.iter().map(|a| a.size.as_int()).collect();
    let out: Option<Vec<i64>> = windows.axes.iter().map(|a| a.out.as_int()).collect();
    let (Some(sizes), Some(out)) = (sizes, out) else { return open_indices(cx, windows, best, &kernel) };
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

/// [`max_indices`] over axes of symbolic size. `best` `[.., O1, O2, ..]` is an index into the
/// kernel's elements in axis order.
fn open_indices(cx: &mut Lower, windows: &Windows, best: Tid, kernel: &[i64]) -> Emitted {
    let rank = cx.spec(best).rank();
    let at = rank - kernel.len();
    let taps: i64 = kernel.iter().product();
    let mut plane: Option<Tid> = None;
    for (i, axis) in windows.axes.iter().enumerate() {
        let (walk, inner) = (axis.windows.walk, kernel[i + 1..].iter().product::<i64>());
        let within: Vec<i64> = (0..taps).map(|p| p / inner % kernel[i] * walk.dilation - walk.padding).collect();
        let within = cx.integers("_pool_offsets", &within, DType::I64)?;
        let within = ops::take(cx, within, best, 0)?;
        let origin = ops::count(cx, &axis.out, DType::I64)?;
        let origin = ops::mul_number(cx, origin, walk.stride as f64)?;
        let origin = ops::along(cx, origin, at + i, rank)?;
        let place = ops::add(cx, within, origin)?;
        plane = Some(match plane {
            None => place,
            Some(outer) => {
                let size = ops::size_number(cx, &axis.size, 1.0, 0.0, DType::I64)?;
                let outer = ops::mul(cx, outer, size)?;
                ops::add(cx, outer, place)?
            }
        });
    }
    plane.map_or_else(|| unsupported("a pooling over no axis"), Ok)
}

/// Divisor of each window of an axis of symbolic size.
fn open_counts(cx: &mut Lower, axis: &Axis, include_pad: bool) -> Emitted {
    let (walk, dtype) = (axis.windows.walk, DType::F32);
    let windows = ops::count(cx, &axis.out, dtype)?;
    let start = ops::mul_number(cx, windows, walk.stride as f64)?;
    let start = ops::add_number(cx, start, -walk.padding as f64)?;
    let end = ops::add_number(cx, start, axis.windows.kernel as f64)?;
    let padded = ops::size_number(cx, &axis.size, 1.0, walk.padding as f64, dtype)?;
    let mut end = ops::minimum(cx, end, padded)?;
    let mut first = start;
    if !include_pad {
        let (size, zero) = (ops::size_number(cx, &axis.size, 1.0, 0.0, dtype)?, cx.number(0.0, dtype)?);
        (end, first) = (ops::minimum(cx, end, size)?, ops::maximum(cx, start, zero)?);
    }
    let count = ops::sub(cx, end, first)?;
    let unit = cx.number(1.0, dtype)?;
    ops::maximum(cx, count, unit)
}

/// Divisor of each window of an axis.
fn window_counts(axis: &Axis, size: i64, out: i64, include_pad: bool) -> Vec<f32> {
    let count = |o: i64| {
        let start = o * axis.windows.walk.stride - axis.windows.walk.padding;
        let end = (start + axis.windows.kernel).min(size + axis.windows.walk.padding);
        if include_pad { end - start } else { end.min(size) - start.max(0) }
    };
    (0..out).map(|o| count(o).max(1) as f32).collect()
}

/// Sums over windows divided by the counts of their elements, axis by axis.
fn divided(cx: &mut Lower, windows: &Windows, sum: Tid, include_pad: bool) -> Emitted {
    let rank = cx.spec(sum).rank();
    let mut total: Option<Tid> = None;
    for (i, axis) in windows.axes.iter().enumerate() {
        let own = open_counts(cx, axis, include_pad)?;
        let own = ops::along(cx, own, rank - windows.axes.len() + i, rank)?;
        total = Some(total.map_or(Ok(own), |t| ops::mul(cx, t, own))?);
    }
    let Some(total) = total else { return Ok(sum) };
    let total = cx.cast(total, cx.spec(sum).dtype)?;
    ops::div(cx, sum, total)
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
    if windows.axes.iter().any(|a| a.size.as_int().is_none() || a.out.as_int().is_none()) {
        return one(divided(cx, &windows, sum, include_pad)?);
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
