//! Fits scale and bias of an affine group by least squared error, instead of by the range of its
//! values.

use flambeau_tensor::DType;

use super::{Group, range};

/// Initial shares of the range that the codes cover. A smaller share clips both ends and makes all
/// steps finer.
const SHARES: [f32; 2] = [0.96, 0.9];

/// Number of refits of the line through codes and values.
const REFITS: usize = 2;

/// Number of values processed together.
const LANES: usize = 16;

/// Returns the candidate parameters with the least error, rounded as stored. Each squared error is
/// multiplied by the importance of its value. The parameters by range are one candidate.
pub(super) fn fit(values: &[f32], importance: &[f32], bits: u8, dtype: DType) -> Group {
    let top = f32::from(u8::MAX >> (8 - bits));
    let mut best = Group::fit_affine(values, bits, dtype);
    let (low, high) = range(values);
    if !(high - low).is_finite() || low == high || !values.len().is_multiple_of(LANES) {
        return best;
    }
    let total: f32 = values.iter().zip(importance).map(|(value, weight)| value * weight).sum();
    let weight: f32 = importance.iter().sum();
    let mut least = Sums::of(values, importance, &best, top).error();
    for share in SHARES {
        let scale = (high - low) * share / top;
        let mut group = Group::affine([scale, (low + high - scale * top) / 2.0], dtype);
        for refit in 0..=REFITS {
            let sums = Sums::of(values, importance, &group, top);
            if sums.error() < least {
                (best, least) = (group, sums.error());
            }
            match sums.line(weight, total).filter(|_| refit < REFITS) {
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

    /// The weighted squared error.
    fn error(&self) -> f32 {
        self.errors.iter().sum()
    }

    /// Scale and bias of the least-squares line through values of total importance `count` and
    /// weighted sum `total`. `None` if all values have the same code.
    fn line(&self, count: f32, total: f32) -> Option<[f32; 2]> {
        let [codes, squares, products] = [self.codes, self.squares, self.products].map(|lanes| lanes.iter().sum::<f32>());
        let spread = count * squares - codes * codes;
        let scale = (count * products - codes * total) / spread;
        (spread > 0.0).then(|| [scale, (total - scale * codes) / count])
    }
}
