//! Codes and parameters of rows of weights.

mod feedback;
mod least_error;
mod parts;
mod refine;

use flambeau_ir::QuantMode;
use flambeau_lower::{Fit, Scheme};
use flambeau_tensor::{DType, e4m3, pack_codes};

use self::{feedback::Factors, refine::Rows};
pub(crate) use self::{feedback::factor, parts::Parts};
use crate::InputStatistics;

/// Converts floats of any of the three types to f32.
fn widen(bytes: &[u8], dtype: DType, to: &mut [f32]) {
    let halves = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match dtype {
        DType::BF16 => to.iter_mut().zip(halves).for_each(|(v, b)| *v = f32::from_bits(u32::from(b) << 16)),
        DType::F16 => to.iter_mut().zip(halves).for_each(|(v, b)| *v = half::f16::from_bits(b).to_f32()),
        _ => {
            let words = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            to.iter_mut().zip(words).for_each(|(v, w)| *v = w);
        }
    }
}

/// How much the error of each column counts.
struct Importance<'a> {
    /// Rows of a matrix.
    rows: usize,
    /// Relative mean squares of the inputs, [K] for each matrix or for all. Empty if unknown.
    squares: Vec<f32>,
    columns: usize,
    ones: Vec<f32>,
    /// Factors of the inputs' products.
    factors: Option<Factors<'a>>,
    /// The inputs' products, if codes are refined by them. Empty otherwise.
    products: Vec<f32>,
}

/// Maximum number of weights of a matrix with refined codes. Refinement takes several times as
/// long as feedback.
const MOST_REFINED: usize = 1 << 21;

/// Maximum number of bits of refined codes. Codes with more bits have small errors anyway.
const MOST_REFINED_BITS: u8 = 6;

/// Added to relative mean squares, so that columns that the examples lack count too.
const LEAST_IMPORTANCE: f32 = 1e-3;

impl<'a> Importance<'a> {
    fn new(shape: &[usize], inputs: Option<&'a InputStatistics>, bits: u8) -> Importance<'a> {
        let [.., rows, columns] = *shape else {
            let ones = vec![1.0; shape.iter().product()];
            return Importance { rows: 1, squares: Vec::new(), columns: 0, ones, factors: None, products: Vec::new() };
        };
        let relative = |row: &[f32]| {
            let mean = row.iter().sum::<f32>() / row.len() as f32;
            let scale = if mean > 0.0 && mean.is_finite() { 1.0 / mean } else { 0.0 };
            row.iter().map(|square| square * scale + LEAST_IMPORTANCE).collect::<Vec<_>>()
        };
        let matrices = shape.iter().rev().skip(2).product::<usize>();
        let known = inputs.filter(|inputs| [columns, matrices * columns].contains(&inputs.squares.len()));
        let squares = known.map(|inputs| {
            let rows = inputs.squares.chunks_exact(columns);
            let all = (0..columns).map(|k| rows.clone().map(|row| row[k]).sum()).collect::<Vec<f32>>();
            // An expert that the examples never chose has the inputs of the others.
            rows.flat_map(|row| relative(if row.iter().all(|&square| square == 0.0) { &all } else { row })).collect()
        });
        let squares: Vec<f32> = squares.unwrap_or_default();
        let factors = known.filter(|inputs| inputs.block > 0 && inputs.factors.len() == columns * inputs.block);
        let factors = factors.map(|inputs| Factors { factors: &inputs.factors, order: &inputs.order, block: inputs.block });
        let is_refined = bits <= MOST_REFINED_BITS && shape.iter().product::<usize>() <= MOST_REFINED;
        let products = factors.filter(|_| is_refined).map(refine::products).unwrap_or_default();
        Importance { rows, squares, columns, ones: vec![1.0; columns], factors, products }
    }

    /// The importance of the columns of a row.
    fn of_row(&self, row: usize) -> &[f32] {
        let at = if self.squares.len() == self.columns { 0 } else { row / self.rows.max(1) * self.columns };
        self.squares.get(at..at + self.columns).unwrap_or(&self.ones)
    }

    /// Whether the importance is known.
    fn is_known(&self) -> bool {
        !self.squares.is_empty()
    }

    /// Number of rows that are computed together.
    fn batch_rows(&self) -> usize {
        if self.factors.is_some() { feedback::ROWS } else { 1 }
    }
}

/// Rows of values with what decides their codes.
struct Fitted<'a> {
    /// Values of a few rows.
    values: &'a [f32],
    scheme: Scheme,
    dtype: DType,
    importance: &'a Importance<'a>,
    /// Number of the first row.
    first: usize,
}

