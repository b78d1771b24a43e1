//! Improves codes and parameters after error feedback.
//!
//! A row's squared error over all inputs is `Σ_ij e_i A_ij e_j`, with the errors `e` of its
//! columns and the products `A` of the inputs. Feedback chooses each code before the codes of
//! later columns are known, and it keeps the parameters. Here a group of columns is chosen again
//! while the errors of all others stay. Each code is the best one for the codes around it: the
//! error is least at `e_j = −Σ_{i≠j} A_ij e_i / A_jj`. Scale and bias are the best ones for the
//! codes. Neither step makes a row's error larger.

use flambeau_tensor::DType;

use super::{
    Group,
    feedback::{Factors, ROWS, weighted_sums},
};

/// Number of times that all groups are chosen again.
const PASSES: usize = 2;

/// Added to the squares of a scale's and a bias's effect, relative to them, because all codes of a
/// group may be equal.
const RIDGE: f32 = 1e-4;

/// One value for each row.
type Lanes = [f32; ROWS];

/// The products behind factors, in the order of the columns: `[K / block, block, block]`.
pub(super) fn products(Factors { factors, order, block }: Factors<'_>) -> Vec<f32> {
    let mut products = vec![0.0; factors.len()];
    let blocks = factors.chunks_exact(block * block).zip(order.chunks_exact(block));
    for (products, (factors, order)) in products.chunks_exact_mut(block * block).zip(blocks) {
        for (j, &column) in order.iter().enumerate() {
            for (&other, product) in order[j..].iter().zip(&factors[j * block + j..]) {
                products[column as usize * block + other as usize] = *product;
                products[other as usize * block + column as usize] = *product;
            }
        }
    }
    products
}

/// Up to [`ROWS`] rows of weights, with their parameters and codes.
pub(super) struct Rows<'a> {
    pub(super) values: &'a [f32],
    /// Parameters of each row's groups.
    pub(super) groups: &'a mut [Group],
    pub(super) codes: &'a mut [u8],
    pub(super) columns: usize,
    /// Columns of a group.
    pub(super) group: usize,
    /// The largest code.
    pub(super) top: f32,
    pub(super) dtype: DType,
}

/// A group of columns in its block.
struct Part<'a> {
    /// Products of the group's columns with all columns of the block, `[group, block]`.
    products: &'a [f32],
    /// The group's first column in the block.
    first: usize,
    /// The block's first column.
    block_at: usize,
    /// `Σ A_ij e_i` over columns of the block outside the group, at each of its columns.
    outside: Vec<Lanes>,
}

impl Part<'_> {
    /// Products of a column with the columns of the group.
    fn inside(&self, column: usize) -> &[f32] {
        let (group, block) = (self.outside.len(), self.products.len() / self.outside.len());
        &self.products[column * block + self.first..][..group]
    }

    /// `Σ A_ij e_i` over the whole block, at a column of the group with `errors`.
    fn slope(&self, column: usize, errors: &[Lanes]) -> Lanes {
        let inside = weighted_sums(self.inside(column), errors);
        std::array::from_fn(|r| self.outside[column][r] + inside[r])
    }
}

