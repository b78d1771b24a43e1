//! Resampling along axes of symbolic size: nodes compute positions and weights at run time.

use flambeau_ir::{Clip, Floor, In, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    super::{
        grid::cubic,
        ops::{self, Emitted},
    },
    apply_tensor,
    taps::Interpolation,
};
use crate::{Lower, Refuse, lower::NEW};

/// A resampled axis.
struct OpenAxis {
    /// Index among the axes of the image.
    at: usize,
    size: Expr,
    out: Expr,
    /// Input elements per output element, f32 of rank 0.
    scale: Tid,
    /// The last element's index, f32 of rank 0.
    last: Tid,
}

/// Resamples axis `at` of `x` to `target` elements.
pub(super) fn resample_symbolic(
    cx: &mut Lower,
    x: Tid,
    at: usize,
    target: &Expr,
    factor: Option<f64>,
    kind: Interpolation,
) -> Emitted {
    let axis = OpenAxis::new(cx, x, at, target, factor, kind)?;
    match kind {
        Interpolation::Nearest => axis.copy_nearest(cx, x, 0.0),
        Interpolation::NearestExact => axis.copy_nearest(cx, x, 0.5),
        Interpolation::Linear { align_corners } => axis.linear(cx, x, align_corners),
        Interpolation::Cubic { align_corners } => axis.cubic(cx, x, align_corners),
        Interpolation::Antialiased { support, .. } => {
            let matrix = axis.antialiased(cx, support)?;
            apply_tensor(cx, x, at, matrix)
        }
    }
}

fn floor(cx: &mut Lower, x: Tid) -> Emitted {
    cx.emit(Floor { x: In(x), out: NEW })
}

impl OpenAxis {
    fn new(cx: &mut Lower, x: Tid, at: usize, out: &Expr, factor: Option<f64>, kind: Interpolation) -> Result<OpenAxis, Refuse> {
        let size = cx.spec(x).dims[at].clone();
        let aligned = matches!(
            kind,
            Interpolation::Linear { align_corners: true }
                | Interpolation::Cubic { align_corners: true }
                | Interpolation::Antialiased { align_corners: true, .. }
        );
        let number = |cx: &mut Lower, size: &Expr, shift: f64| ops::size_number(cx, size, 1.0, shift, DType::F32);
        let last = number(cx, &size, -1.0)?;
        let scale = match factor.filter(|f| !aligned && *f > 0.0) {
            Some(factor) => cx.number(1.0 / factor, DType::F32)?,
            None => {
                let shift = if aligned { -1.0 } else { 0.0 };
                let (from, to) = (number(cx, &size, shift)?, number(cx, out, shift)?);
                single(cx, from, to)?
            }
        };
        Ok(OpenAxis { at, size, out: out.clone(), scale, last })
    }

    /// Clips a position to the axis.
    fn inside(&self, cx: &mut Lower, place: Tid) -> Emitted {
        let zero = cx.number(0.0, DType::F32)?;
        cx.emit(Clip { x: In(place), out: NEW, a_min: Some(In(zero)), a_max: Some(In(self.last)) })
    }

    /// `scale * (i + shift)` for each output element `i`.
    fn source(&self, cx: &mut Lower, shift: f64) -> Emitted {
        let places = ops::count(cx, &self.out, DType::F32)?;
        let shifted = ops::add_number(cx, places, shift)?;
        ops::mul(cx, shifted, self.scale)
    }

    /// The input position of each output element.
    fn centers(&self, cx: &mut Lower, align_corners: bool) -> Emitted {
        let half = if align_corners { 0.0 } else { 0.5 };
        let source = self.source(cx, half)?;
        ops::add_number(cx, source, -half)
    }

    /// The elements at integer positions times their weights.
    fn weighted(&self, cx: &mut Lower, x: Tid, place: Tid, weight: Tid) -> Emitted {
        let place = self.inside(cx, place)?;
        let index = cx.cast(place, DType::I32)?;
        let taken = ops::take(cx, x, index, self.at)?;
        let weight = ops::along(cx, weight, self.at, cx.spec(x).rank())?;
        ops::mul(cx, taken, weight)
    }

    fn copy_nearest(&self, cx: &mut Lower, x: Tid, shift: f64) -> Emitted {
        let source = self.source(cx, shift)?;
        let low = floor(cx, source)?;
        let low = self.inside(cx, low)?;
        let index = cx.cast(low, DType::I32)?;
        ops::take(cx, x, index, self.at)
    }

