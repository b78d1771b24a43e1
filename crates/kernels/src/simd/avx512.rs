//! AVX-512: sixteen lanes.

use std::arch::x86_64::*;

use super::{Isa, IsaKind, Kernel, avx2::Avx2, words};

/// Nothing beyond F, BW, DQ and VL.
pub(super) const PLAIN: u8 = 0;
/// BF16.
const BF16: u8 = 1;
/// VNNI and VBMI.
const BYTES: u8 = 2;

/// Proof that the CPU has AVX-512 F, BW, DQ and VL (and AVX2, FMA, F16C), plus the features of
/// `EXTENSION`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512<const EXTENSION: u8>(());

/// Extensions of a CPU with AVX-512.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extensions {
    pub(super) bf16: Option<Avx512<BF16>>,
    pub(super) bytes: Option<Avx512<BYTES>>,
}

impl Extensions {
    pub(super) fn detect() -> Extensions {
        Extensions { bf16: Avx512::detect(), bytes: Avx512::detect() }
    }
}

impl<const EXTENSION: u8> Avx512<EXTENSION> {
    pub(crate) fn detect() -> Option<Avx512<EXTENSION>> {
        let extended = match EXTENSION {
            BF16 => is_x86_feature_detected!("avx512bf16"),
            BYTES => is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vbmi"),
            _ => true,
        };
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && extended;
        found.then_some(Avx512(()))
    }
}

impl Avx512<PLAIN> {
    /// Every CPU with AVX-512 has AVX2, FMA and F16C.
    pub(crate) fn avx2(self) -> Avx2 {
        Avx2::implied(self)
    }
}

/// Runs a kernel with an extension enabled.
macro_rules! enter {
    ($extension:ident, $features:literal) => {
        impl Avx512<$extension> {
            #[inline(always)]
            pub(crate) fn enter<K: Kernel>(self, kernel: K) -> K::Out {
                #[target_feature(enable = $features)]
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,popcnt,lzcnt")]
                fn inner<K: Kernel>(isa: Avx512<$extension>, kernel: K) -> K::Out {
                    kernel.run(isa)
                }
                // SAFETY: `self` proves AVX-512 and the extension; every CPU with them has the
                // older ones.
                unsafe { inner(self, kernel) }
            }
        }
    };
}
enter!(PLAIN, "avx512f");
enter!(BF16, "avx512bf16");
enter!(BYTES, "avx512vnni,avx512vbmi");

/// Positions of 64 codes in a stream: the source bytes for each eight codes, and their shifts.
struct Eights {
    bytes: [u8; 64],
    shifts: [u8; 64],
}

impl Eights {
    const fn new(bits: usize) -> Eights {
        let mut eights = Eights { bytes: [0; 64], shifts: [0; 64] };
        let mut i = 0;
        while i < 64 {
            eights.bytes[i] = (i / 8 * bits + i % 8) as u8;
            eights.shifts[i] = (i % 8 * bits) as u8;
            i += 1;
        }
        eights
    }
}

/// Byte indices and shifts that extract each of 16 words (32 halves), in 128-bit quarters.
struct Spread {
    bytes: [u8; 64],
    words: [u32; 16],
    halves: [u16; 32],
    quarters: [u32; 16],
    half_bytes: [u8; 64],
}

