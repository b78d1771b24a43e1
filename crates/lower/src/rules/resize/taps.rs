//! The input elements and weights of each resampled element.

use num_traits::{Float, cast};

/// Interpolation methods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Interpolation {
    Nearest,
    NearestExact,
    Linear {
        align_corners: bool,
    },
    Cubic {
        align_corners: bool,
    },
    /// The support (1 for linear, 2 for cubic) grows with the scale.
    Antialiased {
        support: i64,
        align_corners: bool,
    },
}

/// (index, weight) of each input element of one output element.
pub(super) type Tap<F> = Vec<(i64, F)>;

/// One resampled axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) size: i64,
    pub(super) out: i64,
    /// The caller's scale factor, if it replaces the ratio of the sizes.
    pub(super) factor: Option<f64>,
}

/// Fixed-point weights in steps of `2^-bits`, as PyTorch resamples bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fixed {
    pub(super) taps: Vec<Tap<i32>>,
    pub(super) bits: u32,
}

/// Converts a small number to the type of the weights.
fn number<F: Float>(value: f64) -> F {
    cast(value).unwrap_or_else(F::zero)
}

fn whole<F: Float>(value: i64) -> F {
    cast(value).unwrap_or_else(F::zero)
}

/// Truncates a small finite number to an integer.
fn cut<F: Float>(value: F) -> i64 {
    value.to_i64().unwrap_or(0)
}

impl Axis {
    /// Input elements per output element.
    fn scale<F: Float>(&self, align_corners: bool) -> F {
        match self.factor {
            _ if align_corners && self.out > 1 => whole::<F>(self.size - 1) / whole(self.out - 1),
            _ if align_corners => F::zero(),
            Some(factor) if factor > 0.0 => number(1.0 / factor),
            _ => whole::<F>(self.size) / whole(self.out),
        }
    }

    /// Input position of an output element.
    fn source<F: Float>(&self, i: i64, align_corners: bool) -> F {
        let (scale, half) = (self.scale::<F>(align_corners), number::<F>(0.5));
        if align_corners { scale * whole(i) } else { scale * (whole::<F>(i) + half) - half }
    }

    /// The input element that each output element copies.
    pub(super) fn nearest(&self, exact: bool) -> Vec<i64> {
        let (scale, shift) = (self.scale::<f32>(false), if exact { 0.5 } else { 0.0 });
        let place = |i: i64| ((((i as f32) + shift) * scale).floor() as i64).clamp(0, self.size - 1);
        (0..self.out).map(place).collect()
    }

    /// The taps of each output element.
    pub(super) fn taps<F: Float>(&self, kind: Interpolation) -> Vec<Tap<F>> {
        (0..self.out).map(|i| self.tap(i, kind)).collect()
    }

    fn tap<F: Float>(&self, i: i64, kind: Interpolation) -> Tap<F> {
        let inside = |j: i64| j.clamp(0, self.size - 1);
        match kind {
            Interpolation::Nearest | Interpolation::NearestExact => Vec::new(),
            Interpolation::Linear { align_corners } => {
                let at = self.source::<F>(i, align_corners).max(F::zero());
                let low = cut(at).min(self.size - 1);
                let part = (at - whole(low)).max(F::zero()).min(F::one());
                vec![(low, F::one() - part), (inside(low + 1), part)]
            }
            Interpolation::Cubic { align_corners } => {
                let at = self.source::<F>(i, align_corners);
                let (low, part) = (cut(at.floor()), at - at.floor());
                (-1..=2).map(|j| (inside(low + j), cubic((part - whole(j)).abs(), -0.75))).collect()
            }
            Interpolation::Antialiased { support, align_corners } => self.antialiased(i, support, align_corners),
        }
    }

    fn antialiased<F: Float>(&self, i: i64, support: i64, align_corners: bool) -> Tap<F> {
        let (scale, half) = (self.scale::<F>(align_corners), number::<F>(0.5));
        let stretch = scale.max(F::one());
        let reach = whole::<F>(support) * stretch;
        let center = scale * (whole::<F>(i) + half);
        let first = cut(center - reach + half).max(0);
        let last = cut(center + reach + half).min(self.size);
        let filter = |x: F| if support == 1 { (F::one() - x.abs()).max(F::zero()) } else { cubic(x.abs(), -0.5) };
        let weights: Tap<F> = (first..last).map(|j| (j, filter((whole::<F>(j) - center + half) / stretch))).collect();
        let total = weights.iter().fold(F::zero(), |sum, w| sum + w.1);
        weights.into_iter().map(|(j, w)| (j, w / total)).collect()
    }

