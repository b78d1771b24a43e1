//! Processes elements of any type in blocks of `i64` or `f32`: one loop for all types instead of
//! one per combination.
//!
//! Wrapping arithmetic in 64 bits gives the same low bits as in fewer, so integers are exact once
//! truncated to their type.

use flambeau_tensor::Bool;
use half::{bf16, f16};

use super::{Runs, execute};
use crate::{Error, Pool, Strides, View, ViewMut, element_cast::CastTo, simd::Isa, view::Walk};

/// Elements that are widened at a time.
pub const BLOCK: usize = 64;

/// Widened integers and booleans.
pub type Ints = [i64; BLOCK];

/// Widened floats.
pub type Floats = [f32; BLOCK];

/// Reads `to.len()` elements, `step` apart.
///
/// # Safety
/// They are readable.
unsafe fn read<T: CastTo<V>, V>(p: *const T, step: isize, to: &mut [V]) {
    for (i, slot) in to.iter_mut().enumerate() {
        // SAFETY: the caller makes these elements readable.
        *slot = unsafe { *p.offset(i as isize * step) }.cast_to();
    }
}

/// Writes `from.len()` elements, `step` apart.
///
/// # Safety
/// They are writable, and no other thread touches them.
unsafe fn write<T, V: CastTo<T>>(p: *mut T, step: isize, from: &[V]) {
    for (i, &v) in from.iter().enumerate() {
        // SAFETY: the caller makes these elements writable, and no other thread accesses them.
        unsafe { *p.offset(i as isize * step) = v.cast_to() };
    }
}

macro_rules! types {
    ($($name:ident: $t:ty),*) => {
        /// A read-only view whose element type is a value.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "named as the types are")]
        pub enum AnyView<'a> { $($name(View<'a, $t>)),* }

        /// A writable view whose element type is a value.
        #[derive(Debug)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "named as the types are")]
        pub enum AnyViewMut<'a> { $($name(ViewMut<'a, $t>)),* }

        $(impl<'a> From<View<'a, $t>> for AnyView<'a> {
            fn from(view: View<'a, $t>) -> AnyView<'a> {
                AnyView::$name(view)
            }
        }

        impl<'a> From<ViewMut<'a, $t>> for AnyViewMut<'a> {
            fn from(view: ViewMut<'a, $t>) -> AnyViewMut<'a> {
                AnyViewMut::$name(view)
            }
        })*

        /// Element 0 of a view. Users must ensure that the accessed memory is valid.
        #[derive(Clone, Copy)]
        enum Ptr { $($name(*mut $t)),* }

        // SAFETY: only unsafe functions dereference it. Their callers ensure exclusive or read-only
        // use.
        unsafe impl Sync for Ptr {}
        // SAFETY: only unsafe functions dereference it. Their callers ensure exclusive or read-only
        // use.
        unsafe impl Send for Ptr {}

        impl AnyView<'_> {
            fn broadcast_to(&self, shape: &[usize]) -> Result<(Ptr, Strides), Error> {
                match self { $(AnyView::$name(view) => {
                    let view = view.broadcast_to(shape)?;
                    Ok((Ptr::$name(view.origin().cast_mut()), view.strides().into()))
                }),* }
            }
        }

        impl AnyViewMut<'_> {
            fn parts(&mut self) -> (Ptr, &[usize], &[isize]) {
                match self { $(AnyViewMut::$name(view) => (Ptr::$name(view.origin()), view.shape(), view.strides())),* }
            }
        }

        impl Ptr {
            /// # Safety
            /// The elements `at + i · step` are readable.
            unsafe fn ints(self, at: isize, step: isize, to: &mut [i64]) {
                // SAFETY: the caller makes these elements readable.
                unsafe { match self { $(Ptr::$name(p) => read(p.offset(at), step, to)),* } }
            }

            /// # Safety
            /// As for [`ints`](Self::ints).
            unsafe fn floats(self, at: isize, step: isize, to: &mut [f32]) {
                // SAFETY: the caller makes these elements readable.
                unsafe { match self { $(Ptr::$name(p) => read(p.offset(at), step, to)),* } }
            }

            /// # Safety
            /// The elements `at + i · step` are writable, and no other thread touches them.
            unsafe fn put_ints(self, at: isize, step: isize, from: &[i64]) {
                // SAFETY: the caller makes these elements writable, and no other thread accesses
                // them.
                unsafe { match self { $(Ptr::$name(p) => write(p.offset(at), step, from)),* } }
            }

            /// # Safety
            /// As for [`put_ints`](Self::put_ints).
            unsafe fn put_floats(self, at: isize, step: isize, from: &[f32]) {
                // SAFETY: the caller makes these elements writable, and no other thread accesses
                // them.
                unsafe { match self { $(Ptr::$name(p) => write(p.offset(at), step, from)),* } }
            }
        }
    };
}
types!(U8: u8, I8: i8, I16: i16, U16: u16, I32: i32, I64: i64, U32: u32, Bool: Bool, F32: f32, F16: f16, BF16: bf16);

