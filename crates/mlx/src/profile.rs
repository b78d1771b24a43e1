//! Measurements of steps. A measured session computes every result and waits for it before the next
//! step.

use std::{sync::Arc, time::Duration};

use flambeau_ir::{Node, Role, Tid, work::bytes_of};

use crate::{cx::Machine, error::Result, values::Slot};

/// Computes the results of a step's nodes and records the step from `start` to now. `at` is the
/// position of the last node in the main chain.
///
/// # Errors
/// If MLX cannot compute it.
pub(crate) fn finish(m: &mut Machine, (at, nodes): (Option<u32>, &[Node]), start: Duration) -> Result<()> {
    let bound = tensors(nodes, |role| role != Role::Read);
    m.api.eval(bound.iter().filter_map(|&tid| slot(m, tid)).map(|slot| &slot.array))?;
    let cost = cost(m, nodes);
    if let (Some(profile), Some(last)) = (&mut m.profile, nodes.last()) {
        profile.add((at, last), name(nodes), start, cost);
    }
    Ok(())
}

/// The kinds of nodes, each once.
fn name(nodes: &[Node]) -> Arc<str> {
    let mut names: Vec<&str> = Vec::new();
    for node in nodes {
        if !names.contains(&node.name()) {
            names.push(node.name());
        }
    }
    names.join("+").into()
}

fn slot(m: &Machine, tid: Tid) -> Option<&Slot> {
    m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref)
}

/// The tensors that nodes name in some role, each once.
fn tensors(nodes: &[Node], wanted: impl Fn(Role) -> bool) -> Vec<Tid> {
    let mut found = Vec::new();
    for tid in nodes.iter().flat_map(|node| node.tensors(&wanted)) {
        if !found.contains(&tid) {
            found.push(tid);
        }
    }
    found
}

/// Bytes moved and operations of a step.
fn cost(m: &Machine, nodes: &[Node]) -> [u64; 2] {
    if let [node] = nodes {
        return [node.bytes(&m.env), node.cost().flops(&m.env)];
    }
    // One kernel computes the nodes for a single token. Their intermediate results never reach
    // memory.
    let flops = nodes.iter().map(|node| node.cost().flops_of_one_row(&m.env)).sum();
    let written = tensors(nodes, |role| role == Role::Write);
    let outer: Vec<Tid> = tensors(nodes, |role| role != Role::Write).into_iter().filter(|t| !written.contains(t)).collect();
    // It reads only a part of a cache.
    let reads_part = outer.iter().any(|tid| m.graph.buffers.contains(tid));
    let last = written.last().map_or(&[][..], std::slice::from_ref);
    [if reads_part { 0 } else { bytes_of(&m.env, &outer) + bytes_of(&m.env, last) }, flops]
}
