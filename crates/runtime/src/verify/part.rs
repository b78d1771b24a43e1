//! Cuts consecutive nodes of a chain out as a graph that runs alone.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    sync::Arc,
};

use flambeau_ir::{
    Checked, Content, Graph, IdCopy, In, MetaDim, Node, Out, Role, Slot, SlotClass, SlotCounts, SlotRef, TensorMeta, Tid, Vid,
    check,
    engine::{EngineError, Value},
};
use flambeau_tensor::{DType, Expr, Tensor};

/// Contents of slots at a point of a run.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub(super) tensors: BTreeMap<Tid, Tensor>,
    pub(super) values: HashMap<Vid, i32>,
}

impl Contents {
    /// The contents of a slot, if it is set.
    pub fn get(&self, slot: Slot) -> Option<Value> {
        match slot {
            Slot::Tensor(tid) => self.tensors.get(&tid).cloned().map(Value::Tensor),
            Slot::Value(vid) => self.values.get(&vid).copied().map(Value::Int),
        }
    }

    pub(super) fn set(&mut self, slot: Slot, value: Value) {
        match (slot, value) {
            (Slot::Tensor(tid), Value::Tensor(tensor)) => drop(self.tensors.insert(tid, tensor)),
            (Slot::Value(vid), Value::Int(value)) => drop(self.values.insert(vid, value)),
            _ => {}
        }
    }

    pub(super) fn unset(&mut self, slot: Slot) {
        match slot {
            Slot::Tensor(tid) => drop(self.tensors.remove(&tid)),
            Slot::Value(vid) => drop(self.values.remove(&vid)),
        }
    }

    fn has(&self, slot: Slot) -> bool {
        match slot {
            Slot::Tensor(tid) => self.tensors.contains_key(&tid),
            Slot::Value(vid) => self.values.contains_key(&vid),
        }
    }
}

/// Consecutive nodes of a chain as a graph. Its inputs are the slots that the nodes read and do not
/// set first. Mutable buffers among them are inputs too.
#[derive(Clone, Debug)]
pub struct Part {
    /// The graph.
    pub graph: Arc<Checked>,
    /// Slots of the whole graph behind the inputs, in order.
    pub inputs: Vec<Slot>,
    /// Slots of the whole graph behind the outputs, in order.
    pub outputs: Vec<Slot>,
}

/// Slots that nodes read and write, in the numbering of the whole graph.
#[derive(Default)]
struct Used {
    read: BTreeSet<Slot>,
    written: BTreeSet<Slot>,
}

impl Part {
    /// The nodes `range` of a chain, as they run on these contents. The outputs are the written
    /// slots that `wanted` accepts.
    ///
    /// # Errors
    /// The checker refuses the nodes for these contents.
    pub fn of(
        whole: &Graph,
        chain: usize,
        range: Range<usize>,
        contents: &Contents,
        wanted: &dyn Fn(Slot) -> bool,
    ) -> Result<Part, EngineError> {
        let nodes = whole.chains.get(chain).and_then(|nodes| nodes.get(range)).unwrap_or_default();
        let reached = reached(whole, nodes);
        let used = used(whole, nodes, &reached);
        let is_constant = |slot: Slot| matches!(slot, Slot::Tensor(t) if whole.slots.class(t) == Some(SlotClass::Constant));
        let inputs: Vec<Slot> = used.read.iter().copied().filter(|&slot| contents.has(slot)).collect();
        let constants: Vec<Slot> = used.read.iter().copied().filter(|&slot| is_constant(slot) && !contents.has(slot)).collect();
        let outputs: Vec<Slot> = used.written.iter().copied().filter(|&slot| wanted(slot)).collect();
        let slots = [&constants[..], &inputs, &outputs];
        let numbering = Numbering::new(slots, &used.written);
        let graph = build(whole, chain, nodes, &reached, slots, &numbering, contents)?;
        Ok(Part { graph: Arc::new(graph), inputs, outputs })
    }
}

/// Chains that nodes run, directly or through other chains.
fn reached(whole: &Graph, nodes: &[Node]) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut todo: Vec<usize> = nodes.iter().flat_map(Node::chains).map(|chain| chain.0 as usize).collect();
    while let Some(chain) = todo.pop() {
        if reached.insert(chain) {
            let inner = whole.chains.get(chain).into_iter().flatten();
            todo.extend(inner.flat_map(Node::chains).map(|chain| chain.0 as usize));
        }
    }
    reached
}

fn used(whole: &Graph, nodes: &[Node], reached: &BTreeSet<usize>) -> Used {
    let mut used = Used::default();
    let inner = reached.iter().filter_map(|&chain| whole.chains.get(chain)).flatten();
    for (node, may_skip) in nodes.iter().map(|node| (node, false)).chain(inner.map(|node| (node, true))) {
        node.walk(&mut |role, slot| {
            // A skipped branch leaves the old contents.
            if role != Role::Write || may_skip {
                used.read.insert(slot);
            }
            if role != Role::Read {
                used.written.insert(slot);
            }
        });
    }
    used
}

/// The tensor slots of a part in its own numbering, in the order of the classes.
struct Numbering {
    slots: SlotCounts,
    /// Numbers by slot of the whole graph.
    numbers: HashMap<Tid, Tid>,
    /// Inputs with writes by nodes: the input's number, and the slot for a copy.
    copies: Vec<(Tid, Tid)>,
}

