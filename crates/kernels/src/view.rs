//! Strided views whose bounds are proven when they are made.

use std::{fmt, marker::PhantomData};

use flambeau_tensor::{Shape, numel, row_major_strides};
use smallvec::SmallVec;

use crate::Error;

/// Element strides, outermost axis first; may be zero or negative.
pub type Strides = SmallVec<[isize; 6]>;

/// A read-only strided view. Every index inside `shape` is inside the data.
pub struct View<'a, T> {
    origin: *const T,
    shape: Shape,
    strides: Strides,
    life: PhantomData<&'a [T]>,
}

/// A writable strided view. Every index inside `shape` is inside the data, and no two indices name
/// one element.
pub struct ViewMut<'a, T> {
    origin: *mut T,
    shape: Shape,
    strides: Strides,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a view is a shared borrow of a slice.
unsafe impl<T: Sync> Send for View<'_, T> {}
// SAFETY: a view is a shared borrow of a slice.
unsafe impl<T: Sync> Sync for View<'_, T> {}
// SAFETY: a writable view is an exclusive borrow of a slice.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}
// SAFETY: a shared reference to a writable view gives only its pointer, whose use is unsafe.
unsafe impl<T: Sync> Sync for ViewMut<'_, T> {}

/// The view's lowest and highest element, or `None` on overflow. `Some(None)`: the view is empty.
fn reach(shape: &[usize], strides: &[isize], offset: usize) -> Option<Option<(usize, usize)>> {
    numel(shape)?;
    if shape.contains(&0) {
        return Some(None);
    }
    let (mut low, mut high) = (isize::try_from(offset).ok()?, isize::try_from(offset).ok()?);
    for (&d, &s) in shape.iter().zip(strides) {
        let span = isize::try_from(d - 1).ok()?.checked_mul(s)?;
        if span < 0 { low = low.checked_add(span)? } else { high = high.checked_add(span)? }
    }
    Some(Some((usize::try_from(low).ok()?, usize::try_from(high).ok()?)))
}

fn check(shape: &[usize], strides: &[isize], offset: usize, len: usize) -> Result<(), Error> {
    let refuse = || Error::View { shape: shape.to_vec(), len };
    if shape.len() != strides.len() {
        return Err(refuse());
    }
    match reach(shape, strides, offset).ok_or_else(refuse)? {
        Some((_, high)) if high >= len => Err(refuse()),
        _ => Ok(()),
    }
}

/// Whether distinct indices surely name distinct elements. Sorted by stride, each axis must step
/// over the whole span of the smaller ones.
fn is_injective(shape: &[usize], strides: &[isize]) -> bool {
    let mut axes: SmallVec<[(usize, usize); 6]> =
        shape.iter().zip(strides).filter(|&(&d, _)| d != 1).map(|(&d, &s)| (s.unsigned_abs(), d)).collect();
    axes.sort_unstable();
    let mut span = 0usize;
    shape.contains(&0)
        || axes.iter().all(|&(s, d)| {
            let clear = s > span;
            span = span.saturating_add(s.saturating_mul(d - 1));
            clear
        })
}

fn is_row_major(shape: &[usize], strides: &[isize]) -> bool {
    let mut next = 1isize;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&d, &s)| {
            let fits = d == 1 || s == next;
            next = next.saturating_mul(d as isize);
            fits
        })
}

