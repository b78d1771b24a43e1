//! Blocks of codes times activations.

use crate::{quant::code::Code, simd::Isa};

/// The products of a block's codes with their activations. The default methods are for blocks of
/// one word per lane.
pub(super) trait Products<C: Code> {
    /// Codes of a block.
    fn block<I: Isa>(_group: usize) -> usize {
        I::LANES * C::CODES
    }
    /// Bytes that reading a block may touch beyond it.
    const BEYOND: usize = 0;
    /// Whether there are registers for four rows with one row of activations.
    const FOUR_ROWS: bool = true;
    /// Group of a lane's codes, counted from the block's first, for groups of 2^`shift` codes.
    fn group_of(lane: usize, shift: u32) -> usize {
        (lane * C::CODES) >> shift
    }

    /// Products of one block of `R` rows with `MR` rows of activations, without scales and the
    /// units of rows and bytes.
    ///
    /// # Safety
    /// The blocks plus [`Products::BEYOND`] bytes are readable, and so are the activations, with
    /// rows `x_stride` apart.
    unsafe fn sums<I: Isa, const MR: usize, const R: usize>(
        isa: I,
        streams: [*const u8; R],
        x: *const u32,
        x_stride: usize,
        block: usize,
    ) -> [[I::V; MR]; R];
}

/// Words of whole codes, `f32` activations.
pub(super) struct Lanes;
/// Codes in their order, `f32` activations.
pub(super) struct Order;
/// Bytes of codes, activations in two bytes.
pub(super) struct Bytes;
/// Words of whole codes, pairs of `i16`.
pub(super) struct LaneIntegers;
/// Codes in their order, pairs of `i16`, in groups of `VECTORS` vectors of them; 0: of any size.
pub(super) struct OrderIntegers<const VECTORS: usize>;

impl Bytes {
    /// Codes of a lane in a block.
    const fn lane<C: Code>() -> usize {
        if C::WHOLE { C::CODES } else { 4 }
    }
}

impl<C: Code> Products<C> for Bytes {
    fn block<I: Isa>(_: usize) -> usize {
        I::LANES * Bytes::lane::<C>()
    }
    const BEYOND: usize = if C::WHOLE { 0 } else { 64 - 64 * C::BITS as usize / 8 };
    fn group_of(lane: usize, shift: u32) -> usize {
        (lane * Bytes::lane::<C>()) >> shift
    }

    #[allow(clippy::needless_range_loop, reason = "iterators hide vector instructions from the compiler, which then calls them")]
    #[inline(always)]
    unsafe fn sums<I: Isa, const MR: usize, const R: usize>(
        isa: I,
        streams: [*const u8; R],
        x: *const u32,
        x_stride: usize,
        _: usize,
    ) -> [[I::V; MR]; R] {
        let mut packed = [isa.splat_u(0); R];
        for r in 0..R {
            // SAFETY: each stream has a readable block and BEYOND further readable bytes.
            packed[r] = unsafe { C::byte_words(isa, streams[r]) };
        }
        let mut sums = [[isa.splat_u(0); MR]; R];
        for j in 0..Bytes::lane::<C>() / 4 {
            for r in 0..R {
                let q = C::bytes(isa, packed[r], j);
                for i in 0..MR {
                    // SAFETY: each row has a readable block of activations; this load stays inside
                    // it.
                    let upper = unsafe { isa.load_u(x.add(i * x_stride + 2 * j * I::LANES)) };
                    sums[r][i] = isa.dot_bytes(sums[r][i], q, upper);
                }
            }
        }
        for r in 0..R {
            for i in 0..MR {
                sums[r][i] = isa.shl(sums[r][i], 8);
            }
        }
        for j in 0..Bytes::lane::<C>() / 4 {
            for r in 0..R {
                let q = C::bytes(isa, packed[r], j);
                for i in 0..MR {
                    // SAFETY: the second vector of each pair is also inside the row's readable
                    // block of activations.
                    let lower = unsafe { isa.load_u(x.add(i * x_stride + (2 * j + 1) * I::LANES)) };
                    let (unsigned, signed) = if C::BYTE.activations == 15 { (lower, q) } else { (q, lower) };
                    sums[r][i] = isa.dot_bytes(sums[r][i], unsigned, signed);
                }
            }
        }
        let mut floats = [[isa.splat(0.0); MR]; R];
        for i in 0..MR {
            // SAFETY: a readable vector of shifts follows each row's block.
            let shifts = unsafe { isa.load_u(x.add(i * x_stride + Bytes::lane::<C>() / 2 * I::LANES)) };
            for r in 0..R {
                floats[r][i] = isa.int_to_float(isa.shl_each(sums[r][i], shifts));
            }
        }
        floats
    }
}

impl<C: Code> Products<C> for LaneIntegers {
    const FOUR_ROWS: bool = false;

    #[inline(always)]
    unsafe fn sums<I: Isa, const MR: usize, const R: usize>(
        isa: I,
        streams: [*const u8; R],
        x: *const u32,
        x_stride: usize,
        _: usize,
    ) -> [[I::V; MR]; R] {
        let mut sums = [[isa.splat_u(0); MR]; R];
        // SAFETY: each stream has a readable vector of words, and each row a readable block of
        // activations for the loads of the loop.
        let packed: [I::U; R] = streams.map(|stream| unsafe { isa.load_u(stream.cast()) });
        for j in 0..C::CODES / 2 {
            // SAFETY: each row has a readable block of activations, with `C::CODES / 2` vectors.
            let x: [I::U; MR] = std::array::from_fn(|i| unsafe { isa.load_u(x.add(i * x_stride + j * I::LANES)) });
            for (sums, &packed) in sums.iter_mut().zip(&packed) {
                let q = C::integers(isa, packed, j);
                for i in 0..MR {
                    sums[i] = isa.dot_i16(sums[i], x[i], q);
                }
            }
        }
        // SAFETY: a readable vector of units follows each row's block.
        unsafe { in_units(isa, C::UNIT.unwrap_or(1.0), sums, x.add(C::CODES / 2 * I::LANES), x_stride) }
    }
}

