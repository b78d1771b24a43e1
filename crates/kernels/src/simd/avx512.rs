//! AVX-512: sixteen lanes.

use std::arch::x86_64::*;

use super::{Isa, IsaKind, Kernel};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL (and AVX2, FMA, F16C).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

/// Proof that the CPU has AVX-512 BF16 as well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DotBf16(());

/// A computation that uses BF16 dot products.
pub(crate) trait DotKernel {
    type Out;
    /// Mark it `#[inline(always)]`.
    fn run(self, isa: Avx512, dot: DotBf16) -> Self::Out;
}

impl DotBf16 {
    /// Each lane of `sum` plus the products of both halves of its words, as bf16.
    #[inline(always)]
    pub(crate) fn accumulate(self, sum: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: `self` proves the instruction; the types are of one size, and any bits are valid in both.
        unsafe { _mm512_dpbf16_ps(sum, std::mem::transmute::<__m512i, __m512bh>(a), std::mem::transmute::<__m512i, __m512bh>(b)) }
    }

    /// Entry `a & 31` of the table for each 16-bit half.
    #[inline(always)]
    pub(crate) fn lookup32(self, a: __m512i, table: &[u16; 32]) -> __m512i {
        // SAFETY: AVX-512 BW comes with `self`; the table is as long as a vector.
        unsafe { _mm512_permutexvar_epi16(a, _mm512_loadu_si512(table.as_ptr().cast())) }
    }
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Avx512> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Avx512(()))
    }

    /// [`Avx512::enter`] with BF16 enabled as well.
    #[inline(always)]
    pub(crate) fn enter_with_dot<K: DotKernel>(self, dot: DotBf16, kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,bmi2,popcnt,lzcnt")]
        fn inner<K: DotKernel>(isa: Avx512, dot: DotBf16, kernel: K) -> K::Out {
            kernel.run(isa, dot)
        }
        // SAFETY: `self` and `dot` prove the AVX-512 features; every CPU with them has the older ones.
        unsafe { inner(self, dot, kernel) }
    }

    pub(crate) fn dot_bf16(self) -> Option<DotBf16> {
        is_x86_feature_detected!("avx512bf16").then_some(DotBf16(()))
    }

    #[inline(always)]
    pub(crate) fn enter<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,popcnt,lzcnt")]
        fn inner<K: Kernel>(isa: Avx512, kernel: K) -> K::Out {
            kernel.run(isa)
        }
        // SAFETY: `self` proves the AVX-512 features; every CPU with them has the older ones.
        unsafe { inner(self, kernel) }
    }
}

impl Isa for Avx512 {
    type V = __m512;
    type U = __m512i;
    type M = __mmask16;
    const LANES: usize = 16;
    const KIND: IsaKind = IsaKind::Avx512;

    memory_methods! {
        fn load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        fn store(p: *mut f32, v: __m512) = _mm512_storeu_ps(p, v);
        fn load_bf16(p: *const u16) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
        fn store_u16(p: *mut u16, v: __m512i) = _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(v));
        fn load_f16(p: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        fn store_f16(p: *mut u16, v: __m512) =
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v));
        fn load_u(p: *const u32) -> __m512i = _mm512_loadu_si512(p.cast());
        fn load_u_strided(p: *const u32, stride: usize) -> __m512i = {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_i32gather_epi32::<4>(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(stride as i32)), p.cast())
        };
    }
    methods! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn sqrt(a: __m512) -> __m512 = _mm512_sqrt_ps(a);
        fn round(a: __m512) -> __m512 = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT }>(a);
        fn sum(a: __m512) -> f32 = _mm512_reduce_add_ps(a);
        fn max_lane(a: __m512) -> f32 = _mm512_reduce_max_ps(a);
        fn bits(a: __m512) -> __m512i = _mm512_castps_si512(a);
        fn with_bits(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        fn splat_u(x: u32) -> __m512i = _mm512_set1_epi32(x as i32);
        fn and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn add_u(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn sub_u(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        fn shl(a: __m512i, n: u32) -> __m512i = _mm512_sllv_epi32(a, _mm512_set1_epi32(n as i32));
        fn shr(a: __m512i, n: u32) -> __m512i = _mm512_srlv_epi32(a, _mm512_set1_epi32(n as i32));
        fn int_to_float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        fn float_to_int(a: __m512) -> __m512i = _mm512_cvtps_epi32(a);
        fn lookup16(a: __m512i, table: &[f32; 16]) -> __m512 = _mm512_permutexvar_ps(a, _mm512_loadu_ps(table.as_ptr()));
        fn permute(a: __m512, from: __m512i) -> __m512 = _mm512_permutexvar_ps(from, a);
        fn permute_u(a: __m512i, from: __m512i) -> __m512i = _mm512_permutexvar_epi32(from, a);
        fn shl_each(a: __m512i, n: __m512i) -> __m512i = _mm512_sllv_epi32(a, n);
        fn shr_each(a: __m512i, n: __m512i) -> __m512i = _mm512_srlv_epi32(a, n);
        fn nibble(a: __m512i) -> __m512 = {
            let digits = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
            _mm512_permutexvar_ps(a, digits)
        };
        fn lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        fn is_nan(a: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
        fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(m, b, a);
    }
}
