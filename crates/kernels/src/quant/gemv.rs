//! Products of few rows: packed words are read once and go straight into registers.
//!
//! A vector of words holds `LANES · CODES` consecutive codes, lane by lane; code `j` of all lanes comes out with one shift. The
//! activations are laid out to match (`x[block][j][lane]`) once per call, so that no code ever moves between lanes. Products
//! are summed without scale over one vector of words, in which a lane stays within one group, and then scaled.

#[cfg_attr(not(target_arch = "x86_64"), path = "gemv/no_pairs.rs")]
mod pairs;

use std::{marker::PhantomData, ops::Range};

use smallvec::SmallVec;

use super::{
    Format, QMatrix,
    code::{Code, MAX_WORDS, read_row, read_scales, with_code},
};
use crate::{
    Pool,
    convert::FloatPtr,
    gemm::Sink,
    simd::{Isa, Kernel},
};

/// Bytes of packed words a task reads.
const TASK_BYTES: usize = 48 << 10;

/// Rows whose scales are widened together.
const ROWS: usize = 16;

/// Activations in the order that the codes come in, and their sums by group.
struct Prepared {
    /// `[m][block][code][lane]`, zero beyond K.
    x: Vec<f32>,
    /// Elements of one row of `x`.
    stride: usize,
    /// `[m][group]`, each row padded with zeros to a multiple of 16.
    sums: Vec<f32>,
    /// Elements of one row of `sums`.
    sum_stride: usize,
}

/// `x[m, cols] · wᵀ` into `out`; `x` has these elements, row-major.
pub(super) fn linear(pool: &Pool, x: FloatPtr, w: &QMatrix, m: usize, out: &dyn Sink) {
    if w.rows == 0 || m == 0 {
        return;
    }
    let cpu = pool.cpu();
    let mut natural = vec![0.0; m * w.cols];
    // SAFETY: the caller's promise.
    unsafe { x.read(cpu, 1, &mut natural) };
    let exact = matches!(x, FloatPtr::BF16(_));
    with_code!(w.format, C => linear_with::<C>(pool, &natural, exact, w, m, out));
}

/// `exact`: the activations are bf16.
fn linear_with<C: Code>(pool: &Pool, x: &[f32], exact: bool, w: &QMatrix, m: usize, out: &dyn Sink) {
    let cpu = pool.cpu();
    let by_row = w.format.group() < C::CODES;
    let mut prepared = cpu.dispatch(Prepare { x, w, m, codes: if by_row { 1 } else { C::CODES } });
    let dot = if exact && C::TABLE.is_some() { pairs::Dot::of(cpu) } else { None };
    if dot.is_some() {
        prepared.pair_up();
    }
    let grain = (TASK_BYTES / (w.row_words() * 4).max(1)).next_multiple_of(ROWS).max(ROWS);
    pool.run_ranges(w.rows, grain, |rows| {
        let mut results: SmallVec<[f32; 512]> = SmallVec::from_elem(0.0, rows.len() * m);
        let task = Task::<C> { w, m, x: &prepared, rows: rows.clone(), by_row, results: &mut results, code: PhantomData };
        match dot {
            Some(dot) => dot.run(task),
            None => cpu.dispatch(task),
        }
        for (i, line) in results.chunks_exact(rows.len()).enumerate() {
            // SAFETY: tasks own disjoint columns of every row of the output.
            unsafe { out.store(cpu, i, rows.start, line) };
        }
    });
}

struct Prepare<'a> {
    x: &'a [f32],
    w: &'a QMatrix<'a>,
    m: usize,
    /// Codes of a lane; with 1 the order stays.
    codes: usize,
}

