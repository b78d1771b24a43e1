//! Operations word by word through memory, for instruction sets that have nothing better.

use super::Isa;

/// The words of a vector, followed by zeros.
#[inline(always)]
fn stored<I: Isa>(isa: I, lanes: I::U) -> [u32; 16] {
    let mut words = [0; 16];
    // SAFETY: LANES is at most 16.
    unsafe { isa.store(words.as_mut_ptr().cast(), isa.with_bits(lanes)) };
    words
}

/// A vector of the first words.
#[inline(always)]
fn loaded<I: Isa>(isa: I, words: [u32; 16]) -> I::U {
    // SAFETY: LANES is at most 16.
    unsafe { isa.load_u(words.as_ptr()) }
}

#[inline(always)]
pub(super) fn map<I: Isa>(isa: I, a: I::U, f: impl Fn(u32) -> u32) -> I::U {
    loaded(isa, stored(isa, a).map(f))
}

/// Adds `products` of the lanes of `a` and `b` to each lane of `sum`, wrapping.
#[inline(always)]
fn plus<I: Isa>(isa: I, [sum, a, b]: [I::U; 3], products: impl Fn(u32, u32) -> i32) -> I::U {
    let (sum, a, b) = (stored(isa, sum), stored(isa, a), stored(isa, b));
    loaded(isa, std::array::from_fn(|i| (sum[i] as i32).wrapping_add(products(a[i], b[i])) as u32))
}

/// [`Isa::dot_i16`]
#[inline(always)]
pub(super) fn dot_i16<I: Isa>(isa: I, sum: I::U, a: I::U, b: I::U) -> I::U {
    let half = |word: u32, shift: u32| i32::from((word >> shift) as i16);
    plus(isa, [sum, a, b], |a, b| (half(a, 0) * half(b, 0)).wrapping_add(half(a, 16) * half(b, 16)))
}

/// [`Isa::dot_bytes`]
#[inline(always)]
pub(super) fn dot_bytes<I: Isa>(isa: I, sum: I::U, a: I::U, b: I::U) -> I::U {
    let products =
        |a: u32, b: u32| a.to_le_bytes().into_iter().zip(b.to_le_bytes()).map(|(a, b)| i32::from(a) * i32::from(b as i8));
    plus(isa, [sum, a, b], |a, b| products(a, b).sum())
}

/// [`Isa::unpack_bytes`]
///
/// # Safety
/// 64 bytes are readable at `p`.
#[inline(always)]
pub(super) unsafe fn unpack_bytes<I: Isa, const BITS: u32>(isa: I, p: *const u8) -> I::U {
    let mut bytes = [0u8; 64];
    for (i, byte) in bytes.iter_mut().enumerate().take(4 * I::LANES) {
        let bit = i * BITS as usize;
        // SAFETY: the caller makes 64 bytes readable, and 64 codes need at most 64. A second byte
        // is read only if the code extends into it.
        unsafe {
            let low = u32::from(*p.add(bit / 8));
            let high = if bit % 8 + BITS as usize > 8 { u32::from(*p.add(bit / 8 + 1)) } else { 0 };
            *byte = ((low | high << 8) >> (bit % 8)) as u8 & (0xff >> (8 - BITS));
        }
    }
    // SAFETY: 64 bytes are 16 words, and LANES is at most 16.
    unsafe { isa.load_u(bytes.as_ptr().cast()) }
}
