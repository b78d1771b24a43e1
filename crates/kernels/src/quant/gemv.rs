//! Products of few rows: packed words are read once and go straight into registers.
//!
//! Where a word holds whole codes, a vector of words holds `LANES · CODES` consecutive ones, lane by lane; code `j` of all lanes
//! comes out with one shift, and the activations are laid out to match once per call, so that no code moves between lanes.
//! Other codes are spread over the lanes in their order. Products are summed without scale over a block, in which a lane stays
//! within one group, and then scaled; biases meet the sums of the groups' activations.
//!
//! Against activations of 16 bits codes become bf16, which is exact, and the BF16 dot product takes two at a time. An f16 is the sum
//! of two bf16, which is exact as well; subnormal bf16 count as zero. Where there is no such instruction, but one for pairs of
//! `i16`, activations of 16 bits become integers, in units of their lane's own ([`activations`]), and codes are integers anyway.

mod activations;
mod products;

use std::{marker::PhantomData, mem::MaybeUninit, ops::Range};

use super::{
    QMatrix,
    code::{Code, read_scales, with_code},
};
use crate::simd::{Cpu, Isa, Kernel};
use activations::Words;
pub(crate) use activations::{Kind, Prepared};
use products::{LaneIntegers, LanePairs, Lanes, Order, OrderIntegers, OrderPairs, Products};

/// Rows whose scales are widened together: some multiple of 16, for about this many scales.
const NUMBERS: usize = 512;

fn rows_at_hand(groups: usize) -> usize {
    (NUMBERS / groups.max(1)).max(1).next_multiple_of(16).min(64)
}

/// Bytes from where words are read to where they are asked for ahead.
const AHEAD: usize = 8192;

/// The most bytes of a block, with what reading it may touch beyond.
const BLOCK_BYTES: usize = 128 + 32;

/// Words of scratch that [`rows_times`] needs.
pub(crate) fn number_words(w: &QMatrix) -> usize {
    2 * (rows_at_hand(w.row_groups()) * w.row_groups() + 16)
}

/// `to[m][row] = x[m] · w[row]`
pub(crate) fn rows_times(cpu: Cpu, w: &QMatrix, x: &Prepared, rows: Range<usize>, numbers: &mut [u32], to: &mut [f32]) {
    let cpu = x.kind.cpu(cpu);
    let half = rows_at_hand(w.row_groups()) * w.row_groups() + 16;
    let (scales, biases) = numbers[..2 * half].split_at_mut(half);
    let (scales, biases) = (bytemuck::cast_slice_mut(scales), bytemuck::cast_slice_mut(biases));
    with_code!(w.format, C => {
        let task = Task::<C> { w, x, rows, scales, biases, out: to, code: PhantomData };
        let are_pairs = !C::PARTS.is_empty() && matches!(x.kind.words, Words::Pairs { .. });
        if are_pairs { cpu.dispatch_dot(task) } else { cpu.dispatch(task) }
    });
}

struct Task<'a, C> {
    w: &'a QMatrix<'a>,
    x: &'a Prepared,
    rows: Range<usize>,
    /// Of the rows at hand, followed by a vector of anything.
    scales: &'a mut [f32],
    biases: &'a mut [f32],
    /// `[m][row]`
    out: &'a mut [f32],
    code: PhantomData<C>,
}

