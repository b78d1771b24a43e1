//! A tile of query rows against a range of keys. Each lane holds a query row; keys and columns of
//! values are broadcast.

use std::ops::Range;

use super::{
    Mask, Problem, Stored, four,
    single_query::RowsInPlace,
    state::{State, finite, weight},
};
use crate::{
    Error, Float, View,
    convert::FloatPtr,
    gemm::{Dense, Inputs, MAX_ROWS, Operand, accumulate, tile},
    math::tanh,
    simd::{Cpu, Isa, Kernel},
};

/// Keys looked at together.
const KEYS: usize = 128;

pub(super) struct Tile<'a, K> {
    pub(super) problem: &'a Problem<'a, K>,
    pub(super) cpu: Cpu,
    pub(super) batch: usize,
    pub(super) kv_head: usize,
    /// Row `r` is query `r / group` of head `kv_head · group + r % group`.
    pub(super) rows: Range<usize>,
    pub(super) keys: Range<usize>,
    pub(super) scratch: &'a mut [u32],
    /// Destination of the state; without one the result is written.
    pub(super) state: Option<&'a mut [f32]>,
}

/// Sizes that all parts of a tile's work share.
#[derive(Clone, Copy)]
struct Shape {
    /// Rows, padded to a multiple of LANES.
    rows: usize,
    depth: usize,
    width: usize,
    /// Whether words are pairs of bf16.
    pairs: bool,
}

impl Shape {
    fn query_words(self) -> usize {
        self.depth.next_multiple_of(32) * self.rows
    }

    fn key_words(self) -> usize {
        MAX_ROWS * self.depth.next_multiple_of(16)
    }

    fn score_words(self) -> usize {
        (KEYS + MAX_ROWS) * self.rows
    }

    fn value_words(self) -> usize {
        KEYS * self.width.next_multiple_of(16)
    }

    fn state_words(self) -> usize {
        State::len(self.width, self.rows)
    }

    fn line_words(self) -> usize {
        16 * self.width.next_multiple_of(16).max(self.depth.next_multiple_of(32)).max(KEYS)
    }
}

/// Scratch of a tile of at most `rows` rows.
pub(super) fn scratch_words(cpu: Cpu, rows: usize, depth: usize, width: usize) -> usize {
    let s = Shape { rows: rows.next_multiple_of(cpu.lanes()), depth, width, pairs: false };
    s.query_words() + s.key_words() + 2 * s.score_words() + s.value_words() + s.state_words() + s.line_words() + 2 * s.rows
}

/// The pieces of a tile's scratch.
struct Buffers<'a> {
    /// `[step][row]`
    queries: &'a mut [u32],
    /// Rows of keys that must be copied first.
    keys: &'a mut [u32],
    /// `[key][row]`
    scores: &'a mut [f32],
    /// Likewise, or `[key pair][row]`; before that the mask.
    weights: &'a mut [u32],
    /// `[key][column]` or `[key pair][column]`
    values: &'a mut [u32],
    /// `[column][row]`, maxima, sums.
    state: &'a mut [f32],
    /// Rows that are transposed.
    lines: &'a mut [f32],
    /// Keys that each row can see: the first, and the one after the last.
    bounds: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    fn new(scratch: &'a mut [u32], s: Shape) -> Buffers<'a> {
        let (queries, rest) = scratch.split_at_mut(s.query_words());
        let (keys, rest) = rest.split_at_mut(s.key_words());
        let (scores, rest) = rest.split_at_mut(s.score_words());
        let (weights, rest) = rest.split_at_mut(s.score_words());
        let (values, rest) = rest.split_at_mut(s.value_words());
        let (state, rest) = rest.split_at_mut(s.state_words());
        let (lines, rest) = rest.split_at_mut(s.line_words());
        let floats = |words: &'a mut [u32]| bytemuck::cast_slice_mut::<u32, f32>(words);
        let (scores, state, lines) = (floats(scores), floats(state), floats(lines));
        Buffers { queries, keys, scores, weights, values, state, lines, bounds: floats(rest) }
    }
}

impl<S: Float> Stored for View<'_, S> {
    type Weight = S;
    type Rows = RowsInPlace<S>;

    fn sizes(&self) -> Result<[usize; 4], Error> {
        four(self.shape())
    }

    fn has_rows(&self) -> bool {
        self.strides()[3] == 1
    }

    fn row_floats(&self, _: usize) -> usize {
        0
    }

    fn head_rows(&self, _: Cpu, [batch, head]: [usize; 2], _: Range<usize>, _: &mut [f32]) -> RowsInPlace<S> {
        RowsInPlace::of(self, batch, head)
    }

    fn compute(tile: Tile<Self>, pairs: bool) {
        if pairs { tile.cpu.dispatch_dot(tile) } else { tile.cpu.dispatch(tile) }
    }
}

