//! AVX2 with FMA and F16C: eight lanes.

use std::arch::x86_64::*;

use super::{
    Isa, IsaKind, Kernel,
    avx512::{Avx512, PLAIN},
};

/// Proof that the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Avx2> {
        let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }

    /// AVX-512 was found together with FMA and F16C, and implies AVX2.
    pub(super) fn implied(_: Avx512<PLAIN>) -> Avx2 {
        Avx2(())
    }

    #[inline(always)]
    pub(crate) fn enter<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<K: Kernel>(isa: Avx2, kernel: K) -> K::Out {
            kernel.run(isa)
        }
        // SAFETY: `self` proves these features.
        unsafe { inner(self, kernel) }
    }
}

/// Positions of sixteen codes in a stream: the two bytes of each code, and the factor that shifts
/// it to the top of 16 bits.
struct Halves {
    bytes: [u8; 32],
    factors: [u16; 16],
}

impl Halves {
    const fn new(bits: usize) -> Halves {
        let mut halves = Halves { bytes: [0; 32], factors: [0; 16] };
        let mut i = 0;
        while i < 16 {
            let (byte, bit) = (i * bits / 8, i * bits % 8);
            halves.bytes[2 * i] = byte as u8;
            // A code that ends in the last byte needs none after it.
            halves.bytes[2 * i + 1] = if byte < 15 { (byte + 1) as u8 } else { 15 };
            halves.factors[i] = 1 << (16 - bits - bit);
            i += 1;
        }
        halves
    }
}

#[inline(always)]
unsafe fn halves(a: __m256) -> (__m128, __m128) {
    // SAFETY: only called from methods whose `self` proves AVX.
    unsafe { (_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a)) }
}

/// The sums of both halves' lanes.
#[inline(always)]
unsafe fn fold(a: __m256) -> __m128 {
    // SAFETY: only called from methods whose `self` proves AVX.
    unsafe {
        let (low, high) = halves(a);
        _mm_add_ps(low, high)
    }
}

