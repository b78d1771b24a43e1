//! Copies and casts into new arrays of a run.

use std::sync::Arc;

use flambeau_ir::Tid;
use flambeau_tensor::{AlignedBytes, DType, Shape};

pub(crate) use crate::copy::{as_bits, bits, cast_into, copy_into, fill, with_region};

use crate::{
    array::{Array, Storage},
    error::{OpError, Result},
    machine::{Context, Machine},
};

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
