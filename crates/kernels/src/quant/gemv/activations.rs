//! Activations laid out to meet the codes of a weight.

use flambeau_tensor::DType;

use crate::{
    pool::{Scratch, Team},
    quant::{
        QMatrix,
        code::{Code, with_code},
    },
    simd::{Cpu, Isa, Kernel},
};

/// What the words of activations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// `f32`.
    Floats,
    /// Pairs of bf16, this many for each pair of activations, which is their sum.
    Pairs { terms: usize },
    /// Pairs of `i16`. Behind those of each block lies a vector of `f32`, the value of 1 in each lane.
    Integers,
}

/// How activations are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Codes of a lane; 1: activations are in their order.
    codes: usize,
    pub(super) words: Words,
    group: usize,
}

impl Kind {
    /// For activations of type `x`.
    pub(crate) fn of(cpu: Cpu, w: &QMatrix, x: DType) -> Kind {
        with_code!(w.format, C => Kind {
            codes: if C::WHOLE { C::CODES } else { 1 },
            words: match (x, C::PARTS.len()) {
                (DType::BF16, 1..) if cpu.has_dot() => Words::Pairs { terms: 1 },
                // Two terms times two parts are more work than `f32`.
                (DType::F16, 1) if cpu.has_dot() => Words::Pairs { terms: 2 },
                (DType::BF16 | DType::F16, _) if C::UNIT.is_some() && cpu.with_dot_i16().is_some() => Words::Integers,
                _ => Words::Floats,
            },
            group: w.format.group(),
        })
    }

    /// The one that lays these out and multiplies them.
    pub(super) fn cpu(self, cpu: Cpu) -> Cpu {
        if self.words == Words::Integers { cpu.with_dot_i16().unwrap_or(cpu) } else { cpu }
    }

    /// Words of `k` activations, a whole number of blocks, for vectors of so many lanes.
    #[inline(always)]
    pub(super) fn words(self, k: usize, lanes: usize) -> usize {
        match self.words {
            Words::Floats => k,
            Words::Pairs { terms } => k / 2 * terms,
            Words::Integers => k / 2 + k / self.lane(lanes),
        }
    }

    /// Integers of one of `lanes` lanes in a block; no two lie in different groups.
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
    /// Where the sums start, `[m][group]`, each row padded with zeros.
    pub(super) sums: usize,
    pub(super) sum_stride: usize,
}

impl Prepared {
    /// Of `x`, `[m, k]` with rows `x_stride` apart and zeros from `k` on.
    pub(crate) fn new(team: &mut Team, kind: Kind, x: &[f32], x_stride: usize, [m, k]: [usize; 2]) -> Prepared {
        let cpu = kind.cpu(team.cpu());
        let lanes = cpu.lanes();
        let stride = kind.words(k.next_multiple_of((lanes * kind.codes).max(32)), lanes);
        let sum_stride = (k / kind.group).next_multiple_of(16);
        let mut data = team.take(m * (stride + sum_stride));
        let (words, sums) = data.words().split_at_mut(m * stride);
        for i in 0..m {
            let (x, to) = (&x[i * x_stride..][..x_stride], &mut words[i * stride..][..stride]);
            let sums = bytemuck::cast_slice_mut(&mut sums[i * sum_stride..][..sum_stride]);
            cpu.dispatch(LayOut { x, k, kind, to, sums });
        }
        Prepared { kind, data, m, stride, sums: m * stride, sum_stride }
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
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
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
        let terms = match kind.words {
            Words::Integers => return lay_integers_out(isa, x, kind, to),
            Words::Pairs { terms } => terms,
            Words::Floats => 0,
        };
        // Words of a lane, how far apart its activations lie in `x`, and where the other one of a pair is.
        let (each, step, other) = match (codes, terms) {
            (1, 0) => (1, 1, 0),
            (1, _) => (1, 2, 1),
            (_, 0) => (codes, codes, 0),
            (_, _) => (codes / 2, codes, codes / 2),
        };
        for (b, to) in to.chunks_exact_mut(I::LANES * each * terms.max(1)).enumerate() {
            for (j, to) in to.chunks_exact_mut(I::LANES * terms.max(1)).enumerate() {
                let from = &x[b * I::LANES * step + j..];
                assert!(from.len() >= I::LANES * step - (step - 1) + other, "activations are padded");
                // SAFETY: by the assertion; the chunk is `terms` vectors long, but at least one.
                unsafe {
                    let from = from.as_ptr().cast::<u32>();
                    let first = if step == 1 { isa.load_u(from) } else { isa.load_u_strided(from, step) };
                    if terms == 0 {
                        isa.store(to.as_mut_ptr().cast(), isa.with_bits(first));
                    } else {
                        let second = isa.load_u_strided(from.add(other), step);
                        store_terms(isa, [isa.with_bits(first), isa.with_bits(second)], terms, to.as_mut_ptr());
                    }
                }
            }
        }
    }
}

