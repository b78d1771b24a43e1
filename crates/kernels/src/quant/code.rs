//! Reading codes out of packed words, a vector at a time.

use std::ops::Range;

use flambeau_tensor::e4m3;

use super::{Format, QMatrix, Scales};
use crate::{
    Float,
    simd::{Cpu, Isa, Kernel, load_partial, store_partial},
};

/// One way to code values.
pub(super) trait Code: Copy + Send + Sync + 'static {
    const BITS: u32;
    /// Whether a word holds whole codes.
    const WHOLE: bool = 32 % Self::BITS == 0;
    /// Codes of a word.
    const CODES: usize = 32 / Self::BITS as usize;
    /// Values of all codes of up to five bits as bf16 (exact), repeated to fill 32 entries.
    const VALUES: Option<[u16; 32]>;

    /// The scale of [`Code::integers`]. `Some` if all values are multiples of one power of two and
    /// fit 12 bits and a sign.
    const UNIT: Option<f32>;

    /// Values of code `j` of each 16-bit half of the words, as `i16` in [`Code::UNIT`]s. Only for
    /// whole codes.
    fn integers<I: Isa>(isa: I, packed: I::U, j: usize) -> I::U;

    /// The meaning of the bytes of [`Code::bytes`], if [`Code::UNIT`] is `Some`.
    const BYTE: Byte = Byte { unit: 1.0, zero: 0.0, activations: if Self::BITS < 8 { 15 } else { 14 } };

    /// A vector of words for [`Code::bytes`]: words of the stream, or words of four codes each.
    ///
    /// # Safety
    /// A vector is readable.
    #[inline(always)]
    unsafe fn byte_words<I: Isa>(isa: I, stream: *const u8) -> I::U {
        // SAFETY: the caller makes a vector readable.
        unsafe { isa.load_u(stream.cast()) }
    }

    /// Code `j` of each byte's codes, as bytes with the meaning of [`Code::BYTE`].
    fn bytes<I: Isa>(isa: I, packed: I::U, j: usize) -> I::U;

    /// The value of the low `BITS` bits of each lane; the bits above are noise.
    fn value<I: Isa>(isa: I, low: I::U) -> I::V;

    /// Codes in their order, one a lane, from bit `bit` of the stream on, a multiple of 4.
    ///
    /// # Safety
    /// 16 bytes are readable from the byte on that the bit is in.
    unsafe fn at<I: Isa>(isa: I, stream: *const u8, bit: usize) -> I::U;

    /// Codes in their order, one a half.
    ///
    /// # Safety
    /// 32 bytes are readable.
    unsafe fn halves_at<I: Isa>(isa: I, stream: *const u8) -> I::U;

    /// [`Code::halves_at`] with zeros above the codes.
    ///
    /// # Safety
    /// 32 bytes are readable.
    unsafe fn exact_halves_at<I: Isa>(isa: I, stream: *const u8) -> I::U;
}

/// value = byte · unit − zero
pub(super) struct Byte {
    pub(super) unit: f32,
    pub(super) zero: f32,
    /// Bits, besides the sign, of the integer activations. With 15 their lower byte is unsigned,
    /// for which codes are below 128.
    pub(super) activations: u32,
}

/// Reading streams of `$bits` bits.
macro_rules! streams {
    ($bits:expr) => {
        #[inline(always)]
        unsafe fn at<I: Isa>(isa: I, stream: *const u8, bit: usize) -> I::U {
            // SAFETY: the caller makes 16 bytes readable from the bit's byte on.
            let codes = unsafe { isa.spread::<{ $bits }>(stream.add(bit / 8)) };
            // With fewer than eight lanes, vectors may start inside a byte.
            if I::LANES < 8 && bit % 8 != 0 { isa.shr(codes, (bit % 8) as u32) } else { codes }
        }
        #[inline(always)]
        unsafe fn halves_at<I: Isa>(isa: I, stream: *const u8) -> I::U {
            // SAFETY: the caller makes 32 bytes readable.
            unsafe { isa.spread_halves::<{ $bits }>(stream) }
        }
        #[inline(always)]
        unsafe fn exact_halves_at<I: Isa>(isa: I, stream: *const u8) -> I::U {
            // SAFETY: the caller makes 32 bytes readable.
            unsafe { isa.unpack_halves::<{ $bits }>(stream) }
        }
    };
}

/// Unsigned integers.
#[derive(Clone, Copy)]
pub(super) struct Bits<const B: u32>;