impl<'a, T> View<'a, T> {
    /// Elements `data[offset + Σ index·stride]` for all indices inside `shape`.
    ///
    /// # Errors
    /// [`Error::View`] if an index is outside `data`, or the ranks differ.
    pub fn new(data: &'a [T], shape: &[usize], strides: &[isize], offset: usize) -> Result<View<'a, T>, Error> {
        check(shape, strides, offset, data.len())?;
        let offset = if shape.contains(&0) { 0 } else { offset };
        // SAFETY: `offset` is the element at index 0, inside `data` by the check; or 0 in an empty
        // view.
        let origin = unsafe { data.as_ptr().add(offset) };
        Ok(View { origin, shape: Shape::from_slice(shape), strides: Strides::from_slice(strides), life: PhantomData })
    }

    /// The whole of `data` as a row-major tensor.
    ///
    /// # Errors
    /// [`Error::View`] if `data` is shorter than `shape` asks for.
    pub fn contiguous(data: &'a [T], shape: &[usize]) -> Result<View<'a, T>, Error> {
        View::new(data, shape, &row_major_strides(shape), 0)
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element strides.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements that indices name.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// The elements as a slice, if the view is row-major.
    pub fn as_slice(&self) -> Option<&'a [T]> {
        // SAFETY: `len` consecutive elements from the origin are all inside the data by the check
        // at construction.
        is_row_major(&self.shape, &self.strides).then(|| unsafe { std::slice::from_raw_parts(self.origin, self.len()) })
    }

    /// The same data with axis `i` of the result being axis `perm[i]`.
    ///
    /// # Errors
    /// [`Error::Parameter`] if `perm` is not a permutation.
    pub fn permute(&self, perm: &[usize]) -> Result<View<'a, T>, Error> {
        let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, self.rank());
        for &axis in perm {
            match seen.get_mut(axis) {
                Some(s) if !*s => *s = true,
                _ => return Err(Error::Parameter { what: "axis of a permutation", found: axis as i64 }),
            }
        }
        crate::error::same("length of a permutation", self.rank(), perm.len())?;
        let shape = perm.iter().map(|&p| self.shape[p]).collect();
        let strides = perm.iter().map(|&p| self.strides[p]).collect();
        Ok(View { origin: self.origin, shape, strides, life: PhantomData })
    }

    /// The same data seen in `shape` by numpy's broadcasting rules.
    ///
    /// # Errors
    /// [`Error::Broadcast`] if the shapes do not fit.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<View<'a, T>, Error> {
        let refuse = || Error::Broadcast { what: "view", expected: shape.to_vec(), found: self.shape.to_vec() };
        let lead = shape.len().checked_sub(self.rank()).ok_or_else(refuse)?;
        let mut strides = Strides::from_elem(0, shape.len());
        for (i, &d) in self.shape.iter().enumerate() {
            match (d, shape[lead + i]) {
                (d, n) if d == n => strides[lead + i] = self.strides[i],
                (1, _) => {}
                _ => return Err(refuse()),
            }
        }
        numel(shape).ok_or_else(refuse)?;
        Ok(View { origin: self.origin, shape: Shape::from_slice(shape), strides, life: PhantomData })
    }

    /// The element at `index`, or `None` outside the shape.
    pub fn get(&self, index: &[usize]) -> Option<&'a T> {
        let inside = index.len() == self.rank() && index.iter().zip(&self.shape).all(|(i, d)| i < d);
        // SAFETY: the index is inside the shape, so the element is inside the data.
        inside.then(|| unsafe { &*self.origin.offset(offset_of(index, &self.strides)) })
    }

    /// The same view of another type of the same layout, chosen by comparing `DTYPE`s.
    pub(crate) fn reinterpret<U: flambeau_tensor::Element>(&self) -> View<'a, U>
    where
        T: flambeau_tensor::Element,
    {
        debug_assert!(T::DTYPE == U::DTYPE);
        View { origin: self.origin.cast(), shape: self.shape.clone(), strides: self.strides.clone(), life: PhantomData }
    }

    /// Element 0; `strides` lead from here to all others.
    pub(crate) fn origin(&self) -> *const T {
        self.origin
    }
}

fn offset_of(index: &[usize], strides: &[isize]) -> isize {
    index.iter().zip(strides).map(|(&i, &s)| i as isize * s).sum()
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        View { origin: self.origin, shape: self.shape.clone(), strides: self.strides.clone(), life: PhantomData }
    }
}

