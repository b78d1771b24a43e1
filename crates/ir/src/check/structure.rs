//! Checks that do not depend on the contents of slots.

use std::collections::HashSet;

use super::{Fault, Place, Result, refuse};
use crate::{
    Graph, MetaDim, Node, Role, Slot, SlotClass, TensorMeta, Tid,
    limits::{
        FREE_VISITS, MAX_CHAIN_DEPTH, MAX_CHAIN_NODES, MAX_CHAINS, MAX_CREATED_BYTES, MAX_DIM, MAX_LIST, MAX_MAP_ENTRIES, MAX_RANK,
        MAX_TENSOR_BYTES, MAX_TENSOR_SLOTS, MAX_VALUE_SLOTS, MAX_VISITED, VISITS_PER_ENTRY,
    },
};

pub(super) fn check(graph: &Graph) -> Result<()> {
    check_counts(graph)?;
    check_maps(graph)?;
    check_names(graph)?;
    check_meta(graph)?;
    let calls = check_calls(graph)?;
    for (chain, nodes) in graph.chains.iter().enumerate() {
        for (instruction, node) in nodes.iter().enumerate() {
            check_slots(graph, node, calls.init_only[chain]).or_else(|(slot, fault)| {
                let field = slot.and_then(|slot| field_of(node, slot));
                refuse(Place::Node { chain, instruction, node: node.name(), field }, fault)
            })?;
        }
    }
    Ok(())
}

/// Name of the first field that holds the slot.
pub(super) fn field_of(node: &Node, slot: Slot) -> Option<&'static str> {
    let text = match slot {
        Slot::Tensor(t) => t.to_string(),
        Slot::Value(v) => v.to_string(),
    };
    let holds = |value: &serde_json::Value| match value {
        serde_json::Value::Array(items) => items.iter().any(|item| item.as_str() == Some(&text)),
        value => value.as_str() == Some(&text),
    };
    node.fields().into_iter().find(|(_, value)| holds(value)).map(|(name, _)| name)
}

fn check_counts(graph: &Graph) -> Result<()> {
    let counts = [
        ("tensor slots", graph.slots.total(), MAX_TENSOR_SLOTS),
        ("values", graph.values.into(), MAX_VALUE_SLOTS.into()),
        ("chains", graph.chains.len() as u64, MAX_CHAINS as u64),
        ("inputs", graph.inputs.len() as u64, MAX_MAP_ENTRIES as u64),
        ("outputs", graph.outputs.len() as u64, MAX_MAP_ENTRIES as u64),
        ("buffers", graph.buffers.len() as u64, MAX_MAP_ENTRIES as u64),
        ("names", graph.names.len() as u64, MAX_MAP_ENTRIES as u64),
        ("metadata entries", graph.meta.len() as u64, MAX_MAP_ENTRIES as u64),
    ];
    if let Some(&(what, found, limit)) = counts.iter().find(|(_, found, limit)| found > limit) {
        return refuse(Place::Graph, Fault::TooMany { what, found, limit });
    }
    for (i, chain) in graph.chains.iter().enumerate() {
        if chain.len() > MAX_CHAIN_NODES {
            let (found, limit) = (chain.len() as u64, MAX_CHAIN_NODES as u64);
            return refuse(Place::Chain(i), Fault::TooMany { what: "nodes", found, limit });
        }
    }
    let chains = graph.chains.len();
    match [Some(graph.main), graph.init].into_iter().flatten().find(|&c| c as usize >= chains) {
        Some(missing) => refuse(Place::Graph, Fault::NoChain { found: missing.into(), chains }),
        None => Ok(()),
    }
}

/// Refuses a map entry that names no slot or a tensor slot of another class. If entries must be
/// distinct, repeated entries are refused as well.
fn check_map(graph: &Graph, list: &'static str, slots: &[Slot], class: SlotClass, distinct: bool) -> Result<()> {
    let mut seen = HashSet::new();
    for (index, &slot) in slots.iter().enumerate() {
        let place = || Place::Entry { list, index };
        match slot {
            Slot::Value(vid) if !graph.has_value(vid) => return refuse(place(), Fault::NoSlot(slot)),
            Slot::Value(_) => {}
            Slot::Tensor(tid) => match graph.slots.class(tid) {
                None => return refuse(place(), Fault::NoSlot(slot)),
                Some(found) if found != class => return refuse(place(), Fault::Class { slot: tid, found, expected: class }),
                Some(_) => {}
            },
        }
        if distinct && !seen.insert(slot) {
            return refuse(place(), Fault::Twice(slot));
        }
    }
    Ok(())
}

