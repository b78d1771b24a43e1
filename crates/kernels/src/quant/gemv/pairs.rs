//! Four-bit codes against bf16 activations, through the BF16 dot product: two products a lane and instruction.
//!
//! The products are exact, and sums are `f32`, as they are without it. Subnormal activations count as zero.

use super::{Products, Task};
use crate::{
    quant::code::Code,
    simd::{Avx512, Cpu, DotBf16, DotKernel, Isa},
};

/// Proof that the instruction is there.
#[derive(Clone, Copy)]
pub(super) struct Dot(Avx512, DotBf16);

impl Dot {
    pub(super) fn of(cpu: Cpu) -> Option<Dot> {
        match cpu {
            Cpu::Avx512(isa) => isa.dot_bf16().map(|dot| Dot(isa, dot)),
            _ => None,
        }
    }

    pub(super) fn run<C: Code>(self, task: Task<C>) {
        self.0.enter_with_dot(self.1, task);
    }
}

impl<C: Code> DotKernel for Task<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run(self, isa: Avx512, dot: DotBf16) {
        self.all_rows(isa, dot);
    }
}

impl<C: Code> Products<C, Avx512> for DotBf16 {
    const CODES: usize = 2;

    #[inline(always)]
    unsafe fn sums<const MR: usize, const NR: usize>(
        self,
        isa: Avx512,
        words: *const u32,
        stride: usize,
        x: *const f32,
        x_stride: usize,
    ) -> [[<Avx512 as Isa>::V; NR]; MR] {
        let table = C::TABLE.unwrap_or([0; 32]);
        let mut sums = [[isa.splat(0.0); NR]; MR];
        // SAFETY: the caller's promise.
        let packed: [_; NR] = std::array::from_fn(|r| unsafe { isa.load_u(words.add(r * stride)) });
        for j in 0..4 {
            for r in 0..NR {
                let low = isa.and(isa.shr(packed[r], 4 * j as u32), isa.splat_u(0x000f_000f));
                let q = self.lookup32(low, &table);
                for (i, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    let x = unsafe { isa.load(x.add(i * x_stride + j * Avx512::LANES)) };
                    sums[r] = self.accumulate(sums[r], isa.bits(x), q);
                }
            }
        }
        sums
    }
}
