//! Calls that are not lowered one for one: statements of fact, sub-graphs, writes.

use std::collections::{HashMap, HashSet};

use flambeau_lower::{Arg, Call};
use flambeau_pt2::{Argument, Exported, Graph, InputSpec, Node, OutputSpec, TensorMeta, View, Weight};
use flambeau_tensor::Expr;

use crate::trace::bare;

/// How to treat a call.
pub(crate) enum Special<'a> {
    /// Lower it by its rule.
    Plain,
    /// It only states what capture assumed, or computes such a statement.
    Fact,
    /// It reads a field of a quantized weight.
    Field,
    /// It runs a sub-graph once.
    Inline(&'a Graph),
    /// It compares sizes.
    Predicate,
    /// It runs one of two sub-graphs.
    Cond,
    /// It runs a sub-graph for each slice of tensors.
    Scan,
    /// It runs a sub-graph as long as another one says.
    While,
    /// It names an operator that writes to its operands, and gives what that would write as results.
    Functionalized,
    /// It writes to an operand.
    Write(Effect),
    Refused(String),
}

/// A call that writes to an operand.
#[derive(Debug)]
pub(crate) struct Effect {
    /// The functional form, which gives the new contents behind its other results.
    pub(crate) target: String,
    /// The operand.
    pub(crate) written: &'static str,
    /// How many other results there are.
    pub(crate) results: usize,
}

/// Comparisons of symbolic integers.
const PREDICATES: [&str; 9] = [
    "_operator.eq",
    "_operator.ne",
    "_operator.le",
    "_operator.ge",
    "_operator.lt",
    "_operator.gt",
    "_operator.and_",
    "_operator.or_",
    "torch.sym_not",
];

const FACTS: [&str; 5] = [
    "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default",
    "aten._assert_async.msg",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
];

/// How to treat a call.
pub(crate) fn special(node: &Node) -> Special<'_> {
    let target = bare(&node.target);
    if FACTS.contains(&target) {
        return Special::Fact;
    }
    if PREDICATES.contains(&target) {
        return Special::Predicate;
    }
    match target {
        "export.access_subclass_inner_tensor.default" => return Special::Field,
        "higher_order.wrap_with_set_grad_enabled" => return body(node),
        "higher_order.wrap_with_autocast" => {
            // Operands: device, dtype, enabled, cache, graph, …
            return match node.inputs.get(2).and_then(|i| i.arg.as_bool()) {
                Some(false) => body(node),
                _ => Special::Refused("autocast changes element types behind the program's back".to_owned()),
            };
        }
        "higher_order.cond" => return Special::Cond,
        "higher_order.scan" | "higher_order.map_impl" => return Special::Scan,
        "higher_order.auto_functionalized_v2" => return Special::Functionalized,
        "higher_order.while_loop" => return Special::While,
        _ if target.starts_with("higher_order.") => {
            return Special::Refused("this kind of control flow has no form in a graph".to_owned());
        }
        _ => {}
    }
    write(target).map_or(Special::Plain, Special::Write)
}

fn body(node: &Node) -> Special<'_> {
    let graph = node.inputs.iter().find_map(|i| if let Argument::Graph(sub) = &i.arg { Some(&sub.graph) } else { None });
    graph.map_or_else(|| Special::Refused("it has no sub-graph".to_owned()), Special::Inline)
}

/// What an operator writes, if it writes to an operand.
pub(crate) fn write(target: &str) -> Option<Effect> {
    let effect = |target: &str, written, results| Some(Effect { target: target.to_owned(), written, results });
    if functional(target) != target {
        return None;
    }
    match target {
        "mlx.kv_cache_update.default" => return effect(target, "cache", 0),
        "mlx.gated_delta_rule.default" => return effect(target, "state", 1),
        "aten.detach_.default" => return None,
        "aten.fill_.Scalar" | "aten.fill_.Tensor" => return effect("aten.full_like.default", "self", 0),
        "aten.zero_.default" => return effect("aten.zeros_like.default", "self", 0),
        _ => {}
    }
    let (name, overload) = target.strip_prefix("aten.")?.split_once('.')?;
    let functional = name.strip_suffix('_').filter(|n| !n.starts_with("__") && !n.is_empty())?;
    effect(&format!("aten.{functional}.{overload}"), "self", 0)
}

