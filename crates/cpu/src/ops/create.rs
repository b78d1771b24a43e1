//! Nodes that make tensors out of numbers.

use flambeau_ir as ir;
use flambeau_tensor::{DType, Tensor, with_dtype};

use super::{
    any_dtype, bits_dtype,
    copy::{as_bits, cast_into, copy_into, fill},
};
use crate::{
    array::Array,
    error::{OpError, Result},
    machine::Context,
    obstacle::Prepared,
    plan::Planner,
    prepare::Prepare,
};

/// `y[i] = start + i · step`, narrowed to the type of `y`.
fn count(start: i64, step: i64, y: &mut Array) -> Result<()> {
    let at = |i: usize| start.wrapping_add((i as i64).wrapping_mul(step));
    with_dtype!(y.dtype, T in [U8, I8, I16, U16, I32, I64, U32] => {
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
    }))
}

impl Prepare for ir::ARange {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (spec, start, step) = (p.spec(self.out)?, self.start, self.step);
        let y = p.call(&[], (spec.dtype, &spec.shape), move |cx, _, y| count(cx.int(start)?, cx.int(step)?, y))?;
        p.put(self.out, y);
        Ok(())
    }
}

/// One element seen in the whole shape: views of it cost nothing, and a write makes a copy.
fn full(p: &mut Planner<'_>, value: ir::Float, out: ir::Out) -> Prepared {
    let spec = p.spec(out)?;
    let one = p.call(&[], (spec.dtype, &[]), move |cx, _, y| {
        let value = match value {
            ir::Float::Lit(v) => v as f32,
            ir::Float::Vid(vid) => cx.value(vid)? as f32,
        };
        fill(&cx.pool, value, y)
    })?;
    let whole = one.array.broadcast(&spec.shape).ok_or_else(|| OpError::too_large(&spec.shape))?;
    p.put(out, one.seen(whole));
    Ok(())
}

impl Prepare for ir::Full {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        full(p, self.v, self.out)
    }
}

impl Prepare for ir::FullLike {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        full(p, self.v, self.out)
    }
}

/// The half-open range of columns with `j <= i + k` (`lower`), or with `j >= i + k`.
fn columns(i: usize, k: i32, width: usize, lower: bool) -> std::ops::Range<usize> {
    let edge = i as i64 + i64::from(k);
    if lower { 0..(edge + 1).clamp(0, width as i64) as usize } else { edge.clamp(0, width as i64) as usize..width }
}

fn lower_ones(cx: &mut Context, k: i32, y: &mut Array) -> Result<()> {
    fill(&cx.pool, 0.0, y)?;
    let one = Array::from_tensor(&Tensor::scalar(1.0f32));
    let mut unit = cx.alloc(y.dtype, &[])?;
    cast_into(&cx.pool, &one, &mut unit)?;
    let width = y.shape.last().copied().unwrap_or(0);
    any_dtype!(y.dtype, T => {
        let unit = unit.slice::<T>()?[0];
        for (i, row) in y.slice_mut::<T>()?.chunks_mut(width.max(1)).enumerate() {
            row[columns(i, k, width, true)].fill(unit);
        }
        Ok(())
    })
}

impl Prepare for ir::Tri {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (spec, k) = (p.spec(self.out)?, self.k);
        let y = p.call(&[], (spec.dtype, &spec.shape), move |cx, _, y| lower_ones(cx, k, y))?;
        p.put(self.out, y);
        Ok(())
    }
}

/// Clears the elements beyond the diagonal in every matrix `[.., height, width]`.
fn clear_triangle(y: &mut Array, [height, width]: [usize; 2], k: i32, lower: bool) -> Result<()> {
    as_bits(y, |y| {
        bits_dtype!(y.dtype, T => {
            for (i, row) in y.slice_mut::<T>()?.chunks_mut(width.max(1)).enumerate() {
                let kept = columns(i % height.max(1), k, width, lower);
                row[..kept.start].fill(0);
                row[kept.end..].fill(0);
            }
            Ok(())
        })
    })
}

fn triangle(p: &mut Planner<'_>, (x, out): (ir::In, ir::Out), k: i32, lower: bool) -> Prepared {
    let (x, spec) = (p.operand(x)?, p.spec(out)?);
    let [.., height, width] = spec.shape[..] else { return Err(OpError::value("the operand is not a matrix").into()) };
    let y = p.call(&[&x], (spec.dtype, &spec.shape), move |cx, ins, y| {
        copy_into(&cx.pool, &ins[0], y)?;
        clear_triangle(y, [height, width], k, lower)
    })?;
    p.put(out, y);
    Ok(())
}

impl Prepare for ir::Tril {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        triangle(p, (self.x, self.out), self.k, true)
    }
}

impl Prepare for ir::Triu {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        triangle(p, (self.x, self.out), self.k, false)
    }
}