impl Spread {
    const fn new(bits: usize) -> Spread {
        let mut s = Spread { bytes: [0; 64], words: [0; 16], halves: [0; 32], quarters: [0; 16], half_bytes: [0; 64] };
        let mut i = 0;
        while i < 16 {
            let bit = i * bits;
            s.words[i] = (bit % 8) as u32;
            s.bytes[4 * i] = (bit / 8) as u8;
            // A code reaches into the next byte at most; the rest of the word is noise.
            s.bytes[4 * i + 1] = if bit / 8 < 15 { (bit / 8 + 1) as u8 } else { 15 };
            s.bytes[4 * i + 2] = 0x80;
            s.bytes[4 * i + 3] = 0x80;
            i += 1;
        }
        let mut q = 0;
        while q < 4 {
            let first = q * bits / 4;
            let mut d = 0;
            while d < 4 {
                s.quarters[4 * q + d] = if first + d < 8 { (first + d) as u32 } else { 7 };
                d += 1;
            }
            let mut h = 0;
            while h < 8 {
                let bit = (q * bits - 4 * first) * 8 + h * bits;
                s.halves[8 * q + h] = (bit % 8) as u16;
                s.half_bytes[2 * (8 * q + h)] = (bit / 8) as u8;
                s.half_bytes[2 * (8 * q + h) + 1] = if bit / 8 < 15 { (bit / 8 + 1) as u8 } else { 15 };
                h += 1;
            }
            q += 1;
        }
        s
    }
}

