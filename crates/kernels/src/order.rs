//! Sorting, and running sums and products along one axis.

use std::cmp::Ordering;

use flambeau_tensor::Element;
use half::{bf16, f16};
use smallvec::SmallVec;

use crate::{Error, Pool, View, error::same, pool::Parts, reduce::Ordered};

/// Lines along an axis: their starts in the input, and in a row-major output.
struct Lines<'a, T> {
    x: &'a View<'a, T>,
    axis: usize,
}

impl<'a, T: Element> Lines<'a, T> {
    fn new(x: &'a View<'a, T>, axis: usize, out: usize) -> Result<Lines<'a, T>, Error> {
        if axis >= x.rank() {
            return Err(Error::Parameter { what: "axis", found: axis as i64 });
        }
        same("outputs", x.len(), out)?;
        Ok(Lines { x, axis })
    }

    /// Calls `f(number, line, write)` for each line, where `write(i, value)` puts element `i` of
    /// the line's output.
    fn run<O: Send>(&self, pool: &Pool, out: &mut [O], f: impl Fn(usize, &[T], &mut dyn FnMut(usize, O)) + Sync) {
        let shape = self.x.shape();
        let length = shape[self.axis];
        let inner: usize = shape[self.axis + 1..].iter().product();
        let parts = Parts::new(out);
        let lines = self.x.len().checked_div(length).unwrap_or(0);
        pool.run_ranges(lines, (4096 / length.max(1)).max(1), |r| {
            let mut line = Vec::with_capacity(length);
            for i in r {
                line.clear();
                let base = self.start(i);
                let step = self.x.strides()[self.axis];
                // SAFETY: the indices are inside the view.
                line.extend((0..length as isize).map(|j| unsafe { *self.x.origin().offset(base + j * step) }));
                let first = i / inner * inner * length + i % inner;
                f(i, &line, &mut |j, value| {
                    let at = first + j * inner;
                    // SAFETY: each element of the output belongs to one line.
                    unsafe { parts.slice(at..at + 1)[0] = value };
                });
            }
        });
    }

    /// Whether each line and its output are contiguous.
    fn are_rows(&self) -> bool {
        self.axis + 1 == self.x.rank() && self.x.strides()[self.axis] == 1
    }

    /// Elements of line `i`. Requires [`are_rows`](Self::are_rows).
    fn row(&self, i: usize) -> &'a [T] {
        // SAFETY: the elements of a line are contiguous and inside the view, whose data is borrowed
        // for `'a`.
        unsafe { std::slice::from_raw_parts(self.x.origin().offset(self.start(i)), self.x.shape()[self.axis]) }
    }

    /// Offset of line `i`, numbered row-major over the other axes.
    fn start(&self, mut i: usize) -> isize {
        let mut offset = 0;
        for axis in (0..self.x.rank()).rev().filter(|&a| a != self.axis) {
            offset += (i % self.x.shape()[axis]) as isize * self.x.strides()[axis];
            i /= self.x.shape()[axis];
        }
        offset
    }
}

/// Ascending, NaN last.
fn compare<T: Ordered>(a: T, b: T) -> Ordering {
    if a.less(b) {
        Ordering::Less
    } else if b.less(a) {
        Ordering::Greater
    } else {
        a.is_nan().cmp(&b.is_nan())
    }
}

/// `x` in ascending order along `axis`, stable, NaN last; `out` is row-major in the shape of `x`.
///
/// # Errors
/// [`Error::Parameter`] or [`Error::Size`] if `axis` or the length of `out` is wrong.
pub fn sort<T: Ordered>(pool: &Pool, x: &View<T>, axis: usize, out: &mut [T]) -> Result<(), Error> {
    Lines::new(x, axis, out.len())?.run(pool, out, |_, line, write| {
        let mut line: SmallVec<[T; 64]> = SmallVec::from_slice(line);
        line.sort_by(|&a, &b| compare(a, b));
        line.iter().enumerate().for_each(|(i, &v)| write(i, v));
    });
    Ok(())
}

