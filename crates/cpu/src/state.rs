//! Copies of a session's buffers, and buffers out of copies.

use std::sync::Arc;

use flambeau_ir::engine::StatePart;
use flambeau_tensor::{AlignedBytes, Tensor, numel};

use crate::{
    array::{Array, Storage},
    error::{OpError, Result},
    machine::Machine,
    ops::copy::{copy_into, duplicate},
};

/// A copy of a part.
pub(crate) fn read(m: &Machine, part: StatePart) -> Result<Tensor> {
    let part = of(m.get(part.buffer)?, part)?;
    let bytes = numel(&part.shape).and_then(|n| n.checked_mul(part.dtype.size())).ok_or_else(|| OpError::too_large(&part.shape))?;
    let storage = Arc::new(Storage::Owned(AlignedBytes::zeroed(bytes)));
    let mut out = Array::row_major(part.dtype, &part.shape, storage);
    copy_into(&m.cx.pool, &part, &mut out)?;
    let contents = match Arc::into_inner(out.data) {
        Some(Storage::Owned(bytes)) => bytes.into_bytes(),
        _ => return Err(OpError::value("a copy is seen elsewhere")),
    };
    Tensor::new(part.dtype, &part.shape, contents).map_err(|e| OpError::value(e.to_string()))
}

/// Puts a copy into the place of a part.
pub(crate) fn write(m: &mut Machine, part: StatePart, copy: &Tensor) -> Result<()> {
    let mut buffer = m.take(part.buffer)?;
    let written = write_into(m, &mut buffer, part, copy);
    m.set(part.buffer, buffer);
    written
}

fn write_into(m: &mut Machine, buffer: &mut Array, part: StatePart, copy: &Tensor) -> Result<()> {
    if !buffer.is_unique() {
        *buffer = duplicate(&mut m.cx, buffer)?;
    }
    let whole = (buffer.shape.clone(), buffer.strides.clone(), buffer.offset);
    let view = of(buffer.clone(), part)?;
    if (copy.dtype(), copy.shape()) != (view.dtype, &view.shape[..]) {
        return Err(OpError::value(format!(
            "a copy is {} {:?}, expected {} {:?}",
            copy.dtype(),
            copy.shape(),
            view.dtype,
            view.shape
        )));
    }
    let Array { shape, strides, offset, data, .. } = view;
    // The buffer writes this storage, so it must be unshared.
    drop(data);
    (buffer.shape, buffer.strides, buffer.offset) = (shape, strides, offset);
    let copied = copy_into(&m.cx.pool, &Array::from_tensor(copy), buffer);
    (buffer.shape, buffer.strides, buffer.offset) = whole;
    copied
}

/// The part of a buffer.
fn of(buffer: Array, part: StatePart) -> Result<Array> {
    match part.rows {
        None => Ok(buffer),
        Some((axis, count)) if buffer.shape.get(axis).is_some_and(|&size| count <= size) => Ok(buffer.narrow(axis, 0, count, 1)),
        Some((axis, count)) => Err(OpError::value(format!("a buffer {:?} has no {count} entries along axis {axis}", buffer.shape))),
    }
}
