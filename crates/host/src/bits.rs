//! Bits of elements read as another type.

use flambeau_tensor::Tensor;

use crate::{Call, Error, Kernel};

pub(crate) const KERNELS: &[Kernel] = &[Kernel::new("aten::view_copy.dtype", |call| Ok(vec![reinterpreted(call)?]))];

/// The bytes of `self` as elements of the result's type. Elements of another size change the length
/// of the last axis.
fn reinterpreted(call: &Call<'_>) -> Result<Tensor, Error> {
    let x = call.tensor("self")?;
    let dtype = call.results.first().copied().unwrap_or(x.dtype());
    let (from, to) = (x.dtype().size(), dtype.size());
    let mut shape = x.shape().to_vec();
    if from != to {
        let last = shape.last_mut().filter(|n| (**n * from).is_multiple_of(to));
        let Some(last) = last else { return Err(Error::Matrix(x.shape().to_vec())) };
        *last = *last * from / to;
    }
    Ok(Tensor::new(dtype, &shape, x.bytes().clone())?.aligned())
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::DType;

    use super::*;
    use crate::call::{Argument, testing::run};

    #[test]
    fn bits_are_kept_whatever_the_size_of_the_elements() {
        let as_type = |x: &Tensor, dtype: DType| {
            let code = Argument::Int(dtype.code().into());
            run("aten.view_copy.dtype", &[Argument::Tensor(x.clone()), code], &[dtype]).map(|mut found| found.remove(0))
        };
        let x = Tensor::from_slice(&[1.0f32, -2.0], &[1, 2]).unwrap();
        let bits = as_type(&x, DType::I32).unwrap();
        assert_eq!((bits.shape(), bits.as_slice::<i32>().unwrap()), (&[1, 2][..], &[0x3f80_0000, -0x4000_0000][..]));
        let bytes = as_type(&x, DType::U8).unwrap();
        assert_eq!((bytes.shape(), bytes.as_slice::<u8>().unwrap()), (&[1, 8][..], &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0][..]));
        assert_eq!(as_type(&bytes, DType::F32).unwrap().as_slice::<f32>().unwrap(), [1.0, -2.0]);
        assert!(as_type(&Tensor::from_slice(&[1u8, 2, 3], &[3]).unwrap(), DType::F32).is_err(), "three bytes are no float");
    }
}