/// Turns 4·4 words in each quarter.
#[inline(always)]
unsafe fn turn_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: only called from methods whose `self` proves AVX-512.
    unsafe {
        let (ab, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

impl<const EXTENSION: u8> Isa for Avx512<EXTENSION> {
    type V = __m512;
    type U = __m512i;
    type M = __mmask16;
    const LANES: usize = 16;
    const KIND: IsaKind = IsaKind::Avx512;
    const DOT: bool = EXTENSION == BF16;
    const DOT_BYTES: bool = EXTENSION == BYTES;

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: nothing is read.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: `self` proves the instructions; four floats are writable.
        unsafe {
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
            // A quarter of the vector for each.
            let fours = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            let twos = _mm512_add_ps(fours, _mm512_permute_ps::<0x4e>(fours));
            let ones = _mm512_add_ps(twos, _mm512_permute_ps::<0xb1>(twos));
            let firsts = _mm512_maskz_compress_ps(0x1111, ones);
            _mm_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps128(firsts));
        }
        sums
    }

    #[inline(always)]
    unsafe fn spread<const BITS: u32>(self, p: *const u8) -> __m512i {
        const { assert!(BITS <= 8) };
        let table = const { &Spread::new(BITS as usize) };
        // SAFETY: `self` proves the instructions; `p` points to 16 readable bytes.
        unsafe {
            let stream = _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast()));
            let near = _mm512_shuffle_epi8(stream, _mm512_loadu_si512(table.bytes.as_ptr().cast()));
            _mm512_srlv_epi32(near, _mm512_loadu_si512(table.words.as_ptr().cast()))
        }
    }

    #[inline(always)]
    unsafe fn spread_halves<const BITS: u32>(self, p: *const u8) -> __m512i {
        const { assert!(BITS <= 8) };
        let table = const { &Spread::new(BITS as usize) };
        // SAFETY: `self` proves the instructions; `p` points to 32 readable bytes.
        unsafe {
            let stream = _mm512_castsi256_si512(_mm256_loadu_si256(p.cast()));
            let quarters = _mm512_permutexvar_epi32(_mm512_loadu_si512(table.quarters.as_ptr().cast()), stream);
            let near = _mm512_shuffle_epi8(quarters, _mm512_loadu_si512(table.half_bytes.as_ptr().cast()));
            _mm512_srlv_epi16(near, _mm512_loadu_si512(table.halves.as_ptr().cast()))
        }
    }

    #[inline(always)]
    fn dot_bytes(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if Self::DOT_BYTES {
            // SAFETY: `self` proves VNNI.
            unsafe { _mm512_dpbusd_epi32(sum, a, b) }
        } else {
            words::dot_bytes(self, sum, a, b)
        }
    }

    #[inline(always)]
    unsafe fn unpack_bytes<const BITS: u32>(self, p: *const u8) -> __m512i {
        const { assert!(BITS <= 8) };
        let table = const { &Eights::new(BITS as usize) };
        // SAFETY: `self` proves the instructions; `p` points to 64 readable bytes.
        unsafe {
            if !Self::DOT_BYTES {
                return words::unpack_bytes::<Self, BITS>(self, p);
            }
            let eights = _mm512_permutexvar_epi8(_mm512_loadu_si512(table.bytes.as_ptr().cast()), _mm512_loadu_si512(p.cast()));
            let near = _mm512_multishift_epi64_epi8(_mm512_loadu_si512(table.shifts.as_ptr().cast()), eights);
            _mm512_and_si512(near, _mm512_set1_epi8((0xffu8 >> (8 - BITS)) as i8))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: __m512) {
        // SAFETY: the caller ensures valid memory for every access; `self` proves the instructions,
        // including BF16 where used.
        unsafe {
            if Self::DOT {
                let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
                _mm256_storeu_si256(p.cast(), rounded);
            } else {
                self.store_u16(p, self.bf16_bits(v));
            }
        }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: *const u32, from_step: usize, to: *mut u32, to_step: usize) {
        // SAFETY: the caller ensures valid memory for every access; `self` proves the instructions.
        unsafe {
            let mut fours = [[_mm512_setzero_si512(); 4]; 4];
            for (f, four) in fours.iter_mut().enumerate() {
                for (i, row) in four.iter_mut().enumerate() {
                    *row = _mm512_loadu_si512(from.add((4 * f + i) * from_step).cast());
                }
                *four = turn_quarters(*four);
            }
            let [first, second, third, fourth] = fours;
            for (c, (((a, b), c4), d)) in first.into_iter().zip(second).zip(third).zip(fourth).enumerate() {
                // Quarter `q` of each belongs to column `4q + c`.
                let (low, high) = (_mm512_shuffle_i32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b));
                let (low2, high2) = (_mm512_shuffle_i32x4::<0b01_00_01_00>(c4, d), _mm512_shuffle_i32x4::<0b11_10_11_10>(c4, d));
                let columns = [
                    _mm512_shuffle_i32x4::<0b10_00_10_00>(low, low2),
                    _mm512_shuffle_i32x4::<0b11_01_11_01>(low, low2),
                    _mm512_shuffle_i32x4::<0b10_00_10_00>(high, high2),
                    _mm512_shuffle_i32x4::<0b11_01_11_01>(high, high2),
                ];
                for (q, column) in columns.into_iter().enumerate() {
                    _mm512_storeu_si512(to.add((4 * q + c) * to_step).cast(), column);
                }
            }
        }
    }

    methods! {
        fn dot_bf16(sum: __m512, a: __m512i, b: __m512i) -> __m512 = {
            if Self::DOT {
                // Any bits are valid in both types, which are of one size.
                _mm512_dpbf16_ps(sum, std::mem::transmute::<__m512i, __m512bh>(a), std::mem::transmute::<__m512i, __m512bh>(b))
            } else {
                let lows = (_mm512_slli_epi32::<16>(a), _mm512_slli_epi32::<16>(b));
                let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                let highs = (_mm512_and_si512(a, mask), _mm512_and_si512(b, mask));
                let sum = _mm512_fmadd_ps(_mm512_castsi512_ps(lows.0), _mm512_castsi512_ps(lows.1), sum);
                _mm512_fmadd_ps(_mm512_castsi512_ps(highs.0), _mm512_castsi512_ps(highs.1), sum)
            }
        };
        fn lookup_bytes(a: __m512i, table: &[u8; 16]) -> __m512i =
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), a);
        fn lookup32(a: __m512i, table: &[u16; 32]) -> __m512i =
            _mm512_permutexvar_epi16(a, _mm512_loadu_si512(table.as_ptr().cast()));
        fn scale_by_power(y: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(y, n);
    }

    memory_methods! {
        fn load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        fn store(p: *mut f32, v: __m512) = _mm512_storeu_ps(p, v);
        fn load_bf16(p: *const u16) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
        fn load_i8(p: *const i8) -> __m512 = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
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
