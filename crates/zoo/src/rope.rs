//! Rotary frequencies by all scaling rules.

use std::f64::consts::TAU;

/// Scaling of the rotary frequencies `theta^(-2i/dims)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scaling {
    None,
    /// Positions divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Low frequencies divided by `factor`, high frequencies kept, and a ramp between them.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    /// As Llama3, with the ramp over pairs of elements. `amplitude` multiplies cosines and sines.
    Yarn {
        factor: f64,
        original: f64,
        beta_fast: f64,
        beta_slow: f64,
        truncate: bool,
        amplitude: f64,
    },
    /// A divisor for each frequency: `short` for at most `original` positions, `long` beyond.
    LongRope {
        short: Vec<f64>,
        long: Vec<f64>,
        original: usize,
        /// Amplitudes of either list.
        amplitudes: [f64; 2],
    },
    /// A divisor for each frequency.
    Divisors(Vec<f64>),
    /// A larger `theta` for more than `original` positions.
    Dynamic {
        factor: f64,
        original: usize,
    },
    /// Frequencies of the whole head for the first pairs, divided by `factor`, and no rotation of
    /// the others.
    Proportional {
        pairs: usize,
        factor: f64,
    },
}

/// Rotary embedding of the first `dims` elements of each head.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    pub(crate) theta: f64,
    pub(crate) dims: usize,
    /// Whether partners are adjacent, instead of half of `dims` apart.
    pub(crate) interleaved: bool,
    /// Whether the direction of the rotation is reversed.
    pub(crate) reversed: bool,
    pub(crate) scaling: Scaling,
}

/// Operands of the rotary operator.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resolved {
    /// Base of the frequencies, if `periods` is `None`.
    pub(crate) theta: f64,
    /// Reciprocal frequencies [dims / 2], if they do not follow from `theta`.
    pub(crate) periods: Option<Vec<f32>>,
    /// Factor on positions.
    pub(crate) scale: f64,
    /// Factor on cosines and sines.
    pub(crate) amplitude: f64,
}

/// Amplitude of yarn scaling by a magnitude, which is 1 unless configured.
pub(crate) fn yarn_amplitude(factor: f64, magnitude: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * magnitude * factor.ln() + 1.0 }
}

/// Default amplitude of longrope scaling from `original` to `factor` times as many positions.
pub(crate) fn longrope_amplitude(factor: f64, original: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
}

impl Rope {
    /// The unscaled period of pair `i`.
    fn period(&self, i: usize) -> f64 {
        self.theta.powf(2.0 * i as f64 / self.dims as f64)
    }

    fn periods(&self, scaled: impl Fn(usize, f64) -> f64) -> Option<Vec<f32>> {
        Some((0..self.dims / 2).map(|i| scaled(i, self.period(i)) as f32).collect())
    }

    /// Resolves the scaling for a cache of `positions`. Longrope selects its list once by this
    /// length, because a program has one set of frequencies.
    pub(crate) fn resolve(&self, positions: usize) -> Resolved {
        let (mut theta, mut scale, mut amplitude) = (self.theta, 1.0, 1.0);
        let periods = match &self.scaling {
            Scaling::None => None,
            Scaling::Linear { factor } => {
                scale = 1.0 / factor;
                None
            }
            &Scaling::Llama3 { factor, low, high, original } => self.periods(|_, p| llama3(p, factor, low, high, original)),
            &Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate, amplitude: a } => {
                amplitude = a;
                let (low, high) = self.yarn_ramp(original, beta_fast, beta_slow, truncate);
                self.periods(|i, p| {
                    let interpolated = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    p / (interpolated / factor + (1.0 - interpolated))
                })
            }
            Scaling::LongRope { short, long, original, amplitudes: [of_short, of_long] } => {
                let is_long = positions > *original;
                amplitude = if is_long { *of_long } else { *of_short };
                let list = if is_long { long } else { short };
                self.periods(|i, p| p * list.get(i).unwrap_or(&1.0))
            }
            Scaling::Divisors(list) => self.periods(|i, p| p * list.get(i).unwrap_or(&1.0)),
            &Scaling::Dynamic { factor, original } => {
                if positions > original {
                    let (stretch, dims) = (factor * positions as f64 / original as f64 - (factor - 1.0), self.dims as f64);
                    theta *= stretch.powf(dims / (dims - 2.0));
                }
                None
            }
            &Scaling::Proportional { pairs, factor } => self.periods(|i, p| if i < pairs { p * factor } else { f64::INFINITY }),
        };
        if self.reversed {
            scale = -scale;
        }
        Resolved { theta, periods, scale, amplitude }
    }

    /// Range of pairs in which yarn changes from kept to divided frequencies.
    fn yarn_ramp(&self, original: f64, fast: f64, slow: f64, truncate: bool) -> (f64, f64) {
        let dims = self.dims as f64;
        let pair = |rotations: f64| dims * (original / (rotations * TAU)).ln() / (2.0 * self.theta.ln());
        let (low, high) = (pair(fast), pair(slow));
        let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(dims - 1.0));
        (low, if low == high { high + 0.001 } else { high })
    }
}

