//! Maps over one, two or three broadcast operands, copies and fills.
//!
//! Every function writes all of `out`; operands broadcast to its shape. A result does not depend on
//! the number of threads.

mod copy;
pub mod erased;
pub mod fused;

use flambeau_tensor::{Bool, Element};

use crate::{
    Error, Float, Pool, View, ViewMut,
    math::{Unary, apply_block},
    simd::{Isa, Kernel, load_partial, store_partial},
    view::Walk,
};

pub use copy::{copy, copy_to_slice};

/// Number of elements per task.
const GRAIN: usize = 1 << 14;

/// Number of elements that are widened to `f32` at a time.
const BLOCK: usize = 64;

/// Lanes of the widest vector.
const MOST_LANES: usize = 16;

/// Processes one innermost run: operand `i` starts `at[i]` elements from its origin and steps by
/// `step[i]`.
pub(crate) trait Runs<const N: usize>: Sync {
    /// # Safety
    /// The `n` elements of each operand are valid, and no other thread accesses the written ones.
    unsafe fn run<I: Isa>(&self, isa: I, at: [isize; N], step: [isize; N], n: usize);
}

struct Task<'a, const N: usize, R> {
    walk: &'a Walk<N>,
    start: usize,
    end: usize,
    runs: &'a R,
}

impl<const N: usize, R: Runs<N>> Kernel for Task<'_, N, R> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let step = self.walk.inner();
        // SAFETY: the walk stays inside its views, and tasks cover disjoint ranges of it.
        self.walk.runs(self.start, self.end, |at, n| unsafe { self.runs.run(isa, at, step, n) });
    }
}

/// Runs `runs` over the whole walk, in parallel.
///
/// # Safety
/// `walk` was made from the shape and strides of the operands in `runs`; the written operand is
/// injective.
pub(crate) unsafe fn execute<const N: usize, R: Runs<N>>(pool: &Pool, walk: &Walk<N>, runs: &R) {
    pool.run_ranges(walk.len(), GRAIN, |r| pool.dispatch(Task { walk, start: r.start, end: r.end, runs }));
}

/// Start of an operand; tasks share it.
struct Ptr<T>(*const T);
struct PtrMut<T>(*mut T);
// SAFETY: tasks only read through it, and elements are `Sync`.
unsafe impl<T> Sync for Ptr<T> {}
// SAFETY: tasks write disjoint elements, which are `Send`.
unsafe impl<T> Sync for PtrMut<T> {}

/// Runs of [`map`].
struct Map<A, C, F>(PtrMut<C>, Ptr<A>, F);

impl<A: Element, C: Element, F: Fn(A) -> C + Sync> Runs<2> for Map<A, C, F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(&self, _: I, at: [isize; 2], step: [isize; 2], n: usize) {
        // SAFETY: the caller keeps the elements from `at` on inside both operands, without
        // concurrent writes.
        let (c, a) = unsafe { (self.0.0.offset(at[0]), self.1.0.offset(at[1])) };
        match step {
            // SAFETY: the caller keeps the `n` elements of both operands valid at these steps.
            [1, 1] => (0..n).for_each(|i| unsafe { *c.add(i) = self.2(*a.add(i)) }),
            [1, 0] => {
                // SAFETY: the caller keeps `a` readable.
                let value = unsafe { self.2(*a) };
                // SAFETY: the caller keeps the `n` elements of `c` writable.
                (0..n).for_each(|i| unsafe { *c.add(i) = value });
            }
            // SAFETY: the caller keeps the `n` elements of both operands valid at these steps.
            [t, s] => (0..n as isize).for_each(|i| unsafe { *c.offset(i * t) = self.2(*a.offset(i * s)) }),
        }
    }
}

/// Runs of [`zip`].
struct Zip<A, B, C, F>(PtrMut<C>, Ptr<A>, Ptr<B>, F);

