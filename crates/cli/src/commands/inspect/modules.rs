//! The module that each node belongs to.

use flambeau::ir::{Graph, Node, Slot, SlotClass};

/// Module path of each node of the main chain. A node without an entry in `known` gets the module
/// of its weights, or the common path of its neighbours.
pub(super) fn module_paths(graph: &Graph, known: impl Fn(usize) -> Option<String>) -> Vec<String> {
    let nodes = graph.chains.get(graph.main as usize).map(Vec::as_slice).unwrap_or_default();
    let own: Vec<Option<String>> =
        nodes.iter().enumerate().map(|(at, node)| known(at).or_else(|| module_of_weights(graph, node))).collect();
    let mut next: Vec<Option<&str>> = vec![None; own.len()];
    let mut later = None;
    for (at, path) in own.iter().enumerate().rev() {
        later = path.as_deref().or(later);
        next[at] = later;
    }
    let mut earlier = None;
    let path = |(path, next): (&Option<String>, Option<&str>)| {
        earlier = path.clone().or(earlier.take());
        match (path, earlier.as_deref(), next) {
            (Some(path), ..) => path.clone(),
            (None, Some(before), Some(after)) => common(before, after),
            _ => String::new(),
        }
    };
    own.iter().zip(next).map(path).collect()
}

/// The shortest module path of the node's weights.
fn module_of_weights(graph: &Graph, node: &Node) -> Option<String> {
    let mut found: Option<&str> = None;
    node.walk(&mut |_, slot| {
        let is_constant = matches!(slot, Slot::Tensor(tid) if graph.slots.class(tid) == Some(SlotClass::Constant));
        if let Some(name) = graph.name_of(slot).filter(|_| is_constant) {
            let name = name.split_once('/').map_or(name, |(_, name)| name);
            if let Some((module, _)) = name.rsplit_once('.') {
                found = Some(found.filter(|known| known.len() <= module.len()).unwrap_or(module));
            }
        }
    });
    found.map(str::to_owned)
}

/// The common leading parts of both paths.
fn common(a: &str, b: &str) -> String {
    let same = a.split('.').zip(b.split('.')).take_while(|(a, b)| a == b).map(|(part, _)| part);
    same.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_between_modules_belong_to_what_the_modules_share() {
        let graph: Graph = "slots constants=2 inputs=1 outputs=1 temps=1\nmain 0\nname t0 \"0000/m.0.up.weight\"\n\
            name t1 \"0000/m.0.down.weight\"\nchain 0\n  Exp x=t2 out=t4\n  Add a=t4 b=t0 out=t4\n  Sin x=t4 out=t4\n  \
            Add a=t4 b=t1 out=t3\n  Neg x=t3 out=t3\n"
            .parse()
            .unwrap();
        assert_eq!(module_paths(&graph, |_| None), ["", "m.0.up", "m.0", "m.0.down", ""]);
        assert_eq!(module_paths(&graph, |at| (at == 0).then(|| "m.norm".to_owned()))[0], "m.norm");
    }
}
