//! Finds the names that a program reads, and the stored tensors that it writes.

use std::collections::{HashMap, HashSet};

use flambeau_pt2::{Argument, Exported, Graph, InputSpec, OutputSpec, View, Weight};

use crate::{
    classify::{CallKind, classify},
    functionalize::is_view,
};

/// Names that the graph reads.
pub(crate) fn used_names(graph: &Graph) -> HashSet<String> {
    let mut used = HashSet::new();
    let operands = graph
        .nodes
        .iter()
        .filter(|n| !matches!(classify(n), CallKind::Assertion | CallKind::SizePredicate))
        .flat_map(|n| &n.inputs)
        .map(|i| &i.arg);
    for argument in operands.chain(&graph.outputs) {
        used.extend(argument.names().into_iter().map(str::to_owned));
    }
    used
}

/// Names of the buffers that any program writes. They are state in all programs.
pub(crate) fn state_names(programs: &[&Exported]) -> HashSet<String> {
    let written = |exported: &&Exported| {
        let mutated = mutated_weights(exported);
        let is_written = |view: &View| mutated.contains(view);
        stored_buffers(exported).filter(|(_, view)| is_written(view)).map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
    };
    programs.iter().flat_map(written).collect()
}

/// Buffers by name.
pub(crate) fn stored_buffers(exported: &Exported) -> impl Iterator<Item = (&str, &View)> {
    exported.signature.inputs.iter().filter_map(|spec| match (spec, exported.weight_of(spec)) {
        (InputSpec::Buffer { name, .. }, Some(Weight::Strided(view))) => Some((name.as_str(), view)),
        _ => None,
    })
}

/// Stored tensors that the program writes to.
pub(crate) fn mutated_weights(exported: &Exported) -> HashSet<&View> {
    let mut stored: HashMap<&str, &View> = HashMap::new();
    let mut by_name: HashMap<&str, &View> = HashMap::new();
    for spec in &exported.signature.inputs {
        let (InputSpec::Parameter { arg, name } | InputSpec::Buffer { arg, name, .. } | InputSpec::TensorConstant { arg, name }) =
            spec
        else {
            continue;
        };
        if let Some(Weight::Strided(view)) = exported.weight_of(spec) {
            stored.insert(arg, view);
            by_name.insert(name, view);
        }
    }
    let mut mutated = HashSet::new();
    for output in &exported.signature.outputs {
        if let OutputSpec::BufferMutation { name, .. } | OutputSpec::ParameterMutation { name, .. } = output {
            mutated.extend(by_name.get(name.as_str()));
        }
    }
    mutated_in(&exported.graph, &stored, &mut mutated);
    mutated
}

/// Follows views and renamings through a graph and its sub-graphs to the tensors that writes reach.
fn mutated_in<'a>(graph: &Graph, stored: &HashMap<&str, &'a View>, mutated: &mut HashSet<&'a View>) {
    let mut roots: HashMap<&str, &'a View> = stored.clone();
    for node in &graph.nodes {
        let first = node.inputs.first().and_then(|i| i.arg.as_tensor());
        match classify(node) {
            CallKind::Mutation(mutation) => {
                for (i, written) in mutation.written.iter().enumerate() {
                    let root = node.arg(written).and_then(Argument::as_tensor).and_then(|n| roots.get(n).copied());
                    if let Some(root) = root {
                        mutated.insert(root);
                        roots.extend(node.output_names().into_iter().nth(mutation.results + i).map(|n| (n, root)));
                    }
                }
            }
            CallKind::Inline(body) => {
                let after = node.inputs.iter().skip_while(|i| !matches!(i.arg, Argument::Graph(_))).skip(1);
                let operands = after.flat_map(|i| i.arg.names());
                let inner = body.inputs.iter().flat_map(Argument::names);
                let inside = inner.zip(operands).filter_map(|(i, o)| Some((i, *roots.get(o)?))).collect();
                mutated_in(body, &inside, mutated);
            }
            _ if is_view(graph, node) => {
                if let Some(root) = first.and_then(|n| roots.get(n).copied()) {
                    roots.extend(node.output_names().into_iter().map(|n| (n, root)));
                }
            }
            _ => {}
        }
    }
}