impl<A: Element, B: Element, C: Element, F: Fn(A, B) -> C + Sync> Runs<3> for Zip<A, B, C, F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(&self, _: I, at: [isize; 3], step: [isize; 3], n: usize) {
        // SAFETY: the caller keeps the elements from `at` on inside all operands, without
        // concurrent writes.
        let (c, a, b) = unsafe { (self.0.0.offset(at[0]), self.1.0.offset(at[1]), self.2.0.offset(at[2])) };
        match step {
            // SAFETY: the caller keeps the `n` elements of all operands valid at these steps.
            [1, 1, 1] => (0..n).for_each(|i| unsafe { *c.add(i) = self.3(*a.add(i), *b.add(i)) }),
            [1, 1, 0] => {
                // SAFETY: the caller keeps `b` readable.
                let b = unsafe { *b };
                // SAFETY: the caller keeps the `n` elements of `c` and `a` valid at these steps.
                (0..n).for_each(|i| unsafe { *c.add(i) = self.3(*a.add(i), b) });
            }
            [1, 0, 1] => {
                // SAFETY: the caller keeps `a` readable.
                let a = unsafe { *a };
                // SAFETY: the caller keeps the `n` elements of `c` and `b` valid at these steps.
                (0..n).for_each(|i| unsafe { *c.add(i) = self.3(a, *b.add(i)) });
            }
            // SAFETY: the caller keeps the `n` elements of all operands valid at these steps.
            [t, s, r] => (0..n as isize).for_each(|i| unsafe { *c.offset(i * t) = self.3(*a.offset(i * s), *b.offset(i * r)) }),
        }
    }
}

/// Runs of [`zip3`].
struct Zip3<A, B, D, C, F>(PtrMut<C>, Ptr<A>, Ptr<B>, Ptr<D>, F);

impl<A: Element, B: Element, D: Element, C: Element, F: Fn(A, B, D) -> C + Sync> Runs<4> for Zip3<A, B, D, C, F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(&self, _: I, at: [isize; 4], step: [isize; 4], n: usize) {
        // SAFETY: the caller keeps the elements from `at` on inside all operands, without
        // concurrent writes.
        let (c, a) = unsafe { (self.0.0.offset(at[0]), self.1.0.offset(at[1])) };
        // SAFETY: `at` is inside the operands by the caller's contract.
        let (b, d) = unsafe { (self.2.0.offset(at[2]), self.3.0.offset(at[3])) };
        if step == [1; 4] {
            // SAFETY: the caller keeps the `n` elements of all operands valid at these steps.
            return (0..n).for_each(|i| unsafe { *c.add(i) = self.4(*a.add(i), *b.add(i), *d.add(i)) });
        }
        let [t, s, r, q] = step;
        for i in 0..n as isize {
            // SAFETY: the caller keeps the `n` elements of all operands valid at these steps.
            unsafe { *c.offset(i * t) = self.4(*a.offset(i * s), *b.offset(i * r), *d.offset(i * q)) };
        }
    }
}

/// Reads up to [`BLOCK`] elements from `p` with a stride into `f32`s.
///
/// # Safety
/// The elements are readable.
#[inline(always)]
unsafe fn widen<T: Float, I: Isa>(isa: I, p: *const T, step: isize, n: usize, to: &mut [f32; BLOCK]) {
    if step != 1 {
        for (i, slot) in to.iter_mut().enumerate().take(n) {
            // SAFETY: the caller ensures `n` valid elements at this step.
            *slot = unsafe { (*p.offset(i as isize * step)).to_f32() };
        }
        return;
    }
    let mut i = 0;
    while i < n {
        let left = n - i;
        // SAFETY: `n` elements are readable, as the caller promised; BLOCK is a multiple of LANES,
        // so a vector at `i` fits the buffer.
        unsafe {
            let v = if left >= I::LANES { T::load(isa, p.add(i)) } else { load_partial(isa, p.add(i), left) };
            isa.store(to.as_mut_ptr().add(i), v);
        }
        i += I::LANES;
    }
}