fn check_maps(graph: &Graph) -> Result<()> {
    check_map(graph, "input", &graph.inputs, SlotClass::Input, true)?;
    check_map(graph, "output", &graph.outputs, SlotClass::Output, false)?;
    let buffers: Vec<Slot> = graph.buffers.iter().map(|&t| Slot::Tensor(t)).collect();
    check_map(graph, "buffer", &buffers, SlotClass::Buffer, true)?;
    let listed: HashSet<Tid> = graph.buffers.iter().copied().collect();
    match (0..graph.slots.buffers).map(|i| graph.slot(SlotClass::Buffer, i)).find(|tid| !listed.contains(tid)) {
        Some(tid) => refuse(Place::Graph, Fault::Unmapped(tid)),
        None => Ok(()),
    }
}

fn check_names(graph: &Graph) -> Result<()> {
    let mut named = HashSet::new();
    for (index, (name, slot)) in graph.names.iter().enumerate() {
        let place = Place::Entry { list: "name", index };
        match *slot {
            Slot::Value(vid) if !graph.has_value(vid) => return refuse(place, Fault::NoSlot(*slot)),
            Slot::Value(_) => {}
            Slot::Tensor(tid) => match graph.slots.class(tid) {
                None => return refuse(place, Fault::NoSlot(*slot)),
                Some(SlotClass::Constant) if name.is_empty() => return refuse(place, Fault::Unnamed(tid)),
                Some(_) => drop(named.insert(tid)),
            },
        }
    }
    match (0..graph.slots.constants).map(Tid).find(|tid| !named.contains(tid)) {
        Some(tid) => refuse(Place::Graph, Fault::Unnamed(tid)),
        None => Ok(()),
    }
}

fn check_meta(graph: &Graph) -> Result<()> {
    if graph.meta.len() as u64 != graph.slots.non_temp() {
        let (found, expected) = (graph.meta.len(), graph.slots.non_temp());
        return refuse(Place::Graph, Fault::MetaCount { found, expected });
    }
    for (index, meta) in graph.meta.iter().enumerate() {
        let slot = Tid(index as u32);
        let wrong = meta_fault(meta).or_else(|| match graph.slots.class(slot) {
            Some(SlotClass::Constant) => storage_fault(meta, MAX_TENSOR_BYTES),
            Some(SlotClass::Buffer) => storage_fault(meta, MAX_CREATED_BYTES),
            _ => None,
        });
        if let Some(what) = wrong {
            return refuse(Place::Entry { list: "metadata", index }, Fault::Meta { slot, what });
        }
    }
    Ok(())
}

fn meta_fault(meta: &TensorMeta) -> Option<String> {
    if meta.shape.len() > MAX_RANK {
        return Some(format!("rank {}, at most {MAX_RANK} is allowed", meta.shape.len()));
    }
    if !meta.dtype.is_node_dtype() {
        return Some(format!("element type {} does not occur in graphs", meta.dtype));
    }
    if meta.dim_order.as_ref().is_some_and(|order| !order.iter().copied().eq(0..meta.shape.len() as u8)) {
        return Some("the dim order is not row-major".to_owned());
    }
    meta.shape.iter().find_map(|dim| match *dim {
        MetaDim::Static(n) if i64::from(n) > MAX_DIM => Some(format!("size {n} does not fit 32 bits")),
        MetaDim::Dynamic { min, max: Some(max) } if min > max => Some(format!("a size is bounded by {min} and {max}")),
        MetaDim::Dynamic { min, .. } if i64::from(min) > MAX_DIM => Some(format!("size {min} does not fit 32 bits")),
        _ => None,
    })
}

/// Checks the metadata of a slot with its own storage.
fn storage_fault(meta: &TensorMeta, max_bytes: i64) -> Option<String> {
    let Some(shape) = meta.static_shape() else { return Some("the shape is dynamic".to_owned()) };
    let bytes = shape.iter().fold(meta.dtype.size() as i64, |n, &d| n.saturating_mul(d as i64));
    (bytes > max_bytes).then(|| format!("{bytes} bytes, at most {max_bytes} are allowed"))
}

/// Refuses missing slots and writes to read-only slots. The error names the slot if it concerns
/// one.
fn check_slots(graph: &Graph, node: &Node, init_only: bool) -> Result<(), (Option<Slot>, Fault)> {
    if node.entries() > MAX_LIST {
        let (found, limit) = (node.entries() as u64, MAX_LIST as u64);
        return Err((None, Fault::TooMany { what: "list entries", found, limit }));
    }
    let mut wrong = None;
    node.walk(&mut |role, slot| {
        let fault = match slot {
            Slot::Value(vid) => (!graph.has_value(vid)).then_some(Fault::NoSlot(slot)),
            Slot::Tensor(tid) => match (graph.slots.class(tid), role) {
                (None, _) => Some(Fault::NoSlot(slot)),
                (Some(_), Role::Read) => None,
                (Some(SlotClass::Input), _) => Some(Fault::WritesInput(tid)),
                (Some(SlotClass::Constant), _) if !init_only => Some(Fault::WritesConstant(tid)),
                _ => None,
            },
        };
        if wrong.is_none() {
            wrong = fault.map(|fault| (Some(slot), fault));
        }
    });
    wrong.map_or(Ok(()), Err)
}

