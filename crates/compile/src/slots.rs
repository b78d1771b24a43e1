//! Assigns numbered slots to virtual slots.
//!
//! Constants, inputs, outputs and buffers get the numbers of their classes. All other tensors use
//! temporary slots, which are reused after their last reader. A buffer's next contents are written
//! directly into its slot if nothing reads the old contents later. Then updating a cache moves only
//! the changed elements.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use flambeau_ir::{Graph, IdCopy, In, MetaDim, Node, Out, Role, Slot, SlotCounts, SlotRef, TensorMeta, Tid, Vid};
use flambeau_lower::{Constant, Origin, SsaGraph};
use flambeau_tensor::Expr;

/// Larger upper bounds are written as unbounded, as in ExecuTorch.
const MAX_BOUND: i64 = 1 << 30;

/// A graph with its constants and input numbers.
#[derive(Debug)]
pub(crate) struct Slotted {
    pub(crate) graph: Graph,
    /// The constants in slot order. Their keys are the graph's names.
    pub(crate) constants: Vec<(String, Arc<Constant>)>,
    /// Numbers of the method inputs that the graph takes, in the order of its input map.
    pub(crate) inputs: Vec<u32>,
    /// By node of the main chain, the number of its call.
    pub(crate) calls: Vec<u32>,
}

/// Maps virtual slots to numbered slots.
#[derive(Default)]
struct Numbering {
    tensors: HashMap<Tid, Tid>,
    values: HashMap<Vid, Vid>,
}

/// Numbers every slot of an SSA graph. Keys of named data start with `prefix`, and `buffer_names`
/// names the buffers. With `keep_inputs`, inputs that no node reads stay in the input map.
pub(crate) fn assign(mut ssa: SsaGraph, prefix: &str, buffer_names: &[String], keep_inputs: bool) -> Slotted {
    save_old_contents(&mut ssa);
    let written_back = write_back(&mut ssa);
    let outputs = separate_outputs(&mut ssa, &written_back);
    let reads = read_slots(&ssa);
    let of_origin = |want: &dyn Fn(&Origin) -> bool| -> Vec<Tid> {
        let all = (0..ssa.tensors.len()).map(|t| Tid(t as u32)).filter(|t| want(&ssa.tensors[t.0 as usize].origin));
        let is_kept = |t: &Tid| keep_inputs && matches!(ssa.tensors[t.0 as usize].origin, Origin::Input(_));
        all.filter(|t| reads.contains(&Slot::Tensor(*t)) || is_kept(t)).collect()
    };
    let constants = of_origin(&|o| matches!(o, Origin::Constant(_)));
    let mut inputs = of_origin(&|o| matches!(o, Origin::Input(_)));
    inputs.sort_by_key(|t| input_number(&ssa, *t));
    let fixed = [constants.len(), inputs.len(), outputs.len(), ssa.buffers.len()].map(|n| n as u32);
    let mut numbering = Numbering::default();
    let buffers: Vec<Tid> = ssa.buffers.iter().map(|b| b.0).collect();
    let in_order = constants.iter().chain(&inputs).chain(&outputs).chain(&buffers);
    for (i, &t) in in_order.enumerate() {
        numbering.tensors.insert(t, Tid(i as u32));
    }
    for (&t, &buffer) in &written_back {
        let slot = numbering.tensors[&ssa.buffers[buffer].0];
        numbering.tensors.insert(t, slot);
    }
    let first_temp = fixed.iter().sum();
    let temps = number_temps(&ssa, &mut numbering, first_temp);
    number_values(&ssa, &mut numbering, keep_inputs);
    let [n_constants, n_inputs, n_outputs, n_buffers] = fixed;
    let slots = SlotCounts { constants: n_constants, inputs: n_inputs, outputs: n_outputs, buffers: n_buffers, temps };
    let meta_of = |t: &Tid| meta(&ssa, *t);
    let meta = constants.iter().chain(&inputs).chain(&outputs).chain(&buffers).map(meta_of).collect();
    let keys = unique_keys(&ssa, &constants, prefix);
    let mut names: Vec<(String, Slot)> =
        keys.iter().zip(&constants).map(|((key, _), t)| (key.clone(), Slot::Tensor(numbering.tensors[t]))).collect();
    names.extend(buffer_names.iter().zip(&buffers).map(|(n, t)| (format!("{prefix}/{n}"), Slot::Tensor(numbering.tensors[t]))));
    let (input_slots, input_numbers) = input_map(&ssa, &inputs, &numbering);
    let renumbered = |slot: &Slot| match slot {
        Slot::Tensor(t) => Slot::Tensor(numbering.tensors[t]),
        Slot::Value(v) => Slot::Value(numbering.values[v]),
    };
    let graph = Graph {
        slots,
        values: numbering.values.len() as u32,
        main: 0,
        init: None,
        inputs: input_slots,
        outputs: ssa.results.iter().map(renumbered).collect(),
        buffers: buffers.iter().map(|t| numbering.tensors[t]).collect(),
        names,
        meta,
        chains: ssa.chains.iter().map(|c| c.iter().map(|e| renumber(e.node.clone(), &numbering)).collect()).collect(),
    };
    let calls = ssa.chains[0].iter().map(|entry| entry.call).collect();
    Slotted { graph, constants: keys, inputs: input_numbers, calls }
}

