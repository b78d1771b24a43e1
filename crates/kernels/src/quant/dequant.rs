//! Dequantization of whole rows.

use super::{Format, QMatrix, code::with_code, gemm::read};
use crate::{Error, Float, Pool, convert::FloatPtr, error::same, simd::Cpu};

/// Values unpacked at a time.
const SEGMENT: usize = 256;

/// Writes every row of `w` as floats: `out` is `[rows, cols]`.
///
/// # Errors
/// [`Error::Size`] if `out` is not as above.
pub fn dequantize<Y: Float>(pool: &Pool, w: &QMatrix, out: &mut [Y]) -> Result<(), Error> {
    same("dequantized values", w.rows * w.cols, out.len())?;
    write_rows(pool, w, out, |i| i);
    Ok(())
}

/// Writes the rows of `w` that `rows` names, in that order: `out` is `[rows.len(), cols]`.
///
/// # Errors
/// [`Error::Size`] if `out` is not as above, [`Error::Parameter`] for a row outside `w`.
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
            write_row(cpu, w, row(task * rows_a_task + i), FloatPtr::of(line.as_mut_ptr()));
        }
    });
}

/// `out` has as many elements as a row.
fn write_row(cpu: Cpu, w: &QMatrix, row: usize, out: FloatPtr) {
    let mut values = [0.0; SEGMENT];
    for start in (0..w.cols).step_by(SEGMENT) {
        let values = &mut values[..SEGMENT.min(w.cols - start)];
        with_code!(w.format, C => read::<C>(cpu, w, row, start, values));
        // SAFETY: the caller's promise.
        unsafe { out.offset(start as isize).write(cpu, 1, values) };
    }
}
