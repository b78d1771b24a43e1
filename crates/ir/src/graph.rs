//! The delegate program as plain data: chains of nodes over numbered slots.

use flambeau_tensor::DType;

use crate::{
    cost::Effect,
    field::{ChainId, Int, Role, Slot, Tid, Vid},
    node::Node,
};

/// Role of a tensor slot. The classes occupy consecutive ranges of slot numbers in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SlotClass {
    /// Bound to named data when the program is loaded. Only the init chain may replace it.
    Constant,
    Input,
    Output,
    /// Zero at load, kept from run to run.
    Buffer,
    /// Valid only during one run. Numbers are reused freely.
    Temp,
}

/// Number of tensor slots of each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    pub constants: u32,
    pub inputs: u32,
    pub outputs: u32,
    pub buffers: u32,
    pub temps: u32,
}

impl SlotCounts {
    /// Number of tensor slots. The sum cannot overflow 64 bits.
    pub fn total(&self) -> u64 {
        self.non_temp() + u64::from(self.temps)
    }

    /// Number of slots with metadata: all except temporary slots.
    pub fn non_temp(&self) -> u64 {
        [self.constants, self.inputs, self.outputs, self.buffers].iter().map(|&n| u64::from(n)).sum()
    }

    /// Class of a slot, or `None` if it is out of range.
    pub fn class(&self, tid: Tid) -> Option<SlotClass> {
        let ends = [
            (self.constants, SlotClass::Constant),
            (self.inputs, SlotClass::Input),
            (self.outputs, SlotClass::Output),
            (self.buffers, SlotClass::Buffer),
            (self.temps, SlotClass::Temp),
        ];
        let mut rest = u64::from(tid.0);
        for (count, class) in ends {
            match rest.checked_sub(u64::from(count)) {
                None => return Some(class),
                Some(r) => rest = r,
            }
        }
        None
    }
}

/// One size of a tensor's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetaDim {
    Static(u32),
    /// Known at run time. An absent `max` means unbounded.
    Dynamic {
        min: u32,
        max: Option<u32>,
    },
}

/// Declared shape and element type of a slot that is not temporary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    pub shape: Vec<MetaDim>,
    pub dtype: DType,
    /// Axes from outermost to innermost. `None` for row-major tensors of rank 0, or if the writer
    /// omits it.
    pub dim_order: Option<Vec<u8>>,
}

impl TensorMeta {
    /// Row-major metadata of a static shape.
    pub fn fixed(dtype: DType, shape: &[u32]) -> TensorMeta {
        TensorMeta::row_major(dtype, shape.iter().map(|&d| MetaDim::Static(d)).collect())
    }

    /// Row-major metadata.
    pub fn row_major(dtype: DType, shape: Vec<MetaDim>) -> TensorMeta {
        let dim_order = (!shape.is_empty()).then(|| (0..shape.len() as u8).collect());
        TensorMeta { shape, dtype, dim_order }
    }

    /// The shape, if every size is static.
    pub fn static_shape(&self) -> Option<Vec<usize>> {
        self.shape
            .iter()
            .map(|d| match d {
                MetaDim::Static(n) => Some(*n as usize),
                MetaDim::Dynamic { .. } => None,
            })
            .collect()
    }
}

/// A sequence of nodes.
pub type Chain = Vec<Node>;

/// An unverified delegate program. See [`check`](fn@crate::check).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub slots: SlotCounts,
    /// Number of value slots.
    pub values: u32,
    pub chains: Vec<Chain>,
    /// Index of the chain that a run executes.
    pub main: u32,
    /// Index of the chain that loading executes. Only this chain may write constants.
    pub init: Option<u32>,
    /// Slots that receive the delegate call's first arguments, in order.
    pub inputs: Vec<Slot>,
    /// Slots whose contents are the call's remaining arguments, in order.
    pub outputs: Vec<Slot>,
    /// Tensor slots that keep their contents between runs.
    pub buffers: Vec<Tid>,
    /// Names of slots. A constant's name is the key of its data.
    pub names: Vec<(String, Slot)>,
    /// Metadata by tensor slot number, for all except temporary slots.
    pub meta: Vec<TensorMeta>,
}

impl Graph {
    /// Number of nodes in all chains.
    pub fn node_count(&self) -> usize {
        self.chains.iter().map(Vec::len).sum()
    }

    /// Slot number of the `i`-th slot of a class.
    pub fn slot(&self, class: SlotClass, i: u32) -> Tid {
        let s = &self.slots;
        let before = [0, s.constants, s.inputs, s.outputs, s.buffers];
        Tid(before[..=class as usize].iter().fold(i, |n, &count| n.saturating_add(count)))
    }

    /// The last name of a slot.
    pub fn name_of(&self, slot: Slot) -> Option<&str> {
        self.names.iter().rev().find(|(_, s)| *s == slot).map(|(n, _)| n.as_str())
    }

    /// Whether a run depends on random numbers without a seed.
    pub fn draws_without_seed(&self) -> bool {
        self.run_nodes().any(|node| node.effect() == Effect::Random(None))
    }