fn input_number(ssa: &SsaGraph, t: Tid) -> u32 {
    match ssa.tensors[t.0 as usize].origin {
        Origin::Input(n) => n,
        _ => u32::MAX,
    }
}

/// Tensor and integer inputs, sorted by number.
fn input_map(ssa: &SsaGraph, tensors: &[Tid], numbering: &Numbering) -> (Vec<Slot>, Vec<u32>) {
    let tensors = tensors.iter().map(|t| (input_number(ssa, *t), Slot::Tensor(numbering.tensors[t])));
    let values = ssa.value_inputs.iter().filter_map(|(n, v)| Some((*n, Slot::Value(*numbering.values.get(v)?))));
    let mut all: Vec<(u32, Slot)> = tensors.chain(values).collect();
    all.sort_by_key(|(n, _)| *n);
    let (numbers, slots) = all.into_iter().unzip();
    (slots, numbers)
}

/// Copies old contents of buffers that a run returns, or stores in another buffer, before they are
/// overwritten.
fn save_old_contents(ssa: &mut SsaGraph) {
    let changed: HashSet<Tid> = ssa.buffers.iter().filter(|b| b.0 != b.1).map(|b| b.0).collect();
    for i in 0..ssa.results.len() {
        if let Slot::Tensor(t) = ssa.results[i]
            && changed.contains(&t)
        {
            ssa.results[i] = Slot::Tensor(copy_of(ssa, t));
        }
    }
    for i in 0..ssa.buffers.len() {
        let (before, after) = ssa.buffers[i];
        if before != after && changed.contains(&after) {
            ssa.buffers[i].1 = copy_of(ssa, after);
        }
    }
}

/// Writes the next contents of buffers in place, and appends copies where that is impossible.
///
/// Returns the slots that are replaced by a buffer, with the buffer's number.
fn write_back(ssa: &mut SsaGraph) -> BTreeMap<Tid, usize> {
    let mut in_place = BTreeMap::new();
    for b in 0..ssa.buffers.len() {
        let (before, after) = ssa.buffers[b];
        match versions(ssa, before, after).filter(|v| v.iter().all(|t| !in_place.contains_key(t))) {
            Some(versions) => in_place.extend(versions.into_iter().map(|t| (t, b))),
            None => {
                let call = ssa.chains[0].last().map_or(0, |e| e.call);
                let slot = Tid(ssa.tensors.len() as u32);
                let spec = ssa.spec(before).clone();
                ssa.tensors.push(flambeau_lower::TensorInfo { spec, origin: Origin::Node });
                let node = IdCopy { x: In(after), out: Out(slot) }.into();
                ssa.chains[0].push(flambeau_lower::SsaNode { node, call });
                in_place.insert(slot, b);
            }
        }
    }
    in_place
}

/// The chain of updates from a buffer's old contents to its new contents. `None` unless each update
/// follows the last read of the previous contents.
fn versions(ssa: &SsaGraph, before: Tid, after: Tid) -> Option<Vec<Tid>> {
    let main = &ssa.chains[0];
    let mut chain = Vec::new();
    let mut at = after;
    let mut next_write = main.len();
    while at != before {
        let i = main.iter().position(|e| writes(&e.node, at))?;
        let previous = match &main[i].node {
            Node::SliceUpdate(n) => n.dst.0,
            Node::IndexCopy(n) => n.dst.0,
            _ => return None,
        };
        let left_elsewhere = at != after && ssa.buffers.iter().any(|b| b.1 == at);
        if left_elsewhere || read_later(ssa, at, next_write) || ssa.results.contains(&Slot::Tensor(at)) {
            return None;
        }
        chain.push(at);
        next_write = i;
        at = previous;
    }
    (!read_later(ssa, before, next_write)).then_some(chain)
}