/// The permutation that [`sort`] applies, as indices along `axis`.
///
/// # Errors
/// As [`sort`].
pub fn argsort<T: Ordered>(pool: &Pool, x: &View<T>, axis: usize, out: &mut [u32]) -> Result<(), Error> {
    Lines::new(x, axis, out.len())?.run(pool, out, |_, line, write| {
        let mut order: Vec<(T, u32)> = line.iter().copied().zip(0..).collect();
        order.sort_by(|a, b| compare(a.0, b.0));
        order.iter().enumerate().for_each(|(i, &(_, v))| write(i, v));
    });
    Ok(())
}

/// An element type, and the wider type that carries its running totals, as in PyTorch.
pub trait Carried: Element {
    #[doc(hidden)]
    type Carry: Copy + Send + Sync;
    #[doc(hidden)]
    const ZERO: Self::Carry;
    #[doc(hidden)]
    fn carry(self) -> Self::Carry;
    #[doc(hidden)]
    fn sum(a: Self::Carry, b: Self::Carry) -> Self::Carry;
    #[doc(hidden)]
    fn product(a: Self::Carry, b: Self::Carry) -> Self::Carry;
    #[doc(hidden)]
    fn round(total: Self::Carry) -> Self;
}

macro_rules! carried {
    ($($t:ty, $carry:ty, $zero:literal, |$x:ident| $wide:expr, |$total:ident| $narrow:expr, |$a:ident, $b:ident| $sum:expr, $product:expr;)*) => { $(
        impl Carried for $t {
            type Carry = $carry;
            const ZERO: $carry = $zero;
            #[inline(always)]
            fn carry(self) -> $carry {
                let $x = self;
                $wide
            }
            #[inline(always)]
            fn sum($a: $carry, $b: $carry) -> $carry {
                $sum
            }
            #[inline(always)]
            fn product($a: $carry, $b: $carry) -> $carry {
                $product
            }
            #[inline(always)]
            fn round($total: $carry) -> $t {
                $narrow
            }
        }
    )* };
}

carried! {
    i64, i64, 0, |x| x, |total| total, |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    f32, f64, 0.0, |x| x.into(), |total| total as f32, |a, b| a + b, a * b;
    f16, f32, 0.0, |x| x.to_f32(), |total| f16::from_f32(total), |a, b| a + b, a * b;
    bf16, f32, 0.0, |x| x.to_f32(), |total| bf16::from_f32(total), |a, b| a + b, a * b;
}

/// Running sums along `axis`, from the end if `reverse`. Sums include the element itself if
/// `inclusive`. `f32` is carried in `f64`, halves in `f32`, and integers wrap.
///
/// # Errors
/// As [`sort`].
pub fn cumsum<T: Carried>(pool: &Pool, x: &View<T>, axis: usize, order: (bool, bool), out: &mut [T]) -> Result<(), Error> {
    totals(pool, x, axis, order, |_| T::ZERO, T::sum, out)
}

/// Running products along `axis`. The products of a line begin with its entry in `starts`, which
/// has the shape of `x` without the axis, row-major. Carried as by [`cumsum`].
///
/// # Errors
/// As [`sort`], and [`Error::Size`] if `starts` has another length.
pub fn cumprod<T: Carried>(pool: &Pool, x: &View<T>, axis: usize, starts: &[T], out: &mut [T]) -> Result<(), Error> {
    let length = x.shape().get(axis).copied().unwrap_or(0);
    same("starts of running products", x.len(), starts.len() * length)?;
    totals(pool, x, axis, (false, true), |line| starts[line].carry(), T::product, out)
}

