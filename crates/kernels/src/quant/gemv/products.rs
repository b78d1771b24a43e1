//! Blocks of codes times activations.

use crate::{quant::code::Code, simd::Isa};

/// How the codes of a block meet their activations. What is given here holds for blocks of one word a lane.
pub(super) trait Products<C: Code> {
    /// Codes of a block.
    fn block<I: Isa>(_group: usize) -> usize {
        I::LANES * C::CODES
    }
    /// Bytes that reading a block may touch beyond it.
    const BEYOND: usize = 0;
    /// Whether there are registers for four rows with one row of activations.
    const FOUR_ROWS: bool = true;
    /// What is added to every code before it is multiplied.
    const OFFSET: f32 = 0.0;
    /// The group, counted from the block's first, that a lane's codes belong to, for groups of 2^`shift`.
    fn group_of(lane: usize, shift: u32) -> usize {
        (lane * C::CODES) >> shift
    }

    /// Unscaled products of one block of `R` rows with `MR` rows of activations.
    ///
    /// # Safety
    /// The blocks, with [`Products::BEYOND`] bytes, and the activations, `x_stride` apart, are readable.
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
/// Words of whole codes, pairs of bf16 of which `TERMS` sum up to an activation.
pub(super) struct LanePairs<const TERMS: usize>;
/// Codes in their order, `f32` activations.
pub(super) struct Order;
/// Codes in their order, pairs of bf16 of which `TERMS` sum up to an activation.
pub(super) struct OrderPairs<const TERMS: usize>;

/// Words of whole codes, pairs of `i16`.
pub(super) struct LaneIntegers;
/// Codes in their order, pairs of `i16`, in groups of `VECTORS` vectors of them; 0: of any size.
pub(super) struct OrderIntegers<const VECTORS: usize>;

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
        // SAFETY: the caller vouches for a vector of words in each stream, and for a block of activations in each row, here and
        // below.
        let packed: [I::U; R] = streams.map(|stream| unsafe { isa.load_u(stream.cast()) });
        for j in 0..C::CODES / 2 {
            // SAFETY: as above.
            let x: [I::U; MR] = std::array::from_fn(|i| unsafe { isa.load_u(x.add(i * x_stride + j * I::LANES)) });
            for (sums, &packed) in sums.iter_mut().zip(&packed) {
                let q = C::integers(isa, packed, j);
                for i in 0..MR {
                    sums[i] = isa.dot_i16(sums[i], x[i], q);
                }
            }
        }
        // SAFETY: as above.
        unsafe { in_units::<I, C, MR, R>(isa, sums, x.add(C::CODES / 2 * I::LANES), x_stride) }
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
            // SAFETY: the caller vouches for the blocks and what lies BEYOND, and for a block of activations in each row, here and
            // below.
            let x: [I::U; MR] = std::array::from_fn(|i| unsafe { isa.load_u(x.add(i * x_stride + at / 2)) });
            for (sums, &stream) in sums.iter_mut().zip(&streams) {
                // SAFETY: as above.
                let q = unsafe { C::exact_halves_at(isa, stream.add(at * C::BITS as usize / 8)) };
                for i in 0..MR {
                    sums[i] = isa.dot_i16(sums[i], x[i], q);
                }
            }
        }
        // SAFETY: as above.
        unsafe { in_units::<I, C, MR, R>(isa, sums, x.add(block / 2), x_stride) }
    }
}

