//! The blocked product of rows, read in place, and columns, packed into panels.
//!
//! Columns are packed once for all jobs that share them, some panels at a time. Then each task owns
//! a block of one job's output and runs the register tile over all of K. Blocks depend only on the
//! sizes.

use std::ops::Range;

use flambeau_tensor::DType;
use smallvec::SmallVec;

use super::{
    epilogue::{Lines, RawEpilogue},
    operand::{Columns, Operand, words},
    tile::{Inputs, accumulate, tile},
};
use crate::{
    pool::{Parts, Team},
    simd::{Cpu, Isa, Kernel},
};

/// Rows of a task: whole tiles and whole vectors of every instruction set.
const ROWS: usize = 48;

/// Columns of a task, at most about.
const COLUMNS: usize = 288;

/// Columns of a task that makes the words of its rows, at most.
const MANY_COLUMNS: usize = 2 * COLUMNS;

/// Words of a task's columns, about: half of a second-level cache.
const GROUP_WORDS: usize = 1 << 17;

/// Words of the rows that a task holds, at most about: a quarter of a second-level cache.
const HELD_WORDS: usize = 1 << 16;

/// Columns that are packed before they are used.
const CHUNK: usize = 4 * COLUMNS;

/// A product with the shared columns.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) rows: usize,
    pub(crate) operand: Operand<'a>,
    /// A gate operand of the same size.
    pub(crate) gate: Option<Operand<'a>>,
    pub(crate) epilogue: RawEpilogue,
    /// Whether rows of the product are columns of the output.
    pub(crate) transposed: bool,
}

impl Job<'_> {
    /// Whether the product with `columns` may use pairs of bf16. Dense bf16 operands fit exactly.
    /// Packed weights may be rounded to bf16, also with f16 activations, if the results have 16
    /// bits.
    fn fits_pairs(&self, columns: &Operand) -> bool {
        let rounds = self.epilogue.out.origin.size() == 2;
        std::iter::once(&self.operand).chain(&self.gate).all(|rows| match (rows, columns) {
            (Operand::Codes(_), Operand::Codes(_)) => rounds,
            (Operand::Codes(_), Operand::Dense(x)) | (Operand::Dense(x), Operand::Codes(_)) => rounds && x.origin.size() == 2,
            (Operand::Dense(a), Operand::Dense(b)) => a.origin.dtype() == DType::BF16 && b.origin.dtype() == DType::BF16,
        })
    }
}

/// Computes every job's `rows · columns` over `k` steps; `n` is the number of columns.
///
/// # Safety
/// The operands have these sizes.
pub(crate) unsafe fn multiply(team: &mut Team, [n, k]: [usize; 2], columns: Columns, jobs: &[Job]) {
    let fits = |job: &Job| team.cpu().has_dot() && job.fits_pairs(columns.operand());
    // Partitioning keeps each job bit-identical to running alone.
    let (paired, others): (SmallVec<[Job; 4]>, SmallVec<[Job; 4]>) = jobs.iter().copied().partition(fits);
    for (jobs, pairs) in [(paired, true), (others, false)] {
        if !jobs.is_empty() {
            // SAFETY: the caller states the sizes.
            unsafe { multiply_alike(team, n, columns, &jobs, (k, pairs)) };
        }
    }
}

