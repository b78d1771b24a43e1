//! Sampling of images at the coordinates of a grid.

use flambeau_ir::{Clip, In, Round, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Value of samples outside the image.
#[derive(Clone, Copy, PartialEq)]
enum PaddingMode {
    Zeros,
    Border,
    Reflection,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Linear,
    Nearest,
    Cubic,
}

/// An image as rows of channels, with the options of its sampling.
struct Image {
    /// `[N * D1 * D2 .., C]`
    rows: Tid,
    batch: Expr,
    sizes: Vec<Expr>,
    padding: PaddingMode,
    align_corners: bool,
}

/// A position along one axis: its index, and a mask of positions inside the image unless all are.
#[derive(Clone, Copy)]
struct Place {
    index: Tid,
    inside: Option<Tid>,
}

/// A position along one axis and its weight; no weight means 1.
type Tap = (Place, Option<Tid>);

impl Image {
    fn new(cx: &mut Lower, call: &Call, x: Tid) -> Result<Image, Refuse> {
        let dims = cx.spec(x).dims.to_vec();
        let rank = dims.len();
        let sizes = dims[2..].to_vec();
        let padding = match call.int_or("padding_mode", 0)? {
            0 => PaddingMode::Zeros,
            1 => PaddingMode::Border,
            2 => PaddingMode::Reflection,
            other => return unsupported(format!("padding mode {other}")),
        };
        let perm: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
        let last = cx.permute(x, &perm)?;
        let count = dims[0].clone() * ops::volume(&sizes);
        let rows = cx.reshape(last, &[count, dims[1].clone()])?;
        Ok(Image { rows, batch: dims[0].clone(), sizes, padding, align_corners: call.bool_or("align_corners", false)? })
    }

    /// Converts grid coordinates from -1 to 1 to positions on an axis, in PyTorch's order of
    /// operations. For volumes, PyTorch multiplies by the size before it halves.
    fn place(&self, cx: &mut Lower, grid: Tid, size: &Expr) -> Emitted {
        let shifted = ops::add_number(cx, grid, 1.0)?;
        let dtype = cx.spec(grid).dtype;
        let reach = size.clone() - Expr::Int(i64::from(self.align_corners));
        let half = ops::size_number(cx, &reach, 0.5, 0.0, dtype)?;
        let reach = ops::size_number(cx, &reach, 1.0, 0.0, dtype)?;
        match (self.sizes.len() > 2, self.align_corners) {
            (false, true) => ops::mul(cx, shifted, half),
            (false, false) => {
                let scaled = ops::mul(cx, shifted, half)?;
                ops::add_number(cx, scaled, -0.5)
            }
            (true, true) => {
                let half = ops::mul_number(cx, shifted, 0.5)?;
                ops::mul(cx, half, reach)
            }
            (true, false) => {
                let scaled = ops::mul(cx, shifted, reach)?;
                let from_half = ops::add_number(cx, scaled, -1.0)?;
                ops::mul_number(cx, from_half, 0.5)
            }
        }
    }

    /// Moves positions outside the image to the position where the padding mode reads.
    fn folded(&self, cx: &mut Lower, at: Tid, size: &Expr) -> Emitted {
        match self.padding {
            PaddingMode::Zeros => Ok(at),
            PaddingMode::Border => within(cx, at, size),
            PaddingMode::Reflection => {
                let (low, less) = if self.align_corners { (0.0, 1) } else { (-0.5, 0) };
                let span = size.clone() - Expr::Int(less);
                if span == Expr::Int(0) {
                    return ops::mul_number(cx, at, 0.0);
                }
                // A symbolic axis of size 1 has no span either; any period leads to its only
                // element.
                let period = ops::size_number(cx, &span, 2.0, 0.0, cx.spec(at).dtype)?;
                let period = match span.as_int() {
                    Some(_) => period,
                    None => {
                        let least = ops::number_like(cx, period, 1.0)?;
                        ops::maximum(cx, period, least)?
                    }
                };
                let shifted = ops::add_number(cx, at, -low)?;
                let distance = ops::abs(cx, shifted)?;
                // A period is two spans; the second span runs backward.
                let periods = ops::div(cx, distance, period)?;
                let whole = ops::trunc(cx, periods)?;
                let whole = ops::mul(cx, whole, period)?;
                let along = ops::sub(cx, distance, whole)?;
                let back = ops::sub(cx, period, along)?;
                let near = ops::minimum(cx, along, back)?;
                let place = ops::add_number(cx, near, low)?;
                within(cx, place, size)
            }
        }
    }

    /// An integer position as an index.
    fn tap(&self, cx: &mut Lower, at: Tid, size: &Expr) -> Result<Place, Refuse> {
        let within = within(cx, at, size)?;
        let inside = match self.padding {
            PaddingMode::Zeros => Some(ops::eq(cx, at, within)?),
            _ => None,
        };
        Ok(Place { index: cx.cast(within, DType::I64)?, inside })
    }

    /// The channels at one position on each axis, 0 outside: `[N, .., C]`.
    fn look_up(&self, cx: &mut Lower, places: &[Place]) -> Emitted {
        let rank = places.first().map_or(0, |p| cx.spec(p.index).rank());
        let entries = ops::count(cx, &self.batch, DType::I64)?;
        let mut flat = ops::along(cx, entries, 0, rank)?;
        let mut inside: Option<Tid> = None;
        for (place, size) in places.iter().zip(&self.sizes) {
            let size = ops::size_number(cx, size, 1.0, 0.0, DType::I64)?;
            let outer = ops::mul(cx, flat, size)?;
            flat = ops::add(cx, outer, place.index)?;
            inside = match (inside, place.inside) {
                (Some(a), Some(b)) => Some(ops::logical_and(cx, a, b)?),
                (a, b) => a.or(b),
            };
        }
        let found = ops::take(cx, self.rows, flat, 0)?;
        let Some(inside) = inside else { return Ok(found) };
        let zero = ops::number_like(cx, found, 0.0)?;
        let inside = cx.unsqueeze(inside, rank)?;
        ops::select(cx, inside, found, zero)
    }

    /// Positions and weights along one axis of the elements that a sample blends.
    fn taps(&self, cx: &mut Lower, at: Tid, size: &Expr, mode: Mode) -> Result<Vec<Tap>, Refuse> {
        if mode == Mode::Nearest {
            let at = self.folded(cx, at, size)?;
            let whole = cx.emit(Round { x: In(at), out: NEW, decimals: 0 })?;
            return Ok(vec![(self.tap(cx, whole, size)?, None)]);
        }
        let at = if mode == Mode::Linear { self.folded(cx, at, size)? } else { at };
        let low = cx.emit(flambeau_ir::Floor { x: In(at), out: NEW })?;
        let part = ops::sub(cx, at, low)?;
        if mode == Mode::Linear {
            let next = ops::add_number(cx, low, 1.0)?;
            let rest = if self.sizes.len() > 2 { ops::sub(cx, next, at)? } else { ops::number_minus(cx, 1.0, part)? };
            return Ok(vec![(self.tap(cx, low, size)?, Some(rest)), (self.tap(cx, next, size)?, Some(part))]);
        }
        let mut taps = Vec::new();
        for step in -1..=2 {
            let place = ops::add_number(cx, low, f64::from(step))?;
            let place = self.folded(cx, place, size)?;
            let weight = cubic(cx, part, step)?;
            taps.push((self.tap(cx, place, size)?, Some(weight)));
        }
        Ok(taps)
    }

    /// Sums the products of weights over all combinations of taps; the last axis varies fastest.
    fn blend(&self, cx: &mut Lower, taps: &[Vec<Tap>]) -> Emitted {
        let mut total: Option<Tid> = None;
        for number in 0..taps.iter().map(Vec::len).product::<usize>() {
            let (mut rest, mut chosen) = (number, Vec::new());
            for axis in taps.iter().rev() {
                chosen.push(axis[rest % axis.len()]);
                rest /= axis.len();
            }
            let places: Vec<Place> = chosen.iter().rev().map(|tap| tap.0).collect();
            let weight = chosen.iter().filter_map(|tap| tap.1).map(Ok).reduce(|a, b| ops::mul(cx, a?, b?)).transpose()?;
            let found = self.look_up(cx, &places)?;
            total = Some(weighted(cx, total, found, weight)?);
        }
        total.ok_or_else(no_grid)
    }

    /// Blends along rows, then along the column of their results: the same number of roundings as
    /// PyTorch's cubic sampling.
    fn blend_rows(&self, cx: &mut Lower, rows: &[Tap], columns: &[Tap]) -> Emitted {
        let mut total: Option<Tid> = None;
        for &(row, row_weight) in rows {
            let mut sum: Option<Tid> = None;
            for &(column, weight) in columns {
                let found = self.look_up(cx, &[row, column])?;
                sum = Some(weighted(cx, sum, found, weight)?);
            }
            total = Some(weighted(cx, total, sum.ok_or_else(no_grid)?, row_weight)?);
        }
        total.ok_or_else(no_grid)
    }
}

/// Clips a position to the axis.
fn within(cx: &mut Lower, at: Tid, size: &Expr) -> Emitted {
    let (zero, last) = (ops::number_like(cx, at, 0.0)?, ops::size_number(cx, size, 1.0, -1.0, cx.spec(at).dtype)?);
    cx.emit(Clip { x: In(at), out: NEW, a_min: Some(In(zero)), a_max: Some(In(last)) })
}

fn no_grid() -> Refuse {
    Refuse::Missing("grid".to_owned())
}

/// `sum + found * weight`, with one weight per position of `found` `[N, .., C]`.
fn weighted(cx: &mut Lower, sum: Option<Tid>, found: Tid, weight: Option<Tid>) -> Emitted {
    let part = match weight {
        Some(weight) => {
            let weight = cx.unsqueeze(weight, cx.spec(weight).rank())?;
            ops::mul(cx, found, weight)?
        }
        None => found,
    };
    sum.map_or(Ok(part), |sum| ops::add(cx, sum, part))
}

/// Cubic weight of the tap `step` elements from the lower neighbour; `part` is the fraction of the
/// way to the next element.
pub(super) fn cubic(cx: &mut Lower, part: Tid, step: i32) -> Emitted {
    const A: f64 = -0.75;
    let distance = match step {
        ..=0 => ops::add_number(cx, part, f64::from(-step))?,
        _ => ops::number_minus(cx, f64::from(step), part)?,
    };
    // Coefficients from the highest power down.
    let polynomial = if (0..=1).contains(&step) { [A + 2.0, -(A + 3.0), 0.0, 1.0] } else { [A, -5.0 * A, 8.0 * A, -4.0 * A] };
    let mut value = ops::mul_number(cx, distance, polynomial[0])?;
    for (i, &coefficient) in polynomial[1..].iter().enumerate() {
        value = ops::add_number(cx, value, coefficient)?;
        if i < 2 {
            value = ops::mul(cx, value, distance)?;
        }
    }
    Ok(value)
}

/// Samples `input` `[N, C, ..]` at the coordinates of `grid` `[N, .., axes]`; the grid's last axis
/// starts with the innermost axis.
fn grid_sampler(cx: &mut Lower, call: &Call) -> Items {
    let mode = match call.int_or("interpolation_mode", 0)? {
        0 => Mode::Linear,
        1 => Mode::Nearest,
        2 => Mode::Cubic,
        other => return unsupported(format!("interpolation mode {other}")),
    };
    let (n, rank) = (cx.spec(call.tensor("input")?).rank().saturating_sub(2), cx.spec(call.tensor("grid")?).rank());
    if n == 0 || rank != n + 2 {
        return unsupported("a grid that does not fit the image");
    }
    // PyTorch computes in the operands' type, halves included, so positions round alike. Cubic
    // sampling of volumes uses f32.
    let dtype = call.out(0)?.dtype;
    let dtype = if mode == Mode::Cubic && n > 2 { ops::wide(dtype) } else { dtype };
    let (x, grid) = (cx.operand(call, "input", dtype)?, cx.operand(call, "grid", dtype)?);
    let image = Image::new(cx, call, x)?;
    let mut taps = Vec::new();
    for axis in 0..n {
        let coordinate = ops::take_one(cx, grid, (n - 1 - axis) as i64, rank - 1)?;
        let at = image.place(cx, coordinate, &image.sizes[axis])?;
        taps.push(image.taps(cx, at, &image.sizes[axis], mode)?);
    }
    let sampled = match (mode, &taps[..]) {
        (Mode::Cubic, [rows, columns]) => image.blend_rows(cx, rows, columns)?,
        (_, taps) => image.blend(cx, taps)?,
    };
    let perm: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    one(cx.permute(sampled, &perm)?)
}

/// The coordinates of a regular grid under `theta` `[N, axes, axes + 1]`.
fn affine_grid(cx: &mut Lower, call: &Call) -> Items {
    let theta = cx.operand(call, "theta", DType::F32)?;
    let sizes = ops::known("size", &call.sizes("size")?)?;
    let align_corners = call.bool_or("align_corners", false)?;
    let [_, _, plane @ ..] = &sizes[..] else { return unsupported("a grid without axes") };
    let points = |size: i64| -> Vec<f32> {
        let step = if size > 1 { 2.0 / (size - 1) as f64 } else { 0.0 };
        let reach = if align_corners { 1.0 } else { (size - 1) as f64 / size as f64 };
        let at = |i: i64| if size > 1 { (-1.0 + i as f64 * step) * reach } else { 0.0 };
        (0..size).map(|i| at(i) as f32).collect()
    };
    let axes: Vec<Vec<f32>> = plane.iter().map(|&s| points(s)).collect();
    let count: i64 = plane.iter().product();
    let mut base = Vec::with_capacity(count as usize * (plane.len() + 1));
    for cell in 0..count {
        for axis in (0..plane.len()).rev() {
            let inner: i64 = plane[axis + 1..].iter().product();
            base.push(axes[axis][(cell / inner % plane[axis]) as usize]);
        }
        base.push(1.0);
    }
    let base = cx.floats("_affine_grid", &base, &[count as usize, plane.len() + 1])?;
    let turned = cx.permute(theta, &[0, 2, 1])?;
    let grid = super::linalg::product(cx, base, turned)?;
    let dims = call.out(0)?.dims.clone();
    one(cx.reshape(grid, &dims)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.affine_grid_generator.default", affine_grid),
    row("aten.grid_sampler.default", grid_sampler),
    row("aten.grid_sampler_2d.default", grid_sampler),
    row("aten.grid_sampler_3d.default", grid_sampler),
];
