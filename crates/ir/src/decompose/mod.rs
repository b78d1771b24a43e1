//! Decomposes fused nodes into primitive nodes, as a fallback for engines without a node and as a
//! reference in tests.
//!
//! A decomposition computes in f32 and rounds once at the end, so it is at least as exact as the
//! fused node. Its result has the node's element type. Sizes may be symbolic. Fresh temporary and
//! value slots follow the slots of the graph.

mod activation;
mod attention;
mod build;
mod norm;
mod quantized;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use self::build::Build;
use crate::{
    Checked, Graph, In, InferError, Node, Out, Role, Slot,
    check::{CheckError, check, flow},
    infer::Env,
};

type Result<T, E = InferError> = std::result::Result<T, E>;

/// Replaces every fused node for which `wanted` is true. Nodes without a decomposition are kept.
/// Nodes that run with different operand types or ranks in different places are kept as well.
///
/// # Errors
/// If the graph has too few unused slot numbers.
pub fn decompose(graph: &Checked, wanted: &dyn Fn(&Node) -> bool) -> Result<Checked, CheckError> {
    let mut found: HashMap<(usize, usize), Option<Replacement>> = HashMap::new();
    flow::check(graph, &mut |chain, instruction, node, env| {
        if wanted(node) {
            let replacement = replace(graph, node, env);
            let entry = found.entry((chain, instruction)).or_insert_with(|| replacement.clone());
            if *entry != replacement {
                *entry = None;
            }
        }
    })?;
    let mut out: Graph = Graph::clone(graph);
    let (mut temps, mut values) = (0, 0);
    for (c, chain) in out.chains.iter_mut().enumerate() {
        let nodes = std::mem::take(chain);
        for (i, node) in nodes.into_iter().enumerate() {
            match found.remove(&(c, i)).flatten() {
                Some(replacement) => {
                    (temps, values) = (replacement.temps.max(temps), replacement.values.max(values));
                    chain.extend(replacement.nodes);
                }
                None => chain.push(node),
            }
        }
    }
    out.slots.temps += temps;
    out.values += values;
    check(out)
}

/// Replacement of a node.
#[derive(Clone, PartialEq)]
struct Replacement {
    nodes: Vec<Node>,
    /// Fresh slots that the nodes use.
    temps: u32,
    values: u32,
}

/// The primitive nodes of a fused node, given its operands' contents. `None` if the node is
/// primitive, or if a rule does not apply to these operands, such as a softmax over no elements.
fn replace(graph: &Graph, node: &Node, env: &Env) -> Option<Replacement> {
    let (first_temp, first_value) = (u32::try_from(graph.slots.total()).ok()?, graph.values);
    let mut build = Build::new(operands(node, env)?, first_temp, first_value);
    let (result, out) = spell_out(&mut build, node)?;
    let (nodes, temps, values) = build.finish(result.ok()?, out);
    Some(Replacement { nodes, temps, values })
}

macro_rules! fused_nodes {
    ($($name:ident: $rule:path;)*) => {
        /// Whether the node has a decomposition.
        pub fn is_fused(node: &Node) -> bool {
            matches!(node, $(Node::$name(_))|*)
        }

        /// Emits the primitive nodes of a fused node. Returns their result and its target slot.
        fn spell_out(build: &mut Build, node: &Node) -> Option<(Result<In>, Out)> {
            match node {
                $(Node::$name(n) => Some(($rule(build, n), n.out)),)*
                _ => None,
            }
        }
    };
}

fused_nodes! {
    Silu: activation::silu;
    Gelu: activation::gelu;
    Softmax: norm::softmax;
    LogSumExp: norm::log_sum_exp;
    RMSNorm: norm::rms_norm;
    LayerNorm: norm::layer_norm;
    Rope: attention::rope;
    Sdpa: attention::sdpa;
    QuantizedMatmul: quantized::matmul;
    GatherQmm: quantized::gather;
}

/// Contents of the slots that the node reads.
fn operands(node: &Node, env: &Env) -> Option<Env> {
    let mut own = env.disjoint();
    let mut complete = true;
    node.walk(&mut |role, slot| {
        if role != Role::Write {
            complete &= match slot {
                Slot::Tensor(tid) => env.get(tid).map(|spec| own.replace(tid, Some(spec.clone()))).is_some(),
                Slot::Value(vid) => env.get_value(vid).map(|value| own.replace_value(vid, Some(value.clone()))).is_some(),
            };
        }
    });
    complete.then_some(own)
}