/// [`multiply`], all jobs in words of one kind.
///
/// # Safety
/// As there, and if words are pairs, all operands may be made of them.
unsafe fn multiply_alike(team: &mut Team, n: usize, columns: Columns, jobs: &[Job], depth: (usize, bool)) {
    let (cpu, (k, pairs)) = (team.cpu(), depth);
    let operands = jobs.iter().flat_map(|j| std::iter::once(j.operand).chain(j.gate));
    let row_words = operands.map(|o| o.row_words(k, pairs)).max().unwrap_or(0);
    let panels = Panels { are_rows_made: row_words > 0, ..Panels::new(cpu, depth) };
    let mut packed = team.take(panels.words(CHUNK.min(n)));
    for start in (0..n).step_by(CHUNK) {
        let chunk = start..n.min(start + CHUNK);
        let count = chunk.len().div_ceil(panels.width);
        let parts = Parts::new(packed.words());
        team.run(count, 0, |panel, _| {
            let first = panel * panels.width;
            let width = panels.width_of(chunk.len() - first);
            let at = panels.words(first);
            // SAFETY: each panel has its own words; the columns are inside the operand.
            unsafe {
                let to = parts.slice(at..at + width * panels.steps);
                columns.pack(cpu, depth, start + first..chunk.end, width, to);
            }
        });
        let across = panels.groups(chunk.len());
        let down = |job: &Job| job.rows.div_ceil(ROWS);
        let blocks = |job: &Job| down(job) * across;
        let scratch =
            held_rows(row_words, tile(cpu.kind()).0) * row_words + 2 * ROWS * panels.group_columns(chunk.len()) + 2 * 16 * ROWS;
        let total = jobs.iter().map(blocks).sum();
        team.run(total, scratch, |task, scratch| {
            let mut task = task;
            let Some(job) = jobs.iter().find(|job| {
                let own = task < blocks(job);
                task -= if own { 0 } else { blocks(job) };
                own
            }) else {
                return;
            };
            let columns = panels.group(task / down(job), chunk.len());
            let first = task % down(job) * ROWS;
            let rows = first..job.rows.min(first + ROWS);
            let block = Block { job, cpu, panels, packed: packed.as_words(), rows, columns, start, row_words, scratch };
            if pairs { cpu.dispatch_dot(block) } else { cpu.dispatch(block) }
        });
    }
    team.give_back(packed);
}

/// Rows with prepared words at a time, in tiles of `tile`. One tile if the words are read in place.
/// Otherwise as many rows as fit the cache, so that their words are made once for all columns of
/// the task.
fn held_rows(row_words: usize, tile: usize) -> usize {
    HELD_WORDS.checked_div(row_words).map_or(tile, |rows| (rows / tile * tile).clamp(tile, ROWS))
}

/// Partition of columns into panels.
#[derive(Clone, Copy)]
pub(crate) struct Panels {
    lanes: usize,
    /// Columns of a panel; the last may be narrower.
    pub(crate) width: usize,
    depth: (usize, bool),
    /// Whether tasks make the words of their rows first, and pay for that with more columns.
    are_rows_made: bool,
    /// Room for the steps of a panel.
    pub(crate) steps: usize,
}

impl Panels {
    pub(crate) fn new(cpu: Cpu, depth: (usize, bool)) -> Panels {
        let lanes = cpu.lanes();
        let steps = words(depth.0, depth.1).next_multiple_of(16);
        Panels { lanes, width: tile(cpu.kind()).1 * lanes, depth, steps, are_rows_made: false }
    }

    /// Panels for few columns in all, as equal in width as whole vectors allow.
    pub(crate) fn even(cpu: Cpu, depth: (usize, bool), columns: usize) -> Panels {
        let panels = Panels::new(cpu, depth);
        let width = columns.div_ceil(columns.div_ceil(panels.width).max(1)).next_multiple_of(panels.lanes);
        Panels { width, ..panels }
    }

    pub(crate) fn width_of(&self, left: usize) -> usize {
        left.next_multiple_of(self.lanes).min(self.width)
    }

    /// Words of the panels of `columns` columns.
    pub(crate) fn words(&self, columns: usize) -> usize {
        columns.next_multiple_of(self.lanes) * self.steps
    }

    fn groups(&self, columns: usize) -> usize {
        if self.are_rows_made {
            return columns.div_ceil(MANY_COLUMNS);
        }
        columns.div_ceil((GROUP_WORDS / self.steps.max(1) / self.width * self.width).clamp(self.width, COLUMNS))
    }

    /// Columns of a full group, in whole panels.
    fn group_columns(&self, columns: usize) -> usize {
        columns.div_ceil(self.groups(columns).max(1)).next_multiple_of(self.width)
    }

    fn group(&self, i: usize, columns: usize) -> Range<usize> {
        let size = self.group_columns(columns);
        (i * size).min(columns)..columns.min((i + 1) * size)
    }
}

struct Block<'a> {
    job: &'a Job<'a>,
    cpu: Cpu,
    panels: Panels,
    packed: &'a [u32],
    rows: Range<usize>,
    /// Columns of the chunk.
    columns: Range<usize>,
    /// First column of the chunk.
    start: usize,
    row_words: usize,
    scratch: &'a mut [u32],
}