/// Sums of products of integers as floats, by the units of the activations, `stride` apart, and of the codes.
///
/// # Safety
/// A vector of units is readable in each row.
#[inline(always)]
unsafe fn in_units<I: Isa, C: Code, const MR: usize, const R: usize>(
    isa: I,
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
            if let Some(unit) = C::UNIT.filter(|&unit| unit != 1.0) {
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
        // SAFETY: the caller vouches for a vector of words in each stream, and for a block of activations in each row, here and
        // below.
        let packed: [I::U; R] = streams.map(|stream| unsafe { isa.load_u(stream.cast()) });
        for j in 0..C::CODES {
            // SAFETY: as above.
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

impl<C: Code, const TERMS: usize> Products<C> for LanePairs<TERMS> {
    const OFFSET: f32 = C::OFFSET;

    #[inline(always)]
    unsafe fn sums<I: Isa, const MR: usize, const R: usize>(
        isa: I,
        streams: [*const u8; R],
        x: *const u32,
        x_stride: usize,
        _: usize,
    ) -> [[I::V; MR]; R] {
        let mut sums = [[isa.splat(0.0); MR]; R];
        // SAFETY: the caller vouches for a vector of words in each stream, and for a block of activations in each row, here and
        // below.
        let packed: [I::U; R] = streams.map(|stream| unsafe { isa.load_u(stream.cast()) });
        for j in 0..C::CODES / 2 {
            // SAFETY: as above.
            let x = unsafe { activations::<I, MR, TERMS>(isa, x.add(j * TERMS * I::LANES), x_stride) };
            for (sums, &packed) in sums.iter_mut().zip(&packed) {
                add(isa, sums, &x, C::pair(isa, packed, j));
                for (shift, table) in C::PARTS.iter().skip(1) {
                    add(isa, sums, &x, isa.lookup32(isa.shr(packed, j as u32 * C::BITS + shift), table));
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
            // SAFETY: the caller vouches for the blocks and what lies BEYOND, and for a block of activations in each row, here and
            // below.
            let x: [I::V; MR] = std::array::from_fn(|i| unsafe { isa.load(x.add(i * x_stride + at).cast()) });
            for (sums, &stream) in sums.iter_mut().zip(&streams) {
                // SAFETY: as above.
                let q = C::value(isa, unsafe { C::at(isa, stream, at * C::BITS as usize) });
                for i in 0..MR {
                    sums[i] = isa.fma(x[i], q, sums[i]);
                }
            }
        }
        sums
    }
}

impl<C: Code, const TERMS: usize> Products<C> for OrderPairs<TERMS> {
    fn block<I: Isa>(group: usize) -> usize {
        group.max(2 * I::LANES)
    }
    const BEYOND: usize = 32;
    fn group_of(lane: usize, shift: u32) -> usize {
        if shift == 4 { lane / 8 } else { 0 }
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
        for at in (0..block).step_by(2 * I::LANES) {
            // SAFETY: the caller vouches for the blocks and what lies BEYOND, and for a block of activations in each row, here and
            // below.
            let x = unsafe { activations::<I, MR, TERMS>(isa, x.add(at / 2 * TERMS), x_stride) };
            for (sums, &stream) in sums.iter_mut().zip(&streams) {
                // SAFETY: as above.
                let codes = unsafe { C::halves_at(isa, stream.add(at * C::BITS as usize / 8)) };
                for (shift, table) in C::PARTS {
                    add(isa, sums, &x, isa.lookup32(isa.shr(codes, *shift), table));
                }
            }
        }
        sums
    }
}

/// A vector of pairs for each term of each row of activations, rows `stride` apart.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn activations<I: Isa, const MR: usize, const TERMS: usize>(isa: I, x: *const u32, stride: usize) -> [[I::U; TERMS]; MR] {
    // SAFETY: the caller makes them readable.
    std::array::from_fn(|i| std::array::from_fn(|term| unsafe { isa.load_u(x.add(i * stride + term * I::LANES)) }))
}

/// Adds the products of a vector of pairs of codes with that of each row of activations.
#[inline(always)]
fn add<I: Isa, const MR: usize, const TERMS: usize>(isa: I, sums: &mut [I::V; MR], x: &[[I::U; TERMS]; MR], q: I::U) {
    for (sum, terms) in sums.iter_mut().zip(x) {
        for &x in terms {
            *sum = isa.dot_bf16(*sum, x, q);
        }
    }
}
