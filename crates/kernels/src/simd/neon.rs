//! NEON: four lanes.

use std::arch::aarch64::*;

use half::f16;

use super::{Isa, IsaKind};

/// Every 64-bit Arm CPU that the target names has NEON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    pub(crate) fn new() -> Neon {
        Neon(())
    }
}

impl Isa for Neon {
    type V = float32x4_t;
    type U = uint32x4_t;
    type M = uint32x4_t;
    const LANES: usize = 4;
    const KIND: IsaKind = IsaKind::Neon;

    memory_methods! {
        fn load(p: *const f32) -> float32x4_t = vld1q_f32(p);
        fn store(p: *mut f32, v: float32x4_t) = vst1q_f32(p, v);
        fn load_bf16(p: *const u16) -> float32x4_t = vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p)));
        fn load_i8(p: *const i8) -> float32x4_t = {
            let four = p.cast::<u32>().read_unaligned();
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(u64::from(four))))))
        };
        fn store_u16(p: *mut u16, v: uint32x4_t) = vst1_u16(p, vmovn_u32(v));
        fn load_f16(p: *const u16) -> float32x4_t = {
            let lanes: [f32; 4] = std::array::from_fn(|i| f16::from_bits(*p.add(i)).to_f32());
            vld1q_f32(lanes.as_ptr())
        };
        fn store_f16(p: *mut u16, v: float32x4_t) = {
            let mut lanes = [0.0; 4];
            vst1q_f32(lanes.as_mut_ptr(), v);
            for (i, x) in lanes.into_iter().enumerate() {
                *p.add(i) = f16::from_f32(x).to_bits();
            }
        };
        fn load_u(p: *const u32) -> uint32x4_t = vld1q_u32(p);
        fn load_u_strided(p: *const u32, stride: usize) -> uint32x4_t = {
            let lanes: [u32; 4] = std::array::from_fn(|i| *p.add(i * stride));
            vld1q_u32(lanes.as_ptr())
        };
    }
    methods! {
        fn splat(x: f32) -> float32x4_t = vdupq_n_f32(x);
        fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
        fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t = vdivq_f32(a, b);
        fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
        fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmaxq_f32(a, b);
        fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t = vminq_f32(a, b);
        fn sqrt(a: float32x4_t) -> float32x4_t = vsqrtq_f32(a);
        fn round(a: float32x4_t) -> float32x4_t = vrndnq_f32(a);
        fn sum(a: float32x4_t) -> f32 = vaddvq_f32(a);
        fn max_lane(a: float32x4_t) -> f32 = vmaxvq_f32(a);
        fn bits(a: float32x4_t) -> uint32x4_t = vreinterpretq_u32_f32(a);
        fn with_bits(a: uint32x4_t) -> float32x4_t = vreinterpretq_f32_u32(a);
        fn splat_u(x: u32) -> uint32x4_t = vdupq_n_u32(x);
        fn and(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vandq_u32(a, b);
        fn or(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vorrq_u32(a, b);
        fn add_u(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vaddq_u32(a, b);
        fn sub_u(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vsubq_u32(a, b);
        fn shl(a: uint32x4_t, n: u32) -> uint32x4_t = vshlq_u32(a, vdupq_n_s32(n as i32));
        fn shr(a: uint32x4_t, n: u32) -> uint32x4_t = vshlq_u32(a, vdupq_n_s32(-(n as i32)));
        fn int_to_float(a: uint32x4_t) -> float32x4_t = vcvtq_f32_s32(vreinterpretq_s32_u32(a));
        fn float_to_int(a: float32x4_t) -> uint32x4_t = vreinterpretq_u32_s32(vcvtnq_s32_f32(a));
        fn lookup16(a: uint32x4_t, table: &[f32; 16]) -> float32x4_t = {
            let mut index = [0u32; 4];
            vst1q_u32(index.as_mut_ptr(), a);
            vld1q_f32(index.map(|i| table[(i & 15) as usize]).as_ptr())
        };
        fn permute(a: float32x4_t, from: uint32x4_t) -> float32x4_t = {
            let (mut lanes, mut index) = ([0.0; 4], [0u32; 4]);
            vst1q_f32(lanes.as_mut_ptr(), a);
            vst1q_u32(index.as_mut_ptr(), from);
            vld1q_f32(index.map(|i| lanes[(i & 3) as usize]).as_ptr())
        };
        fn permute_u(a: uint32x4_t, from: uint32x4_t) -> uint32x4_t = {
            let (mut lanes, mut index) = ([0u32; 4], [0u32; 4]);
            vst1q_u32(lanes.as_mut_ptr(), a);
            vst1q_u32(index.as_mut_ptr(), from);
            vld1q_u32(index.map(|i| lanes[(i & 3) as usize]).as_ptr())
        };
        fn shl_each(a: uint32x4_t, n: uint32x4_t) -> uint32x4_t = vshlq_u32(a, vreinterpretq_s32_u32(n));
        fn shr_each(a: uint32x4_t, n: uint32x4_t) -> uint32x4_t = vshlq_u32(a, vnegq_s32(vreinterpretq_s32_u32(n)));
        fn lt(a: float32x4_t, b: float32x4_t) -> uint32x4_t = vcltq_f32(a, b);
        fn is_nan(a: float32x4_t) -> uint32x4_t = vmvnq_u32(vceqq_f32(a, a));
        fn select(m: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(m, a, b);
    }
}
