//! The innermost kernel: a tile of the product held in registers.
//!
//! Rows are broadcast from their place in memory; lanes hold the columns of packed panels. A word
//! is one `f32`, or two bf16 that follow each other along K where the instruction set multiplies
//! such pairs.

use crate::simd::{Isa, IsaKind};

/// The most rows of a tile.
pub(crate) const MAX_ROWS: usize = 8;

/// Rows, and vectors of columns, of the register tile.
pub(crate) const fn tile(kind: IsaKind) -> (usize, usize) {
    match kind {
        IsaKind::Avx512 => (8, 3),
        IsaKind::Avx2 => (6, 2),
        IsaKind::Neon => (8, 2),
        IsaKind::Portable => (4, 1),
    }
}

/// The operands of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// First word of each row of each run; as many a run as the tile has rows.
    pub(crate) rows: &'a [*const u32],
    /// Number of runs of `steps` words; their products are summed. Runs are consecutive in the
    /// panel.
    pub(crate) runs: usize,
    /// Words between steps of a row.
    pub(crate) row_step: usize,
    pub(crate) steps: usize,
    pub(crate) panel: *const u32,
    /// Words between steps of the panel.
    pub(crate) panel_step: usize,
    /// Words from the rows to the next ones, which are requested ahead; 0 requests none.
    pub(crate) next: isize,
}

/// Steps between two requests for the words of a row, as many as a cache line holds.
const LINE: usize = 16;

/// `c[row, column] = Σ rows · panel`, or `+=` with `add`, for `vectors` vectors of columns, at most
/// the tile's. Rows of `c` are `stride` apart.
///
/// # Safety
/// Each row holds `steps` words, the panel holds the words of all runs, and the tile is writable.
#[inline(always)]
pub(crate) unsafe fn accumulate<I: Isa>(isa: I, x: &Inputs, vectors: usize, c: *mut f32, stride: usize, add: bool) {
    // SAFETY: the caller ensures valid rows, panel and `c`; each arm uses the tile size that `tile`
    // returns for its instruction set.
    unsafe {
        match (I::KIND, vectors) {
            (IsaKind::Avx512, 1) => step::<I, 8, 1>(isa, x, c, stride, add),
            (IsaKind::Avx512, 2) => step::<I, 8, 2>(isa, x, c, stride, add),
            (IsaKind::Avx512, _) => step::<I, 8, 3>(isa, x, c, stride, add),
            (IsaKind::Avx2, 1) => step::<I, 6, 1>(isa, x, c, stride, add),
            (IsaKind::Avx2, _) => step::<I, 6, 2>(isa, x, c, stride, add),
            (IsaKind::Neon, 1) => step::<I, 8, 1>(isa, x, c, stride, add),
            (IsaKind::Neon, _) => step::<I, 8, 2>(isa, x, c, stride, add),
            (IsaKind::Portable, _) => step::<I, 4, 1>(isa, x, c, stride, add),
        }
    }
}

#[inline(always)]
unsafe fn step<I: Isa, const MR: usize, const NV: usize>(isa: I, x: &Inputs, c: *mut f32, stride: usize, add: bool) {
    // SAFETY: the caller ensures valid rows and panel. The arms differ only in a constant distance
    // between a row's steps.
    let sums = unsafe {
        match x.row_step {
            1 => products::<I, MR, NV>(isa, x, 1),
            n => products::<I, MR, NV>(isa, x, n),
        }
    };
    for (i, sums) in sums.iter().enumerate() {
        for (v, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller made `c` writable for MR rows of NV vectors.
            unsafe {
                let at = c.add(i * stride + v * I::LANES);
                isa.store(at, if add { isa.add(isa.load(at), sum) } else { sum });
            }
        }
    }
}

#[inline(always)]
unsafe fn products<I: Isa, const MR: usize, const NV: usize>(isa: I, x: &Inputs, row_step: usize) -> [[I::V; NV]; MR] {
    let mut sums = [[isa.splat(0.0); NV]; MR];
    for run in 0..x.runs {
        let rows: [*const u32; MR] = std::array::from_fn(|i| x.rows[run * MR + i]);
        for p in 0..x.steps {
            if x.next != 0 && p.is_multiple_of(LINE) {
                for row in &rows {
                    isa.prefetch(row.wrapping_add(p * row_step).wrapping_offset(x.next).cast());
                }
            }
            // SAFETY: `accumulate` requires that each row holds `steps` words and the panel the
            // words of all runs.
            unsafe {
                let panel = x.panel.add((run * x.steps + p) * x.panel_step);
                let columns: [I::U; NV] = std::array::from_fn(|v| isa.load_u(panel.add(v * I::LANES)));
                for (row, sums) in rows.iter().zip(&mut sums) {
                    let word = isa.splat_u(row.add(p * row_step).read_unaligned());
                    for (sum, &column) in sums.iter_mut().zip(&columns) {
                        *sum = if I::DOT {
                            isa.dot_bf16(*sum, word, column)
                        } else {
                            isa.fma(isa.with_bits(word), isa.with_bits(column), *sum)
                        };
                    }
                }
            }
        }
    }
    sums
}
