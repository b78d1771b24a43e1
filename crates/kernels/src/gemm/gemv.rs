//! Products of few rows of dense operands: each element of the larger operand is read once, in
//! memory order.

use std::ops::Range;

use half::bf16;

use super::{
    epilogue::{Lines, RawEpilogue},
    operand::Dense,
};
use crate::{
    Float,
    convert::{FloatPtr, with_float},
    pool::Team,
    simd::{Cpu, Isa, Kernel, load_partial},
};

/// Distance in bytes from the read position of a stream to its prefetched position.
const AHEAD: usize = 4096;

/// Columns a task of [`by_columns`] owns.
const COLUMNS: usize = 128;

/// Rows of activations, in words, that dense rows are multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct SkinnyRows {
    /// `f32`, or pairs of bf16 where the weights are bf16 too.
    pub(crate) words: *const u32,
    pub(crate) pairs: bool,
    /// Words between rows.
    pub(crate) stride: usize,
    pub(crate) m: usize,
    pub(crate) k: usize,
}

/// `to[m][row] = x[m] · w[row]` for rows of `w`, whose elements are contiguous.
///
/// # Safety
/// The rows are inside `w` and have `k` elements, like the rows of `x`.
pub(crate) unsafe fn dots(cpu: Cpu, x: SkinnyRows, w: &Dense, rows: Range<usize>, to: &mut [f32]) {
    let (step, count) = (w.step[0], rows.len());
    // SAFETY: the caller keeps row `rows.start` inside `w`.
    let first = unsafe { w.at(rows.start, 0) };
    match first {
        FloatPtr::BF16(p) if x.pairs => cpu.dispatch_dot(Dots { x, w: p.cast_const(), step, count, out: to }),
        _ => with_float!(first, p => cpu.dispatch(Dots { x, w: p.cast_const(), step, count, out: to })),
    }
}

/// As [`dots`], for rows of `w` whose elements are apart, with equal elements of adjacent rows
/// beside each other. The rows of `x` are `f32`.
///
/// # Safety
/// As [`dots`].
pub(crate) unsafe fn columns(cpu: Cpu, x: SkinnyRows, w: &Dense, rows: Range<usize>, to: &mut [f32]) {
    // SAFETY: the caller keeps row `rows.start` inside `w`.
    let first = unsafe { w.at(rows.start, 0) };
    for (i, line) in to.chunks_exact_mut(rows.len().max(1)).enumerate().take(x.m) {
        // SAFETY: `x` has row `i`, of `k` elements.
        let row = unsafe { std::slice::from_raw_parts(x.words.add(i * x.stride).cast::<f32>(), x.k) };
        line.fill(0.0);
        with_float!(first, p => cpu.dispatch(Axpy { row, b: p.cast_const(), step: w.step[1], line }));
    }
}

struct Dots<'a, W> {
    x: SkinnyRows,
    w: *const W,
    /// Between rows of `w`.
    step: isize,
    count: usize,
    /// `[m][row]`
    out: &'a mut [f32],
}

impl<W: Float> Kernel for Dots<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        // One row of weights after the other, in memory order: reading several at a time halves the
        // memory bandwidth.
        for row in 0..self.count {
            let mut i = 0;
            while i < self.x.m {
                // SAFETY: rows and columns are inside the operands.
                i += unsafe {
                    // Only pairs of bf16 come here with the instruction for them.
                    match (self.x.m - i, I::DOT) {
                        (4.., true) if I::TILES => self.tile::<I, 4, true>(isa, i, row),
                        (2.., true) if I::TILES => self.tile::<I, 2, true>(isa, i, row),
                        (_, true) => self.tile::<I, 1, true>(isa, i, row),
                        (4.., false) if I::TILES => self.tile::<I, 4, false>(isa, i, row),
                        (2.., false) if I::TILES => self.tile::<I, 2, false>(isa, i, row),
                        (_, false) => self.tile::<I, 1, false>(isa, i, row),
                    }
                };
            }
        }
    }
}