/// Running totals of every line, each with its start.
fn totals<T: Carried>(
    pool: &Pool,
    x: &View<T>,
    axis: usize,
    (reverse, inclusive): (bool, bool),
    start: impl Fn(usize) -> T::Carry + Sync,
    step: impl Fn(T::Carry, T::Carry) -> T::Carry + Copy + Sync,
    out: &mut [T],
) -> Result<(), Error> {
    let lines = Lines::new(x, axis, out.len())?;
    let length = x.shape()[axis];
    if lines.are_rows() && length > 0 {
        let rows = (4096 / length).max(1).next_multiple_of(TOGETHER);
        pool.run_chunks(out, rows * length, |task, out| {
            for (i, out) in out.chunks_mut(TOGETHER * length).enumerate() {
                let first = task * rows + i * TOGETHER;
                if out.len() == TOGETHER * length {
                    let together = std::array::from_fn::<_, TOGETHER, _>(|i| (lines.row(first + i), start(first + i)));
                    total_rows(together, step, out, (reverse, inclusive));
                } else {
                    for (i, out) in out.chunks_mut(length).enumerate() {
                        total_rows([(lines.row(first + i), start(first + i))], step, out, (reverse, inclusive));
                    }
                }
            }
        });
        return Ok(());
    }
    lines.run(pool, out, |number, line, write| {
        let mut total = start(number);
        for i in 0..line.len() {
            let at = if reverse { line.len() - 1 - i } else { i };
            let next = step(total, line[at].carry());
            write(at, T::round(if inclusive { next } else { total }));
            total = next;
        }
    });
    Ok(())
}

/// Number of lines computed at the same time: within a line, each step waits for the previous one.
const TOGETHER: usize = 4;

/// Elements of each line per block. Lines a power of two apart would evict each other from the
/// cache.
const STRETCH: usize = 64;