impl<S: Float> Kernel for Tile<'_, View<'_, S>> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let p = self.problem;
        let rows = self.rows.len().next_multiple_of(I::LANES);
        let s = Shape { rows, depth: p.depth, width: p.width, pairs: I::DOT };
        let scratch = std::mem::take(&mut self.scratch);
        let mut b = Buffers::new(scratch, s);
        b.state[..p.width * rows].fill(0.0);
        b.state[p.width * rows..][..rows].fill(f32::NEG_INFINITY);
        b.state[(p.width + 1) * rows..][..rows].fill(0.0);
        self.pack_queries(isa, s, &mut b);
        let seen = self.bounds(s, &mut b);
        for start in seen.clone().step_by(KEYS) {
            let keys = start..seen.end.min(start + KEYS);
            self.scores(isa, s, keys.clone(), &mut b);
            let masked = self.read_mask(isa, s, keys.clone(), &mut b);
            for r in (0..rows).step_by(I::LANES) {
                self.soften(isa, s, (keys.clone(), masked), r, &mut b);
            }
            self.add_values(isa, s, keys, &mut b);
        }
        match self.state.take() {
            Some(to) => to.copy_from_slice(&b.state[..State::len(p.width, rows)]),
            None => self.finish(isa, b.state, b.lines, rows),
        }
    }
}

impl<K: Stored> Tile<'_, K> {
    /// Query and head of a row.
    #[inline(always)]
    fn place(&self, row: usize) -> (usize, usize) {
        (row / self.problem.group, self.kv_head * self.problem.group + row % self.problem.group)
    }

    /// Packs the queries, `[step][row]`.
    #[inline(always)]
    fn pack_queries<I: Isa>(&self, isa: I, s: Shape, b: &mut Buffers) {
        let (q, steps) = (self.problem.q, s.depth.next_multiple_of(32));
        let from = q.strides();
        for first in (0..s.rows).step_by(I::LANES) {
            for (lane, line) in b.lines.chunks_exact_mut(steps).enumerate().take(I::LANES) {
                line.fill(0.0);
                let row = self.rows.start + first + lane;
                if row < self.rows.end {
                    let (query, head) = self.place(row);
                    let base = self.batch as isize * from[0] + head as isize * from[1] + query as isize * from[2];
                    // SAFETY: the row is inside the view.
                    unsafe { q.origin().offset(base).read(self.cpu, from[3], &mut line[..s.depth]) };
                }
            }
            // SAFETY: lines hold LANES rows of `steps` elements, and so do the queries. `steps` is
            // a multiple of twice the lanes.
            unsafe {
                let (lines, to) = (b.lines.as_mut_ptr(), b.queries.as_mut_ptr().add(first));
                if s.pairs {
                    for i in (0..I::LANES * steps).step_by(I::LANES) {
                        isa.store_bf16(lines.cast::<u16>().add(i), isa.load(lines.add(i)));
                    }
                }
                let words = if s.pairs { steps / 2 } else { steps };
                for step in (0..words).step_by(I::LANES) {
                    isa.transpose(lines.cast::<u32>().add(step), words, to.add(step * s.rows), s.rows);
                }
            }
        }
    }

    /// Records each row's visible keys; returns the range of keys visible to any row.
    fn bounds(&self, s: Shape, b: &mut Buffers) -> Range<usize> {
        let p = self.problem;
        let mut seen = (usize::MAX, 0);
        for r in 0..s.rows {
            let (query, _) = self.place((self.rows.start + r).min(self.rows.end - 1));
            let own = p.visible(query);
            seen = (seen.0.min(own.start), seen.1.max(own.end));
            (b.bounds[r], b.bounds[s.rows + r]) = (own.start as f32, own.end as f32);
        }
        seen.0.clamp(self.keys.start, self.keys.end)..seen.1.clamp(self.keys.start, self.keys.end)
    }

    /// The mask values added to the scores of `row`.
    pub(super) fn mask_line(&self, row: usize, keys: Range<usize>, to: &mut [f32]) {
        let (query, head) = self.place(row);
        let base =
            |s: &[isize]| self.batch as isize * s[0] + head as isize * s[1] + query as isize * s[2] + keys.start as isize * s[3];
        match &self.problem.mask {
            Mask::Bool(view) => {
                let (at, step) = (base(view.strides()), view.strides()[3]);
                for (j, to) in to.iter_mut().enumerate() {
                    // SAFETY: the index is inside the view.
                    let seen = unsafe { (*view.origin().offset(at + j as isize * step)).get() };
                    *to = if seen { 0.0 } else { f32::NEG_INFINITY };
                }
            }
            Mask::Add(view) => {
                // SAFETY: the index is inside the view.
                unsafe { view.origin().offset(base(view.strides())).read(self.cpu, view.strides()[3], to) };
            }
            _ => {}
        }
    }

    /// The shares of the sinks of a vector of rows from `first` on.
    #[inline(always)]
    fn sinks<I: Isa>(&self, isa: I, state: &[f32], rows: usize, first: usize) -> I::V {
        let mut shares = [0.0; 16];
        if self.problem.scoring.sinks.is_some() {
            let tops = &state[self.problem.width * rows + first..][..I::LANES.min(self.rows.len() - first)];
            for (lane, (share, &top)) in shares.iter_mut().zip(tops).enumerate() {
                *share = self.problem.sink(self.place(self.rows.start + first + lane).1, top);
            }
        }
        // SAFETY: LANES is at most 16.
        unsafe { isa.load(shares.as_ptr()) }
    }

    /// Writes the rows of `state` to the output.
    #[inline(always)]
    pub(super) fn finish<I: Isa>(&self, isa: I, state: &[f32], lines: &mut [f32], rows: usize) {
        let p = self.problem;
        let stride = p.width.next_multiple_of(16);
        for first in (0..self.rows.len()).step_by(I::LANES) {
            let mut factors = [0.0; 16];
            // SAFETY: the state has a vector of rows from `first` on in each of its lines, and
            // LANES is at most 16.
            unsafe {
                let sum = isa.load(state.as_ptr().add((p.width + 1) * rows + first));
                let sum = isa.add(sum, self.sinks(isa, state, rows, first));
                let none = isa.lt(sum, isa.splat(f32::MIN_POSITIVE));
                isa.store(factors.as_mut_ptr(), isa.select(none, isa.splat(0.0), isa.div(isa.splat(1.0), sum)));
            }
            for lane in 0..I::LANES.min(self.rows.len() - first) {
                let line = &mut lines[lane * stride..][..p.width];
                let column = state[first + lane..].iter().step_by(rows);
                line.iter_mut().zip(column).for_each(|(to, &x)| *to = x * factors[lane]);
                let (query, head) = self.place(self.rows.start + first + lane);
                let s = p.out.strides;
                let base = self.batch as isize * s[0] + head as isize * s[1] + query as isize * s[2];
                // SAFETY: the row is inside the output, and rows belong to one tile.
                unsafe { p.out.origin.offset(base).write(self.cpu, s[3], line) };
            }
        }
    }
}