/// The work on a block. Elements after the end of a run are arbitrary.
enum Work<'a> {
    Ints(&'a (dyn Fn(&mut Ints) + Sync)),
    IntPairs(&'a (dyn Fn(&mut Ints, &Ints) + Sync)),
    FloatComparison(&'a (dyn Fn(&Floats, &Floats, &mut Ints) + Sync)),
    FloatsAsTheyAre,
}

struct Blocks<'a> {
    work: Work<'a>,
    out: Ptr,
    a: Ptr,
    b: Ptr,
}

impl Runs<3> for Blocks<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(&self, _: I, at: [isize; 3], step: [isize; 3], n: usize) {
        // SAFETY: the caller keeps the `n` elements of each operand valid, and no other thread
        // accesses the written ones.
        unsafe { self.all(at, step, n) }
    }
}

impl Blocks<'_> {
    /// # Safety
    /// As for [`Runs::run`].
    unsafe fn all(&self, at: [isize; 3], step: [isize; 3], n: usize) {
        for i in (0..n).step_by(BLOCK) {
            let len = BLOCK.min(n - i);
            let at: [isize; 3] = std::array::from_fn(|x| at[x] + i as isize * step[x]);
            // SAFETY: these are some of the `n` elements that the caller keeps valid.
            unsafe { self.block(at, step, len) };
        }
    }

    /// # Safety
    /// The `len` elements of each operand are valid, and no other thread accesses the written ones.
    unsafe fn block(&self, at: [isize; 3], step: [isize; 3], len: usize) {
        let (mut a, mut b): (Ints, Ints) = ([0; BLOCK], [0; BLOCK]);
        let (mut x, mut y): (Floats, Floats) = ([0.0; BLOCK], [0.0; BLOCK]);
        // SAFETY: the caller keeps the `len` elements of each operand valid, and no other thread
        // accesses the written ones.
        unsafe {
            match self.work {
                Work::Ints(f) => {
                    self.a.ints(at[1], step[1], &mut a[..len]);
                    f(&mut a);
                }
                Work::IntPairs(f) => {
                    self.a.ints(at[1], step[1], &mut a[..len]);
                    self.b.ints(at[2], step[2], &mut b[..len]);
                    f(&mut a, &b);
                }
                Work::FloatComparison(f) => {
                    self.a.floats(at[1], step[1], &mut x[..len]);
                    self.b.floats(at[2], step[2], &mut y[..len]);
                    f(&x, &y, &mut a);
                }
                Work::FloatsAsTheyAre => {
                    self.a.floats(at[1], step[1], &mut x[..len]);
                    return self.out.put_floats(at[0], step[0], &x[..len]);
                }
            }
            self.out.put_ints(at[0], step[0], &a[..len]);
        }
    }
}

fn run(pool: &Pool, work: Work<'_>, [a, b]: [&AnyView<'_>; 2], out: &mut AnyViewMut<'_>) -> Result<(), Error> {
    let (target, shape, strides) = out.parts();
    let ((a, a_strides), (b, b_strides)) = (a.broadcast_to(shape)?, b.broadcast_to(shape)?);
    let walk = Walk::new(shape, [strides, &a_strides, &b_strides]);
    // SAFETY: the walk is made from these views.
    unsafe { execute(pool, &walk, &Blocks { work, out: target, a, b }) };
    Ok(())
}

/// `out[i] = f(x[i])` over integers or booleans; the result is cut to the output's type.
///
/// # Errors
/// [`Error::Broadcast`] if `x` does not broadcast to `out`.
pub fn map_ints(pool: &Pool, x: &AnyView, out: &mut AnyViewMut, f: &(dyn Fn(&mut Ints) + Sync)) -> Result<(), Error> {
    run(pool, Work::Ints(f), [x, x], out)
}

/// `out[i] = f(a[i], b[i])` over integers or booleans; `f` writes its results over its first
/// operand; they are truncated to the output's type.
///
/// # Errors
/// [`Error::Broadcast`] if an operand does not broadcast to `out`.
pub fn zip_ints(
    pool: &Pool,
    a: &AnyView,
    b: &AnyView,
    out: &mut AnyViewMut,
    f: &(dyn Fn(&mut Ints, &Ints) + Sync),
) -> Result<(), Error> {
    run(pool, Work::IntPairs(f), [a, b], out)
}

/// `out[i] = f(a[i], b[i])` over floats, the results being 0 or 1.
///
/// # Errors
/// [`Error::Broadcast`] if an operand does not broadcast to `out`.
pub fn compare_floats(
    pool: &Pool,
    a: &AnyView,
    b: &AnyView,
    out: &mut AnyViewMut,
    f: &(dyn Fn(&Floats, &Floats, &mut Ints) + Sync),
) -> Result<(), Error> {
    run(pool, Work::FloatComparison(f), [a, b], out)
}

/// `out[i] = x[i]` in another element type, by the rules of [`CastTo`].
///
/// # Errors
/// [`Error::Broadcast`] if `x` does not broadcast to `out`.
pub fn cast(pool: &Pool, x: &AnyView, out: &mut AnyViewMut) -> Result<(), Error> {
    let is_float = matches!(x, AnyView::F32(_) | AnyView::F16(_) | AnyView::BF16(_));
    run(pool, if is_float { Work::FloatsAsTheyAre } else { Work::Ints(&|_| ()) }, [x, x], out)
}
