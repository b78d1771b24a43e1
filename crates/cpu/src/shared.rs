//! Storage of arrays between runs of sessions that share them.

use flambeau_ir::{
    Tid,
    engine::{Keeper, SharedBuffers},
};

use crate::{array::Array, kv::KvCache, machine::Machine};

/// Buffers and the cache that a session shares with others.
pub(crate) type Shared = SharedBuffers<InMemory>;

/// State in memory, which any thread may drop.
#[derive(Debug)]
pub(crate) struct InMemory;

impl Keeper for InMemory {
    type Machine = Machine;
    type Buffer = Array;
    type Pool = Array;
    type Kept<T: Send + 'static> = Option<T>;

    fn keep<T: Send + 'static>(&self, value: Option<T>) -> Option<T> {
        value
    }

    fn release<T: Send + 'static>(kept: Option<T>) -> Option<T> {
        kept
    }

    fn buffer(machine: &mut Machine, tid: Tid) -> Option<&mut Option<Array>> {
        machine.tensors.get_mut(tid.0 as usize)
    }

    fn cache(machine: &mut Machine) -> &mut Option<KvCache> {
        &mut machine.cx.kv
    }

    fn describe(buffer: &Array) -> String {
        format!("{}{:?}", buffer.dtype, buffer.shape.as_slice())
    }

    fn location(&self) -> String {
        "on the CPU".to_owned()
    }
}
