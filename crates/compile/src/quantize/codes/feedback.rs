//! Codes with error feedback: each column takes up the errors of the columns before it.
//!
//! A layer's squared error over inputs `X` is `‖(w − q) R‖²` with `Xᵀ X = R Rᵀ` and `R` upper
//! triangular. Column `j` of `(w − q) R` holds the errors of columns up to `j`, so `q_j` is the
//! code nearest to `w_j + Σ_{i<j} (w_i − q_i) R_ij / R_jj`. This is GPTQ (arXiv 2210.17323) without
//! an inverse. Columns with large inputs come first, as in its option `act_order`.

use super::Group;

/// Rows of weights that are computed together.
pub(super) const ROWS: usize = 16;

/// Share of the mean square that is added to each column's square, so that rare inputs do not
/// decide.
const DAMPING: f32 = 0.1;

/// Share of a column's own square that is added to it, because products of few examples are too
/// large.
const SHRINKAGE: f32 = 0.2;

/// Replaces the products `Xᵀ X` `[block, block]` by factors, and returns the order of the columns
/// [block]. Columns with large inputs come first, because later columns take up their errors. In
/// this order, row `j` holds `R_ij / R_jj` at `i < j`, and the products, with what is added to
/// squares, at `i ≥ j`. All elements are zero if the products are not numbers.
pub(crate) fn factor(products: &mut [f32], block: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..block as u32).collect();
    let square = |column: u32| products[column as usize * (block + 1)];
    order.sort_by(|&a, &b| square(b).total_cmp(&square(a)));
    let rows = order.iter().map(|&i| &products[i as usize * block..][..block]);
    let mut ordered: Vec<f32> = rows.flat_map(|row| order.iter().map(|&j| row[j as usize])).collect();
    ordered.iter_mut().step_by(block + 1).for_each(|square| *square *= 1.0 + SHRINKAGE);
    let mean = ordered.iter().step_by(block + 1).sum::<f32>() / block as f32;
    let mut damping = DAMPING * mean;
    for _ in 0..4 {
        if let Some(lower) = lower_of_reversed(&ordered, block, damping) {
            // Element (i, j) of R is element (n − 1 − i, n − 1 − j) of the factor of the reversed
            // matrix.
            for j in 0..block {
                let column = block - 1 - j;
                let pivot = lower[column * block + column];
                for i in 0..block {
                    let below = lower[(block - 1 - i) * block + column];
                    products[j * block + i] = if i < j { below / pivot } else { ordered[j * block + i] };
                }
                products[j * block + j] += damping;
            }
            return order;
        }
        damping *= 10.0;
    }
    products.fill(0.0);
    order
}

/// The Cholesky factor of the damped matrix with rows and columns in reverse order. `None` if the
/// matrix is not positive definite.
fn lower_of_reversed(products: &[f32], n: usize, damping: f32) -> Option<Vec<f32>> {
    let mut lower = vec![0.0f32; n * n];
    for i in 0..n {
        let (done, row) = lower.split_at_mut(i * n);
        let source = &products[(n - 1 - i) * n..][..n];
        for j in 0..=i {
            let value = source[n - 1 - j] - if j < i { dot(&row[..j], &done[j * n..][..j]) } else { dot(&row[..j], &row[..j]) };
            row[j] = match i == j {
                false => value / done[j * n + j],
                true if value + damping > 0.0 => (value + damping).sqrt(),
                true => return None,
            };
        }
    }
    Some(lower)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (a, rest_a) = a.as_chunks::<LANES>();
    let (b, rest_b) = b.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Factors of the products of inputs.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    /// [Factors](factor) of each block, `[K / block, block, block]`.
    pub(super) factors: &'a [f32],
    /// The order of each block's columns, [K].
    pub(super) order: &'a [u32],
    /// Columns of a block.
    pub(super) block: usize,
}

/// Computes the codes of up to [`ROWS`] rows of `columns` values. `groups` are the parameters of
/// each row's groups of `group` columns. Codes have up to `top`.
pub(super) fn codes(
    values: &[f32],
    groups: &[Group],
    Factors { factors, order, block }: Factors<'_>,
    (columns, group, top): (usize, usize, f32),
    codes: &mut [u8],
) {
    let rows = values.len() / columns.max(1);
    let mut errors = vec![[0.0f32; ROWS]; block];
    for (number, (factors, order)) in factors.chunks_exact(block * block).zip(order.chunks_exact(block)).enumerate() {
        for (j, (row, &column)) in factors.chunks_exact(block).zip(order).enumerate() {
            let sums = weighted_sums(&row[..j], &errors[..j]);
            let column = number * block + column as usize;
            for r in 0..rows {
                let Group { scale, bias, .. } = groups[r * (columns / group) + column / group];
                let value = values[r * columns + column];
                let steps = if scale == 0.0 { 0.0 } else { (value + sums[r] - bias) / scale };
                let code = steps.round_ties_even().clamp(0.0, top);
                codes[r * columns + column] = code as u8;
                let error = value - (code * scale + bias);
                errors[j][r] = if error.is_finite() { error } else { 0.0 };
            }
        }
    }
}

/// The sums of each row's errors, multiplied by a factor for each column.
pub(super) fn weighted_sums(factors: &[f32], errors: &[[f32; ROWS]]) -> [f32; ROWS] {
    // Two sums, because each addition waits for the one before it.
    let mut sums = [[0.0f32; ROWS]; 2];
    let (factors, last) = factors.as_chunks::<2>();
    let (errors, last_errors) = errors.as_chunks::<2>();
    for (factors, errors) in factors.iter().zip(errors) {
        for (sums, (factor, errors)) in sums.iter_mut().zip(factors.iter().zip(errors)) {
            sums.iter_mut().zip(errors).for_each(|(sum, error)| *sum += factor * error);
        }
    }
    let [mut total, other] = sums;
    total.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
    for (factor, errors) in last.iter().zip(last_errors) {
        total.iter_mut().zip(errors).for_each(|(sum, error)| *sum += factor * error);
    }
    total
}
