//! Contents of the slots.

use flambeau_ir::{Tid, Vid, infer::run::Contents};
use flambeau_tensor::{DType, Element, Shape, Tensor, with_dtype};

use crate::{
    error::{OpError, Result},
    ffi::{Api, Array},
    open::{Origin, Origins, Padded},
};

/// The contents of a tensor slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) array: Array,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// A host copy of the elements if they are few. Nodes read integers from it without waiting for
    /// the device.
    pub(crate) host: Option<Tensor>,
    /// Origin of the only element, in a trace that leaves it open.
    pub(crate) origin: Option<Origin>,
    /// The part of the length that a trace leaves open.
    pub(crate) padded: Option<Padded>,
}

/// Largest number of bytes that [`Slot::host`] keeps.
pub(crate) const MAX_HOST_BYTES: usize = 1 << 12;

impl Slot {
    /// An array with its type and shape.
    pub(crate) fn new(array: Array, dtype: DType, shape: Shape) -> Slot {
        Slot { array, dtype, shape, host: None, origin: None, padded: None }
    }

    /// The tensor's array; small ones stay readable on the host.
    ///
    /// # Errors
    /// If MLX refuses the tensor.
    pub(crate) fn from_tensor(api: Api, tensor: &Tensor) -> Result<Slot> {
        let array = Array::from_tensor(api, tensor)?;
        let host = (tensor.bytes().len() <= MAX_HOST_BYTES).then(|| tensor.clone());
        Ok(Slot { host, ..Slot::new(array, tensor.dtype(), Shape::from_slice(tensor.shape())) })
    }

    /// An input that is already on the device, with the type and shape of the host tensor it
    /// replaces.
    pub(crate) fn feedback(feedback: &Feedback, replaced: &Tensor) -> Result<Slot> {
        Ok(Slot::new(feedback.array.share()?, replaced.dtype(), Shape::from_slice(replaced.shape())))
    }

    /// Another handle to the same array.
    pub(crate) fn share(&self) -> Result<Slot> {
        let array = self.array.share()?;
        let (shape, host) = (self.shape.clone(), self.host.clone());
        Ok(Slot { array, dtype: self.dtype, shape, host, origin: self.origin, padded: self.padded })
    }

    /// Number of axes.
    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }
}

/// An input that is already on the device.
#[derive(Debug)]
pub(crate) struct Feedback {
    pub(crate) input: usize,
    pub(crate) array: Array,
}

/// Contents of the slots.
#[derive(Debug, Default)]
pub(crate) struct Env {
    pub(crate) tensors: Vec<Option<Slot>>,
    pub(crate) values: Vec<Option<i32>>,
    pub(crate) origins: Origins,
}

impl Contents for Env {
    fn tensor(&self, tid: Tid) -> Option<(DType, &[usize])> {
        let slot = self.tensors.get(tid.0 as usize)?.as_ref()?;
        Some((slot.dtype, &slot.shape))
    }

    fn integer(&self, vid: Vid) -> Option<i32> {
        self.values.get(vid.0 as usize).copied().flatten()
    }
}

/// The slot's array in an element type.
pub(crate) fn cast(slot: &Slot, dtype: DType) -> Result<Array> {
    Ok(if slot.dtype == dtype { slot.array.share()? } else { slot.array.cast(dtype)? })
}

/// The elements of an integer or bool tensor.
pub(crate) fn integers(tensor: &Tensor) -> Result<Vec<i64>> {
    let tensor = tensor.aligned();
    if tensor.dtype() == DType::Bool {
        let all = tensor.as_slice::<flambeau_tensor::Bool>().map_err(|e| OpError::value(e.to_string()))?;
        return Ok(all.iter().map(|v| v.get().into()).collect());
    }
    with_dtype!(tensor.dtype(), T in [U8, I8, I16, I32, I64, U32] => widened::<T>(&tensor), else => Err(OpError::DType(tensor.dtype())))
}

fn widened<T: Element + Into<i64>>(tensor: &Tensor) -> Result<Vec<i64>> {
    let all = tensor.as_slice::<T>().map_err(|e| OpError::value(e.to_string()))?;
    Ok(all.iter().map(|&v| v.into()).collect())
}