impl Rows<'_> {
    /// Improves codes and parameters by the [products](products) of each block of columns. Nothing
    /// changes if a group crosses two blocks.
    pub(super) fn refine(&mut self, products: &[f32], block: usize) {
        let group = self.group;
        if !block.is_multiple_of(group) {
            return;
        }
        let mut errors = vec![[0.0; ROWS]; block];
        for (number, products) in products.chunks_exact(block * block).enumerate() {
            // Products that are no numbers are zero.
            if products[0] <= 0.0 {
                continue;
            }
            let block_at = number * block;
            self.set_errors(block_at, &mut errors);
            for first in (0..PASSES).flat_map(|_| (0..block).step_by(group)) {
                let products = &products[first * block..][..group * block];
                let end = first + group;
                let outside = products.chunks_exact(block).map(|row| {
                    let [before, after] =
                        [weighted_sums(&row[..first], &errors[..first]), weighted_sums(&row[end..], &errors[end..])];
                    std::array::from_fn(|r| before[r] + after[r])
                });
                let part = Part { products, first, block_at, outside: outside.collect() };
                self.choose_codes(&part, &mut errors[first..end]);
                self.fit(&part, &mut errors[first..end]);
                self.choose_codes(&part, &mut errors[first..end]);
            }
        }
    }

    /// Number of rows.
    fn count(&self) -> usize {
        self.values.len() / self.columns.max(1)
    }

    /// The number of a row's group with a column.
    fn group_at(&self, row: usize, column: usize) -> usize {
        row * (self.columns / self.group) + column / self.group
    }

    /// The errors of columns from `at` on, 0 where a value is no number.
    fn set_errors(&self, at: usize, errors: &mut [Lanes]) {
        for (column, errors) in (at..).zip(errors) {
            (0..self.count()).for_each(|r| errors[r] = self.error(r, column));
        }
    }

    fn error(&self, row: usize, column: usize) -> f32 {
        let Group { scale, bias, .. } = self.groups[self.group_at(row, column)];
        let at = row * self.columns + column;
        let error = self.values[at] - (f32::from(self.codes[at]) * scale + bias);
        if error.is_finite() { error } else { 0.0 }
    }

    /// Chooses the code of each column of a group again.
    fn choose_codes(&mut self, part: &Part<'_>, errors: &mut [Lanes]) {
        for j in 0..self.group {
            let (slope, square) = (part.slope(j, errors), part.inside(j)[j]);
            let column = part.block_at + part.first + j;
            for r in 0..self.count() {
                let Group { scale, bias, .. } = self.groups[self.group_at(r, column)];
                let at = r * self.columns + column;
                let value = self.values[at] - errors[j][r] + slope[r] / square;
                let steps = if scale == 0.0 { 0.0 } else { (value - bias) / scale };
                self.codes[at] = steps.round_ties_even().clamp(0.0, self.top) as u8;
                errors[j][r] = self.error(r, column);
            }
        }
    }

    /// Fits scale and bias of a group to its codes.
    fn fit(&mut self, part: &Part<'_>, errors: &mut [Lanes]) {
        // Codes are counted from the middle, so that scale and bias depend less on each other.
        let (middle, at) = (self.top / 2.0, part.block_at + part.first);
        let count = self.count();
        let code = |column: usize| {
            let mut codes = [0.0; ROWS];
            (0..count).for_each(|r| codes[r] = f32::from(self.codes[r * self.columns + column]) - middle);
            codes
        };
        let codes: Vec<Lanes> = (at..at + self.group).map(code).collect();
        let mut sums = vec![Effects::default(); count];
        for (j, code) in codes.iter().enumerate() {
            let (slope, products) = (part.slope(j, errors), part.inside(j));
            let (with_codes, plain) = (weighted_sums(products, &codes), products.iter().sum::<f32>());
            for (r, sums) in sums.iter_mut().enumerate() {
                sums.scale += code[r] * with_codes[r];
                sums.both += with_codes[r];
                sums.bias += plain;
                sums.slopes[0] += code[r] * slope[r];
                sums.slopes[1] += slope[r];
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let at = self.group_at(r, at);
            let old = self.groups[at];
            let [scale, level] = sums.best();
            let scale = old.scale + scale;
            let new = Group::affine([scale, old.bias + old.scale * middle + level - scale * middle], self.dtype);
            let change = [new.scale - old.scale, new.bias - old.bias + (new.scale - old.scale) * middle];
            if sums.gain(change) > 0.0 {
                self.groups[at] = new;
            }
        }
        self.set_errors(at, errors);
    }
}

/// How the error of a row depends on the scale of a group, and on its level: the value of the code
/// in the middle.
#[derive(Clone, Copy, Default)]
struct Effects {
    scale: f32,
    both: f32,
    bias: f32,
    slopes: [f32; 2],
}

impl Effects {
    /// The changes of scale and level with the least error.
    fn best(&self) -> [f32; 2] {
        let (scale, level) = (self.scale * (1.0 + RIDGE), self.bias * (1.0 + RIDGE));
        let determinant = scale * level - self.both * self.both;
        let [a, b] = self.slopes;
        [(a * level - b * self.both) / determinant, (b * scale - a * self.both) / determinant]
    }