impl<S: Float> Tile<'_, View<'_, S>> {
    /// The matrix of this head in `view`.
    fn matrix(&self, view: &View<S>) -> Dense {
        let s = view.strides();
        // SAFETY: batch and head are inside the view, whose life covers the tile's.
        unsafe {
            let origin = view.origin().offset(self.batch as isize * s[0] + self.kv_head as isize * s[1]);
            Dense::new(FloatPtr::reading(origin), [s[2], s[3]])
        }
    }

    /// `scores[key][row]`, unscaled.
    #[inline(always)]
    fn scores<I: Isa>(&self, isa: I, s: Shape, keys: Range<usize>, b: &mut Buffers) {
        let (mr, vectors) = tile(I::KIND);
        let k = Operand::Dense(self.matrix(self.problem.k));
        for key in keys.clone().step_by(mr) {
            // SAFETY: these keys are inside the matrix.
            let rows = unsafe { k.rows(self.cpu, key..keys.end, (s.depth, s.pairs), mr, b.keys) };
            let steps = if s.pairs { s.depth.div_ceil(2) } else { s.depth };
            for r in (0..s.rows).step_by(vectors * I::LANES) {
                let panel = b.queries[r..].as_ptr();
                let x = Inputs { rows: &rows, runs: 1, row_step: 1, steps, panel, panel_step: s.rows, next: 0 };
                let c = &mut b.scores[(key - keys.start) * s.rows + r..];
                // SAFETY: the scores have room for a tile more than KEYS.
                unsafe { accumulate(isa, &x, vectors.min((s.rows - r) / I::LANES), c.as_mut_ptr(), s.rows, false) };
            }
        }
    }

