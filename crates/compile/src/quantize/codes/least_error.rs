//! Fits scale and bias of an affine group by least squared error, instead of by the range of its
//! values.
//!
//! Language models have inputs that are a thousand times larger than others, and almost zero
//! weights for them. If zero has no code, these products have large errors. So zero keeps a code
//! unless the importance of inputs is known.

use flambeau_tensor::DType;

use super::{Group, range};

/// Initial shares of the range that the codes cover. A smaller share clips both ends and makes all
/// steps finer. Each share leads to another optimum.
const SHARES: [f32; 6] = [0.96, 0.9, 0.84, 0.78, 0.7, 0.6];

/// Number of refits of the line through codes and values.
const REFITS: usize = 2;

/// Number of values processed together.
const LANES: usize = 8;

/// Returns the candidate parameters with the least error, rounded as stored. Each squared error is
/// multiplied by the importance of its value. Without importance all values count alike, and zero
/// keeps a code. The parameters by range are one candidate.
pub(super) fn fit(values: &[f32], importance: Option<&[f32]>, bits: u8, dtype: DType) -> Group {
    let top = f32::from(u8::MAX >> (8 - bits));
    let mut best = Group::fit_affine(values, bits, dtype);
    let (low, high) = range(values);
    if !(high - low).is_finite() || low == high || !values.len().is_multiple_of(LANES) {
        return best;
    }
    let (keeps_zero, ones) = (importance.is_none(), vec![1.0; if importance.is_none() { values.len() } else { 0 }]);
    let importance = importance.unwrap_or(&ones);
    let total: f32 = values.iter().zip(importance).map(|(value, weight)| value * weight).sum();
    let weight: f32 = importance.iter().sum();
    let mut least = Sums::of(values, importance, &best, top).error();
    for share in SHARES {
        let scale = (high - low) * share / top;
        let bias = (low + high - scale * top) / 2.0;
        let bias = if keeps_zero { (bias / scale).round_ties_even() * scale } else { bias };
        let mut group = Group::affine([scale, bias], dtype);
        for refit in 0..=REFITS {
            let sums = Sums::of(values, importance, &group, top);
            if sums.error() < least {
                (best, least) = (group, sums.error());
            }
            let line = if keeps_zero { sums.line_through_zero(weight, total) } else { sums.line(weight, total) };
            match line.filter(|_| refit < REFITS) {
                Some(line) => group = Group::affine(line, dtype),
                None => break,
            }
        }
    }
    best
}

/// Sums over the values and codes of a group, one per lane.
#[derive(Default)]
struct Sums {
    errors: [f32; LANES],
    codes: [f32; LANES],
    squares: [f32; LANES],
    products: [f32; LANES],
}

impl Sums {
    fn of(values: &[f32], importance: &[f32], group: &Group, top: f32) -> Sums {
        let mut sums = Sums::default();
        let per_step = if group.scale == 0.0 { 0.0 } else { 1.0 / group.scale };
        for (block, importance) in values.as_chunks::<LANES>().0.iter().zip(importance.as_chunks::<LANES>().0) {
            for (i, (&value, &weight)) in block.iter().zip(importance).enumerate() {
                // Adding and subtracting 1.5·2²³ rounds to the nearest integer, ties to even.
                const ROUND: f32 = 12_582_912.0;
                let code = ((value - group.bias) * per_step).clamp(0.0, top) + ROUND - ROUND;
                let error = code * group.scale + group.bias - value;
                let weighted = weight * code;
                sums.errors[i] += weight * error * error;
                sums.codes[i] += weighted;
                sums.squares[i] += weighted * code;
                sums.products[i] += weighted * value;
            }
        }
        sums
    }

    /// Sums of codes, of their squares, and of their products with values.
    fn sums(&self) -> [f32; 3] {
        [self.codes, self.squares, self.products].map(|lanes| lanes.iter().sum())
    }

    /// The weighted squared error.
    fn error(&self) -> f32 {
        self.errors.iter().sum()
    }

    /// As [`line`](Self::line), for lines on which zero has a code: the code nearest to zero on the
    /// unrestricted line.
    fn line_through_zero(&self, count: f32, total: f32) -> Option<[f32; 2]> {
        let [scale, bias] = self.line(count, total)?;
        let zero = (-bias / scale).round_ties_even();
        let [codes, squares, products] = self.sums();
        let spread = squares - 2.0 * zero * codes + zero * zero * count;
        let scale = (products - zero * total) / spread;
        (spread > 0.0 && scale.is_finite()).then(|| [scale, -zero * scale])
    }

    /// Scale and bias of the least-squares line through values of total importance `count` and
    /// weighted sum `total`. `None` if all values have the same code.
    fn line(&self, count: f32, total: f32) -> Option<[f32; 2]> {
        let [codes, squares, products] = self.sums();
        let spread = count * squares - codes * codes;
        let scale = (count * products - codes * total) / spread;
        (spread > 0.0).then(|| [scale, (total - scale * codes) / count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_keeps_a_code_unless_importance_is_known() {
        for (seed, dtype) in [(7919, DType::F32), (7907, DType::BF16), (7901, DType::F16)] {
            let value = |i: usize| if i.is_multiple_of(5) { 0.0 } else { ((i * seed % 1009) as f32 - 400.0) / 97.0 };
            let values: Vec<f32> = (0..64).map(value).collect();
            for bits in [2, 3, 4, 6] {
                let least = fit(&values, None, bits, dtype);
                let zero = (-least.bias / least.scale).round_ties_even() * least.scale + least.bias;
                assert!(zero.abs() < 0.08 * least.scale.abs(), "{dtype}, {bits} bits: {zero} of {}", least.scale);
            }
        }
    }
}
