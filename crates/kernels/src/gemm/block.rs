//! The blocked product over packed panels.
//!
//! `a` is packed once, in parallel; then each task owns a block of the output, packs its columns of `b` a stretch of K at a time,
//! and runs the register tile over them. Blocks follow from the sizes alone.

use std::ops::Range;

use super::{micro, operand::Dense};
use crate::{
    Float, Pool,
    convert::with_float,
    simd::{Cpu, Isa, Kernel},
};

/// Steps of K between visits to the output.
pub(crate) const KC: usize = 256;

/// Rows and columns of a task's block of the output.
const MC: usize = 240;
const NC: usize = 64;

/// The right operand of a product, `[k, n]`.
pub(crate) trait Source: Sync {
    /// Writes rows `k`, columns `n`, to `panel` as `[k.len()][width]`, zero beyond `n`. `width` is a multiple of LANES.
    fn pack(&self, cpu: Cpu, k: Range<usize>, n: Range<usize>, width: usize, panel: &mut [f32]);
}

/// Where a product goes.
pub(crate) trait Sink: Sync {
    /// Takes `row` as the elements from `(i, j)` on.
    ///
    /// # Safety
    /// They are inside the output, and no other task stores them.
    unsafe fn store(&self, cpu: Cpu, i: usize, j: usize, row: &[f32]);
}

/// `out[m, n] = a[m, k] · b[k, n]`.
pub(crate) fn multiply(pool: &Pool, size: [usize; 3], a: &Dense, b: &dyn Source, out: &dyn Sink) {
    let [m, n, k] = size;
    let cpu = pool.cpu();
    let (mr, _) = micro::tile(pool.isa());
    let mut packed = vec![0.0; m.next_multiple_of(mr) * k];
    pool.run_chunks(&mut packed, (mr * k).max(1), |panel, to| {
        let rows = panel * mr..m.min(panel * mr + mr);
        with_float!(a.origin, p => cpu.dispatch(PackA { a: p.cast_const(), step: a.step, rows, mr, to }));
    });
    let mc = m.div_ceil(m.div_ceil(MC).max(1)).next_multiple_of(mr);
    let across = n.div_ceil(NC);
    pool.run(m.div_ceil(mc) * across, |task| {
        let (row, column) = (task / across * mc, task % across * NC);
        let (rows, columns) = (row..m.min(row + mc), column..n.min(column + NC));
        cpu.dispatch(Block { a: &packed, b, out, cpu, k, rows, columns });
    });
}

/// Packs one panel of `a`: `[k][mr]`, zero beyond `rows`.
struct PackA<'a, A> {
    a: *const A,
    step: [isize; 2],
    rows: Range<usize>,
    mr: usize,
    to: &'a mut [f32],
}

impl<A: Float> Kernel for PackA<'_, A> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        for (i, row) in self.rows.enumerate() {
            // SAFETY: the row is inside the matrix.
            let from = unsafe { self.a.offset(row as isize * self.step[0]) };
            for (p, to) in self.to.chunks_exact_mut(self.mr).enumerate() {
                // SAFETY: as above.
                to[i] = unsafe { (*from.offset(p as isize * self.step[1])).to_f32() };
            }
        }
    }
}

struct Block<'a> {
    a: &'a [f32],
    b: &'a dyn Source,
    out: &'a dyn Sink,
    cpu: Cpu,
    k: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Kernel for Block<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (mr, vectors) = micro::tile(I::KIND);
        let nr = vectors * I::LANES;
        let panels = self.columns.len().div_ceil(nr);
        let stride = panels * nr;
        let mut sums = vec![0.0; self.rows.len().next_multiple_of(mr) * stride];
        let mut packed = vec![0.0; KC.min(self.k) * stride];
        for k in (0..self.k).step_by(KC) {
            let depth = KC.min(self.k - k);
            for (panel, to) in packed.chunks_exact_mut(depth * nr).take(panels).enumerate() {
                let first = self.columns.start + panel * nr;
                self.b.pack(self.cpu, k..k + depth, first..self.columns.end.min(first + nr), nr, to);
            }
            for (i, lines) in sums.chunks_exact_mut(mr * stride).enumerate() {
                let a = &self.a[(self.rows.start + i * mr) * self.k + k * mr..][..depth * mr];
                for (panel, b) in packed.chunks_exact(depth * nr).take(panels).enumerate() {
                    // SAFETY: both panels hold `depth` steps, and the tile is inside `lines`.
                    unsafe {
                        micro::accumulate(isa, depth, a.as_ptr(), b.as_ptr(), lines.as_mut_ptr().add(panel * nr), stride);
                    }
                }
            }
        }
        for (line, i) in sums.chunks_exact(stride).zip(self.rows) {
            // SAFETY: the block is inside the output, and blocks are disjoint.
            unsafe { self.out.store(self.cpu, i, self.columns.start, &line[..self.columns.len()]) };
        }
    }
}