/// Rounds the activations of each lane and block to integers of 15 bits and a sign, in units of a power of two. That changes none by
/// more than a sixteenth of what the largest of them may have lost when it was rounded to f16, or a 128th for bf16.
///
/// A lane with an activation that is no finite number gets a unit that is none.
#[inline(always)]
fn lay_integers_out<I: Isa>(isa: I, x: &[f32], kind: Kind, to: &mut [u32]) {
    const BITS: u32 = 15;
    // Exponents, where they stand in an `f32`. What is smaller than the smallest unit rounds to zero.
    let (least, one) = (isa.splat_u(28 << 23), isa.splat_u(127 << 23));
    let (lane, zero) = (kind.lane(I::LANES), isa.splat(0.0));
    let (apart, step, other) = if kind.codes > 1 { (1, kind.codes, kind.codes / 2) } else { (2 * I::LANES, 2, 1) };
    let mut pairs = [[zero; 2]; MOST_PAIRS];
    let pairs = &mut pairs[..lane / 2];
    for (b, to) in to.chunks_exact_mut(I::LANES * (lane / 2 + 1)).enumerate() {
        let x = &x[b * I::LANES * lane..][..I::LANES * lane];
        let (mut largest, mut wrong) = (isa.with_bits(least), zero);
        for (j, pair) in pairs.iter_mut().enumerate() {
            for (half, v) in pair.iter_mut().enumerate() {
                // SAFETY: the block's elements are those of all pairs.
                *v = isa.with_bits(unsafe { isa.load_u_strided(x.as_ptr().add(j * apart + half * other).cast(), step) });
                largest = isa.max(isa.abs(*v), largest);
                wrong = isa.fma(*v, zero, wrong);
            }
        }
        let exponent = isa.and(isa.bits(largest), isa.splat_u(0x7f80_0000));
        let unit = isa.sub_u(exponent, isa.splat_u((BITS - 1) << 23));
        let units = isa.with_bits(isa.sub_u(isa.add_u(one, one), unit));
        let integers = |v| isa.float_to_int(isa.round(isa.mul(v, units)));
        for (&[low, high], to) in pairs.iter().zip(to.chunks_exact_mut(I::LANES)) {
            let pair = isa.or(isa.and(integers(low), isa.splat_u(0xffff)), isa.shl(integers(high), 16));
            // SAFETY: the chunk is a vector.
            unsafe { isa.store(to.as_mut_ptr().cast(), isa.with_bits(pair)) };
        }
        let at = to.len() - I::LANES;
        // SAFETY: a vector is left behind the pairs.
        unsafe { isa.store(to[at..].as_mut_ptr().cast(), isa.add(isa.with_bits(unit), wrong)) };
    }
}

/// The most pairs of a lane in a block: of a group of 128 in eight lanes, or of sixteen codes in a word.
const MOST_PAIRS: usize = 8;

/// Stores `terms` vectors of pairs of bf16 whose sums are the pairs of `x`.
///
/// # Safety
/// They are writable at `to`.
#[inline(always)]
unsafe fn store_terms<I: Isa>(isa: I, [mut a, mut b]: [I::V; 2], terms: usize, to: *mut u32) {
    for term in 0..terms {
        let (low, high) = (isa.bf16_bits(a), isa.shl(isa.bf16_bits(b), 16));
        // SAFETY: the caller makes as many vectors writable.
        unsafe { isa.store(to.add(term * I::LANES).cast(), isa.with_bits(isa.or(low, high))) };
        (a, b) = (isa.sub(a, isa.with_bits(isa.shl(low, 16))), isa.sub(b, isa.with_bits(high)));
    }
}
