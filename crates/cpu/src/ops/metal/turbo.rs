//! Four-bit codebook compression of keys and values.

use flambeau_ir as ir;
use flambeau_tensor::DType;

use super::{dot, input, inputs, output, template};
use crate::{error::OpError, obstacle::Prepared, plan::Planner};

/// Entries of the codebook.
const CODES: usize = 16;

/// Elements that one task makes.
const GRAIN: usize = 1 << 12;

/// Euclidean length of each row of `D`: x `[.., D]`, result `[.., 1]`.
pub(super) fn norm(node: &ir::MetalKernel, p: &mut Planner<'_>) -> Prepared {
    let width = template(node, "D")?;
    let x = input(node, p, 0)?;
    if x.array.shape.last() != Some(&width) {
        return Err(OpError::value(format!("`x` has shape {:?}, expected rows of {width}", x.array.shape)).into());
    }
    let x = p.rows_in_type(x, DType::F32)?;
    let rows = x.array.numel().checked_div(width).ok_or_else(|| OpError::value("the rows have no elements"))?;
    let y = p.call(&[&x], (DType::F32, &[rows]), move |cx, ins, y| {
        let x = ins[0].slice::<f32>()?;
        let rows = (GRAIN / width).max(1);
        cx.pool.run_chunks(y.slice_mut::<f32>()?, rows, |task, chunk| {
            for (i, slot) in chunk.iter_mut().enumerate() {
                let at = task * rows + i;
                let row = &x[at * width..(at + 1) * width];
                *slot = dot(row, row).sqrt();
            }
        });
        Ok(())
    })?;
    output(node, p, 0, y)
}

/// Two codes a byte, the even element's in the high half: a value's code is the number of
/// boundaries below it.
pub(super) fn compress(node: &ir::MetalKernel, p: &mut Planner<'_>) -> Prepared {
    let [values, boundaries] = inputs(node, p)?;
    let count = boundaries.array.numel();
    if count != CODES - 1 || values.array.shape.last().is_none_or(|d| d % 2 == 1) {
        return Err(OpError::value(format!("values {:?} with {count} boundaries", values.array.shape)).into());
    }
    let (values, boundaries) = (p.rows_in_type(values, DType::F32)?, p.rows_in_type(boundaries, DType::F32)?);
    let y = p.call(&[&values, &boundaries], (DType::U8, &[values.array.numel() / 2]), |cx, ins, y| {
        let ((pairs, _), boundaries) = (ins[0].slice::<f32>()?.as_chunks::<2>(), ins[1].slice::<f32>()?);
        let code = |v: f32| boundaries.iter().filter(|&&b| v > b).count() as u8;
        cx.pool.run_chunks(y.slice_mut::<u8>()?, GRAIN, |task, chunk| {
            for (i, byte) in chunk.iter_mut().enumerate() {
                let [even, odd] = pairs[task * GRAIN + i];
                *byte = code(even) << 4 | code(odd);
            }
        });
        Ok(())
    })?;
    output(node, p, 0, y)
}

/// Codebook entries times the row's norm: packed `[.., D/2]`, norms `[.., 1]`, result `[.., D]`.
pub(super) fn dequantize(node: &ir::MetalKernel, p: &mut Planner<'_>) -> Prepared {
    let width = template(node, "D")? / 2;
    let [packed, norms, centroids] = inputs(node, p)?;
    if packed.array.dtype != DType::U8 {
        return Err(OpError::DType(packed.array.dtype).into());
    }
    let (codes, rows, entries) = (packed.array.numel(), norms.array.numel(), centroids.array.numel());
    if width == 0 || packed.array.shape.last() != Some(&width) || entries != CODES || rows * width != codes {
        return Err(OpError::value(format!("codes {:?} with {rows} norms", packed.array.shape)).into());
    }
    let packed = p.contiguous(packed)?;
    let (norms, centroids) = (p.rows_in_type(norms, DType::F32)?, p.rows_in_type(centroids, DType::F32)?);
    let y = p.call(&[&packed, &norms, &centroids], (DType::F32, &[codes * 2]), move |cx, ins, y| {
        let (packed, norms, centroids) = (ins[0].slice::<u8>()?, ins[1].slice::<f32>()?, ins[2].slice::<f32>()?);
        cx.pool.run_chunks(y.slice_mut::<f32>()?, 2 * GRAIN, |task, chunk| {
            for (i, pair) in chunk.chunks_mut(2).enumerate() {
                let at = task * GRAIN + i;
                let (byte, norm) = (packed[at], norms[at / width]);
                pair.copy_from_slice(&[centroids[usize::from(byte >> 4)] * norm, centroids[usize::from(byte & 15)] * norm]);
            }
        });
        Ok(())
    })?;
    output(node, p, 0, y)
}