impl Kernel for Block<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        if self.columns.is_empty() {
            return;
        }
        let stride = self.panels.group_columns(self.columns.len().max(1)).max(self.columns.len().next_multiple_of(I::LANES));
        let scratch = std::mem::take(&mut self.scratch);
        let (buffer, rest) = scratch.split_at_mut(held_rows(self.row_words, tile(I::KIND).0) * self.row_words);
        let (sums, rest) = rest.split_at_mut(ROWS * stride);
        let (gate_sums, lines) = rest.split_at_mut(if self.job.gate.is_some() { ROWS * stride } else { 0 });
        let (sums, gate_sums) = (bytemuck::cast_slice_mut(sums), bytemuck::cast_slice_mut(gate_sums));
        self.products(isa, &self.job.operand, buffer, sums, stride);
        if let Some(gate) = &self.job.gate {
            self.products(isa, gate, buffer, gate_sums, stride);
        }
        let gate = self.job.gate.map(|_| &*gate_sums);
        if self.job.transposed {
            self.store_transposed(isa, sums, gate, stride, bytemuck::cast_slice_mut(lines));
        } else {
            let lines = Lines { data: sums, gate, stride, size: [self.rows.len(), self.columns.len()] };
            // SAFETY: the block is inside the output, and blocks are disjoint.
            unsafe { self.job.epilogue.store(self.cpu, self.rows.start, self.start + self.columns.start, lines) };
        }
    }
}

impl Block<'_> {
    #[inline(always)]
    fn products<I: Isa>(&self, isa: I, operand: &Operand, buffer: &mut [u32], sums: &mut [f32], stride: usize) {
        let (mr, _) = tile(I::KIND);
        let (k, pairs) = self.panels.depth;
        let row_words = operand.row_words(k, pairs);
        let held = held_rows(row_words, mr);
        for first in self.rows.clone().step_by(held) {
            let rows = first..self.rows.end.min(first + held);
            let mut tiles = SmallVec::<[_; ROWS / 4]>::new();
            for (i, first) in rows.clone().step_by(mr).enumerate() {
                let buffer = &mut buffer[i * mr * row_words..];
                // SAFETY: the rows are inside the operand; `buffer` has room for the rows of all
                // tiles.
                tiles.push(unsafe { operand.rows(self.cpu, first..rows.end, (k, pairs), mr, buffer) });
            }
            for column in self.columns.clone().step_by(self.panels.width) {
                let width = self.panels.width_of(self.columns.end - column);
                let panel = self.packed[self.panels.words(column)..].as_ptr();
                let next = if column == self.columns.start { operand.next_rows((k, pairs), mr) } else { 0 };
                for (i, rows) in tiles.iter().enumerate() {
                    let x = Inputs { rows, runs: 1, row_step: 1, steps: words(k, pairs), panel, panel_step: width, next };
                    let c = &mut sums[(first - self.rows.start + i * mr) * stride + column - self.columns.start..];
                    // SAFETY: rows and panel hold these steps; `sums` has room for whole tiles.
                    unsafe { accumulate(isa, &x, width / I::LANES, c.as_mut_ptr(), stride, false) };
                }
            }
        }
    }

    /// Stores columns of the product as rows of the output, a vector's worth at a time.
    #[inline(always)]
    fn store_transposed<I: Isa>(&self, isa: I, sums: &[f32], gate: Option<&[f32]>, stride: usize, lines: &mut [f32]) {
        let (lines, gate_lines) = lines.split_at_mut(16 * ROWS);
        for column in (0..self.columns.len()).step_by(I::LANES) {
            for (from, to) in [(Some(sums), &mut *lines), (gate, &mut *gate_lines)] {
                let Some(from) = from else { continue };
                for row in (0..self.rows.len()).step_by(I::LANES) {
                    // SAFETY: ROWS and the stride are multiples of LANES, so the blocks are inside
                    // both.
                    unsafe {
                        let from = from.as_ptr().add(row * stride + column);
                        isa.transpose(from.cast(), stride, to.as_mut_ptr().add(row).cast(), ROWS);
                    }
                }
            }
            let size = [I::LANES.min(self.columns.len() - column), self.rows.len()];
            let lines = Lines { data: lines, gate: gate.map(|_| &*gate_lines), stride: ROWS, size };
            // SAFETY: the block is inside the output, and blocks are disjoint.
            unsafe { self.job.epilogue.store(self.cpu, self.start + self.columns.start + column, self.rows.start, lines) };
        }
    }
}
