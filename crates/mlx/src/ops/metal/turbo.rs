//! Four-bit codebook compression of keys and values.

use flambeau_ir as ir;
use flambeau_tensor::DType;

use super::{input, input_as, output, size};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    ffi::{Array, Binary, Reduce, Unary},
};

/// Entries of the codebook.
const CODES: usize = 16;

/// See [`ir::KnownKernel::RowNorm`].
pub(super) fn norm(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let (x, width) = (input(node, cx, 0)?, size(node, "D")?);
    if x.shape.last() != Some(&width) {
        return Err(OpError::value(format!("`x` has shape {:?}, expected rows of {width}", x.shape)));
    }
    let squares = input_as(node, cx, 0, DType::F32)?.unary(Unary::Square)?;
    let y = squares.reduce(Reduce::Sum, &[x.rank() as i64 - 1], true, 0)?.unary(Unary::Sqrt)?;
    output(node, cx, 0, &y)
}

/// See [`ir::KnownKernel::CodebookCompress`].
pub(super) fn compress(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let (values, boundaries) = (input(node, cx, 0)?, input(node, cx, 1)?);
    let count: usize = values.shape.iter().product();
    if boundaries.shape.iter().product::<usize>() != CODES - 1 || values.shape.last().is_none_or(|d| d % 2 == 1) {
        return Err(OpError::value(format!("values {:?} with boundaries {:?}", values.shape, boundaries.shape)));
    }
    let values = input_as(node, cx, 0, DType::F32)?.reshape(&[count, 1])?;
    let boundaries = input_as(node, cx, 1, DType::F32)?.reshape(&[1, CODES - 1])?;
    let above = values.binary(Binary::Greater, &boundaries)?.cast(DType::I32)?;
    let codes = above.reduce(Reduce::Sum, &[1], false, 0)?.cast(DType::U8)?.reshape(&[count / 2, 2])?;
    let half = |i: i64| codes.slice(&[0, i], &[(count / 2) as i64, i + 1], &[1, 1]);
    let even = half(0)?.binary(Binary::LeftShift, &cx.scalar(4.0, DType::U8)?)?;
    let y = even.binary(Binary::BitwiseOr, &half(1)?)?;
    output(node, cx, 0, &y)
}

/// See [`ir::KnownKernel::CodebookExpand`].
pub(super) fn expand(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let (packed, norms, centroids) = (input(node, cx, 0)?, input(node, cx, 1)?, input(node, cx, 2)?);
    let width = size(node, "D")?;
    let (bytes, rows) = (packed.shape.iter().product::<usize>(), norms.shape.iter().product::<usize>());
    let has_codes = centroids.shape.iter().product::<usize>() == CODES && packed.dtype == DType::U8;
    if !has_codes || width < 2 || packed.shape.last() != Some(&(width / 2)) || rows * (width / 2) != bytes {
        return Err(OpError::value(format!("codes {:?} with norms {:?}", packed.shape, norms.shape)));
    }
    let high = packed.array.binary(Binary::RightShift, &cx.scalar(4.0, DType::U8)?)?;
    let low = packed.array.binary(Binary::BitwiseAnd, &cx.scalar(15.0, DType::U8)?)?;
    let rank = packed.rank() as i32;
    let codes = Array::stack(cx.api(), &[high, low], rank)?.reshape(&[rows, width])?;
    // Four bits cannot leave a codebook of sixteen.
    let entries = input_as(node, cx, 2, DType::F32)?.reshape(&[CODES])?.take(&codes.cast(DType::I32)?, 0)?;
    let y = entries.binary(Binary::Multiply, &input_as(node, cx, 1, DType::F32)?.reshape(&[rows, 1])?)?;
    output(node, cx, 0, &y)
}