impl<'a, T> ViewMut<'a, T> {
    /// Elements `data[offset + Σ index·stride]` for all indices inside `shape`.
    ///
    /// # Errors
    /// [`Error::View`] if an index is outside `data`, [`Error::Overlap`] if two indices may name
    /// one element.
    pub fn new(data: &'a mut [T], shape: &[usize], strides: &[isize], offset: usize) -> Result<ViewMut<'a, T>, Error> {
        check(shape, strides, offset, data.len())?;
        if !is_injective(shape, strides) {
            return Err(Error::Overlap { shape: shape.to_vec() });
        }
        let offset = if shape.contains(&0) { 0 } else { offset };
        // SAFETY: `check` keeps the offset inside `data`; for an empty view it is 0.
        let origin = unsafe { data.as_mut_ptr().add(offset) };
        Ok(ViewMut { origin, shape: Shape::from_slice(shape), strides: Strides::from_slice(strides), life: PhantomData })
    }

    /// The whole of `data` as a row-major tensor.
    ///
    /// # Errors
    /// [`Error::View`] if `data` is shorter than `shape` asks for.
    pub fn contiguous(data: &'a mut [T], shape: &[usize]) -> Result<ViewMut<'a, T>, Error> {
        ViewMut::new(data, shape, &row_major_strides(shape), 0)
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element strides.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// The elements as a slice, if the view is row-major.
    pub fn as_mut_slice(&mut self) -> Option<&mut [T]> {
        let len = self.shape.iter().product();
        // SAFETY: a row-major view covers `len` consecutive elements; the borrow of `self` is
        // exclusive.
        is_row_major(&self.shape, &self.strides).then(|| unsafe { std::slice::from_raw_parts_mut(self.origin, len) })
    }

    /// Element 0; `strides` lead from here to all others.
    pub(crate) fn origin(&mut self) -> *mut T {
        self.origin
    }
}

impl<T> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("shape", &self.shape).field("strides", &self.strides).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewMut").field("shape", &self.shape).field("strides", &self.strides).finish_non_exhaustive()
    }
}

/// One iteration space over `N` operands with their strides, collapsed to as few axes as they
/// allow.
#[derive(Debug)]
pub(crate) struct Walk<const N: usize> {
    shape: Shape,
    strides: SmallVec<[[isize; N]; 6]>,
}

impl<const N: usize> Walk<N> {
    /// Every `strides[i]` is as long as `shape`.
    pub(crate) fn new(shape: &[usize], strides: [&[isize]; N]) -> Walk<N> {
        let mut walk = Walk { shape: Shape::new(), strides: SmallVec::new() };
        for (axis, &d) in shape.iter().enumerate() {
            let step = strides.map(|s| s[axis]);
            if d == 1 {
                continue;
            }
            match (walk.shape.last_mut(), walk.strides.last_mut()) {
                (Some(n), Some(outer)) if (0..N).all(|i| outer[i] == step[i].wrapping_mul(d as isize)) => {
                    *n *= d;
                    *outer = step;
                }
                _ => {
                    walk.shape.push(d);
                    walk.strides.push(step);
                }
            }
        }
        if walk.shape.is_empty() {
            walk.shape.push(1);
            walk.strides.push([0; N]);
        }
        walk
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it collapsed to one axis.
    pub(crate) fn is_single_axis(&self) -> bool {
        self.shape.len() == 1
    }

    /// For a copy to operand 0: its two innermost axes, if the other operand has them swapped and
    /// they are long enough to matter.
    pub(crate) fn transposed(&self) -> Option<Transposed<N>> {
        let n = self.shape.len();
        let (outer, inner) = (n.checked_sub(2)?, n - 1);
        let size = [self.shape[outer], self.shape[inner]];
        let wrong = self.strides[outer][N - 1] == 1 && self.strides[inner][N - 1] != 1;
        let mut lead = Walk { shape: self.shape[..outer].into(), strides: self.strides[..outer].into() };
        if lead.shape.is_empty() {
            lead.shape.push(1);
            lead.strides.push([0; N]);
        }
        (wrong && size[0] >= 8 && size[1] >= 8).then(|| Transposed { lead, size, step: [self.strides[outer], self.strides[inner]] })
    }

    /// Strides of the innermost axis.
    pub(crate) fn inner(&self) -> [isize; N] {
        self.strides[self.strides.len() - 1]
    }

    /// Calls `f(offsets of each operand, run length)` for the innermost runs that make up elements
    /// `start..end` of the space.
    #[inline(always)]
    pub(crate) fn runs(&self, start: usize, end: usize, mut f: impl FnMut([isize; N], usize)) {
        for (offsets, n) in self.each_run(start, end) {
            f(offsets, n);
        }
    }

    /// The runs of [`Walk::runs`] as an iterator. A loop's body keeps the enabled instruction set
    /// of its function; a closure too long to inline would lose it.
    #[inline(always)]
    pub(crate) fn each_run(&self, start: usize, end: usize) -> impl Iterator<Item = ([isize; N], usize)> {
        let last = self.shape.len() - 1;
        let inner = self.shape[last];
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let column = at % inner;
            let mut rest = at / inner;
            let mut offset: [isize; N] = std::array::from_fn(|i| column as isize * self.strides[last][i]);
            for axis in (0..last).rev() {
                let index = (rest % self.shape[axis]) as isize;
                rest /= self.shape[axis];
                offset.iter_mut().zip(self.strides[axis]).for_each(|(o, s)| *o += index * s);
            }
            let n = (inner - column).min(end - at);
            at += n;
            Some((offset, n))
        })
    }
}