    /// Transposes the mask to `[key][row]` in the space of the weights; `false` without a mask.
    #[inline(always)]
    fn read_mask<I: Isa>(&self, isa: I, s: Shape, keys: Range<usize>, b: &mut Buffers) -> bool {
        if !matches!(self.problem.mask, Mask::Bool(_) | Mask::Add(_)) {
            return false;
        }
        for first in (0..s.rows).step_by(I::LANES) {
            for (lane, line) in b.lines.chunks_exact_mut(KEYS).enumerate().take(I::LANES) {
                let row = (self.rows.start + first + lane).min(self.rows.end - 1);
                self.mask_line(row, keys.clone(), &mut line[..keys.len()]);
            }
            for key in (0..keys.len()).step_by(I::LANES) {
                // SAFETY: lines hold LANES rows of KEYS elements, and so do the weights. KEYS is a
                // multiple of LANES.
                unsafe {
                    let to = b.weights.as_mut_ptr().add(key * s.rows + first);
                    isa.transpose(b.lines.as_ptr().add(key).cast(), KEYS, to, s.rows);
                }
            }
        }
        true
    }

    /// Turns the scores of a vector of rows into weights relative to the rows' running maxima.
    /// Rescales the rows' running sums.
    ///
    /// Weights are rounded to the element type, but their sum is not, as in PyTorch's
    /// half-precision kernels.
    #[inline(always)]
    fn soften<I: Isa>(&self, isa: I, s: Shape, (keys, masked): (Range<usize>, bool), r: usize, b: &mut Buffers) {
        let (width, rows, count) = (s.width, s.rows, keys.len());
        let bounds = |i: usize| b.bounds[i * rows + r..][..I::LANES].iter().copied();
        let cut = bounds(0).any(|x| x > keys.start as f32) || bounds(1).any(|x| x < keys.end as f32);
        // SAFETY: each line of the buffers has `rows` elements, and a whole vector starts at `r`.
        unsafe {
            let (scores, weights) = (b.scores.as_mut_ptr().add(r), b.weights.as_mut_ptr().add(r));
            let (first, end) = (isa.load(b.bounds.as_ptr().add(r)), isa.load(b.bounds.as_ptr().add(rows + r)));
            let ((scale, cap), hidden) = (self.problem.factors(), isa.splat(f32::NEG_INFINITY));
            let scale = isa.splat(scale);
            let state = b.state.as_mut_ptr().add(r);
            let before = isa.load(state.add(width * rows));
            let mut top = before;
            for key in 0..count {
                let at = scores.add(key * rows);
                let mut score = isa.mul(isa.load(at), scale);
                if let Some(cap) = cap {
                    score = isa.mul(tanh(isa, score), isa.splat(cap));
                }
                if masked {
                    score = isa.add(score, isa.load(weights.add(key * rows).cast()));
                }
                if cut {
                    let key = isa.splat((keys.start + key) as f32);
                    score = isa.select(isa.lt(key, end), score, hidden);
                    score = isa.select(isa.lt(key, first), hidden, score);
                }
                top = isa.max(top, score);
                isa.store(at, score);
            }
            let base = finite(isa, top);
            let factor = weight(isa, before, base);
            isa.store(state.add(width * rows), top);
            for column in 0..width {
                let at = state.add(column * rows);
                isa.store(at, isa.mul(isa.load(at), factor));
            }
            let mut total = isa.mul(isa.load(state.add((width + 1) * rows)), factor);
            if s.pairs {
                isa.store(scores.add(count * rows), hidden);
                for key in (0..count).step_by(2) {
                    let low = weight(isa, isa.load(scores.add(key * rows)), base);
                    let high = weight(isa, isa.load(scores.add((key + 1) * rows)), base);
                    total = isa.add(total, isa.add(low, high));
                    let word = isa.or(isa.bf16_bits(low), isa.shl(isa.bf16_bits(high), 16));
                    isa.store(weights.add(key / 2 * rows).cast(), isa.with_bits(word));
                }
            } else {
                for key in 0..count {
                    let w = weight(isa, isa.load(scores.add(key * rows)), base);
                    total = isa.add(total, w);
                    isa.store(weights.add(key * rows).cast(), S::round_lanes(isa, w));
                }
            }
            isa.store(state.add((width + 1) * rows), total);
        }
    }

