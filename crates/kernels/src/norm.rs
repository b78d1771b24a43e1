//! Normalisation and softmax along the last axis.

mod scale;

use std::ops::Range;

use scale::{Line, Scale, scale};

use crate::{
    Error, Float, FloatView, Pool,
    convert::{FloatPtr, read_line, with_float, write_line},
    error::same,
    math::exp,
    pool::Team,
    simd::{Isa, Kernel},
};

/// Elements of a task.
const GRAIN: usize = 1 << 13;

/// The operation on each row.
#[derive(Clone, Copy)]
enum Row<'a> {
    Scale(Scale<'a>),
    Softmax,
    LogSoftmax,
}

/// `out = x · (mean(x²) + eps)^−½ · weight` for each row of `width` elements, in `f32`; also
/// rounded to the type of `out` before the weight, as in MLX's kernels.
///
/// # Errors
/// [`Error::Size`] if the lengths do not fit; `weight` is `[width]`.
pub fn rms_norm<X: Float, Y: Float>(
    pool: &Pool,
    x: &[X],
    width: usize,
    weight: Option<&FloatView>,
    eps: f32,
    out: &mut [Y],
) -> Result<(), Error> {
    scaled(&mut pool.team(), x, width, [weight, None], (false, eps), out)
}

/// `out = (x − mean) · (var + eps)^−½ · weight + bias` for each row of `width` elements, in `f32`,
/// rounded once, as in PyTorch. The variance is biased.
///
/// # Errors
/// [`Error::Size`] if the lengths do not fit; `weight` and `bias` are `[width]`.
pub fn layer_norm<X: Float, Y: Float>(
    pool: &Pool,
    x: &[X],
    width: usize,
    (weight, bias): (Option<&FloatView>, Option<&FloatView>),
    eps: f32,
    out: &mut [Y],
) -> Result<(), Error> {
    scaled(&mut pool.team(), x, width, [weight, bias], (true, eps), out)
}

/// Rows by weight and bias; without their mean if `centre`.
fn scaled<X: Float, Y: Float>(
    team: &mut Team,
    x: &[X],
    width: usize,
    lines: [Option<&FloatView>; 2],
    (centre, eps): (bool, f32),
    out: &mut [Y],
) -> Result<(), Error> {
    let weight = lines[0].map(|view| Line::new(team, view, width)).transpose()?;
    let bias = lines[1].map(|view| Line::new(team, view, width)).transpose()?;
    let lines = [weight, bias];
    let [weight, bias] = [0, 1].map(|i| lines[i].as_ref().map(|line| line.elements(width)));
    let result = rows(team, x, width, out, Row::Scale(Scale { centre, eps, weight, bias }));
    lines.into_iter().flatten().for_each(|line| line.give_back(team));
    result
}

/// `out = eˣ / Σ eˣ` for each row of `width` elements, in `f32`. A row of −∞ gives NaN.
///
/// # Errors
/// [`Error::Size`] if the lengths do not fit.
pub fn softmax<X: Float, Y: Float>(pool: &Pool, x: &[X], width: usize, out: &mut [Y]) -> Result<(), Error> {
    rows(&mut pool.team(), x, width, out, Row::Softmax)
}

/// `out = x − ln Σ eˣ` for each row of `width` elements, in `f32`.
///
/// # Errors
/// [`Error::Size`] if the lengths do not fit.
pub fn log_softmax<X: Float, Y: Float>(pool: &Pool, x: &[X], width: usize, out: &mut [Y]) -> Result<(), Error> {
    rows(&mut pool.team(), x, width, out, Row::LogSoftmax)
}

fn rows<X: Float, Y: Float>(team: &mut Team, x: &[X], width: usize, out: &mut [Y], row: Row) -> Result<(), Error> {
    same("elements of the output", x.len(), out.len())?;
    if width == 0 || x.is_empty() {
        return same("elements", 0, x.len());
    }
    same("elements left over by rows", 0, x.len() % width)?;
    all_rows(team, FloatPtr::reading(x.as_ptr()), FloatPtr::of(out.as_mut_ptr()), [x.len() / width, width], row);
    Ok(())
}

/// Both pointers have `[count, width]` elements.
fn all_rows(team: &mut Team, x: FloatPtr, out: FloatPtr, [count, width]: [usize; 2], row: Row) {
    let grain = (GRAIN / width).max(1);
    let line = width.next_multiple_of(16);
    let is_one_type = std::mem::discriminant(&x) == std::mem::discriminant(&out);
    let padded = match row {
        Row::Scale(_) if is_one_type => 0,
        // One line for the widened row, one for its result.
        Row::Scale(_) => 2 * line,
        Row::Softmax | Row::LogSoftmax => line,
    };
    let cpu = team.cpu();
    team.run_ranges(count, grain, padded, |rows, scratch| {
        let values = bytemuck::cast_slice_mut(&mut scratch[..padded]);
        cpu.dispatch(Rows { x, out, rows, values, width, row });
    });
}

