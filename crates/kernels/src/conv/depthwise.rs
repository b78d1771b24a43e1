//! Convolutions in which each channel has one filter of its own: vectors run over channels.

use super::Geometry;
use crate::{
    Float, Pool,
    simd::{Isa, Kernel, load_partial, store_partial},
};

/// Elements of a task's output.
const GRAIN: usize = 8192;

/// Neighbouring outputs that share a filter in registers.
const SIDE: usize = 4;

/// `out` is not empty.
pub(super) fn depthwise<T: Float>(pool: &Pool, x: &[T], w: &[T], g: &Geometry, out: &mut [T]) {
    let (channels, taps) = (g.groups, g.tap_count());
    let padded = channels.next_multiple_of(16);
    let mut filters = vec![0.0; taps * padded];
    for (c, filter) in w.chunks_exact(taps.max(1)).enumerate() {
        filter.iter().enumerate().for_each(|(t, &v)| filters[t * padded + c] = v.to_f32());
    }
    let inside = Inside::of(g);
    let rows = (GRAIN / channels).max(1);
    pool.run_chunks(out, rows * channels, |i, out| {
        pool.dispatch(Depthwise { x, filters: &filters, padded, g, inside: &inside, first: i * rows, out });
    });
}

/// Outputs of the last axis which read something through every tap.
struct Inside {
    outputs: std::ops::Range<usize>,
    /// Input step between two neighbouring outputs.
    step: usize,
}

impl Inside {
    fn of(g: &Geometry) -> Inside {
        let (taps, width) = (g.taps[2], g.output[2]);
        let sources = |o: usize| &g.sources[2][o * taps..][..taps];
        let whole = |o: usize| !sources(o).contains(&usize::MAX);
        let start = (0..width).find(|&o| whole(o)).unwrap_or(width);
        let end = (start..width).find(|&o| !whole(o)).unwrap_or(width);
        let step = if end - start > 1 { sources(start + 1)[0] - sources(start)[0] } else { 0 };
        Inside { outputs: start..end, step }
    }
}

struct Depthwise<'a, T> {
    x: &'a [T],
    /// `[tap][channel]`, rows of `padded`.
    filters: &'a [f32],
    padded: usize,
    g: &'a Geometry,
    inside: &'a Inside,
    first: usize,
    out: &'a mut [T],
}

impl<T: Float> Kernel for Depthwise<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let (width, end) = (self.g.output[2], self.first + self.out.len() / self.g.groups);
        let (mut position, mut taps) = (self.first, Vec::new());
        while position < end {
            let line = position / width * width;
            let stop = end.min(line + width);
            self.line(isa, line, position - line..stop - line, &mut taps);
            position = stop;
        }
    }
}

impl<T: Float> Depthwise<'_, T> {
    /// Outputs `columns` of the line whose first output is number `line`.
    #[inline(always)]
    fn line<I: Isa>(&mut self, isa: I, line: usize, columns: std::ops::Range<usize>, taps: &mut Vec<(usize, usize)>) {
        let inside = columns.start.max(self.inside.outputs.start)..columns.end.min(self.inside.outputs.end);
        for column in columns.filter(|c| !inside.contains(c)) {
            self.reads(line + column, taps);
            self.outputs::<I, 1>(isa, taps, 0, line + column - self.first);
        }
        if inside.is_empty() {
            return;
        }
        self.reads(line + inside.start, taps);
        let whole = inside.start + inside.len() / SIDE * SIDE;
        let step = self.inside.step * self.g.groups;
        for column in (inside.start..whole).step_by(SIDE) {
            self.outputs::<I, SIDE>(isa, taps, (column - inside.start) * step, line + column - self.first);
        }
        for column in whole..inside.end {
            self.outputs::<I, 1>(isa, taps, (column - inside.start) * step, line + column - self.first);
        }
    }

    /// Offsets that output `position` reads: first elements of the input and of the filter.
    fn reads(&self, position: usize, to: &mut Vec<(usize, usize)>) {
        let (g, position, image) = (self.g, position % self.g.positions(), position / self.g.positions());
        let [_, h, w] = g.output;
        let o = [position / w / h, position / w % h, position % w];
        let rows: [&[usize]; 3] = std::array::from_fn(|a| &g.sources[a][o[a] * g.taps[a]..][..g.taps[a]]);
        let mut tap = 0;
        to.clear();
        for &i in rows[0] {
            for &j in rows[1] {
                for &k in rows[2] {
                    if i != usize::MAX && j != usize::MAX && k != usize::MAX {
                        let source = ((image * g.input[0] + i) * g.input[1] + j) * g.input[2] + k;
                        to.push((source * g.groups, tap * self.padded));
                    }
                    tap += 1;
                }
            }
        }
    }

    /// `N` outputs from index `i` on. The first one reads `shift` elements after `taps`.
    #[inline(always)]
    fn outputs<I: Isa, const N: usize>(&mut self, isa: I, taps: &[(usize, usize)], shift: usize, i: usize) {
        let channels = self.g.groups;
        let pairs = channels / (2 * I::LANES) * (2 * I::LANES);
        let whole = channels / I::LANES * I::LANES;
        let full = I::LANES;
        for c in (0..pairs).step_by(2 * full) {
            self.vectors::<I, N, 2>(isa, taps, [shift, i, c, full]);
        }
        for c in (pairs..whole).step_by(full) {
            self.vectors::<I, N, 1>(isa, taps, [shift, i, c, full]);
        }
        if whole < channels {
            self.vectors::<I, N, 1>(isa, taps, [shift, i, whole, channels - whole]);
        }
    }

    /// `V` vectors of channels from `c` on, each of `lanes`.
    #[inline(always)]
    fn vectors<I: Isa, const N: usize, const V: usize>(
        &mut self,
        isa: I,
        taps: &[(usize, usize)],
        [shift, i, c, lanes]: [usize; 4],
    ) {
        let (channels, step) = (self.g.groups, self.inside.step * self.g.groups);
        let mut sums = [[isa.splat(0.0); V]; N];
        for &(x, filter) in taps {
            let x = x + shift;
            assert!(x + (N - 1) * step + c + (V - 1) * I::LANES + lanes <= self.x.len(), "a tap reads inside the input");
            // SAFETY: the elements are inside the input by the assertion; rows of filters are
            // padded to whole vectors.
            unsafe {
                let filter = self.filters.as_ptr().add(filter + c);
                let factors: [I::V; V] = std::array::from_fn(|v| isa.load(filter.add(v * I::LANES)));
                for (n, sums) in sums.iter_mut().enumerate() {
                    let x = self.x.as_ptr().add(x + n * step + c);
                    for (v, sum) in sums.iter_mut().enumerate() {
                        let x = x.add(v * I::LANES);
                        let x = if lanes == I::LANES { T::load(isa, x) } else { load_partial(isa, x, lanes) };
                        *sum = isa.fma(x, factors[v], *sum);
                    }
                }
            }
        }
        let out = &mut self.out[i * channels + c..][..(N - 1) * channels + (V - 1) * I::LANES + lanes];
        for (n, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                // SAFETY: the slice reaches to the last of these elements.
                unsafe {
                    let to = out.as_mut_ptr().add(n * channels + v * I::LANES);
                    if lanes == I::LANES { T::store(isa, to, sum) } else { store_partial(isa, to, sum, lanes) }
                }
            }
        }
    }
}