impl Kernel for Prepare<'_> {
    type Out = Prepared;
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Prepared {
        let (k, group, groups, codes) = (self.w.cols, self.w.format.group(), self.w.row_groups(), self.codes);
        let block = I::LANES * codes;
        let stride = k.next_multiple_of(block);
        let sum_stride = groups.next_multiple_of(16);
        let mut p = Prepared { x: vec![0.0; self.m * stride], stride, sums: vec![0.0; self.m * sum_stride], sum_stride };
        for (i, row) in self.x.chunks_exact(k).enumerate() {
            let sums = &mut p.sums[i * sum_stride..][..groups];
            for (sum, part) in sums.iter_mut().zip(row.chunks_exact(group)) {
                let mut total = isa.splat(0.0);
                for lanes in part.chunks_exact(I::LANES) {
                    // SAFETY: the chunk is LANES long; a group is a multiple of 16.
                    total = isa.add(total, unsafe { isa.load(lanes.as_ptr()) });
                }
                *sum = isa.sum(total);
            }
            let to = &mut p.x[i * stride..][..stride];
            for (from, to) in row.chunks(block).zip(to.chunks_exact_mut(block)) {
                for (lane, from) in from.chunks(codes).enumerate() {
                    from.iter().enumerate().for_each(|(j, &x)| to[j * I::LANES + lane] = x);
                }
            }
        }
        p
    }
}

struct Task<'a, C> {
    w: &'a QMatrix<'a>,
    m: usize,
    x: &'a Prepared,
    rows: Range<usize>,
    by_row: bool,
    /// `[m][row]`
    results: &'a mut [f32],
    code: PhantomData<C>,
}

/// Scales and biases of [`ROWS`] rows, followed by a vector of zeros.
struct GroupNumbers {
    scales: SmallVec<[f32; 1024]>,
    biases: SmallVec<[f32; 1024]>,
}

impl<C: Code> Kernel for Task<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.all_rows(isa, Lanes);
    }
}

/// How codes of one vector of words meet their activations.
trait Products<C, I: Isa>: Copy {
    /// Codes that one element of the prepared activations stands for.
    const CODES: usize;

    /// Unscaled products of one vector of words in each of `NR` rows, `stride` words apart.
    ///
    /// # Safety
    /// Those words, and `MR` blocks of activations `x_stride` apart, are readable.
    unsafe fn sums<const MR: usize, const NR: usize>(
        self,
        isa: I,
        words: *const u32,
        stride: usize,
        x: *const f32,
        x_stride: usize,
    ) -> [[I::V; NR]; MR];
}

/// One product a lane, in `f32`.
#[derive(Clone, Copy)]
struct Lanes;

impl<C: Code> Task<'_, C> {
    #[inline(always)]
    fn all_rows<I: Isa, P: Products<C, I>>(mut self, isa: I, products: P) {
        let groups = self.w.row_groups();
        let zeros = || SmallVec::from_elem(0.0, ROWS * groups + 16);
        let mut numbers = GroupNumbers { scales: zeros(), biases: zeros() };
        let mut first = self.rows.start;
        while first < self.rows.end {
            let count = ROWS.min(self.rows.end - first);
            if self.by_row {
                (first..first + count).for_each(|row| self.one_row(isa, row));
                first += count;
                continue;
            }
            read_scales(isa, self.w.format, self.w.scales, first * groups, &mut numbers.scales[..count * groups]);
            if let Some(biases) = self.w.biases {
                read_scales(isa, self.w.format, biases, first * groups, &mut numbers.biases[..count * groups]);
            }
            let mut m = 0;
            while m < self.m {
                let mut row = 0;
                // SAFETY: the rows and columns lie inside the operands; `numbers` holds these rows.
                unsafe {
                    if self.m - m >= 4 {
                        while row + 2 <= count {
                            self.tile::<I, P, 4, 2>(isa, products, m, first, row, &numbers);
                            row += 2;
                        }
                        while row < count {
                            self.tile::<I, P, 4, 1>(isa, products, m, first, row, &numbers);
                            row += 1;
                        }
                        m += 4;
                    } else {
                        while row + 4 <= count {
                            self.tile::<I, P, 1, 4>(isa, products, m, first, row, &numbers);
                            row += 4;
                        }
                        while row < count {
                            self.tile::<I, P, 1, 1>(isa, products, m, first, row, &numbers);
                            row += 1;
                        }
                        m += 1;
                    }
                }
            }
            first += count;
        }
    }
}

