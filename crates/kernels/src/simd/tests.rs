use half::{bf16, f16};

use super::*;
use crate::testing::isas;

/// Rounds every pattern of `f32` that matters to 16 bits and back.
struct RoundTrip<'a, T>(&'a [f32], &'a mut [T]);

impl<T: Float> Kernel for RoundTrip<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for (x, y) in self.0.chunks(I::LANES).zip(self.1.chunks_mut(I::LANES)) {
            // SAFETY: the chunks are as long as they say.
            unsafe {
                let v = load_partial(isa, x.as_ptr(), x.len());
                store_partial(isa, y.as_mut_ptr(), v, y.len());
            }
        }
    }
}

fn check<T: Float>(expected: impl Fn(f32) -> T) {
    let halves = (0..=u16::MAX).map(|b| u32::from(b) << 16);
    let inputs: Vec<f32> = halves
        .flat_map(|b| [b, b | 0x7fff, b | 0x8000, b | 0x8001, b | 0xefff, b | 0x1000, b | 0x3000])
        .map(f32::from_bits)
        .collect();
    for pool in isas() {
        let mut out = vec![T::from_f32(0.0); inputs.len()];
        pool.dispatch(RoundTrip(&inputs, &mut out));
        for (&x, &y) in inputs.iter().zip(&out) {
            let (e, f) = (expected(x).to_f32(), y.to_f32());
            assert!(e.to_bits() == f.to_bits() || (e.is_nan() && f.is_nan()), "{:?}: {x} gives {f} instead of {e}", pool.isa());
        }
    }
}

#[test]
fn stores_round_to_nearest_even() {
    check::<bf16>(bf16::from_f32);
    check::<f16>(f16::from_f32);
    check::<f32>(|x| x);
}

/// Each operation on lanes against its definition.
struct Lanes;

