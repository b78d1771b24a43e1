//! Activations in the order of a weight's codes.

use flambeau_tensor::DType;

use crate::{
    pool::{Scratch, Team},
    quant::{
        QMatrix,
        code::{Code, with_code},
    },
    simd::{Cpu, Isa, Kernel},
};

/// The format of the activations' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// `f32`.
    Floats,
    /// Pairs of `i16`. After each block's pairs there is a vector of `f32`: the value of 1 in each
    /// lane.
    Halves,
    /// Integers of this many bits and a sign, in two bytes. For every four integers of a lane, one
    /// vector holds a word of their upper bytes, and the next vector a word of their lower bytes.
    /// Lower bytes are signed if there are 14 bits. After each block's words there is a vector of
    /// left shifts, up to [`FARTHEST`] bits. Each brings a lane's sums to the row's
    /// [unit](Prepared::units).
    Bytes { bits: u32 },
}

/// Layout of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Codes per lane; 1 if activations keep their order.
    codes: usize,
    pub(super) words: Words,
    group: usize,
}

impl Kind {
    /// For activations of type `x`.
    pub(crate) fn of(cpu: Cpu, w: &QMatrix, x: DType) -> Kind {
        with_code!(w.format, C => {
            let words = match x {
                DType::BF16 | DType::F16 if C::UNIT.is_none() => Words::Floats,
                DType::BF16 | DType::F16 if cpu.has_dot_bytes() => Words::Bytes { bits: C::BYTE.activations },
                DType::BF16 | DType::F16 if cpu.with_dot_i16().is_some() => Words::Halves,
                _ => Words::Floats,
            };
            let codes = if C::WHOLE { C::CODES } else if matches!(words, Words::Bytes { .. }) { 4 } else { 1 };
            Kind { codes, words, group: w.format.group() }
        })
    }

    /// The one that lays these out and multiplies them.
    pub(super) fn cpu(self, cpu: Cpu) -> Cpu {
        if self.words == Words::Halves { cpu.with_dot_i16().unwrap_or(cpu) } else { cpu }
    }

    /// Number of activations after zero padding, for vectors of `lanes` lanes.
    fn padded(self, k: usize, lanes: usize) -> usize {
        k.next_multiple_of((lanes * self.codes).max(32))
    }

    /// Words of `k` activations (whole blocks), for vectors of `lanes` lanes.
    #[inline(always)]
    pub(super) fn words(self, k: usize, lanes: usize) -> usize {
        if self.words == Words::Floats { k } else { k / 2 + k / self.lane(lanes) }
    }

    /// Integers of one of `lanes` lanes in a block; all of them are in one group.
    #[inline(always)]
    fn lane(self, lanes: usize) -> usize {
        if self.codes > 1 { self.codes } else { (self.group / lanes).max(2) }
    }
}

/// Activations in the order that the codes come in, and their sums by group.
pub(crate) struct Prepared {
    pub(crate) kind: Kind,
    pub(super) data: Scratch,
    pub(super) m: usize,
    /// Words of one row.
    pub(super) stride: usize,
    /// Offset of the sums, `[m][group]`, each row padded with zeros.
    pub(super) sums: usize,
    pub(super) sum_stride: usize,
    /// Offset of the values of 1 in each row, for bytes.
    pub(super) units: usize,
}

impl Prepared {
    /// Prepares `x`, `[m, k]` with rows `x_stride` apart and zeros from `k` on.
    pub(crate) fn new(team: &mut Team, kind: Kind, x: &[f32], x_stride: usize, [m, k]: [usize; 2]) -> Prepared {
        let cpu = kind.cpu(team.cpu());
        let lanes = cpu.lanes();
        let padded = kind.padded(k, lanes);
        let stride = kind.words(padded, lanes);
        let sum_stride = (k / kind.group).next_multiple_of(16);
        let (sums_at, units_at) = (m * stride, m * (stride + sum_stride));
        let mut data = team.take(units_at + m);
        let (words, floats) = data.words().split_at_mut(sums_at);
        let (sums, units) = bytemuck::cast_slice_mut(floats).split_at_mut(units_at - sums_at);
        for i in 0..m {
            let (x, to) = (&x[i * x_stride..][..x_stride], &mut words[i * stride..][..stride]);
            let sums = &mut sums[i * sum_stride..][..sum_stride];
            units[i] = cpu.dispatch(LayOut { x, k, kind, to, sums });
        }
        Prepared { kind, data, m, stride, sums: sums_at, sum_stride, units: units_at }
    }

