//! Products of few rows: each element of `b` is read once, in the order it lies.

use super::{block::Sink, operand::Dense};
use crate::{
    Float, Pool,
    convert::with_float,
    simd::{Cpu, Isa, Kernel, load_partial},
};

/// Bytes of `b` a task reads.
const TASK_BYTES: usize = 64 << 10;

/// Columns a task of [`by_columns`] owns.
const COLUMNS: usize = 128;

/// The rows of `a` as `f32`, one after the other.
fn gather_rows(cpu: Cpu, m: usize, k: usize, a: &Dense) -> Vec<f32> {
    let mut rows = vec![0.0; m * k];
    for (i, row) in rows.chunks_exact_mut(k.max(1)).enumerate() {
        // SAFETY: row `i` has `k` elements.
        unsafe { a.at(i, 0).read(cpu, a.step[1], row) };
    }
    rows
}

/// For `b` whose columns are contiguous (a linear layer's weight): dot products.
pub(super) fn by_rows(pool: &Pool, [m, n, k]: [usize; 3], a: &Dense, b: &Dense, out: &dyn Sink) {
    let cpu = pool.cpu();
    let rows = gather_rows(cpu, m, k, a);
    let grain = (TASK_BYTES / (k * b.origin.size()).max(1)).next_multiple_of(4).max(4);
    pool.run_ranges(n, grain, |columns| {
        let mut results = vec![0.0; m * columns.len()];
        let first = columns.start;
        let (size, step) = ([m, k, columns.len()], b.step[1]);
        // SAFETY: the columns are inside the matrix.
        let b = unsafe { b.at(0, first) };
        with_float!(b, p => cpu.dispatch(Dots { size, rows: &rows, b: p.cast_const(), step, out: &mut results }));
        for (i, line) in results.chunks_exact(columns.len()).enumerate() {
            // SAFETY: tasks own disjoint columns.
            unsafe { out.store(cpu, i, first, line) };
        }
    });
}

struct Dots<'a, B> {
    /// m, k, columns
    size: [usize; 3],
    rows: &'a [f32],
    b: *const B,
    /// Between columns.
    step: isize,
    /// `[m][column]`
    out: &'a mut [f32],
}

impl<B: Float> Kernel for Dots<'_, B> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let mut j = 0;
        while j < self.size[2] {
            let wide = j + 4 <= self.size[2];
            let mut i = 0;
            while i < self.size[0] {
                let tall = i + 4 <= self.size[0];
                // SAFETY: rows and columns lie inside the operands.
                unsafe {
                    match (tall, wide) {
                        (true, true) => self.tile::<I, 4, 4>(isa, i, j),
                        (true, false) => self.tile::<I, 4, 1>(isa, i, j),
                        (false, true) => self.tile::<I, 1, 4>(isa, i, j),
                        (false, false) => self.tile::<I, 1, 1>(isa, i, j),
                    }
                }
                i += if tall { 4 } else { 1 };
            }
            j += if wide { 4 } else { 1 };
        }
    }
}

impl<B: Float> Dots<'_, B> {
    /// # Safety
    /// `MR` rows from `i` on and `NR` columns from `j` on are inside the operands.
    #[inline(always)]
    unsafe fn tile<I: Isa, const MR: usize, const NR: usize>(&mut self, isa: I, i: usize, j: usize) {
        let k = self.size[1];
        let mut sums = [[isa.splat(0.0); NR]; MR];
        let x = self.rows[i * k..].as_ptr();
        // SAFETY: the caller's promise.
        let columns: [*const B; NR] = std::array::from_fn(|c| unsafe { self.b.offset((j + c) as isize * self.step) });
        let mut p = 0;
        while p < k {
            // SAFETY: `LANES` or the `k - p` remaining elements of each row and column are readable.
            unsafe {
                let whole = k - p >= I::LANES;
                let mut xs = [isa.splat(0.0); MR];
                for (r, xs) in xs.iter_mut().enumerate() {
                    let at = x.add(r * k + p);
                    *xs = if whole { isa.load(at) } else { load_partial(isa, at, k - p) };
                }
                for c in 0..NR {
                    let at = columns[c].add(p);
                    let w = if whole { B::load(isa, at) } else { load_partial(isa, at, k - p) };
                    for r in 0..MR {
                        sums[r][c] = isa.fma(xs[r], w, sums[r][c]);
                    }
                }
            }
            p += I::LANES;
        }
        for (r, sums) in sums.iter().enumerate() {
            let at = (i + r) * self.size[2] + j;
            self.out[at..at + NR].iter_mut().zip(sums).for_each(|(o, &s)| *o = isa.sum(s));
        }
    }
}

/// For `b` whose rows are contiguous: rows of `b` are added up, each by its factor.
pub(super) fn by_columns(pool: &Pool, [m, n, k]: [usize; 3], a: &Dense, b: &Dense, out: &dyn Sink) {
    let cpu = pool.cpu();
    let rows = gather_rows(cpu, m, k, a);
    pool.run_ranges(n, COLUMNS, |columns| {
        let (first, count) = (columns.start, columns.len());
        let step = b.step[0];
        // SAFETY: the columns are inside the matrix.
        let b = unsafe { b.at(0, first) };
        for i in 0..m {
            let mut line = [0.0; COLUMNS];
            let (line, row) = (&mut line[..count], &rows[i * k..(i + 1) * k]);
            with_float!(b, p => cpu.dispatch(Axpy { row, b: p.cast_const(), step, line }));
            // SAFETY: tasks own disjoint columns.
            unsafe { out.store(cpu, i, first, line) };
        }
    });
}

/// `line += Σ row[p] · b[p]`
struct Axpy<'a, B> {
    row: &'a [f32],
    b: *const B,
    /// Between rows of `b`.
    step: isize,
    line: &'a mut [f32],
}

impl<B: Float> Kernel for Axpy<'_, B> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (line, whole) = (self.line, I::LANES * 4);
        let mut j = 0;
        while j + whole <= line.len() {
            let mut sums = [isa.splat(0.0); 4];
            for (p, &x) in self.row.iter().enumerate() {
                let factor = isa.splat(x);
                for (v, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: row `p`, columns `j..j + whole`, are inside the matrix.
                    let b = unsafe { B::load(isa, self.b.offset(p as isize * self.step).add(j + v * I::LANES)) };
                    *sum = isa.fma(factor, b, *sum);
                }
            }
            for (v, &sum) in sums.iter().enumerate() {
                // SAFETY: inside the line.
                unsafe { isa.store(line.as_mut_ptr().add(j + v * I::LANES), sum) };
            }
            j += whole;
        }
        for (j, sum) in line.iter_mut().enumerate().skip(j) {
            for (p, &x) in self.row.iter().enumerate() {
                // SAFETY: inside the matrix.
                *sum += x * unsafe { (*self.b.offset(p as isize * self.step).add(j)).to_f32() };
            }
        }
    }
}
