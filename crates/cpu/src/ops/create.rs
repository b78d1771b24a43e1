//! Nodes that make tensors out of numbers.

use flambeau_ir::{self as ir, infer::run::OutSpec};
use flambeau_tensor::{DType, Tensor, with_dtype};

use super::{
    any_dtype, bits_dtype,
    copy::{bits, duplicate, fill},
};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

impl Eval for ir::ARange {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (start, step) = (cx.int(self.start)?, cx.int(self.step)?);
        let mut y = cx.alloc_out(self.out)?;
        let at = |i: usize| start.wrapping_add((i as i64).wrapping_mul(step));
        with_dtype!(y.dtype, T in [U8, I8, I16, I32, I64, U32] => {
            y.slice_mut::<T>()?.iter_mut().enumerate().for_each(|(i, v)| *v = at(i) as T);
            Ok(())
        }, else => with_dtype!(y.dtype, T in [F16, BF16] => {
            y.slice_mut::<T>()?.iter_mut().enumerate().for_each(|(i, v)| *v = T::from_f32(at(i) as f32));
            Ok(())
        }, else => if y.dtype == DType::F32 {
            y.slice_mut::<f32>()?.iter_mut().enumerate().for_each(|(i, v)| *v = at(i) as f32);
            Ok(())
        } else {
            Err(OpError::DType(y.dtype))
        }))?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// One element seen in the whole shape: views of it cost nothing, and a write makes a copy.
fn full(cx: &mut Cx<'_>, value: ir::Float, spec: &OutSpec) -> Result<Array> {
    let value = match value {
        ir::Float::Lit(v) => v as f32,
        ir::Float::Vid(vid) => cx.value(vid)? as f32,
    };
    let mut one = cx.alloc(spec.dtype, &[])?;
    fill(&cx.pool(), value, &mut one)?;
    one.broadcast(&spec.shape).ok_or_else(|| OpError::too_large(&spec.shape))
}

impl Eval for ir::Full {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let y = full(cx, self.v, &spec)?;
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::FullLike {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let y = full(cx, self.v, &spec)?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// The half-open range of columns with `j <= i + k` (`lower`), or with `j >= i + k`.
fn columns(i: usize, k: i32, width: usize, lower: bool) -> std::ops::Range<usize> {
    let edge = i as i64 + i64::from(k);
    if lower { 0..(edge + 1).clamp(0, width as i64) as usize } else { edge.clamp(0, width as i64) as usize..width }
}

impl Eval for ir::Tri {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let mut y = cx.alloc_out(self.out)?;
        fill(&cx.pool(), 0.0, &mut y)?;
        let one = Array::from_tensor(&Tensor::scalar(1.0f32));
        let mut unit = cx.alloc(y.dtype, &[])?;
        super::copy::cast_into(&cx.pool(), &one, &mut unit)?;
        let width = y.shape.last().copied().unwrap_or(0);
        any_dtype!(y.dtype, T => {
            let unit = unit.slice::<T>()?[0];
            for (i, row) in y.slice_mut::<T>()?.chunks_mut(width.max(1)).enumerate() {
                row[columns(i, self.k, width, true)].fill(unit);
            }
            Ok(())
        })?;
        cx.put(self.out, y);
        Ok(())
    }
}

fn triangle(cx: &mut Cx<'_>, x: ir::In, out: ir::Out, k: i32, lower: bool) -> Result<()> {
    let x = cx.get(x)?;
    let [.., height, width] = x.shape[..] else { return Err(OpError::value("the operand is not a matrix")) };
    let mut y = bits(duplicate(cx, &x)?);
    bits_dtype!(y.dtype, T => {
        for (i, row) in y.slice_mut::<T>()?.chunks_mut(width.max(1)).enumerate() {
            let kept = columns(i % height.max(1), k, width, lower);
            row[..kept.start].fill(0);
            row[kept.end..].fill(0);
        }
        Ok(())
    })?;
    y.dtype = x.dtype;
    cx.put(out, y);
    Ok(())
}

impl Eval for ir::Tril {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        triangle(cx, self.x, self.out, self.k, true)
    }
}

impl Eval for ir::Triu {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        triangle(cx, self.x, self.out, self.k, false)
    }
}
