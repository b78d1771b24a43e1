//! Concrete shapes: sizes, strides and broadcasting.

use smallvec::SmallVec;

/// Sizes of a tensor, outermost first. Six dims fit without an allocation.
pub type Shape = SmallVec<[usize; 6]>;

/// Number of elements, or `None` if it does not fit `usize`.
pub fn numel(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

/// Element strides of a row-major tensor. A zero size counts as one, so strides stay positive.
pub fn row_major_strides(shape: &[usize]) -> SmallVec<[isize; 6]> {
    let mut strides: SmallVec<[isize; 6]> = SmallVec::from_elem(1, shape.len());
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1) as isize);
    }
    strides
}

/// The shape both operands broadcast to by numpy's rules, or `None` if they do not.
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Shape> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

/// An axis in `-rank..rank` as an index from the front, or `None` if it is out of range.
pub fn normalize_axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = rank as i64;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then_some(axis as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        let b = |a: &[usize], b: &[usize]| broadcast(a, b).map(|s| s.to_vec());
        assert_eq!(b(&[3, 1], &[4]), Some(vec![3, 4]));
        assert_eq!(b(&[], &[2, 0]), Some(vec![2, 0]));
        assert_eq!(b(&[1], &[0]), Some(vec![0]));
        assert_eq!(b(&[2], &[3]), None);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert_eq!(numel(&[usize::MAX, 2]), None);
        assert_eq!(numel(&[usize::MAX, 2, 0]), Some(0));
        assert_eq!(numel(&[]), Some(1));
    }

    #[test]
    fn axes_count_from_either_end() {
        assert_eq!((normalize_axis(-1, 3), normalize_axis(2, 3), normalize_axis(3, 3)), (Some(2), Some(2), None));
        assert_eq!(normalize_axis(0, 0), None);
    }
}
