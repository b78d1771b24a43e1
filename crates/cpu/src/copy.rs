//! Copies, casts and fills of arrays, and regions of them.

use flambeau_kernels::{Pool, cast as kernels, elementwise};
use flambeau_tensor::{DType, Tensor};

use crate::{
    array::Array,
    dtypes::{bits_dtype, float_dtype},
    error::Result,
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

/// Runs `f` on a region of `out`: `count` entries of each listed axis from `start`, `step` apart.
pub(crate) fn with_region<R>(
    out: &mut Array,
    window: &[(usize, usize, usize, usize)],
    f: impl FnOnce(&mut Array) -> Result<R>,
) -> Result<R> {
    let whole = (out.shape.clone(), out.strides.clone(), out.offset);
    for &(axis, start, count, step) in window {
        out.offset += if count > 0 { start * out.strides[axis].unsigned_abs() } else { 0 };
        out.shape[axis] = count;
        out.strides[axis] = out.strides[axis].wrapping_mul(step as isize);
    }
    let result = f(out);
    (out.shape, out.strides, out.offset) = whole;
    result
}
