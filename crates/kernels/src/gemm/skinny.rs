//! Products of a few rows of activations with many weight matrices: the rows are prepared once, and
//! one fork-join computes all.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    block::Job,
    epilogue::Lines,
    gemv::{SkinnyRows, columns, dots},
    operand::{Dense, Operand},
};
use crate::{
    convert::FloatPtr,
    pool::{Scratch, Team},
    quant::{self, Prepared},
    simd::Cpu,
};

/// Maximum number of activation rows for the unpacked path.
pub(crate) const ROWS: usize = 8;

/// Bytes of weights a task reads.
const TASK_BYTES: usize = 16 << 10;

/// Rows of activations as `f32`, zeros to a multiple of this many.
const PAD: usize = 256;

/// Activations `[m, k]`, and the jobs for their products.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) m: usize,
    pub(crate) x: Dense,
    pub(crate) jobs: &'a [Job<'a>],
}

/// The prepared activations for an operand.
enum Ready {
    /// The activations in their own order.
    Dense(SkinnyRows),
    /// Index of the preparation.
    Codes(usize),
}

/// The rows of all inputs as `f32`; returns the elements between rows as well.
///
/// # Safety
/// Inputs are `[m, k]`.
pub(super) unsafe fn widen(team: &mut Team, inputs: &[Input], k: usize) -> (Scratch, usize) {
    let (cpu, stride) = (team.cpu(), k.next_multiple_of(PAD));
    let mut natural = team.take(count(inputs) * stride);
    let words: &mut [f32] = bytemuck::cast_slice_mut(natural.words());
    for ((x, i), row) in rows(inputs).zip(words.chunks_exact_mut(stride.max(1))) {
        // SAFETY: `x` has this row, of `k` elements.
        unsafe { x.at(i, 0).read(cpu, x.step[1], &mut row[..k]) };
        row[k..].fill(0.0);
    }
    (natural, stride)
}

/// The rows of all inputs together.
fn count(inputs: &[Input]) -> usize {
    inputs.iter().map(|input| input.m).sum()
}

fn rows<'a>(inputs: &'a [Input]) -> impl Iterator<Item = (&'a Dense, usize)> {
    inputs.iter().flat_map(|input| (0..input.m).map(|i| (&input.x, i)))
}

/// Largest depth at which [`multiply`] reads dense operands whose columns are contiguous. A task
/// then owns enough of their rows to fill vectors.
const SHORT: usize = 64;

/// Whether [`multiply`] can read the operand of depth `k`.
pub(super) fn readable(operand: &Operand, k: usize) -> bool {
    match operand {
        Operand::Dense(d) => d.step[1] == 1 || d.step[0] == 1 && k <= SHORT,
        Operand::Codes(_) => true,
    }
}

