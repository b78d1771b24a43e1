//! Attention of a single query per head, as in generation. A vector holds several keys for the
//! scores, and several columns of a row for the values. The query heads of a group share each load.

use std::ops::Range;

use super::{
    Stored,
    state::{State, finite, weight},
    tile::Tile,
};
use crate::{
    Float, View,
    math::tanh,
    simd::{Isa, Kernel, load_partial},
};

/// Largest number of query heads that share a key head here. Larger groups run as blocks of rows.
pub(super) const MOST_HEADS: usize = 8;

/// Query heads whose weighted values are computed at once.
const HEADS: usize = 4;

/// Widens queries to a multiple of this many elements.
pub(super) const PAD: usize = 32;

/// Whether queries and keys of this depth can be read as pairs of bf16.
pub(super) fn fits_pairs(depth: usize) -> bool {
    depth.is_multiple_of(PAD)
}

/// Sizes of the attention of one key head.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) heads: usize,
    pub(super) depth: usize,
    width: usize,
    /// Maximum number of keys.
    keys: usize,
}

impl Shape {
    fn query_words(self) -> usize {
        self.heads * self.depth.next_multiple_of(PAD)
    }

    /// Elements of a head's scores.
    pub(super) fn line(self) -> usize {
        self.keys.next_multiple_of(16)
    }

    /// Elements of a head's result.
    fn result(self) -> usize {
        self.width.next_multiple_of(16)
    }
}

/// Scratch words for `heads` heads of a group and at most `keys` keys. `rows` are the words for the
/// rows of keys and of values.
pub(super) fn scratch_words([heads, depth, width, keys]: [usize; 4], rows: [usize; 2]) -> usize {
    let s = Shape { heads, depth, width, keys };
    s.query_words() + heads * (2 * s.line() + s.result()) + rows[0] + rows[1]
}

/// The rows of keys or values of one head.
pub(super) trait HeadRows: Copy {
    /// `to[head][key]`: products of the queries and these keys. Queries are in pairs where the
    /// instruction set has [`Isa::DOT`].
    fn scores<I: Isa>(self, isa: I, s: Shape, queries: &[u32], keys: Range<usize>, to: &mut [f32]);
    /// Elements of a row from `column` on.
    ///
    /// # Safety
    /// The row may be read, and has LANES elements from there on.
    unsafe fn load<I: Isa>(self, isa: I, key: usize, column: usize) -> I::V;
    /// As [`HeadRows::load`] for the first `count` lanes. The others are zero.
    ///
    /// # Safety
    /// The row may be read, and has `count` elements from there on.
    unsafe fn load_first<I: Isa>(self, isa: I, key: usize, column: usize, count: usize) -> I::V;
}

/// A tile for one query, with the heads of a group as rows. Its keys and values have
/// [`HeadRows`].
pub(super) struct SingleQuery<'a, K> {
    pub(super) tile: Tile<'a, K>,
    /// Maximum number of keys per task.
    pub(super) most: usize,
}

