//! Convolutions as products of filters with inputs, read in place.
//!
//! Filters are packed into panels; each tile of outputs has a list of pointers that say where its
//! taps read. A tap outside of the input points to zeros. Taps with consecutive inputs form one
//! run.

use super::Geometry;
use crate::{
    Float, Pool,
    convert::{FloatPtr, with_float, write_line},
    gemm::{Columns, Dense, Inputs, MAX_ROWS, Operand, Panels, accumulate, tile, words},
    pool::Parts,
    simd::{Isa, Kernel},
};

/// Outputs of a task: whole tiles of every instruction set.
const ROWS: usize = 96;

/// Tasks below which a product is cut by channels as well.
const FEW_TASKS: usize = 16;

/// Lanes of the widest tile.
const MAX_WIDTH: usize = 48;

/// Outputs of one axis that read through the same taps, if through any.
struct Phase {
    /// Output positions.
    outputs: Vec<usize>,
    /// Taps that any of them reads through.
    taps: Vec<usize>,
    /// `[output][tap]`: input position, or `usize::MAX`.
    sources: Vec<usize>,
}

impl Phase {
    /// Phases of an axis: as many as a transposed convolution has strides.
    fn all(g: &Geometry, axis: usize) -> Vec<Phase> {
        let source = |o: usize, t: usize| g.sources[axis][o * g.taps[axis] + t];
        (0..g.strides[axis].min(g.output[axis]))
            .map(|first| {
                let outputs: Vec<usize> = (first..g.output[axis]).step_by(g.strides[axis]).collect();
                let is_read = |t: usize| outputs.iter().any(|&o| source(o, t) != usize::MAX);
                let taps: Vec<usize> = (0..g.taps[axis]).filter(|&t| is_read(t)).collect();
                let sources = outputs.iter().flat_map(|&o| taps.iter().map(move |&t| source(o, t))).collect();
                Phase { outputs, taps, sources }
            })
            .collect()
    }

    /// The input indices of output `i`, by tap.
    #[inline(always)]
    fn reads(&self, i: usize) -> &[usize] {
        &self.sources[i * self.taps.len()..][..self.taps.len()]
    }

    /// Whether output `i` reads neighbours through all taps.
    #[inline(always)]
    fn in_line(&self, i: usize) -> bool {
        let reads = self.reads(i);
        reads.first().is_some_and(|&first| first != usize::MAX && reads.last() == Some(&(first + reads.len() - 1)))
    }

    /// The input step between consecutive outputs on the last axis. `Some` only if the outputs are
    /// in one line and read an input through every tap.
    #[inline(always)]
    fn step_of(&self, places: &[Place]) -> Option<usize> {
        let (first, last) = (places.first()?, places.last()?);
        let [from, to] = [first, last].map(|p| self.reads(p.o[2]));
        let in_line = first.image == last.image && first.o[..2] == last.o[..2];
        let reads_all = !from.contains(&usize::MAX) && !to.contains(&usize::MAX);
        // Sources are linear in the output's index, so both ends determine all outputs between
        // them.
        (in_line && reads_all && !from.is_empty()).then(|| (to[0] - from[0]) / (places.len() - 1).max(1))
    }
}

/// `out` is not empty.
pub(super) fn products<T: Float>(pool: &Pool, x: &[T], w: &[T], g: &Geometry, out: &mut [T]) {
    let (ci, cpu) = (g.in_channels / g.groups, pool.cpu());
    let is_bf16 = matches!(FloatPtr::reading(x.as_ptr()), FloatPtr::BF16(_));
    let pairs = is_bf16 && cpu.has_dot() && ci.is_multiple_of(2);
    let is_f32 = matches!(FloatPtr::reading(x.as_ptr()), FloatPtr::F32(_));
    let mut widened = vec![0.0; if pairs || is_f32 { 0 } else { x.len() }];
    pool.run_chunks(&mut widened, 1 << 14, |i, to| {
        // SAFETY: there are as many elements in `x`.
        unsafe { FloatPtr::reading(x[i << 14..].as_ptr()).read(cpu, 1, to) };
    });
    let words = if widened.is_empty() { x.as_ptr().cast() } else { widened.as_ptr().cast() };
    let out = FloatPtr::of(out.as_mut_ptr());
    let [a, b, c] = std::array::from_fn(|axis| Phase::all(g, axis));
    for phases in a.iter().flat_map(|a| b.iter().flat_map(|b| c.iter().map(|c| [a, b, c])).collect::<Vec<_>>()) {
        for group in 0..g.groups {
            let part = Part { g, phases, group, x: words, pairs, out };
            part.multiply(pool, w);
        }
    }
}

