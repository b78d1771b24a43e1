//! The state that lasts from node to node: slots, storage, threads, and the session's state.

use std::{collections::BTreeMap, sync::Arc};

use flambeau_ir::{
    Checked, InferError, Int, Node, Out, OutVid, Tid, Vid,
    engine::{NodeByNode, Profile, Steps},
    infer::run::{Contents, Inferred, OutSpec},
};
use flambeau_kernels::{Pool, quant::Format};
use flambeau_tensor::{DType, numel};

use crate::{
    arena::Arena,
    array::Array,
    error::{OpError, Result},
    kv::KvCache,
    liveness::Liveness,
    obstacle::Dynamic,
    random_keys::KeySequence,
};

/// More elements than this no view may have: work on a view grows with its elements, not with its
/// storage.
const MAX_ELEMENTS: usize = 1 << 34;

/// The resources of a call besides its operands.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) pool: Arc<Pool>,
    pub(crate) arena: Arena,
    /// Contents of the value slots.
    pub(crate) values: Vec<Option<i32>>,
    pub(crate) kv: Option<KvCache>,
    pub(crate) keys: KeySequence,
}

impl Context {
    /// A row-major array with arbitrary contents.
    pub(crate) fn alloc(&mut self, dtype: DType, shape: &[usize]) -> Result<Array> {
        self.arena.alloc(dtype, shape)
    }

    /// Reclaims unshared storage early.
    pub(crate) fn free(&mut self, array: Array) {
        self.arena.free(array);
    }

    /// The pool, apart from the borrow of the context.
    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    /// A literal, clamped to 32 bits as every size is, or a value slot's content.
    pub(crate) fn int(&self, int: Int) -> Result<i64> {
        Ok(Bound { tensors: &[], values: &self.values }.int(int)?)
    }

    /// A value slot's content.
    pub(crate) fn value(&self, vid: Vid) -> Result<i32> {
        Ok(Bound { tensors: &[], values: &self.values }.value(vid)?)
    }

    /// Binds an integer result.
    pub(crate) fn set_value(&mut self, slot: OutVid, value: i32) {
        if let Some(v) = self.values.get_mut(slot.0.0 as usize) {
            *v = Some(value);
        }
    }
}

/// The slots' contents, as read by inference rules.
pub(crate) struct Bound<'a> {
    tensors: &'a [Option<Array>],
    values: &'a [Option<i32>],
}

impl Contents for Bound<'_> {
    fn tensor(&self, tid: Tid) -> Option<(DType, &[usize])> {
        let array = self.tensors.get(tid.0 as usize)?.as_ref()?;
        Some((array.dtype, &array.shape))
    }

    fn integer(&self, vid: Vid) -> Option<i32> {
        self.values.get(vid.0 as usize).copied().flatten()
    }
}

/// Everything that lasts from node to node.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) graph: Arc<Checked>,
    pub(crate) liveness: Arc<Liveness>,
    /// Contents of the tensor slots.
    pub(crate) tensors: Vec<Option<Array>>,
    pub(crate) cx: Context,
    /// Present if the session measures.
    pub(crate) profile: Option<Profile>,
    pub(crate) counts: Counts,
    /// The symmetric format of constant scales and biases, by their slots and the bits of a code.
    /// Cached because every plan asks again.
    pub(crate) symmetric: BTreeMap<([Tid; 2], u32), Option<Format>>,
    /// Inferred results of the running node.
    inferred: Inferred,
}

/// Preparation of the nodes.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Steps that a plan held.
    pub(crate) planned: u64,
    /// Nodes that were prepared when their turn came, by tag and reason.
    dynamic: [[u64; Dynamic::ALL.len()]; 256],
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { planned: 0, dynamic: [[0; Dynamic::ALL.len()]; 256] }
    }
}

impl Counts {
    /// Counts a node that was prepared when its turn came.
    pub(crate) fn dynamic(&mut self, node: &Node, why: Dynamic) {
        self.dynamic[usize::from(node.tag())][why as usize] += 1;
    }

    pub(crate) fn steps(&self) -> Steps {
        let pairs = Node::ALL.iter().flat_map(|node| Dynamic::ALL.iter().map(move |&why| (node, why)));
        let counted = pairs.map(|(node, why)| NodeByNode {
            node: node.name,
            why: why.to_string(),
            count: self.dynamic[usize::from(node.tag)][why as usize],
        });
        Steps { planned: self.planned, regions: Vec::new(), node_by_node: counted.filter(|nodes| nodes.count > 0).collect() }
    }
}

impl Machine {
    pub(crate) fn new(graph: Arc<Checked>, liveness: Arc<Liveness>, pool: Arc<Pool>, kv: Option<KvCache>) -> Machine {
        let (tensors, values) = (vec![None; graph.slots.total() as usize], vec![None; graph.values as usize]);
        let cx = Context { pool, arena: Arena::default(), values, kv, keys: KeySequence::default() };
        Machine {
            graph,
            liveness,
            tensors,
            cx,
            profile: None,
            counts: Counts::default(),
            symmetric: BTreeMap::new(),
            inferred: Inferred::default(),
        }
    }

    /// The slots' contents, as read by inference rules.
    pub(crate) fn bound(&self) -> Bound<'_> {
        Bound { tensors: &self.tensors, values: &self.cx.values }
    }

    /// Runs a node's inference rule on the actual sizes and keeps the inferred results.
    pub(crate) fn infer(&mut self, node: &Node) -> Result<()> {
        Ok(self.inferred.run(node, &Bound { tensors: &self.tensors, values: &self.cx.values })?)
    }

    /// Element type and shape that the rule inferred for a result.
    pub(crate) fn inferred(&self, slot: Out) -> Result<OutSpec> {
        self.inferred.tensor(slot).ok_or(OpError::Open(slot.0))
    }

    /// The integer that the rule inferred for a result.
    pub(crate) fn inferred_value(&self, slot: OutVid) -> Result<i32> {
        Ok(self.inferred.value(slot)?)
    }

    /// A shared handle to a slot's contents.
    pub(crate) fn get(&self, tid: Tid) -> Result<Array> {
        let array = self.tensors.get(tid.0 as usize).and_then(Option::as_ref);
        array.cloned().ok_or_else(|| InferError::Unset(tid).into())
    }

    /// Takes a slot's contents and leaves the slot empty.
    pub(crate) fn take(&mut self, tid: Tid) -> Result<Array> {
        let array = self.tensors.get_mut(tid.0 as usize).and_then(Option::take);
        array.ok_or_else(|| InferError::Unset(tid).into())
    }

    pub(crate) fn set(&mut self, tid: Tid, array: Array) {
        if let Some(slot) = self.tensors.get_mut(tid.0 as usize)
            && let Some(old) = slot.replace(array)
        {
            self.cx.free(old);
        }
    }

    pub(crate) fn empty(&mut self, tid: Tid) {
        if let Some(old) = self.tensors.get_mut(tid.0 as usize).and_then(Option::take) {
            self.cx.free(old);
        }
    }
}

/// Refuses a result of more elements than a view may have.
pub(crate) fn check_size(spec: OutSpec) -> Result<OutSpec> {
    if numel(&spec.shape).is_none_or(|n| n > MAX_ELEMENTS) { Err(OpError::too_large(&spec.shape)) } else { Ok(spec) }
}
