//! What a method keeps between runs.

use flambeau_ir::{Checked, Graph, Int, MetaDim, Node, Tid};

use crate::Method;

impl Method {
    /// Positions that the method's caches hold: the smallest axis of a mutable buffer along which runs write at positions that
    /// they compute. `None` if there is no such buffer, or if writes wrap around.
    pub fn cache_len(&self) -> Option<usize> {
        self.delegates.iter().filter_map(|d| cache_len(&d.graph)).min()
    }
}

fn cache_len(graph: &Checked) -> Option<usize> {
    let nodes = || graph.chains.iter().flatten();
    if nodes().any(|n| matches!(n, Node::ModInt(_))) {
        return None;
    }
    nodes().filter_map(|node| written_axis(graph, node)).min()
}

/// Size of the buffer axis that a node writes at computed positions.
fn written_axis(graph: &Graph, node: &Node) -> Option<usize> {
    let (dst, axis) = match node {
        Node::SliceUpdate(n) if matches!(n.start, Int::Vid(_)) => match n.axis {
            Int::Lit(axis) => (n.dst.0, axis),
            Int::Vid(_) => return None,
        },
        Node::IndexCopy(n) => (n.dst.0, i64::from(n.axis)),
        _ => return None,
    };
    buffer_axis(graph, dst, axis)
}

fn buffer_axis(graph: &Graph, buffer: Tid, axis: i64) -> Option<usize> {
    let meta = graph.buffers.contains(&buffer).then(|| graph.meta.get(buffer.0 as usize))??;
    match meta.shape.get(flambeau_tensor::normalize_axis(axis, meta.shape.len())?)? {
        MetaDim::Static(n) => Some(*n as usize),
        MetaDim::Dynamic { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use flambeau_ir::{In, Out, SliceUpdate, SlotCounts, TensorMeta, Vid};
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
    fn computed_positions_tell_the_cache_axis() {
        let len = |g: &Graph| g.chains[0].iter().filter_map(|n| written_axis(g, n)).min();
        assert_eq!(len(&graph(Int::Vid(Vid(0)))), Some(32));
        assert_eq!(len(&graph(Int::Lit(0))), None);
    }
}