impl<K: Stored> Kernel for SingleQuery<'_, K> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let p = self.tile.problem;
        let s = Shape { heads: p.group, depth: p.depth, width: p.width, keys: self.most };
        let visible = p.visible(0);
        let start = self.tile.keys.start.max(visible.start);
        let keys = start..self.tile.keys.end.min(visible.end).max(start);
        let (queries, rest) = std::mem::take(&mut self.tile.scratch).split_at_mut(s.query_words());
        let (scores, rest) = bytemuck::cast_slice_mut::<u32, f32>(rest).split_at_mut(s.heads * s.line());
        let (masks, rest) = rest.split_at_mut(s.heads * s.line());
        let (results, rest) = rest.split_at_mut(s.heads * s.result());
        let (key_floats, value_floats) = rest.split_at_mut(p.k.row_floats(keys.len()));
        let (cpu, head) = (self.tile.cpu, [self.tile.batch, self.tile.kv_head]);
        self.lay_out_queries(s, I::DOT, queries);
        p.k.head_rows(cpu, head, keys.clone(), key_floats).scores(isa, s, queries, keys.clone(), scores);
        let values = p.v.head_rows(cpu, head, keys.clone(), value_floats);
        let mut sums = [[0.0; 2]; MOST_HEADS];
        for (head, sums) in sums.iter_mut().enumerate().take(s.heads) {
            let lines = (&mut scores[head * s.line()..][..s.line()], &mut masks[head * s.line()..][..s.line()]);
            *sums = self.soften(isa, head, keys.clone(), lines);
        }
        for first in (0..s.heads).step_by(HEADS) {
            let (scores, to) = (&scores[first * s.line()..], &mut results[first * s.result()..]);
            match s.heads - first {
                1 => weighted::<I, _, 1>(isa, values, s, keys.clone(), scores, to),
                2 => weighted::<I, _, 2>(isa, values, s, keys.clone(), scores, to),
                3 => weighted::<I, _, 3>(isa, values, s, keys.clone(), scores, to),
                _ => weighted::<I, _, HEADS>(isa, values, s, keys.clone(), scores, to),
            }
        }
        self.finish(isa, s, results, &sums[..s.heads]);
    }
}

impl<K: Stored> SingleQuery<'_, K> {
    /// Queries as `f32` or as pairs of bf16, each padded with zeros.
    #[inline(always)]
    fn lay_out_queries(&self, s: Shape, pairs: bool, to: &mut [u32]) {
        let (t, q) = (&self.tile, self.tile.problem.q);
        let from = q.strides();
        for (head, line) in to.chunks_exact_mut(s.depth.next_multiple_of(PAD)).enumerate() {
            line[s.depth..].fill(0);
            let at = t.batch as isize * from[0] + (t.kv_head * s.heads + head) as isize * from[1];
            // SAFETY: the row is inside the view.
            unsafe { q.origin().offset(at).read(t.cpu, from[3], bytemuck::cast_slice_mut(&mut line[..s.depth])) };
            if pairs {
                for i in 0..line.len() / 2 {
                    line[i] = line[2 * i] >> 16 | (line[2 * i + 1] & 0xffff_0000);
                }
            }
        }
    }

    /// Turns scores into weights. Returns the largest score and the sum of the weights.
    ///
    /// Weights are rounded to the element type, but their sum is not, as in tiles of many queries.
    #[inline(always)]
    fn soften<I: Isa>(&self, isa: I, head: usize, keys: Range<usize>, (scores, mask): (&mut [f32], &mut [f32])) -> [f32; 2] {
        let (count, p) = (keys.len(), self.tile.problem);
        let masked = p.is_masked();
        if masked {
            self.tile.mask_line(head, keys, &mut mask[..count]);
        }
        let ((scale, cap), hidden) = (p.factors(), isa.splat(f32::NEG_INFINITY));
        let scale = isa.splat(scale);
        let (mut top, mut total) = (hidden, isa.splat(0.0));
        // SAFETY: lines hold whole vectors.
        unsafe {
            for i in (0..count).step_by(I::LANES) {
                let at = scores.as_mut_ptr().add(i);
                let mut score = isa.mul(isa.load(at), scale);
                if let Some(cap) = cap {
                    score = isa.mul(tanh(isa, score), isa.splat(cap));
                }
                if masked {
                    score = isa.add(score, isa.load(mask.as_ptr().add(i)));
                }
                if count - i < I::LANES {
                    let inside = isa.lt(isa.int_to_float(isa.lane_numbers()), isa.splat((count - i) as f32));
                    score = isa.select(inside, score, hidden);
                }
                top = isa.max(top, score);
                isa.store(at, score);
            }
            let top = isa.max_lane(top);
            let base = finite(isa, isa.splat(top));
            for i in (0..count).step_by(I::LANES) {
                let at = scores.as_mut_ptr().add(i);
                let w = weight(isa, isa.load(at), base);
                total = isa.add(total, w);
                isa.store(at, K::Weight::round_lanes(isa, w));
            }
            [top, isa.sum(total)]
        }
    }

    /// Writes the results, or the state if another task joins it with the state of other keys.
    #[inline(always)]
    fn finish<I: Isa>(&mut self, _: I, s: Shape, results: &mut [f32], sums: &[[f32; 2]]) {
        let rows = s.heads.next_multiple_of(I::LANES);
        if let Some(state) = self.tile.state.take() {
            let state = &mut state[..State::len(s.width, rows)];
            state.fill(0.0);
            state[s.width * rows..][..rows].fill(f32::NEG_INFINITY);
            for (head, &[top, sum]) in sums.iter().enumerate() {
                let line = &results[head * s.result()..][..s.width];
                let column = state[head..].iter_mut().step_by(rows);
                column.zip(line.iter().chain(&[top, sum])).for_each(|(to, &x)| *to = x);
            }
            return;
        }
        let (t, out) = (&self.tile, &self.tile.problem.out);
        for (head, &[top, sum]) in sums.iter().enumerate() {
            let sum = sum + t.problem.sink(t.kv_head * s.heads + head, top);
            let line = &mut results[head * s.result()..][..s.width];
            let factor = if sum < f32::MIN_POSITIVE { 0.0 } else { 1.0 / sum };
            line.iter_mut().for_each(|x| *x *= factor);
            let at = t.batch as isize * out.strides[0] + (t.kv_head * s.heads + head) as isize * out.strides[1];
            // SAFETY: the row is inside the output, and heads belong to one task.
            unsafe { out.origin.offset(at).write(t.cpu, out.strides[3], line) };
        }
    }
}

