//! Row-major tensors over shared bytes.

use bytes::Bytes;

use crate::{AlignedBytes, DType, Element, Shape, numel};

/// Errors of a tensor or of an access to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes do not fill the shape.
    #[error("{dtype} tensor of shape {shape:?} takes {expected} bytes, found {found}")]
    Length { dtype: DType, shape: Shape, expected: usize, found: usize },
    /// The number of bytes does not fit the address space.
    #[error("shape {0:?} is too large")]
    TooLarge(Shape),
    /// The elements have another type.
    #[error("expected {expected} elements, found {found}")]
    DType { expected: DType, found: DType },
    /// The bytes do not start at a multiple of the element size.
    #[error("{0} data is not aligned")]
    Misaligned(DType),
    /// No rule converts one type to the other.
    #[error("cannot convert {from} to {to}")]
    Cast { from: DType, to: DType },
    /// A tensor file breaks its format at the byte offset.
    #[error("tensor file, byte {offset}: {what}")]
    TensorList { offset: usize, what: &'static str },
}

/// A row-major tensor. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Bytes,
}

impl Tensor {
    /// A tensor over `data`. The length of `data` must match the shape exactly.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Length`].
    pub fn new(dtype: DType, shape: &[usize], data: Bytes) -> Result<Tensor, Error> {
        let expected = byte_len(dtype, shape)?;
        if data.len() != expected {
            return Err(Error::Length { dtype, shape: Shape::from_slice(shape), expected, found: data.len() });
        }
        Ok(Tensor { dtype, shape: Shape::from_slice(shape), data })
    }

    /// A tensor of zero bytes.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        Tensor::new(dtype, shape, AlignedBytes::zeroed(byte_len(dtype, shape)?).into_bytes())
    }

    /// A copy of `values` in the given shape.
    ///
    /// # Errors
    /// [`Error::Length`] if the counts differ.
    pub fn from_slice<T: Element>(values: &[T], shape: &[usize]) -> Result<Tensor, Error> {
        Tensor::new(T::DTYPE, shape, AlignedBytes::copy_of(bytemuck::cast_slice(values)).into_bytes())
    }

    /// A rank-0 tensor.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        let data = AlignedBytes::copy_of(bytemuck::bytes_of(&value)).into_bytes();
        Tensor { dtype: T::DTYPE, shape: Shape::new(), data }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// The raw little-endian bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The elements, without a copy.
    ///
    /// # Errors
    /// [`Error::DType`] if `T` does not store this type, [`Error::Misaligned`] if a mapped file
    /// placed them oddly (see [`Tensor::aligned`]).
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Error> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType { expected: T::DTYPE, found: self.dtype });
        }
        bytemuck::try_cast_slice(&self.data).map_err(|_| Error::Misaligned(self.dtype))
    }

    /// The same tensor with its bytes at a multiple of the element size: itself where they are,
    /// else a copy.
    #[must_use]
    pub fn aligned(&self) -> Tensor {
        if (self.data.as_ptr() as usize).is_multiple_of(self.dtype.size()) {
            return self.clone();
        }
        Tensor { data: AlignedBytes::copy_of(&self.data).into_bytes(), ..self.clone() }
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// [`Error::Length`] if the element counts differ.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor, Error> {
        Tensor::new(self.dtype, shape, self.data.clone())
    }
}

/// Bytes of a tensor, checked against overflow.
fn byte_len(dtype: DType, shape: &[usize]) -> Result<usize, Error> {
    numel(shape)
        .and_then(|n| n.checked_mul(dtype.size()))
        .filter(|&n| isize::try_from(n).is_ok())
        .ok_or_else(|| Error::TooLarge(Shape::from_slice(shape)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_must_match_shape() {
        let bytes = Bytes::from_static(&[0; 8]);
        assert!(Tensor::new(DType::F32, &[2], bytes.clone()).is_ok());
        assert!(matches!(Tensor::new(DType::F32, &[3], bytes.clone()), Err(Error::Length { expected: 12, found: 8, .. })));
        assert!(matches!(Tensor::new(DType::F32, &[usize::MAX, 3], bytes), Err(Error::TooLarge(_))));
    }

    #[test]
    fn access_checks_the_element_type() {
        let t = Tensor::from_slice(&[1i32, 2, 3], &[3]).unwrap();
        assert_eq!(t.as_slice::<i32>().unwrap(), [1, 2, 3]);
        assert_eq!(t.as_slice::<f32>(), Err(Error::DType { expected: DType::F32, found: DType::I32 }));
    }

    #[test]
    fn odd_addresses_are_copied_only_when_needed() {
        let base = AlignedBytes::zeroed(9).into_bytes();
        let odd = Tensor::new(DType::F32, &[2], base.slice(1..)).unwrap();
        assert_eq!(odd.as_slice::<f32>(), Err(Error::Misaligned(DType::F32)));
        assert_eq!(odd.aligned().as_slice::<f32>().unwrap(), [0.0, 0.0]);
    }
}
