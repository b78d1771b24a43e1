//! The contents of a tensor slot at run time: a strided view of shared storage.

use std::sync::Arc;

use flambeau_kernels::{
    Strides, View, ViewMut,
    elementwise::erased::{AnyView, AnyViewMut},
};
use flambeau_tensor::{AlignedBytes, Bytes, DType, Element, Shape, Tensor, row_major_strides};

use crate::error::{OpError, Result};

/// Bytes that arrays share: the arena's own, or a caller's.
#[derive(Debug)]
pub(crate) enum Storage {
    Owned(AlignedBytes),
    Shared(Bytes),
}

impl Storage {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Storage::Owned(b) => b.as_slice(),
            Storage::Shared(b) => b,
        }
    }
}

impl AsRef<[u8]> for Storage {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// A strided view of shared storage. Cloning shares the storage.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// In elements; may be zero or negative.
    pub(crate) strides: Strides,
    /// Offset of the element at index 0, in elements.
    pub(crate) offset: usize,
    pub(crate) data: Arc<Storage>,
}

impl Array {
    /// A row-major array at the start of `data`.
    pub(crate) fn row_major(dtype: DType, shape: &[usize], data: Arc<Storage>) -> Array {
        Array { dtype, shape: Shape::from_slice(shape), strides: row_major_strides(shape), offset: 0, data }
    }

    /// The caller's tensor, without a copy where its bytes are aligned.
    pub(crate) fn from_tensor(tensor: &Tensor) -> Array {
        Array::from_tensor_in(tensor, None)
    }

    /// Like [`from_tensor`](Self::from_tensor), but reuses `handle` if it is unshared.
    pub(crate) fn from_tensor_in(tensor: &Tensor, handle: Option<Arc<Storage>>) -> Array {
        let tensor = tensor.aligned();
        let contents = Storage::Shared(tensor.bytes().clone());
        let data = match handle {
            Some(mut handle) => match Arc::get_mut(&mut handle) {
                Some(held) => {
                    *held = contents;
                    handle
                }
                None => Arc::new(contents),
            },
            None => Arc::new(contents),
        };
        Array::row_major(tensor.dtype(), tensor.shape(), data)
    }

    /// Whether both are the same view of the same memory.
    pub(crate) fn is_same(&self, other: &Array) -> bool {
        let is_same_view = self.dtype == other.dtype && self.shape == other.shape && self.strides == other.strides;
        is_same_view && self.offset == other.offset && std::ptr::eq(self.data.bytes(), other.data.bytes())
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(crate) fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements are in row-major order without gaps.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut next = 1isize;
        self.shape.contains(&0)
            || self.shape.iter().zip(&self.strides).rev().all(|(&d, &s)| {
                let fits = d == 1 || s == next;
                next = next.saturating_mul(d as isize);
                fits
            })
    }

    /// Whether no other array sees the storage, and it may be written.
    pub(crate) fn is_unique(&mut self) -> bool {
        matches!(Arc::get_mut(&mut self.data), Some(Storage::Owned(_)))
    }

    /// Every element of the storage; offsets and strides index into it.
    pub(crate) fn all<T: Element>(&self) -> Result<&[T]> {
        if T::DTYPE != self.dtype {
            return Err(OpError::DType(self.dtype));
        }
        bytemuck::try_cast_slice(self.data.bytes()).map_err(|_| OpError::value(format!("{} storage is not aligned", self.dtype)))
    }