impl<W: Float> Dots<'_, W> {
    /// `MR` rows of `x` from `i` on with row `row` of `w`; returns `MR`.
    ///
    /// # Safety
    /// They are inside the operands.
    #[inline(always)]
    unsafe fn tile<I: Isa, const MR: usize, const PAIRS: bool>(&mut self, isa: I, i: usize, row: usize) -> usize {
        let (k, width) = (self.x.k, if PAIRS { 2 * I::LANES } else { I::LANES });
        // Four sums, so that additions need not wait for each other.
        let mut sums = [[isa.splat(0.0); 4]; MR];
        let (whole, fours) = (k / width * width, k / (4 * width) * 4 * width);
        let (per_word, stride) = (if PAIRS { 2 } else { 1 }, self.x.stride);
        // SAFETY: the caller keeps row `row` of the weights and rows `i..i + MR` of the activations
        // inside the operands; each has `k` elements.
        unsafe {
            let w = self.w.offset(row as isize * self.step);
            let x = self.x.words.add(i * stride);
            for p in (0..fours).step_by(4 * width) {
                for c in 0..4 {
                    let p = p + c * width;
                    isa.prefetch(w.add(p).cast::<u8>().wrapping_add(AHEAD));
                    let weights = load::<I, W, PAIRS>(isa, w.add(p));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        sums[c] = combine::<I, PAIRS>(isa, isa.load_u(x.add(r * stride + p / per_word)), weights, sums[c]);
                    }
                }
            }
            for p in (fours..whole).step_by(width) {
                let weights = load::<I, W, PAIRS>(isa, w.add(p));
                for (r, sums) in sums.iter_mut().enumerate() {
                    sums[0] = combine::<I, PAIRS>(isa, isa.load_u(x.add(r * stride + p / per_word)), weights, sums[0]);
                }
            }
            if whole < k {
                let weights = load_rest::<I, W, PAIRS>(isa, w.add(whole), k - whole);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let at = x.add(r * stride + whole / per_word);
                    let x = if PAIRS {
                        load_rest::<I, bf16, true>(isa, at.cast(), k - whole)
                    } else {
                        load_rest::<I, f32, false>(isa, at.cast(), k - whole)
                    };
                    sums[1] = combine::<I, PAIRS>(isa, x, weights, sums[1]);
                }
            }
        }
        for (r, &[a, b, c, d]) in sums.iter().enumerate() {
            self.out[(i + r) * self.count + row] = isa.sum(isa.add(isa.add(a, b), isa.add(c, d)));
        }
        MR
    }
}

/// A vector of words at `p`.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn load<I: Isa, W: Float, const PAIRS: bool>(isa: I, p: *const W) -> I::U {
    // SAFETY: `p` points to a readable vector of words.
    unsafe { if PAIRS { isa.load_u(p.cast()) } else { isa.bits(W::load(isa, p)) } }
}

/// The first `n` elements at `p`, zeros beyond.
///
/// # Safety
/// They are readable, and fewer than a vector of words holds.
#[inline(always)]
unsafe fn load_rest<I: Isa, W: Float, const PAIRS: bool>(isa: I, p: *const W, n: usize) -> I::U {
    // SAFETY: the caller provides `n` readable elements; 32 halves are 16 words, and LANES is at
    // most 16.
    unsafe {
        if PAIRS {
            let mut halves = [0u16; 32];
            std::ptr::copy_nonoverlapping(p.cast(), halves.as_mut_ptr(), n);
            isa.load_u(halves.as_ptr().cast())
        } else {
            isa.bits(load_partial(isa, p, n))
        }
    }
}

#[inline(always)]
fn combine<I: Isa, const PAIRS: bool>(isa: I, x: I::U, w: I::U, sum: I::V) -> I::V {
    if PAIRS { isa.dot_bf16(sum, x, w) } else { isa.fma(isa.with_bits(x), isa.with_bits(w), sum) }
}

/// `x[m, k] · b[k, n]` for `b` with contiguous rows: adds up the rows of `b`, each times its
/// element of `x`. `rows` holds `x` as `f32`, with rows `stride` apart.
///
/// # Safety
/// The operands have these sizes.
pub(super) unsafe fn by_columns(
    team: &mut Team,
    [m, n, k]: [usize; 3],
    rows: &[f32],
    stride: usize,
    b: &Dense,
    epilogue: &RawEpilogue,
) {
    let cpu = team.cpu();
    team.run(n.div_ceil(COLUMNS), 0, |task, _| {
        let (first, count) = (task * COLUMNS, COLUMNS.min(n - task * COLUMNS));
        // SAFETY: the columns are inside the matrix.
        let from = unsafe { b.at(0, first) };
        for i in 0..m {
            let mut line = [0.0; COLUMNS];
            let (line, row) = (&mut line[..count], &rows[i * stride..][..k]);
            with_float!(from, p => cpu.dispatch(Axpy { row, b: p.cast_const(), step: b.step[0], line }));
            let lines = Lines { data: line, gate: None, stride: count, size: [1, count] };
            // SAFETY: tasks own disjoint columns.
            unsafe { epilogue.store(cpu, i, first, lines) };
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
