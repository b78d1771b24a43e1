//! Four-bit codebook compression of keys and values.

use flambeau_ir as ir;
use flambeau_tensor::DType;

use super::{dot, input, input_as, output, template};
use crate::{
    cx::Cx,
    error::{OpError, Result},
};

/// Entries of the codebook.
const CODES: usize = 16;

/// Elements that one task makes.
const GRAIN: usize = 1 << 12;

/// Euclidean length of each row of `D`: x `[.., D]`, result `[.., 1]`.
pub(super) fn norm(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let width = template(node, "D")?;
    let x = input_as(node, cx, 0, DType::F32)?;
    if x.shape.last() != Some(&width) {
        return Err(OpError::value(format!("`x` has shape {:?}, expected rows of {width}", x.shape)));
    }
    let mut y = cx.alloc(DType::F32, &[x.numel() / width])?;
    let x = x.slice::<f32>()?;
    cx.pool().run_chunks(y.slice_mut::<f32>()?, (GRAIN / width).max(1), |task, chunk| {
        let first = task * (GRAIN / width).max(1);
        for (i, slot) in chunk.iter_mut().enumerate() {
            let row = &x[(first + i) * width..(first + i + 1) * width];
            *slot = dot(row, row).sqrt();
        }
    });
    output(node, cx, 0, &y)
}

/// Two codes a byte, the even element's in the high half: a value's code is the number of boundaries below it.
pub(super) fn compress(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let (values, boundaries) = (input_as(node, cx, 0, DType::F32)?, input_as(node, cx, 1, DType::F32)?);
    let boundaries = boundaries.slice::<f32>()?;
    if boundaries.len() != CODES - 1 || values.shape.last().is_none_or(|d| d % 2 == 1) {
        return Err(OpError::value(format!("values {:?} with {} boundaries", values.shape, boundaries.len())));
    }
    let mut y = cx.alloc(DType::U8, &[values.numel() / 2])?;
    let (pairs, _) = values.slice::<f32>()?.as_chunks::<2>();
    let code = |v: f32| boundaries.iter().filter(|&&b| v > b).count() as u8;
    cx.pool().run_chunks(y.slice_mut::<u8>()?, GRAIN, |task, chunk| {
        for (i, byte) in chunk.iter_mut().enumerate() {
            let [even, odd] = pairs[task * GRAIN + i];
            *byte = code(even) << 4 | code(odd);
        }
    });
    output(node, cx, 0, &y)
}

/// Codebook entries times the row's norm: packed `[.., D/2]`, norms `[.., 1]`, result `[.., D]`.
pub(super) fn dequantize(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let width = template(node, "D")? / 2;
    let packed = input(node, cx, 0)?;
    if packed.dtype != DType::U8 {
        return Err(OpError::DType(packed.dtype));
    }
    let packed = input_as(node, cx, 0, DType::U8)?;
    let (norms, centroids) = (input_as(node, cx, 1, DType::F32)?, input_as(node, cx, 2, DType::F32)?);
    let (norms, centroids) = (norms.slice::<f32>()?, centroids.slice::<f32>()?);
    if width == 0 || packed.shape.last() != Some(&width) || centroids.len() != CODES || norms.len() * width != packed.numel() {
        return Err(OpError::value(format!("codes {:?} with {} norms", packed.shape, norms.len())));
    }
    let mut y = cx.alloc(DType::F32, &[packed.numel() * 2])?;
    let packed = packed.slice::<u8>()?;
    cx.pool().run_chunks(y.slice_mut::<f32>()?, 2 * GRAIN, |task, chunk| {
        for (i, pair) in chunk.chunks_mut(2).enumerate() {
            let at = task * GRAIN + i;
            let (byte, norm) = (packed[at], norms[at / width]);
            pair.copy_from_slice(&[centroids[usize::from(byte >> 4)] * norm, centroids[usize::from(byte & 15)] * norm]);
        }
    });
    output(node, cx, 0, &y)
}
