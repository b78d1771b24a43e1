//! Products with, and rows of, weights in GGUF's blocks of 256.

use flambeau_ir::{self as ir, GgufBlock};
use flambeau_tensor::DType;

use super::{input, input_as, output, size};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    ffi::{Array, Binary},
    ops::index::safe_indices,
    values::{Slot, cast},
};

/// Weights of a block.
const BLOCK: usize = 256;

/// Blocks as rows of bytes, and how to compute with them.
struct Bytes<'a> {
    cx: &'a Cx<'a>,
    rows: usize,
    array: Array,
}

fn bytes_of(block: GgufBlock) -> usize {
    match block {
        GgufBlock::Q4K => 144,
        GgufBlock::Q5K => 176,
        GgufBlock::Q6K => 210,
    }
}

impl Bytes<'_> {
    /// `count` bytes of every block from `start`, in `shape` after the axis of blocks.
    fn part(&self, start: usize, count: usize, shape: &[usize]) -> Result<Array> {
        let (start, stop) = ([0, start as i64], [self.rows as i64, (start + count) as i64]);
        let part = self.array.slice(&start, &stop, &[1, 1])?;
        let mut whole = vec![self.rows];
        whole.extend_from_slice(shape);
        Ok(part.reshape(&whole)?)
    }

    /// The half-precision number at `start`, as f32, in a shape of `rank` ones after the axis of
    /// blocks.
    fn half(&self, start: usize, rank: usize) -> Result<Array> {
        let bytes = super::super::shape::dense(&self.part(start, 2, &[2])?)?;
        let mut shape = vec![1; rank + 1];
        shape[0] = self.rows;
        Ok(bytes.view_as(DType::F16)?.cast(DType::F32)?.reshape(&shape)?)
    }

    fn number(&self, value: f64, dtype: DType) -> Result<Array> {
        self.cx.scalar(value, dtype)
    }

    fn and(&self, x: &Array, mask: u8) -> Result<Array> {
        Ok(x.binary(Binary::BitwiseAnd, &self.number(mask.into(), DType::U8)?)?)
    }

    fn shift_right(&self, x: &Array, bits: u8) -> Result<Array> {
        Ok(x.binary(Binary::RightShift, &self.number(bits.into(), DType::U8)?)?)
    }

    fn shift_left(&self, x: &Array, bits: u8) -> Result<Array> {
        Ok(x.binary(Binary::LeftShift, &self.number(bits.into(), DType::U8)?)?)
    }

    /// Scales and minima of the eight groups `[R, 8, 1]`, packed in twelve bytes.
    fn scales_and_minima(&self) -> Result<[Array; 2]> {
        let [a, b, c] = [self.part(4, 4, &[4])?, self.part(8, 4, &[4])?, self.part(12, 4, &[4])?];
        let high = |x: &Array| self.shift_left(&self.shift_right(x, 6)?, 4);
        let scales = [self.and(&a, 63)?, self.and(&c, 15)?.binary(Binary::BitwiseOr, &high(&a)?)?];
        let minima = [self.and(&b, 63)?, self.shift_right(&c, 4)?.binary(Binary::BitwiseOr, &high(&b)?)?];
        let join = |parts: &[Array]| -> Result<Array> {
            let all = Array::concatenate(self.cx.api(), parts, 1)?;
            Ok(all.cast(DType::F32)?.reshape(&[self.rows, 8, 1])?)
        };
        Ok([join(&scales)?, join(&minima)?])
    }

    /// Four- or five-bit codes with minima, `[R, 8, 32]`.
    fn with_minima(&self, codes_at: usize, fifth_at: Option<usize>) -> Result<Array> {
        let bytes = self.part(codes_at, 128, &[4, 32])?;
        let halves = [self.and(&bytes, 15)?, self.shift_right(&bytes, 4)?];
        let mut codes = Array::stack(self.cx.api(), &halves, 2)?.reshape(&[self.rows, 8, 32])?;
        if let Some(at) = fifth_at {
            let groups = Array::arange(self.cx.api(), 0.0, 8.0, 1.0, DType::U8)?.reshape(&[1, 8, 1])?;
            let bits = self.part(at, 32, &[1, 32])?.binary(Binary::RightShift, &groups)?;
            codes = codes.binary(Binary::BitwiseOr, &self.shift_left(&self.and(&bits, 1)?, 4)?)?;
        }
        let [scales, minima] = self.scales_and_minima()?;
        let scales = scales.binary(Binary::Multiply, &self.half(0, 2)?)?;
        let minima = minima.binary(Binary::Multiply, &self.half(2, 2)?)?;
        Ok(codes.cast(DType::F32)?.binary(Binary::Multiply, &scales)?.binary(Binary::Subtract, &minima)?)
    }

    /// Six-bit codes, `[R, 2, 4, 2, 16]`: halves, groups, the group's two scales.
    fn six_bits(&self) -> Result<Array> {
        let bytes = self.part(0, 128, &[2, 2, 32])?;
        let low = Array::concatenate(self.cx.api(), &[self.and(&bytes, 15)?, self.shift_right(&bytes, 4)?], 2)?;
        let shifts = Array::arange(self.cx.api(), 0.0, 8.0, 2.0, DType::U8)?.reshape(&[1, 1, 4, 1])?;
        let high = self.part(128, 64, &[2, 1, 32])?.binary(Binary::RightShift, &shifts)?;
        let codes = low.binary(Binary::BitwiseOr, &self.shift_left(&self.and(&high, 3)?, 4)?)?.cast(DType::F32)?;
        let codes = codes.binary(Binary::Subtract, &self.number(32.0, DType::F32)?)?.reshape(&[self.rows, 2, 4, 2, 16])?;
        let scales = super::super::shape::dense(&self.part(192, 16, &[2, 4, 2, 1])?)?.view_as(DType::I8)?.cast(DType::F32)?;
        let scales = scales.binary(Binary::Multiply, &self.half(208, 4)?)?;
        Ok(codes.binary(Binary::Multiply, &scales)?)
    }
}

