//! One tile of queries against a range of keys.

use std::ops::Range;

use smallvec::SmallVec;

use super::{FEW, Mask, Problem, ROWS};
use crate::{
    Float, View,
    convert::FloatPtr,
    gemm::{Dense, Source, accumulate, tile},
    math::exp,
    simd::{Cpu, Isa},
};

/// Keys looked at together.
const KEYS: usize = 128;

/// Rows of a tile on their way: `[row][maximum, sum of exponentials, weighted sum of values …]`.
pub(super) struct State {
    pub(super) numbers: Vec<f32>,
}

impl State {
    /// Numbers of a row.
    pub(super) fn width(values: usize) -> usize {
        2 + values
    }

    /// Adds the keys of `part` to those of `whole`.
    pub(super) fn join(whole: &mut [f32], part: &[f32], values: usize) {
        let width = State::width(values);
        for (a, b) in whole.chunks_exact_mut(width).zip(part.chunks_exact(width)) {
            let top = a[0].max(b[0]);
            if top == f32::NEG_INFINITY {
                continue;
            }
            let (fa, fb) = ((a[0] - top).exp(), (b[0] - top).exp());
            a[0] = top;
            a[1..].iter_mut().zip(&b[1..]).for_each(|(a, &b)| *a = *a * fa + b * fb);
        }
    }
}

pub(super) struct Tile<'a, S> {
    pub(super) problem: &'a Problem<'a, S>,
    pub(super) cpu: Cpu,
    pub(super) batch: usize,
    pub(super) kv_head: usize,
    /// Row `r` is query `r / group` of head `kv_head · group + r % group`.
    pub(super) rows: Range<usize>,
    pub(super) keys: Range<usize>,
    /// Whether keys are read as they lie.
    pub(super) few: bool,
}

/// Buffers of a tile.
struct Scratch {
    /// `[row][depth]`, or in panels `[panel][depth][row]`; scaled.
    q: Vec<f32>,
    /// `[row][KEYS]`
    scores: Vec<f32>,
    /// Panels of keys or values.
    packed: Vec<f32>,
    /// Panels `[panel][key][row]` of weights.
    weights: Vec<f32>,
}

