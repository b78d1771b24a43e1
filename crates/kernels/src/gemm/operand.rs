//! Strided operands of a dense product.

use std::ops::Range;

use super::{
    FloatView,
    block::{KC, Sink, Source, multiply},
    gemv,
};
use crate::{
    Float, Pool,
    convert::{FloatPtr, with_float},
    simd::{Cpu, Isa, Kernel, load_partial},
};

/// A matrix by origin and strides of its two axes. Whoever makes one vouches that all its elements are readable for its life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    pub(super) origin: FloatPtr,
    pub(super) step: [isize; 2],
}

impl Dense {
    /// # Safety
    /// Every element that the product's sizes reach is readable.
    pub(crate) unsafe fn new(origin: FloatPtr, step: [isize; 2]) -> Dense {
        Dense { origin, step }
    }

    /// Row `i`, from column `j` on.
    ///
    /// # Safety
    /// The element is inside the matrix.
    pub(super) unsafe fn at(&self, i: usize, j: usize) -> FloatPtr {
        // SAFETY: the caller's promise.
        unsafe { self.origin.offset(i as isize * self.step[0] + j as isize * self.step[1]) }
    }

    /// Rows for columns.
    pub(crate) fn transposed(self) -> Dense {
        Dense { origin: self.origin, step: [self.step[1], self.step[0]] }
    }
}

impl Source for Dense {
    fn pack(&self, cpu: Cpu, k: Range<usize>, n: Range<usize>, width: usize, panel: &mut [f32]) {
        if self.step[1] == 1 {
            with_float!(self.origin, p => cpu.dispatch(Pack { origin: p.cast_const(), step: self.step, k, n, width, panel }));
            return;
        }
        pack_columns(cpu, k, n, width, panel, |column, k, to| {
            // SAFETY: the columns are inside the matrix.
            unsafe { self.at(k.start, column).read(cpu, self.step[0], to) };
        });
    }
}

/// Columns that are turned together; divides the width of every panel.
const TURN: usize = 8;

/// Packs a panel of a matrix that is read by columns: `read` writes elements `k` of a column.
pub(crate) fn pack_columns(
    cpu: Cpu,
    k: Range<usize>,
    n: Range<usize>,
    width: usize,
    panel: &mut [f32],
    read: impl Fn(usize, Range<usize>, &mut [f32]),
) {
    let mut columns = [[0.0; KC]; TURN];
    for (part, panel) in panel.chunks_mut(KC * width).enumerate() {
        let k = k.start + part * KC..k.end.min(k.start + (part + 1) * KC);
        for first in (0..width).step_by(TURN) {
            for (c, column) in columns.iter_mut().enumerate() {
                let (column, at) = (&mut column[..k.len()], n.start + first + c);
                if at < n.end { read(at, k.clone(), column) } else { column.fill(0.0) }
            }
            cpu.dispatch(Turn { columns: &columns, panel, width, first });
        }
    }
}

/// `panel[k][first + c] = columns[c][k]`
struct Turn<'a> {
    columns: &'a [[f32; KC]; TURN],
    panel: &'a mut [f32],
    width: usize,
    first: usize,
}

impl Kernel for Turn<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        for (k, line) in self.panel.chunks_exact_mut(self.width).enumerate().take(KC) {
            let values: [f32; TURN] = std::array::from_fn(|c| self.columns[c][k]);
            line[self.first..self.first + TURN].copy_from_slice(&values);
        }
    }
}

/// Packs a matrix whose rows are contiguous.
struct Pack<'a, T> {
    origin: *const T,
    step: [isize; 2],
    k: Range<usize>,
    n: Range<usize>,
    width: usize,
    panel: &'a mut [f32],
}

