//! Reading codes out of packed words, a vector at a time.

use super::{Format, QMatrix, Scales};
use crate::{
    Float,
    simd::{Isa, load_partial},
};

/// One way to code values. A lane of a vector takes `WORDS` words, which hold `CODES` whole codes.
pub(super) trait Code: Copy + Send + Sync + 'static {
    const BITS: u32;
    const WORDS: usize;
    const CODES: usize;
    /// The values of all codes in bf16, where they are exact and few.
    const TABLE: Option<[u16; 32]> = None;

    /// The value of the low `BITS` bits of each lane; the bits above are noise.
    fn value<I: Isa>(isa: I, low: I::U) -> I::V;

    /// Code `j` of each lane.
    #[inline(always)]
    fn decode<I: Isa>(isa: I, words: &[I::U; MAX_WORDS], j: usize) -> I::V {
        let bit = j as u32 * Self::BITS;
        let (word, shift) = ((bit / 32) as usize, bit % 32);
        let mut low = if shift == 0 { words[word] } else { isa.shr(words[word], shift) };
        if shift + Self::BITS > 32 {
            low = isa.or(low, isa.shl(words[word + 1], 32 - shift));
        }
        Self::value(isa, low)
    }
}

/// The most words that a lane takes.
pub(super) const MAX_WORDS: usize = 5;

/// Unsigned integers.
#[derive(Clone, Copy)]
pub(super) struct Bits<const B: u32>;

impl<const B: u32> Code for Bits<B> {
    const BITS: u32 = B;
    const WORDS: usize = match B {
        3 | 5 => B as usize,
        6 => 3,
        _ => 1,
    };
    const CODES: usize = Self::WORDS * 32 / B as usize;
    const TABLE: Option<[u16; 32]> = if B == 4 { Some(bf16_table(&DIGITS)) } else { None };

    #[inline(always)]
    fn value<I: Isa>(isa: I, low: I::U) -> I::V {
        if B == 4 { isa.nibble(low) } else { isa.int_to_float(isa.and(low, isa.splat_u((1 << B) - 1))) }
    }
}

const DIGITS: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// Values that are exact in bf16, twice over.
const fn bf16_table(values: &[f32; 16]) -> [u16; 32] {
    let mut table = [0; 32];
    let mut i = 0;
    while i < 32 {
        table[i] = (values[i % 16].to_bits() >> 16) as u16;
        i += 1;
    }
    table
}

const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// E2M1.
#[derive(Clone, Copy)]
pub(super) struct Fp4;

impl Code for Fp4 {
    const BITS: u32 = 4;
    const WORDS: usize = 1;
    const CODES: usize = 8;
    const TABLE: Option<[u16; 32]> = Some(bf16_table(&E2M1));

    #[inline(always)]
    fn value<I: Isa>(isa: I, low: I::U) -> I::V {
        isa.lookup16(low, &E2M1)
    }
}

/// E4M3.
#[derive(Clone, Copy)]
pub(super) struct Fp8;

impl Code for Fp8 {
    const BITS: u32 = 8;
    const WORDS: usize = 1;
    const CODES: usize = 4;

    #[inline(always)]
    fn value<I: Isa>(isa: I, low: I::U) -> I::V {
        let magnitude = isa.shl(isa.and(low, isa.splat_u(0x7f)), 20);
        let sign = isa.shl(isa.and(low, isa.splat_u(0x80)), 24);
        // The exponent bias is 7 instead of 127; the product is exact, for subnormal codes too.
        isa.mul(isa.with_bits(isa.or(magnitude, sign)), isa.splat(f32::from_bits((127 + 120) << 23)))
    }
}

/// Binds `$code` to the type that reads `$format`.
macro_rules! with_code {
    ($format:expr, $code:ident => $body:expr) => {
        match ($format, $format.bits()) {
            (Format::Nvfp4 | Format::Mxfp4, _) => {
                type $code = crate::quant::code::Fp4;
                $body
            }
            (Format::Mxfp8, _) => {
                type $code = crate::quant::code::Fp8;
                $body
            }
            (_, 2) => {
                type $code = crate::quant::code::Bits<2>;
                $body
            }
            (_, 3) => {
                type $code = crate::quant::code::Bits<3>;
                $body
            }
            (_, 4) => {
                type $code = crate::quant::code::Bits<4>;
                $body
            }
            (_, 5) => {
                type $code = crate::quant::code::Bits<5>;
                $body
            }
            (_, 6) => {
                type $code = crate::quant::code::Bits<6>;
                $body
            }
            _ => {
                type $code = crate::quant::code::Bits<8>;
                $body
            }
        }
    };
}
pub(super) use with_code;

/// E4M3 in `f32`.
fn e4m3(code: u8) -> f32 {
    let bits = u32::from(code & 0x7f) << 20 | u32::from(code & 0x80) << 24;
    f32::from_bits(bits) * f32::from_bits((127 + 120) << 23)
}

