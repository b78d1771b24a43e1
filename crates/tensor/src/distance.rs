//! The largest error between two tensors, absolute and in units of the last place.

use crate::{DType, Tensor, bf16, cast, f16};

/// Distance of two tensors with equal type and shape.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distance {
    /// Largest absolute difference. Infinite if exactly one of the two elements is NaN or infinite.
    pub absolute: f64,
    /// Index of the elements with this difference, in row-major order.
    pub index: usize,
    pub actual: f64,
    pub expected: f64,
    /// Largest number of representable values between two elements. For integers, the largest
    /// difference.
    pub ulps: u64,
}

/// Measures how far `actual` is from `expected`. NaN equals NaN. `None` if the types or shapes
/// differ, or if the elements are no real numbers.
pub fn distance(actual: &Tensor, expected: &Tensor) -> Option<Distance> {
    if actual.shape() != expected.shape() || actual.dtype() != expected.dtype() {
        return None;
    }
    if actual.bytes() == expected.bytes() {
        return Some(Distance::default());
    }
    let (wide_a, wide_e) = (cast(actual, DType::F64).ok()?, cast(expected, DType::F64).ok()?);
    let (a, e) = (wide_a.as_slice::<f64>().ok()?, wide_e.as_slice::<f64>().ok()?);
    let mut most = Distance::default();
    for (index, (&a, &e)) in a.iter().zip(e).enumerate() {
        if a == e || (a.is_nan() && e.is_nan()) {
            continue;
        }
        let apart = (a - e).abs();
        let apart = if apart.is_nan() { f64::INFINITY } else { apart };
        if apart > most.absolute {
            most = Distance { absolute: apart, index, actual: a, expected: e, ulps: 0 };
        }
    }
    let order = order_of(actual.dtype());
    let ulps = a.iter().zip(e).map(|(&a, &e)| if a.is_nan() && e.is_nan() { 0 } else { order(a).abs_diff(order(e)) });
    most.ulps = ulps.max().unwrap_or(0);
    Some(most)
}

/// Numbers the values of a type in ascending order. Both zeros have the number 0.
fn order_of(dtype: DType) -> fn(f64) -> i64 {
    fn signed(magnitude: u64, is_negative: bool) -> i64 {
        if is_negative { -(magnitude as i64) } else { magnitude as i64 }
    }
    match dtype {
        DType::F64 => |v| signed(v.abs().to_bits(), v.is_sign_negative()),
        DType::F32 => |v| signed((v.abs() as f32).to_bits().into(), v.is_sign_negative()),
        DType::F16 => |v| signed(f16::from_f64(v.abs()).to_bits().into(), v.is_sign_negative()),
        DType::BF16 => |v| signed(bf16::from_f64(v.abs()).to_bits().into(), v.is_sign_negative()),
        _ => |v| v as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_error_is_found_in_both_units() {
        let t = |values: &[f32]| Tensor::from_slice(values, &[values.len()]).unwrap();
        let next = |v: f32, steps: u32| f32::from_bits(v.to_bits() + steps);
        let found = distance(&t(&[1.0, next(1e6, 2), next(1e-6, 9)]), &t(&[1.0, 1e6, 1e-6])).unwrap();
        assert_eq!((found.index, found.ulps, found.absolute), (1, 9, 0.125));
        let over_zero = distance(&t(&[f32::from_bits(1)]), &t(&[-f32::from_bits(2)])).unwrap();
        assert_eq!(over_zero.ulps, 3);
        assert_eq!(distance(&t(&[f32::NAN, 0.0]), &t(&[f32::NAN, -0.0])).map(|d| (d.absolute, d.ulps)), Some((0.0, 0)));
        assert_eq!(distance(&t(&[f32::NAN]), &t(&[1.0])).map(|d| d.absolute), Some(f64::INFINITY));
        assert_eq!(distance(&t(&[1.0]), &t(&[1.0, 2.0])), None);
    }

    #[test]
    fn types_have_units_of_their_own() {
        let of = |dtype, a: f32, e: f32| {
            let t = |v: f32| cast(&Tensor::scalar(v), dtype).unwrap();
            distance(&t(a), &t(e)).unwrap().ulps
        };
        assert_eq!([of(DType::BF16, 1.0078125, 1.0), of(DType::F16, 1.0078125, 1.0), of(DType::I32, -7.0, 5.0)], [1, 8, 12]);
    }
}