    /// The elements as a kernel's view.
    pub(crate) fn view<T: Element>(&self) -> Result<View<'_, T>> {
        Ok(View::new(self.all()?, &self.shape, &self.strides, self.offset)?)
    }

    /// The elements as a view whose type is a value.
    pub(crate) fn any(&self) -> Result<AnyView<'_>> {
        crate::dtypes::any_dtype!(self.dtype, T => Ok(self.view::<T>()?.into()))
    }

    /// The elements as a writable view whose type is a value; an error if another array sees the
    /// storage.
    pub(crate) fn any_mut(&mut self) -> Result<AnyViewMut<'_>> {
        crate::dtypes::any_dtype!(self.dtype, T => Ok(self.view_mut::<T>()?.into()))
    }

    /// The elements in row-major order; an error for another layout.
    pub(crate) fn slice<T: Element>(&self) -> Result<&[T]> {
        let n = self.numel();
        let start = if n == 0 { 0 } else { self.offset };
        match self.all()?.get(start..start + n) {
            Some(slice) if self.is_contiguous() => Ok(slice),
            _ => Err(OpError::value("an operand is not contiguous")),
        }
    }

    fn elements_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        if T::DTYPE != self.dtype {
            return Err(OpError::DType(self.dtype));
        }
        match Arc::get_mut(&mut self.data) {
            Some(Storage::Owned(b)) => bytemuck::try_cast_slice_mut(b.as_mut_slice())
                .map_err(|_| OpError::value(format!("{} storage is not aligned", T::DTYPE))),
            _ => Err(OpError::value("a result shares its storage")),
        }
    }

    /// The elements as a kernel's writable view; an error if another array sees the storage.
    pub(crate) fn view_mut<T: Element>(&mut self) -> Result<ViewMut<'_, T>> {
        let (shape, strides, offset) = (self.shape.clone(), self.strides.clone(), self.offset);
        Ok(ViewMut::new(self.elements_mut()?, &shape, &strides, offset)?)
    }

    /// The writable elements in row-major order; an error unless the array is row-major and its
    /// storage unshared.
    pub(crate) fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        let n = self.numel();
        let start = if n == 0 { 0 } else { self.offset };
        if !self.is_contiguous() {
            return Err(OpError::value("a result is not contiguous"));
        }
        self.elements_mut()?.get_mut(start..start + n).ok_or_else(|| OpError::value("a result lies outside of its storage"))
    }

    /// Gives a row-major array another shape with as many elements.
    pub(crate) fn set_shape(&mut self, shape: &[usize]) {
        self.strides = row_major_strides(shape);
        self.shape = Shape::from_slice(shape);
    }

    /// The same storage seen through other sizes and strides.
    pub(crate) fn restrided(&self, shape: Shape, strides: Strides, offset: usize) -> Array {
        Array { dtype: self.dtype, shape, strides, offset, data: Arc::clone(&self.data) }
    }

    /// The view broadcast to `shape` by numpy's rules, or `None` where it does not fit.
    pub(crate) fn broadcast(&self, shape: &[usize]) -> Option<Array> {
        let lead = shape.len().checked_sub(self.rank())?;
        let mut strides = Strides::from_elem(0, shape.len());
        for (i, (&d, &s)) in self.shape.iter().zip(&self.strides).enumerate() {
            match (d, shape[lead + i]) {
                (d, n) if d == n => strides[lead + i] = s,
                (1, _) => {}
                _ => return None,
            }
        }
        Some(self.restrided(Shape::from_slice(shape), strides, self.offset))
    }

    /// The view with axis `i` being axis `perm[i]`.
    pub(crate) fn permute(&self, perm: &[usize]) -> Array {
        let shape = perm.iter().map(|&p| self.shape[p]).collect();
        let strides = perm.iter().map(|&p| self.strides[p]).collect();
        self.restrided(shape, strides, self.offset)
    }

    /// `count` entries of `axis` from `start`, `step` apart. The caller has clamped them to the
    /// axis.
    pub(crate) fn narrow(&self, axis: usize, start: usize, count: usize, step: isize) -> Array {
        let mut out = self.clone();
        if count > 0 {
            out.offset = (self.offset as isize + start as isize * self.strides[axis]) as usize;
        }
        out.strides[axis] = self.strides[axis].wrapping_mul(step);
        out.shape[axis] = count;
        out
    }

    /// The view at index 0 of `axis`, without that axis.
    pub(crate) fn drop_axis(&self, axis: usize) -> Array {
        let mut out = self.clone();
        out.shape.remove(axis);
        out.strides.remove(axis);
        out
    }

    /// The view in `shape`, which has as many elements, without a copy; `None` where strides cannot
    /// express it.
    pub(crate) fn reshaped(&self, shape: &[usize]) -> Option<Array> {
        if self.is_contiguous() {
            return Some(self.restrided(Shape::from_slice(shape), row_major_strides(shape), self.offset));
        }
        let old: Vec<(usize, isize)> = self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|a| a.0 != 1).collect();
        let mut strides = Strides::from_elem(1, shape.len());
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            // The smallest groups of old and new axes with equal element counts; the old group must
            // be one evenly strided run.
            let (mut n_old, mut n_new, first, j0) = (old[i].0, 1usize, i, j);
            i += 1;
            while j < shape.len() && (n_new != n_old || shape[j] == 1) {
                n_new = n_new.checked_mul(shape[j])?;
                j += 1;
                while n_old < n_new {
                    n_old = n_old.checked_mul(old.get(i)?.0)?;
                    i += 1;
                }
            }
            if n_old != n_new || old[first..i].windows(2).any(|w| w[0].1 != w[1].1 * w[1].0 as isize) {
                return None;
            }
            let mut stride = old[i - 1].1;
            for axis in (j0..j).rev() {
                strides[axis] = stride;
                stride *= shape[axis] as isize;
            }
        }
        (j == shape.len()).then(|| self.restrided(Shape::from_slice(shape), strides, self.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iota(shape: &[usize]) -> Array {
        let values: Vec<i32> = (0..shape.iter().product::<usize>() as i32).collect();
        Array::from_tensor(&Tensor::from_slice(&values, shape).unwrap())
    }

    fn values(a: &Array) -> Vec<i32> {
        let view = a.view::<i32>().unwrap();
        let mut index = vec![0; a.rank()];
        let mut out = Vec::new();
        for _ in 0..a.numel() {
            out.push(*view.get(&index).unwrap());
            for axis in (0..a.rank()).rev() {
                index[axis] += 1;
                if index[axis] < a.shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        out
    }

    #[test]
    fn reshape_keeps_views_where_strides_allow() {
        let check = |a: Array, shape: &[usize], view: bool| {
            let r = a.reshaped(shape);
            assert_eq!(r.is_some(), view, "{:?}/{:?} to {shape:?}", a.shape, a.strides);
            if let Some(r) = r {
                assert_eq!(values(&r), values(&a), "{:?}/{:?} to {shape:?}", a.shape, a.strides);
            }
        };
        check(iota(&[2, 6]), &[3, 4], true);
        check(iota(&[2, 6]).permute(&[1, 0]), &[2, 3, 2], true);
        check(iota(&[2, 6]).permute(&[1, 0]), &[12], false);
        check(iota(&[2, 6]).permute(&[1, 0]), &[6, 1, 2, 1], true);
        check(iota(&[4, 6]).narrow(1, 1, 4, 1), &[4, 2, 2], true);
        check(iota(&[4, 6]).narrow(1, 1, 4, 1), &[2, 2, 4], true);
        check(iota(&[4, 6]).narrow(1, 1, 4, 1), &[16], false);
        check(iota(&[2, 3, 4]).permute(&[2, 0, 1]), &[4, 6], true);
        check(iota(&[2, 3, 4]).permute(&[2, 0, 1]), &[1, 4, 1, 6, 1], true);
        check(iota(&[1, 5]).broadcast(&[3, 5]).unwrap(), &[15], false);
        check(iota(&[1, 4]).broadcast(&[3, 4]).unwrap(), &[3, 2, 2], true);
    }

    #[test]
    fn negative_steps_walk_backwards() {
        assert_eq!(values(&iota(&[5]).narrow(0, 4, 3, -2)), [4, 2, 0]);
    }

    #[test]
    fn only_sole_owners_may_write() {
        let mut a = Array::row_major(DType::F32, &[4], Arc::new(Storage::Owned(AlignedBytes::zeroed(16))));
        assert!(a.slice_mut::<f32>().is_ok());
        let b = a.clone();
        assert!(!a.is_unique() && a.slice_mut::<f32>().is_err());
        drop(b);
        assert!(a.is_unique());
        assert!(!iota(&[3]).is_unique());
    }
}
