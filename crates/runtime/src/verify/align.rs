//! Which nodes of two graphs correspond.

use std::hash::{DefaultHasher, Hash, Hasher};

use flambeau_ir::{Graph, Node};
use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::difference::weights_of;

/// For each node of `graph`'s main chain, the corresponding node of `other`'s main chain.
///
/// Nodes with weights correspond by the weights' module, because quantization changes the kind of
/// node. Other nodes correspond by kind. Correspondences keep the order of both graphs.
pub fn align(graph: &Graph, other: &Graph) -> Vec<Option<usize>> {
    let keys = |graph: &Graph| {
        let nodes = graph.chains.get(graph.main as usize).map(Vec::as_slice).unwrap_or_default();
        nodes.iter().map(|node| key_of(graph, node)).collect::<Vec<_>>()
    };
    let (keys, other) = (keys(graph), keys(other));
    let mut pairs = vec![None; keys.len()];
    for (at, corresponding) in pairs_of(&keys, &other) {
        pairs[at] = Some(corresponding);
    }
    pairs
}

/// Positions of equal keys in both lists, in order.
fn pairs_of(keys: &[u64], other: &[u64]) -> Vec<(usize, usize)> {
    let pairs = |op: DiffOp| match op {
        DiffOp::Equal { old_index, new_index, len } => (0..len).map(|i| (old_index + i, new_index + i)).collect(),
        _ => Vec::new(),
    };
    capture_diff_slices(Algorithm::Patience, keys, other).into_iter().flat_map(pairs).collect()
}

/// The key of a node. Corresponding nodes have equal keys.
fn key_of(graph: &Graph, node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    match weights_of(graph, node).iter().map(|name| module_of(name)).min() {
        Some(module) => module.hash(&mut hasher),
        None => node.name().hash(&mut hasher),
    }
    hasher.finish()
}

/// The path of the module that owns a weight: without the writer's prefix and the weight's own
/// name.
fn module_of(name: &str) -> &str {
    let name = name.split_once('/').map_or(name, |(_, name)| name);
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_correspond_by_the_modules_of_their_weights() {
        let graph = |names: [&str; 2], nodes: &str| -> Graph {
            let [first, second] = names;
            let text = format!(
                "slots constants=2 inputs=1 outputs=1 temps=2\nmain 0\nname t0 \"{first}\"\nname t1 \"{second}\"\nchain 0\n{nodes}"
            );
            text.parse().unwrap()
        };
        let plain = graph(
            ["0000/up.weight", "0000/down.weight"],
            "  Multiply a=t2 b=t0 out=t4\n  Exp x=t4 out=t5\n  Multiply a=t5 b=t1 out=t3\n",
        );
        let other = graph(
            ["0001/up.weight_q", "0001/down.weight_q"],
            "  Neg x=t2 out=t4\n  Add a=t2 b=t0 out=t4\n  Exp x=t4 out=t5\n  Sin x=t5 out=t5\n  Add a=t5 b=t1 out=t3\n",
        );
        assert_eq!(align(&plain, &other), [Some(1), Some(2), Some(4)]);
    }
}