    pub(crate) fn give_back(self, team: &mut Team) {
        team.give_back(self.data);
    }
}

struct LayOut<'a> {
    x: &'a [f32],
    k: usize,
    kind: Kind,
    to: &'a mut [u32],
    sums: &'a mut [f32],
}

impl Kernel for LayOut<'_> {
    /// The row's unit, for bytes.
    type Out = f32;
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> f32 {
        let LayOut { x, k, kind, to, sums } = self;
        let Kind { codes, group, .. } = kind;
        sums.fill(0.0);
        for (sum, part) in sums.iter_mut().zip(x[..k].chunks_exact(group)) {
            let mut total = isa.splat(0.0);
            for lanes in part.chunks_exact(I::LANES) {
                // SAFETY: the chunk is LANES long; a group is a multiple of 16.
                total = isa.add(total, unsafe { isa.load(lanes.as_ptr()) });
            }
            *sum = isa.sum(total);
        }
        let padded = kind.padded(k, I::LANES);
        match kind.words {
            Words::Floats => {}
            Words::Halves => return lay_integers_out::<I, 2>(isa, &x[..padded], (kind, 15), to),
            Words::Bytes { bits } => return lay_integers_out::<I, 4>(isa, &x[..padded], (kind, bits), to),
        }
        for (b, to) in to.chunks_exact_mut(I::LANES * codes).enumerate() {
            for (j, to) in to.chunks_exact_mut(I::LANES).enumerate() {
                let from = &x[b * I::LANES * codes + j..];
                assert!(from.len() > (I::LANES - 1) * codes, "activations are padded");
                let from = from.as_ptr().cast::<u32>();
                // SAFETY: by the assertion; the chunk is a vector.
                unsafe {
                    let words = if codes == 1 { isa.load_u(from) } else { isa.load_u_strided(from, codes) };
                    isa.store(to.as_mut_ptr().cast(), isa.with_bits(words));
                }
            }
        }
        1.0
    }
}

/// Maximum left shift in bits of a lane's sums to the row's unit, for bytes. Sums have up to 24
/// bits with the widest codes, so shifted sums still fit words.
const FARTHEST: u32 = 7;

