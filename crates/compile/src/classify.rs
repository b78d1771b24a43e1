//! Classification of the calls of a captured graph.

use flambeau_aten::{Schema, Type, schema};
use flambeau_pt2::{Argument, Graph, Node};
use flambeau_tensor::DType;

use crate::{
    functionalize::{Mutation, bare, mutation, trained_norm},
    vmap_mark::VmapMark,
};

/// Kind of a call, which decides its treatment.
pub(crate) enum CallKind<'a> {
    /// An operator that its rule lowers.
    Operator,
    /// An assertion of an assumption that capture made.
    Assertion,
    /// Reads a field of a quantized weight.
    SubclassField,
    /// Runs a sub-graph once.
    Inline(&'a Graph),
    /// Runs a sub-graph once, where products compute in the given type.
    Autocast(&'a Graph, Option<DType>),
    /// Compares sizes, or combines such comparisons.
    SizePredicate,
    /// Runs one of two sub-graphs.
    Cond,
    /// Runs a sub-graph for each slice of tensors.
    Scan,
    /// Runs one sub-graph while another one returns true.
    While,
    /// Marks a region where tensors lack their batch axis.
    Vmap(VmapMark),
    /// Names an operator that writes to its operands, and returns the written contents as results.
    AutoFunctionalized,
    /// Writes to an operand.
    Mutation(Mutation),
    Refused(String),
}

/// Classifies a call.
pub(crate) fn classify(node: &Node) -> CallKind<'_> {
    let target = bare(&node.target);
    if let Some(mark) = VmapMark::of(target) {
        return CallKind::Vmap(mark);
    }
    match target {
        "export.access_subclass_inner_tensor.default" => return CallKind::SubclassField,
        "higher_order.wrap_with_set_grad_enabled" => return body(node),
        "higher_order.wrap_with_autocast" => {
            return autocast(node);
        }
        "higher_order.with_effects" => {
            // Operands: the order of effects, an operator, its operands.
            return match node.inputs.get(1).map(|i| &i.arg) {
                Some(Argument::Operator(name)) if schema(bare(name)).is_some_and(only_checks) => CallKind::Assertion,
                _ => CallKind::Refused("its effects have no form in a graph".to_owned()),
            };
        }
        "higher_order.cond" => return CallKind::Cond,
        "higher_order.scan" | "higher_order.map_impl" => return CallKind::Scan,
        "higher_order.auto_functionalized_v2" => return CallKind::AutoFunctionalized,
        "higher_order.while_loop" => return CallKind::While,
        _ if target.starts_with("higher_order.") => {
            return CallKind::Refused("this kind of control flow has no form in a graph".to_owned());
        }
        _ => {}
    }
    if let Some(mutation) = trained_norm(node) {
        return CallKind::Mutation(mutation);
    }
    match schema(target) {
        Some(schema) if only_checks(schema) => CallKind::Assertion,
        Some(schema) if is_size_predicate(schema) => CallKind::SizePredicate,
        Some(schema) => mutation(schema).map_or(CallKind::Operator, CallKind::Mutation),
        None => CallKind::Operator,
    }
}

/// Whether the operator neither returns nor writes anything.
fn only_checks(schema: &Schema) -> bool {
    schema.returns.is_empty() && schema.written().next().is_none()
}

/// Whether the operator takes only numbers and returns booleans.
fn is_size_predicate(schema: &Schema) -> bool {
    schema.returns.iter().all(|r| r.ty == Type::Bool) && schema.params.iter().all(|p| matches!(p.ty, Type::Scalar | Type::Bool))
}

/// A region of autocast. Its operands are the device, the element type, whether it is enabled,
/// whether weights are cached, the sub-graph, and the sub-graph's inputs.
fn autocast(node: &Node) -> CallKind<'_> {
    let CallKind::Inline(graph) = body(node) else { return body(node) };
    let arg = |i: usize| node.inputs.get(i).map(|input| &input.arg);
    let usual = if arg(0).and_then(Argument::as_str) == Some("cpu") { DType::BF16 } else { DType::F16 };
    match (arg(1), arg(2).and_then(Argument::as_bool)) {
        (_, Some(false)) => CallKind::Autocast(graph, None),
        (Some(Argument::ScalarType(t)), _) => match t.dtype() {
            Some(dtype) => CallKind::Autocast(graph, Some(dtype)),
            None => CallKind::Refused(format!("autocast to element type {t:?}")),
        },
        _ => CallKind::Autocast(graph, Some(usual)),
    }
}

fn body(node: &Node) -> CallKind<'_> {
    let graph = node.inputs.iter().find_map(|i| if let Argument::Graph(sub) = &i.arg { Some(&sub.graph) } else { None });
    graph.map_or_else(|| CallKind::Refused("it has no sub-graph".to_owned()), CallKind::Inline)
}
