//! Copies between any strides.

use flambeau_tensor::Element;

use super::{GRAIN, Ptr, PtrMut, map};
use crate::{
    Error, Pool, View, ViewMut,
    simd::{Isa, Kernel},
    view::{Transposed, Walk},
};

/// `out[i] = x[i]`, from any strides to any strides.
///
/// # Errors
/// [`Error::Broadcast`] if `x` does not broadcast to `out`.
pub fn copy<T: Element>(pool: &Pool, x: &View<T>, out: &mut ViewMut<T>) -> Result<(), Error> {
    let x = x.broadcast_to(out.shape())?;
    let walk = Walk::new(out.shape(), [out.strides(), x.strides()]);
    match walk.transposed() {
        // SAFETY: the walk is made from these views.
        Some(transposed) => unsafe { copy_transposed(pool, &transposed, PtrMut(out.origin()), Ptr(x.origin())) },
        None => map(pool, &x, out, |x| x)?,
    }
    Ok(())
}

/// Rows and columns of a block of a transposed copy.
const TILE: usize = 32;

/// Copies matrices with transposition, in blocks that fit the cache on both sides.
///
/// # Safety
/// The walk was made from the shape and strides of `to` and `from`, and `to` is injective.
unsafe fn copy_transposed<T: Element>(pool: &Pool, transposed: &Transposed<2>, to: PtrMut<T>, from: Ptr<T>) {
    let down = transposed.size[0].div_ceil(TILE);
    let (to, from) = (&to, &from);
    pool.run_ranges(transposed.lead.len() * down, (GRAIN / (TILE * transposed.size[1])).max(1), |tasks| {
        for task in tasks {
            transposed.lead.runs(task / down, task / down + 1, |at, _| {
                // SAFETY: the walk was made from the views with these origins; tasks write disjoint
                // rows.
                unsafe {
                    let band = Band { to: to.0.offset(at[0]), from: from.0.offset(at[1]), transposed, first: task % down * TILE };
                    pool.dispatch(band);
                }
            });
        }
    });
}

/// [`TILE`] rows of a transposed copy from `first` on.
struct Band<'a, T> {
    to: *mut T,
    from: *const T,
    transposed: &'a Transposed<2>,
    first: usize,
}

impl<T: Element> Kernel for Band<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let ([rows, columns], [[to_row, _], [to_column, from_column]]) = (self.transposed.size, self.transposed.step);
        let end = rows.min(self.first + TILE);
        for column in (0..columns).step_by(TILE) {
            let stop = columns.min(column + TILE);
            // SAFETY: rows and columns are inside both operands; rows of the source are one element
            // apart.
            unsafe {
                let from = self.from.add(self.first).offset(column as isize * from_column);
                let to = self.to.offset(self.first as isize * to_row + column as isize * to_column);
                let whole = end - self.first == TILE && stop - column == TILE;
                if size_of::<T>() == 4 && whole && to_column == 1 && to_row >= 0 && from_column >= 0 {
                    for (i, j) in (0..TILE).step_by(I::LANES).flat_map(|i| (0..TILE).step_by(I::LANES).map(move |j| (i, j))) {
                        let from = from.add(i).offset(j as isize * from_column);
                        let to = to.offset(i as isize * to_row).add(j);
                        isa.transpose(from.cast(), from_column as usize, to.cast(), to_row as usize);
                    }
                    continue;
                }
                for j in 0..(stop - column) as isize {
                    let (from, to) = (from.offset(j * from_column), to.offset(j * to_column));
                    for i in 0..end - self.first {
                        *to.offset(i as isize * to_row) = *from.add(i);
                    }
                }
            }
        }
    }
}

/// The elements of `x` in row-major order, written to the front of `out`.
///
/// # Errors
/// [`Error::View`] if `out` is too short.
pub fn copy_to_slice<T: Element>(pool: &Pool, x: &View<T>, out: &mut [T]) -> Result<(), Error> {
    copy(pool, x, &mut ViewMut::contiguous(out, x.shape())?)
}