impl Fitted<'_> {
    /// Parameters of the groups of all rows.
    fn groups(&self) -> impl Iterator<Item = Group> {
        let group = self.scheme.group_size as usize;
        let columns = self.importance.columns;
        self.values.chunks_exact(columns).enumerate().flat_map(move |(i, row)| {
            let importance = self.importance.of_row(self.first + i).chunks_exact(group);
            row.chunks_exact(group).zip(importance).map(|(values, importance)| {
                if self.importance.is_known() {
                    return least_error::fit(values, Some(importance), self.scheme.bits, self.dtype);
                }
                Group::fit(values, self.scheme, self.dtype)
            })
        })
    }

    /// Writes codes, scales and biases of the rows. `codes` is scratch memory with as many elements
    /// as there are values.
    fn write(&self, codes: &mut [u8], [packed, scales, biases]: [&mut [u8]; 3]) {
        let scheme = self.scheme;
        let mut groups: Vec<Group> = self.groups().collect();
        self.codes(&mut groups, codes);
        pack_codes(codes, usize::from(scheme.bits), packed);
        if scheme.mode == QuantMode::Affine {
            write_floats(groups.iter().map(|g| g.scale), self.dtype, scales);
            write_floats(groups.iter().map(|g| g.bias), self.dtype, biases);
        } else {
            scales.iter_mut().zip(&groups).for_each(|(out, g)| *out = g.scale_code);
        }
    }

    /// Computes codes. Parameters change if the products of the inputs are known.
    fn codes(&self, groups: &mut [Group], codes: &mut [u8]) {
        let (columns, group) = (self.importance.columns, self.scheme.group_size as usize);
        if let Some(factors) = self.importance.factors {
            let top = f32::from(u8::MAX >> (8 - self.scheme.bits));
            feedback::codes(self.values, groups, factors, (columns, group, top), codes);
            let mut rows = Rows { values: self.values, groups, codes, columns, group, top, dtype: self.dtype };
            return rows.refine(&self.importance.products, factors.block);
        }
        for ((group, values), codes) in groups.iter().zip(self.values.chunks_exact(group)).zip(codes.chunks_exact_mut(group)) {
            group.codes(values, self.scheme, codes);
        }
    }
}

/// Writes numbers in a float type.
fn write_floats(numbers: impl Iterator<Item = f32>, dtype: DType, out: &mut [u8]) {
    for (out, number) in out.chunks_exact_mut(dtype.size()).zip(numbers) {
        match dtype {
            DType::BF16 => out.copy_from_slice(&half::bf16::from_f32(number).to_le_bytes()),
            DType::F16 => out.copy_from_slice(&half::f16::from_f32(number).to_le_bytes()),
            _ => out.copy_from_slice(&number.to_le_bytes()),
        }
    }
}

/// Lowest and highest value, ignoring NaN.
fn range(values: &[f32]) -> (f32, f32) {
    const LANES: usize = 16;
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        low.iter_mut().zip(block).for_each(|(l, &v)| *l = if v < *l { v } else { *l });
        high.iter_mut().zip(block).for_each(|(h, &v)| *h = if v > *h { v } else { *h });
    }
    let all = |lanes: [f32; LANES]| lanes.into_iter().chain(rest.iter().copied());
    (all(low).fold(f32::INFINITY, f32::min), all(high).fold(f32::NEG_INFINITY, f32::max))
}

