//! Functional forms of operators that write to their operands, and detection of views.

use std::borrow::Cow;

use flambeau_aten::{Kind, Schema, schema};
use flambeau_pt2::{Argument, Graph, Node, TensorMeta};
use flambeau_tensor::Expr;

/// A call that writes to an operand.
#[derive(Debug)]
pub(crate) struct Mutation {
    /// The functional form, which returns the new contents after its other results.
    pub(crate) target: String,
    /// Names of the written operands.
    pub(crate) written: Vec<&'static str>,
    /// The operand's name in the functional form, if it differs.
    pub(crate) renamed: Option<&'static str>,
    /// Number of other results.
    pub(crate) results: usize,
}

/// The mutation that an operator performs, or `None` if it writes to no operand.
pub(crate) fn mutation(schema: &'static Schema) -> Option<Mutation> {
    let written: Vec<&'static str> = schema.written().map(|param| param.name).collect();
    match schema.kind() {
        // The results of the functional form are the written operands, in order.
        Kind::InPlace | Kind::Out => {
            let functional = schema.functional().filter(|f| !f.is_view() && f.returns.len() == written.len())?;
            let renamed = functional.operands().map(|p| p.name).find(|name| schema.param(name).is_none());
            Some(Mutation { target: functional.target(), written, renamed, results: 0 })
        }
        // The rules of custom operators return the written contents after their results. PyTorch's
        // mutable operators write statistics and noise during training, and nothing otherwise.
        Kind::Mutable if schema.namespace != "aten" && written.len() == 1 => {
            Some(Mutation { target: schema.target(), written, renamed: None, results: schema.returns.len() })
        }
        _ => None,
    }
}

/// The running statistics that batch normalization updates in training mode. Its schema does not
/// state the write.
pub(crate) fn trained_norm(node: &Node) -> Option<Mutation> {
    let target = bare(&node.target);
    let results = match target {
        "aten.batch_norm.default" => 1,
        "aten.native_batch_norm.default" | "aten._native_batch_norm_legit.default" => 3,
        "aten._batch_norm_with_update.default" => 4,
        _ => return None,
    };
    let trains = results == 4 || node.arg("training").and_then(Argument::as_bool) == Some(true);
    let has_statistics = node.arg("running_mean").and_then(Argument::as_tensor).is_some();
    let written = vec!["running_mean", "running_var"];
    (trains && has_statistics).then(|| Mutation { target: target.to_owned(), written, renamed: None, results })
}

/// Strips the prefix of dispatcher operators from a target.
pub(crate) fn bare(target: &str) -> &str {
    target.strip_prefix("torch.ops.").unwrap_or(target)
}

/// The target whose rule lowers a call. An operator that changes only the shape in place is lowered
/// as the equivalent view.
pub(crate) fn lowered_target(target: &str) -> Cow<'_, str> {
    let in_place = schema(target).filter(|s| s.kind() == Kind::InPlace);
    let view = in_place.and_then(Schema::functional).filter(|f| f.is_view());
    view.map_or(Cow::Borrowed(target), |view| Cow::Owned(view.target()))
}

/// Whether the call's results share memory with its first operand.
pub(crate) fn is_view(graph: &Graph, node: &Node) -> bool {
    schema(&lowered_target(bare(&node.target))).is_some_and(|s| s.is_view() && !copies(graph, node, s.name))
}

/// Whether a call that returns a view if possible makes a copy here.
fn copies(graph: &Graph, node: &Node, name: &str) -> bool {
    // `lift_fresh` returns a new copy of a constant in every run.
    if name == "lift_fresh" {
        return true;
    }
    let given = node.inputs.first().and_then(|i| i.arg.as_tensor()).and_then(|n| graph.tensors.get(n));
    let made = node.output_names().first().and_then(|n| graph.tensors.get(*n));
    let (Some(given), Some(made)) = (given, made) else { return false };
    match name {
        "to" => given.dtype != made.dtype || node.arg("copy").and_then(Argument::as_bool) == Some(true),
        "contiguous" => !is_row_major(given),
        // A result that is not row-major must be a view. A row-major result of another operand is a
        // copy.
        "reshape" | "reshape_as" | "flatten" | "ravel" => !is_row_major(given) && is_row_major(made),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_have_functional_forms() {
        let check = |target, want: Option<(&str, &str, usize)>| {
            let found = schema(target).and_then(mutation);
            assert_eq!(found.as_ref().map(|m| (m.target.as_str(), m.written[0], m.results)), want, "{target}");
        };
        check("aten.add_.Tensor", Some(("aten.add.Tensor", "self", 0)));
        check("aten.dropout_.default", Some(("aten.dropout.default", "self", 0)));
        check("aten.copy_.default", Some(("aten.copy.default", "self", 0)));
        check("aten.fill_.Scalar", Some(("aten.fill.Scalar", "self", 0)));
        check("aten.add.out", Some(("aten.add.Tensor", "out", 0)));
        check("aten.topk.values", Some(("aten.topk.default", "values", 0)));
        check("aten.__and__.Tensor", None);
        check("aten.add.Tensor", None);
        check("aten.squeeze_.dim", None);
        check("mlx.kv_cache_update.default", Some(("mlx.kv_cache_update.default", "cache", 1)));
        check("mlx.gated_delta_rule.default", Some(("mlx.gated_delta_rule.default", "state", 1)));
    }

    #[test]
    fn changes_of_shape_in_place_are_views() {
        let check = |target, want: &str| assert_eq!(lowered_target(target), want, "{target}");
        check("aten.squeeze_.dim", "aten.squeeze.dim");
        check("aten.t_.default", "aten.t.default");
        check("aten.transpose_.default", "aten.transpose.int");
        check("aten.detach_.default", "aten.detach.default");
        check("aten.add_.Tensor", "aten.add_.Tensor");
        check("aten.add.Tensor", "aten.add.Tensor");
    }
}