/// Some rows. `values` is scratch for `f32` lines: one line for softmax, or two (operand and
/// result) for a scaled row of differing types. A line is a multiple of 16 elements.
struct Rows<'a> {
    x: FloatPtr,
    out: FloatPtr,
    rows: Range<usize>,
    values: &'a mut [f32],
    width: usize,
    row: Row<'a>,
}

impl Kernel for Rows<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Rows { x, out, rows, values, width, row } = self;
        for i in rows {
            // SAFETY: row `i` is inside both operands, and belongs to one task.
            let (x, out) = unsafe { (x.offset((i * width) as isize), out.offset((i * width) as isize)) };
            if let Row::Scale(s) = &row {
                // SAFETY: both rows have `width` elements, and the row of `out` belongs to one
                // task.
                unsafe {
                    match (x, out) {
                        (FloatPtr::F32(x), FloatPtr::F32(out)) => scale_at(isa, x, out, width, s),
                        (FloatPtr::F16(x), FloatPtr::F16(out)) => scale_at(isa, x, out, width, s),
                        (FloatPtr::BF16(x), FloatPtr::BF16(out)) => scale_at(isa, x, out, width, s),
                        _ => {
                            let (from, to) = values.split_at_mut(values.len() / 2);
                            with_float!(x, p => read_line(isa, p.cast_const(), &mut from[..width]));
                            scale(isa, &from[..width], &mut to[..width], s);
                            with_float!(out, p => write_line(isa, p, &to[..width]));
                        }
                    }
                }
                continue;
            }
            values[width..].fill(0.0);
            // SAFETY: row `i` of `x` has `width` elements.
            unsafe { with_float!(x, p => read_line(isa, p.cast_const(), &mut values[..width])) };
            soft(isa, values, width, matches!(row, Row::LogSoftmax));
            // SAFETY: row `i` of `out` has `width` elements and belongs to one task.
            unsafe { with_float!(out, p => write_line(isa, p, &values[..width])) };
        }
    }
}

/// [`scale`] of a row of the output's type.
///
/// # Safety
/// Both rows have `width` elements, and no other thread accesses the row of `out`.
#[inline(always)]
unsafe fn scale_at<T: Float, I: Isa>(isa: I, x: *const T, out: *mut T, width: usize, s: &Scale) {
    // SAFETY: the caller ensures `width` valid elements in both rows, and exclusive access to
    // `out`.
    unsafe { scale(isa, std::slice::from_raw_parts(x, width), std::slice::from_raw_parts_mut(out, width), s) }
}

/// Σ f(x) over padded values; `f(0)` must be 0.
#[inline(always)]
fn total<I: Isa>(isa: I, values: &[f32], f: impl Fn(I, I::V, I::V) -> I::V) -> f32 {
    let mut sums = [isa.splat(0.0); 4];
    for (i, lanes) in values.chunks_exact(I::LANES).enumerate() {
        // SAFETY: the chunk is LANES long.
        sums[i % 4] = unsafe { f(isa, isa.load(lanes.as_ptr()), sums[i % 4]) };
    }
    isa.sum(isa.add(isa.add(sums[0], sums[1]), isa.add(sums[2], sums[3])))
}

/// `x = f(x)`
#[inline(always)]
fn update<I: Isa>(isa: I, values: &mut [f32], f: impl Fn(I::V) -> I::V) {
    for lanes in values.chunks_exact_mut(I::LANES) {
        // SAFETY: the chunk is LANES long.
        unsafe { isa.store(lanes.as_mut_ptr(), f(isa.load(lanes.as_ptr()))) };
    }
}

#[inline(always)]
fn soft<I: Isa>(isa: I, values: &mut [f32], width: usize, log: bool) {
    values[width..].fill(f32::NEG_INFINITY);
    let mut top = isa.splat(f32::NEG_INFINITY);
    for lanes in values.chunks_exact(I::LANES) {
        // SAFETY: the chunk is LANES long.
        top = unsafe { isa.max(top, isa.load(lanes.as_ptr())) };
    }
    let base = isa.splat(isa.max_lane(top));
    update(isa, values, |x| isa.sub(x, base));
    if log {
        let sum: f32 = total(isa, values, |isa, x, sum| isa.add(exp(isa, x), sum));
        let shift = isa.splat(sum.ln());
        update(isa, values, |x| isa.sub(x, shift));
    } else {
        update(isa, values, |x| exp(isa, x));
        values[width..].fill(0.0);
        let factor = isa.splat(1.0 / total(isa, values, |isa, x, sum| isa.add(x, sum)));
        update(isa, values, |x| isa.mul(x, factor));
    }
}

#[cfg(test)]
mod tests;