impl Kernel for Lanes {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (a, b): ([f32; 16], [f32; 16]) = (std::array::from_fn(|i| i as f32 - 7.5), std::array::from_fn(|i| 3.0 - i as f32));
        let words: [u32; 80] = std::array::from_fn(|i| (i as u32).wrapping_mul(0x9e37_79b9));
        let table: [f32; 16] = std::array::from_fn(|i| (i * i) as f32);
        // SAFETY: the arrays are at least LANES long.
        let (x, y, w) = unsafe { (isa.load(a.as_ptr()), isa.load(b.as_ptr()), isa.load_u(words.as_ptr())) };
        let same = |what: &str, v: I::V, f: &dyn Fn(usize) -> f32| {
            let mut out = [0.0; 16];
            // SAFETY: the array is at least LANES long.
            unsafe { isa.store(out.as_mut_ptr(), v) };
            (0..I::LANES).for_each(|i| assert_eq!(out[i], f(i), "{what} {:?} lane {i}", I::KIND));
        };
        let small = |u: I::U| isa.int_to_float(isa.and(u, isa.splat_u(0xffff)));
        same("add", isa.add(x, y), &|i| a[i] + b[i]);
        same("max", isa.max(x, y), &|i| a[i].max(b[i]));
        same("min", isa.min(x, y), &|i| a[i].min(b[i]));
        same("fma", isa.fma(x, y, x), &|i| a[i] * b[i] + a[i]);
        same("round", isa.round(x), &|i| a[i].round_ties_even());
        same("abs", isa.abs(x), &|i| a[i].abs());
        same("copysign", isa.copysign(x, y), &|i| a[i].copysign(b[i]));
        same("lt", isa.select(isa.lt(x, y), x, y), &|i| if a[i] < b[i] { a[i] } else { b[i] });
        same("lookup", isa.lookup16(w, &table), &|i| table[(words[i] & 15) as usize]);
        same("nibble", isa.nibble(w), &|i| (words[i] & 15) as f32);
        same("shr", small(isa.shr(w, 9)), &|i| (words[i] >> 9 & 0xffff) as f32);
        same("shl", small(isa.shl(w, 3)), &|i| (words[i] << 3 & 0xffff) as f32);
        same("shr_each", small(isa.shr_each(w, isa.lane_numbers())), &|i| (words[i] >> i & 0xffff) as f32);
        same("shl_each", small(isa.shl_each(w, isa.splat_u(32))), &|_| 0.0);
        let reversed = isa.sub_u(isa.splat_u(I::LANES as u32 - 1), isa.lane_numbers());
        same("permute", isa.permute(x, reversed), &|i| a[I::LANES - 1 - i]);
        same("permute_u", small(isa.permute_u(w, reversed)), &|i| (words[I::LANES - 1 - i] & 0xffff) as f32);
        // SAFETY: `5 · LANES` words are readable.
        let strided = unsafe { isa.load_u_strided(words.as_ptr(), 5) };
        same("strided", small(strided), &|i| (words[5 * i] & 0xffff) as f32);
        same("spread", low::<I, 5>(isa, &words), &|i| stream(&words, 5, i));
        same("spread halves", halves::<I, 3>(isa, &words), &|i| stream(&words, 3, 2 * i) + 64.0 * stream(&words, 3, 2 * i + 1));
        same("spread halves", halves::<I, 6>(isa, &words), &|i| stream(&words, 6, 2 * i) + 64.0 * stream(&words, 6, 2 * i + 1));
        same("unpack halves", unpacked::<I, 5>(isa, &words), &|i| stream(&words, 5, 2 * i) + 256.0 * stream(&words, 5, 2 * i + 1));
        same("unpack halves", unpacked::<I, 8>(isa, &words), &|i| stream(&words, 8, 2 * i) + 256.0 * stream(&words, 8, 2 * i + 1));
        let byte_table: [u8; 16] = std::array::from_fn(|i| (7 * i) as u8);
        let found = isa.lookup_bytes(isa.and(w, isa.splat_u(0x000f_0f0f)), &byte_table);
        let entry = |w: u32, shift: u32| u32::from(byte_table[(w >> shift & 15) as usize]);
        same("lookup bytes", isa.int_to_float(found), &|i| {
            (entry(words[i], 0) | entry(words[i], 8) << 8 | entry(words[i], 16) << 16) as f32
        });
        let turned: [u32; 16] = std::array::from_fn(|i| words[i].rotate_left(11));
        // SAFETY: the array is at least LANES long.
        let products = isa.dot_i16(isa.splat_u(77), w, unsafe { isa.load_u(turned.as_ptr()) });
        let signed = |w: u32| [i32::from(w as i16), i32::from((w >> 16) as i16)];
        same("dot of i16", isa.int_to_float(products), &|i| {
            let ([a, b], [c, d]) = (signed(words[i]), signed(turned[i]));
            77i32.wrapping_add(a * c).wrapping_add(b * d) as f32
        });
        // SAFETY: the array is at least LANES long.
        let products = isa.dot_bytes(isa.splat_u(77), w, unsafe { isa.load_u(turned.as_ptr()) });
        same("dot of bytes", isa.int_to_float(products), &|i| {
            let pairs = words[i].to_le_bytes().into_iter().zip(turned[i].to_le_bytes());
            pairs.fold(77, |sum, (a, b)| sum + i32::from(a) * i32::from(b as i8)) as f32
        });
        same("unpack bytes", upper_bytes::<I, 3>(isa, &words), &|i| {
            stream(&words, 3, 4 * i + 3) + 256.0 * stream(&words, 3, 4 * i + 1)
        });
        same("unpack bytes", upper_bytes::<I, 5>(isa, &words), &|i| {
            stream(&words, 5, 4 * i + 3) + 256.0 * stream(&words, 5, 4 * i + 1)
        });
        same("unpack bytes", upper_bytes::<I, 6>(isa, &words), &|i| {
            stream(&words, 6, 4 * i + 3) + 256.0 * stream(&words, 6, 4 * i + 1)
        });
        let half = |w: u32| (w & 31) * (w & 31);
        let squares: [u16; 32] = std::array::from_fn(|i| (i * i) as u16);
        same("lookup32", isa.int_to_float(isa.lookup32(w, &squares)), &|i| (half(words[i]) | half(words[i] >> 16) << 16) as f32);
        let pair = |x: f32, y: f32| x.to_bits() >> 16 | (y.to_bits() & 0xffff_0000);
        let (p, q) = (words.map(|w| pair((w & 15) as f32, (w >> 4 & 15) as f32)), words.map(|w| pair(3.0, (w >> 8 & 15) as f32)));
        // SAFETY: the arrays are at least LANES long.
        let dot = unsafe { isa.dot_bf16(x, isa.load_u(p.as_ptr()), isa.load_u(q.as_ptr())) };
        same("dot", dot, &|i| a[i] + 3.0 * (words[i] & 15) as f32 + ((words[i] >> 4 & 15) * (words[i] >> 8 & 15)) as f32);
        transposed(isa);
        assert_eq!(isa.sum(x), a[..I::LANES].iter().sum::<f32>());
        assert_eq!(isa.max_lane(y), 3.0);
        let thirds = [3.0, 7.0, 0.3, 1e-3].map(|d| isa.div(x, isa.splat(d)));
        assert_eq!(isa.sum4(thirds).map(f32::to_bits), thirds.map(|v| isa.sum(v).to_bits()));
    }
}

