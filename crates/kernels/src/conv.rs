//! Convolutions over one to three spatial axes, channels last.
//!
//! Both directions gather: a table says which input position each tap of each output position reads, if any. Patches are
//! laid out in rows and multiplied with the weights; where each channel has its own filter, they are summed directly.

use crate::{
    Error, Float, Pool, View, ViewMut,
    error::same,
    gemm::{Epilogue, matmul},
    simd::{Isa, Kernel},
};

/// Elements of patches held at a time.
const PATCHES: usize = 1 << 20;

/// One spatial axis of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Steps between outputs (of a transposed convolution: between inputs).
    pub stride: usize,
    /// Zeros on both sides (of a transposed convolution: outputs cut off).
    pub padding: usize,
    /// Steps between taps.
    pub dilation: usize,
    /// Transposed convolution only: outputs added at the end.
    pub output_padding: usize,
}

impl Default for Axis {
    fn default() -> Axis {
        Axis { stride: 1, padding: 0, dilation: 1, output_padding: 0 }
    }
}

impl Axis {
    /// Size of the output for `input` positions and `taps` taps, or `None` if it would be negative or overflow.
    pub fn output(self, input: usize, taps: usize, transposed: bool) -> Option<usize> {
        let reach = taps.checked_sub(1)?.checked_mul(self.dilation)?;
        let pads = self.padding.checked_mul(2)?;
        if transposed {
            let spread = input.checked_sub(1)?.checked_mul(self.stride)?;
            return spread.checked_add(reach)?.checked_add(self.output_padding)?.checked_add(1)?.checked_sub(pads);
        }
        let room = input.checked_add(pads)?.checked_sub(reach.checked_add(1)?)?;
        Some(room.checked_div(self.stride)? + 1)
    }

    /// The input position that tap `tap` of output `o` reads.
    fn source(self, o: usize, tap: usize, input: usize, transposed: bool) -> Option<usize> {
        let position = if transposed {
            let shifted = (o + self.padding).checked_sub(tap * self.dilation)?;
            if !shifted.is_multiple_of(self.stride) {
                return None;
            }
            shifted / self.stride
        } else {
            (o * self.stride + tap * self.dilation).checked_sub(self.padding)?
        };
        (position < input).then_some(position)
    }
}

/// A convolution: `x` is `[N, spatial…, C_in]`, `w` is `[C_out, taps…, C_in / groups]` (for both directions), `out` is
/// `[N, spatial…, C_out]`. Output channels of a group use the input channels of the same group.
#[derive(Clone, Debug)]
pub struct Conv<'a> {
    /// One entry a spatial axis: one to three.
    pub axes: &'a [Axis],
    /// Divides both channel counts.
    pub groups: usize,
    /// Whether `x` is spread by the strides instead of sampled.
    pub transposed: bool,
}

/// Sizes, padded to three spatial axes.
struct Geometry {
    batch: usize,
    input: [usize; 3],
    output: [usize; 3],
    taps: [usize; 3],
    in_channels: usize,
    out_channels: usize,
    groups: usize,
    /// Of a transposed convolution; 1 otherwise.
    strides: [usize; 3],
    /// `[axis][output position][tap]`: input position, or `usize::MAX`.
    sources: [Vec<usize>; 3],
}

