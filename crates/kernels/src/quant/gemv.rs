//! Products of few rows: packed words are read once and go straight into registers.
//!
//! If a word holds whole codes, a vector of words holds `LANES · CODES` consecutive codes, lane by
//! lane. One shift extracts code `j` of all lanes. The activations are laid out to match once per
//! call, so no code moves between lanes. Other codes are spread over the lanes in their order.
//! Products are summed without scale over a block, where each lane stays within one group, and then
//! scaled. Biases are multiplied by the sums of the groups' activations.
//!
//! 16-bit activations become integers in units of their lane ([`activations`]), and codes are
//! integers already. If the CPU has a dot product of bytes and a way to unpack them, code bytes are
//! multiplied by the two bytes of an activation. Otherwise both are pairs of `i16`. A shift brings
//! sums of bytes to the unit of their row; shifts do not occupy the multiplier ports.

mod activations;
mod products;

use std::{marker::PhantomData, mem::MaybeUninit, ops::Range};

use super::{
    QMatrix,
    code::{Code, read_numbers, with_code},
};
use crate::simd::{Cpu, Isa, Kernel};
use activations::Words;
pub(crate) use activations::{Kind, Prepared};
use products::{Bytes, LaneIntegers, Lanes, Order, OrderIntegers, Products};

/// Rows whose scales are widened together: some multiple of 16, for about this many scales.
const NUMBERS: usize = 512;

fn rows_at_hand(groups: usize) -> usize {
    (NUMBERS / groups.max(1)).max(1).next_multiple_of(16).min(64)
}

/// Distance in bytes from the read position of the words to their prefetched position.
const AHEAD: usize = 8192;

/// Maximum bytes read for a block, including the bytes beyond it.
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
        let are_bytes = const { C::UNIT.is_some() } && matches!(x.kind.words, Words::Bytes { .. });
        if are_bytes { cpu.dispatch_dot_bytes(task) } else { cpu.dispatch(task) }
    });
}

struct Task<'a, C> {
    w: &'a QMatrix<'a>,
    x: &'a Prepared,
    rows: Range<usize>,
    /// Scales of the current rows, followed by an arbitrary vector.
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
            for numbers in [Some(self.w.scales), self.w.biases].into_iter().flatten() {
                numbers.prefetch(isa, (first + 2 * most) * groups, most * groups);
            }
            let zero = self.zero::<I>();
            let (scales, biases) = (&mut self.scales[..count * groups], &mut self.biases[..count * groups]);
            read_numbers(isa, self.w, first * groups, zero, scales, biases);
            let rows = first..first + count;
            // Constant conditions avoid compiling combinations that no instruction set runs.
            if const { Self::are_bytes::<I>() } {
                self.all::<I, Bytes>(isa, rows);
            } else if const { I::DOT_I16 && C::UNIT.is_some() } && self.x.kind.words == Words::Halves {
                if const { C::WHOLE } {
                    self.all::<I, LaneIntegers>(isa, rows);
                } else {
                    // With a loop inside of each, small groups would cost half as much again.
                    match self.w.format.group() / (2 * I::LANES) {
                        1 => self.all::<I, OrderIntegers<1>>(isa, rows),
                        2 => self.all::<I, OrderIntegers<2>>(isa, rows),
                        _ => self.all::<I, OrderIntegers<0>>(isa, rows),
                    }
                }
            } else if const { C::WHOLE } {
                self.all::<I, Lanes>(isa, rows);
            } else {
                self.all::<I, Order>(isa, rows);
            }
        }
    }
}

/// Copies the `left` bytes of a block into a zero-padded buffer, so that whole blocks are readable.
///
/// # Safety
/// `left` bytes at `block` are readable, and `left` is at most [`BLOCK_BYTES`].
#[cold]
#[inline(never)]
unsafe fn copy_block(block: *const u8, left: usize, to: &mut MaybeUninit<[u8; BLOCK_BYTES]>) -> *const u8 {
    let to = to.write([0; BLOCK_BYTES]);
    // SAFETY: the caller makes `left` bytes readable at `block`.
    to[..left].copy_from_slice(unsafe { std::slice::from_raw_parts(block, left) });
    to.as_ptr()
}

/// Values shared by the rows of a task.
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
    /// Lanes of a row's last block inside the row.
    inside: I::M,
    /// Lanes of the last vector of groups that are groups.
    last: I::M,
}

/// Start and strides of the operands of some rows, computed once: a division per block would cost
/// as much as the block.
struct Tile {
    stream: *const u8,
    scales: *const f32,
    x: *const u32,
    /// Codes of a block, their bytes, and words of activations.
    block: usize,
    block_bytes: usize,
    block_words: usize,
    /// Groups have 2^`shift` codes.
    shift: u32,
}

