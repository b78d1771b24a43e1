//! The reductions.

use flambeau_tensor::{Bool, Element};
use half::{bf16, f16};

use super::{Fold, Reducer, fold, reduce};
use crate::{Error, Float, Pool, View, convert::float_view, error::same};

/// Types with sums and products: floats in `f32`, and wrapping integers. Narrower integers are
/// widened first.
pub trait Numeric: Element {
    /// Type of a running total.
    type Acc: Copy + Send + Sync;
    /// 0 or 1.
    fn constant(x: u8) -> Self::Acc;
    /// Exact.
    fn widen(self) -> Self::Acc;
    /// `a + b`
    fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// `a · b`
    fn mul(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// Rounds.
    fn narrow(a: Self::Acc) -> Self;
    /// Totals over `axes`.
    #[doc(hidden)]
    fn totals(pool: &Pool, x: &View<Self>, axes: &[usize]) -> Result<Vec<Self::Acc>, Error>;
}

impl Numeric for i64 {
    type Acc = i64;
    #[inline(always)]
    fn constant(x: u8) -> i64 {
        x.into()
    }
    #[inline(always)]
    fn widen(self) -> i64 {
        self
    }
    #[inline(always)]
    fn add(a: i64, b: i64) -> i64 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn mul(a: i64, b: i64) -> i64 {
        a.wrapping_mul(b)
    }
    #[inline(always)]
    fn narrow(a: i64) -> i64 {
        a
    }
    fn totals(pool: &Pool, x: &View<i64>, axes: &[usize]) -> Result<Vec<i64>, Error> {
        reduce(pool, x, axes, &Total)
    }
}

/// Types with an order in which NaN comes last.
pub trait Ordered: Element {
    /// Is it NaN?
    fn is_nan(self) -> bool;
    /// `self < other`; false if either is NaN.
    fn less(self, other: Self) -> bool;
    /// The largest elements over `axes`, or the smallest; NaN where there is one.
    #[doc(hidden)]
    fn extremes<const MAX: bool>(pool: &Pool, x: &View<Self>, axes: &[usize]) -> Result<Vec<Self>, Error>;
}

impl Ordered for i64 {
    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
    #[inline(always)]
    fn less(self, other: i64) -> bool {
        self < other
    }
    fn extremes<const MAX: bool>(pool: &Pool, x: &View<i64>, axes: &[usize]) -> Result<Vec<i64>, Error> {
        reduce(pool, x, axes, &Extreme::<MAX>)
    }
}

macro_rules! floats {
    ($($t:ty),*) => { $(
        impl Numeric for $t {
            type Acc = f32;
            #[inline(always)]
            fn constant(x: u8) -> f32 { x.into() }
            #[inline(always)]
            fn widen(self) -> f32 { Float::to_f32(self) }
            #[inline(always)]
            fn add(a: f32, b: f32) -> f32 { a + b }
            #[inline(always)]
            fn mul(a: f32, b: f32) -> f32 { a * b }
            #[inline(always)]
            fn narrow(a: f32) -> $t { <$t as Float>::from_f32(a) }
            fn totals(pool: &Pool, x: &View<$t>, axes: &[usize]) -> Result<Vec<f32>, Error> {
                fold(pool, &float_view(x), axes, Fold::Sum)
            }
        }

        impl Ordered for $t {
            #[inline(always)]
            fn is_nan(self) -> bool { Float::to_f32(self).is_nan() }
            #[inline(always)]
            fn less(self, other: $t) -> bool { Float::to_f32(self) < Float::to_f32(other) }
            fn extremes<const MAX: bool>(pool: &Pool, x: &View<$t>, axes: &[usize]) -> Result<Vec<$t>, Error> {
                let results = fold(pool, &float_view(x), axes, if MAX { Fold::Max } else { Fold::Min })?;
                Ok(results.into_iter().map(<$t as Float>::from_f32).collect())
            }
        }
    )* };
}
floats!(f32, f16, bf16);

struct Total;
struct Product;

macro_rules! arithmetic {
    ($($r:ty: $start:expr, $op:ident);*) => { $(impl<T: Numeric> Reducer<T> for $r {
        type Acc = T::Acc;
        #[inline(always)]
        fn empty(&self) -> T::Acc { T::constant($start) }
        #[inline(always)]
        fn step(&self, acc: T::Acc, x: T, _: usize, _: usize) -> T::Acc { T::$op(acc, x.widen()) }
        #[inline(always)]
        fn join(&self, a: T::Acc, b: T::Acc) -> T::Acc { T::$op(a, b) }
    })* };
}
arithmetic!(Total: 0, add; Product: 1, mul);

/// Writes the results.
fn finish<A: Copy, O>(results: &[A], out: &mut [O], f: impl Fn(A) -> O) -> Result<(), Error> {
    same("outputs of a reduction", results.len(), out.len())?;
    out.iter_mut().zip(results).for_each(|(o, &r)| *o = f(r));
    Ok(())
}

/// Elements that one output reduces.
fn count<T>(x: &View<T>, axes: &[usize]) -> usize {
    axes.iter().filter_map(|&a| x.shape().get(a)).product()
}

/// Σ x over `axes`; `out` holds the kept axes row-major. Nothing sums to 0.
///
/// # Errors
/// [`Error::Parameter`] or [`Error::Size`] if an axis is out of range or repeated, or `out` has
/// another length.
pub fn sum<T: Numeric>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [T]) -> Result<(), Error> {
    finish(&T::totals(pool, x, axes)?, out, T::narrow)
}

