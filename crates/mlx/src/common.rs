//! Buffers and the cache that a session shares with others.

use flambeau_ir::{
    Slot as GraphSlot, Tid,
    engine::{EngineError, SharedState, shared_name},
};

use crate::{
    cx::{Machine, Slot},
    kv::KvCache,
    owner::Queue,
};

/// What a place holds between runs; it is dropped where MLX's arrays are.
struct OnDevice<T: Send + 'static> {
    queue: Queue,
    content: Option<T>,
}

impl<T: Send + 'static> Drop for OnDevice<T> {
    fn drop(&mut self) {
        if let Some(content) = self.content.take() {
            self.queue.drop_there(content);
        }
    }
}

/// Where the shared part of a session's state lies between its runs.
#[derive(Debug)]
pub(crate) struct Common {
    state: SharedState,
    queue: Queue,
    buffers: Vec<(Tid, usize)>,
    kv: Option<usize>,
}

impl Common {
    /// Moves the buffers, and the cache if there is one, to their places, unless others have put theirs there.
    ///
    /// # Errors
    /// If a place holds something else.
    pub(crate) fn join(m: &mut Machine, buffers: &[Tid], state: SharedState, queue: Queue) -> Result<Common, EngineError> {
        let (map, place) = (&state.engine, format!("on MLX's {}", m.device));
        let mut joined = Vec::with_capacity(buffers.len());
        for &tid in buffers {
            let Some(name) = m.graph.name_of(GraphSlot::Tensor(tid)).map(shared_name) else { continue };
            let content = m.env.tensors.get_mut(tid.0 as usize).and_then(Option::take);
            let kind = content.as_ref().map(|s| format!("{}{:?} {place}", s.dtype, s.shape.as_slice())).unwrap_or_default();
            let own = OnDevice { queue: queue.clone(), content };
            joined.push((tid, map.index_or_insert_with(name, &kind, || own).map_err(EngineError::Arguments)?));
        }
        let kv = m.kv.take().map(|kv| {
            let kind = format!("{:?} {place}", kv.config());
            map.index_or_insert_with("/cache", &kind, || OnDevice { queue: queue.clone(), content: Some(kv) })
        });
        let kv = kv.transpose().map_err(EngineError::Arguments)?;
        Ok(Common { state, queue, buffers: joined, kv })
    }

    /// Runs `f` on `session`, whose machine holds the shared state meanwhile, and nobody else does.
    pub(crate) fn with<S, T>(&self, session: &mut S, machine: fn(&mut S) -> &mut Machine, f: impl FnOnce(&mut S) -> T) -> T {
        let mut held = self.state.engine.lock();
        let mut exchange = |m: &mut Machine| {
            for &(tid, number) in &self.buffers {
                if let Some(slot) = m.env.tensors.get_mut(tid.0 as usize) {
                    let mut lent = OnDevice::<Slot> { queue: self.queue.clone(), content: slot.take() };
                    held.swap(number, &mut lent);
                    *slot = lent.content.take();
                }
            }
            if let Some(number) = self.kv {
                let mut lent = OnDevice::<KvCache> { queue: self.queue.clone(), content: m.kv.take() };
                held.swap(number, &mut lent);
                m.kv = lent.content.take();
            }
        };
        exchange(machine(session));
        let result = f(session);
        exchange(machine(session));
        result
    }
}