/// Whether a main-chain node after number `from` reads the slot, directly or through a chain that
/// it runs.
fn read_later(ssa: &SsaGraph, t: Tid, from: usize) -> bool {
    let mut stack: Vec<&Node> = ssa.chains[0].iter().skip(from + 1).map(|e| &e.node).collect();
    while let Some(node) = stack.pop() {
        if reads(node, t) {
            return true;
        }
        stack.extend(node.chains().iter().flat_map(|c| ssa.chains[c.0 as usize].iter().map(|e| &e.node)));
    }
    false
}

fn touches(node: &Node, role_is: impl Fn(Role) -> bool, t: Tid) -> bool {
    let mut found = false;
    node.walk(&mut |role, slot| found |= role_is(role) && slot == Slot::Tensor(t));
    found
}

fn reads(node: &Node, t: Tid) -> bool {
    touches(node, |r| r != Role::Write, t)
}

fn writes(node: &Node, t: Tid) -> bool {
    touches(node, |r| r != Role::Read, t)
}

/// Gives every tensor result a separate slot that a node writes. Returns these slots.
fn separate_outputs(ssa: &mut SsaGraph, written_back: &BTreeMap<Tid, usize>) -> Vec<Tid> {
    let mut seen = HashSet::new();
    let mut outputs = Vec::new();
    for i in 0..ssa.results.len() {
        let Slot::Tensor(t) = ssa.results[i] else { continue };
        let own = matches!(ssa.tensors[t.0 as usize].origin, Origin::Node) && !written_back.contains_key(&t) && seen.insert(t);
        let slot = if own { t } else { copy_of(ssa, t) };
        ssa.results[i] = Slot::Tensor(slot);
        outputs.push(slot);
    }
    outputs
}

fn copy_of(ssa: &mut SsaGraph, t: Tid) -> Tid {
    let slot = Tid(ssa.tensors.len() as u32);
    let spec = ssa.spec(t).clone();
    ssa.tensors.push(flambeau_lower::TensorInfo { spec, origin: Origin::Node });
    let call = ssa.chains[0].last().map_or(0, |e| e.call);
    let node = IdCopy { x: In(t), out: Out(slot) }.into();
    ssa.chains[0].push(flambeau_lower::SsaNode { node, call });
    slot
}

/// Every slot that a node or a result reads.
fn read_slots(ssa: &SsaGraph) -> HashSet<Slot> {
    let mut all: HashSet<Slot> = ssa.results.iter().copied().collect();
    for entry in ssa.chains.iter().flatten() {
        entry.node.walk(&mut |role, slot| {
            if role != Role::Write {
                all.insert(slot);
            }
        });
    }
    all
}

/// Numbers temporary slots of all chains and reuses each after its last reader. Returns their
/// count.
fn number_temps(ssa: &SsaGraph, numbering: &mut Numbering, first: u32) -> u32 {
    let last_read = last_reads(ssa);
    let mut free: Vec<u32> = Vec::new();
    let mut next = first;
    // Slots of sub-chains are never reused, because a sub-chain may run many times or never.
    for entry in ssa.chains.iter().skip(1).flatten() {
        entry.node.walk(&mut |_, slot| claim(slot, numbering, &mut Vec::new(), &mut next));
    }
    for (i, entry) in ssa.chains[0].iter().enumerate() {
        let dies = |slot: Slot| matches!(slot, Slot::Tensor(t) if last_read.get(&t) == Some(&i));
        let mut released = Vec::new();
        entry.node.walk(&mut |role, slot| {
            if let (Role::Read, Slot::Tensor(t), true) = (role, slot, dies(slot))
                && let Some(n) = numbering.tensors.get(&t).filter(|n| n.0 >= first)
                && !released.contains(&n.0)
            {
                released.push(n.0);
            }
        });
        // A node reads all operands before it writes, so a result may take a dying operand's slot.
        free.extend(released);
        free.sort_unstable_by(|a, b| b.cmp(a));
        entry.node.walk(&mut |role, slot| {
            if role != Role::Read {
                claim(slot, numbering, &mut free, &mut next);
            }
        });
        // A result that nothing reads is free at once.
        entry.node.walk(&mut |role, slot| {
            if let (Role::Write, Slot::Tensor(t)) = (role, slot)
                && !last_read.contains_key(&t)
                && let Some(n) = numbering.tensors.get(&t).filter(|n| n.0 >= first)
            {
                free.push(n.0);
            }
        });
    }
    next - first
}