/// E8M0 in `f32`: 2^(code − 127); 255 reads as ∞.
fn e8m0(code: u8) -> f32 {
    f32::from_bits(if code == 0 { 1 << 22 } else { u32::from(code) << 23 })
}

/// Writes entries `start..start + n` of `scales` to `to`, as `f32`.
#[inline(always)]
pub(super) fn read_scales<I: Isa>(isa: I, format: Format, scales: Scales, start: usize, to: &mut [f32]) {
    match scales {
        Scales::F32(s) => widen(isa, &s[start..][..to.len()], to),
        Scales::F16(s) => widen(isa, &s[start..][..to.len()], to),
        Scales::BF16(s) => widen(isa, &s[start..][..to.len()], to),
        Scales::U8(s) => {
            let decode = if format == Format::Nvfp4 { e4m3 } else { e8m0 };
            to.iter_mut().zip(&s[start..]).for_each(|(t, &s)| *t = decode(s));
        }
    }
}

/// `to[i] = from[i]` for slices of one length.
#[inline(always)]
pub(super) fn widen<T: Float, I: Isa>(isa: I, from: &[T], to: &mut [f32]) {
    let n = from.len().min(to.len());
    let mut i = 0;
    while i + I::LANES <= n {
        // SAFETY: the vector lies inside both slices.
        unsafe { isa.store(to.as_mut_ptr().add(i), T::load(isa, from.as_ptr().add(i))) };
        i += I::LANES;
    }
    if i < n {
        let mut lanes = [0.0; 16];
        // SAFETY: `n - i` elements are left, fewer than LANES, and LANES is at most 16.
        unsafe { isa.store(lanes.as_mut_ptr(), load_partial(isa, from.as_ptr().add(i), n - i)) };
        to[i..n].copy_from_slice(&lanes[..n - i]);
    }
}

/// Writes values `cols` of row `row` to `to`, dequantized; `start` is a multiple of 16.
#[inline(always)]
pub(super) fn read_row<C: Code, I: Isa>(isa: I, w: &QMatrix, row: usize, start: usize, to: &mut [f32]) {
    let words = &w.words[row * w.row_words()..(row + 1) * w.row_words()];
    let group = w.format.group();
    let lane_bits = scale_lanes::<I, C>(isa, isa.lane_numbers());
    let mut spill = [0u32; 16];
    let (mut scale, mut bias) = ([0.0], [0.0]);
    for (i, run) in to.chunks_mut(I::LANES).enumerate() {
        let col = start + i * I::LANES;
        if i == 0 || col.is_multiple_of(group) {
            let at = row * w.row_groups() + col / group;
            read_scales(isa, w.format, w.scales, at, &mut scale);
            if let Some(biases) = w.biases {
                read_scales(isa, w.format, biases, at, &mut bias);
            }
        }
        let bit = col * C::BITS as usize;
        let rest = &words[bit / 32..];
        let source = if rest.len() >= I::LANES {
            rest.as_ptr()
        } else {
            spill[..rest.len()].copy_from_slice(rest);
            spill.as_ptr()
        };
        // SAFETY: LANES words are readable there.
        let packed = unsafe { isa.load_u(source) };
        let at = isa.add_u(lane_bits, isa.splat_u(bit as u32 % 32));
        let q = C::value(isa, unpack::<I, C>(isa, packed, at));
        let value = isa.fma(q, isa.splat(scale[0]), isa.splat(bias[0]));
        let mut lanes = [0.0; 16];
        // SAFETY: LANES is at most 16.
        unsafe { isa.store(lanes.as_mut_ptr(), value) };
        run.copy_from_slice(&lanes[..run.len()]);
    }
}

/// Lane numbers times `BITS`.
#[inline(always)]
fn scale_lanes<I: Isa, C: Code>(isa: I, lanes: I::U) -> I::U {
    let mut sum = isa.splat_u(0);
    for bit in 0..4 {
        if C::BITS >> bit & 1 == 1 {
            sum = isa.add_u(sum, isa.shl(lanes, bit));
        }
    }
    sum
}

/// The bits of `packed` from bit `at` on, in the low part of each lane.
#[inline(always)]
fn unpack<I: Isa, C: Code>(isa: I, packed: I::U, at: I::U) -> I::U {
    let word = isa.shr(at, 5);
    let shift = isa.and(at, isa.splat_u(31));
    let low = isa.shr_each(isa.permute_u(packed, word), shift);
    if 32 % C::BITS == 0 {
        return low;
    }
    let last = isa.splat_u(I::LANES as u32 - 1);
    let next = isa.and(isa.add_u(word, isa.splat_u(1)), last);
    isa.or(low, isa.shl_each(isa.permute_u(packed, next), isa.sub_u(isa.splat_u(32), shift)))
}