/// Π x over `axes`; nothing multiplies to 1.
///
/// # Errors
/// As [`sum`].
pub fn prod<T: Numeric>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [T]) -> Result<(), Error> {
    finish(&reduce(pool, x, axes, &Product)?, out, T::narrow)
}

/// Mean over `axes`; NaN where there is nothing.
///
/// # Errors
/// As [`sum`].
pub fn mean<T: Float + Numeric<Acc = f32>>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [T]) -> Result<(), Error> {
    let n = count(x, axes) as f32;
    finish(&T::totals(pool, x, axes)?, out, |s| T::from_f32(s / n))
}

/// Σ (x − mean[out])² and Σ (x − mean[out])
struct Deviations(Vec<f32>);

impl<T: Float> Reducer<T> for Deviations {
    type Acc = (f32, f32);
    #[inline(always)]
    fn empty(&self) -> (f32, f32) {
        (0.0, 0.0)
    }
    #[inline(always)]
    fn step(&self, acc: (f32, f32), x: T, _: usize, out: usize) -> (f32, f32) {
        let d = x.to_f32() - self.0[out];
        (acc.0 + d * d, acc.1 + d)
    }
    #[inline(always)]
    fn join(&self, a: (f32, f32), b: (f32, f32)) -> (f32, f32) {
        (a.0 + b.0, a.1 + b.1)
    }
}

/// Σ (x − mean)² / max(n − ddof, 0) over `axes`. A mean is rounded; the residual sum around it
/// corrects the squares.
///
/// # Errors
/// As [`sum`].
pub fn var<T: Float + Numeric<Acc = f32>>(pool: &Pool, x: &View<T>, axes: &[usize], ddof: i32, out: &mut [T]) -> Result<(), Error> {
    let n = count(x, axes);
    let means = T::totals(pool, x, axes)?.into_iter().map(|s| s / n as f32).collect();
    let divisor = (n as f64 - f64::from(ddof)).max(0.0) as f32;
    finish(&reduce(pool, x, axes, &Deviations(means))?, out, |(squares, rest)| {
        let squares = squares - rest * (rest / n as f32);
        // Not below zero, but NaN if it is.
        T::from_f32(if squares < 0.0 { 0.0 } else { squares } / divisor)
    })
}

/// The largest element with `MAX`, else the smallest, and its index. NaN beats all, and the first
/// of equals wins.
struct Best<const MAX: bool>;

impl<const MAX: bool> Best<MAX> {
    #[inline(always)]
    fn better<T: Ordered>((a, i): (T, usize), (b, j): (T, usize)) -> bool {
        if a.is_nan() || b.is_nan() {
            return a.is_nan() && (!b.is_nan() || i < j);
        }
        let strictly = if MAX { b.less(a) } else { a.less(b) };
        strictly || (i < j && !(if MAX { a.less(b) } else { b.less(a) }))
    }
}

impl<T: Ordered, const MAX: bool> Reducer<T> for Best<MAX> {
    type Acc = Option<(T, usize)>;
    #[inline(always)]
    fn empty(&self) -> Self::Acc {
        None
    }
    #[inline(always)]
    fn step(&self, acc: Self::Acc, x: T, i: usize, _: usize) -> Self::Acc {
        self.join(acc, Some((x, i)))
    }
    #[inline(always)]
    fn join(&self, a: Self::Acc, b: Self::Acc) -> Self::Acc {
        match (a, b) {
            (Some(a), Some(b)) => Some(if Self::better(b, a) { b } else { a }),
            (a, b) => a.or(b),
        }
    }
}

/// The largest (`MAX`) or smallest integer, from the one at the other end on.
struct Extreme<const MAX: bool>;

impl<const MAX: bool> Reducer<i64> for Extreme<MAX> {
    type Acc = i64;
    #[inline(always)]
    fn empty(&self) -> i64 {
        if MAX { i64::MIN } else { i64::MAX }
    }
    #[inline(always)]
    fn step(&self, acc: i64, x: i64, _: usize, _: usize) -> i64 {
        self.join(acc, x)
    }
    #[inline(always)]
    fn join(&self, a: i64, b: i64) -> i64 {
        if MAX { a.max(b) } else { a.min(b) }
    }
}

