//! Storage of MLX arrays between runs of sessions that share them.

use flambeau_ir::{
    Tid,
    engine::{Keeper, SharedBuffers},
};

use crate::{Device, cx::Machine, ffi::Array, kv::KvCache, owner::Queue, values::Slot};

/// Buffers and the cache that a session shares with others.
pub(crate) type Shared = SharedBuffers<OnDevice>;

/// State on a device between runs.
#[derive(Debug)]
pub(crate) struct OnDevice {
    pub(crate) queue: Queue,
    pub(crate) device: Device,
}

/// A value that is dropped on its device's thread.
pub(crate) struct DeviceBound<T: Send + 'static> {
    queue: Queue,
    value: Option<T>,
}

impl<T: Send + 'static> Drop for DeviceBound<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.queue.drop_there(value);
        }
    }
}

impl Keeper for OnDevice {
    type Machine = Machine;
    type Buffer = Slot;
    type Pool = Array;
    type Kept<T: Send + 'static> = DeviceBound<T>;

    fn keep<T: Send + 'static>(&self, value: Option<T>) -> DeviceBound<T> {
        DeviceBound { queue: self.queue.clone(), value }
    }

    fn release<T: Send + 'static>(mut kept: DeviceBound<T>) -> Option<T> {
        kept.value.take()
    }

    fn buffer(machine: &mut Machine, tid: Tid) -> Option<&mut Option<Slot>> {
        machine.renew_stamp();
        machine.env.tensors.get_mut(tid.0 as usize)
    }

    fn cache(machine: &mut Machine) -> &mut Option<KvCache> {
        &mut machine.kv
    }

    fn describe(buffer: &Slot) -> String {
        format!("{}{:?}", buffer.dtype, buffer.shape.as_slice())
    }

    fn location(&self) -> String {
        format!("on MLX's {}", self.device)
    }
}
