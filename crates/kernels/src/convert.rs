//! Float operands with a run-time type. Kernels are then compiled once, in this crate, instead of
//! once per combination of types and user.

use half::{bf16, f16};

use crate::{
    Float, FloatView, View,
    simd::{Cpu, Isa, Kernel, load_partial, store_partial},
};
use flambeau_tensor::DType;

/// A pointer to floats of one of the three types. Users must ensure that the accessed memory is
/// valid.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FloatPtr {
    F32(*mut f32),
    F16(*mut f16),
    BF16(*mut bf16),
}

// SAFETY: only unsafe functions dereference it. Their callers ensure exclusive or read-only use.
unsafe impl Sync for FloatPtr {}
// SAFETY: only unsafe functions dereference it. Their callers ensure exclusive or read-only use.
unsafe impl Send for FloatPtr {}

/// Runs `$body` with `$p` bound to the typed pointer.
macro_rules! with_float {
    ($ptr:expr, $p:ident => $body:expr) => {
        match $ptr {
            $crate::convert::FloatPtr::F32($p) => $body,
            $crate::convert::FloatPtr::F16($p) => $body,
            $crate::convert::FloatPtr::BF16($p) => $body,
        }
    };
}
pub(crate) use with_float;

impl FloatPtr {
    pub(crate) fn of<T: Float>(p: *mut T) -> FloatPtr {
        match T::DTYPE {
            DType::F16 => FloatPtr::F16(p.cast()),
            DType::BF16 => FloatPtr::BF16(p.cast()),
            _ => FloatPtr::F32(p.cast()),
        }
    }

    /// For reading only.
    pub(crate) fn reading<T: Float>(p: *const T) -> FloatPtr {
        FloatPtr::of(p.cast_mut())
    }

    /// # Safety
    /// The pointer stays inside its allocation.
    pub(crate) unsafe fn offset(self, n: isize) -> FloatPtr {
        // SAFETY: the caller keeps the pointer inside its allocation.
        unsafe {
            match self {
                FloatPtr::F32(p) => FloatPtr::F32(p.offset(n)),
                FloatPtr::F16(p) => FloatPtr::F16(p.offset(n)),
                FloatPtr::BF16(p) => FloatPtr::BF16(p.offset(n)),
            }
        }
    }

    /// The memory as words.
    pub(crate) fn words(self) -> *const u32 {
        with_float!(self, p => p.cast_const().cast())
    }

    /// Bytes of an element.
    pub(crate) fn dtype(self) -> DType {
        match self {
            FloatPtr::F32(_) => DType::F32,
            FloatPtr::F16(_) => DType::F16,
            FloatPtr::BF16(_) => DType::BF16,
        }
    }

    pub(crate) fn size(self) -> usize {
        self.dtype().size()
    }

    /// Reads `to.len()` elements, `step` apart.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn read(self, cpu: Cpu, step: isize, to: &mut [f32]) {
        // SAFETY: the caller makes the elements readable; `Read` has no other requirement.
        with_float!(self, p => cpu.dispatch(Read(p.cast_const(), step, to)));
    }

    /// Writes `from`, `step` apart, rounded to nearest even.
    ///
    /// # Safety
    /// The elements are writable, and no other thread touches them.
    pub(crate) unsafe fn write(self, cpu: Cpu, step: isize, from: &[f32]) {
        // SAFETY: the caller makes the elements writable and exclusive; `Write` has no other
        // requirement.
        with_float!(self, p => cpu.dispatch(Write(p, step, from)));
    }
}

/// `View` with its type as a value.
pub(crate) fn float_view<'a, T: Float>(view: &View<'a, T>) -> FloatView<'a> {
    match T::DTYPE {
        DType::F16 => FloatView::F16(view.reinterpret()),
        DType::BF16 => FloatView::BF16(view.reinterpret()),
        _ => FloatView::F32(view.reinterpret()),
    }
}

struct Read<'a, T>(*const T, isize, &'a mut [f32]);

impl<T: Float> Kernel for Read<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Read(p, step, to) = self;
        if step != 1 {
            for (i, slot) in to.iter_mut().enumerate() {
                // SAFETY: `FloatPtr::read` requires readable elements at this step.
                *slot = unsafe { (*p.offset(i as isize * step)).to_f32() };
            }
            return;
        }
        // SAFETY: `FloatPtr::read` requires as many readable elements as `to` has.
        unsafe { read_line(isa, p, to) };
    }
}

/// `to[i] = p[i]`
///
/// # Safety
/// As many elements are readable.
#[inline(always)]
pub(crate) unsafe fn read_line<T: Float, I: Isa>(isa: I, p: *const T, to: &mut [f32]) {
    let whole = to.len() / I::LANES * I::LANES;
    // SAFETY: the caller makes as many elements readable at `p`; vectors stay inside `to`.
    unsafe {
        for i in (0..whole).step_by(I::LANES) {
            isa.store(to.as_mut_ptr().add(i), T::load(isa, p.add(i)));
        }
        let rest = to.len() - whole;
        if rest > 0 {
            store_partial(isa, to.as_mut_ptr().add(whole), load_partial(isa, p.add(whole), rest), rest);
        }
    }
}

/// `p[i] = from[i]`, rounded to nearest even.
///
/// # Safety
/// As many elements are writable.
#[inline(always)]
pub(crate) unsafe fn write_line<T: Float, I: Isa>(isa: I, p: *mut T, from: &[f32]) {
    let whole = from.len() / I::LANES * I::LANES;
    // SAFETY: the caller makes as many elements writable at `p`; vectors stay inside `from`.
    unsafe {
        for i in (0..whole).step_by(I::LANES) {
            T::store(isa, p.add(i), isa.load(from.as_ptr().add(i)));
        }
        let rest = from.len() - whole;
        if rest > 0 {
            store_partial(isa, p.add(whole), load_partial(isa, from.as_ptr().add(whole), rest), rest);
        }
    }
}

struct Write<'a, T>(*mut T, isize, &'a [f32]);

impl<T: Float> Kernel for Write<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write(p, step, from) = self;
        if step != 1 {
            for (i, &x) in from.iter().enumerate() {
                // SAFETY: `FloatPtr::write` requires writable, exclusive elements at this step.
                unsafe { *p.offset(i as isize * step) = T::from_f32(x) };
            }
            return;
        }
        // SAFETY: `FloatPtr::write` requires as many writable, exclusive elements as `from` has.
        unsafe { write_line(isa, p, from) };
    }
}