impl Tile {
    /// Pointers to block `b` of each row. Memory ahead is prefetched in the order of its addresses,
    /// although the rows are read side by side.
    ///
    /// # Safety
    /// The rows exist.
    #[inline(always)]
    unsafe fn streams<I: Isa, const R: usize>(&self, common: &Common<I>, b: usize) -> [*const u8; R] {
        let mut streams = [self.stream; R];
        for (r, stream) in streams.iter_mut().enumerate() {
            common.isa.prefetch(self.stream.wrapping_add(AHEAD + (b * R + r) * self.block_bytes));
            // SAFETY: the block begins inside its row.
            *stream = unsafe { self.stream.add(r * common.row_bytes + b * self.block_bytes) };
        }
        streams
    }
}

impl<C: Code> Task<'_, C> {
    /// Whether codes are multiplied as bytes; no others come with the instructions for them.
    const fn are_bytes<I: Isa>() -> bool {
        C::UNIT.is_some() && I::DOT_BYTES
    }

    /// The offset of every code in the products.
    fn zero<I: Isa>(&self) -> f32 {
        self.w.format.zero() + if const { Self::are_bytes::<I>() } { C::BYTE.zero } else { 0.0 }
    }

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
            // SAFETY: the rows are inside the operands; `scales` and `biases` hold them.
            row += unsafe {
                match (self.x.m, rows.end - row) {
                    (1, 4..) if const { I::TILES } => self.four::<I, P>(&common, row),
                    // Two rows share each load of activations if registers suffice for their sums.
                    (2.., 2..) if const { I::TILES && I::LANES == 16 } => self.with_all::<I, P, 2>(&common, row),
                    _ => self.with_all::<I, P, 1>(&common, row),
                }
            };
        }
    }

    /// One activation row with four weight rows from `row` on.
    ///
    /// # Safety
    /// Rows `row..row + 4` exist and their scales are loaded.
    #[inline(always)]
    unsafe fn four<I: Isa, P: Products<C>>(&mut self, common: &Common<I>, row: usize) -> usize {
        // SAFETY: the caller ensures that rows `row..row + 4` exist and their scales are loaded.
        let [[a], [b], [c], [d]] = unsafe {
            if const { P::FOUR_ROWS } && 4 * common.row_bytes <= AHEAD / 2 {
                self.tile::<I, P, 1, 4>(common, 0, row)
            } else {
                // Four rows may need too many registers, and prefetched data must arrive before the
                // following rows are read.
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
    /// Rows `row..row + R` exist and their scales are loaded.
    #[inline(always)]
    unsafe fn with_all<I: Isa, P: Products<C>, const R: usize>(&mut self, common: &Common<I>, row: usize) -> usize {
        let mut m = 0;
        while m < self.x.m {
            // SAFETY: the caller ensures that rows `row..row + R` exist and their scales are
            // loaded; `m` stays below the number of activation rows.
            m += unsafe {
                match self.x.m - m {
                    4.. if const { I::TILES } => self.part::<I, P, 4, R>(common, m, row),
                    2.. if const { I::TILES } => self.part::<I, P, 2, R>(common, m, row),
                    _ => self.part::<I, P, 1, R>(common, m, row),
                }
            };
        }
        R
    }

    /// `MR` activation rows from `m` on with `R` weight rows from `row` on; returns `MR`.
    ///
    /// # Safety
    /// The `R` weight rows and `MR` activation rows exist, and the weight rows' scales are loaded.
    #[inline(always)]
    unsafe fn part<I: Isa, P: Products<C>, const MR: usize, const R: usize>(
        &mut self,
        common: &Common<I>,
        m: usize,
        row: usize,
    ) -> usize {
        // SAFETY: the caller ensures that the `R` weight rows and `MR` activation rows exist and
        // the scales are loaded.
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
    /// The `R` weight rows and `MR` activation rows exist, and the weight rows' scales are loaded.
    #[inline(always)]
    unsafe fn tile<I: Isa, P: Products<C>, const MR: usize, const R: usize>(
        &self,
        common: &Common<I>,
        m: usize,
        row: usize,
    ) -> [[I::V; MR]; R] {
        let (w, x) = (self.w, self.x);
        let Common { isa, groups, row_bytes, .. } = *common;
        let block = P::block::<I>(w.format.group());
        let block_bytes = block * C::BITS as usize / 8;
        let (blocks, whole) = (w.cols.div_ceil(block), w.cols / block);
        // Blocks of the last row that can be read in place. Reading past a row's end is harmless
        // inside the matrix, because codes of the next row are multiplied by zeros. But the last
        // row may have no next row.
        let room = size_of_val(w.words) - (row + R - 1) * row_bytes;
        let safe = room.saturating_sub(P::BEYOND) / block_bytes;
        let mut total = [[isa.splat(0.0); MR]; R];
        // SAFETY: every pointer stays inside the existing rows, the padded activations, or the
        // scales with the vector after them. Prefetching is valid for any address.
        unsafe {
            let tile = Tile {
                stream: w.words.as_ptr().cast::<u8>().add(row * row_bytes),
                scales: self.scales.as_ptr().add((row - common.first) * groups),
                x: x.data.as_words().as_ptr().add(m * x.stride),
                block,
                block_bytes,
                block_words: x.kind.words(block, I::LANES),
                shift: w.format.group().trailing_zeros(),
            };
            for b in 0..whole.min(safe) {
                let streams = tile.streams(common, b);
                self.add_block::<I, P, MR, R>(common, (&tile, b), streams, None, &mut total);
            }
            for b in whole.min(safe)..blocks {
                let left = block_bytes.min(row_bytes - b * block_bytes);
                let mut copies = [MaybeUninit::<[u8; BLOCK_BYTES]>::uninit(); R];
                let mut streams = tile.streams(common, b);
                if b >= safe {
                    for (stream, copy) in streams.iter_mut().zip(&mut copies) {
                        *stream = copy_block(*stream, left, copy);
                    }
                }
                // Lanes beyond the row must not see the next row's scale, which may be infinite.
                let inside = (b >= whole).then_some(common.inside);
                self.add_block::<I, P, MR, R>(common, (&tile, b), streams, inside, &mut total);
            }
            if const { Self::are_bytes::<I>() } {
                self.in_units(isa, m, &mut total);
            }
            if w.biases.is_some() || self.zero::<I>() != 0.0 {
                let biases = self.biases.as_ptr().add((row - common.first) * groups);
                self.add_biases(common, m, biases, &mut total);
            }
        }
        total
    }

    /// Adds the scaled products of block `b`, which begins at `streams`.
    ///
    /// # Safety
    /// The block, its [`Products::BEYOND`] further bytes, and the tile's activations and scales for
    /// it are readable.
    #[inline(always)]
    unsafe fn add_block<I: Isa, P: Products<C>, const MR: usize, const R: usize>(
        &self,
        common: &Common<I>,
        (tile, b): (&Tile, usize),
        streams: [*const u8; R],
        inside: Option<I::M>,
        total: &mut [[I::V; MR]; R],
    ) {
        let isa = common.isa;
        let first_group = (b * tile.block) >> tile.shift;
        // SAFETY: the caller makes the block, its BEYOND bytes, and the tile's activations and
        // scales readable.
        unsafe {
            let x = tile.x.add(b * tile.block_words);
            let sums = P::sums::<I, MR, R>(isa, streams, x, self.x.stride, tile.block);
            for r in 0..R {
                let scale = isa.permute(isa.load(tile.scales.add(r * common.groups + first_group)), common.lanes);
                let scale = inside.map_or(scale, |inside| isa.select(inside, scale, isa.splat(0.0)));
                for i in 0..MR {
                    total[r][i] = isa.fma(sums[r][i], scale, total[r][i]);
                }
            }
        }
    }

    /// Multiplies sums of byte products by the unit of the bytes and the units of the activation
    /// rows from `m` on.
    #[inline(always)]
    fn in_units<I: Isa, const MR: usize, const R: usize>(&self, isa: I, m: usize, total: &mut [[I::V; MR]; R]) {
        let units = &self.x.data.as_floats()[self.x.units + m..][..MR];
        for i in 0..MR {
            let unit = isa.splat(units[i] * C::BYTE.unit);
            for total in total.iter_mut() {
                total[i] = isa.mul(total[i], unit);
            }
        }
    }

    /// Adds Σ bias · (sum of the group's activations).
    ///
    /// # Safety
    /// `biases` points at `R` rows of group numbers, followed by a vector of readable elements.
    #[inline(always)]
    unsafe fn add_biases<I: Isa, const MR: usize, const R: usize>(
        &self,
        common: &Common<I>,
        m: usize,
        biases: *const f32,
        total: &mut [[I::V; MR]; R],
    ) {
        let Common { isa, groups, .. } = *common;
        let sums = &self.x.data.as_floats()[self.x.sums..];
        for g in (0..groups).step_by(I::LANES) {
            for (r, total) in total.iter_mut().enumerate() {
                // SAFETY: the caller makes a vector of numbers readable after each row's numbers;
                // rows of `sums` are padded to a multiple of 16.
                unsafe {
                    let bias = isa.load(biases.add(r * groups + g));
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
