//! State that a method keeps between runs.

use flambeau_ir::{Checked, Graph, Int, MetaDim, Node, TensorMeta, Tid};
use flambeau_tensor::numel;
use flambeau_wire::pte::EValue;

use crate::{Method, Value};

impl Method {
    /// Number of positions in the method's caches. It is the smallest size of a mutable buffer's
    /// axis that runs write at computed positions. `None` if there is no such buffer, or if writes
    /// wrap around.
    pub fn cache_len(&self) -> Option<usize> {
        self.delegates.iter().filter_map(|d| cache_len(&d.graph)).min()
    }

    /// Total bytes of the delegates' mutable buffers with fixed sizes.
    pub fn state_bytes(&self) -> usize {
        self.delegates.iter().map(|d| state_bytes(&d.graph)).sum()
    }

    /// Whether no state persists between runs.
    pub fn is_stateless(&self) -> bool {
        self.carries_nothing() && self.delegates.iter().all(|d| d.graph.buffers.is_empty())
    }

    /// Contents of the value with this name after the last run, or after loading. It is a buffer
    /// outside of delegates, or a constant.
    pub fn attribute(&mut self, name: &str) -> Option<Value> {
        let is_it = |value: &EValue| {
            let EValue::Tensor(tensor) = value else { return false };
            tensor.extra.as_ref().is_some_and(|extra| extra.fully_qualified_name.as_deref() == Some(name))
        };
        let at = self.program.file().plans[self.plan].values.iter().position(is_it)?;
        let shared = self.shared.clone();
        shared.with(self, |method| &mut method.initial, |method| method.initial.get(at).cloned().flatten())
    }

    /// Whether all state consists of buffers with at least `count` rows, written at computed
    /// positions. Then a run at an earlier position finds all rows before it unchanged.
    pub fn keeps_rows(&self, count: usize) -> bool {
        self.carries_nothing() && self.delegates.iter().all(|d| keeps_rows(&d.graph, count))
    }
}

fn state_bytes(graph: &Graph) -> usize {
    let metas = graph.buffers.iter().filter_map(|buffer| graph.meta.get(buffer.0 as usize));
    let of = |meta: &TensorMeta| numel(&meta.static_shape()?)?.checked_mul(meta.dtype.size());
    metas.filter_map(of).fold(0, usize::saturating_add)
}

fn keeps_rows(graph: &Checked, count: usize) -> bool {
    let nodes = || graph.chains.iter().flatten();
    let rows =
        |buffer: Tid| nodes().filter_map(|node| written_axis(graph, node)).filter(|(dst, _)| *dst == buffer).map(|(_, n)| n).min();
    !wraps(graph) && graph.buffers.iter().all(|&buffer| rows(buffer).is_some_and(|rows| rows >= count))
}

/// The mutable buffers, each with the axis of its rows by position. `None` for buffers with other
/// writes, or with writes that wrap around.
pub(crate) fn row_axes(graph: &Checked) -> Vec<(Tid, Option<usize>)> {
    let wraps = wraps(graph);
    let axis = |buffer: Tid| {
        let writes = graph.chains.iter().flatten().filter_map(|node| written(graph, node));
        let mut axes = writes.filter(|(dst, _)| *dst == buffer).map(|(_, axis)| axis);
        let axis = axes.next()??;
        (!wraps && axes.all(|other| other == Some(axis))).then_some(axis)
    };
    graph.buffers.iter().map(|&buffer| (buffer, axis(buffer))).collect()
}

fn cache_len(graph: &Checked) -> Option<usize> {
    if wraps(graph) {
        return None;
    }
    graph.chains.iter().flatten().filter_map(|node| written_axis(graph, node)).map(|(_, len)| len).min()
}

/// Whether writes to a cache wrap around, at positions modulo its length.
fn wraps(graph: &Graph) -> bool {
    let nodes = || graph.chains.iter().flatten();
    let is_remainder = |t: Tid| nodes().any(|n| matches!(n, Node::Remainder(r) if r.out.0 == t));
    nodes().any(|n| match n {
        Node::ModInt(_) => true,
        Node::IndexCopy(n) => is_remainder(n.indices.0),
        _ => false,
    })
}

/// The buffer that a node writes in part, with the written axis if positions are computed.
fn written(graph: &Graph, node: &Node) -> Option<(Tid, Option<usize>)> {
    let (dst, axis) = match node {
        Node::SliceUpdate(n) => match (n.start, n.axis) {
            (Int::Vid(_), Int::Lit(axis)) => (n.dst.0, Some(axis)),
            _ => (n.dst.0, None),
        },
        Node::IndexCopy(n) => (n.dst.0, Some(i64::from(n.axis))),
        _ => return None,
    };
    let meta = graph.buffers.contains(&dst).then(|| graph.meta.get(dst.0 as usize))??;
    Some((dst, axis.and_then(|axis| flambeau_tensor::normalize_axis(axis, meta.shape.len()))))
}

/// The buffer that a node writes at computed positions, with the size of the written axis.
fn written_axis(graph: &Graph, node: &Node) -> Option<(Tid, usize)> {
    let (dst, axis) = written(graph, node)?;
    match graph.meta.get(dst.0 as usize)?.shape.get(axis?)? {
        MetaDim::Static(n) => Some((dst, *n as usize)),
        MetaDim::Dynamic { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use flambeau_ir::{In, IndexCopy, Out, Remainder, SliceUpdate, SlotCounts, Vid};
    use flambeau_tensor::DType;

    use super::*;

    fn graph(start: Int) -> Graph {
        let update = SliceUpdate {
            dst: In(Tid(1)),
            update: In(Tid(0)),
            out: Out(Tid(1)),
            axis: Int::Lit(-2),
            start,
            stop: Int::Lit(9),
            step: 1,
        };
        Graph {
            slots: SlotCounts { inputs: 1, buffers: 1, ..SlotCounts::default() },
            buffers: vec![Tid(1)],
            chains: vec![vec![update.into()]],
            meta: vec![TensorMeta::fixed(DType::F32, &[1, 2, 1, 4]), TensorMeta::fixed(DType::F32, &[1, 2, 32, 4])],
            ..Graph::default()
        }
    }

    #[test]
    fn caches_used_in_turn_are_told_by_their_remainders() {
        let mut ring = graph(Int::Lit(0));
        let places = |out| Remainder { a: In(Tid(0)), b: In(Tid(0)), out: Out(Tid(out)) };
        let copy =
            |indices| IndexCopy { dst: In(Tid(1)), update: In(Tid(0)), indices: In(Tid(indices)), out: Out(Tid(1)), axis: 2 };
        ring.chains = vec![vec![places(2).into(), copy(0).into()]];
        assert!(!wraps(&ring));
        ring.chains = vec![vec![places(2).into(), copy(2).into()]];
        assert!(wraps(&ring));
    }

    #[test]
    fn computed_positions_tell_the_cache_axis() {
        let len = |g: &Graph| g.chains[0].iter().filter_map(|n| written_axis(g, n)).map(|(_, len)| len).min();
        assert_eq!(len(&graph(Int::Vid(Vid(0)))), Some(32));
        assert_eq!(len(&graph(Int::Lit(0))), None);
    }

    #[test]
    fn state_is_counted_in_bytes() {
        assert_eq!(state_bytes(&graph(Int::Lit(0))), 2 * 32 * 4 * 4);
    }
}