impl Conv<'_> {
    fn geometry(&self, x: &[usize], w: &[usize], out: &[usize]) -> Result<Geometry, Error> {
        let n = self.axes.len();
        if !(1..=3).contains(&n) {
            return Err(Error::Parameter { what: "number of spatial axes", found: n as i64 });
        }
        for rank in [x.len(), w.len(), out.len()] {
            same("rank of a convolution's operand", n + 2, rank)?;
        }
        let mut g = Geometry {
            batch: x[0],
            input: [1; 3],
            output: [1; 3],
            taps: [1; 3],
            in_channels: x[n + 1],
            out_channels: w[0],
            groups: self.groups,
            strides: [1; 3],
            sources: [vec![0], vec![0], vec![0]],
        };
        let left_over = |c: usize| c.checked_rem(self.groups).unwrap_or(usize::MAX);
        same("input channels left over by groups", 0, left_over(g.in_channels))?;
        same("output channels left over by groups", 0, left_over(g.out_channels))?;
        same("input channels of a filter", g.in_channels / self.groups, w[n + 1])?;
        same("batch of the output", x[0], out[0])?;
        same("channels of the output", w[0], out[n + 1])?;
        for (i, axis) in self.axes.iter().enumerate() {
            if axis.stride == 0 || axis.dilation == 0 {
                return Err(Error::Parameter { what: "stride or dilation of a convolution", found: 0 });
            }
            let at = 3 - n + i;
            g.strides[at] = if self.transposed { axis.stride } else { 1 };
            (g.input[at], g.taps[at]) = (x[i + 1], w[i + 1]);
            let size = axis.output(x[i + 1], w[i + 1], self.transposed);
            g.output[at] = size.ok_or(Error::Parameter { what: "size of a convolution's output", found: -1 })?;
            same("a spatial size of the output", g.output[at], out[i + 1])?;
            let source = |o, t| axis.source(o, t, x[i + 1], self.transposed).unwrap_or(usize::MAX);
            g.sources[at] = (0..g.output[at]).flat_map(|o| (0..w[i + 1]).map(move |t| (o, t))).map(|(o, t)| source(o, t)).collect();
        }
        Ok(g)
    }
}

/// Computes a convolution of row-major operands with the given shapes.
///
/// # Errors
/// [`Error::Size`], [`Error::Parameter`] or [`Error::View`] if the sizes do not fit.
pub fn conv<T: Float>(
    pool: &Pool,
    (x, x_shape): (&[T], &[usize]),
    (w, w_shape): (&[T], &[usize]),
    conv: &Conv,
    (out, out_shape): (&mut [T], &[usize]),
) -> Result<(), Error> {
    let g = conv.geometry(x_shape, w_shape, out_shape)?;
    for (len, shape) in [(x.len(), x_shape), (w.len(), w_shape), (out.len(), out_shape)] {
        same("elements of a convolution's operand", flambeau_tensor::numel(shape).unwrap_or(usize::MAX), len)?;
    }
    if out.is_empty() {
        return Ok(());
    }
    if g.in_channels == g.groups && g.out_channels == g.groups {
        depthwise(pool, x, w, &g, out);
        return Ok(());
    }
    grouped(pool, x, w, &g, out)
}

impl Geometry {
    /// Output positions of one image, and taps of a filter.
    fn positions(&self) -> usize {
        self.output.iter().product()
    }

    fn tap_count(&self) -> usize {
        self.taps.iter().product()
    }

    /// Calls `f(tap, input position in its image)` for each tap of output `position` that reads an input.
    #[inline(always)]
    fn for_taps(&self, position: usize, mut f: impl FnMut(usize, Option<usize>)) {
        let [_, h, w] = self.output;
        let o = [position / w / h, position / w % h, position % w];
        let rows: [&[usize]; 3] = std::array::from_fn(|a| &self.sources[a][o[a] * self.taps[a]..][..self.taps[a]]);
        let mut tap = 0;
        for &i in rows[0] {
            for &j in rows[1] {
                for &k in rows[2] {
                    let inside = i != usize::MAX && j != usize::MAX && k != usize::MAX;
                    f(tap, inside.then(|| (i * self.input[1] + j) * self.input[2] + k));
                    tap += 1;
                }
            }
        }
    }

    /// Whether every output reads exactly its own position.
    fn is_pointwise(&self) -> bool {
        let own = |a: usize| self.sources[a].iter().copied().eq(0..self.input[a]);
        self.tap_count() == 1 && self.groups == 1 && (0..3).all(own)
    }
}

