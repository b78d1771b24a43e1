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

/// How activations are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Codes of a lane; 1: activations are in their order.
    codes: usize,
    /// How many bf16 an activation is the sum of, words being pairs of them; 0: words are `f32`.
    pub(super) terms: usize,
    group: usize,
}

impl Kind {
    /// For activations of type `x`.
    pub(crate) fn of(cpu: Cpu, w: &QMatrix, x: DType) -> Kind {
        with_code!(w.format, C => Kind {
            codes: if C::WHOLE { C::CODES } else { 1 },
            terms: match (x, C::PARTS.len()) {
                (DType::BF16, 1..) if cpu.has_dot() => 1,
                // Two terms times two parts are more work than `f32`.
                (DType::F16, 1) if cpu.has_dot() => 2,
                _ => 0,
            },
            group: w.format.group(),
        })
    }

    /// Words of `k` activations, a multiple of 2.
    pub(super) fn words(self, k: usize) -> usize {
        if self.terms == 0 { k } else { k / 2 * self.terms }
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
        let cpu = team.cpu();
        let block = cpu.lanes() * kind.codes;
        let padded = k.next_multiple_of(block.max(32));
        let stride = kind.words(padded);
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
        let LayOut { x, k, kind: Kind { codes, terms, group }, to, sums } = self;
        sums.fill(0.0);
        for (sum, part) in sums.iter_mut().zip(x[..k].chunks_exact(group)) {
            let mut total = isa.splat(0.0);
            for lanes in part.chunks_exact(I::LANES) {
                // SAFETY: the chunk is LANES long; a group is a multiple of 16.
                total = isa.add(total, unsafe { isa.load(lanes.as_ptr()) });
            }
            *sum = isa.sum(total);
        }
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