/// Facts of every chain from the call graph.
struct Calls {
    /// By chain, whether only the init chain reaches it.
    init_only: Vec<bool>,
}

fn check_calls(graph: &Graph) -> Result<Calls> {
    let mut callees: Vec<Vec<usize>> = Vec::with_capacity(graph.chains.len());
    for (chain, nodes) in graph.chains.iter().enumerate() {
        let mut own = Vec::new();
        for (instruction, node) in nodes.iter().enumerate() {
            for id in node.chains() {
                if id.0 as usize >= graph.chains.len() {
                    let place = Place::Node { chain, instruction, node: node.name(), field: None };
                    return refuse(place, Fault::NoChain { found: id.0.into(), chains: graph.chains.len() });
                }
                own.push(id.0 as usize);
            }
        }
        callees.push(own);
    }
    check_nesting(graph, &callees)?;
    let from_main = reached(&callees, graph.main as usize);
    let from_init = graph.init.map_or_else(|| vec![false; callees.len()], |init| reached(&callees, init as usize));
    Ok(Calls { init_only: from_init.iter().zip(&from_main).map(|(init, main)| *init && !main).collect() })
}

/// Chains in an order with callees first. A chain that reaches itself is refused.
fn callees_first(callees: &[Vec<usize>]) -> Result<Vec<usize>> {
    let mut callers: Vec<Vec<usize>> = vec![Vec::new(); callees.len()];
    let mut waiting: Vec<usize> = callees.iter().map(Vec::len).collect();
    for (caller, own) in callees.iter().enumerate() {
        own.iter().for_each(|&callee| callers[callee].push(caller));
    }
    let mut order: Vec<usize> = (0..callees.len()).filter(|&c| waiting[c] == 0).collect();
    let mut next = 0;
    while let Some(&done) = order.get(next) {
        next += 1;
        for &caller in &callers[done] {
            waiting[caller] -= 1;
            if waiting[caller] == 0 {
                order.push(caller);
            }
        }
    }
    match waiting.iter().position(|&n| n > 0) {
        Some(chain) => refuse(Place::Chain(on_cycle(callees, &waiting, chain)), Fault::Recursion),
        None => Ok(order),
    }
}

/// Finds a chain that reaches itself, starting at a waiting chain. Every waiting chain has a
/// waiting callee.
fn on_cycle(callees: &[Vec<usize>], waiting: &[usize], from: usize) -> usize {
    let mut seen = HashSet::new();
    let mut chain = from;
    while seen.insert(chain) {
        chain = callees[chain].iter().copied().find(|&callee| waiting[callee] > 0).unwrap_or(chain);
    }
    chain
}

/// Bounds the depth of calls, and the number of visits of a pass that follows calls.
fn check_nesting(graph: &Graph, callees: &[Vec<usize>]) -> Result<()> {
    let (mut depth, mut visited) = (vec![1u64; callees.len()], vec![0u64; callees.len()]);
    let mut entries = 0u64;
    for chain in callees_first(callees)? {
        let own: usize = graph.chains[chain].iter().map(Node::entries).sum();
        entries = entries.saturating_add(own as u64);
        visited[chain] = callees[chain].iter().fold(own as u64, |n, &c| n.saturating_add(visited[c]));
        depth[chain] = callees[chain].iter().map(|&c| depth[c] + 1).max().unwrap_or(1);
    }
    let visits = MAX_VISITED.min(entries.saturating_mul(VISITS_PER_ENTRY).saturating_add(FREE_VISITS));
    for root in [Some(graph.main), graph.init].into_iter().flatten().map(|c| c as usize) {
        let bounds = [("nested chains", depth[root], MAX_CHAIN_DEPTH), ("node entries on all paths", visited[root], visits)];
        if let Some(&(what, found, limit)) = bounds.iter().find(|(_, found, limit)| found > limit) {
            return refuse(Place::Chain(root), Fault::TooMany { what, found, limit });
        }
    }
    Ok(())
}

/// By chain, whether `from` reaches it, including itself.
fn reached(callees: &[Vec<usize>], from: usize) -> Vec<bool> {
    let mut seen = vec![false; callees.len()];
    let mut open = vec![from];
    while let Some(chain) = open.pop() {
        if !std::mem::replace(&mut seen[chain], true) {
            open.extend(&callees[chain]);
        }
    }
    seen
}
