//! Dequantization of whole rows.

use std::marker::PhantomData;

use super::{
    QMatrix,
    code::{Code, read_row, with_code},
};
use crate::{
    Error, Float, Pool,
    convert::FloatPtr,
    error::same,
    simd::{Cpu, Isa, Kernel},
};

/// Values unpacked at a time.
const SEGMENT: usize = 256;

/// Writes every row of `w` as floats: `out` is `[rows, cols]`.
///
/// # Errors
/// [`Error::Size`] if `out` has another length.
pub fn dequantize<Y: Float>(pool: &Pool, w: &QMatrix, out: &mut [Y]) -> Result<(), Error> {
    same("dequantized values", w.rows * w.cols, out.len())?;
    write_rows(pool, w, out, |i| i);
    Ok(())
}

/// Dequantizes the rows of `w` listed in `rows`, in that order. `out` is `[rows.len(), cols]`.
///
/// # Errors
/// [`Error::Size`] if `out` has another length, [`Error::Parameter`] for a row outside `w`.
pub fn dequantize_rows<Y: Float>(pool: &Pool, w: &QMatrix, rows: &[u32], out: &mut [Y]) -> Result<(), Error> {
    same("dequantized values", rows.len() * w.cols, out.len())?;
    if let Some(&row) = rows.iter().find(|&&r| r as usize >= w.rows) {
        return Err(Error::Parameter { what: "row of a quantized matrix", found: i64::from(row) });
    }
    write_rows(pool, w, out, |i| rows[i] as usize);
    Ok(())
}

fn write_rows<Y: Float>(pool: &Pool, w: &QMatrix, out: &mut [Y], row: impl Fn(usize) -> usize + Sync) {
    if w.cols == 0 {
        return;
    }
    let cpu = pool.cpu();
    let rows_a_task = (16384 / w.cols).max(1);
    pool.run_chunks(out, rows_a_task * w.cols, |task, chunk| {
        for (i, line) in chunk.chunks_mut(w.cols).enumerate() {
            // SAFETY: the line is as long as a row, and this task's own.
            unsafe { write_row(cpu, w, row(task * rows_a_task + i), FloatPtr::of(line.as_mut_ptr())) };
        }
    });
}

/// # Safety
/// `out` has as many elements as a row, and no other thread touches them.
unsafe fn write_row(cpu: Cpu, w: &QMatrix, row: usize, out: FloatPtr) {
    let mut values = [0.0; SEGMENT];
    for start in (0..w.cols).step_by(SEGMENT) {
        let values = &mut values[..SEGMENT.min(w.cols - start)];
        read(cpu, w, row, start, values);
        // SAFETY: these columns are inside the row; the caller made its elements writable, and no
        // other thread accesses them.
        unsafe { out.offset(start as isize).write(cpu, 1, values) };
    }
}

/// `to` = columns `start..` of a row, dequantized. `start` is a multiple of 16 or of the vector's
/// lanes.
pub(crate) fn read(cpu: Cpu, w: &QMatrix, row: usize, start: usize, to: &mut [f32]) {
    with_code!(w.format, C => cpu.dispatch(ReadRow::<C> { w, row, start, to, code: PhantomData }));
}

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
