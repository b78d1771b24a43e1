//! Buffers and the cache that a session shares with others.

use flambeau_ir::{
    Slot, Tid,
    engine::{EngineError, SharedState, shared_name},
};

use crate::{array::Array, kv::KvCache, machine::Machine, session::CpuSession};

/// Where the shared part of a session's state lies between its runs.
#[derive(Debug)]
pub(crate) struct Common {
    state: SharedState,
    buffers: Vec<(Tid, usize)>,
    kv: Option<usize>,
}

impl Common {
    /// Moves the buffers, and the cache if there is one, to their places, unless others have put theirs there.
    ///
    /// # Errors
    /// If a place holds something else.
    pub(crate) fn join(m: &mut Machine, buffers: &[Tid], state: SharedState) -> Result<Common, EngineError> {
        let map = &state.engine;
        let mut joined = Vec::with_capacity(buffers.len());
        for &tid in buffers {
            let Some(name) = m.graph.name_of(Slot::Tensor(tid)).map(shared_name) else { continue };
            let own = m.tensors.get_mut(tid.0 as usize).and_then(Option::take);
            let kind = own.as_ref().map(|a| format!("{}{:?} on the CPU", a.dtype, a.shape.as_slice())).unwrap_or_default();
            joined.push((tid, map.index_or_insert_with(name, &kind, || own).map_err(EngineError::Arguments)?));
        }
        let kv = m.cx.kv.take().map(|kv| map.index_or_insert_with("/cache", &format!("{:?} on the CPU", kv.config()), || Some(kv)));
        let kv = kv.transpose().map_err(EngineError::Arguments)?;
        Ok(Common { state, buffers: joined, kv })
    }

    /// Runs `f` while the session holds the shared state and nobody else does.
    pub(crate) fn with<T>(&self, session: &mut CpuSession, f: impl FnOnce(&mut CpuSession) -> T) -> T {
        let mut held = self.state.engine.lock();
        let mut exchange = |m: &mut Machine| {
            for &(tid, number) in &self.buffers {
                if let Some(slot) = m.tensors.get_mut(tid.0 as usize) {
                    held.swap::<Option<Array>>(number, slot);
                }
            }
            if let Some(number) = self.kv {
                held.swap::<Option<KvCache>>(number, &mut m.cx.kv);
            }
        };
        exchange(&mut session.machine);
        let result = f(session);
        exchange(&mut session.machine);
        result
    }
}