/// Rows of bytes `[N, K / 256 · bytes]` as f32 `[N, K]`.
fn unpack(cx: &Cx<'_>, rows: &Array, (n, k): (usize, usize), block: GgufBlock) -> Result<Array> {
    let count = n * k / BLOCK;
    let bytes = Bytes { cx, rows: count, array: rows.reshape(&[count, bytes_of(block)])? };
    let weights = match block {
        GgufBlock::Q4K => bytes.with_minima(16, None)?,
        GgufBlock::Q5K => bytes.with_minima(48, Some(16))?,
        GgufBlock::Q6K => bytes.six_bits()?,
    };
    Ok(weights.reshape(&[n, k])?)
}

/// The table's number of rows.
fn check_table(weight: &Slot, k: usize, block: GgufBlock) -> Result<usize> {
    match weight.shape[..] {
        [rows, width] if weight.dtype == DType::U8 && k.is_multiple_of(BLOCK) && width == k / BLOCK * bytes_of(block) => Ok(rows),
        _ => Err(OpError::value(format!("weights {:?} of {} for rows of {k}", weight.shape, weight.dtype))),
    }
}

/// See [`ir::KnownKernel::GgufLinear`].
pub(super) fn linear(node: &ir::MetalKernel, cx: &mut Cx<'_>, block: GgufBlock) -> Result<()> {
    let (n, k) = (size(node, "N")?, size(node, "K")?);
    let (x, weight) = (input(node, cx, 0)?, input(node, cx, 1)?);
    if check_table(&weight, k, block)? != n || x.shape.last() != Some(&k) {
        return Err(OpError::value(format!("`x` {:?} and weights {:?}, expected {n} rows of {k}", x.shape, weight.shape)));
    }
    let w = unpack(cx, &weight.array, (n, k), block)?.transpose(&[1, 0])?;
    let m = x.shape.iter().product::<usize>() / k;
    let mut y = cast(&x, DType::F32)?.reshape(&[m, k])?.binary(Binary::Matmul, &w)?;
    if node.inputs.len() > 2 {
        y = y.binary(Binary::Add, &input_as(node, cx, 2, DType::F32)?)?;
    }
    output(node, cx, 0, &y)
}

/// See [`ir::KnownKernel::GgufEmbedding`].
pub(super) fn embedding(node: &ir::MetalKernel, cx: &mut Cx<'_>, block: GgufBlock) -> Result<()> {
    let k = size(node, "K")?;
    let (weight, mut indices) = (input(node, cx, 0)?, input(node, cx, 1)?);
    let rows = check_table(&weight, k, block)?;
    let count = indices.shape.iter().product::<usize>();
    let zero_outside = block == GgufBlock::Q4K;
    let wide = indices.array.cast(DType::I64)?.reshape(&[count, 1])?;
    if zero_outside {
        // An index out of range gives a row of zeros, not an error: the device clamps it here and
        // zeroes the row below.
        indices.host = None;
        let (zero, last) = (cx.scalar(0.0, DType::I64)?, cx.scalar(rows as f64 - 1.0, DType::I64)?);
        indices.array = indices.array.cast(DType::I64)?.binary(Binary::Maximum, &zero)?.binary(Binary::Minimum, &last)?;
    }
    let at = safe_indices(cx, &indices, rows)?.reshape(&[count])?;
    let mut y = unpack(cx, &weight.array.take(&at, 0)?, (count, k), block)?;
    if zero_outside {
        let low = wide.binary(Binary::GreaterEqual, &cx.scalar(0.0, DType::I64)?)?;
        let inside = low.binary(Binary::LogicalAnd, &wide.binary(Binary::Less, &cx.scalar(rows as f64, DType::I64)?)?)?;
        y = inside.choose(&y, &cx.scalar(0.0, DType::F32)?)?;
    }
    output(node, cx, 0, &y)
}
