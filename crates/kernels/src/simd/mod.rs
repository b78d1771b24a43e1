//! Vectors of `f32` lanes over several instruction sets, from one source per kernel.
//!
//! A value of an [`Isa`] type proves that the CPU has that instruction set: only `Cpu::detect` and
//! `Cpu::of` make one. A kernel implements [`Kernel`]. Its `run` is generic over the `Isa`, and
//! `#[inline(always)]` like everything it calls in a hot loop. `Cpu::dispatch` compiles it once per
//! instruction set inside a function that enables the set.

#[macro_use]
mod methods;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod words;

pub use float::Float;
pub(crate) use float::{load_partial, store_partial};

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IsaKind {
    /// Plain Rust, vectorised by the compiler for the target's baseline.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL; dot products of BF16 and of bytes where the CPU has
    /// them.
    Avx512,
    /// 64-bit Arm.
    Neon,
}

impl IsaKind {
    /// All kinds, slowest first.
    pub const ALL: [IsaKind; 4] = [IsaKind::Portable, IsaKind::Avx2, IsaKind::Avx512, IsaKind::Neon];
}

/// Prefetches the cache line at `p`, any address, into the core's second-level cache, if the
/// platform can.
#[inline(always)]
pub(crate) fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nothing is read.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Vector operations of one instruction set. Lane `i` of a result depends on lane `i` of the
/// operands unless stated.
pub trait Isa: Copy + Send + Sync + 'static {
    /// `LANES` values of `f32`.
    type V: Copy;
    /// `LANES` words of 32 bits.
    type U: Copy;
    /// A choice per lane.
    type M: Copy;
    /// Lanes of a vector; a power of two, at most 16.
    const LANES: usize;
    /// Which instruction set this is.
    const KIND: IsaKind;
    /// Whether to compile kernels over several rows at once: registers suffice to hold the rows.
    const TILES: bool = true;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// # Safety
    /// `LANES` elements are readable at `p`, of any alignment.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// # Safety
    /// `LANES` elements are writable at `p`, of any alignment.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Loads `LANES` bf16 bit patterns.
    /// # Safety
    /// As [`Isa::load`].
    unsafe fn load_bf16(self, p: *const u16) -> Self::V;
    /// Loads `LANES` signed bytes.
    /// # Safety
    /// As [`Isa::load`].
    unsafe fn load_i8(self, p: *const i8) -> Self::V;
    /// Stores the low 16 bits of each lane.
    /// # Safety
    /// As [`Isa::store`].
    unsafe fn store_u16(self, p: *mut u16, v: Self::U);
    /// Loads `LANES` f16 bit patterns.
    /// # Safety
    /// As [`Isa::load`].
    unsafe fn load_f16(self, p: *const u16) -> Self::V;
    /// Stores as f16, rounded to nearest even.
    /// # Safety
    /// As [`Isa::store`].
    unsafe fn store_f16(self, p: *mut u16, v: Self::V);

    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, in one rounding where the hardware can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; unspecified which if one is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; unspecified which if one is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Square root, correctly rounded.
    fn sqrt(self, a: Self::V) -> Self::V;
    /// Nearest integer, ties to even; for magnitudes below 2^22.
    fn round(self, a: Self::V) -> Self::V;
    /// Sum of all lanes, in an order fixed per instruction set.
    fn sum(self, a: Self::V) -> f32;
    /// [`Isa::sum`] of four vectors, to the bit.
    #[inline(always)]
    fn sum4(self, a: [Self::V; 4]) -> [f32; 4] {
        a.map(|a| self.sum(a))
    }
    /// Prefetches the cache line at `p`, any address, into the core's second-level cache, if the
    /// platform can.
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}
    /// Largest lane.
    fn max_lane(self, a: Self::V) -> f32;

    /// The bit patterns.
    fn bits(self, a: Self::V) -> Self::U;
    /// The values with these bit patterns.
    fn with_bits(self, a: Self::U) -> Self::V;
    /// All lanes `x`.
    fn splat_u(self, x: u32) -> Self::U;
    /// # Safety
    /// As [`Isa::load`].
    unsafe fn load_u(self, p: *const u32) -> Self::U;
    /// Lane `i` is `p[i * stride]`.
    /// # Safety
    /// The elements `p[i * stride]` are readable; `LANES * stride` is below 2^31.
    unsafe fn load_u_strided(self, p: *const u32, stride: usize) -> Self::U;
    /// `a & b`
    fn and(self, a: Self::U, b: Self::U) -> Self::U;
    /// `a | b`
    fn or(self, a: Self::U, b: Self::U) -> Self::U;
    /// `a + b`, wrapping.
    fn add_u(self, a: Self::U, b: Self::U) -> Self::U;
    /// `a - b`, wrapping.
    fn sub_u(self, a: Self::U, b: Self::U) -> Self::U;
    /// `a << n` for `n < 32`.
    fn shl(self, a: Self::U, n: u32) -> Self::U;
    /// `a >> n`, zero filled, for `n < 32`.
    fn shr(self, a: Self::U, n: u32) -> Self::U;
    /// Two's complement integers to floats.
    fn int_to_float(self, a: Self::U) -> Self::V;
    /// Integral floats within `i32` to integers.
    fn float_to_int(self, a: Self::V) -> Self::U;
    /// Entry `a & 15` of the table.
    fn lookup16(self, a: Self::U, table: &[f32; 16]) -> Self::V;
    /// Lane `i` is lane `from[i]` of `a`; indices below `LANES`.
    fn permute(self, a: Self::V, from: Self::U) -> Self::V;
    /// Lane `i` is lane `from[i]` of `a`; indices below `LANES`.
    fn permute_u(self, a: Self::U, from: Self::U) -> Self::U;
    /// `a << n[i]`; zero where `n[i]` is 32.
    fn shl_each(self, a: Self::U, n: Self::U) -> Self::U;
    /// `a >> n[i]`, zero filled, for `n[i]` up to 31.
    fn shr_each(self, a: Self::U, n: Self::U) -> Self::U;
    /// `a & 15` as floats.
    #[inline(always)]
    fn nibble(self, a: Self::U) -> Self::V {
        self.int_to_float(self.and(a, self.splat_u(15)))
    }

    /// Whether [`Isa::dot_bf16`] is one instruction; it then takes subnormals for zero, as does
    /// [`Isa::store_bf16`].
    const DOT: bool = false;
    /// Each lane of `sum` plus the products of both halves of its words, as bf16.
    #[inline(always)]
    fn dot_bf16(self, sum: Self::V, a: Self::U, b: Self::U) -> Self::V {
        let lows = (self.with_bits(self.shl(a, 16)), self.with_bits(self.shl(b, 16)));
        let mask = self.splat_u(0xffff_0000);
        let highs = (self.with_bits(self.and(a, mask)), self.with_bits(self.and(b, mask)));
        self.fma(highs.0, highs.1, self.fma(lows.0, lows.1, sum))
    }
    /// Whether [`Isa::dot_i16`] is made of instructions for it.
    const DOT_I16: bool = false;
    /// Each lane of `sum`, an `i32`, plus the products of both halves of its words, as `i16`;
    /// wrapping.
    #[inline(always)]
    fn dot_i16(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U {
        words::dot_i16(self, sum, a, b)
    }
    /// Whether [`Isa::dot_bytes`] and [`Isa::unpack_bytes`] are made of instructions for them.
    const DOT_BYTES: bool = false;
    /// Each lane of `sum`, an `i32`, plus the products of the bytes of its words, unsigned in `a`
    /// and signed in `b`; wrapping.
    #[inline(always)]
    fn dot_bytes(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U {
        words::dot_bytes(self, sum, a, b)
    }
    /// Byte `i` is bits `i·BITS..(i + 1)·BITS` of the stream at `p`.
    /// # Safety
    /// 64 bytes are readable at `p`; `BITS` is 1 to 8.
    #[inline(always)]
    unsafe fn unpack_bytes<const BITS: u32>(self, p: *const u8) -> Self::U {
        // SAFETY: the caller makes 64 bytes readable at `p`, and `BITS` is 1 to 8.
        unsafe { words::unpack_bytes::<Self, BITS>(self, p) }
    }
    /// Entry `b & 15` of the table for each byte `b`. No byte has its highest bit set.
    #[inline(always)]
    fn lookup_bytes(self, a: Self::U, table: &[u8; 16]) -> Self::U {
        words::map(self, a, |w| u32::from_le_bytes(w.to_le_bytes().map(|b| table[b as usize & 15])))
    }
    /// Entry `h & 31` of the table for each 16-bit half `h`.
    #[inline(always)]
    fn lookup32(self, a: Self::U, table: &[u16; 32]) -> Self::U {
        words::map(self, a, |w| u32::from(table[w as usize & 31]) | u32::from(table[(w >> 16) as usize & 31]) << 16)
    }
    /// The low `BITS` bits of lane `i` are bits `i·BITS..` of the stream at `p`; higher bits are
    /// arbitrary.
    /// # Safety
    /// 16 bytes are readable at `p`; `BITS` is 1 to 8.
    #[inline(always)]
    unsafe fn spread<const BITS: u32>(self, p: *const u8) -> Self::U {
        // SAFETY: the caller makes 16 bytes readable at `p`.
        let stream = u128::from_le_bytes(unsafe { p.cast::<[u8; 16]>().read_unaligned() });
        let words: [u32; 16] = std::array::from_fn(|i| (stream >> (i as u32 * BITS)) as u32);
        // SAFETY: LANES is at most 16.
        unsafe { self.load_u(words.as_ptr()) }
    }
    /// The low `BITS` bits of half `i` are bits `i·BITS..` of the stream at `p`; higher bits are
    /// arbitrary.
    /// # Safety
    /// 32 bytes are readable at `p`; `BITS` is 1 to 8.
    #[inline(always)]
    unsafe fn spread_halves<const BITS: u32>(self, p: *const u8) -> Self::U {
        let mut halves = [0u16; 32];
        for (i, half) in halves.iter_mut().enumerate().take(2 * Self::LANES) {
            let bit = i * BITS as usize;
            // SAFETY: the caller makes 32 bytes readable. The last half begins at byte 31 or
            // earlier, and its second byte is read only if the code extends into it.
            unsafe {
                let low = u32::from(*p.add(bit / 8));
                let high = if bit % 8 + BITS as usize > 8 { u32::from(*p.add(bit / 8 + 1)) } else { 0 };
                *half = ((low | high << 8) >> (bit % 8)) as u16;
            }
        }
        // SAFETY: 32 halves are 16 words, and LANES is at most 16.
        unsafe { self.load_u(halves.as_ptr().cast()) }
    }
    /// Half `i` is bits `i·BITS..(i + 1)·BITS` of the stream at `p`.
    /// # Safety
    /// As [`Isa::spread_halves`].
    #[inline(always)]
    unsafe fn unpack_halves<const BITS: u32>(self, p: *const u8) -> Self::U {
        // SAFETY: the caller makes 32 bytes readable.
        self.and(unsafe { self.spread_halves::<BITS>(p) }, self.splat_u(((1 << BITS) - 1) * 0x1_0001))
    }
    /// Turns a block of `LANES · LANES` words: `to[j · to_step + i] = from[i · from_step + j]`.
    /// # Safety
    /// All of them are readable and writable.
    #[inline(always)]
    unsafe fn transpose(self, from: *const u32, from_step: usize, to: *mut u32, to_step: usize) {
        for i in 0..Self::LANES {
            for j in 0..Self::LANES {
                // SAFETY: the caller makes the whole block readable at `from` and writable at `to`.
                unsafe { *to.add(j * to_step + i) = *from.add(i * from_step + j) };
            }
        }
    }
    /// `y · 2ⁿ` for integral `n` of magnitude up to 252.
    #[inline(always)]
    fn scale_by_power(self, y: Self::V, n: Self::V) -> Self::V {
        // Two factors, since 2ⁿ itself may be outside the normal range.
        let half = self.round(self.mul(n, self.splat(0.5)));
        let first = self.shl(self.add_u(self.float_to_int(half), self.splat_u(127)), 23);
        let second = self.shl(self.add_u(self.float_to_int(self.sub(n, half)), self.splat_u(127)), 23);
        self.mul(self.mul(y, self.with_bits(first)), self.with_bits(second))
    }

    /// `a < b`
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    /// Is it NaN?
    fn is_nan(self, a: Self::V) -> Self::M;
    /// `m ? a : b`
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V;

    /// Lane `i` is `i`.
    #[inline(always)]
    fn lane_numbers(self) -> Self::U {
        const NUMBERS: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        // SAFETY: LANES is at most 16.
        unsafe { self.load_u(NUMBERS.as_ptr()) }
    }
    /// `|a|`
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        self.with_bits(self.and(self.bits(a), self.splat_u(0x7fff_ffff)))
    }
    /// `|a|` with the sign of `sign`.
    #[inline(always)]
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V {
        let sign = self.and(self.bits(sign), self.splat_u(0x8000_0000));
        self.with_bits(self.or(self.bits(self.abs(a)), sign))
    }
    /// `-a`
    #[inline(always)]
    fn neg(self, a: Self::V) -> Self::V {
        self.sub(self.splat(-0.0), a)
    }
    /// The bf16 nearest to each lane, ties to even, in the low half of the word.
    #[inline(always)]
    fn bf16_bits(self, v: Self::V) -> Self::U {
        let bits = self.bits(v);
        let even = self.and(self.shr(bits, 16), self.splat_u(1));
        let rounded = self.shr(self.add_u(bits, self.add_u(even, self.splat_u(0x7fff))), 16);
        let quiet = self.or(self.shr(bits, 16), self.splat_u(0x40));
        self.bits(self.select(self.is_nan(v), self.with_bits(quiet), self.with_bits(rounded)))
    }
    /// Stores as bf16, rounded to nearest even.
    /// # Safety
    /// As [`Isa::store`].
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: Self::V) {
        // SAFETY: the caller makes LANES elements writable at `p`.
        unsafe { self.store_u16(p, self.bf16_bits(v)) }
    }
}