/// Outputs of one phase an axis, and of one group.
struct Part<'a> {
    g: &'a Geometry,
    phases: [&'a Phase; 3],
    group: usize,
    /// All inputs: one `f32` a word, or two bf16.
    x: *const u32,
    pairs: bool,
    /// All outputs.
    out: FloatPtr,
}

// SAFETY: tasks read the inputs and write disjoint outputs.
unsafe impl Sync for Part<'_> {}

impl Part<'_> {
    /// Channels of a filter, and filters.
    fn channels(&self) -> [usize; 2] {
        [self.g.in_channels / self.g.groups, self.g.out_channels / self.g.groups]
    }

    fn tap_count(&self) -> usize {
        self.phases.iter().map(|p| p.taps.len()).product()
    }

    fn multiply<T: Float>(&self, pool: &Pool, w: &[T]) {
        let ([ci, co], cpu) = (self.channels(), pool.cpu());
        let depth = (self.tap_count() * ci, self.pairs);
        let rows = self.g.batch * self.phases.iter().map(|p| p.outputs.len()).product::<usize>();
        let filters = self.filters(w, ci, co);
        let panels = Panels::even(cpu, depth, co);
        let mut team = pool.team();
        let mut packed = team.take(panels.words(co));
        let (count, parts) = (co.div_ceil(panels.width), Parts::new(packed.words()));
        team.run(count, 0, |panel, _| {
            let first = panel * panels.width;
            let width = panels.width_of(co - first);
            // SAFETY: each panel has its own words; all filters have `depth` elements.
            unsafe {
                let columns = Columns::Rows(Operand::Dense(Dense::new(FloatPtr::reading(filters.as_ptr()), [depth.0 as isize, 1])));
                columns.pack(
                    cpu,
                    depth,
                    first..co,
                    width,
                    parts.slice(panels.words(first)..panels.words(first) + width * panels.steps),
                );
            }
        });
        let zeros = vec![0u32; words(self.phases[2].taps.len() * ci, self.pairs)];
        let blocks = rows.div_ceil(ROWS);
        let each = if blocks < FEW_TASKS { 1 } else { count };
        team.run(blocks * count.div_ceil(each), 0, |task, _| {
            let (block, first) = (task % blocks, task / blocks * each);
            let rows = block * ROWS..rows.min((block + 1) * ROWS);
            let panel_numbers = first..count.min(first + each);
            let task = Task { part: self, panels, packed: packed.as_words(), zeros: &zeros, rows, panel_numbers };
            if self.pairs { cpu.dispatch_dot(task) } else { cpu.dispatch(task) }
        });
        team.give_back(packed);
    }

    /// The filters' elements that count, `[filter][tap][channel]`.
    fn filters<'w, T: Float>(&self, w: &'w [T], ci: usize, co: usize) -> std::borrow::Cow<'w, [T]> {
        let all = self.g.tap_count();
        let own = &w[self.group * co * all * ci..][..co * all * ci];
        if self.tap_count() == all {
            return own.into();
        }
        let [a, b, c] = self.phases.map(|p| &p.taps);
        let taps: Vec<usize> = a
            .iter()
            .flat_map(|&i| b.iter().map(move |&j| i * self.g.taps[1] + j))
            .flat_map(|ij| c.iter().map(move |&k| ij * self.g.taps[2] + k))
            .collect();
        let mut filters = Vec::with_capacity(co * taps.len() * ci);
        for filter in own.chunks_exact((all * ci).max(1)) {
            taps.iter().for_each(|t| filters.extend_from_slice(&filter[t * ci..(t + 1) * ci]));
        }
        filters.into()
    }

    /// The outputs of these numbers.
    fn places(&self, rows: std::ops::Range<usize>) -> Vec<Place> {
        let (g, sizes) = (self.g, self.phases.map(|p| p.outputs.len()));
        let line = rows.start / sizes[2];
        let (mut o, mut image) = ([line / sizes[1] % sizes[0], line % sizes[1], rows.start % sizes[2]], line / sizes[1] / sizes[0]);
        let mut places = Vec::with_capacity(rows.len());
        for _ in rows {
            let [p, q, r] = [0, 1, 2].map(|a| self.phases[a].outputs[o[a]]);
            let to = (image * g.output[0] + p) * g.output[1] + q;
            places.push(Place { image, o, to: (to * g.output[2] + r) * g.out_channels });
            o[2] += 1;
            for axis in [2, 1] {
                if o[axis] == sizes[axis] {
                    (o[axis], o[axis - 1]) = (0, o[axis - 1] + 1);
                }
            }
            if o[0] == sizes[0] {
                (o[0], image) = (0, image + 1);
            }
        }
        places
    }
}

