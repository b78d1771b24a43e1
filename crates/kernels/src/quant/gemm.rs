//! Products of many rows: codes are unpacked a panel at a time.

use std::{marker::PhantomData, ops::Range};

use super::{
    Format, QMatrix,
    code::{Code, read_row, with_code},
};
use crate::{
    Pool,
    convert::FloatPtr,
    gemm::{Dense, Sink, Source, multiply, pack_columns},
    simd::{Cpu, Isa, Kernel},
};

/// A row-major output.
pub(super) struct Rows {
    pub(super) origin: FloatPtr,
    pub(super) stride: usize,
}

impl Sink for Rows {
    unsafe fn store(&self, cpu: Cpu, i: usize, j: usize, row: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.origin.offset((i * self.stride + j) as isize).write(cpu, 1, row) };
    }
}

/// `x[m, cols] · wᵀ` into `out`; `x` has these elements, row-major.
pub(super) fn linear(pool: &Pool, x: FloatPtr, w: &QMatrix, m: usize, out: &dyn Sink) {
    // SAFETY: the caller's promise.
    let x = unsafe { Dense::new(x, [w.cols as isize, 1]) };
    with_code!(w.format, C => multiply(pool, [m, w.rows, w.cols], &x, &Transposed::<C>(w, PhantomData), out));
}

/// `out[m, cols] = x[m, rows] · w`; both pointers have these elements, row-major.
pub(super) fn matmul(pool: &Pool, x: FloatPtr, w: &QMatrix, m: usize, out: FloatPtr) {
    let sink = Rows { origin: out, stride: w.cols };
    // SAFETY: the caller's promise.
    let x = unsafe { Dense::new(x, [w.rows as isize, 1]) };
    with_code!(w.format, C => multiply(pool, [m, w.cols, w.rows], &x, &Plain::<C>(w, PhantomData), &sink));
}

/// Reads columns `start..` of one row of codes.
struct ReadRow<'a, C> {
    w: &'a QMatrix<'a>,
    row: usize,
    start: usize,
    to: &'a mut [f32],
    code: PhantomData<C>,
}

impl<C: Code> Kernel for ReadRow<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        read_row::<C, I>(isa, self.w, self.row, self.start, self.to);
    }
}

/// `to` = columns `start..` of a row, dequantized. `start` and the length are multiples of 16 or of the vector's lanes.
pub(super) fn read<C: Code>(cpu: Cpu, w: &QMatrix, row: usize, start: usize, to: &mut [f32]) {
    cpu.dispatch(ReadRow::<C> { w, row, start, to, code: PhantomData });
}

/// `wᵀ` of a `[n, k]` matrix.
struct Transposed<'a, C>(&'a QMatrix<'a>, PhantomData<C>);

impl<C: Code> Source for Transposed<'_, C> {
    fn pack(&self, cpu: Cpu, k: Range<usize>, n: Range<usize>, width: usize, panel: &mut [f32]) {
        pack_columns(cpu, k, n, width, panel, |row, k, to| read::<C>(cpu, self.0, row, k.start, to));
    }
}

/// A `[k, n]` matrix whose groups run along n.
struct Plain<'a, C>(&'a QMatrix<'a>, PhantomData<C>);

impl<C: Code> Source for Plain<'_, C> {
    fn pack(&self, cpu: Cpu, k: Range<usize>, n: Range<usize>, width: usize, panel: &mut [f32]) {
        for (line, row) in panel.chunks_exact_mut(width).zip(k) {
            read::<C>(cpu, self.0, row, n.start, &mut line[..n.len()]);
            line[n.len()..].fill(0.0);
        }
    }
}