/// Computes every job's `x · rowsᵀ` for each input. Inputs are `[m, k]` of one element type, with
/// up to [`ROWS`] rows in total. All inputs' jobs have the same operands, and every operand is
/// [`readable`]. Rows of the jobs are columns of their outputs. A row's bits do not depend on the
/// other rows.
///
/// # Safety
/// The operands have these sizes.
pub(super) unsafe fn multiply(team: &mut Team, k: usize, inputs: &[Input]) {
    let Some(&Input { x, jobs, .. }) = inputs.first() else { return };
    let (cpu, m) = (team.cpu(), count(inputs));
    // SAFETY: inputs are `[m, k]`.
    let (natural, stride) = unsafe { widen(team, inputs, k) };
    let mut pairs: Option<Scratch> = None;
    let mut prepared: SmallVec<[Prepared; 2]> = SmallVec::new();
    let mut prepare = |operand: &Operand| match operand {
        Operand::Dense(w) if are_pairs(cpu, &x, w) => {
            let in_place = inputs.len() == 1 && (m == 1 || x.step[0] % 2 == 0 && x.step[0] > 0);
            let (words, stride) = match in_place {
                true => (x.origin.words(), x.step[0] as usize / 2),
                // SAFETY: inputs are `[m, k]` of bf16.
                false => (pairs.get_or_insert_with(|| unsafe { copy_pairs(team, inputs, k) }).as_words().as_ptr(), pair_words(k)),
            };
            Ready::Dense(SkinnyRows { words, pairs: true, stride, m, k })
        }
        Operand::Dense(_) => Ready::Dense(SkinnyRows { words: natural.as_words().as_ptr(), pairs: false, stride, m, k }),
        Operand::Codes(w) => {
            let kind = quant::Kind::of(cpu, w, x.origin.dtype());
            let found = prepared.iter().position(|p| p.kind == kind);
            Ready::Codes(found.unwrap_or_else(|| {
                prepared.push(Prepared::new(team, kind, natural.as_floats(), stride, [m, k]));
                prepared.len() - 1
            }))
        }
    };
    let ready: SmallVec<[(Ready, Option<Ready>); 4]> =
        jobs.iter().map(|job| (prepare(&job.operand), job.gate.as_ref().map(&mut prepare))).collect();
    let grain =
        |job: &Job| (TASK_BYTES / (row_bytes(&job.operand, k) * if job.gate.is_some() { 2 } else { 1 }).max(1) / 16).max(1) * 16;
    let blocks = |job: &Job| job.rows.div_ceil(grain(job));
    let numbers = jobs.iter().flat_map(|j| [Some(j.operand), j.gate]).flatten().map(|o| number_words(&o)).max().unwrap_or(0);
    let results = jobs.iter().map(|job| m * grain(job).min(job.rows.next_multiple_of(4))).max().unwrap_or(0);
    let words = numbers + 2 * results;
    team.run(jobs.iter().map(blocks).sum(), words, |task, scratch| {
        let mut task = task;
        for (number, (job, (own, gate))) in jobs.iter().zip(&ready).enumerate() {
            if task >= blocks(job) {
                task -= blocks(job);
                continue;
            }
            let rows = task * grain(job)..job.rows.min((task + 1) * grain(job));
            let (numbers, rest) = scratch.split_at_mut(numbers);
            let (line, gate_line) = rest.split_at_mut(results);
            let (line, gate_line) = (bytemuck::cast_slice_mut(line), bytemuck::cast_slice_mut(gate_line));
            let run = |operand: &Operand, ready: &Ready, numbers: &mut [u32], to: &mut [f32]| {
                let to = &mut to[..m * rows.len()];
                // SAFETY: the rows are inside the operand.
                unsafe { rows_times(cpu, operand, ready, &prepared, rows.clone(), numbers, to) };
            };
            run(&job.operand, own, numbers, line);
            if let (Some(operand), Some(gate)) = (&job.gate, gate) {
                run(operand, gate, numbers, gate_line);
            }
            let mut first = 0;
            for input in inputs {
                let own = first * rows.len()..(first + input.m) * rows.len();
                let gate = gate.as_ref().map(|_| &gate_line[own.clone()]);
                let lines = Lines { data: &line[own], gate, stride: rows.len(), size: [input.m, rows.len()] };
                // SAFETY: tasks own disjoint columns of every row of the outputs.
                unsafe { input.jobs[number].epilogue.store(cpu, 0, rows.start, lines) };
                first += input.m;
            }
            return;
        }
    });
    prepared.into_iter().for_each(|p| p.give_back(team));
    [Some(natural), pairs].into_iter().flatten().for_each(|scratch| team.give_back(scratch));
}

fn row_bytes(operand: &Operand, k: usize) -> usize {
    match operand {
        Operand::Dense(w) => k * w.origin.size(),
        Operand::Codes(w) => w.row_bytes(),
    }
}

fn number_words(operand: &Operand) -> usize {
    match operand {
        Operand::Dense(_) => 0,
        Operand::Codes(w) => quant::number_words(w),
    }
}

/// Whether the products use pairs of bf16 of `x` and `w`.
fn are_pairs(cpu: Cpu, x: &Dense, w: &Dense) -> bool {
    cpu.has_dot() && matches!((x.origin, w.origin), (FloatPtr::BF16(_), FloatPtr::BF16(_))) && x.step[1] == 1 && w.step[1] == 1
}

/// Words of a row of pairs.
fn pair_words(k: usize) -> usize {
    k.div_ceil(2)
}

/// The rows of all inputs side by side.
///
/// # Safety
/// Inputs are `[m, k]` of bf16, with elements of a row beside each other.
unsafe fn copy_pairs(team: &mut Team, inputs: &[Input], k: usize) -> Scratch {
    let stride = pair_words(k);
    let mut pairs = team.take(count(inputs) * stride);
    for ((x, i), row) in rows(inputs).zip(pairs.words().chunks_exact_mut(stride.max(1))) {
        let row: &mut [u16] = bytemuck::cast_slice_mut(row);
        // SAFETY: `x` has this row, of `k` elements of 16 bits.
        unsafe { std::ptr::copy_nonoverlapping(x.at(i, 0).words().cast(), row.as_mut_ptr(), k) };
    }
    pairs
}

/// # Safety
/// The rows are inside the operand.
unsafe fn rows_times(
    cpu: Cpu,
    operand: &Operand,
    ready: &Ready,
    prepared: &[Prepared],
    rows: Range<usize>,
    numbers: &mut [u32],
    to: &mut [f32],
) {
    match (operand, ready) {
        // SAFETY: the caller keeps the rows inside the operand.
        (Operand::Dense(w), Ready::Dense(x)) if w.step[1] == 1 => unsafe { dots(cpu, *x, w, rows, to) },
        // SAFETY: the same, and words of activations for such an operand are `f32`.
        (Operand::Dense(w), Ready::Dense(x)) => unsafe { columns(cpu, *x, w, rows, to) },
        (Operand::Codes(w), Ready::Codes(i)) => quant::rows_times(cpu, w, &prepared[*i], rows, numbers, to),
        _ => {}
    }
}

// SAFETY: the activations are only read while tasks run.
unsafe impl Sync for Ready {}