/// Running totals of `N` rows of equal, nonzero length with their starts, written to `out`
/// `[N, length]`.
fn total_rows<T: Carried, const N: usize>(
    rows: [(&[T], T::Carry); N],
    step: impl Fn(T::Carry, T::Carry) -> T::Carry,
    out: &mut [T],
    (reverse, inclusive): (bool, bool),
) {
    let length = rows[0].0.len();
    let (mut totals, mut at_hand) = (rows.map(|(_, start)| start), [[T::ZERO; STRETCH]; N]);
    for begin in (0..length).step_by(STRETCH) {
        let count = STRETCH.min(length - begin);
        let start = if reverse { length - begin - count } else { begin };
        for (line, (row, _)) in at_hand.iter_mut().zip(rows) {
            line.iter_mut().zip(&row[start..start + count]).for_each(|(slot, x)| *slot = x.carry());
        }
        for i in 0..count {
            let at = if reverse { count - 1 - i } else { i };
            for (total, line) in totals.iter_mut().zip(&mut at_hand) {
                let next = step(*total, line[at]);
                line[at] = if inclusive { next } else { *total };
                *total = next;
            }
        }
        for (line, out) in at_hand.iter().zip(out.chunks_exact_mut(length)) {
            out[start..start + count].iter_mut().zip(line).for_each(|(slot, &total)| *slot = T::round(total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(x: &[f32], sorted: &[f32], order: &[u32]) {
        let n = x.len();
        for threads in 1..3 {
            let pool = Pool::new(threads);
            let view = View::contiguous(x, &[n]).unwrap();
            let (mut s, mut o) = (vec![0.0; n], vec![0; n]);
            sort(&pool, &view, 0, &mut s).unwrap();
            argsort(&pool, &view, 0, &mut o).unwrap();
            assert_eq!(format!("{s:?}"), format!("{sorted:?}"));
            assert_eq!(o, order);
        }
    }

    #[test]
    fn sorting_is_stable_with_nan_last() {
        let nan = f32::NAN;
        check(&[3.0, nan, -1.0, 3.0, -0.0, 0.0], &[-1.0, -0.0, 0.0, 3.0, 3.0, nan], &[2, 4, 5, 0, 3, 1]);
        check(&[nan, 1.0, nan, f32::INFINITY], &[1.0, f32::INFINITY, nan, nan], &[1, 3, 0, 2]);
        check(&[], &[], &[]);
    }

    #[test]
    fn lines_run_along_any_axis_of_any_view() {
        let data = [5i64, 1, 4, 2, 6, 3];
        let x = View::contiguous(&data, &[2, 3]).unwrap();
        let mut out = [0; 6];
        sort(&Pool::new(1), &x, 0, &mut out).unwrap();
        assert_eq!(out, [2, 1, 3, 5, 6, 4]);
        sort(&Pool::new(1), &x.permute(&[1, 0]).unwrap(), 0, &mut out).unwrap();
        assert_eq!(out, [1, 2, 4, 3, 5, 6]);
        assert!(sort(&Pool::new(1), &x, 2, &mut out).is_err());
    }

    #[test]
    fn running_sums_go_either_way() {
        let x = [1i64, 200, 100];
        let x = View::contiguous(&x, &[3]).unwrap();
        let run = |reverse, inclusive| {
            let mut out = [0; 3];
            cumsum(&Pool::new(1), &x, 0, (reverse, inclusive), &mut out).unwrap();
            out
        };
        assert_eq!(run(false, true), [1, 201, 301]);
        assert_eq!(run(false, false), [0, 1, 201]);
        assert_eq!(run(true, true), [301, 300, 100]);
        assert_eq!(run(true, false), [300, 100, 0]);
    }

    #[test]
    fn rows_have_the_running_sums_that_columns_have() {
        for (count, length) in [(1, 1), (3, 70), (4, 64), (9, 200), (70, 100), (3, 4097), (5, 9000)] {
            let x: Vec<i64> = (0..(count * length) as i64).map(|i| i * 7919 % 1009 - 400).collect();
            let rows = View::contiguous(&x, &[count, length]).unwrap();
            let transposed: Vec<i64> = (0..count * length).map(|i| x[i % count * length + i / count]).collect();
            let columns = View::contiguous(&transposed, &[length, count]).unwrap();
            for order in [(false, false), (false, true), (true, false), (true, true)] {
                let (mut a, mut b) = (vec![0; x.len()], vec![0; x.len()]);
                cumsum(&Pool::new(2), &rows, 1, order, &mut a).unwrap();
                cumsum(&Pool::new(2), &columns, 0, order, &mut b).unwrap();
                assert!((0..x.len()).all(|i| a[i] == b[i % length * count + i / length]), "{count} × {length}, {order:?}");
            }
        }
    }

    #[test]
    fn floats_are_carried_in_doubles() {
        // In f32, 2^24 + 1 is 2^24, and the second product underflows.
        let big = 2f32.powi(24);
        let mut out = [0.0; 3];
        cumsum(&Pool::new(1), &View::contiguous(&[big, 1.0, 1.0], &[3]).unwrap(), 0, (false, true), &mut out).unwrap();
        assert_eq!(out, [big, big, big + 2.0]);
        let x = [1e-30f32, 1e-30, 1e30, 1e30];
        let mut out = [0.0; 4];
        let x = View::contiguous(&x, &[4]).unwrap();
        cumprod(&Pool::new(1), &x, 0, &[1.0], &mut out).unwrap();
        assert_eq!(out.map(|y| (y * 1e3).round()), [0.0, 0.0, 0.0, 1e3]);
        assert!(cumprod(&Pool::new(1), &x, 0, &[1.0; 2], &mut out).is_err());
    }

    #[test]
    fn products_begin_with_the_start_of_their_line() {
        let x: Vec<i64> = (1..=12).collect();
        let starts = [1, 2, 3, 4, 5, 6];
        let expected = |i: usize, at: usize| (0..=i).map(|j| x[at + j * 3]).product::<i64>();
        let view = View::contiguous(&x, &[2, 2, 3]).unwrap();
        let mut out = [0; 12];
        cumprod(&Pool::new(2), &view, 1, &starts, &mut out).unwrap();
        for (at, &y) in out.iter().enumerate() {
            let (batch, i, inner) = (at / 6, at / 3 % 2, at % 3);
            assert_eq!(y, starts[batch * 3 + inner] * expected(i, batch * 6 + inner), "{at}");
        }
        let rows = View::contiguous(&x, &[6, 2]).unwrap();
        cumprod(&Pool::new(2), &rows, 1, &starts, &mut out).unwrap();
        assert!((0..6).all(|i| out[2 * i..2 * i + 2] == [starts[i] * x[2 * i], starts[i] * x[2 * i] * x[2 * i + 1]]));
    }

    #[test]
    fn halves_accumulate_in_full_precision() {
        let x = [bf16::from_f32(256.0), bf16::ONE, bf16::ONE];
        let mut out = [bf16::ZERO; 3];
        cumsum(&Pool::new(1), &View::contiguous(&x, &[3]).unwrap(), 0, (false, true), &mut out).unwrap();
        assert_eq!(out.map(bf16::to_f32), [256.0, 256.0, 258.0]);
    }
}
