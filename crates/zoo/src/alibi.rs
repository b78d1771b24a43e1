//! ALiBi: biases of the scores by distance, with a slope for each head.

/// Slopes of heads: powers of 2^(-most/n) for n heads. Beyond the largest power of two of them,
/// every other slope of twice as many.
pub(crate) fn slopes(heads: usize, most: f64) -> Vec<f64> {
    let powers = |n: usize| (1..=n).map(move |i| (-most * i as f64 / n as f64).exp2());
    let whole = 1 << heads.max(1).ilog2();
    powers(whole).chain(powers(2 * whole).step_by(2)).take(heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_uneven_numbers_of_heads_come_from_two_series() {
        assert_eq!(slopes(8, 8.0), [1, 2, 3, 4, 5, 6, 7, 8].map(|i| 0.5f64.powi(i)));
        let twelve = slopes(12, 8.0);
        assert_eq!(twelve[..8], slopes(8, 8.0));
        assert_eq!(twelve[8..], [-0.5f64, -1.5, -2.5, -3.5].map(f64::exp2));
    }
}