/// In-place calls that change a tensor's shape and nothing in it, as the views that they amount to.
pub(crate) fn functional(target: &str) -> &str {
    match target {
        "aten.squeeze_.default" => "aten.squeeze.default",
        "aten.squeeze_.dim" => "aten.squeeze.dim",
        "aten.squeeze_.dims" => "aten.squeeze.dims",
        "aten.swapaxes_.default" => "aten.swapaxes.default",
        "aten.swapdims_.default" => "aten.swapdims.default",
        "aten.t_.default" => "aten.t.default",
        "aten.transpose_.default" => "aten.transpose.int",
        "aten.unsqueeze_.default" => "aten.unsqueeze.default",
        other => other,
    }
}

/// The call with the arguments as its functional form names them.
pub(crate) fn functional_arguments(mut call: Call) -> Call {
    if call.target == "aten.full_like.default" {
        for (name, _) in &mut call.args {
            if name == "value" {
                *name = "fill_value".to_owned();
            }
        }
        // A fill from a tensor is a copy of it.
        if matches!(call.arg("fill_value"), Some(Arg::Tensor(_))) {
            call.target = "aten.copy.default".to_owned();
            for (name, _) in call.args.iter_mut().filter(|(n, _)| n == "fill_value") {
                *name = "src".to_owned();
            }
        }
    }
    call
}

/// Whether the call's results share memory with its first operand.
pub(crate) fn is_view(graph: &Graph, node: &Node) -> bool {
    const VIEWS: [&str; 30] = [
        "alias",
        "chunk",
        "contiguous",
        "detach",
        "detach_",
        "diagonal",
        "expand",
        "expand_as",
        "flatten",
        "mT",
        "movedim",
        "narrow",
        "numpy_T",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "to",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as",
    ];
    let target = functional(bare(&node.target));
    let name = target.strip_prefix("aten.").and_then(|t| t.split('.').next());
    name.is_some_and(|n| VIEWS.contains(&n) && !copies(graph, node, n))
}

/// Whether a call that shares memory where it can makes a new tensor here.
fn copies(graph: &Graph, node: &Node, name: &str) -> bool {
    let given = node.inputs.first().and_then(|i| i.arg.as_tensor()).and_then(|n| graph.tensors.get(n));
    let made = node.output_names().first().and_then(|n| graph.tensors.get(*n));
    let (Some(given), Some(made)) = (given, made) else { return false };
    match name {
        "to" => given.dtype != made.dtype || node.arg("copy").and_then(Argument::as_bool) == Some(true),
        "contiguous" => !is_row_major(given),
        // What is not row-major itself must be a view; what has become so is a copy.
        "reshape" | "flatten" => !is_row_major(given) && is_row_major(made),
        _ => false,
    }
}

fn is_row_major(meta: &TensorMeta) -> bool {
    let mut unit = Expr::Int(1);
    for (size, stride) in meta.sizes.iter().zip(&meta.strides).rev() {
        if size.as_int() != Some(1) && *stride != unit {
            return false;
        }
        unit = unit * size.clone();
    }
    true
}

/// Names that anything in the graph reads.
pub(crate) fn used_names(graph: &Graph) -> HashSet<String> {
    let mut used = HashSet::new();
    let operands = graph
        .nodes
        .iter()
        .filter(|n| !matches!(special(n), Special::Fact | Special::Predicate))
        .flat_map(|n| &n.inputs)
        .map(|i| &i.arg);
    for argument in operands.chain(&graph.outputs) {
        used.extend(argument.names().into_iter().map(str::to_owned));
    }
    used
}

/// Names of the buffers that any of these programs writes to: in all of them they are state.
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
        match special(node) {
            Special::Write(effect) => {
                let root = node.arg(effect.written).and_then(Argument::as_tensor).and_then(|n| roots.get(n).copied());
                if let Some(root) = root {
                    mutated.insert(root);
                    roots.extend(node.output_names().into_iter().map(|n| (n, root)));
                }
            }
            Special::Inline(body) => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_have_functional_forms() {
        let check = |target, want: Option<&str>| assert_eq!(write(target).map(|w| w.target).as_deref(), want, "{target}");
        check("aten.add_.Tensor", Some("aten.add.Tensor"));
        check("aten.copy_.default", Some("aten.copy.default"));
        check("aten.fill_.Scalar", Some("aten.full_like.default"));
        check("aten.__and__.Tensor", None);
        check("aten.add.Tensor", None);
        check("mlx.kv_cache_update.default", Some("mlx.kv_cache_update.default"));
    }
}