/// The reverse of [`widen`], rounding.
///
/// # Safety
/// The elements are writable.
#[inline(always)]
unsafe fn narrow<T: Float, I: Isa>(isa: I, p: *mut T, step: isize, n: usize, from: &[f32; BLOCK]) {
    if step != 1 {
        for (i, &x) in from.iter().enumerate().take(n) {
            // SAFETY: the caller ensures `n` valid elements at this step.
            unsafe { *p.offset(i as isize * step) = T::from_f32(x) };
        }
        return;
    }
    let mut i = 0;
    while i < n {
        let left = n - i;
        // SAFETY: the caller ensures `n` valid elements at this step.
        unsafe {
            let v = isa.load(from.as_ptr().add(i));
            if left >= I::LANES { T::store(isa, p.add(i), v) } else { store_partial(isa, p.add(i), v, left) }
        }
        i += I::LANES;
    }
}

/// `c[i] = f(a[i])`
///
/// # Safety
/// Both have `n` elements.
#[inline(always)]
unsafe fn map_lanes<A: Float, C: Float, I: Isa>(isa: I, c: *mut C, a: *const A, n: usize, f: impl Fn(f32) -> f32) {
    let whole = n / I::LANES * I::LANES;
    let mut x = [0.0; MOST_LANES];
    // SAFETY: both have `n` elements, as the caller promised; the array holds a vector.
    unsafe {
        for i in (0..whole).step_by(I::LANES) {
            isa.store(x.as_mut_ptr(), A::load(isa, a.add(i)));
            x[..I::LANES].iter_mut().for_each(|x| *x = f(*x));
            C::store(isa, c.add(i), isa.load(x.as_ptr()));
        }
        (whole..n).for_each(|i| *c.add(i) = C::from_f32(f((*a.add(i)).to_f32())));
    }
}

/// `c[i] = f(a[i], b[i])`, or `b[0]` for all where it is `fixed`.
///
/// # Safety
/// All three have `n` elements; a fixed `b` has one.
#[inline(always)]
unsafe fn zip_lanes<A: Float, B: Float, C: Float, I: Isa>(
    isa: I,
    c: *mut C,
    a: *const A,
    b: *const B,
    fixed: bool,
    n: usize,
    f: &impl Fn(f32, f32) -> f32,
) {
    // SAFETY: the caller gives all operands `n` elements, or one for a fixed `b`; the arrays hold a
    // vector.
    unsafe {
        if fixed {
            let b = (*b).to_f32();
            return map_lanes(isa, c, a, n, |a| f(a, b));
        }
        let whole = n / I::LANES * I::LANES;
        let (mut x, mut y) = ([0.0; MOST_LANES], [0.0; MOST_LANES]);
        for i in (0..whole).step_by(I::LANES) {
            isa.store(x.as_mut_ptr(), A::load(isa, a.add(i)));
            isa.store(y.as_mut_ptr(), B::load(isa, b.add(i)));
            x[..I::LANES].iter_mut().zip(&y[..I::LANES]).for_each(|(x, &y)| *x = f(*x, y));
            C::store(isa, c.add(i), isa.load(x.as_ptr()));
        }
        (whole..n).for_each(|i| *c.add(i) = C::from_f32(f((*a.add(i)).to_f32(), (*b.add(i)).to_f32())));
    }
}

struct MapLanes<A, C, F>(PtrMut<C>, Ptr<A>, F);

impl<A: Float, C: Float, F: Fn(f32) -> f32 + Sync> Runs<2> for MapLanes<A, C, F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(&self, isa: I, at: [isize; 2], step: [isize; 2], n: usize) {
        // SAFETY: the caller keeps the `n` elements of both operands valid.
        unsafe {
            let (c, a) = (self.0.0.offset(at[0]), self.1.0.offset(at[1]));
            if step == [1, 1] {
                return map_lanes(isa, c, a, n, &self.2);
            }
            for i in 0..n as isize {
                *c.offset(i * step[0]) = C::from_f32(self.2((*a.offset(i * step[1])).to_f32()));
            }
        }
    }
}

struct MapFloat<A, C, F>(PtrMut<C>, Ptr<A>, F);