fn grouped<T: Float>(pool: &Pool, x: &[T], w: &[T], g: &Geometry, out: &mut [T]) -> Result<(), Error> {
    let (ci, co) = (g.in_channels / g.groups, g.out_channels / g.groups);
    let depth = g.tap_count() * ci;
    let rows = g.batch * g.positions();
    if let Some(phases) = Phases::of(g) {
        return phases.multiply(pool, x, w, g, out);
    }
    if g.is_pointwise() {
        let a = View::contiguous(x, &[rows, ci])?;
        let b = View::new(w, &[depth, co], &[1, depth as isize], 0)?;
        return matmul(pool, &a, &b, &mut ViewMut::contiguous(out, &[rows, co])?, &Epilogue::default());
    }
    let height = (PATCHES / depth.max(1)).clamp(1, rows);
    let mut patches = vec![T::from_f32(0.0); height * depth];
    for start in (0..rows).step_by(height) {
        let count = height.min(rows - start);
        for group in 0..g.groups {
            let patches = &mut patches[..count * depth];
            pool.run_chunks(patches, 64 * depth.max(1), |i, chunk| lay_out(x, g, group, start + 64 * i, ci, chunk));
            let a = View::contiguous(&*patches, &[count, depth])?;
            let b = View::new(w, &[depth, co], &[1, depth as isize], group * co * depth)?;
            let strides = [g.out_channels as isize, 1];
            let mut out = ViewMut::new(out, &[count, co], &strides, start * g.out_channels + group * co)?;
            matmul(pool, &a, &b, &mut out, &Epilogue::default())?;
        }
    }
    Ok(())
}

/// How the outputs of one axis of a transposed convolution fall into phases: outputs of a phase read through the same taps.
struct Phase {
    /// Output positions.
    outputs: Vec<usize>,
    /// Taps that any of them reads through.
    taps: Vec<usize>,
}

/// Phases of each axis, where many taps read nothing.
struct Phases([Vec<Phase>; 3]);

impl Phases {
    fn of(g: &Geometry) -> Option<Phases> {
        if g.groups != 1 || g.strides.iter().all(|&s| s == 1) {
            return None;
        }
        let phases = std::array::from_fn(|a| {
            let reads = |o: usize, t: usize| g.sources[a][o * g.taps[a] + t] != usize::MAX;
            (0..g.strides[a].min(g.output[a]))
                .map(|first| {
                    let outputs: Vec<usize> = (first..g.output[a]).step_by(g.strides[a]).collect();
                    let taps = (0..g.taps[a]).filter(|&t| outputs.iter().any(|&o| reads(o, t))).collect();
                    Phase { outputs, taps }
                })
                .collect()
        });
        Some(Phases(phases))
    }

    /// One product a combination of phases, with those rows of patches and weights that count.
    fn multiply<T: Float>(&self, pool: &Pool, x: &[T], w: &[T], g: &Geometry, out: &mut [T]) -> Result<(), Error> {
        let [a, b, c] = &self.0;
        let (mut patches, mut filters, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for (a, b, c) in a.iter().flat_map(|a| b.iter().flat_map(move |b| c.iter().map(move |c| (a, b, c)))) {
            let taps: Vec<[usize; 3]> = product3([&a.taps, &b.taps, &c.taps]).collect();
            let positions: Vec<[usize; 3]> = product3([&a.outputs, &b.outputs, &c.outputs]).collect();
            let (ci, co, depth) = (g.in_channels, g.out_channels, taps.len() * g.in_channels);
            filters.clear();
            for filter in w.chunks_exact(g.tap_count() * ci) {
                taps.iter().for_each(|t| filters.extend_from_slice(&filter[g.tap(*t) * ci..][..ci]));
            }
            let rows = g.batch * positions.len();
            patches.resize(rows * depth, T::from_f32(0.0));
            results.resize(rows * co, T::from_f32(0.0));
            pool.run_chunks(&mut patches[..rows * depth], 16 * depth.max(1), |i, chunk| {
                for (r, patch) in chunk.chunks_exact_mut(depth.max(1)).enumerate() {
                    g.phase_patch(x, (16 * i + r) / positions.len(), positions[(16 * i + r) % positions.len()], &taps, patch);
                }
            });
            let left = View::contiguous(&patches[..rows * depth], &[rows, depth])?;
            let right = View::new(&filters, &[depth, co], &[1, depth as isize], 0)?;
            let mut to = ViewMut::contiguous(&mut results[..rows * co], &[rows, co])?;
            matmul(pool, &left, &right, &mut to, &Epilogue::default())?;
            for (i, line) in results[..rows * co].chunks_exact(co).enumerate() {
                let [p, q, r] = positions[i % positions.len()];
                let at = i / positions.len() * g.positions() + (p * g.output[1] + q) * g.output[2] + r;
                out[at * co..][..co].copy_from_slice(line);
            }
        }
        Ok(())
    }
}

/// All triples, the last varying fastest.
fn product3([a, b, c]: [&[usize]; 3]) -> impl Iterator<Item = [usize; 3]> {
    a.iter().flat_map(move |&i| b.iter().flat_map(move |&j| c.iter().map(move |&k| [i, j, k])))
}

impl Geometry {
    /// Number of a tap in a filter.
    fn tap(&self, [i, j, k]: [usize; 3]) -> usize {
        (i * self.taps[1] + j) * self.taps[2] + k
    }