/// A walk whose two innermost axes are looked at together.
#[derive(Debug)]
pub(crate) struct Transposed<const N: usize> {
    pub(crate) lead: Walk<N>,
    pub(crate) size: [usize; 2],
    /// Strides of the outer and the inner one.
    pub(crate) step: [[isize; N]; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_proven_at_construction() {
        let data = [0u8; 10];
        let view = |shape: &[usize], strides: &[isize], offset| View::new(&data, shape, strides, offset).is_ok();
        assert!(view(&[2, 5], &[5, 1], 0));
        assert!(!view(&[2, 5], &[5, 1], 1));
        assert!(view(&[10], &[-1], 9));
        assert!(!view(&[10], &[-1], 8));
        assert!(view(&[1000, 10], &[0, 1], 0));
        assert!(view(&[0, 100], &[5, 100], 77));
        assert!(!view(&[2], &[isize::MAX], 3));
        assert!(!view(&[usize::MAX, 2], &[0, 0], 0));
        assert!(!view(&[2], &[1, 1], 0));
    }

    #[test]
    fn writable_views_must_not_overlap() {
        let mut data = [0u8; 16];
        let mut ok = |shape: &[usize], strides: &[isize]| ViewMut::new(&mut data, shape, strides, 0).is_ok();
        assert!(ok(&[4, 4], &[4, 1]));
        assert!(ok(&[4, 4], &[1, 4]));
        assert!(!ok(&[4, 4], &[3, 1]));
        assert!(!ok(&[2], &[0]));
        assert!(ok(&[1, 3], &[0, 5]));
    }

    #[test]
    fn views_transform_without_copies() {
        let data: Vec<i32> = (0..6).collect();
        let v = View::contiguous(&data, &[2, 3]).unwrap();
        let t = v.permute(&[1, 0]).unwrap();
        assert_eq!((t.get(&[2, 1]), t.get(&[0, 2]), t.as_slice()), (Some(&5), None, None));
        assert!(v.permute(&[0, 0]).is_err());
        let b = v.broadcast_to(&[4, 2, 3]).unwrap();
        assert_eq!((b.get(&[3, 1, 1]), b.len()), (Some(&4), 24));
        assert!(v.broadcast_to(&[3, 3]).is_err());
    }

    #[test]
    fn walks_collapse_and_cover_each_element_once() {
        let walk = Walk::new(&[2, 3, 1, 4], [&[12, 4, 9, 1], &[3, 1, 0, 0]]);
        assert_eq!((walk.shape.as_slice(), walk.inner()), (&[6, 4][..], [1, 0]));
        for cut in 0..24 {
            let mut seen = Vec::new();
            for (a, b) in [(0, cut), (cut, 24)] {
                walk.runs(a, b, |[x, y], n| seen.extend((0..n as isize).map(|i| (x + i, y))));
            }
            assert_eq!(seen, (0..24).map(|i| (i, i / 4)).collect::<Vec<_>>());
        }
    }
}