/// Parameters of one group.
#[derive(Clone, Copy)]
struct Group {
    scale: f32,
    bias: f32,
    /// The stored byte of the scale in the float modes.
    scale_code: u8,
}

/// Magnitudes of E2M1 codes 0 to 7; codes 8 to 15 are their negatives.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

impl Group {
    /// The best parameters by the rule of the scheme's mode, rounded as stored.
    fn fit(values: &[f32], scheme: Scheme, dtype: DType) -> Group {
        let peak = || values.iter().fold(0f32, |m, v| m.max(v.abs()));
        match scheme.mode {
            QuantMode::Affine => match scheme.fit {
                Fit::Range => Group::fit_affine(values, scheme.bits, dtype),
                Fit::LeastError => least_error::fit(values, None, scheme.bits, dtype),
            },
            QuantMode::Nvfp4 => {
                let scale_code = encode_e4m3(peak() / 6.0);
                Group { scale: e4m3(scale_code), bias: 0.0, scale_code }
            }
            QuantMode::Mxfp4 => Group::power_of_two(peak(), 2),
            QuantMode::Mxfp8 => Group::power_of_two(peak(), 8),
        }
    }

    /// MLX's affine rule: the scale is the range over the steps, anchored so that zero and the end
    /// of larger magnitude are exact.
    fn fit_affine(values: &[f32], bits: u8, dtype: DType) -> Group {
        let (low, high) = range(values);
        let steps = f32::from(u8::MAX >> (8 - bits));
        let width = ((high - low) / steps).max(1e-7);
        let (edge, scale) = if low.abs() > high.abs() { (low, width) } else { (high, -width) };
        let anchor = (edge / scale).round_ties_even();
        let (scale, bias) = if anchor == 0.0 { (scale, 0.0) } else { (edge / anchor, edge) };
        Group::affine([scale, bias], dtype)
    }

    /// A scale and a bias, rounded as stored.
    fn affine([scale, bias]: [f32; 2], dtype: DType) -> Group {
        Group { scale: round_to(scale, dtype), bias: round_to(bias, dtype), scale_code: 0 }
    }

    /// A scale that is a power of two. It moves the peak into the last binade of the element type,
    /// with exponent `top`.
    fn power_of_two(peak: f32, top: i32) -> Group {
        let exponent = if peak > 0.0 { peak.log2().floor() as i32 - top } else { -127 };
        let exponent = exponent.clamp(-127, 127);
        Group { scale: (exponent as f32).exp2(), bias: 0.0, scale_code: (exponent + 127) as u8 }
    }

    /// The codes of the group's values.
    fn codes(&self, values: &[f32], scheme: Scheme, codes: &mut [u8]) {
        if scheme.mode != QuantMode::Affine || self.scale == 0.0 {
            codes.iter_mut().zip(values).for_each(|(code, &value)| *code = self.code(value, scheme));
            return;
        }
        let (scale, bias, top) = (self.scale, self.bias, f32::from(u8::MAX >> (8 - scheme.bits)));
        for (code, &value) in codes.iter_mut().zip(values) {
            // Clamping to integers before rounding gives the same result as after it. Then adding
            // 1.5·2²³ rounds, ties to even, without an instruction that some processors lack.
            const ROUND: f32 = 12_582_912.0;
            let scaled = ((value - bias) / scale).clamp(0.0, top);
            *code = (scaled + ROUND - ROUND) as u8;
        }
    }

    fn code(&self, value: f32, scheme: Scheme) -> u8 {
        let scaled = if self.scale == 0.0 { 0.0 } else { (value - self.bias) / self.scale };
        match (scheme.mode, scheme.bits) {
            (QuantMode::Affine, bits) => scaled.round_ties_even().clamp(0.0, f32::from(u8::MAX >> (8 - bits))) as u8,
            (_, 4) => encode_e2m1(scaled),
            _ => encode_e4m3(scaled),
        }
    }
}

