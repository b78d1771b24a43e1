//! What a node sees while it runs.

use std::sync::Arc;

use flambeau_ir::{
    Checked, In, InferError, Int, Node, Out, OutVid, Tid, Vid,
    engine::Profile,
    infer::run::{Contents, Inferred, OutSpec},
};
use flambeau_kernels::Pool;
use flambeau_tensor::{DType, numel};

use crate::{
    arena::Arena,
    array::Array,
    error::{OpError, Result},
    kv::KvCache,
    liveness::Liveness,
    ops::random::KeySequence,
};

/// More elements than this no view may have: work on a view grows with its elements, not with its storage.
const MAX_ELEMENTS: usize = 1 << 34;

/// Contents of the slots.
#[derive(Debug, Default)]
pub(crate) struct Env {
    pub(crate) tensors: Vec<Option<Array>>,
    pub(crate) values: Vec<Option<i32>>,
}

/// Everything that lasts from node to node.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) graph: Arc<Checked>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) env: Env,
    pub(crate) arena: Arena,
    pub(crate) kv: Option<KvCache>,
    pub(crate) keys: KeySequence,
    /// Present if the session measures.
    pub(crate) profile: Option<Profile>,
    /// Inferred results of the running node.
    inferred: Inferred,
}

/// The running node's view of the machine.
#[derive(Debug)]
pub(crate) struct Cx<'a> {
    pub(crate) m: &'a mut Machine,
    dying: &'a [Tid],
}

impl Machine {
    pub(crate) fn new(graph: Arc<Checked>, liveness: Arc<Liveness>, pool: Arc<Pool>, kv: Option<KvCache>) -> Machine {
        let env = Env { tensors: vec![None; graph.slots.total() as usize], values: vec![None; graph.values as usize] };
        let (arena, keys) = (Arena::default(), KeySequence::default());
        Machine { graph, liveness, pool, env, arena, kv, keys, profile: None, inferred: Inferred::default() }
    }

    /// Runs a node's rule on the actual sizes and keeps what it says of the results.
    pub(crate) fn infer(&mut self, node: &Node) -> Result<()> {
        Ok(self.inferred.run(node, &self.env)?)
    }

    /// The view of a node whose operands `dying` may be taken.
    pub(crate) fn cx<'a>(&'a mut self, dying: &'a [Tid]) -> Cx<'a> {
        Cx { m: self, dying }
    }

    pub(crate) fn set(&mut self, tid: Tid, array: Array) {
        if let Some(slot) = self.env.tensors.get_mut(tid.0 as usize)
            && let Some(old) = slot.replace(array)
        {
            self.arena.free(old);
        }
    }

    pub(crate) fn empty(&mut self, tid: Tid) {
        if let Some(old) = self.env.tensors.get_mut(tid.0 as usize).and_then(Option::take) {
            self.arena.free(old);
        }
    }
}

impl Contents for Env {
    fn tensor(&self, tid: Tid) -> Option<(DType, &[usize])> {
        let array = self.tensors.get(tid.0 as usize)?.as_ref()?;
        Some((array.dtype, &array.shape))
    }

    fn integer(&self, vid: Vid) -> Option<i32> {
        self.values.get(vid.0 as usize).copied().flatten()
    }
}

impl Cx<'_> {
    /// What an operand holds, shared.
    pub(crate) fn get(&self, slot: In) -> Result<Array> {
        self.get_slot(slot.0)
    }

    /// What a slot holds, shared.
    pub(crate) fn get_slot(&self, tid: Tid) -> Result<Array> {
        let array = self.m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref);
        array.cloned().ok_or_else(|| InferError::Unset(tid).into())
    }

    /// An optional operand.
    pub(crate) fn get_opt(&self, slot: Option<In>) -> Result<Option<Array>> {
        slot.map(|s| self.get(s)).transpose()
    }

    /// What an operand holds: out of its slot if it dies here, so that its storage may have one owner; shared otherwise.
    pub(crate) fn take(&mut self, slot: In) -> Result<Array> {
        if !self.dying.contains(&slot.0) {
            return self.get(slot);
        }
        let array = self.m.env.tensors.get_mut(slot.0.0 as usize).and_then(Option::take);
        array.ok_or_else(|| InferError::Unset(slot.0).into())
    }

    /// Element type and shape that the rule inferred for a result.
    pub(crate) fn out(&self, slot: Out) -> Result<OutSpec> {
        let spec = self.m.inferred.tensor(slot).ok_or(OpError::Open(slot.0))?;
        if numel(&spec.shape).is_none_or(|n| n > MAX_ELEMENTS) {
            return Err(OpError::too_large(&spec.shape));
        }
        Ok(spec)
    }

    /// A row-major array with arbitrary contents.
    pub(crate) fn alloc(&mut self, dtype: DType, shape: &[usize]) -> Result<Array> {
        self.m.arena.alloc(dtype, shape)
    }

    /// A row-major array for a result, with arbitrary contents.
    pub(crate) fn alloc_out(&mut self, slot: Out) -> Result<Array> {
        let spec = self.out(slot)?;
        self.alloc(spec.dtype, &spec.shape)
    }

    /// Binds a result.
    pub(crate) fn put(&mut self, slot: Out, array: Array) {
        self.m.set(slot.0, array);
    }

    /// Gives storage back early, if nobody else sees it.
    pub(crate) fn free(&mut self, array: Array) {
        self.m.arena.free(array);
    }

    /// A literal, clamped to 32 bits as every size is, or a value slot's content.
    pub(crate) fn int(&self, int: Int) -> Result<i64> {
        Ok(self.m.env.int(int)?)
    }

    /// A value slot's content.
    pub(crate) fn value(&self, vid: Vid) -> Result<i32> {
        Ok(self.m.env.value(vid)?)
    }

    /// Binds an integer result.
    pub(crate) fn put_value(&mut self, slot: OutVid, value: i32) {
        if let Some(v) = self.m.env.values.get_mut(slot.0.0 as usize) {
            *v = Some(value);
        }
    }

    /// Binds the integer that the rule inferred.
    pub(crate) fn put_inferred(&mut self, slot: OutVid) -> Result<()> {
        let value = self.m.inferred.value(slot)?;
        self.put_value(slot, value);
        Ok(())
    }

    /// The pool, apart from the borrow of the machine.
    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.m.pool)
    }
}
