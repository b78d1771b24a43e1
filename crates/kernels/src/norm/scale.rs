//! Shifted and scaled rows: one pass for the sums, and a second pass for the results.

use crate::{
    Error, Float, FloatView,
    error::same,
    pool::{Scratch, Team},
    simd::{Isa, store_partial},
};

/// The operations on a row.
#[derive(Clone, Copy)]
pub(super) struct Scale<'a> {
    /// Whether the mean is subtracted first.
    pub(super) centre: bool,
    pub(super) eps: f32,
    /// As long as a row.
    pub(super) weight: Option<&'a [f32]>,
    /// As long as a row.
    pub(super) bias: Option<&'a [f32]>,
}

/// A norm's weight or bias.
pub(super) enum Line<'a> {
    /// In place.
    There(&'a [f32]),
    /// Widened; the rest of the scratch is arbitrary.
    Read(Scratch),
}

impl<'a> Line<'a> {
    /// The elements of a `[width]` view.
    pub(super) fn new(team: &mut Team, view: &'a FloatView, width: usize) -> Result<Line<'a>, Error> {
        same("rank of a norm's weight", 1, view.shape().len())?;
        same("length of a norm's weight", width, view.shape()[0])?;
        if let FloatView::F32(view) = view
            && let Some(elements) = view.as_slice()
        {
            return Ok(Line::There(elements));
        }
        let mut values = team.take(width);
        let to: &mut [f32] = bytemuck::cast_slice_mut(values.words());
        // SAFETY: the view has `width` elements at this step.
        unsafe { view.origin().read(team.cpu(), view.strides()[0], &mut to[..width]) };
        Ok(Line::Read(values))
    }

    pub(super) fn elements(&self, width: usize) -> &[f32] {
        match self {
            Line::There(elements) => elements,
            Line::Read(values) => &values.as_floats()[..width],
        }
    }

    pub(super) fn give_back(self, team: &mut Team) {
        if let Line::Read(values) = self {
            team.give_back(values);
        }
    }
}

/// Up to a vector of a row; lanes behind its end are `fill`.
#[inline(always)]
fn load_padded<X: Float, I: Isa>(isa: I, x: &[X], fill: f32) -> I::V {
    if x.len() >= I::LANES {
        // SAFETY: the slice is as long as a vector.
        return unsafe { X::load(isa, x.as_ptr()) };
    }
    let mut values = [fill; 16];
    values.iter_mut().zip(x).for_each(|(v, x)| *v = x.to_f32());
    // SAFETY: LANES is at most 16.
    unsafe { isa.load(values.as_ptr()) }
}

/// Σ f(x); `fill` is an element that adds nothing.
#[inline(always)]
fn total<X: Float, I: Isa>(isa: I, row: &[X], fill: f32, f: impl Fn(I::V, I::V) -> I::V) -> f32 {
    let mut sums = [isa.splat(0.0); 4];
    let fours = row.chunks_exact(4 * I::LANES);
    let rest = fours.remainder();
    for four in fours {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the chunk is four vectors long.
            *sum = unsafe { f(X::load(isa, four.as_ptr().add(i * I::LANES)), *sum) };
        }
    }
    for (part, sum) in rest.chunks(I::LANES).zip(&mut sums) {
        *sum = f(load_padded(isa, part, fill), *sum);
    }
    isa.sum(isa.add(isa.add(sums[0], sums[1]), isa.add(sums[2], sums[3])))
}

/// The correction of `mean`, and the variance. A long sum is rounded on the way; with `corrects`,
/// the mean of `x − mean` corrects it, else the correction is 0.
#[inline(always)]
fn centered_moments<X: Float, I: Isa>(isa: I, row: &[X], mean: f32, corrects: bool) -> (f32, f32) {
    let (n, means) = (row.len() as f32, isa.splat(mean));
    if !corrects {
        let squares = total(isa, row, mean, |x, sum| {
            let x = isa.sub(x, means);
            isa.fma(x, x, sum)
        });
        return (0.0, squares / n);
    }
    let mut sums = [[isa.splat(0.0); 2]; 4];
    let mut step = |i: usize, x: I::V| {
        let x = isa.sub(x, means);
        sums[i] = [isa.fma(x, x, sums[i][0]), isa.add(x, sums[i][1])];
    };
    let fours = row.chunks_exact(4 * I::LANES);
    let rest = fours.remainder();
    for four in fours {
        for i in 0..4 {
            // SAFETY: the chunk is four vectors long.
            step(i, unsafe { X::load(isa, four.as_ptr().add(i * I::LANES)) });
        }
    }
    rest.chunks(I::LANES).enumerate().for_each(|(i, part)| step(i, load_padded(isa, part, mean)));
    let [squares, left] = [0, 1].map(|k| isa.sum(isa.add(isa.add(sums[0][k], sums[1][k]), isa.add(sums[2][k], sums[3][k]))));
    let shift = left / n;
    let variance = squares / n - shift * shift;
    (shift, if variance < 0.0 { 0.0 } else { variance })
}

/// `out = (x − mean) · (mean((x − mean)²) + eps)^−½ · weight + bias`. Without `centre`, the mean is
/// taken as 0, and the value before the weight is also rounded to the type of `out`.
#[inline(always)]
pub(super) fn scale<X: Float, Y: Float, I: Isa>(isa: I, row: &[X], out: &mut [Y], s: &Scale) {
    let n = row.len() as f32;
    let mean = if s.centre { total(isa, row, 0.0, |x, sum| isa.add(x, sum)) / n } else { 0.0 };
    let (shift, variance) = centered_moments(isa, row, mean, s.centre);
    // Their sum would be rounded as the mean was.
    let (means, shifts) = (isa.splat(mean), isa.splat(shift));
    let factors = isa.splat(1.0 / (variance + s.eps).sqrt());
    for (i, out) in out.chunks_mut(I::LANES).enumerate() {
        let at = i * I::LANES;
        let centred = isa.sub(load_padded(isa, &row[at..], 0.0), means);
        let mut x = isa.mul(if s.centre { isa.sub(centred, shifts) } else { centred }, factors);
        if let Some(weight) = s.weight {
            let unscaled = if s.centre { x } else { Y::round_lanes(isa, x) };
            x = isa.mul(unscaled, load_padded(isa, &weight[at..], 0.0));
        }
        if let Some(bias) = s.bias {
            x = isa.add(x, load_padded(isa, &bias[at..], 0.0));
        }
        // SAFETY: the chunk is as long as it says.
        unsafe {
            if out.len() == I::LANES {
                Y::store(isa, out.as_mut_ptr(), x)
            } else {
                store_partial(isa, out.as_mut_ptr(), x, out.len())
            }
        }
    }
}