impl<T: Float> Kernel for Pack<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Pack { origin, step: [down, _], k, n, width, panel } = self;
        let count = n.len();
        for (line, k) in panel.chunks_exact_mut(width).zip(k) {
            // SAFETY: row `k` is inside the matrix.
            let from = unsafe { origin.offset(k as isize * down + n.start as isize) };
            for j in (0..width).step_by(I::LANES) {
                let left = count.saturating_sub(j);
                // SAFETY: columns `n` are inside the matrix; `width` is a multiple of LANES.
                unsafe {
                    let v = match left {
                        0 => isa.splat(0.0),
                        _ if left >= I::LANES => T::load(isa, from.add(j)),
                        _ => load_partial(isa, from.add(j), left),
                    };
                    isa.store(line.as_mut_ptr().add(j), v);
                }
            }
        }
    }
}

/// Where a dense product goes.
#[derive(Clone)]
pub(super) struct Output<'a> {
    pub(super) origin: FloatPtr,
    pub(super) step: [isize; 2],
    pub(super) alpha: f32,
    pub(super) beta: f32,
    /// View, offset of this matrix in it, strides.
    pub(super) bias: Option<(&'a FloatView<'a>, isize, [isize; 2])>,
}

impl Sink for Output<'_> {
    unsafe fn store(&self, cpu: Cpu, i: usize, j: usize, row: &[f32]) {
        // SAFETY: the caller's promise.
        let to = unsafe { self.origin.offset(i as isize * self.step[0] + j as isize * self.step[1]) };
        if self.bias.is_none() && self.alpha == 1.0 {
            // SAFETY: the caller's promise.
            return unsafe { to.write(cpu, self.step[1], row) };
        }
        let mut done = [0.0; 64];
        for (c, part) in row.chunks(done.len()).enumerate() {
            let done = &mut done[..part.len()];
            done.iter_mut().zip(part).for_each(|(d, &x)| *d = self.alpha * x);
            if let Some((view, base, step)) = &self.bias {
                let at = base + i as isize * step[0] + (j + 64 * c) as isize * step[1];
                for (d, x) in done.iter_mut().enumerate() {
                    // SAFETY: the element is inside the output, to which the bias is broadcast.
                    *x += self.beta * unsafe { view.at(at + d as isize * step[1]) };
                }
            }
            // SAFETY: the caller's promise.
            unsafe { to.offset(64 * c as isize * self.step[1]).write(cpu, self.step[1], done) };
        }
    }
}

/// One product `out[m, n] = a[m, k] · b[k, n]`.
pub(super) struct Product<'a> {
    /// m, n, k
    pub(super) size: [usize; 3],
    pub(super) a: Dense,
    pub(super) b: Dense,
    pub(super) out: Output<'a>,
}

/// `a[m, k] · b[k, n]` into `out`, for `b` whose rows need not be contiguous.
pub(crate) fn dense_linear(pool: &Pool, size: [usize; 3], a: &Dense, b: &Dense, out: &dyn Sink) {
    if size[0] < GEMM_ROWS && b.step[0] == 1 {
        gemv::by_rows(pool, size, a, b, out);
    } else {
        multiply(pool, size, a, b, out);
    }
}

/// Rows of `a` from which panels pay off.
const GEMM_ROWS: usize = 8;

impl Product<'_> {
    pub(super) fn run(self, pool: &Pool) {
        let [m, n, k] = self.size;
        if m < GEMM_ROWS && self.b.step[0] == 1 {
            gemv::by_rows(pool, self.size, &self.a, &self.b, &self.out);
        } else if m < GEMM_ROWS && self.b.step[1] == 1 {
            gemv::by_columns(pool, self.size, &self.a, &self.b, &self.out);
        } else if n < GEMM_ROWS && m >= GEMM_ROWS && self.a.step[1] == 1 {
            // The transposed product is a matrix-vector one.
            let turn = |s: [isize; 2]| [s[1], s[0]];
            let bias = self.out.bias.map(|(v, at, s)| (v, at, turn(s)));
            let out = Output { step: turn(self.out.step), bias, ..self.out };
            gemv::by_rows(pool, [n, m, k], &self.b.transposed(), &self.a.transposed(), &out);
        } else {
            multiply(pool, self.size, &self.a, &self.b, &self.out);
        }
    }
}