fn round_to(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => half::bf16::from_f32(value).to_f32(),
        DType::F16 => half::f16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// The nearest code, ties to the even code.
fn encode_e2m1(value: f32) -> u8 {
    let magnitude = value.abs();
    let mut best = 0u8;
    for code in 1..8u8 {
        let (old, new) = ((magnitude - E2M1[usize::from(best)]).abs(), (magnitude - E2M1[usize::from(code)]).abs());
        if new < old || (new == old && code % 2 == 0) {
            best = code;
        }
    }
    if value.is_sign_negative() && best != 0 { best | 8 } else { best }
}

/// The nearest E4M3 code (finite, bias 7), saturating at 448, ties to even.
fn encode_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs().min(448.0);
    // The step is 2^-9 below the smallest normal number, and an eighth of the binade above it.
    let exponent = if magnitude < f32::powi(2.0, -6) { -6 } else { magnitude.log2().floor() as i32 };
    let step = ((exponent - 3) as f32).exp2();
    let steps = (magnitude / step).round_ties_even() as i32;
    // Rounding up may carry into the next binade. Integer addition performs this carry.
    sign | (((exponent + 6) * 8 + steps) as u8)
}

#[cfg(test)]
mod tests {
    use flambeau_lower::QuantPart;
    use flambeau_tensor::Tensor;

    use super::*;
    use crate::SchemeName;

    /// One part of quantized matrices.
    fn part(weight: &Tensor, scheme: Scheme, part: QuantPart, inputs: Option<&InputStatistics>, threads: usize) -> Option<Tensor> {
        Parts::new(weight, scheme, inputs, threads).unwrap().get(part).cloned()
    }

    #[test]
    fn e4m3_codes_round_trip() {
        for code in (0..=0x7e).chain(0x80..=0xfe) {
            let value = e4m3(code);
            assert_eq!(encode_e4m3(value), code, "{value}");
        }
        assert_eq!((encode_e4m3(1e9), encode_e4m3(-1e9)), (0x7e, 0xfe));
    }

    #[test]
    fn e2m1_takes_the_nearest_code() {
        for (value, code) in [(0.2, 0), (0.25, 0), (0.26, 1), (2.5, 4), (5.0, 6), (9.0, 7), (-3.1, 13), (-0.1, 0)] {
            assert_eq!(encode_e2m1(value), code, "{value}");
        }
    }

    fn error(scheme: &str) -> f32 {
        let scheme = Scheme::from_name(scheme, None).unwrap();
        let values: Vec<f32> = (0..128).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let group = scheme.group_size as usize;
        let decode = |g: &Group, v: f32| match (scheme.mode, scheme.bits) {
            (QuantMode::Affine, _) => f32::from(g.code(v, scheme)) * g.scale + g.bias,
            (_, 4) => {
                let code = g.code(v, scheme);
                let magnitude = E2M1[usize::from(code & 7)] * g.scale;
                if code & 8 != 0 { -magnitude } else { magnitude }
            }
            _ => e4m3(g.code(v, scheme)) * g.scale,
        };
        let worst = |c: &[f32]| {
            let g = Group::fit(c, scheme, DType::F32);
            c.iter().map(|&v| (decode(&g, v) - v).abs()).fold(0f32, f32::max)
        };
        values.chunks(group).map(worst).fold(0f32, f32::max)
    }

    #[test]
    fn more_bits_are_closer() {
        // Anchoring one end may cost the other end a whole step of the range, 2 / (2^bits - 1).
        for (scheme, bound) in [("2w", 0.67), ("3w", 0.29), ("4w", 0.134), ("5w", 0.065), ("6w", 0.032), ("8w", 0.008)] {
            assert!(error(scheme) <= bound, "{scheme}: {}", error(scheme));
        }
        for (scheme, bound) in [("nvfp4", 0.2), ("mxfp4", 0.3), ("mxfp8", 0.126)] {
            assert!(error(scheme) <= bound, "{scheme}: {}", error(scheme));
        }
    }