/// `to[head][column]`: weighted values for `H` heads.
#[inline(always)]
fn weighted<I: Isa, R: HeadRows, const H: usize>(isa: I, v: R, s: Shape, keys: Range<usize>, weights: &[f32], to: &mut [f32]) {
    // The registers hold this number of sums and the values.
    if I::LANES == 16 {
        columns::<I, R, H, 4>(isa, v, s, keys, weights, to);
    } else {
        columns::<I, R, H, 2>(isa, v, s, keys, weights, to);
    }
}

#[inline(always)]
fn columns<I: Isa, R: HeadRows, const H: usize, const C: usize>(
    isa: I,
    v: R,
    s: Shape,
    keys: Range<usize>,
    weights: &[f32],
    to: &mut [f32],
) {
    assert!(
        weights.len() >= (H - 1) * s.line() + keys.len() && to.len() >= H * s.result(),
        "each head has a line of weights and of results"
    );
    let mut column = 0;
    while column < s.width {
        let whole = s.width - column >= C * I::LANES;
        let rest = (s.width - column).min(I::LANES);
        let mut sums = [[isa.splat(0.0); C]; H];
        // SAFETY: keys and columns are inside the values. By the assertion, a vector fits into a
        // line at any column that is a multiple of LANES.
        unsafe {
            for (i, key) in keys.clone().enumerate() {
                let mut values = [isa.splat(0.0); C];
                if whole {
                    for (c, value) in values.iter_mut().enumerate() {
                        *value = v.load(isa, key, column + c * I::LANES);
                    }
                } else {
                    values[0] = v.load_first(isa, key, column, rest);
                }
                for (h, sums) in sums.iter_mut().enumerate() {
                    let w = isa.splat(*weights.as_ptr().add(h * s.line() + i));
                    for (sum, &value) in sums.iter_mut().zip(&values) {
                        *sum = isa.fma(w, value, *sum);
                    }
                }
            }
            for (h, sums) in sums.iter().enumerate() {
                for (c, &sum) in sums.iter().enumerate().take(if whole { C } else { 1 }) {
                    isa.store(to.as_mut_ptr().add(h * s.result() + column + c * I::LANES), sum);
                }
            }
        }
        column += if whole { C * I::LANES } else { rest };
    }
}