/// Turns 4·4 words in each half.
#[inline(always)]
unsafe fn turn_halves([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: only called from methods whose `self` proves AVX2.
    unsafe {
        let (ab, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

impl Isa for Avx2 {
    type V = __m256;
    type U = __m256i;
    type M = __m256;
    const LANES: usize = 8;
    const KIND: IsaKind = IsaKind::Avx2;
    const DOT_I16: bool = true;

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: nothing is read.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: `self` proves the instructions; four floats are writable.
        unsafe {
            let (a, b, c, d) = (fold(a), fold(b), fold(c), fold(d));
            let ab = _mm_add_ps(_mm_shuffle_ps::<0x44>(a, b), _mm_shuffle_ps::<0xee>(a, b));
            let cd = _mm_add_ps(_mm_shuffle_ps::<0x44>(c, d), _mm_shuffle_ps::<0xee>(c, d));
            let ones = _mm_add_ps(_mm_shuffle_ps::<0x88>(ab, cd), _mm_shuffle_ps::<0xdd>(ab, cd));
            _mm_storeu_ps(sums.as_mut_ptr(), ones);
        }
        sums
    }

    #[inline(always)]
    unsafe fn spread<const BITS: u32>(self, p: *const u8) -> __m256i {
        let lane = |i: u32| (i * BITS / 8) as i32 | ((i * BITS / 8 + 1) as i32) << 8 | 0x8080_0000_u32 as i32;
        let shift = |i: u32| (i * BITS % 8) as i32;
        // SAFETY: `self` proves the instructions; `p` points to 16 readable bytes.
        unsafe {
            let stream = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
            let bytes = _mm256_setr_epi32(lane(0), lane(1), lane(2), lane(3), lane(4), lane(5), lane(6), lane(7));
            let shifts = _mm256_setr_epi32(shift(0), shift(1), shift(2), shift(3), shift(4), shift(5), shift(6), shift(7));
            _mm256_srlv_epi32(_mm256_shuffle_epi8(stream, bytes), shifts)
        }
    }

    #[inline(always)]
    unsafe fn spread_halves<const BITS: u32>(self, p: *const u8) -> __m256i {
        // SAFETY: the caller makes the bytes at `p` readable.
        unsafe { self.unpack_halves::<BITS>(p) }
    }

    #[inline(always)]
    unsafe fn unpack_halves<const BITS: u32>(self, p: *const u8) -> __m256i {
        let table = const { &Halves::new(BITS as usize) };
        // SAFETY: `self` proves the instructions; `p` points to 32 readable bytes, and sixteen
        // codes need at most 16.
        unsafe {
            let stream = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
            let near = _mm256_shuffle_epi8(stream, _mm256_loadu_si256(table.bytes.as_ptr().cast()));
            // There is no shift by half; a product moves each code to the top of its half.
            let high = _mm256_mullo_epi16(near, _mm256_loadu_si256(table.factors.as_ptr().cast()));
            _mm256_srl_epi16(high, _mm_cvtsi32_si128(16 - BITS as i32))
        }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: *const u32, from_step: usize, to: *mut u32, to_step: usize) {
        // SAFETY: the caller ensures valid memory for every access; `self` proves the instructions.
        unsafe {
            let (mut top, mut bottom) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
            for i in 0..4 {
                top[i] = _mm256_loadu_si256(from.add(i * from_step).cast());
                bottom[i] = _mm256_loadu_si256(from.add((4 + i) * from_step).cast());
            }
            let (top, bottom) = (turn_halves(top), turn_halves(bottom));
            for c in 0..4 {
                let (low, high) =
                    (_mm256_permute2x128_si256::<0x20>(top[c], bottom[c]), _mm256_permute2x128_si256::<0x31>(top[c], bottom[c]));
                _mm256_storeu_si256(to.add(c * to_step).cast(), low);
                _mm256_storeu_si256(to.add((4 + c) * to_step).cast(), high);
            }
        }
    }

    memory_methods! {
        fn load(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        fn store(p: *mut f32, v: __m256) = _mm256_storeu_ps(p, v);
        fn load_bf16(p: *const u16) -> __m256 =
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
        fn load_i8(p: *const i8) -> __m256 = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
        fn store_u16(p: *mut u16, v: __m256i) = {
            let low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
            let packed = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low));
            _mm_storeu_si128(p.cast(), packed)
        };
        fn load_f16(p: *const u16) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        fn store_f16(p: *mut u16, v: __m256) = _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        fn load_u(p: *const u32) -> __m256i = _mm256_loadu_si256(p.cast());
        fn load_u_strided(p: *const u32, stride: usize) -> __m256i = {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_i32gather_epi32::<4>(p.cast(), _mm256_mullo_epi32(lanes, _mm256_set1_epi32(stride as i32)))
        };
    }
    methods! {
        fn splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        fn sqrt(a: __m256) -> __m256 = _mm256_sqrt_ps(a);
        fn round(a: __m256) -> __m256 = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        fn sum(a: __m256) -> f32 = {
            let four = fold(a);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        };
        fn max_lane(a: __m256) -> f32 = {
            let (low, high) = halves(a);
            let four = _mm_max_ps(low, high);
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        };
        fn bits(a: __m256) -> __m256i = _mm256_castps_si256(a);
        fn with_bits(a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
        fn splat_u(x: u32) -> __m256i = _mm256_set1_epi32(x as i32);
        fn and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        fn or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        fn add_u(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        fn sub_u(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
        fn shl(a: __m256i, n: u32) -> __m256i = _mm256_sllv_epi32(a, _mm256_set1_epi32(n as i32));
        fn shr(a: __m256i, n: u32) -> __m256i = _mm256_srlv_epi32(a, _mm256_set1_epi32(n as i32));
        fn int_to_float(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        fn float_to_int(a: __m256) -> __m256i = _mm256_cvtps_epi32(a);
        fn dot_i16(sum: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        fn lookup_bytes(a: __m256i, table: &[u8; 16]) -> __m256i =
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), a);
        fn lookup16(a: __m256i, table: &[f32; 16]) -> __m256 = {
            let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), a);
            let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), a);
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(a)))
        };
        fn permute(a: __m256, from: __m256i) -> __m256 = _mm256_permutevar8x32_ps(a, from);
        fn permute_u(a: __m256i, from: __m256i) -> __m256i = _mm256_permutevar8x32_epi32(a, from);
        fn shl_each(a: __m256i, n: __m256i) -> __m256i = _mm256_sllv_epi32(a, n);
        fn shr_each(a: __m256i, n: __m256i) -> __m256i = _mm256_srlv_epi32(a, n);
        fn lt(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        fn is_nan(a: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a);
        fn select(m: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, m);
    }
}