impl<C: Code> Task<'_, C> {
    /// `MR` activation rows from `m` on with `NR` weight rows from `first + row` on.
    ///
    /// # Safety
    /// All of them exist, and `numbers` starts at weight row `first`.
    #[inline(always)]
    unsafe fn tile<I: Isa, P: Products<C, I>, const MR: usize, const NR: usize>(
        &mut self,
        isa: I,
        products: P,
        m: usize,
        first: usize,
        row: usize,
        numbers: &GroupNumbers,
    ) {
        let (w, x) = (self.w, self.x);
        let (groups, row_words, group) = (w.row_groups(), w.row_words(), w.format.group());
        // Groups are powers of two: a division would cost as much as the block.
        let shift = group.trailing_zeros();
        let block_words = I::LANES * C::WORDS;
        let block = I::LANES * C::CODES;
        let full = row_words / block_words;
        let scale_lane: [u32; 16] = std::array::from_fn(|lane| ((lane % I::LANES) * C::CODES / group) as u32);
        let mut total = [[isa.splat(0.0); NR]; MR];
        // SAFETY: every pointer stays inside the rows that the caller vouches for, the padded activations, or `numbers` with
        // its vector of zeros; LANES is at most 16.
        unsafe {
            let scale_lane = isa.load_u(scale_lane.as_ptr());
            let words = w.words.as_ptr().add((first + row) * row_words);
            let xs = x.x.as_ptr().add(m * x.stride);
            let scales = numbers.scales.as_ptr().add(row * groups);
            for b in 0..full {
                let at = words.add(b * block_words);
                let sums = products.sums::<MR, NR>(isa, at, row_words, xs.add(b * block / P::CODES), x.stride);
                for r in 0..NR {
                    let scale = isa.permute(isa.load(scales.add(r * groups + ((b * block) >> shift))), scale_lane);
                    for i in 0..MR {
                        total[i][r] = isa.fma(sums[i][r], scale, total[i][r]);
                    }
                }
            }
            if full * block_words < row_words {
                let rest = row_words - full * block_words;
                let mut spill = [[0u32; 16 * MAX_WORDS]; NR];
                let end = (first + row + NR - 1) * row_words + (full + 1) * block_words;
                let (mut at, mut stride) = (words.add(full * block_words), row_words);
                // Words of the next row do no harm, since they meet zeros; but there may be no next row.
                if end > w.words.len() {
                    for (r, spill) in spill.iter_mut().enumerate() {
                        std::ptr::copy_nonoverlapping(at.add(r * row_words), spill.as_mut_ptr(), rest);
                    }
                    (at, stride) = (spill.as_ptr().cast(), 16 * MAX_WORDS);
                }
                let sums = products.sums::<MR, NR>(isa, at, stride, xs.add(full * block / P::CODES), x.stride);
                // Lanes beyond the row must not see the next row's scale, which may be infinite.
                let valid = (w.cols - full * block).div_ceil(C::CODES) as f32;
                let inside = isa.lt(isa.int_to_float(isa.lane_numbers()), isa.splat(valid));
                for r in 0..NR {
                    let scale = isa.permute(isa.load(scales.add(r * groups + ((full * block) >> shift))), scale_lane);
                    let scale = isa.select(inside, scale, isa.splat(0.0));
                    for i in 0..MR {
                        total[i][r] = isa.fma(sums[i][r], scale, total[i][r]);
                    }
                }
            }
            if w.biases.is_some() {
                self.add_biases::<I, MR, NR>(isa, m, numbers.biases.as_ptr().add(row * groups), &mut total);
            }
        }
        let out_row = first + row - self.rows.start;
        for (i, total) in total.iter().enumerate() {
            for (r, &t) in total.iter().enumerate() {
                self.results[(m + i) * self.rows.len() + out_row + r] = isa.sum(t);
            }
        }
    }

    /// Adds Σ bias · (sum of the group's activations).
    ///
    /// # Safety
    /// `biases` points at `NR` rows of group numbers, followed by a vector of readable elements.
    #[inline(always)]
    unsafe fn add_biases<I: Isa, const MR: usize, const NR: usize>(
        &self,
        isa: I,
        m: usize,
        biases: *const f32,
        total: &mut [[I::V; NR]; MR],
    ) {
        let groups = self.w.row_groups();
        for g in (0..groups).step_by(I::LANES) {
            let inside = isa.lt(isa.int_to_float(isa.lane_numbers()), isa.splat((groups - g) as f32));
            for r in 0..NR {
                // SAFETY: the caller's promise; rows of `sums` are padded to a multiple of 16.
                unsafe {
                    let bias = isa.load(biases.add(r * groups + g));
                    let bias = if groups - g < I::LANES { isa.select(inside, bias, isa.splat(0.0)) } else { bias };
                    for (i, total) in total.iter_mut().enumerate() {
                        let sum = isa.load(self.x.sums.as_ptr().add((m + i) * self.x.sum_stride + g));
                        total[r] = isa.fma(bias, sum, total[r]);
                    }
                }
            }
        }
    }

    /// A weight row whose lanes would straddle groups: dequantized, then multiplied.
    #[inline(always)]
    fn one_row<I: Isa>(&mut self, isa: I, row: usize) {
        let mut totals: SmallVec<[I::V; 16]> = SmallVec::from_elem(isa.splat(0.0), self.m);
        let mut values = [0.0; 256];
        for start in (0..self.w.cols).step_by(256) {
            let values = &mut values[..256.min(self.w.cols - start)];
            read_row::<C, I>(isa, self.w, row, start, values);
            for (m, total) in totals.iter_mut().enumerate() {
                let x = &self.x.x[m * self.x.stride + start..][..values.len()];
                for (x, v) in x.chunks_exact(I::LANES).zip(values.chunks_exact(I::LANES)) {
                    // SAFETY: both chunks are LANES long.
                    unsafe { *total = isa.fma(isa.load(x.as_ptr()), isa.load(v.as_ptr()), *total) };
                }
            }
        }
        for (m, &total) in totals.iter().enumerate() {
            self.results[m * self.rows.len() + row - self.rows.start] = isa.sum(total);
        }
    }
}