/// Dense rows of floats, read in place.
#[derive(Clone, Copy)]
pub(super) struct RowsInPlace<S> {
    origin: *const S,
    step: isize,
}

impl<S: Float> RowsInPlace<S> {
    /// The rows of a head of `view`.
    pub(super) fn of(view: &View<S>, batch: usize, head: usize) -> RowsInPlace<S> {
        let s = view.strides();
        // SAFETY: batch and head are inside the view.
        let origin = unsafe { view.origin().offset(batch as isize * s[0] + head as isize * s[1]) };
        RowsInPlace { origin, step: s[2] }
    }

    /// # Safety
    /// The key is inside the view.
    #[inline(always)]
    unsafe fn row(self, key: usize) -> *const S {
        // SAFETY: the caller keeps the key inside the view.
        unsafe { self.origin.offset(key as isize * self.step) }
    }

    #[inline(always)]
    fn products<I: Isa, const PAIRS: bool>(self, isa: I, s: Shape, queries: &[u32], keys: Range<usize>, to: &mut [f32]) {
        let padded = s.depth.next_multiple_of(PAD);
        for first in keys.clone().step_by(4) {
            // Past the end, the last key is read again and its results are ignored. SAFETY: keys of
            // the tile are inside the view.
            let rows: [*const S; 4] = std::array::from_fn(|i| unsafe { self.row((first + i).min(keys.end - 1)) });
            for head in 0..s.heads {
                let query = queries[head * padded..][..padded].as_ptr();
                // SAFETY: keys have `depth` elements, queries as many and zeros up to `padded`.
                let sums = unsafe { products::<I, S, PAIRS>(isa, query, rows, s.depth) };
                to[head * s.line() + first - keys.start..][..4].copy_from_slice(&isa.sum4(sums));
            }
        }
    }
}

impl<S: Float> HeadRows for RowsInPlace<S> {
    #[inline(always)]
    fn scores<I: Isa>(self, isa: I, s: Shape, queries: &[u32], keys: Range<usize>, to: &mut [f32]) {
        if I::DOT {
            self.products::<I, true>(isa, s, queries, keys, to);
        } else {
            self.products::<I, false>(isa, s, queries, keys, to);
        }
    }

    #[inline(always)]
    unsafe fn load<I: Isa>(self, isa: I, key: usize, column: usize) -> I::V {
        // SAFETY: the caller makes LANES elements of the row readable.
        unsafe { S::load(isa, self.row(key).add(column)) }
    }

    #[inline(always)]
    unsafe fn load_first<I: Isa>(self, isa: I, key: usize, column: usize, count: usize) -> I::V {
        // SAFETY: the caller makes `count` elements of the row readable.
        unsafe { load_partial(isa, self.row(key).add(column), count) }
    }
}

/// Products of a query with four keys, to be summed over the lanes.
///
/// # Safety
/// `depth` elements of each key are readable. The query has `depth` readable words, or half as many
/// with `PAIRS`.
#[inline(always)]
unsafe fn products<I: Isa, S: Float, const PAIRS: bool>(isa: I, query: *const u32, keys: [*const S; 4], depth: usize) -> [I::V; 4] {
    let mut sums = [isa.splat(0.0); 4];
    // SAFETY: the query has `depth` elements and zeros up to a whole step, and each key has
    // `depth`, as the caller promised.
    unsafe {
        if PAIRS {
            for at in (0..depth).step_by(2 * I::LANES) {
                let q = isa.load_u(query.add(at / 2));
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = isa.dot_bf16(*sum, q, isa.load_u(key.add(at).cast()));
                }
            }
            return sums;
        }
        let whole = depth / I::LANES * I::LANES;
        for at in (0..whole).step_by(I::LANES) {
            let q = isa.load(query.add(at).cast());
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum = isa.fma(q, S::load(isa, key.add(at)), *sum);
            }
        }
        if whole < depth {
            let q = isa.load(query.add(whole).cast());
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum = isa.fma(q, load_partial(isa, key.add(whole), depth - whole), *sum);
            }
        }
    }
    sums
}