/// Number `i` of `bits` bits in a stream.
fn stream(words: &[u32], bits: usize, i: usize) -> f32 {
    (0..bits).map(|b| (words[(i * bits + b) / 32] >> ((i * bits + b) % 32) & 1) << b).sum::<u32>() as f32
}

#[inline(always)]
fn low<I: Isa, const BITS: u32>(isa: I, words: &[u32]) -> I::V {
    // SAFETY: more than 16 bytes are readable.
    let spread = unsafe { isa.spread::<BITS>(words.as_ptr().cast()) };
    isa.int_to_float(isa.and(spread, isa.splat_u((1 << BITS) - 1)))
}

/// Both halves of each lane, six bits apart.
#[inline(always)]
fn halves<I: Isa, const BITS: u32>(isa: I, words: &[u32]) -> I::V {
    // SAFETY: more than 32 bytes are readable.
    let spread = unsafe { isa.spread_halves::<BITS>(words.as_ptr().cast()) };
    let mask = isa.splat_u((1 << BITS) - 1);
    isa.int_to_float(isa.or(isa.and(spread, mask), isa.shl(isa.and(isa.shr(spread, 16), mask), 6)))
}

#[inline(always)]
fn unpacked<I: Isa, const BITS: u32>(isa: I, words: &[u32]) -> I::V {
    // SAFETY: more than 32 bytes are readable.
    let halves = unsafe { isa.unpack_halves::<BITS>(words.as_ptr().cast()) };
    isa.int_to_float(isa.or(isa.and(halves, isa.splat_u(0xffff)), isa.shl(isa.shr(halves, 16), 8)))
}

/// The last byte of each lane, and the second one above it.
#[inline(always)]
fn upper_bytes<I: Isa, const BITS: u32>(isa: I, words: &[u32]) -> I::V {
    // SAFETY: more than 64 bytes are readable.
    let bytes = unsafe { isa.unpack_bytes::<BITS>(words.as_ptr().cast()) };
    isa.int_to_float(isa.or(isa.shr(bytes, 24), isa.and(bytes, isa.splat_u(0xff00))))
}

#[inline(always)]
fn transposed<I: Isa>(isa: I) {
    let from: [u32; 16 * 20] = std::array::from_fn(|i| i as u32);
    let mut to = [0; 16 * 18];
    // SAFETY: both hold 16 rows at their steps.
    unsafe { isa.transpose(from.as_ptr(), 20, to.as_mut_ptr(), 18) };
    for (i, j) in (0..I::LANES).flat_map(|i| (0..I::LANES).map(move |j| (i, j))) {
        assert_eq!(to[j * 18 + i], from[i * 20 + j], "{:?} {i} {j}", I::KIND);
    }
}

#[test]
fn operations_match_their_definition() {
    isas().iter().for_each(|pool| {
        pool.dispatch(Lanes);
        if pool.cpu().has_dot() {
            pool.cpu().dispatch_dot(Lanes);
        }
        if pool.cpu().has_dot_bytes() {
            pool.cpu().dispatch_dot_bytes(Lanes);
        }
    });
}