/// A computation that is compiled once per instruction set.
pub trait Kernel {
    /// The kernel's result.
    type Out;
    /// The computation; mark it `#[inline(always)]`.
    fn run<I: Isa>(self, isa: I) -> Self::Out;
}

/// An instruction set that the CPU has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cpu {
    Portable(portable::Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512<{ avx512::PLAIN }>, avx512::Extensions),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
}

impl Cpu {
    /// The fastest that this CPU has.
    pub(crate) fn detect() -> Cpu {
        IsaKind::ALL.iter().rev().find_map(|&kind| Cpu::of(kind)).unwrap_or(Cpu::Portable(portable::Portable))
    }

    /// This one, if the CPU has it.
    pub(crate) fn of(kind: IsaKind) -> Option<Cpu> {
        match kind {
            IsaKind::Portable => Some(Cpu::Portable(portable::Portable)),
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => avx2::Avx2::detect().map(Cpu::Avx2),
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => avx512::Avx512::detect().map(|isa| Cpu::Avx512(isa, avx512::Extensions::detect())),
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon => Some(Cpu::Neon(neon::Neon::new())),
            #[allow(unreachable_patterns, reason = "which kinds are left depends on the target")]
            _ => None,
        }
    }

    pub(crate) fn kind(self) -> IsaKind {
        struct Kind;
        impl Kernel for Kind {
            type Out = IsaKind;
            fn run<I: Isa>(self, _: I) -> IsaKind {
                I::KIND
            }
        }
        self.dispatch(Kind)
    }

