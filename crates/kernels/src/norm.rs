//! Normalisation and softmax along the last axis.

use std::ops::Range;

use crate::{
    Error, Float, FloatView, Pool,
    convert::{FloatPtr, read_line, with_float, write_line},
    error::same,
    math::exp,
    simd::{Cpu, Isa, Kernel},
};

/// Elements of a task.
const GRAIN: usize = 1 << 13;

/// What is done to each row.
#[derive(Clone, Copy)]
enum Row<'a> {
    Rms { eps: f32, weight: Option<&'a [f32]> },
    Layer { eps: f32, weight: Option<&'a [f32]>, bias: Option<&'a [f32]> },
    Softmax,
    LogSoftmax,
}

/// `out = x · (mean(x²) + eps)^−½ · weight` for each row of `width` elements, in `f32`.
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
    let weight = weight.map(|w| vector(pool.cpu(), w, width)).transpose()?;
    rows(pool, x, width, out, Row::Rms { eps, weight: weight.as_deref() })
}

/// `out = (x − mean) · (var + eps)^−½ · weight + bias` for each row of `width` elements, in `f32`; the variance is biased.
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
    let weight = weight.map(|w| vector(pool.cpu(), w, width)).transpose()?;
    let bias = bias.map(|b| vector(pool.cpu(), b, width)).transpose()?;
    rows(pool, x, width, out, Row::Layer { eps, weight: weight.as_deref(), bias: bias.as_deref() })
}

/// `out = eˣ / Σ eˣ` for each row of `width` elements, in `f32`. A row of −∞ gives NaN.
///
/// # Errors
/// [`Error::Size`] if the lengths do not fit.
pub fn softmax<X: Float, Y: Float>(pool: &Pool, x: &[X], width: usize, out: &mut [Y]) -> Result<(), Error> {
    rows(pool, x, width, out, Row::Softmax)
}

/// `out = x − ln Σ eˣ` for each row of `width` elements, in `f32`.
///
/// # Errors
/// [`Error::Size`] if the lengths do not fit.
pub fn log_softmax<X: Float, Y: Float>(pool: &Pool, x: &[X], width: usize, out: &mut [Y]) -> Result<(), Error> {
    rows(pool, x, width, out, Row::LogSoftmax)
}

/// The elements of a `[width]` view.
fn vector(cpu: Cpu, view: &FloatView, width: usize) -> Result<Vec<f32>, Error> {
    same("rank of a norm's weight", 1, view.shape().len())?;
    same("length of a norm's weight", width, view.shape()[0])?;
    let mut values = vec![0.0; width];
    // SAFETY: the view has `width` elements at this step.
    unsafe { view.origin().read(cpu, view.strides()[0], &mut values) };
    values.resize(width.next_multiple_of(16), 0.0);
    Ok(values)
}

fn rows<X: Float, Y: Float>(pool: &Pool, x: &[X], width: usize, out: &mut [Y], row: Row) -> Result<(), Error> {
    same("elements of the output", x.len(), out.len())?;
    if width == 0 || x.is_empty() {
        return same("elements", 0, x.len());
    }
    same("elements left over by rows", 0, x.len() % width)?;
    all_rows(pool, FloatPtr::reading(x.as_ptr()), FloatPtr::of(out.as_mut_ptr()), [x.len() / width, width], row);
    Ok(())
}

/// Both pointers have `[count, width]` elements.
fn all_rows(pool: &Pool, x: FloatPtr, out: FloatPtr, [count, width]: [usize; 2], row: Row) {
    let (grain, padded) = ((GRAIN / width).max(1), width.next_multiple_of(16));
    let mut team = pool.team();
    let cpu = team.cpu();
    team.run(count.div_ceil(grain), padded, |task, scratch| {
        let values = bytemuck::cast_slice_mut(&mut scratch[..padded]);
        cpu.dispatch(Rows { x, out, rows: task * grain..count.min((task + 1) * grain), values, width, row });
    });
}

/// Some rows, each of which becomes `values`, zero padded to a multiple of 16, on its way.
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
            let at = i * width;
            values[width..].fill(0.0);
            // SAFETY: row `i` is inside both operands, and belongs to one task.
            unsafe { with_float!(x, p => read_line(isa, p.add(at).cast_const(), &mut values[..width])) };
            match row {
                Row::Rms { eps, weight } => rms(isa, values, width, eps, weight),
                Row::Layer { eps, weight, bias } => layer(isa, values, width, eps, weight, bias),
                Row::Softmax => soft(isa, values, width, false),
                Row::LogSoftmax => soft(isa, values, width, true),
            }
            // SAFETY: as above.
            unsafe { with_float!(out, p => write_line(isa, p.add(at), &values[..width])) };
        }
    }
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
fn rms<I: Isa>(isa: I, values: &mut [f32], width: usize, eps: f32, weight: Option<&[f32]>) {
    let squares = total(isa, values, |isa, x, sum| isa.fma(x, x, sum));
    let factor = 1.0 / (squares / width as f32 + eps).sqrt();
    affine(isa, values, [0.0, factor], weight, None);
}

#[inline(always)]
fn layer<I: Isa>(isa: I, values: &mut [f32], width: usize, eps: f32, weight: Option<&[f32]>, bias: Option<&[f32]>) {
    let mean = total(isa, values, |isa, x, sum| isa.add(x, sum)) / width as f32;
    let means = isa.splat(mean);
    values[width..].fill(mean);
    let squares = total(isa, values, |isa, x, sum| isa.fma(isa.sub(x, means), isa.sub(x, means), sum));
    let factor = 1.0 / (squares / width as f32 + eps).sqrt();
    affine(isa, values, [mean, factor], weight, bias);
}

/// `x = (x − mean) · factor · weight + bias`; weight and bias are padded as the values are.
#[inline(always)]
fn affine<I: Isa>(isa: I, values: &mut [f32], [mean, factor]: [f32; 2], weight: Option<&[f32]>, bias: Option<&[f32]>) {
    let (mean, factor) = (isa.splat(mean), isa.splat(factor));
    for (i, lanes) in values.chunks_exact_mut(I::LANES).enumerate() {
        // SAFETY: the chunk is LANES long, and weight and bias are as long as the values.
        unsafe {
            let mut x = isa.mul(isa.sub(isa.load(lanes.as_ptr()), mean), factor);
            if let Some(weight) = weight {
                x = isa.mul(x, isa.load(weight[i * I::LANES..][..I::LANES].as_ptr()));
            }
            if let Some(bias) = bias {
                x = isa.add(x, isa.load(bias[i * I::LANES..][..I::LANES].as_ptr()));
            }
            isa.store(lanes.as_mut_ptr(), x);
        }
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