fn extreme<T: Ordered, const MAX: bool>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [T]) -> Result<(), Error> {
    if count(x, axes) == 0 && !out.is_empty() {
        return Err(Error::Size { what: "elements of a maximum or minimum", expected: 1, found: 0 });
    }
    finish(&T::extremes::<MAX>(pool, x, axes)?, out, |x| x)
}

/// Largest element over `axes`; NaN if there is one.
///
/// # Errors
/// As [`sum`]; [`Error::Size`] where nothing is reduced to something.
pub fn max<T: Ordered>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [T]) -> Result<(), Error> {
    extreme::<T, true>(pool, x, axes, out)
}

/// Smallest element over `axes`; NaN if there is one.
///
/// # Errors
/// As [`max`].
pub fn min<T: Ordered>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [T]) -> Result<(), Error> {
    extreme::<T, false>(pool, x, axes, out)
}

fn arg<T: Ordered, const MAX: bool>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [u32]) -> Result<(), Error> {
    if count(x, axes) == 0 && !out.is_empty() {
        return Err(Error::Size { what: "elements of an argmax or argmin", expected: 1, found: 0 });
    }
    finish(&reduce(pool, x, axes, &Best::<MAX>)?, out, |b| b.map_or(0, |(_, i)| i as u32))
}

/// Index of the largest element over `axes` (row-major among them): the first NaN, else the first
/// of equals.
///
/// # Errors
/// As [`max`].
pub fn argmax<T: Ordered>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [u32]) -> Result<(), Error> {
    arg::<T, true>(pool, x, axes, out)
}

/// Number of the smallest element over `axes`; else as [`argmax`].
///
/// # Errors
/// As [`max`].
pub fn argmin<T: Ordered>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [u32]) -> Result<(), Error> {
    arg::<T, false>(pool, x, axes, out)
}

/// `ALL` or any.
struct Logical<const ALL: bool>;

impl<const ALL: bool> Reducer<Bool> for Logical<ALL> {
    type Acc = bool;
    #[inline(always)]
    fn empty(&self) -> bool {
        ALL
    }
    #[inline(always)]
    fn step(&self, acc: bool, x: Bool, _: usize, _: usize) -> bool {
        self.join(acc, x.get())
    }
    #[inline(always)]
    fn join(&self, a: bool, b: bool) -> bool {
        if ALL { a & b } else { a | b }
    }
}

/// Whether any element over `axes` is true; false for none.
///
/// # Errors
/// As [`sum`].
pub fn any(pool: &Pool, x: &View<Bool>, axes: &[usize], out: &mut [Bool]) -> Result<(), Error> {
    finish(&reduce(pool, x, axes, &Logical::<false>)?, out, Bool::from)
}

/// Whether all elements over `axes` are true; true for none.
///
/// # Errors
/// As [`sum`].
pub fn all(pool: &Pool, x: &View<Bool>, axes: &[usize], out: &mut [Bool]) -> Result<(), Error> {
    finish(&reduce(pool, x, axes, &Logical::<true>)?, out, Bool::from)
}

/// Σ e^(x − top[out])
struct Exponentials(Vec<f32>);

impl<T: Float> Reducer<T> for Exponentials {
    type Acc = f32;
    #[inline(always)]
    fn empty(&self) -> f32 {
        0.0
    }
    #[inline(always)]
    fn step(&self, acc: f32, x: T, _: usize, out: usize) -> f32 {
        let (x, top) = (x.to_f32(), self.0[out]);
        // Equal infinities have no difference; their ratio counts as one.
        acc + if x == top { 1.0 } else { (x - top).exp() }
    }
    #[inline(always)]
    fn join(&self, a: f32, b: f32) -> f32 {
        a + b
    }
}

/// ln Σ eˣ over `axes`; −∞ for none or only −∞.
///
/// # Errors
/// As [`sum`].
pub fn logsumexp<T: Float + Ordered>(pool: &Pool, x: &View<T>, axes: &[usize], out: &mut [T]) -> Result<(), Error> {
    let tops: Vec<f32> = T::extremes::<true>(pool, x, axes)?.into_iter().map(Float::to_f32).collect();
    let sums = reduce(pool, x, axes, &Exponentials(tops.clone()))?;
    same("outputs of a reduction", sums.len(), out.len())?;
    for ((o, top), sum) in out.iter_mut().zip(tops).zip(sums) {
        *o = T::from_f32(if top == f32::NEG_INFINITY { top } else { top + sum.ln() });
    }
    Ok(())
}