impl<C: Code> Kernel for Task<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let groups = self.w.row_groups();
        let most = rows_at_hand(groups);
        for first in self.rows.clone().step_by(most) {
            let count = most.min(self.rows.end - first);
            self.w.scales.prefetch(isa, (first + 2 * most) * groups, most * groups);
            read_scales(isa, self.w.format, self.w.scales, first * groups, &mut self.scales[..count * groups]);
            if let Some(biases) = self.w.biases {
                biases.prefetch(isa, (first + 2 * most) * groups, most * groups);
                read_scales(isa, self.w.format, biases, first * groups, &mut self.biases[..count * groups]);
            }
            let rows = first..first + count;
            // Only pairs of bf16 come here with the instruction for them.
            let two_terms = self.x.kind.words == Words::Pairs { terms: 2 };
            let are_integers = I::DOT_I16 && C::UNIT.is_some() && self.x.kind.words == Words::Integers;
            match (I::DOT, C::WHOLE) {
                (true, true) if two_terms => self.all::<I, LanePairs<2>>(isa, rows),
                (true, true) => self.all::<I, LanePairs<1>>(isa, rows),
                (true, false) if two_terms => self.all::<I, OrderPairs<2>>(isa, rows),
                (true, false) => self.all::<I, OrderPairs<1>>(isa, rows),
                (false, true) if are_integers => self.all::<I, LaneIntegers>(isa, rows),
                (false, true) => self.all::<I, Lanes>(isa, rows),
                // With a loop inside of each, small groups would cost half as much again.
                (false, false) if are_integers => match self.w.format.group() / (2 * I::LANES) {
                    1 => self.all::<I, OrderIntegers<1>>(isa, rows),
                    2 => self.all::<I, OrderIntegers<2>>(isa, rows),
                    _ => self.all::<I, OrderIntegers<0>>(isa, rows),
                },
                (false, false) => self.all::<I, Order>(isa, rows),
            }
        }
    }
}

/// Copies the `left` bytes of a block, with zeros after them, to where more may be read.
///
/// # Safety
/// They are readable, and no more than the room.
#[cold]
#[inline(never)]
unsafe fn copy_block(block: *const u8, left: usize, to: &mut MaybeUninit<[u8; BLOCK_BYTES]>) -> *const u8 {
    let to = to.write([0; BLOCK_BYTES]);
    // SAFETY: the caller makes `left` bytes readable at `block`.
    to[..left].copy_from_slice(unsafe { std::slice::from_raw_parts(block, left) });
    to.as_ptr()
}

/// What the rows of a task share.
#[derive(Clone, Copy)]
struct Common<I: Isa> {
    isa: I,
    /// The row whose numbers come first.
    first: usize,
    /// Groups of a row: a division would cost as much as a block.
    groups: usize,
    row_bytes: usize,
    /// Each lane's group.
    lanes: I::U,
    /// Lanes of a row's last block that lie inside the row.
    inside: I::M,
    /// Lanes of the last vector of groups that are groups.
    last: I::M,
}

