//! What measured sessions tell of a step: every result is computed and waited for before the next step begins.

use std::{sync::Arc, time::Instant};

use flambeau_ir::{In, Node, Role, Slot as GraphSlot, Tid};

use crate::{
    cx::{Machine, Slot},
    error::Result,
};

/// Computes what the nodes of a step have bound, and counts the step, which began at `start`.
///
/// # Errors
/// If MLX cannot compute it.
pub(crate) fn finish(m: &mut Machine, nodes: &[Node], start: Instant) -> Result<()> {
    let bound = tensors(nodes, |role| role != Role::Read);
    m.api.eval(bound.iter().filter_map(|&tid| slot(m, tid)).map(|slot| &slot.array))?;
    let cost = [bytes(m, nodes), nodes.iter().map(|node| flops(m, node, nodes.len() > 1)).sum()];
    if let (Some(profile), Some(last)) = (&mut m.profile, nodes.last()) {
        profile.add(last, name(nodes), start, cost);
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
    for node in nodes {
        node.walk(&mut |role, slot| match slot {
            GraphSlot::Tensor(tid) if wanted(role) && !found.contains(&tid) => found.push(tid),
            _ => {}
        });
    }
    found
}

fn size(m: &Machine, tid: Tid) -> u64 {
    slot(m, tid).map_or(0, |slot| (numel(slot) * slot.dtype.size()) as u64)
}

fn numel(slot: &Slot) -> usize {
    slot.shape.iter().product()
}

/// Bytes of operands and results; 0 where they say little of what is moved, as in views, and where indices decide.
fn bytes(m: &Machine, nodes: &[Node]) -> u64 {
    let sum = |tids: &[Tid]| tids.iter().map(|&tid| size(m, tid)).sum::<u64>();
    let written = tensors(nodes, |role| role == Role::Write);
    let [node] = nodes else {
        // One kernel keeps what lies between its nodes to itself, and of a cache it reads a part.
        let outer: Vec<Tid> = tensors(nodes, |role| role != Role::Write).into_iter().filter(|t| !written.contains(t)).collect();
        let is_part = outer.iter().any(|tid| m.graph.buffers.contains(tid));
        return if is_part { 0 } else { sum(&outer) + written.last().map_or(0, |&tid| size(m, tid)) };
    };
    match node {
        Node::IdCopy(_) | Node::ExpandDims(_) | Node::Squeeze(_) | Node::Reshape(_) | Node::Transpose(_) | Node::Slice(_) => 0,
        Node::Split(_) | Node::BroadcastTo(_) | Node::AsStrided(_) => 0,
        Node::GatherMm(_) | Node::GatherQmm(_) | Node::UpdateAndAttend(_) | Node::MetalKernel(_) => 0,
        Node::Take(_) | Node::TakeAlongAxis(_) | Node::Gather(_) => 2 * sum(&written),
        Node::SliceUpdate(n) => 2 * size(m, n.update.0),
        Node::IndexCopy(n) => 2 * size(m, n.update.0),
        _ => sum(&tensors(nodes, |_| true)),
    }
}

/// Floating-point operations of a product; in a kernel for several nodes there is one token.
fn flops(m: &Machine, node: &Node, is_one_token: bool) -> u64 {
    let elements = |x: In| slot(m, x.0).map_or(0, numel);
    let last = |x: In| slot(m, x.0).and_then(|slot| slot.shape.last().copied()).unwrap_or(0);
    let out = |tid: Tid| slot(m, tid).map_or(0, numel);
    let products = match node {
        Node::Addmm(n) if is_one_token => elements(n.mat2),
        Node::QuantizedMatmul(n) if is_one_token => elements(n.w) * 32 / n.bits.max(1) as usize,
        Node::Addmm(n) => out(n.out.0) * last(n.mat1),
        Node::QuantizedMatmul(n) => out(n.out.0) * last(n.x),
        Node::GatherMm(n) => out(n.out.0) * last(n.a),
        Node::GatherQmm(n) => out(n.out.0) * last(n.x),
        Node::Sdpa(n) if !is_one_token => {
            let keys = slot(m, n.k.0).and_then(|slot| slot.shape.get(2).copied()).unwrap_or(0);
            (elements(n.q) + out(n.out.0)) * keys
        }
        Node::Conv1D(n) => out(n.out.0) * window(m, n.w),
        Node::Conv2D(n) => out(n.out.0) * window(m, n.w),
        Node::Conv3D(n) => out(n.out.0) * window(m, n.w),
        _ => 0,
    };
    2 * products as u64
}

/// Elements of a convolution's weight `[O, .., C]` that one result takes.
fn window(m: &Machine, w: In) -> usize {
    slot(m, w.0).map_or(0, |slot| numel(slot) / slot.shape.first().copied().unwrap_or(1).max(1))
}