    fn linear(&self, cx: &mut Lower, x: Tid, align_corners: bool) -> Emitted {
        let source = self.centers(cx, align_corners)?;
        let zero = cx.number(0.0, DType::F32)?;
        let source = ops::maximum(cx, source, zero)?;
        let low = floor(cx, source)?;
        let low = self.inside(cx, low)?;
        let part = ops::sub(cx, source, low)?;
        let part = ops::clip(cx, part, 0.0, 1.0)?;
        let (next, rest) = (ops::add_number(cx, low, 1.0)?, ops::number_minus(cx, 1.0, part)?);
        let (near, far) = (self.weighted(cx, x, low, rest)?, self.weighted(cx, x, next, part)?);
        ops::add(cx, near, far)
    }

    fn cubic(&self, cx: &mut Lower, x: Tid, align_corners: bool) -> Emitted {
        let source = self.centers(cx, align_corners)?;
        let low = floor(cx, source)?;
        let part = ops::sub(cx, source, low)?;
        let mut total: Option<Tid> = None;
        for step in -1..=2 {
            let (place, weight) = (ops::add_number(cx, low, f64::from(step))?, cubic(cx, part, step)?);
            let own = self.weighted(cx, x, place, weight)?;
            total = Some(total.map_or(Ok(own), |sum| ops::add(cx, sum, own))?);
        }
        Ok(total.unwrap_or(x))
    }

    /// The weight matrix `[O, S]` of a filter that widens as the image shrinks.
    fn antialiased(&self, cx: &mut Lower, support: i64) -> Emitted {
        let unit = cx.number(1.0, DType::F32)?;
        let stretch = ops::maximum(cx, self.scale, unit)?;
        let reach = ops::mul_number(cx, stretch, support as f64)?;
        let center = self.source(cx, 0.5)?;
        let center = cx.unsqueeze(center, 1)?;
        let places = ops::count(cx, &self.size, DType::F32)?;
        let inside = self.reached(cx, center, reach, places)?;
        let apart = ops::sub(cx, places, center)?;
        let apart = ops::add_number(cx, apart, 0.5)?;
        let apart = ops::div(cx, apart, stretch)?;
        let apart = ops::abs(cx, apart)?;
        let weight = if support == 1 { triangle(cx, apart)? } else { cubic_filter(cx, apart)? };
        let zero = cx.number(0.0, DType::F32)?;
        let weight = ops::select(cx, inside, weight, zero)?;
        let total = ops::sum(cx, weight, &[1], true)?;
        ops::div(cx, weight, total)
    }

    /// Whether the filter around each center covers each input element.
    fn reached(&self, cx: &mut Lower, center: Tid, reach: Tid, places: Tid) -> Emitted {
        let (first, last) = (ops::sub(cx, center, reach)?, ops::add(cx, center, reach)?);
        let (first, last) = (ops::add_number(cx, first, 0.5)?, ops::add_number(cx, last, 0.5)?);
        let (first, last) = (ops::trunc(cx, first)?, ops::trunc(cx, last)?);
        let (after, before) = (ops::ge(cx, places, first)?, ops::lt(cx, places, last)?);
        ops::logical_and(cx, after, before)
    }
}

/// `from / to`; 0 for a single output element between aligned corners.
fn single(cx: &mut Lower, from: Tid, to: Tid) -> Emitted {
    let (unit, zero) = (cx.number(1.0, DType::F32)?, cx.number(0.0, DType::F32)?);
    let divisor = ops::maximum(cx, to, unit)?;
    let (ratio, some) = (ops::div(cx, from, divisor)?, ops::gt(cx, to, zero)?);
    ops::select(cx, some, ratio, zero)
}

/// `max(1 - x, 0)`.
fn triangle(cx: &mut Lower, x: Tid) -> Emitted {
    let rest = ops::number_minus(cx, 1.0, x)?;
    let zero = cx.number(0.0, DType::F32)?;
    ops::maximum(cx, rest, zero)
}

/// The cubic convolution kernel with parameter -0.5 at a distance `x`.
fn cubic_filter(cx: &mut Lower, x: Tid) -> Emitted {
    let (unit, two, zero) = (cx.number(1.0, DType::F32)?, cx.number(2.0, DType::F32)?, cx.number(0.0, DType::F32)?);
    let near = polynomial(cx, x, [1.5, -2.5, 0.0, 1.0])?;
    let far = polynomial(cx, x, [-0.5, 2.5, -4.0, 2.0])?;
    let (is_near, is_far) = (ops::le(cx, x, unit)?, ops::lt(cx, x, two)?);
    let outer = ops::select(cx, is_far, far, zero)?;
    ops::select(cx, is_near, near, outer)
}

/// A polynomial of degree 3; coefficients from the highest power down.
fn polynomial(cx: &mut Lower, x: Tid, coefficients: [f64; 4]) -> Emitted {
    let mut value = ops::mul_number(cx, x, coefficients[0])?;
    for (i, &coefficient) in coefficients[1..].iter().enumerate() {
        value = ops::add_number(cx, value, coefficient)?;
        if i < 2 {
            value = ops::mul(cx, value, x)?;
        }
    }
    Ok(value)
}