/// An output of a part.
#[derive(Clone, Copy)]
struct Place {
    image: usize,
    /// Its number on each axis of the part.
    o: [usize; 3],
    /// Its first element in the whole output.
    to: usize,
}

/// Some outputs of a part through some panels of its filters.
struct Task<'a> {
    part: &'a Part<'a>,
    panels: Panels,
    packed: &'a [u32],
    /// As many words as a line of taps reads.
    zeros: &'a [u32],
    rows: std::ops::Range<usize>,
    panel_numbers: std::ops::Range<usize>,
}

/// Location of a tile's rows: `runs` stretches of `steps` words, whose pointers start at `at` of a
/// list.
struct Tile<'a> {
    at: usize,
    runs: usize,
    steps: usize,
    places: &'a [Place],
}

impl Kernel for Task<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (mr, _) = tile(I::KIND);
        let mut pointers = Vec::with_capacity(ROWS * self.part.tap_count());
        let places = self.part.places(self.rows.clone());
        let mut tiles = Vec::new();
        for places in places.chunks(mr) {
            tiles.push(self.tile(places, mr, &mut pointers));
        }
        let [_, co] = self.part.channels();
        let mut sums = [0.0; MAX_ROWS * MAX_WIDTH];
        for panel in self.panel_numbers.clone() {
            let column = panel * self.panels.width;
            let width = self.panels.width_of(co - column);
            let words = self.packed[self.panels.words(column)..].as_ptr();
            for t in &tiles {
                let rows = &pointers[t.at..][..t.runs * mr];
                let x = Inputs { rows, runs: t.runs, row_step: 1, steps: t.steps, panel: words, panel_step: width, next: 0 };
                // SAFETY: each run has `t.steps` steps, the panel holds the steps of all runs, and
                // `sums` has room for the largest tile.
                unsafe { accumulate(isa, &x, width / I::LANES, sums.as_mut_ptr(), width, false) };
                self.store(isa, t, column..co.min(column + width), &sums, width);
            }
        }
    }
}

impl Task<'_> {
    /// Lists where up to `mr` outputs read; those that lack repeat the last.
    #[inline(always)]
    fn tile<'p>(&self, places: &'p [Place], mr: usize, pointers: &mut Vec<*const u32>) -> Tile<'p> {
        let (part, g, at) = (self.part, self.part.g, pointers.len());
        let ([a, b, c], [ci, _]) = (part.phases, part.channels());
        let joined = g.groups == 1 && places.iter().all(|p| c.in_line(p.o[2]));
        let across = if joined { 1 } else { c.taps.len() };
        let runs = a.taps.len() * b.taps.len() * across;
        let nothing = self.zeros.as_ptr();
        pointers.resize(at + runs * mr, nothing);
        let step = c.step_of(places);
        for row in 0..if step.is_some() { 1 } else { mr } {
            let Place { image, o, .. } = places[row.min(places.len() - 1)];
            let ([p, q, r], mut slot) = ([a.reads(o[0]), b.reads(o[1]), &c.reads(o[2])[..across]], at + row);
            for &i in p {
                for &j in q {
                    for &k in r {
                        if i != usize::MAX && j != usize::MAX && k != usize::MAX {
                            let source = ((image * g.input[0] + i) * g.input[1] + j) * g.input[2] + k;
                            let element = source * g.in_channels + part.group * ci;
                            // SAFETY: the position is inside the inputs.
                            pointers[slot] = unsafe { part.x.add(words(element, part.pairs)) };
                        }
                        slot += mr;
                    }
                }
            }
        }
        for rows in pointers[at..].chunks_exact_mut(mr).take(if step.is_some() { runs } else { 0 }) {
            let (first, step) = (rows[0], words(step.unwrap_or(0) * g.in_channels, part.pairs));
            for (row, pointer) in rows.iter_mut().enumerate().take(if first == nothing { 0 } else { mr }) {
                // SAFETY: a line's outputs that read inputs read them at even distances.
                *pointer = unsafe { first.add(row.min(places.len() - 1) * step) };
            }
        }
        let steps = words(if joined { c.taps.len() * ci } else { ci }, part.pairs);
        Tile { at, runs, steps, places }
    }

    /// Writes a tile's sums, rows of `stride`, to output channels `columns` of its group.
    #[inline(always)]
    fn store<I: Isa>(&self, isa: I, t: &Tile, columns: std::ops::Range<usize>, sums: &[f32], stride: usize) {
        let [_, co] = self.part.channels();
        for (place, sums) in t.places.iter().zip(sums.chunks_exact(stride)) {
            let at = place.to + self.part.group * co + columns.start;
            // SAFETY: the channels are inside the output, and no other task has them.
            unsafe { with_float!(self.part.out, out => write_line(isa, out.add(at), &sums[..columns.len()])) };
        }
    }
}