impl<C: Code, I: Isa> Products<C, I> for Lanes {
    const CODES: usize = 1;

    #[inline(always)]
    unsafe fn sums<const MR: usize, const NR: usize>(
        self,
        isa: I,
        words: *const u32,
        stride: usize,
        x: *const f32,
        x_stride: usize,
    ) -> [[I::V; NR]; MR] {
        let mut sums = [[isa.splat(0.0); NR]; MR];
        let mut packed = [[isa.splat_u(0); MAX_WORDS]; NR];
        for (r, packed) in packed.iter_mut().enumerate() {
            for (i, word) in packed.iter_mut().enumerate().take(C::WORDS) {
                // SAFETY: the caller's promise.
                *word = unsafe {
                    let at = words.add(r * stride + i);
                    if C::WORDS == 1 { isa.load_u(at) } else { isa.load_u_strided(at, C::WORDS) }
                };
            }
        }
        for j in 0..C::CODES {
            for r in 0..NR {
                let q = C::decode(isa, &packed[r], j);
                for (i, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    let x = unsafe { isa.load(x.add(i * x_stride + j * I::LANES)) };
                    sums[r] = isa.fma(x, q, sums[r]);
                }
            }
        }
        sums
    }
}

impl Prepared {
    /// Joins codes `j` and `j + 4` of each lane's eight into one word of two bf16, in place; halves the stride.
    fn pair_up(&mut self) {
        const LANES: usize = 16;
        let pair = |a: f32, b: f32| f32::from_bits(a.to_bits() >> 16 | (b.to_bits() & 0xffff_0000));
        let half = self.x.len() / 2;
        for i in 0..half {
            let (block, at) = (i / (4 * LANES), i % (4 * LANES));
            let from = block * 8 * LANES + at;
            self.x[i] = pair(self.x[from], self.x[from + 4 * LANES]);
        }
        self.x.truncate(half);
        self.stride /= 2;
    }
}
