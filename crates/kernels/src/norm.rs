//! Normalisation and softmax along the last axis.

use crate::{
    Error, Float, FloatView, Pool,
    convert::FloatPtr,
    error::same,
    math::exp,
    simd::{Isa, Kernel},
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
    let weight = weight.map(|w| vector(w, width)).transpose()?;
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
    let weight = weight.map(|w| vector(w, width)).transpose()?;
    let bias = bias.map(|b| vector(b, width)).transpose()?;
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
fn vector(view: &FloatView, width: usize) -> Result<Vec<f32>, Error> {
    same("rank of a norm's weight", 1, view.shape().len())?;
    same("length of a norm's weight", width, view.shape()[0])?;
    let step = view.strides()[0];
    // SAFETY: the index is inside the view.
    Ok((0..width).map(|i| unsafe { view.at(i as isize * step) }).collect())
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
    let cpu = pool.cpu();
    pool.run_ranges(count, (GRAIN / width).max(1), |rows| {
        let mut values = vec![0.0; width.next_multiple_of(16)];
        for i in rows {
            let at = (i * width) as isize;
            values[width..].fill(0.0);
            // SAFETY: row `i` is inside both operands, and belongs to one task.
            unsafe { x.offset(at).read(cpu, 1, &mut values[..width]) };
            cpu.dispatch(OneRow { values: &mut values, width, row });
            // SAFETY: as above.
            unsafe { out.offset(at).write(cpu, 1, &values[..width]) };
        }
    });
}

/// A row, zero padded to a multiple of 16, in place.
struct OneRow<'a> {
    values: &'a mut [f32],
    width: usize,
    row: Row<'a>,
}

impl Kernel for OneRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let OneRow { values, width, row } = self;
        match row {
            Row::Rms { eps, weight } => rms(isa, values, width, eps, weight),
            Row::Layer { eps, weight, bias } => layer(isa, values, width, eps, weight, bias),
            Row::Softmax => soft(isa, values, width, false),
            Row::LogSoftmax => soft(isa, values, width, true),
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
    let factor = isa.splat(1.0 / (squares / width as f32 + eps).sqrt());
    update(isa, values, |x| isa.mul(x, factor));
    affine(values, weight, None);
}

#[inline(always)]
fn layer<I: Isa>(isa: I, values: &mut [f32], width: usize, eps: f32, weight: Option<&[f32]>, bias: Option<&[f32]>) {
    let mean = isa.splat(total(isa, values, |isa, x, sum| isa.add(x, sum)) / width as f32);
    update(isa, values, |x| isa.sub(x, mean));
    values[width..].fill(0.0);
    let squares = total(isa, values, |isa, x, sum| isa.fma(x, x, sum));
    let factor = isa.splat(1.0 / (squares / width as f32 + eps).sqrt());
    update(isa, values, |x| isa.mul(x, factor));
    affine(values, weight, bias);
}

#[inline(always)]
fn affine(values: &mut [f32], weight: Option<&[f32]>, bias: Option<&[f32]>) {
    if let Some(weight) = weight {
        values.iter_mut().zip(weight).for_each(|(x, &w)| *x *= w);
    }
    if let Some(bias) = bias {
        values.iter_mut().zip(bias).for_each(|(x, &b)| *x += b);
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
