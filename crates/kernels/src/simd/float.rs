//! Element types that kernels compute on as `f32`.

use flambeau_tensor::Element;
use half::{bf16, f16};

use super::Isa;

/// A float storage type: arithmetic happens in `f32`, stores round to nearest even.
pub trait Float: Element {
    /// Exact.
    fn to_f32(self) -> f32;
    /// Rounded to nearest even.
    fn from_f32(x: f32) -> Self;
    /// `x` rounded to this type and widened again.
    #[inline(always)]
    fn round(x: f32) -> f32 {
        Self::from_f32(x).to_f32()
    }
    /// Each lane rounded to this type and widened again.
    #[doc(hidden)]
    #[inline(always)]
    fn round_lanes<I: Isa>(isa: I, v: I::V) -> I::V {
        let mut lanes = [Self::from_f32(0.0); 16];
        // SAFETY: LANES is at most 16.
        unsafe {
            Self::store(isa, lanes.as_mut_ptr(), v);
            Self::load(isa, lanes.as_ptr())
        }
    }
    /// # Safety
    /// `I::LANES` elements are readable at `p`.
    #[doc(hidden)]
    unsafe fn load<I: Isa>(isa: I, p: *const Self) -> I::V;
    /// # Safety
    /// `I::LANES` elements are writable at `p`.
    #[doc(hidden)]
    unsafe fn store<I: Isa>(isa: I, p: *mut Self, v: I::V);
}

impl Float for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn round_lanes<I: Isa>(_: I, v: I::V) -> I::V {
        v
    }
    #[inline(always)]
    unsafe fn load<I: Isa>(isa: I, p: *const f32) -> I::V {
        // SAFETY: `p` points to at least LANES valid elements.
        unsafe { isa.load(p) }
    }
    #[inline(always)]
    unsafe fn store<I: Isa>(isa: I, p: *mut f32, v: I::V) {
        // SAFETY: `p` points to at least LANES valid elements.
        unsafe { isa.store(p, v) }
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        bf16::from_bits(if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded })
    }
    #[inline(always)]
    fn round_lanes<I: Isa>(isa: I, v: I::V) -> I::V {
        isa.with_bits(isa.shl(isa.bf16_bits(v), 16))
    }
    #[inline(always)]
    unsafe fn load<I: Isa>(isa: I, p: *const bf16) -> I::V {
        // SAFETY: `p` points to at least LANES valid elements; bf16 is a transparent u16.
        unsafe { isa.load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<I: Isa>(isa: I, p: *mut bf16, v: I::V) {
        // SAFETY: `p` points to at least LANES valid elements; bf16 is a transparent u16.
        unsafe { isa.store_bf16(p.cast(), v) }
    }
}

impl Float for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f16 {
        f16::from_f32(x)
    }
    #[inline(always)]
    unsafe fn load<I: Isa>(isa: I, p: *const f16) -> I::V {
        // SAFETY: `p` points to at least LANES valid elements; f16 is a transparent u16.
        unsafe { isa.load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<I: Isa>(isa: I, p: *mut f16, v: I::V) {
        // SAFETY: `p` points to at least LANES valid elements; f16 is a transparent u16.
        unsafe { isa.store_f16(p.cast(), v) }
    }
}

/// Loads `n <= LANES` elements; the other lanes are zero.
///
/// # Safety
/// `n` elements are readable at `p`.
#[inline(always)]
pub(crate) unsafe fn load_partial<T: Float, I: Isa>(isa: I, p: *const T, n: usize) -> I::V {
    let mut lanes = [T::from_f32(0.0); 16];
    for (i, lane) in lanes.iter_mut().enumerate().take(n) {
        // SAFETY: `i < n`.
        *lane = unsafe { *p.add(i) };
    }
    // SAFETY: LANES is at most 16.
    unsafe { T::load(isa, lanes.as_ptr()) }
}

/// Stores the first `n <= LANES` lanes.
///
/// # Safety
/// `n` elements are writable at `p`.
#[inline(always)]
pub(crate) unsafe fn store_partial<T: Float, I: Isa>(isa: I, p: *mut T, v: I::V, n: usize) {
    let mut lanes = [T::from_f32(0.0); 16];
    // SAFETY: LANES is at most 16.
    unsafe { T::store(isa, lanes.as_mut_ptr(), v) };
    for (i, &lane) in lanes.iter().enumerate().take(n) {
        // SAFETY: `i < n`.
        unsafe { *p.add(i) = lane };
    }
}