    #[test]
    fn least_errors_are_never_above_those_by_range() {
        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let normal: Vec<f32> = (0..64 * 64).map(|_| (0..12).map(|_| noise()).sum()).collect();
        // The fit without importance keeps zero, which the fit with importance need not.
        for (name, dtype, keeping_zero, free) in [
            ("2w", DType::F32, 0.92, 0.85),
            ("3w", DType::BF16, 0.95, 0.89),
            ("4w", DType::BF16, 0.97, 0.94),
            ("8w", DType::F32, 1.0, 1.0),
        ] {
            let range = Scheme::from_name(name, None).unwrap();
            let all = |values: &[f32]| {
                let fitted = [range, Scheme { fit: Fit::LeastError, ..range }].map(|scheme| Group::fit(values, scheme, dtype));
                let groups = [fitted[0], fitted[1], least_error::fit(values, Some(&[1.0; 64]), range.bits, dtype)];
                groups.map(|group| {
                    let error = |&v: &f32| (f32::from(group.code(v, range)) * group.scale + group.bias - v).powi(2);
                    values.iter().map(error).sum::<f32>()
                })
            };
            let errors: Vec<[f32; 3]> = normal.chunks(64).map(all).collect();
            assert!(errors.iter().all(|[range, least, _]| *least <= range * 1.001), "{name}");
            let [range, least, free_least] = [0, 1, 2].map(|i| errors.iter().map(|e| e[i]).sum::<f32>().sqrt());
            assert!(least <= keeping_zero * range, "{name}: {least} {range}");
            assert!(free_least <= free * range, "{name}: {free_least} {range}");
            for odd in [[0.0; 64], [3.5; 64], [f32::NAN; 64], [f32::INFINITY; 64]] {
                assert_eq!(all(&odd)[0].to_bits(), all(&odd)[1].to_bits(), "{odd:?}");
            }
        }
    }

    /// Products [64, 64] of 256 inputs whose columns depend on each other, and the inputs
    /// [256, 64].
    fn dependent_inputs(noise: &mut impl FnMut() -> f32) -> (Vec<f32>, Vec<f32>) {
        let inputs: Vec<f32> = (0..256)
            .flat_map(|_| {
                let common = noise();
                (0..64).map(|k| (common + 0.5 * noise()) * if k % 16 == 3 { 8.0 } else { 1.0 }).collect::<Vec<_>>()
            })
            .collect();
        let product = |i: usize, j: usize| inputs.chunks_exact(64).map(|x| x[i] * x[j]).sum::<f32>();
        ((0..64 * 64).map(|at| product(at / 64, at % 64)).collect(), inputs)
    }

    #[test]
    fn statistics_make_the_errors_of_products_smaller() {
        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let (mut products, inputs) = dependent_inputs(&mut noise);
        let squares = products.iter().step_by(65).copied().collect::<Vec<f32>>();
        let order = factor(&mut products, 64);
        let values: Vec<f32> = (0..40 * 64).map(|_| noise()).collect();
        let weight = Tensor::from_slice(&values, &[40, 64]).unwrap();
        let scheme = Scheme::from_name("4w", Some(32)).unwrap();
        let error = |statistics: Option<&InputStatistics>| {
            let parts = [QuantPart::Codes, QuantPart::Scales, QuantPart::Biases];
            let [codes, scales, biases] = parts.map(|which| part(&weight, scheme, which, statistics, 2).unwrap());
            let (scales, biases) = (scales.as_slice::<f32>().unwrap(), biases.as_slice::<f32>().unwrap());
            let code = |at: usize| (codes.bytes()[at / 2] >> (4 * (at % 2))) & 15;
            let lost = |at: usize| f32::from(code(at)) * scales[at / 32] + biases[at / 32] - values[at];
            let product = |row: usize, x: &[f32]| x.iter().enumerate().map(|(k, x)| lost(row * 64 + k) * x).sum::<f32>();
            (0..40).flat_map(|row| inputs.chunks_exact(64).map(move |x| product(row, x).powi(2))).sum::<f32>()
        };
        let weighted = InputStatistics::from_squares(squares.clone());
        let errors = [None, Some(&weighted), Some(&InputStatistics { squares, factors: products, order, block: 64 })].map(error);
        assert!(errors[1] < 0.9 * errors[0] && errors[2] < 0.6 * errors[1], "{errors:?}");
    }