    /// Lanes of a vector.
    pub(crate) fn lanes(self) -> usize {
        struct Lanes;
        impl Kernel for Lanes {
            type Out = usize;
            fn run<I: Isa>(self, _: I) -> usize {
                I::LANES
            }
        }
        self.dispatch(Lanes)
    }

    /// Whether [`Cpu::dispatch_dot`] has the BF16 dot product.
    pub(crate) fn has_dot(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(_, extensions) => extensions.bf16.is_some(),
            _ => false,
        }
    }

    /// Whether [`Cpu::dispatch_dot_bytes`] has the dot product of bytes.
    pub(crate) fn has_dot_bytes(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(_, extensions) => extensions.bytes.is_some(),
            _ => false,
        }
    }

    /// The instruction set with products of 16-bit integers faster than float products, if there is
    /// one.
    pub(crate) fn with_dot_i16(self) -> Option<Cpu> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx2(_) => Some(self),
            // Vectors are half as wide, but memory bandwidth bounds products of codes.
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(isa, _) => Some(Cpu::Avx2(isa.avx2())),
            _ => None,
        }
    }

    /// [`Cpu::dispatch`] with the BF16 dot product, for kernels of bf16 pairs. They are compiled
    /// only for it.
    ///
    /// # Panics
    /// Where [`Cpu::has_dot`] is false.
    #[inline(always)]
    pub(crate) fn dispatch_dot<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(_, avx512::Extensions { bf16: Some(isa), .. }) => isa.enter(kernel),
            _ => missing(kernel),
        }
    }

    /// [`Cpu::dispatch`] with the dot product of bytes.
    ///
    /// # Panics
    /// Where [`Cpu::has_dot_bytes`] is false.
    #[inline(always)]
    pub(crate) fn dispatch_dot_bytes<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(_, avx512::Extensions { bytes: Some(isa), .. }) => isa.enter(kernel),
            _ => missing(kernel),
        }
    }

    /// [`Cpu::dispatch`] for kernels that the compiler vectorizes: with AVX-512 it does no better
    /// than with AVX2.
    #[inline(always)]
    pub(crate) fn dispatch_plain<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(isa, _) => isa.avx2().enter(kernel),
            _ => self.dispatch(kernel),
        }
    }

    /// Runs `kernel` with this instruction set enabled.
    #[inline(always)]
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            Cpu::Portable(isa) => isa.enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx2(isa) => isa.enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(isa, _) => isa.enter(kernel),
            #[cfg(target_arch = "aarch64")]
            Cpu::Neon(isa) => kernel.run(isa),
        }
    }
}

#[cold]
#[inline(never)]
fn missing<K: Kernel>(_: K) -> K::Out {
    unreachable!("what needs an extension is only made where the CPU has it")
}

#[cfg(test)]
mod tests;