impl<A: Float, C: Float, F: Fn(&mut [f32; BLOCK]) + Sync> Runs<2> for MapFloat<A, C, F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(&self, isa: I, at: [isize; 2], step: [isize; 2], n: usize) {
        let mut block = [0.0; BLOCK];
        for i in (0..n).step_by(BLOCK) {
            let (m, i) = (BLOCK.min(n - i), i as isize);
            // SAFETY: these are some of the `n` elements that the caller keeps valid.
            unsafe {
                widen(isa, self.1.0.offset(at[1] + i * step[1]), step[1], m, &mut block);
                (self.2)(&mut block);
                narrow(isa, self.0.0.offset(at[0] + i * step[0]), step[0], m, &block);
            }
        }
    }
}

struct ZipFloat<A, B, C, F>(PtrMut<C>, Ptr<A>, Ptr<B>, F);

impl<A: Float, B: Float, C: Float, F: Fn(f32, f32) -> f32 + Sync> Runs<3> for ZipFloat<A, B, C, F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(&self, isa: I, at: [isize; 3], step: [isize; 3], n: usize) {
        if step[0] == 1 && step[1] == 1 && (step[2] == 1 || step[2] == 0) {
            // SAFETY: the caller keeps the `n` elements of all operands valid.
            return unsafe {
                let (c, a) = (self.0.0.offset(at[0]), self.1.0.offset(at[1]));
                zip_lanes(isa, c, a, self.2.0.offset(at[2]), step[2] == 0, n, &self.3)
            };
        }
        let (mut a, mut b) = ([0.0; BLOCK], [0.0; BLOCK]);
        for i in (0..n).step_by(BLOCK) {
            let (m, i) = (BLOCK.min(n - i), i as isize);
            // SAFETY: these are some of the `n` elements that the caller keeps valid.
            unsafe {
                widen(isa, self.1.0.offset(at[1] + i * step[1]), step[1], m, &mut a);
                widen(isa, self.2.0.offset(at[2] + i * step[2]), step[2], m, &mut b);
                a.iter_mut().zip(&b).for_each(|(a, &b)| *a = self.3(*a, b));
                narrow(isa, self.0.0.offset(at[0] + i * step[0]), step[0], m, &a);
            }
        }
    }
}

/// Broadcasts `x` to `out` and executes the runs that `runs` makes from the starts of both.
fn execute_map<A: Element, C: Element, R: Runs<2>>(
    pool: &Pool,
    x: &View<A>,
    out: &mut ViewMut<C>,
    runs: impl FnOnce(PtrMut<C>, Ptr<A>) -> R,
) -> Result<(), Error> {
    let x = x.broadcast_to(out.shape())?;
    let walk = Walk::new(out.shape(), [out.strides(), x.strides()]);
    // SAFETY: the walk and the pointers come from these views.
    unsafe { execute(pool, &walk, &runs(PtrMut(out.origin()), Ptr(x.origin()))) };
    Ok(())
}

/// As [`execute_map`], with two operands.
fn execute_zip<A: Element, B: Element, C: Element, R: Runs<3>>(
    pool: &Pool,
    (a, b): (&View<A>, &View<B>),
    out: &mut ViewMut<C>,
    runs: impl FnOnce(PtrMut<C>, Ptr<A>, Ptr<B>) -> R,
) -> Result<(), Error> {
    let (a, b) = (a.broadcast_to(out.shape())?, b.broadcast_to(out.shape())?);
    let walk = Walk::new(out.shape(), [out.strides(), a.strides(), b.strides()]);
    // SAFETY: the walk and the pointers come from these views.
    unsafe { execute(pool, &walk, &runs(PtrMut(out.origin()), Ptr(a.origin()), Ptr(b.origin()))) };
    Ok(())
}

/// `out[i] = f(x[i])`.
///
/// # Errors
/// [`Error::Broadcast`] if `x` does not broadcast to `out`.
pub fn map<A: Element, C: Element, F: Fn(A) -> C + Sync>(
    pool: &Pool,
    x: &View<A>,
    out: &mut ViewMut<C>,
    f: F,
) -> Result<(), Error> {
    execute_map(pool, x, out, |to, x| Map(to, x, f))
}

