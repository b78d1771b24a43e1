//! Walking several strided operands in step, for nodes whose addresses depend on values.

use flambeau_kernels::Strides;
use smallvec::SmallVec;

/// Calls `f` with each operand's element offset for every index of `shape`, in row-major order.
/// `strides[i]` is as long as `shape`.
pub(crate) fn walk<const N: usize, E>(
    shape: &[usize],
    strides: [&[isize]; N],
    start: [usize; N],
    mut f: impl FnMut([usize; N]) -> Result<(), E>,
) -> Result<(), E> {
    if shape.contains(&0) {
        return Ok(());
    }
    let mut at = start.map(|s| s as isize);
    let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, shape.len());
    loop {
        f(at.map(|a| a as usize))?;
        let mut axis = shape.len();
        loop {
            let Some(inner) = axis.checked_sub(1) else { return Ok(()) };
            axis = inner;
            index[axis] += 1;
            (0..N).for_each(|i| at[i] += strides[i][axis]);
            if index[axis] < shape[axis] {
                break;
            }
            (0..N).for_each(|i| at[i] -= strides[i][axis] * shape[axis] as isize);
            index[axis] = 0;
        }
    }
}

/// `strides` with 0 in place of `axis`.
pub(crate) fn without(strides: &[isize], axis: usize) -> Strides {
    let mut out = Strides::from_slice(strides);
    out[axis] = 0;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_the_strides() {
        let mut seen = Vec::new();
        walk::<2, ()>(&[2, 3], [&[3, 1], &[-1, 0]], [0, 5], |[a, b]| {
            seen.push((a, b));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(0, 5), (1, 5), (2, 5), (3, 4), (4, 4), (5, 4)]);
        let mut count = 0;
        walk::<1, ()>(&[], [&[]], [7], |[a]| {
            assert_eq!(a, 7);
            count += 1;
            Ok(())
        })
        .unwrap();
        walk::<1, ()>(&[3, 0], [&[1, 1]], [0], |_| Err(())).unwrap();
        assert_eq!(count, 1);
    }
}
