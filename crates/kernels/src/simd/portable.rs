//! Plain Rust arrays of eight lanes.

use half::f16;

use super::{Isa, IsaKind};
use crate::Float;

/// Needs nothing of the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

const N: usize = 8;

#[inline(always)]
fn map<A: Copy, B: Copy + Default>(a: [A; N], f: impl Fn(A) -> B) -> [B; N] {
    let mut out = [B::default(); N];
    for i in 0..N {
        out[i] = f(a[i]);
    }
    out
}

#[inline(always)]
fn zip<A: Copy, B: Copy + Default>(a: [A; N], b: [A; N], f: impl Fn(A, A) -> B) -> [B; N] {
    let mut out = [B::default(); N];
    for i in 0..N {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Isa for Portable {
    type V = [f32; N];
    type U = [u32; N];
    type M = [bool; N];
    const LANES: usize = N;
    const KIND: IsaKind = IsaKind::Portable;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> [f32; N] {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> [f32; N] {
        // SAFETY: the caller's promise.
        let bits = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        map(bits, |b| f32::from_bits(u32::from(b) << 16))
    }
    #[inline(always)]
    unsafe fn store_u16(self, p: *mut u16, v: [u32; N]) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u16; N]>().write_unaligned(map(v, |x| x as u16)) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> [f32; N] {
        // SAFETY: the caller's promise.
        let bits = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        map(bits, |b| f16::from_bits(b).to_f32_const())
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u16; N]>().write_unaligned(map(v, |x| <f16 as Float>::from_f32(x).to_bits())) }
    }

    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn sqrt(self, a: [f32; N]) -> [f32; N] {
        map(a, f32::sqrt)
    }
    #[inline(always)]
    fn round(self, a: [f32; N]) -> [f32; N] {
        // Adding 1.5 * 2^23 leaves no fraction bits, so the addition itself rounds to nearest even.
        const BIG: f32 = 12_582_912.0;
        map(a, |a| (a + BIG) - BIG)
    }
    #[inline(always)]
    fn sum(self, a: [f32; N]) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn max_lane(self, a: [f32; N]) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }

    #[inline(always)]
    fn bits(self, a: [f32; N]) -> [u32; N] {
        map(a, f32::to_bits)
    }
    #[inline(always)]
    fn with_bits(self, a: [u32; N]) -> [f32; N] {
        map(a, f32::from_bits)
    }
    #[inline(always)]
    fn splat_u(self, x: u32) -> [u32; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load_u(self, p: *const u32) -> [u32; N] {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_u_strided(self, p: *const u32, stride: usize) -> [u32; N] {
        // SAFETY: the caller's promise.
        std::array::from_fn(|i| unsafe { p.add(i * stride).read_unaligned() })
    }
    #[inline(always)]
    fn and(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn add_u(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        zip(a, b, u32::wrapping_add)
    }
    #[inline(always)]
    fn sub_u(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        zip(a, b, u32::wrapping_sub)
    }
    #[inline(always)]
    fn shl(self, a: [u32; N], n: u32) -> [u32; N] {
        map(a, |a| a << n)
    }
    #[inline(always)]
    fn shr(self, a: [u32; N], n: u32) -> [u32; N] {
        map(a, |a| a >> n)
    }
    #[inline(always)]
    fn int_to_float(self, a: [u32; N]) -> [f32; N] {
        map(a, |a| a as i32 as f32)
    }
    #[inline(always)]
    fn float_to_int(self, a: [f32; N]) -> [u32; N] {
        map(a, |a| a as i32 as u32)
    }
    #[inline(always)]
    fn lookup16(self, a: [u32; N], table: &[f32; 16]) -> [f32; N] {
        map(a, |a| table[(a & 15) as usize])
    }
    #[inline(always)]
    fn permute(self, a: [f32; N], from: [u32; N]) -> [f32; N] {
        map(from, |i| a[i as usize % N])
    }

    #[inline(always)]
    fn permute_u(self, a: [u32; N], from: [u32; N]) -> [u32; N] {
        map(from, |i| a[i as usize % N])
    }
    #[inline(always)]
    fn shl_each(self, a: [u32; N], n: [u32; N]) -> [u32; N] {
        zip(a, n, |a, n| a.checked_shl(n).unwrap_or(0))
    }
    #[inline(always)]
    fn shr_each(self, a: [u32; N], n: [u32; N]) -> [u32; N] {
        zip(a, n, |a, n| a.checked_shr(n).unwrap_or(0))
    }

    #[inline(always)]
    fn lt(self, a: [f32; N], b: [f32; N]) -> [bool; N] {
        zip(a, b, |a, b| a < b)
    }
    #[inline(always)]
    fn is_nan(self, a: [f32; N]) -> [bool; N] {
        map(a, f32::is_nan)
    }
    #[inline(always)]
    fn select(self, m: [bool; N], a: [f32; N], b: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| if m[i] { a[i] } else { b[i] })
    }
}