impl<C: Code> Task<'_, C> {
    #[inline(always)]
    fn all<I: Isa, P: Products<C>>(&mut self, isa: I, rows: Range<usize>) {
        let (group, cols) = (self.w.format.group(), self.w.cols);
        let shift = group.trailing_zeros();
        let block = P::block::<I>(group);
        let lanes: [u32; 16] = std::array::from_fn(|lane| P::group_of(lane % I::LANES, shift) as u32);
        let below = |n: usize| isa.lt(isa.int_to_float(isa.lane_numbers()), isa.splat(n as f32));
        let common = Common {
            isa,
            first: rows.start,
            groups: self.w.row_groups(),
            row_bytes: self.w.row_bytes(),
            // SAFETY: LANES is at most 16.
            lanes: unsafe { isa.load_u(lanes.as_ptr()) },
            inside: below((cols % block).div_ceil(block / I::LANES)),
            last: below(self.w.row_groups().wrapping_sub(1) % I::LANES + 1),
        };
        let mut row = rows.start;
        while row < rows.end {
            // SAFETY: the rows lie inside the operands; `scales` and `biases` hold them.
            row += unsafe {
                match (self.x.m, rows.end - row) {
                    (1, 4..) if I::TILES => self.four::<I, P>(&common, row),
                    // Two rows share each load of activations, where there are registers for their sums.
                    (2.., 2..) if I::TILES && I::LANES == 16 => self.with_all::<I, P, 2>(&common, row),
                    _ => self.with_all::<I, P, 1>(&common, row),
                }
            };
        }
    }

    /// One activation row with four weight rows from `row` on.
    ///
    /// # Safety
    /// They exist, and their numbers are at hand.
    #[inline(always)]
    unsafe fn four<I: Isa, P: Products<C>>(&mut self, common: &Common<I>, row: usize) -> usize {
        // SAFETY: the caller says that these four rows exist and that their numbers are at hand.
        let [[a], [b], [c], [d]] = unsafe {
            if P::FOUR_ROWS && 4 * common.row_bytes <= AHEAD / 2 {
                self.tile::<I, P, 1, 4>(common, 0, row)
            } else {
                // There may be too few registers, and what is asked for ahead has to arrive before the rows after these are read.
                let ([a, b], [c, d]) = (self.tile::<I, P, 1, 2>(common, 0, row), self.tile::<I, P, 1, 2>(common, 0, row + 2));
                [a, b, c, d]
            }
        };
        let at = row - self.rows.start;
        self.out[at..at + 4].copy_from_slice(&common.isa.sum4([a, b, c, d]));
        4
    }

    /// All activation rows with `R` weight rows from `row` on; returns `R`.
    ///
    /// # Safety
    /// They exist, and their numbers are at hand.
    #[inline(always)]
    unsafe fn with_all<I: Isa, P: Products<C>, const R: usize>(&mut self, common: &Common<I>, row: usize) -> usize {
        let mut m = 0;
        while m < self.x.m {
            // SAFETY: the caller says that the rows exist and that their numbers are at hand; `m` stays below the activations' rows.
            m += unsafe {
                match self.x.m - m {
                    4.. if I::TILES => self.part::<I, P, 4, R>(common, m, row),
                    2.. if I::TILES => self.part::<I, P, 2, R>(common, m, row),
                    _ => self.part::<I, P, 1, R>(common, m, row),
                }
            };
        }
        R
    }

    /// `MR` activation rows from `m` on with `R` weight rows from `row` on; returns `MR`.
    ///
    /// # Safety
    /// They exist, and the numbers are at hand.
    #[inline(always)]
    unsafe fn part<I: Isa, P: Products<C>, const MR: usize, const R: usize>(
        &mut self,
        common: &Common<I>,
        m: usize,
        row: usize,
    ) -> usize {
        // SAFETY: the caller says that the rows exist and that the numbers are at hand.
        let totals = unsafe { self.tile::<I, P, MR, R>(common, m, row) };
        let (width, isa) = (self.rows.len(), common.isa);
        for (r, totals) in totals.iter().enumerate() {
            let at = m * width + row + r - self.rows.start;
            if let &[a, b, c, d] = &totals[..] {
                let sums = isa.sum4([a, b, c, d]);
                (0..4).for_each(|i| self.out[at + i * width] = sums[i]);
            } else {
                (0..MR).for_each(|i| self.out[at + i * width] = isa.sum(totals[i]));
            }
        }
        MR
    }

    /// `R` weight rows from `row` on with `MR` activation rows from `m` on.
    ///
    /// # Safety
    /// They exist, and the numbers are at hand.
    #[inline(always)]
    unsafe fn tile<I: Isa, P: Products<C>, const MR: usize, const R: usize>(
        &self,
        common: &Common<I>,
        m: usize,
        row: usize,
    ) -> [[I::V; MR]; R] {
        let (w, x) = (self.w, self.x);
        let Common { isa, groups, row_bytes, .. } = *common;
        let group = w.format.group();
        let shift = group.trailing_zeros();
        let block = P::block::<I>(group);
        let block_bytes = block * C::BITS as usize / 8;
        let whole = w.cols / block;
        // Blocks of the last row that may be read as they lie, with what reading them touches: codes of the next row do no harm,
        // since they meet zeros, but there may be no next row.
        let room = size_of_val(w.words) - (row + R - 1) * row_bytes;
        let safe = w.cols.div_ceil(block).min(room.saturating_sub(P::BEYOND) / block_bytes);
        let mut total = [[isa.splat(0.0); MR]; R];
        // SAFETY: every pointer stays inside the rows that the caller vouches for, the padded activations, or the numbers with
        // the vector after them; any address may be asked for ahead.
        unsafe {
            let stream = w.words.as_ptr().cast::<u8>().add(row * row_bytes);
            let scales = self.scales.as_ptr().add((row - common.first) * groups);
            let xs = x.data.as_words().as_ptr().add(m * x.stride);
            let x_words = x.kind.words(block, I::LANES);
            let sums = |b: usize, at: [*const u8; R]| P::sums::<I, MR, R>(isa, at, xs.add(b * x_words), x.stride, block);
            let scale = |b: usize, r: usize| isa.permute(isa.load(scales.add(r * groups + ((b * block) >> shift))), common.lanes);
            // Memory is asked in the order of its addresses, although the rows are read side by side.
            let ahead = stream.wrapping_add(AHEAD);
            let at = |b: usize| -> [*const u8; R] {
                std::array::from_fn(|r| {
                    isa.prefetch(ahead.wrapping_add((b * R + r) * block_bytes));
                    stream.add(r * row_bytes + b * block_bytes)
                })
            };
            for b in 0..whole.min(safe) {
                let sums = sums(b, at(b));
                for (r, total) in total.iter_mut().enumerate() {
                    add(isa, total, sums[r], scale(b, r));
                }
            }
            for b in whole.min(safe)..w.cols.div_ceil(block) {
                let mut spill = [MaybeUninit::<[u8; BLOCK_BYTES]>::uninit(); R];
                let mut at = at(b);
                if b >= safe {
                    for (at, spill) in at.iter_mut().zip(&mut spill) {
                        *at = copy_block(*at, block_bytes.min(row_bytes - b * block_bytes), spill);
                    }
                }
                let sums = sums(b, at);
                for (r, total) in total.iter_mut().enumerate() {
                    // Lanes beyond the row must not see the next row's scale, which may be infinite.
                    let scale = scale(b, r);
                    let scale = if b < whole { scale } else { isa.select(common.inside, scale, isa.splat(0.0)) };
                    add(isa, total, sums[r], scale);
                }
            }
            if w.biases.is_some() {
                let biases = self.biases.as_ptr().add((row - common.first) * groups);
                self.add_biases(common, m, (scales, biases, P::OFFSET), &mut total);
            }
        }
        total
    }

    /// Adds Σ (bias − offset · scale) · (sum of the group's activations).
    ///
    /// # Safety
    /// `scales` and `biases` point at `R` rows of group numbers, followed by a vector of readable elements.
    #[inline(always)]
    unsafe fn add_biases<I: Isa, const MR: usize, const R: usize>(
        &self,
        common: &Common<I>,
        m: usize,
        (scales, biases, offset): (*const f32, *const f32, f32),
        total: &mut [[I::V; MR]; R],
    ) {
        let Common { isa, groups, .. } = *common;
        let sums = &self.x.data.as_floats()[self.x.sums..];
        for g in (0..groups).step_by(I::LANES) {
            for (r, total) in total.iter_mut().enumerate() {
                // SAFETY: the caller makes a vector of numbers readable behind each row's; rows of `sums` are padded to a multiple
                // of 16.
                unsafe {
                    let mut bias = isa.load(biases.add(r * groups + g));
                    if offset != 0.0 {
                        bias = isa.fma(isa.load(scales.add(r * groups + g)), isa.splat(-offset), bias);
                    }
                    let is_last = groups - g <= I::LANES;
                    let bias = if is_last { isa.select(common.last, bias, isa.splat(0.0)) } else { bias };
                    for (i, total) in total.iter_mut().enumerate() {
                        let sum = isa.load(sums.as_ptr().add((m + i) * self.x.sum_stride + g));
                        *total = isa.fma(bias, sum, *total);
                    }
                }
            }
        }
    }
}

/// `total += sums · scale`
#[inline(always)]
fn add<I: Isa, const MR: usize>(isa: I, total: &mut [I::V; MR], sums: [I::V; MR], scale: I::V) {
    for (total, sum) in total.iter_mut().zip(sums) {
        *total = isa.fma(sum, scale, *total);
    }
}