fn llama3(period: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = TAU * period;
    if wavelength < original / high {
        period
    } else if wavelength > original / low {
        period * factor
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        period / ((1.0 - smooth) / factor + smooth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rope: &Rope, positions: usize, inverse: &[f64]) {
        let periods = rope.resolve(positions).periods.unwrap();
        assert_eq!(periods.len(), inverse.len());
        for (period, want) in periods.iter().zip(inverse) {
            assert!((1.0 / f64::from(*period) / want - 1.0).abs() < 1e-6, "{period} is not 1 / {want}");
        }
    }

    #[test]
    fn llama3_frequencies_are_the_published_ones() {
        let scaling = Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 64.0 };
        let want = [1.0, 0.0671330392, 0.00117518846, 2.27895784e-4, 4.41941702e-5, 8.57025589e-6, 1.66196742e-6, 3.22293289e-7];
        check(&Rope { theta: 5e5, dims: 16, interleaved: false, reversed: false, scaling }, 64, &want);
    }

    #[test]
    fn longrope_chooses_its_list_by_the_length_of_the_cache() {
        let scaling = Scaling::LongRope { short: vec![1.0, 1.0], long: vec![2.0, 4.0], original: 64, amplitudes: [1.25, 1.5] };
        let rope = Rope { theta: 100.0, dims: 4, interleaved: false, reversed: false, scaling };
        check(&rope, 64, &[1.0, 0.1]);
        check(&rope, 65, &[0.5, 0.025]);
        assert_eq!((rope.resolve(64).amplitude, rope.resolve(65).amplitude), (1.25, 1.5));
    }

    #[test]
    fn amplitudes_are_the_published_ones() {
        for (factor, original, want) in [(4.0, 64.0, 1.1547005), (8.0, 128.0, 1.1952286), (32.0, 4096.0, 1.1902381)] {
            assert!((longrope_amplitude(factor, original) - want).abs() < 1e-7);
        }
        assert_eq!((longrope_amplitude(1.0, 64.0), yarn_amplitude(0.5, 1.0)), (1.0, 1.0));
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let scaling =
            Scaling::Yarn { factor: 4.0, original: 32768.0, beta_fast: 32.0, beta_slow: 1.0, truncate: true, amplitude: 1.0 };
        let rope = Rope { theta: 1e6, dims: 128, interleaved: false, reversed: false, scaling };
        let periods = rope.resolve(1 << 17).periods.unwrap();
        assert_eq!((periods[0], periods[63]), (1.0, (rope.period(63) * 4.0) as f32));
        let middle = f64::from(periods[32]) / rope.period(32);
        assert!(middle > 1.0 && middle < 4.0, "{middle}");
    }

    #[test]
    fn pairs_beyond_the_proportional_part_stand_still() {
        let scaling = Scaling::Proportional { pairs: 1, factor: 2.0 };
        let rope = Rope { theta: 100.0, dims: 4, interleaved: false, reversed: false, scaling };
        assert_eq!(rope.resolve(8).periods.unwrap(), [2.0, f32::INFINITY]);
    }

    #[test]
    fn dynamic_scaling_begins_behind_the_training_length() {
        let rope = Rope {
            theta: 100.0,
            dims: 4,
            interleaved: false,
            reversed: false,
            scaling: Scaling::Dynamic { factor: 2.0, original: 64 },
        };
        assert_eq!((rope.resolve(64).theta, rope.resolve(64).periods), (100.0, None));
        assert_eq!(rope.resolve(128).theta, 100.0 * 3f64.powi(2));
    }
}