/// `out[i] = f(a[i], b[i])`.
///
/// # Errors
/// [`Error::Broadcast`] if an operand does not broadcast to `out`.
pub fn zip<A: Element, B: Element, C: Element, F: Fn(A, B) -> C + Sync>(
    pool: &Pool,
    a: &View<A>,
    b: &View<B>,
    out: &mut ViewMut<C>,
    f: F,
) -> Result<(), Error> {
    execute_zip(pool, (a, b), out, |to, a, b| Zip(to, a, b, f))
}

/// `out[i] = f(a[i], b[i], d[i])`.
///
/// # Errors
/// [`Error::Broadcast`] if an operand does not broadcast to `out`.
pub fn zip3<A: Element, B: Element, D: Element, C: Element, F: Fn(A, B, D) -> C + Sync>(
    pool: &Pool,
    (a, b, d): (&View<A>, &View<B>, &View<D>),
    out: &mut ViewMut<C>,
    f: F,
) -> Result<(), Error> {
    let (a, b, d) = (a.broadcast_to(out.shape())?, b.broadcast_to(out.shape())?, d.broadcast_to(out.shape())?);
    let walk = Walk::new(out.shape(), [out.strides(), a.strides(), b.strides(), d.strides()]);
    let runs = Zip3(PtrMut(out.origin()), Ptr(a.origin()), Ptr(b.origin()), Ptr(d.origin()), f);
    // SAFETY: the walk is made from these views.
    unsafe { execute(pool, &walk, &runs) };
    Ok(())
}

/// `out[i] = condition[i] ? a[i] : b[i]`.
///
/// # Errors
/// [`Error::Broadcast`] if an operand does not broadcast to `out`.
pub fn select<T: Element>(
    pool: &Pool,
    condition: &View<Bool>,
    a: &View<T>,
    b: &View<T>,
    out: &mut ViewMut<T>,
) -> Result<(), Error> {
    zip3(pool, (condition, a, b), out, |c, a, b| if c.get() { a } else { b })
}

/// `out[i] = f(x[i])` in `f32`, rounded once to the output's type.
///
/// # Errors
/// [`Error::Broadcast`] if `x` does not broadcast to `out`.
pub fn map_float<A: Float, C: Float, F: Fn(f32) -> f32 + Sync>(
    pool: &Pool,
    x: &View<A>,
    out: &mut ViewMut<C>,
    f: F,
) -> Result<(), Error> {
    execute_map(pool, x, out, |to, x| MapLanes(to, x, f))
}

/// `out[i] = op(x[i])` in `f32`, rounded once to the output's type.
///
/// # Errors
/// [`Error::Broadcast`] if `x` does not broadcast to `out`.
pub fn unary<T: Float>(pool: &Pool, op: Unary, x: &View<T>, out: &mut ViewMut<T>) -> Result<(), Error> {
    let cpu = pool.cpu();
    map_blocks(pool, x, out, move |block| apply_block(cpu, op, block))
}

/// [`map_float`] with a function of whole blocks, some of whose elements may be unused.
fn map_blocks<T: Float, F: Fn(&mut [f32; BLOCK]) + Sync>(
    pool: &Pool,
    x: &View<T>,
    out: &mut ViewMut<T>,
    f: F,
) -> Result<(), Error> {
    execute_map(pool, x, out, |to, x| MapFloat(to, x, f))
}

/// `out[i] = f(a[i], b[i])` in `f32`, rounded once to the output's type.
///
/// # Errors
/// [`Error::Broadcast`] if an operand does not broadcast to `out`.
pub fn zip_float<A: Float, B: Float, C: Float, F: Fn(f32, f32) -> f32 + Sync>(
    pool: &Pool,
    a: &View<A>,
    b: &View<B>,
    out: &mut ViewMut<C>,
    f: F,
) -> Result<(), Error> {
    execute_zip(pool, (a, b), out, |to, a, b| ZipFloat(to, a, b, f))
}

/// `data[i] = f(data[i])`.
pub fn map_in_place<T: Element, F: Fn(T) -> T + Sync>(pool: &Pool, data: &mut [T], f: F) {
    pool.run_chunks(data, GRAIN, |_, chunk| chunk.iter_mut().for_each(|x| *x = f(*x)));
}

#[cfg(test)]
mod tests;
