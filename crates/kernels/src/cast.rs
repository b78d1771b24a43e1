//! Element type conversion with MLX's rules.

use crate::{Error, Float, Pool, View, ViewMut, elementwise};
pub use crate::{element_cast::CastTo, elementwise::erased::cast};

/// [`cast`] between float types, whole vectors at a time.
///
/// # Errors
/// [`Error::Broadcast`] if `x` does not broadcast to `out`.
pub fn cast_float<S: Float, D: Float>(pool: &Pool, x: &View<S>, out: &mut ViewMut<D>) -> Result<(), Error> {
    elementwise::map_float(pool, x, out, |x| x)
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::{Bool, Element};
    use half::{bf16, f16};

    use super::*;
    use crate::elementwise::erased::{AnyView, AnyViewMut};

    fn check<S: Element, D: Element + PartialEq>(from: &[S], to: &[D])
    where
        for<'a> AnyView<'a>: From<View<'a, S>>,
        for<'a> AnyViewMut<'a>: From<ViewMut<'a, D>>,
    {
        let mut out = to.to_vec();
        out.reverse();
        let n = from.len();
        let x = View::contiguous(from, &[n]).unwrap();
        cast(&Pool::new(1), &x.into(), &mut ViewMut::contiguous(&mut out, &[n]).unwrap().into()).unwrap();
        assert_eq!(out, to);
    }

    #[test]
    fn conversions_follow_mlx() {
        check(&[-1.5f32, f32::NAN, 300.7, -1.0], &[255u8, 0, 44, 255]);
        check(&[-1.5f32, 3e9, 2.9], &[-1i64, 3_000_000_000, 2]);
        check(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 70000.9, 3e9], &[0i16, 0, 0, 4464, 0]);
        check(&[f32::NAN, f32::INFINITY, -3e9, -2147483648.0], &[i32::MIN; 4]);
        check(&[f16::INFINITY, f16::NAN], &[i64::MIN; 2]);
        check(&[f32::NAN, -0.0, 1e-40], &[Bool(1), Bool(0), Bool(1)]);
        check(&[300i64, -1], &[44i8, -1]);
        check(&[1.0 + 1.0 / 512.0, 70000.0f32], &[f16::from_f32(1.0 + 1.0 / 512.0), f16::INFINITY]);
        check(&[1.0f32 + 1.0 / 256.0, 1.0 + 3.0 / 256.0], &[bf16::ONE, bf16::from_f32(1.015625)]);
        check(&[Bool(7)], &[1.0f32]);
        check(&[u32::MAX], &[-1i32]);
        check(&[bf16::from_f32(-2.5)], &[-2i32]);
    }
}