/// Rounds the activations of each lane and block to integers of 15 bits and a sign (14 for codes of
/// 8 bits in bytes), `WIDTH` per word. The unit is a power of two. The change is at most a
/// sixteenth of the largest one's rounding error to f16, or a 128th for bf16; twice as much with 14
/// bits. For bytes, the lanes' units are multiples of the row's unit, and the row's unit is
/// returned. Activations below a 128th of the row's largest are then rounded like one of that size.
///
/// An activation that is no finite number makes its lane's unit, or the row's, no number.
#[inline(always)]
fn lay_integers_out<I: Isa, const WIDTH: usize>(isa: I, x: &[f32], (kind, bits): (Kind, u32), to: &mut [u32]) -> f32 {
    // Exponents in their bit position of an `f32`. Values smaller than the smallest unit round to
    // zero.
    let least = if WIDTH == 4 { least_exponent(isa, x) } else { LEAST };
    let (one, precision) = (isa.splat_u(127 << 23), isa.splat_u((bits - 1) << 23));
    let (lane, zero) = (kind.lane(I::LANES), isa.splat(0.0));
    // How far apart a lane's words begin in `x`, the lanes, and the integers of a word.
    let (apart, step, other) = if kind.codes > 1 { (1, kind.codes, kind.codes / WIDTH) } else { (2 * I::LANES, 2, 1) };
    let mut values = [zero; MOST_INTEGERS];
    let values = &mut values[..lane];
    let mut any_wrong = zero;
    for (x, to) in x.chunks_exact(I::LANES * lane).zip(to.chunks_exact_mut(I::LANES * (lane / 2 + 1))) {
        let (mut largest, mut wrong) = (isa.with_bits(isa.splat_u(least)), zero);
        for (i, v) in values.iter_mut().enumerate() {
            // SAFETY: the words of a block together read exactly the block's elements.
            *v = isa.with_bits(unsafe { isa.load_u_strided(x.as_ptr().add(i / WIDTH * apart + i % WIDTH * other).cast(), step) });
            largest = isa.max(isa.abs(*v), largest);
            wrong = isa.fma(*v, zero, wrong);
        }
        any_wrong = isa.add(any_wrong, wrong);
        let exponent = isa.and(isa.bits(largest), isa.splat_u(EXPONENT));
        let unit = isa.sub_u(exponent, precision);
        let units = isa.with_bits(isa.sub_u(isa.add_u(one, one), unit));
        let integer = |v| isa.float_to_int(isa.round(isa.mul(v, units)));
        let (integers, end) = to.split_at_mut(I::LANES * lane / 2);
        for (values, to) in values.chunks_exact(WIDTH).zip(integers.chunks_exact_mut(I::LANES * WIDTH / 2)) {
            let words = if WIDTH == 2 {
                [isa.or(isa.and(integer(values[0]), isa.splat_u(0xffff)), isa.shl(integer(values[1]), 16)); 2]
            } else {
                in_two_bytes(isa, bits == 14, [integer(values[0]), integer(values[1]), integer(values[2]), integer(values[3])])
            };
            for (word, to) in words.into_iter().zip(to.chunks_exact_mut(I::LANES)) {
                // SAFETY: the chunk is a vector.
                unsafe { isa.store(to.as_mut_ptr().cast(), isa.with_bits(word)) };
            }
        }
        let behind = if WIDTH == 4 {
            isa.with_bits(isa.shr(isa.sub_u(exponent, isa.splat_u(least)), 23))
        } else {
            isa.add(isa.with_bits(unit), wrong)
        };
        // SAFETY: a vector is left behind the integers.
        unsafe { isa.store(end.as_mut_ptr().cast(), behind) };
    }
    f32::from_bits(least - ((bits - 1) << 23)) + isa.sum(any_wrong)
}

/// The exponent of an `f32`.
const EXPONENT: u32 = 0x7f80_0000;
/// The least exponent whose units, and their inverses, are normal numbers.
const LEAST: u32 = 28 << 23;

/// The least exponent of a row's lanes.
#[inline(always)]
fn least_exponent<I: Isa>(isa: I, x: &[f32]) -> u32 {
    let mut largest = isa.splat(0.0);
    for x in x.chunks_exact(I::LANES) {
        // SAFETY: the chunk is LANES long.
        largest = isa.max(isa.abs(unsafe { isa.load(x.as_ptr()) }), largest);
    }
    (isa.max_lane(largest).to_bits() & EXPONENT).saturating_sub(FARTHEST << 23).max(LEAST)
}

/// Maximum integers of a lane in a block: a group of 128 in eight lanes, or sixteen codes in a
/// word.
const MOST_INTEGERS: usize = 16;

/// Words of the upper, signed, and of the lower bytes of four integers each.
#[inline(always)]
fn in_two_bytes<I: Isa>(isa: I, is_lower_signed: bool, integers: [I::U; 4]) -> [I::U; 2] {
    let (byte, half) = (isa.splat_u(0xff), isa.splat_u(if is_lower_signed { 0x80 } else { 0 }));
    let mut words = [isa.splat_u(0); 2];
    for (b, v) in integers.into_iter().enumerate() {
        for (word, part) in words.iter_mut().zip([isa.shr(isa.add_u(v, half), 8), v]) {
            *word = isa.or(*word, isa.shl(isa.and(part, byte), 8 * b as u32));
        }
    }
    words
}