    #[test]
    fn an_expert_without_inputs_has_those_of_the_others() {
        let values: Vec<f32> = (0..2 * 3 * 64).map(|i| ((i % 192 * 7919 % 1009) as f32 - 504.0) / 97.0).collect();
        let experts = Tensor::from_slice(&values, &[2, 3, 64]).unwrap();
        let squares: Vec<f32> = (0..64).map(|k| if k % 5 == 0 { 50.0 } else { 0.5 }).chain([0.0; 64]).collect();
        let scheme = Scheme::from_name("2w", None).unwrap();
        let scales = part(&experts, scheme, QuantPart::Scales, Some(&InputStatistics::from_squares(squares)), 1).unwrap();
        let (first, second) = scales.bytes().split_at(scales.bytes().len() / 2);
        assert_eq!(first, second);
        assert_ne!(part(&experts, scheme, QuantPart::Scales, None, 1).unwrap().bytes(), scales.bytes());
    }

    #[test]
    fn products_that_are_no_numbers_feed_no_errors_back() {
        let mut products = vec![f32::NAN; 64 * 64];
        let mut order = factor(&mut products, 64);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..64), "every column once");
        assert!(products.iter().all(|&factor| factor == 0.0));
    }

    #[test]
    fn matrices_of_experts_are_packed_row_by_row() {
        let values: Vec<f32> = (0..6 * 64).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 97.0).collect();
        let [flat, experts] = [&[6, 64][..], &[2, 3, 64]].map(|shape| Tensor::from_slice(&values, shape).unwrap());
        let scheme = Scheme::from_name("4w", Some(32)).unwrap();
        for (which, columns) in [(QuantPart::Codes, 8), (QuantPart::Scales, 2), (QuantPart::Biases, 2)] {
            let [flat, experts] = [&flat, &experts].map(|weight| part(weight, scheme, which, None, 2).unwrap());
            assert_eq!((experts.shape(), experts.bytes()), (&[2, 3, columns][..], flat.bytes()));
        }
    }

    #[test]
    fn parts_are_the_same_for_any_number_of_threads() {
        let values: Vec<f32> = (0..7 * 128).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 97.0).collect();
        let values = Tensor::from_slice(&values, &[7, 128]).unwrap();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let weight = flambeau_tensor::cast(&values, dtype).unwrap();
            for name in ["2w", "3w", "4w", "6w", "8w", "nvfp4", "mxfp8"] {
                let scheme = Scheme::from_name(name, None).unwrap();
                for which in [QuantPart::Codes, QuantPart::Scales, QuantPart::Biases] {
                    let [one, many] = [1, 3].map(|threads| part(&weight, scheme, which, None, threads));
                    let contents = |part: &Option<Tensor>| part.as_ref().map(|t| (t.shape().to_vec(), t.bytes().to_vec()));
                    assert_eq!(contents(&one), contents(&many), "{name}, {dtype}");
                }
            }
        }
    }

    #[test]
    fn whole_groups_get_the_codes_of_their_values() {
        let values: Vec<f32> = (0..64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).chain([f32::NAN, 1e9]).collect();
        for name in ["2w", "4w", "8w", "mxfp4"] {
            let scheme = Scheme::from_name(name, None).unwrap();
            let group = Group::fit(&values[..32], scheme, DType::F32);
            let mut codes = vec![0; values.len()];
            group.codes(&values, scheme, &mut codes);
            let each: Vec<u8> = values.iter().map(|&v| group.code(v, scheme)).collect();
            assert_eq!(codes, each, "{name}");
        }
    }
}
