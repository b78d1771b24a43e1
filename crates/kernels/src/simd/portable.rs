//! Plain Rust arrays of four lanes.

use half::f16;

use super::{Isa, IsaKind, Kernel};
use crate::Float;

/// Needs nothing of the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

const N: usize = 4;

/// One expression per lane, unrolled. Kernels contain thousands of these, and loops would cost more
/// compile time than all other instruction sets together.
macro_rules! lanes {
    (|$i:ident| $lane:expr) => {
        [
            {
                let $i = 0;
                $lane
            },
            {
                let $i = 1;
                $lane
            },
            {
                let $i = 2;
                $lane
            },
            {
                let $i = 3;
                $lane
            },
        ]
    };
}

impl Portable {
    /// Not inlined, as for the other instruction sets: a kernel is compiled once, for all its
    /// callers.
    #[inline(never)]
    pub(crate) fn enter<K: Kernel>(self, kernel: K) -> K::Out {
        kernel.run(self)
    }
}

impl Isa for Portable {
    type V = [f32; N];
    type U = [u32; N];
    type M = [bool; N];
    const LANES: usize = N;
    const KIND: IsaKind = IsaKind::Portable;
    const TILES: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> [f32; N] {
        // SAFETY: `p` points to at least LANES valid elements.
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: [f32; N]) {
        // SAFETY: `p` points to at least LANES valid elements.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> [f32; N] {
        // SAFETY: `p` points to at least LANES valid elements.
        let bits = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        lanes!(|i| f32::from_bits(u32::from(bits[i]) << 16))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> [f32; N] {
        // SAFETY: `p` points to at least LANES valid elements.
        let codes = unsafe { p.cast::<[i8; N]>().read_unaligned() };
        lanes!(|i| f32::from(codes[i]))
    }
    #[inline(always)]
    unsafe fn store_u16(self, p: *mut u16, v: [u32; N]) {
        // SAFETY: `p` points to at least LANES valid elements.
        unsafe { p.cast::<[u16; N]>().write_unaligned(lanes!(|i| v[i] as u16)) }
    }
    #[inline(never)]
    unsafe fn load_f16(self, p: *const u16) -> [f32; N] {
        // SAFETY: `p` points to at least LANES valid elements.
        let bits = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        lanes!(|i| f16::from_bits(bits[i]).to_f32_const())
    }
    #[inline(never)]
    unsafe fn store_f16(self, p: *mut u16, v: [f32; N]) {
        // SAFETY: `p` points to at least LANES valid elements.
        unsafe { p.cast::<[u16; N]>().write_unaligned(lanes!(|i| <f16 as Float>::from_f32(v[i]).to_bits())) }
    }

    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn sqrt(self, a: [f32; N]) -> [f32; N] {
        lanes!(|i| a[i].sqrt())
    }
    #[inline(always)]
    fn round(self, a: [f32; N]) -> [f32; N] {
        // Adding 1.5 * 2^23 leaves no fraction bits, so the addition itself rounds to nearest even.
        const BIG: f32 = 12_582_912.0;
        lanes!(|i| (a[i] + BIG) - BIG)
    }
    #[inline(always)]
    fn sum(self, a: [f32; N]) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }
    #[inline(always)]
    fn max_lane(self, a: [f32; N]) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }

    #[inline(always)]
    fn bits(self, a: [f32; N]) -> [u32; N] {
        bytemuck::cast(a)
    }
    #[inline(always)]
    fn with_bits(self, a: [u32; N]) -> [f32; N] {
        bytemuck::cast(a)
    }
    #[inline(always)]
    fn splat_u(self, x: u32) -> [u32; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load_u(self, p: *const u32) -> [u32; N] {
        // SAFETY: `p` points to at least LANES valid elements.
        unsafe { p.cast::<[u32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_u_strided(self, p: *const u32, stride: usize) -> [u32; N] {
        // SAFETY: `p` points to LANES readable elements, `stride` apart.
        lanes!(|i| unsafe { p.add(i * stride).read_unaligned() })
    }
    #[inline(always)]
    fn and(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        lanes!(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn or(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        lanes!(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn add_u(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        lanes!(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn sub_u(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        lanes!(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn shl(self, a: [u32; N], n: u32) -> [u32; N] {
        lanes!(|i| a[i] << n)
    }
    #[inline(always)]
    fn shr(self, a: [u32; N], n: u32) -> [u32; N] {
        lanes!(|i| a[i] >> n)
    }
    #[inline(always)]
    fn int_to_float(self, a: [u32; N]) -> [f32; N] {
        lanes!(|i| a[i] as i32 as f32)
    }
    #[inline(always)]
    fn float_to_int(self, a: [f32; N]) -> [u32; N] {
        lanes!(|i| a[i] as i32 as u32)
    }
    #[inline(always)]
    fn lookup16(self, a: [u32; N], table: &[f32; 16]) -> [f32; N] {
        lanes!(|i| table[(a[i] & 15) as usize])
    }
    #[inline(always)]
    fn permute(self, a: [f32; N], from: [u32; N]) -> [f32; N] {
        lanes!(|i| a[from[i] as usize % N])
    }

    #[inline(always)]
    fn permute_u(self, a: [u32; N], from: [u32; N]) -> [u32; N] {
        lanes!(|i| a[from[i] as usize % N])
    }
    #[inline(always)]
    fn shl_each(self, a: [u32; N], n: [u32; N]) -> [u32; N] {
        lanes!(|i| a[i].checked_shl(n[i]).unwrap_or(0))
    }
    #[inline(always)]
    fn shr_each(self, a: [u32; N], n: [u32; N]) -> [u32; N] {
        lanes!(|i| a[i].checked_shr(n[i]).unwrap_or(0))
    }

    #[inline(always)]
    fn lt(self, a: [f32; N], b: [f32; N]) -> [bool; N] {
        lanes!(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn is_nan(self, a: [f32; N]) -> [bool; N] {
        lanes!(|i| a[i].is_nan())
    }
    #[inline(always)]
    fn select(self, m: [bool; N], a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(|i| if m[i] { a[i] } else { b[i] })
    }
}
