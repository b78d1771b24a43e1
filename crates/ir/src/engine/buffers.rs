//! Buffers and the cache that a session shares with others.

use std::{any::Any, sync::Arc};

use super::{EngineError, SharedState, shared_name};
use crate::{Graph, Slot, SlotClass, Tid, kv::KvCache};

/// Storage of an engine's mutable state during and between runs.
pub trait Keeper {
    /// Holder of buffers and the cache during a run.
    type Machine;
    type Buffer: Send + 'static;
    /// Keys or values of a layer of the cache.
    type Pool: Send + 'static;
    /// Holder of a value between runs.
    type Kept<T: Send + 'static>: Any + Send;

    fn keep<T: Send + 'static>(&self, value: Option<T>) -> Self::Kept<T>;

    fn release<T: Send + 'static>(kept: Self::Kept<T>) -> Option<T>;

    /// The machine's storage of a buffer.
    fn buffer(machine: &mut Self::Machine, tid: Tid) -> Option<&mut Option<Self::Buffer>>;

    /// The machine's storage of the cache.
    fn cache(machine: &mut Self::Machine) -> &mut Option<KvCache<Self::Pool>>;

    /// Element type and shape of a buffer.
    fn describe(buffer: &Self::Buffer) -> String;

    /// Location of the engine's state, for messages.
    fn location(&self) -> String;
}

/// The part of a session's state that a [`SharedState`] holds between its runs.
#[derive(Debug)]
pub struct SharedBuffers<K> {
    state: SharedState,
    keeper: K,
    buffers: Vec<(Tid, usize)>,
    cache: Option<usize>,
}

impl<K: Keeper> SharedBuffers<K> {
    /// Moves the graph's buffers and an existing cache into `state`. Existing values with the same
    /// names replace them.
    ///
    /// # Errors
    /// If an existing value has another kind.
    pub fn join(graph: &Graph, machine: &mut K::Machine, state: SharedState, keeper: K) -> Result<SharedBuffers<K>, EngineError> {
        let location = keeper.location();
        let mut buffers = Vec::with_capacity(graph.slots.buffers as usize);
        for tid in (0..graph.slots.buffers).map(|i| graph.slot(SlotClass::Buffer, i)) {
            let Some(name) = graph.name_of(Slot::Tensor(tid)).map(shared_name) else { continue };
            let own = K::buffer(machine, tid).and_then(Option::take);
            let kind = own.as_ref().map(|buffer| format!("{} {location}", K::describe(buffer))).unwrap_or_default();
            let index = state.engine.index_or_insert_with(name, &kind, || keeper.keep(own))?;
            buffers.push((tid, index));
        }
        let cache = K::cache(machine).take().map(|cache| {
            let kind = format!("{:?} {location}", cache.config());
            state.engine.index_or_insert_with("/cache", &kind, || keeper.keep(Some(cache)))
        });
        Ok(SharedBuffers { state, keeper, buffers, cache: cache.transpose()? })
    }

    /// Whether both use the same state. Only one run at a time can hold a state.
    pub fn is_one_with(&self, other: &SharedBuffers<K>) -> bool {
        Arc::ptr_eq(&self.state.engine, &other.state.engine)
    }

    /// Runs `f` on `session` while its machine holds the shared state exclusively.
    pub fn with<S, T>(&self, session: &mut S, machine: fn(&mut S) -> &mut K::Machine, f: impl FnOnce(&mut S) -> T) -> T {
        let mut entries = self.state.engine.lock();
        let mut exchange = |machine: &mut K::Machine| {
            for &(tid, index) in &self.buffers {
                if let Some(place) = K::buffer(machine, tid) {
                    let mut kept = self.keeper.keep(place.take());
                    entries.swap(index, &mut kept);
                    *place = K::release(kept);
                }
            }
            if let Some(index) = self.cache {
                let place = K::cache(machine);
                let mut kept = self.keeper.keep(place.take());
                entries.swap(index, &mut kept);
                *place = K::release(kept);
            }
        };
        exchange(machine(session));
        let result = f(session);
        exchange(machine(session));
        result
    }
}