impl<S: Float> Tile<'_, S> {
    /// Query and head of a row.
    #[inline(always)]
    fn place(&self, row: usize) -> (usize, usize) {
        (row / self.problem.group, self.kv_head * self.problem.group + row % self.problem.group)
    }

    /// Keys that a query can see at most.
    #[inline(always)]
    fn visible(&self, query: usize) -> usize {
        let p = self.problem;
        match p.mask {
            Mask::Causal => (query + 1 + p.keys).saturating_sub(p.queries).min(p.keys),
            _ => p.keys,
        }
    }

    #[inline(always)]
    pub(super) fn compute<I: Isa>(&self, isa: I) -> State {
        let p = self.problem;
        let (mr, vectors) = tile(I::KIND);
        let count = self.rows.len();
        let padded = count.next_multiple_of(mr);
        let width = State::width(p.width);
        let mut state = State { numbers: vec![0.0; count * width] };
        state.numbers.chunks_exact_mut(width).for_each(|row| row[0] = f32::NEG_INFINITY);
        let columns = p.width.max(KEYS).next_multiple_of(vectors * I::LANES);
        let packed = if self.few { 0 } else { columns * p.depth.max(KEYS) };
        let mut scratch = Scratch {
            q: vec![0.0; padded * p.depth],
            scores: vec![0.0; padded * KEYS],
            packed: vec![0.0; packed],
            weights: vec![0.0; if self.few { 0 } else { padded * KEYS }],
        };
        self.read_queries(if self.few { 1 } else { mr }, &mut scratch.q);
        let (last, _) = self.place(self.rows.end - 1);
        let end = self.keys.end.min(self.visible(last));
        let mut values = vec![0.0; if self.few { 0 } else { padded * columns }];
        let mut start = self.keys.start;
        while start < end {
            let keys = start..end.min(start + KEYS);
            if self.few {
                self.scores_by_dot(isa, &scratch.q, keys.clone(), &mut scratch.scores);
            } else {
                self.scores_by_panel(isa, keys.clone(), &mut scratch);
            }
            for row in 0..count {
                let scores = &mut scratch.scores[row * KEYS..][..KEYS];
                self.mask(self.rows.start + row, keys.clone(), scores);
                self.soften(isa, scores, &mut state.numbers[row * width..][..width]);
            }
            if self.few {
                self.add_by_row(isa, keys.clone(), &scratch.scores, &mut state);
            } else {
                self.add_by_panel(isa, keys.clone(), &mut scratch, &mut values, &mut state);
            }
            start = keys.end;
        }
        state
    }

    /// Reads the queries, scaled, in panels of `mr` rows.
    #[inline(always)]
    fn read_queries(&self, mr: usize, to: &mut [f32]) {
        let (q, depth) = (self.problem.q, self.problem.depth);
        let s = q.strides();
        for (i, row) in self.rows.clone().enumerate() {
            let (query, head) = self.place(row);
            let base = self.batch as isize * s[0] + head as isize * s[1] + query as isize * s[2];
            let to = &mut to[i / mr * mr * depth + i % mr..];
            for d in 0..depth {
                // SAFETY: the index is inside the view.
                to[d * mr] = unsafe { q.at(base + d as isize * s[3]) } * self.problem.scale;
            }
        }
    }

    /// The matrix of this head in `view`: its origin, and its strides by position and by depth.
    #[inline(always)]
    fn matrix(&self, view: &View<S>) -> (*const S, [isize; 2]) {
        let s = view.strides();
        // SAFETY: batch and head are inside the view.
        let origin = unsafe { view.origin().offset(self.batch as isize * s[0] + self.kv_head as isize * s[1]) };
        (origin, [s[2], s[3]])
    }

    /// The same as the operand of a product.
    fn dense(&self, view: &View<S>) -> Dense {
        let (origin, step) = self.matrix(view);
        // SAFETY: the view's life covers the tile's.
        unsafe { Dense::new(FloatPtr::reading(origin), step) }
    }

    #[inline(always)]
    fn scores_by_dot<I: Isa>(&self, isa: I, q: &[f32], keys: Range<usize>, scores: &mut [f32]) {
        let depth = self.problem.depth;
        let (k, [down, across]) = self.matrix(self.problem.k);
        let whole = if across == 1 { depth / I::LANES * I::LANES } else { 0 };
        for (slot, key) in keys.enumerate() {
            for row in 0..self.rows.len() {
                let q = &q[row * depth..][..depth];
                let mut sum = isa.splat(0.0);
                // SAFETY: `key` and all columns are inside the matrix; `q` is `depth` long.
                unsafe {
                    for d in (0..whole).step_by(I::LANES) {
                        sum = isa.fma(isa.load(q.as_ptr().add(d)), S::load(isa, k.offset(key as isize * down).add(d)), sum);
                    }
                    let rest: f32 =
                        (whole..depth).map(|d| q[d] * (*k.offset(key as isize * down + d as isize * across)).to_f32()).sum();
                    scores[row * KEYS + slot] = isa.sum(sum) + rest;
                }
            }
        }
    }

    #[inline(always)]
    fn scores_by_panel<I: Isa>(&self, isa: I, keys: Range<usize>, scratch: &mut Scratch) {
        let depth = self.problem.depth;
        let (mr, vectors) = tile(I::KIND);
        let nr = vectors * I::LANES;
        let k = self.dense(self.problem.k).transposed();
        scratch.scores.fill(0.0);
        for first in (0..keys.len()).step_by(nr) {
            let panel = &mut scratch.packed[..depth * nr];
            k.pack(self.cpu, 0..depth, keys.start + first..keys.end.min(keys.start + first + nr), nr, panel);
            for (a, c) in scratch.q.chunks_exact(mr * depth.max(1)).zip(scratch.scores.chunks_exact_mut(mr * KEYS)) {
                // SAFETY: both panels hold `depth` steps; KEYS is a multiple of `nr`, so the tile is inside `c`.
                unsafe { accumulate(isa, depth, a.as_ptr(), panel.as_ptr(), c.as_mut_ptr().add(first), KEYS) };
            }
        }
    }

    /// Adds the mask to the scores of `row`; keys it cannot see, and those beyond the range, get −∞.
    #[inline(always)]
    fn mask(&self, row: usize, keys: Range<usize>, scores: &mut [f32]) {
        let (query, head) = self.place(row);
        let visible = self.visible(query).clamp(keys.start, keys.end) - keys.start;
        scores[visible..].fill(f32::NEG_INFINITY);
        let base =
            |s: &[isize]| self.batch as isize * s[0] + head as isize * s[1] + query as isize * s[2] + keys.start as isize * s[3];
        match &self.problem.mask {
            Mask::Bool(view) => {
                let (at, step) = (base(view.strides()), view.strides()[3]);
                for (j, score) in scores[..visible].iter_mut().enumerate() {
                    // SAFETY: the index is inside the view.
                    if unsafe { !(*view.origin().offset(at + j as isize * step)).get() } {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
            Mask::Add(view) => {
                let (at, step) = (base(view.strides()), view.strides()[3]);
                for (j, score) in scores[..visible].iter_mut().enumerate() {
                    // SAFETY: the index is inside the view.
                    *score += unsafe { view.at(at + j as isize * step) };
                }
            }
            Mask::None | Mask::Causal => {}
        }
    }

    /// Turns scores into weights relative to the row's maximum so far, and rescales what the row has.
    ///
    /// Weights are rounded to the element type and their sum is not, as PyTorch's half-precision kernels do it.
    #[inline(always)]
    fn soften<I: Isa>(&self, isa: I, scores: &mut [f32], row: &mut [f32]) {
        let mut top = isa.splat(f32::NEG_INFINITY);
        for lanes in scores.chunks_exact(I::LANES) {
            // SAFETY: the chunk is LANES long.
            top = unsafe { isa.max(top, isa.load(lanes.as_ptr())) };
        }
        let top = isa.max_lane(top).max(row[0]);
        if top == f32::NEG_INFINITY {
            scores.fill(0.0);
            return;
        }
        let base = isa.splat(top);
        let mut total = isa.splat(0.0);
        for lanes in scores.chunks_exact_mut(I::LANES) {
            // SAFETY: the chunk is LANES long.
            unsafe {
                let score = isa.load(lanes.as_ptr());
                let hidden = isa.lt(score, isa.splat(f32::MIN));
                let weight = isa.select(hidden, isa.splat(0.0), exp(isa, isa.sub(score, base)));
                total = isa.add(total, weight);
                isa.store(lanes.as_mut_ptr(), S::round_lanes(isa, weight));
            }
        }
        if row[0] < top {
            let factor = (row[0] - top).exp();
            row[1..].iter_mut().for_each(|x| *x *= factor);
            row[0] = top;
        }
        row[1] += isa.sum(total);
    }

    #[inline(always)]
    fn add_by_row<I: Isa>(&self, isa: I, keys: Range<usize>, weights: &[f32], state: &mut State) {
        let p = self.problem;
        let (v, [down, across]) = self.matrix(p.v);
        let width = State::width(p.width);
        let whole = if across == 1 { p.width / I::LANES * I::LANES } else { 0 };
        for row in 0..self.rows.len() {
            let weights = &weights[row * KEYS..][..keys.len()];
            let to = &mut state.numbers[row * width + 2..][..p.width];
            let mut d = 0;
            while d < whole {
                let vectors = ((whole - d) / I::LANES).min(4);
                let mut sums = [isa.splat(0.0); 4];
                // SAFETY: `vectors` vectors from column `d` on are inside the matrix and inside `to`.
                unsafe {
                    for (key, &weight) in keys.clone().zip(weights) {
                        let factor = isa.splat(weight);
                        let from = v.offset(key as isize * down).add(d);
                        for (i, sum) in sums.iter_mut().enumerate().take(vectors) {
                            *sum = isa.fma(factor, S::load(isa, from.add(i * I::LANES)), *sum);
                        }
                    }
                    for (i, &sum) in sums.iter().enumerate().take(vectors) {
                        let at = to.as_mut_ptr().add(d + i * I::LANES);
                        isa.store(at, isa.add(isa.load(at), sum));
                    }
                }
                d += vectors * I::LANES;
            }
            for (d, to) in to.iter_mut().enumerate().skip(whole) {
                // SAFETY: inside the matrix.
                let value = |key: usize| unsafe { (*v.offset(key as isize * down + d as isize * across)).to_f32() };
                *to += keys.clone().zip(weights).map(|(key, &w)| w * value(key)).sum::<f32>();
            }
        }
    }

    #[inline(always)]
    fn add_by_panel<I: Isa>(&self, isa: I, keys: Range<usize>, scratch: &mut Scratch, values: &mut [f32], state: &mut State) {
        let p = self.problem;
        let (mr, vectors) = tile(I::KIND);
        let nr = vectors * I::LANES;
        let (depth, stride) = (keys.len(), p.width.next_multiple_of(nr));
        for (scores, panel) in scratch.scores.chunks_exact(mr * KEYS).zip(scratch.weights.chunks_exact_mut(mr * KEYS)) {
            for key in 0..depth {
                for i in 0..mr {
                    panel[key * mr + i] = scores[i * KEYS + key];
                }
            }
        }
        let v = self.dense(p.v);
        let rows = scratch.weights.len() / KEYS;
        let values = &mut values[..rows * stride];
        values.fill(0.0);
        for first in (0..p.width).step_by(nr) {
            let panel = &mut scratch.packed[..depth * nr];
            v.pack(self.cpu, keys.clone(), first..p.width.min(first + nr), nr, panel);
            for (a, c) in scratch.weights.chunks_exact(mr * KEYS).zip(values.chunks_exact_mut(mr * stride)) {
                // SAFETY: both panels hold `depth` steps, and the tile is inside `c`.
                unsafe { accumulate(isa, depth, a.as_ptr(), panel.as_ptr(), c.as_mut_ptr().add(first), stride) };
            }
        }
        let width = State::width(p.width);
        for (row, values) in state.numbers.chunks_exact_mut(width).zip(values.chunks_exact(stride)) {
            row[2..].iter_mut().zip(values).for_each(|(to, &x)| *to += x);
        }
    }

    /// Writes the rows of `numbers` to the output.
    pub(super) fn finish(&self, numbers: &[f32]) {
        let p = self.problem;
        for (row, numbers) in self.rows.clone().zip(numbers.chunks_exact(State::width(p.width))) {
            let (query, head) = self.place(row);
            let s = p.out.strides;
            let base = self.batch as isize * s[0] + head as isize * s[1] + query as isize * s[2];
            let factor = if numbers[1] == 0.0 { 0.0 } else { 1.0 / numbers[1] };
            let line: SmallVec<[f32; 256]> = numbers[2..].iter().map(|x| x * factor).collect();
            // SAFETY: the row is inside the output, and rows belong to one tile.
            unsafe { p.out.origin.offset(base).write(self.cpu, s[3], &line) };
        }
    }
}

const _: () = assert!(FEW <= ROWS && ROWS.is_multiple_of(12) && ROWS.is_multiple_of(8) && KEYS.is_multiple_of(32));
