//! Copies, casts and fills that other nodes need.

use std::sync::Arc;

use flambeau_ir::Tid;
use flambeau_kernels::{Pool, cast as kernels, elementwise};
use flambeau_tensor::{AlignedBytes, DType, Shape, Tensor};

use super::{bits_dtype, float_dtype};
use crate::{
    array::{Array, Storage},
    error::{OpError, Result},
    machine::{Context, Machine},
};

/// The unsigned type of an element type's size.
fn bits_of(dtype: DType) -> DType {
    match dtype.size() {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    }
}

/// The same storage under the unsigned type of its element size, for nodes that only move elements.
pub(crate) fn bits(array: Array) -> Array {
    Array { dtype: bits_of(array.dtype), ..array }
}

/// Runs `f` on an array whose elements count as bare bits meanwhile.
pub(crate) fn as_bits<R>(array: &mut Array, f: impl FnOnce(&mut Array) -> Result<R>) -> Result<R> {
    let dtype = array.dtype;
    array.dtype = bits_of(dtype);
    let result = f(array);
    array.dtype = dtype;
    result
}

/// `out[i] = x[i]`, same type, `x` broadcast to `out`.
pub(crate) fn copy_into(pool: &Pool, x: &Array, out: &mut Array) -> Result<()> {
    let x = bits(x.clone());
    as_bits(out, |out| bits_dtype!(x.dtype, T => Ok(elementwise::copy(pool, &x.view::<T>()?, &mut out.view_mut::<T>()?)?)))
}

/// A row-major copy of `x`.
pub(crate) fn duplicate(cx: &mut Context, x: &Array) -> Result<Array> {
    let mut out = cx.alloc(x.dtype, &x.shape)?;
    copy_into(&cx.pool(), x, &mut out)?;
    Ok(out)
}

/// `x` itself if it is row-major, else a copy.
pub(crate) fn contiguous(cx: &mut Context, x: Array) -> Result<Array> {
    if x.is_contiguous() { Ok(x) } else { duplicate(cx, &x) }
}

/// `x` in `dtype`: itself if it has that type, else converted. Broadcast axes of `x` stay
/// broadcast.
pub(crate) fn cast(cx: &mut Context, x: &Array, dtype: DType) -> Result<Array> {
    if x.dtype == dtype {
        return Ok(x.clone());
    }
    let repeats = |(&d, &s): (&usize, &isize)| if s == 0 && d > 0 { 1 } else { d };
    let once: Shape = x.shape.iter().zip(&x.strides).map(repeats).collect();
    let mut out = cx.alloc(dtype, &once)?;
    cast_into(&cx.pool(), &x.restrided(once, x.strides.clone(), x.offset), &mut out)?;
    out.broadcast(&x.shape).ok_or_else(|| OpError::too_large(&x.shape))
}

/// `out[i] = x[i]` in the type of `out`, `x` broadcast to `out`.
pub(crate) fn cast_into(pool: &Pool, x: &Array, out: &mut Array) -> Result<()> {
    if x.dtype == out.dtype {
        return copy_into(pool, x, out);
    }
    if x.dtype.is_float() && out.dtype.is_float() {
        return float_dtype!(x.dtype, S => float_dtype!(out.dtype, D => {
            Ok(kernels::cast_float::<S, D>(pool, &x.view()?, &mut out.view_mut()?)?)
        }));
    }
    Ok(kernels::cast(pool, &x.any()?, &mut out.any_mut()?)?)
}

/// `value`, narrowed from f32 by the rules of casts, in every element of `out`.
pub(crate) fn fill(pool: &Pool, value: f32, out: &mut Array) -> Result<()> {
    let value = Array::from_tensor(&Tensor::scalar(value));
    cast_into(pool, &value, out)
}

/// Zeros in every element of a row-major array of a buffer's declared type and shape.
pub(crate) fn zeros_of_meta(m: &mut Machine, tid: Tid) -> Result<Array> {
    let meta = m.graph.meta.get(tid.0 as usize).ok_or_else(|| OpError::value("it has no metadata"))?;
    let shape = meta.static_shape().ok_or_else(|| OpError::value("its shape is not static"))?;
    let mut out = m.cx.alloc(meta.dtype, &shape)?;
    if let Some(Storage::Owned(bytes)) = Arc::get_mut(&mut out.data) {
        // A fresh allocation comes zeroed from the system page by page; touching it now would cost
        // memory never used.
        *bytes = AlignedBytes::zeroed(bytes.len());
    }
    Ok(out)
}