impl<const B: u32> Code for Bits<B> {
    const BITS: u32 = B;
    const VALUES: Option<[u16; 32]> = if B <= 5 { Some(integers(B)) } else { None };
    const UNIT: Option<f32> = Some(1.0);
    streams!(B);

    #[inline(always)]
    fn integers<I: Isa>(isa: I, packed: I::U, j: usize) -> I::U {
        isa.and(isa.shr(packed, j as u32 * B), isa.splat_u(((1 << B) - 1) * 0x1_0001))
    }

    #[inline(always)]
    unsafe fn byte_words<I: Isa>(isa: I, stream: *const u8) -> I::U {
        // SAFETY: the caller makes a vector readable.
        unsafe { if Self::WHOLE { isa.load_u(stream.cast()) } else { isa.unpack_bytes::<B>(stream) } }
    }

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, packed: I::U, j: usize) -> I::U {
        if Self::WHOLE && B < 8 {
            isa.and(isa.shr(packed, j as u32 * B), isa.splat_u(((1 << B) - 1) * 0x0101_0101))
        } else {
            packed
        }
    }

    #[inline(always)]
    fn value<I: Isa>(isa: I, low: I::U) -> I::V {
        if B == 4 { isa.nibble(low) } else { isa.int_to_float(isa.and(low, isa.splat_u((1 << B) - 1))) }
    }
}

/// The low `bits` bits of the index, in bf16.
const fn integers(bits: u32) -> [u16; 32] {
    let mut table = [0; 32];
    let mut i = 0;
    while i < 32 {
        table[i as usize] = (((i & ((1 << bits) - 1)) as f32).to_bits() >> 16) as u16;
        i += 1;
    }
    table
}

const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Two times each value, as `i8`.
const E2M1_DOUBLED: [u8; 16] = {
    let mut doubled = [0; 16];
    let mut i = 0;
    while i < 16 {
        doubled[i] = (2.0 * E2M1[i]) as i8 as u8;
        i += 1;
    }
    doubled
};

/// Twice each value, plus 12.
const E2M1_BYTES: [u8; 16] = {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = (2.0 * E2M1[i] + 12.0) as u8;
        i += 1;
    }
    bytes
};

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

/// E2M1.
#[derive(Clone, Copy)]
pub(super) struct Fp4;

impl Code for Fp4 {
    const BITS: u32 = 4;
    const VALUES: Option<[u16; 32]> = Some(bf16_table(&E2M1));
    const UNIT: Option<f32> = Some(1.0 / 512.0);
    const BYTE: Byte = Byte { unit: 0.5, zero: 6.0, activations: 15 };
    streams!(4);

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, packed: I::U, j: usize) -> I::U {
        isa.lookup_bytes(isa.and(isa.shr(packed, 4 * j as u32), isa.splat_u(0x0f0f_0f0f)), &E2M1_BYTES)
    }

    /// Twice the value in the upper byte, which brings its sign; the lower byte finds the zero.
    #[inline(always)]
    fn integers<I: Isa>(isa: I, packed: I::U, j: usize) -> I::U {
        let from = 4 * j as u32;
        let moved = if from < 8 { isa.shl(packed, 8 - from) } else { isa.shr(packed, from - 8) };
        isa.lookup_bytes(isa.and(moved, isa.splat_u(0x0f00_0f00)), &E2M1_DOUBLED)
    }

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
    const VALUES: Option<[u16; 32]> = None;
    const UNIT: Option<f32> = None;
    streams!(8);

    fn integers<I: Isa>(_: I, _: I::U, _: usize) -> I::U {
        unreachable!("the values have no common unit")
    }

    fn bytes<I: Isa>(_: I, _: I::U, _: usize) -> I::U {
        unreachable!("the values have no common unit")
    }

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
            (crate::quant::Format::Nvfp4 | crate::quant::Format::Mxfp4, _) => {
                type $code = crate::quant::code::Fp4;
                $body
            }
            (crate::quant::Format::Mxfp8, _) => {
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

/// E8M0 in `f32`: 2^(code − 127); 255 reads as ∞.
fn e8m0(code: u8) -> f32 {
    f32::from_bits(if code == 0 { 1 << 22 } else { u32::from(code) << 23 })
}

impl Scales<'_> {
    /// Begins to bring `count` entries from `start` on near the core; they need not exist.
    #[inline(always)]
    pub(super) fn prefetch<I: Isa>(&self, isa: I, start: usize, count: usize) {
        let (data, size) = match self {
            Scales::F32(s) => (s.as_ptr().cast::<u8>(), 4),
            Scales::F16(s) => (s.as_ptr().cast(), 2),
            Scales::BF16(s) => (s.as_ptr().cast(), 2),
            Scales::U8(s) => (s.as_ptr(), 1),
        };
        for at in (start * size..(start + count) * size).step_by(64) {
            isa.prefetch(data.wrapping_add(at));
        }
    }
}