    /// Adds the weighted values of `keys` to the state.
    #[inline(always)]
    fn add_values<I: Isa>(&self, isa: I, s: Shape, keys: Range<usize>, b: &mut Buffers) {
        let (mr, vectors) = tile(I::KIND);
        let v = self.matrix(self.problem.v);
        let (from, row_step) = match v.origin {
            FloatPtr::F32(p) if v.step[1] == 1 && v.step[0] >= 0 => {
                // SAFETY: the first key is inside the matrix.
                (unsafe { p.offset(keys.start as isize * v.step[0]) }.cast_const().cast::<u32>(), v.step[0] as usize)
            }
            _ => {
                self.lay_out_values(isa, s, keys.clone(), b);
                (b.values.as_ptr(), s.width.next_multiple_of(16))
            }
        };
        let steps = if s.pairs { keys.len().div_ceil(2) } else { keys.len() };
        for column in (0..s.width).step_by(mr) {
            // SAFETY: the columns are inside the matrix.
            let rows: [*const u32; MAX_ROWS] = std::array::from_fn(|i| unsafe { from.add((column + i).min(s.width - 1)) });
            let whole = column + mr <= s.width;
            for r in (0..s.rows).step_by(vectors * I::LANES) {
                let panel = b.weights[r..].as_ptr();
                let x = Inputs { rows: &rows, runs: 1, row_step, steps, panel, panel_step: s.rows, next: 0 };
                let vectors = vectors.min((s.rows - r) / I::LANES);
                // SAFETY: columns inside the state go to the state; a wider tile writes its other
                // columns to the scores, which are dead.
                unsafe {
                    let to = b.state.as_mut_ptr().add(column * s.rows + r);
                    if whole {
                        accumulate(isa, &x, vectors, to, s.rows, true);
                    } else {
                        let spare = b.scores.as_mut_ptr();
                        accumulate(isa, &x, vectors, spare, s.rows, false);
                        for (i, v) in (0..s.width - column).flat_map(|i| (0..vectors).map(move |v| (i, v * I::LANES))) {
                            let to = to.add(i * s.rows + v);
                            isa.store(to, isa.add(isa.load(to), isa.load(spare.add(i * s.rows + v))));
                        }
                    }
                }
            }
        }
    }

    /// Values as words, `[key][column]` or `[key pair][column]`.
    #[inline(always)]
    fn lay_out_values<I: Isa>(&self, isa: I, s: Shape, keys: Range<usize>, b: &mut Buffers) {
        let (padded, step) = (s.width.next_multiple_of(16), if s.pairs { 2 } else { 1 });
        for (i, line) in b.values.chunks_exact_mut(padded).enumerate().take(keys.len().div_ceil(step)) {
            let key = keys.start + i * step;
            for (c, to) in line.chunks_exact_mut(I::LANES).enumerate() {
                let low = self.value(isa, key, c * I::LANES, keys.end);
                let word = if s.pairs {
                    // Values are bf16 here: their bits are the high half of the lane.
                    isa.or(isa.shr(isa.bits(low), 16), isa.bits(self.value(isa, key + 1, c * I::LANES, keys.end)))
                } else {
                    isa.bits(low)
                };
                // SAFETY: the chunk is LANES long.
                unsafe { isa.store(to.as_mut_ptr().cast(), isa.with_bits(word)) };
            }
        }
    }

    /// Values of one key from `column` on, zeros beyond the last and from key `end` on.
    #[inline(always)]
    fn value<I: Isa>(&self, isa: I, key: usize, column: usize, end: usize) -> I::V {
        let v = self.problem.v;
        let (width, s) = (self.problem.width, v.strides());
        if key >= end || column >= width {
            return isa.splat(0.0);
        }
        let at = self.batch as isize * s[0] + self.kv_head as isize * s[1] + key as isize * s[2] + column as isize * s[3];
        // SAFETY: key and columns are inside the view.
        unsafe {
            let at = v.origin().offset(at);
            if s[3] == 1 && width - column >= I::LANES {
                return S::load(isa, at);
            }
            let mut lanes = [0.0; 16];
            for (l, lane) in lanes.iter_mut().enumerate().take((width - column).min(I::LANES)) {
                *lane = (*at.offset(l as isize * s[3])).to_f32();
            }
            isa.load(lanes.as_ptr())
        }
    }
}

/// Writes a state that parts were joined into.
pub(super) struct WriteState<'a, K> {
    pub(super) tile: Tile<'a, K>,
    pub(super) joined: &'a [f32],
    pub(super) rows: usize,
}

impl<K: Stored> Kernel for WriteState<'_, K> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let lines = bytemuck::cast_slice_mut(std::mem::take(&mut self.tile.scratch));
        self.tile.finish(isa, self.joined, lines, self.rows);
    }
}
