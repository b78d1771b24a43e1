//! Products of few rows of activations with many weights that share them: one preparation, one fork-join.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    block::Job,
    epilogue::Lines,
    gemv::{SkinnyRows, dots},
    operand::{Dense, Operand},
};
use crate::{
    convert::FloatPtr,
    pool::{Scratch, Team},
    quant::{self, Prepared},
    simd::Cpu,
};

/// Rows of activations up to which they are not packed.
pub(crate) const ROWS: usize = 8;

/// Bytes of weights a task reads.
const TASK_BYTES: usize = 16 << 10;

/// Rows of activations as `f32`, zeros to a multiple of this many.
const PAD: usize = 256;

/// What an operand's rows are multiplied with.
enum Ready {
    /// The activations as they lie.
    Dense(SkinnyRows),
    /// Which preparation.
    Codes(usize),
}

/// The rows of `x` as `f32`; returns the elements between rows as well.
///
/// # Safety
/// `x` is `[m, k]`.
pub(super) unsafe fn widen(team: &mut Team, x: &Dense, m: usize, k: usize) -> (Scratch, usize) {
    let (cpu, stride) = (team.cpu(), k.next_multiple_of(PAD));
    let mut natural = team.take(m * stride);
    let words: &mut [f32] = bytemuck::cast_slice_mut(natural.words());
    for (i, row) in words.chunks_exact_mut(stride.max(1)).take(m).enumerate() {
        // SAFETY: `x` has `m` rows of `k` elements.
        unsafe { x.at(i, 0).read(cpu, x.step[1], &mut row[..k]) };
        row[k..].fill(0.0);
    }
    (natural, stride)
}

/// Whether [`multiply`] can read the operand.
pub(super) fn readable(operand: &Operand) -> bool {
    match operand {
        Operand::Dense(d) => d.step[1] == 1,
        Operand::Codes(_) => true,
    }
}

/// Computes every job's `x · rowsᵀ`; `x` is `[m, k]`, and every operand is [`readable`]. Rows of the jobs are columns of their
/// outputs.
///
/// # Safety
/// The operands have these sizes.
pub(super) unsafe fn multiply(team: &mut Team, [m, k]: [usize; 2], x: &Dense, jobs: &[Job]) {
    let cpu = team.cpu();
    // SAFETY: `x` is `[m, k]`.
    let (natural, stride) = unsafe { widen(team, x, m, k) };
    let mut prepared: SmallVec<[Prepared; 2]> = SmallVec::new();
    let mut prepare = |operand: &Operand| match operand {
        Operand::Dense(w) => Ready::Dense(skinny_rows(cpu, [m, k], x, w, natural.as_words(), stride)),
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
        for (job, (own, gate)) in jobs.iter().zip(&ready) {
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
            let gate = gate.as_ref().map(|_| &*gate_line);
            let lines = Lines { data: line, gate, stride: rows.len(), size: [m, rows.len()] };
            // SAFETY: tasks own disjoint columns of every row of the output.
            unsafe { job.epilogue.store(cpu, 0, rows.start, lines) };
            return;
        }
    });
    prepared.into_iter().for_each(|p| p.give_back(team));
    team.give_back(natural);
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

/// The activations as the rows of `w` want them.
fn skinny_rows(cpu: Cpu, [m, k]: [usize; 2], x: &Dense, w: &Dense, natural: &[u32], stride: usize) -> SkinnyRows {
    let both = matches!((x.origin, w.origin), (FloatPtr::BF16(_), FloatPtr::BF16(_)));
    if cpu.has_dot() && both && x.step[1] == 1 && (m == 1 || x.step[0] % 2 == 0 && x.step[0] > 0) {
        return SkinnyRows { words: x.origin.words(), pairs: true, stride: x.step[0] as usize / 2, m, k };
    }
    SkinnyRows { words: natural.as_ptr(), pairs: false, stride, m, k }
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
        (Operand::Dense(w), Ready::Dense(x)) => unsafe { dots(cpu, *x, w, rows, to) },
        (Operand::Codes(w), Ready::Codes(i)) => quant::rows_times(cpu, w, &prepared[*i], rows, numbers, to),
        _ => {}
    }
}

// SAFETY: the activations are only read while tasks run.
unsafe impl Sync for Ready {}
