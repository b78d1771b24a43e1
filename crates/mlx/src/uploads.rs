//! Constants on the device, shared by the sessions of a process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use flambeau_ir::engine::EngineError;
use flambeau_tensor::{DType, Shape, Tensor};

use crate::{
    ffi::{Api, Array},
    values::{MAX_HOST_BYTES, Slot, integers},
};

/// Largest number of bytes of indices in order that the host reads, such as the rows of a ring.
const MAX_COUNT_BYTES: usize = 1 << 17;

/// Constants on the device by their bytes' place in memory, as long as a session uses them.
pub(crate) type Uploads = Arc<Mutex<HashMap<Key, Weak<Upload>>>>;

/// Address, type and shape of a constant's bytes.
pub(crate) type Key = (usize, DType, Shape);

/// A constant on the device. It keeps the bytes, so that their address is not reused.
#[derive(Debug)]
pub(crate) struct Upload {
    array: Mutex<Array>,
    _tensor: Tensor,
}

/// Bytes of the constants that no session has brought to the device yet.
pub(crate) fn new_bytes(known: &Uploads, tensors: &[Tensor]) -> u64 {
    let known = known.lock().unwrap_or_else(|e| e.into_inner());
    let is_new = |tensor: &&Tensor| known.get(&key_of(tensor)).is_none_or(|upload| upload.strong_count() == 0);
    tensors.iter().filter(is_new).map(|tensor| tensor.bytes().len() as u64).sum()
}

fn key_of(tensor: &Tensor) -> Key {
    (tensor.bytes().as_ptr() as usize, tensor.dtype(), Shape::from_slice(tensor.shape()))
}

/// Whether the host may read a constant: a small one, or indices in order.
fn is_readable(tensor: &Tensor) -> bool {
    let size = tensor.bytes().len();
    let counts = || integers(tensor).is_ok_and(|all| all.into_iter().eq(0..tensor.shape()[0] as i64));
    size <= MAX_HOST_BYTES || size <= MAX_COUNT_BYTES && tensor.dtype() == DType::I64 && tensor.shape().len() == 1 && counts()
}

/// The constants on the device, in order: reuses the uploads of other sessions and uploads the
/// rest.
pub(crate) fn upload(api: Api, known: &Uploads, tensors: Vec<Tensor>) -> Result<Vec<(Slot, Arc<Upload>)>, EngineError> {
    let mut known = known.lock().unwrap_or_else(|e| e.into_inner());
    known.retain(|_, upload| upload.strong_count() > 0);
    let bring = |tensor: Tensor| {
        let key = key_of(&tensor);
        if let Some(upload) = known.get(&key).and_then(Weak::upgrade) {
            let array = upload.array.lock().unwrap_or_else(|e| e.into_inner()).share()?;
            let mut slot = Slot::new(array, tensor.dtype(), key.2);
            slot.host = is_readable(&tensor).then_some(tensor);
            return Ok((slot, upload));
        }
        let mut slot = Slot::from_tensor(api, &tensor)?;
        slot.host = is_readable(&tensor).then(|| tensor.clone());
        let upload = Arc::new(Upload { array: Mutex::new(slot.array.share()?), _tensor: tensor });
        known.insert(key, Arc::downgrade(&upload));
        Ok((slot, upload))
    };
    tensors.into_iter().map(bring).collect::<crate::error::Result<_>>().map_err(EngineError::from)
}
