//! Comparison of tensors within a tolerance, as `torch.allclose` does it.

use crate::{DType, Tensor, cast};

/// `|actual - expected| <= absolute + relative * |expected|`, element by element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub relative: f64,
    pub absolute: f64,
}

/// Difference of two tensors.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    #[error("shape {actual:?} instead of {expected:?}")]
    Shape { actual: Vec<usize>, expected: Vec<usize> },
    #[error("type {actual} instead of {expected}")]
    DType { actual: DType, expected: DType },
    #[error("{count} of {of} elements differ, most at index {index}: {actual} instead of {expected}")]
    Values { count: usize, of: usize, index: usize, actual: f64, expected: f64 },
}

/// Compares by value; NaN equals NaN, infinities equal themselves.
///
/// # Errors
/// The first kind of difference found, in the order of [`Mismatch`]'s variants.
pub fn compare(actual: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Result<(), Mismatch> {
    if actual.shape() != expected.shape() {
        return Err(Mismatch::Shape { actual: actual.shape().to_vec(), expected: expected.shape().to_vec() });
    }
    let types = Mismatch::DType { actual: actual.dtype(), expected: expected.dtype() };
    if actual.dtype() != expected.dtype() {
        return Err(types);
    }
    if actual.bytes() == expected.bytes() {
        return Ok(());
    }
    let (Ok(a), Ok(e)) = (cast(actual, DType::F64), cast(expected, DType::F64)) else { return Err(types) };
    let (Ok(a), Ok(e)) = (a.as_slice::<f64>(), e.as_slice::<f64>()) else { return Err(types) };
    let (mut count, mut worst, mut excess) = (0, 0, f64::NEG_INFINITY);
    for (i, (&a, &e)) in a.iter().zip(e).enumerate() {
        if a == e || (a.is_nan() && e.is_nan()) {
            continue;
        }
        let over = (a - e).abs() - (tolerance.absolute + tolerance.relative * e.abs());
        let over = if over.is_nan() || e.is_infinite() { f64::INFINITY } else { over };
        if over > 0.0 {
            count += 1;
            if over > excess {
                (excess, worst) = (over, i);
            }
        }
    }
    if count == 0 {
        return Ok(());
    }
    Err(Mismatch::Values { count, of: a.len(), index: worst, actual: a[worst], expected: e[worst] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(a: &[f32], e: &[f32], relative: f64, absolute: f64) -> Result<(), Mismatch> {
        let t = |v: &[f32]| Tensor::from_slice(v, &[v.len()]).unwrap();
        compare(&t(a), &t(e), Tolerance { relative, absolute })
    }

    #[test]
    fn tolerance_adds_both_parts() {
        assert!(check(&[101.0], &[100.0], 0.005, 0.5).is_ok());
        assert!(check(&[101.1], &[100.0], 0.005, 0.5).is_err());
    }

    #[test]
    fn special_values_match_only_themselves() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert!(check(&[nan, inf, -inf], &[nan, inf, -inf], 0.0, 0.0).is_ok());
        assert!(check(&[inf], &[1.0], 1.0, 1e9).is_err());
        assert!(check(&[1.0], &[inf], 1.0, 1e9).is_err());
        assert!(check(&[nan], &[1.0], 1.0, 1e9).is_err());
    }

    #[test]
    fn the_worst_element_is_named() {
        let err = check(&[1.0, 9.0, 3.0], &[1.5, 1.0, 3.0], 0.0, 0.1).unwrap_err();
        assert_eq!(err, Mismatch::Values { count: 2, of: 3, index: 1, actual: 9.0, expected: 1.0 });
    }
}