    /// By how much changes of scale and level make the error smaller. NaN if they are no numbers.
    fn gain(&self, [scale, level]: [f32; 2]) -> f32 {
        let [a, b] = self.slopes;
        2.0 * (a * scale + b * level) - (self.scale * scale * scale + 2.0 * self.both * scale * level + self.bias * level * level)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{feedback, least_error},
        *,
    };

    const COLUMNS: usize = 128;

    /// Numbers from −0.5 to 0.5.
    fn noise(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    /// Products of inputs whose columns depend on each other, in blocks of `block` columns.
    fn inputs(block: usize) -> Vec<f32> {
        let (own, common) = (noise(1, 512 * COLUMNS), noise(2, 512));
        let input = |t: usize, k: usize| (common[t] + own[t * COLUMNS + k]) * if k % 16 == 3 { 4.0 } else { 1.0 };
        let product = |i: usize, j: usize| (0..512).map(|t| input(t, i) * input(t, j)).sum::<f32>();
        let of_block = |at: usize| (0..block * block).map(move |n| (at + n / block, at + n % block));
        (0..COLUMNS).step_by(block).flat_map(of_block).map(|(i, j)| product(i, j)).collect()
    }

    /// The squared errors of rows before and after codes are refined, by the products.
    fn errors(values: &[f32], block: usize, dtype: DType) -> Vec<[f32; 2]> {
        let (group, top) = (32, 7.0);
        let mut factors = inputs(block);
        let order: Vec<u32> = factors.chunks_exact_mut(block * block).flat_map(|part| feedback::factor(part, block)).collect();
        let factors = Factors { factors: &factors, order: &order, block };
        let products = products(factors);
        let mut groups: Vec<Group> =
            values.chunks_exact(group).map(|values| least_error::fit(values, Some(&[1.0; 32]), 3, dtype)).collect();
        let mut codes = vec![0; values.len()];
        feedback::codes(values, &groups, factors, (COLUMNS, group, top), &mut codes);
        let errors = |groups: &[Group], codes: &[u8]| {
            let lost = |at: usize| values[at] - (f32::from(codes[at]) * groups[at / group].scale + groups[at / group].bias);
            let of_row = |row: usize| {
                let pairs = products.iter().enumerate().map(|(n, product)| {
                    let (at, i, j) = (row * COLUMNS + n / (block * block) * block, n / block % block, n % block);
                    lost(at + i) * product * lost(at + j)
                });
                pairs.sum::<f32>()
            };
            (0..values.len() / COLUMNS).map(of_row).collect::<Vec<f32>>()
        };
        let before = errors(&groups, &codes);
        Rows { values, groups: &mut groups, codes: &mut codes, columns: COLUMNS, group, top, dtype }.refine(&products, block);
        before.into_iter().zip(errors(&groups, &codes)).map(|(before, after)| [before, after]).collect()
    }

    #[test]
    fn no_row_becomes_worse_and_all_together_gain() {
        for (block, dtype) in [(128, DType::F32), (64, DType::BF16), (32, DType::F16)] {
            let rows = errors(&noise(3, 11 * COLUMNS), block, dtype);
            assert!(rows.iter().all(|[before, after]| *after <= before * 1.0001), "{rows:?}");
            let [before, after] = [0, 1].map(|at| rows.iter().map(|row| row[at]).sum::<f32>());
            assert!(after < 0.92 * before, "blocks of {block}: {before} {after}");
        }
    }

    #[test]
    fn rows_of_one_value_and_values_that_are_no_numbers_stay_apart() {
        let mut values = noise(4, 3 * COLUMNS);
        let expected = errors(&values, 128, DType::F32);
        values[..COLUMNS].fill(0.25);
        values[2 * COLUMNS + 5] = f32::NAN;
        let found = errors(&values, 128, DType::F32);
        assert!(found[0][1] < 1e-4 && found[1] == expected[1], "{found:?} {expected:?}");
    }
}