    /// Buffers with recurrent state: written at positions that the caller does not determine. In
    /// ascending order.
    pub fn carried_buffers(&self) -> Vec<Tid> {
        let constant = |tid: Tid| self.slots.class(tid) == Some(SlotClass::Constant);
        let mut carried = Vec::new();
        for node in self.run_nodes() {
            let placed = match node {
                Node::SliceUpdate(n) => matches!(n.start, Int::Vid(_)),
                Node::IndexCopy(n) => !constant(n.indices.0),
                _ => false,
            };
            node.walk(&mut |role, slot| match slot {
                Slot::Tensor(tid) if !placed && role != Role::Read && self.slots.class(tid) == Some(SlotClass::Buffer) => {
                    carried.push(tid);
                }
                _ => {}
            });
        }
        carried.sort_unstable();
        carried.dedup();
        carried
    }

    /// Nodes of all chains except the init chain.
    fn run_nodes(&self) -> impl Iterator<Item = &Node> {
        self.chains.iter().enumerate().filter(|&(i, _)| self.init != Some(i as u32)).flat_map(|(_, nodes)| nodes)
    }

    /// The distinct buffers that a chain writes, directly or through other chains, in the order of
    /// first writes.
    pub fn buffers_written_by(&self, chain: ChainId) -> Vec<Tid> {
        let (mut todo, mut seen) = (vec![chain], vec![false; self.chains.len()]);
        let (mut written, mut is_written) = (Vec::new(), vec![false; self.slots.buffers as usize]);
        let first = self.slot(SlotClass::Buffer, 0).0;
        while let Some(ChainId(chain)) = todo.pop() {
            let Some(nodes) = self.chains.get(chain as usize).filter(|_| !std::mem::replace(&mut seen[chain as usize], true))
            else {
                continue;
            };
            for node in nodes {
                todo.extend(node.chains());
                node.walk(&mut |role, slot| {
                    if let Slot::Tensor(tid) = slot
                        && role != Role::Read
                        && let Some(known) = tid.0.checked_sub(first).and_then(|i| is_written.get_mut(i as usize))
                        && !std::mem::replace(known, true)
                    {
                        written.push(tid);
                    }
                });
            }
        }
        written
    }

    /// Whether the value slot exists.
    pub fn has_value(&self, vid: Vid) -> bool {
        vid.0 < self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_occupy_consecutive_ranges() {
        let slots = SlotCounts { constants: 2, inputs: 0, outputs: 1, buffers: 1, temps: 1 };
        let classes: Vec<_> = (0..6).map(|i| slots.class(Tid(i))).collect();
        use SlotClass::*;
        assert_eq!(classes, [Some(Constant), Some(Constant), Some(Output), Some(Buffer), Some(Temp), None]);
        let graph = Graph { slots, ..Graph::default() };
        assert_eq!((graph.slot(Output, 0), graph.slot(Buffer, 0), graph.slot(Temp, 0)), (Tid(2), Tid(3), Tid(4)));
    }

    #[test]
    fn written_buffers_are_found_through_the_chains_that_run() {
        let graph: Graph = "slots constants=0 inputs=1 outputs=1 buffers=3 temps=0 values=1\nmain 0\nchain 0\n  \
            If cond=v0 then_chain_idx=1 else_chain_idx=0\n  Add a=t2 b=t0 out=t4\n  Add a=t4 b=t0 out=t4\nchain 1\n  \
            Add a=t2 b=t0 out=t1\n  Add a=t2 b=t0 out=t2\nchain 2\n  Add a=t2 b=t0 out=t3\n"
            .parse()
            .unwrap();
        let check = |chain, expected: &[u32]| {
            let expected: Vec<Tid> = expected.iter().copied().map(Tid).collect();
            assert_eq!(graph.buffers_written_by(ChainId(chain)), expected, "chain {chain}");
        };
        check(0, &[4, 2]);
        check(1, &[2]);
        check(2, &[3]);
        check(7, &[]);
    }

    #[test]
    fn runs_that_write_at_positions_of_the_caller_carry_no_state() {
        let check = |nodes: &str, expected: bool| {
            let text = format!("slots constants=1 inputs=1 outputs=1 buffers=1 temps=0 values=1\nmain 0\nchain 0\n{nodes}");
            let graph = text.parse::<Graph>().unwrap();
            assert_eq!(!graph.draws_without_seed() && graph.carried_buffers().is_empty(), expected, "{nodes}");
            assert_eq!(graph.carried_buffers().is_empty(), expected || graph.draws_without_seed(), "{nodes}");
        };
        check("  SliceUpdate dst=t3 update=t1 out=t3 axis=0 start=v0 stop=4 step=1", true);
        check("  SliceUpdate dst=t3 update=t1 out=t3 axis=0 start=0 stop=4 step=1", false);
        check("  IndexCopy dst=t3 update=t1 indices=t1 out=t3 axis=0", true);
        check("  IndexCopy dst=t3 update=t1 indices=t0 out=t3 axis=0", false);
        check("  Add a=t3 b=t1 out=t3", false);
        check("  Add a=t3 b=t1 out=t2", true);
        check("  RandomBits shape=[4] width=4 out=t2", false);
    }
}