fn claim(slot: Slot, numbering: &mut Numbering, free: &mut Vec<u32>, next: &mut u32) {
    if let Slot::Tensor(t) = slot {
        numbering.tensors.entry(t).or_insert_with(|| {
            Tid(free.pop().unwrap_or_else(|| {
                *next += 1;
                *next - 1
            }))
        });
    }
}

/// By slot, the last main-chain node that reads it, directly or through a chain that it runs.
fn last_reads(ssa: &SsaGraph) -> HashMap<Tid, usize> {
    let mut last = HashMap::new();
    for (i, entry) in ssa.chains[0].iter().enumerate() {
        let mut stack = vec![&entry.node];
        while let Some(node) = stack.pop() {
            node.walk(&mut |role, slot| {
                if let (Role::Read | Role::ReadWrite, Slot::Tensor(t)) = (role, slot) {
                    last.insert(t, i);
                }
            });
            stack.extend(node.chains().iter().flat_map(|c| ssa.chains[c.0 as usize].iter().map(|e| &e.node)));
        }
    }
    last
}

fn number_values(ssa: &SsaGraph, numbering: &mut Numbering, keep_inputs: bool) {
    let mut number = |v: Vid| {
        let next = Vid(numbering.values.len() as u32);
        numbering.values.entry(v).or_insert(next);
    };
    for entry in ssa.chains.iter().flatten() {
        entry.node.walk(&mut |_, slot| {
            if let Slot::Value(v) = slot {
                number(v);
            }
        });
    }
    for slot in &ssa.results {
        if let Slot::Value(v) = slot {
            number(*v);
        }
    }
    if keep_inputs {
        ssa.value_inputs.iter().for_each(|(_, v)| number(*v));
    }
}

fn renumber(mut node: Node, numbering: &Numbering) -> Node {
    node.walk_mut(&mut |_, slot| match slot {
        SlotRef::Tensor(t) => *t = numbering.tensors.get(t).copied().unwrap_or(*t),
        SlotRef::Value(v) => *v = numbering.values.get(v).copied().unwrap_or(*v),
    });
    node
}

/// Type and sizes of a slot, as a plan states them.
pub(crate) fn meta(ssa: &SsaGraph, t: Tid) -> TensorMeta {
    let spec = ssa.spec(t);
    TensorMeta::row_major(spec.dtype, spec.dims.iter().map(|d| meta_dim(ssa, d)).collect())
}

fn meta_dim(ssa: &SsaGraph, dim: &Expr) -> MetaDim {
    if let Some(v) = dim.as_int() {
        return MetaDim::Static(u32::try_from(v).unwrap_or(0));
    }
    let (min, max) = ssa.bounds(dim);
    let min = u32::try_from(min.max(0)).unwrap_or(0);
    MetaDim::Dynamic { min, max: (max <= MAX_BOUND).then(|| u32::try_from(max.max(0)).unwrap_or(0)) }
}

/// Keys of the constants. Different constants with equal names get numbers.
fn unique_keys(ssa: &SsaGraph, constants: &[Tid], prefix: &str) -> Vec<(String, Arc<Constant>)> {
    let mut taken = HashSet::new();
    let mut keys = Vec::new();
    for constant in constants.iter().filter_map(|t| ssa.constant(*t)) {
        let plain = format!("{prefix}/{}", constant.name);
        let numbered = (1..).map(|n| format!("{plain}.{n}"));
        let key = std::iter::once(plain.clone()).chain(numbered).find(|k| !taken.contains(k)).unwrap_or_default();
        taken.insert(key.clone());
        keys.push((key, constant.clone()));
    }
    keys
}

#[cfg(test)]
mod tests;