    /// The taps with weights of at most 15 bits. Weights of the same element are summed before
    /// rounding.
    pub(super) fn fixed(&self, kind: Interpolation) -> Fixed {
        let mut taps = self.taps::<f64>(kind);
        taps.iter_mut().for_each(merge);
        let largest = taps.iter().flatten().fold(0.0, |max, w| w.1.max(max));
        let fits = |bits: &u32| ((0.5 + largest * f64::from(1 << (bits + 1))) as i64) < 1 << 15;
        let bits = (0..MAX_BITS).take_while(fits).count() as u32;
        let round = |w: f64| (w * f64::from(1 << bits)).round() as i32;
        Fixed { taps: taps.into_iter().map(|tap| tap.into_iter().map(|(j, w)| (j, round(w))).collect()).collect(), bits }
    }
}

/// Maximum number of fractional bits of a fixed-point weight.
const MAX_BITS: u32 = 22;

/// Sums the weights of the same input element.
fn merge(tap: &mut Tap<f64>) {
    let mut merged: Tap<f64> = Vec::with_capacity(tap.len());
    for &(j, w) in tap.iter() {
        match merged.iter_mut().find(|m| m.0 == j) {
            Some(known) => known.1 += w,
            None => merged.push((j, w)),
        }
    }
    *tap = merged;
}

/// The cubic convolution kernel with parameter `a` at distance `x`.
fn cubic<F: Float>(x: F, a: f64) -> F {
    let n = number::<F>;
    let a = n(a);
    match x {
        x if x <= F::one() => ((a + n(2.0)) * x - (a + n(3.0))) * x * x + F::one(),
        x if x < n(2.0) => ((a * x - n(5.0) * a) * x + n(8.0) * a) * x - n(4.0) * a,
        _ => F::zero(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Interpolation; 6] = [
        Interpolation::Linear { align_corners: false },
        Interpolation::Linear { align_corners: true },
        Interpolation::Cubic { align_corners: false },
        Interpolation::Cubic { align_corners: true },
        Interpolation::Antialiased { support: 1, align_corners: false },
        Interpolation::Antialiased { support: 2, align_corners: false },
    ];

    #[test]
    fn weights_of_an_element_sum_to_one_and_lie_inside() {
        for (size, out) in [(5, 9), (9, 5), (1, 4), (7, 1), (40, 3)] {
            let axis = Axis { size, out, factor: None };
            for kind in KINDS {
                for tap in axis.taps::<f32>(kind) {
                    let total: f32 = tap.iter().map(|w| w.1).sum();
                    assert!((total - 1.0).abs() < 1e-5, "{axis:?}, {kind:?}: {tap:?}");
                    assert!(tap.iter().all(|w| (0..size).contains(&w.0)), "{axis:?}, {kind:?}: {tap:?}");
                }
            }
        }
    }

    #[test]
    fn fixed_weights_take_fifteen_bits() {
        let halves = Fixed { taps: vec![vec![(0, 1 << 14), (1, 1 << 14)]], bits: 15 };
        assert_eq!(Axis { size: 2, out: 1, factor: None }.fixed(Interpolation::Linear { align_corners: false }), halves);
        for (size, out) in [(3, 8), (64, 2), (1000, 3), (1, 1)] {
            for kind in KINDS {
                let fixed = Axis { size, out, factor: None }.fixed(kind);
                assert!(fixed.taps.iter().flatten().all(|w| w.1.abs() < 1 << 15), "{size} to {out}, {kind:?}");
                assert!(fixed.bits <= MAX_BITS, "{size} to {out}, {kind:?}");
            }
        }
    }

    #[test]
    fn nearest_elements_are_cut_or_rounded() {
        let axis = Axis { size: 3, out: 5, factor: None };
        assert_eq!(axis.nearest(false), [0, 0, 1, 1, 2]);
        assert_eq!(axis.nearest(true), [0, 0, 1, 2, 2]);
    }
}