fn tensors(slots: &[Slot]) -> impl Iterator<Item = Tid> {
    slots.iter().filter_map(|slot| match slot {
        Slot::Tensor(tid) => Some(*tid),
        Slot::Value(_) => None,
    })
}

impl Numbering {
    fn new([constants, inputs, outputs]: [&[Slot]; 3], written: &BTreeSet<Slot>) -> Numbering {
        let count = |slots: &[Slot]| tensors(slots).count() as u32;
        let mut slots =
            SlotCounts { constants: count(constants), inputs: count(inputs), outputs: count(outputs), ..SlotCounts::default() };
        let in_order: Vec<Tid> = [constants, inputs, outputs].into_iter().flat_map(tensors).collect();
        let mut numbers: HashMap<Tid, Tid> = in_order.into_iter().zip((0..).map(Tid)).collect();
        let mut copies = Vec::new();
        for tid in tensors(&written.iter().copied().collect::<Vec<_>>()) {
            let is_output = outputs.contains(&Slot::Tensor(tid));
            if !is_output {
                let temp = Tid(slots.total() as u32);
                slots.temps += 1;
                numbers.insert(tid, temp);
            }
            if let Some(at) = tensors(inputs).position(|input| input == tid) {
                copies.push((Tid(slots.constants + at as u32), numbers[&tid]));
            }
        }
        Numbering { slots, numbers, copies }
    }

    fn renumber(&self, node: &Node) -> Node {
        let mut node = node.clone();
        node.walk_mut(&mut |_, slot| {
            if let SlotRef::Tensor(tid) = slot {
                // The checker refuses a slot without contents: its number is out of range.
                *tid = self.numbers.get(tid).copied().unwrap_or(Tid(u32::MAX));
            }
        });
        node
    }
}

/// The graph of a part. Its outputs are declared with the types and sizes that the checker infers.
fn build(
    whole: &Graph,
    chain: usize,
    nodes: &[Node],
    reached: &BTreeSet<usize>,
    slots: [&[Slot]; 3],
    numbering: &Numbering,
    contents: &Contents,
) -> Result<Checked, EngineError> {
    let [constants, inputs, outputs] = slots;
    let renumbered = |slot: &Slot| match slot {
        Slot::Tensor(tid) => Slot::Tensor(numbering.numbers[tid]),
        value => *value,
    };
    let mut next_input = (numbering.slots.constants..).map(Tid);
    let input_slot = |slot: &Slot| match slot {
        Slot::Tensor(_) => next_input.next().map_or(*slot, Slot::Tensor),
        value => *value,
    };
    let mut chains = vec![Vec::new(); whole.chains.len()];
    let copies = numbering.copies.iter().map(|&(from, to)| Node::from(IdCopy { x: In(from), out: Out(to) }));
    chains[chain] = copies.chain(nodes.iter().map(|node| numbering.renumber(node))).collect();
    for &inner in reached {
        chains[inner] = whole.chains[inner].iter().map(|node| numbering.renumber(node)).collect();
    }
    let mut meta: Vec<TensorMeta> = tensors(constants).filter_map(|tid| whole.meta.get(tid.0 as usize).cloned()).collect();
    meta.extend(tensors(inputs).map(|tid| meta_of(&contents.tensors[&tid])));
    meta.extend(tensors(outputs).map(|_| TensorMeta::fixed(DType::F32, &[])));
    let name = |tid: Tid| {
        let name = whole.name_of(Slot::Tensor(tid)).unwrap_or_default();
        (name.to_owned(), Slot::Tensor(numbering.numbers[&tid]))
    };
    let graph = Graph {
        slots: numbering.slots,
        values: whole.values,
        chains,
        main: chain as u32,
        init: None,
        inputs: inputs.iter().map(input_slot).collect(),
        outputs: outputs.iter().map(renumbered).collect(),
        buffers: Vec::new(),
        names: tensors(constants).map(name).collect(),
        meta,
    };
    let refused = |error: flambeau_ir::CheckError| EngineError::Arguments(error.to_string());
    let inferred = check(graph).map_err(refused)?;
    let results = inferred.results().to_vec();
    let mut graph = inferred.into_inner();
    let first = (numbering.slots.constants + numbering.slots.inputs) as usize;
    let specs = results.iter().filter_map(|content| match content {
        Content::Tensor(spec) => Some(spec),
        Content::Value(_) => None,
    });
    for (meta, spec) in graph.meta[first..].iter_mut().zip(specs) {
        let size = |size: &Expr| match size.as_int().and_then(|size| u32::try_from(size).ok()) {
            Some(size) => MetaDim::Static(size),
            None => MetaDim::Dynamic { min: 0, max: None },
        };
        *meta = TensorMeta::row_major(spec.dtype, spec.dims.iter().map(size).collect());
    }
    check(graph).map_err(refused)
}

fn meta_of(tensor: &Tensor) -> TensorMeta {
    let sizes: Vec<u32> = tensor.shape().iter().map(|&size| size as u32).collect();
    TensorMeta::fixed(tensor.dtype(), &sizes)
}