    /// The inputs of image `n` that output `position` reads through `taps`.
    fn phase_patch<T: Float>(&self, x: &[T], n: usize, position: [usize; 3], taps: &[[usize; 3]], to: &mut [T]) {
        let (ci, image) = (self.in_channels, self.input.iter().product::<usize>());
        for (tap, to) in taps.iter().zip(to.chunks_exact_mut(ci.max(1))) {
            let [i, j, k]: [usize; 3] = std::array::from_fn(|a| self.sources[a][position[a] * self.taps[a] + tap[a]]);
            if i == usize::MAX || j == usize::MAX || k == usize::MAX {
                to.fill(T::from_f32(0.0));
            } else {
                let source = n * image + (i * self.input[1] + j) * self.input[2] + k;
                to.copy_from_slice(&x[source * ci..][..ci]);
            }
        }
    }
}

/// Writes the patches of outputs from `first` on, `[output][tap][channel]`.
fn lay_out<T: Float>(x: &[T], g: &Geometry, group: usize, first: usize, ci: usize, to: &mut [T]) {
    let depth = g.tap_count() * ci;
    let image: usize = g.input.iter().product();
    for (i, patch) in to.chunks_exact_mut(depth.max(1)).enumerate() {
        let (n, position) = ((first + i) / g.positions(), (first + i) % g.positions());
        g.for_taps(position, |tap, source| {
            let to = &mut patch[tap * ci..(tap + 1) * ci];
            match source {
                Some(s) => to.copy_from_slice(&x[(n * image + s) * g.in_channels + group * ci..][..ci]),
                None => to.fill(T::from_f32(0.0)),
            }
        });
    }
}

/// One filter a channel: vectors run over channels.
fn depthwise<T: Float>(pool: &Pool, x: &[T], w: &[T], g: &Geometry, out: &mut [T]) {
    let (channels, taps) = (g.groups, g.tap_count());
    let mut filters = vec![0.0; taps * channels];
    for (c, filter) in w.chunks_exact(taps.max(1)).enumerate() {
        filter.iter().enumerate().for_each(|(t, &v)| filters[t * channels + c] = v.to_f32());
    }
    let rows = (8192 / channels).max(1);
    pool.run_chunks(out, rows * channels, |i, out| {
        pool.dispatch(Depthwise { x, filters: &filters, g, first: i * rows, out });
    });
}

struct Depthwise<'a, T> {
    x: &'a [T],
    /// `[tap][channel]`
    filters: &'a [f32],
    g: &'a Geometry,
    first: usize,
    out: &'a mut [T],
}

impl<T: Float> Kernel for Depthwise<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let channels = self.g.groups;
        let image: usize = self.g.input.iter().product();
        let mut sums = vec![0.0; channels];
        for (i, out) in self.out.chunks_exact_mut(channels).enumerate() {
            sums.fill(0.0);
            let (n, position) = ((self.first + i) / self.g.positions(), (self.first + i) % self.g.positions());
            self.g.for_taps(position, |tap, source| {
                let Some(source) = source else { return };
                let x = &self.x[(n * image + source) * channels..][..channels];
                let filter = &self.filters[tap * channels..][..channels];
                let whole = channels / I::LANES * I::LANES;
                for c in (0..whole).step_by(I::LANES) {
                    // SAFETY: all three slices are `channels` long.
                    unsafe {
                        let to = sums.as_mut_ptr().add(c);
                        let v = T::load(isa, x.as_ptr().add(c));
                        isa.store(to, isa.fma(v, isa.load(filter.as_ptr().add(c)), isa.load(to)));
                    }
                }
                for c in whole..channels {
                    sums[c] += x[c].to_f32() * filter[c];
                }
            });
            out.iter_mut().zip(&sums).for_each(|(o, &s)| *o = T::from_f32(s));
        }
    }
}

#[cfg(test)]
mod tests;
