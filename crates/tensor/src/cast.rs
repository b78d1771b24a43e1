//! Element type conversion of whole tensors, with MLX's rules (floats truncate to integers,
//! anything non-zero is true).

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::{Bool, DType, Element, Error, Tensor, float8, with_dtype};

/// Conversion through the two widest types: exact for every pair of stored types.
trait Convert: Element {
    fn to_i64(self) -> i64;
    fn to_f64(self) -> f64;
    fn from_i64(v: i64) -> Self;
    fn from_f64(v: f64) -> Self;
}

macro_rules! convert_int {
    ($($t:ty),*) => { $(impl Convert for $t {
        fn to_i64(self) -> i64 { self as i64 }
        fn to_f64(self) -> f64 { self as f64 }
        fn from_i64(v: i64) -> Self { v as $t }
        fn from_f64(v: f64) -> Self { v as i64 as $t }
    })* };
}
convert_int!(u8, i8, i16, u16, i32, u32, i64, u64);

macro_rules! convert_float {
    ($($t:ty: $to:expr, $from:expr);*) => { $(impl Convert for $t {
        fn to_i64(self) -> i64 { $to(self) as i64 }
        fn to_f64(self) -> f64 { $to(self) }
        fn from_i64(v: i64) -> Self { $from(v as f64) }
        fn from_f64(v: f64) -> Self { $from(v) }
    })* };
}
// f64 to half rounds through f32 as MLX does: it has no f64.
convert_float!(f32: f64::from, |v| v as f32; f64: |v| v, |v| v;
    f16: |v: f16| v.to_f64(), |v| f16::from_f32(v as f32); bf16: |v: bf16| v.to_f64(), |v| bf16::from_f32(v as f32));

impl Convert for Bool {
    fn to_i64(self) -> i64 {
        i64::from(self.get())
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self.get()))
    }
    fn from_i64(v: i64) -> Self {
        Bool::from(v != 0)
    }
    fn from_f64(v: f64) -> Self {
        Bool::from(v != 0.0)
    }
}

fn convert<S: Convert, D: Convert>(x: &Tensor) -> Result<Tensor, Error> {
    let integral = !S::DTYPE.is_float();
    let out: Vec<D> =
        x.as_slice::<S>()?.iter().map(|&v| if integral { D::from_i64(v.to_i64()) } else { D::from_f64(v.to_f64()) }).collect();
    Tensor::from_slice(&out, x.shape())
}

fn widen<S: Element + Into<f32>>(x: &Tensor) -> Result<Tensor, Error> {
    let out: Vec<f32> = x.as_slice::<S>()?.iter().map(|&v| v.into()).collect();
    Tensor::from_slice(&out, x.shape())
}

/// `x` with its elements converted to `dtype`; the same tensor if it has that type already. Its
/// bytes may start anywhere: the result is aligned.
///
/// Float to integer truncates toward zero and saturates to 64 bits before narrowing wraps; NaN
/// becomes 0. Anything to bool is "not zero" (NaN is true). To half types: round to nearest even.
///
/// # Errors
/// [`Error::Cast`] for complex numbers, and to [`DType::F8E8M0`].
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor, Error> {
    let x = x.aligned();
    if x.dtype() == dtype {
        return Ok(x);
    }
    // The way that logits and weights go: no need to pass through f64.
    match (x.dtype(), dtype) {
        (DType::BF16, DType::F32) => return widen::<bf16>(&x),
        (DType::F16, DType::F32) => {
            let halves = x.as_slice::<f16>()?;
            let mut out = vec![0.0; halves.len()];
            halves.convert_to_f32_slice(&mut out);
            return Tensor::from_slice(&out, x.shape());
        }
        _ => {}
    }
    if let Some(decode) = float8::decoder(x.dtype()) {
        let wide: Vec<f32> = x.bytes().iter().map(|&code| decode(code)).collect();
        return cast(&Tensor::from_slice(&wide, x.shape())?, dtype);
    }
    if let Some(encode) = float8::encoder(dtype) {
        let wide = cast(&x, DType::F32)?;
        let codes: Vec<u8> = wide.as_slice::<f32>()?.iter().map(|&value| encode(value)).collect();
        return Tensor::new(dtype, x.shape(), codes.into());
    }
    let refuse = || Error::Cast { from: x.dtype(), to: dtype };
    with_dtype!(x.dtype(), S in [U8, I8, I16, U16, I32, U32, I64, U64, F16, BF16, F32, F64, Bool] => {
        with_dtype!(dtype, D in [U8, I8, I16, U16, I32, U32, I64, U64, F16, BF16, F32, F64, Bool] => convert::<S, D>(&x), else => Err(refuse()))
    }, else => Err(refuse()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_follow_mlx() {
        let x = Tensor::from_slice(&[-1.5f32, 0.0, f32::NAN, 300.7], &[4]).unwrap();
        assert_eq!(cast(&x, DType::U8).unwrap().as_slice::<u8>().unwrap(), [255, 0, 0, 44]);
        assert_eq!(cast(&x, DType::I64).unwrap().as_slice::<i64>().unwrap(), [-1, 0, 0, 300]);
        let b: Vec<bool> = cast(&x, DType::Bool).unwrap().as_slice::<Bool>().unwrap().iter().map(|b| b.get()).collect();
        assert_eq!(b, [true, false, true, true]);
    }

    #[test]
    fn data_need_not_be_aligned() {
        for from in [DType::BF16, DType::F16, DType::F32, DType::I64] {
            let x = cast(&Tensor::from_slice(&[1.0f32, -2.0, 3.0], &[3]).unwrap(), from).unwrap();
            // One byte in front moves the elements off their boundary.
            let moved = bytes::Bytes::from([&[0], &x.bytes()[..]].concat()).slice(1..);
            let odd = Tensor::new(from, &[3], moved).unwrap();
            for to in [DType::F32, DType::F16, DType::I64] {
                assert_eq!(cast(&odd, to).unwrap().bytes(), cast(&x, to).unwrap().bytes(), "{from} to {to}");
            }
            assert_eq!(cast(&odd, DType::F32).unwrap().as_slice::<f32>().unwrap(), [1.0, -2.0, 3.0]);
        }
    }

    #[test]
    fn eight_bit_floats_go_through_f32() {
        let x = Tensor::from_slice(&[1.0f32, -0.3, 500.0], &[3]).unwrap();
        let codes = cast(&x, DType::F8E4M3).unwrap();
        let back = cast(&codes, DType::BF16).unwrap();
        assert_eq!(&cast(&back, DType::F32).unwrap().as_slice::<f32>().unwrap()[..2], [1.0, -0.3125]);
        assert_eq!(cast(&Tensor::scalar(2i64), DType::F8E5M2).unwrap().bytes()[..], [0x40]);
        assert!(cast(&x, DType::F8E8M0).is_err());
    }

    #[test]
    fn wide_integers_stay_exact() {
        let x = Tensor::from_slice(&[i64::MAX, -1], &[2]).unwrap();
        assert_eq!(cast(&x, DType::I32).unwrap().as_slice::<i32>().unwrap(), [-1, -1]);
        assert_eq!(cast(&x, DType::I64).unwrap().as_slice::<i64>().unwrap(), [i64::MAX, -1]);
    }
}