/// Writes entries `start..start + n` of `scales` to `to`, as `f32`.
#[inline(always)]
fn read_scales<I: Isa>(isa: I, format: Format, scales: Scales, start: usize, to: &mut [f32]) {
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

/// Writes the scales and biases of groups from `start` on as `f32`. If no biases are stored, they
/// are `-zero · scale`; with `zero` 0 they stay unchanged.
#[inline(always)]
pub(super) fn read_numbers<I: Isa>(isa: I, w: &QMatrix, start: usize, zero: f32, scales: &mut [f32], biases: &mut [f32]) {
    read_scales(isa, w.format, w.scales, start, scales);
    match w.biases {
        Some(stored) => read_scales(isa, w.format, stored, start, biases),
        None if zero != 0.0 => biases.iter_mut().zip(scales).for_each(|(bias, scale)| *bias = -zero * *scale),
        None => {}
    }
}

/// Whether groups of two matrices have the same scales and biases, as `f32`.
pub(super) fn have_same_numbers(cpu: Cpu, a: &QMatrix, b: &QMatrix, groups: Range<usize>) -> bool {
    cpu.dispatch(Compare { of: [a, b], groups })
}

struct Compare<'a> {
    of: [&'a QMatrix<'a>; 2],
    groups: Range<usize>,
}

impl Kernel for Compare<'_> {
    type Out = bool;
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> bool {
        const AT_HAND: usize = 512;
        self.groups.clone().step_by(AT_HAND).all(|first| {
            let count = AT_HAND.min(self.groups.end - first);
            let mut numbers = [[[0f32; AT_HAND]; 2]; 2];
            for (w, [scales, biases]) in self.of.into_iter().zip(&mut numbers) {
                read_numbers(isa, w, first, w.format.zero(), &mut scales[..count], &mut biases[..count]);
            }
            numbers[0] == numbers[1]
        })
    }
}

/// `to[i] = from[i]` for slices of one length.
#[inline(always)]
pub(super) fn widen<T: Float, I: Isa>(isa: I, from: &[T], to: &mut [f32]) {
    let n = from.len().min(to.len());
    let mut i = 0;
    while i + I::LANES <= n {
        // SAFETY: `i + LANES` does not exceed the length of either slice.
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

/// Writes values `start..` of row `row` to `to`, dequantized; `start` is a multiple of 16 or of
/// LANES.
#[inline(always)]
pub(super) fn read_row<C: Code, I: Isa>(isa: I, w: &QMatrix, row: usize, start: usize, to: &mut [f32]) {
    let words = &w.words[row * w.row_words()..];
    let group = w.format.group();
    let (mut at, len) = (0, to.len());
    while at < len {
        let col = start + at;
        let end = len.min(at + group - col % group);
        let (mut scale, mut bias) = ([0.0], [0.0]);
        let number = row * w.row_groups() + col / group;
        read_numbers(isa, w, number, w.format.zero(), &mut scale, &mut bias);
        let (scale, bias) = (isa.splat(scale[0]), isa.splat(bias[0]));
        for at in (at..end).step_by(I::LANES) {
            let bit = (start + at) * C::BITS as usize;
            let mut spill = [0u32; 5];
            let rest = &words[bit / 32..];
            // SAFETY: 16 bytes from the bit's byte on are inside the five words from the bit's word
            // on.
            let codes = unsafe {
                if rest.len() >= 5 {
                    C::at(isa, words.as_ptr().cast(), bit)
                } else {
                    spill[..rest.len()].copy_from_slice(rest);
                    C::at(isa, spill.as_ptr().cast(), bit % 32)
                }
            };
            let value = isa.fma(C::value(isa, codes), scale, bias);
            // SAFETY: the store ends at `end`, inside `to`.
            unsafe {
                let to = to.as_mut_ptr().add(at);
                if end - at >= I::LANES { isa.store(to, value) } else { store_partial(isa, to, value, end - at) }
            }
        }
        at = end;
    }
}