impl<C: Code, const VECTORS: usize> Products<C> for OrderIntegers<VECTORS> {
    const FOUR_ROWS: bool = false;
    fn block<I: Isa>(group: usize) -> usize {
        if VECTORS > 0 { VECTORS * 2 * I::LANES } else { group.max(2 * I::LANES) }
    }
    const BEYOND: usize = 32;
    fn group_of(_: usize, _: u32) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn sums<I: Isa, const MR: usize, const R: usize>(
        isa: I,
        streams: [*const u8; R],
        x: *const u32,
        x_stride: usize,
        block: usize,
    ) -> [[I::V; MR]; R] {
        const { assert!(2 * I::LANES <= 16 || !I::DOT_I16, "a vector of halves lies within the smallest group") };
        let block = if VECTORS > 0 { VECTORS * 2 * I::LANES } else { block };
        let mut sums = [[isa.splat_u(0); MR]; R];
        for at in (0..block).step_by(2 * I::LANES) {
            // SAFETY: each row has a readable block of activations, and each stream a readable
            // block with BEYOND further bytes for the loads of the loop.
            let x: [I::U; MR] = std::array::from_fn(|i| unsafe { isa.load_u(x.add(i * x_stride + at / 2)) });
            for (sums, &stream) in sums.iter_mut().zip(&streams) {
                // SAFETY: the stream has a readable block and BEYOND further bytes; `at` is inside
                // the block.
                let q = unsafe { C::exact_halves_at(isa, stream.add(at * C::BITS as usize / 8)) };
                for i in 0..MR {
                    sums[i] = isa.dot_i16(sums[i], x[i], q);
                }
            }
        }
        // SAFETY: a readable vector of units follows each row's block.
        unsafe { in_units(isa, C::UNIT.unwrap_or(1.0), sums, x.add(block / 2), x_stride) }
    }
}

/// Converts sums of integer products to floats and multiplies them by the units of the codes and of
/// the activations. The activations' units are `stride` apart.
///
/// # Safety
/// A vector of units is readable in each row.
#[inline(always)]
unsafe fn in_units<I: Isa, const MR: usize, const R: usize>(
    isa: I,
    unit: f32,
    sums: [[I::U; MR]; R],
    units: *const u32,
    stride: usize,
) -> [[I::V; MR]; R] {
    // SAFETY: the caller makes the units readable.
    let units: [I::V; MR] = std::array::from_fn(|i| unsafe { isa.load(units.add(i * stride).cast()) });
    let mut floats = [[isa.splat(0.0); MR]; R];
    for (floats, sums) in floats.iter_mut().zip(&sums) {
        for i in 0..MR {
            floats[i] = isa.mul(isa.int_to_float(sums[i]), units[i]);
            if unit != 1.0 {
                floats[i] = isa.mul(floats[i], isa.splat(unit));
            }
        }
    }
    floats
}

impl<C: Code> Products<C> for Lanes {
    #[inline(always)]
    unsafe fn sums<I: Isa, const MR: usize, const R: usize>(
        isa: I,
        streams: [*const u8; R],
        x: *const u32,
        x_stride: usize,
        _: usize,
    ) -> [[I::V; MR]; R] {
        let mut sums = [[isa.splat(0.0); MR]; R];
        // SAFETY: each stream has a readable vector of words, and each row a readable block of
        // activations for the loads of the loop.
        let packed: [I::U; R] = streams.map(|stream| unsafe { isa.load_u(stream.cast()) });
        for j in 0..C::CODES {
            // SAFETY: each row has a readable block of activations, with `C::CODES` vectors.
            let x: [I::V; MR] = std::array::from_fn(|i| unsafe { isa.load(x.add(i * x_stride + j * I::LANES).cast()) });
            for (sums, &packed) in sums.iter_mut().zip(&packed) {
                let low = if j == 0 { packed } else { isa.shr(packed, j as u32 * C::BITS) };
                let q = C::value(isa, low);
                for i in 0..MR {
                    sums[i] = isa.fma(x[i], q, sums[i]);
                }
            }
        }
        sums
    }
}

impl<C: Code> Products<C> for Order {
    fn block<I: Isa>(group: usize) -> usize {
        group
    }
    const BEYOND: usize = 16;
    fn group_of(_: usize, _: u32) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn sums<I: Isa, const MR: usize, const R: usize>(
        isa: I,
        streams: [*const u8; R],
        x: *const u32,
        x_stride: usize,
        block: usize,
    ) -> [[I::V; MR]; R] {
        let mut sums = [[isa.splat(0.0); MR]; R];
        for at in (0..block).step_by(I::LANES) {
            // SAFETY: each row has a readable block of activations, and each stream a readable
            // block with BEYOND further bytes for the loads of the loop.
            let x: [I::V; MR] = std::array::from_fn(|i| unsafe { isa.load(x.add(i * x_stride + at).cast()) });
            for (sums, &stream) in sums.iter_mut().zip(&streams) {
                // SAFETY: the stream has a readable block and BEYOND further bytes; `at` is inside
                // the block.
                let q = C::value(isa, unsafe { C::at(isa, stream, at * C::BITS as usize) });
                for i in 0..MR {
                    sums[i] = isa.fma(x[i], q, sums[i]);
                }
            }
        }
        sums
    }
}
