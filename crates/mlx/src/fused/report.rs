//! Execution plan of a one-token step: fused regions, and nodes that run one by one.

use std::ops::Range;

use flambeau_ir::{Checked, Node};

use crate::counts::Describe;

use super::{
    FusedNodes, Kind, Plan,
    layers::STEPS_OF_LAYER,
    linear::Activation,
    refusal::{Form, Refusal},
};

/// Nodes of a match that makes a run of nodes a candidate for its form.
const MIN_MATCH: usize = 6;

/// Maximum number of nodes from the start of a match to the node that its form requires.
const MAX_NODES: usize = 48;

/// How a step of one token runs on a CUDA device. It follows from the graph alone, without a
/// device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// Runs of nodes of the main chain that kernels compute, in order.
    pub regions: Vec<Region>,
    /// Nodes of the main chain that run one by one, in order.
    pub single: Vec<SingleNode>,
}

/// A run of nodes that one launch computes, or one launch for each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub nodes: Range<usize>,
    /// The computation in words, such as `norm, 3 products`.
    pub form: String,
    /// Reason why it has a launch apart from its decoder layer, if a layer may start there.
    pub apart: Option<String>,
}

/// A node that no region contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleNode {
    pub index: usize,
    pub node: &'static str,
    pub why: String,
}

impl StepPlan {
    /// The plan for a graph on a device that one owner may fill.
    pub fn of(graph: &Checked) -> StepPlan {
        let plan = Plan::of(graph, true);
        let nodes = graph.chains.get(graph.main as usize).map_or(&[][..], |chain| &chain[..]);
        let (mut regions, mut single, mut at) = (Vec::new(), Vec::new(), 0);
        while at < nodes.len() {
            if let Some((form, end)) = plan.region_at(at) {
                let apart = plan.why_apart(nodes, at);
                regions.push(Region { nodes: at..end, form, apart });
                at = end;
            } else {
                single.push(SingleNode { index: at, node: nodes[at].name(), why: plan.why_single(nodes, at) });
                at += 1;
            }
        }
        StepPlan { regions, single }
    }
}

impl Plan {
    /// The computation and the end of the largest region that begins at a node.
    fn region_at(&self, at: usize) -> Option<(String, usize)> {
        if let Some(layers) = self.layers.as_ref().filter(|layers| layers.at == at) {
            let steps = self.steps.range(at..).take(STEPS_OF_LAYER).map(|(_, step)| step.form());
            return Some((format!("{} layers of [{}]", layers.count(), join(steps)), layers.end));
        }
        if let Some(group) = self.groups.get(&at) {
            return Some((format!("layer of [{}]", join(self.steps.range(at..group.end).map(|(_, step)| step.form()))), group.end));
        }
        self.steps.get(&at).map(|step| (step.form(), step.end))
    }

    /// Reason why a step is not part of a layer's launch.
    fn why_apart(&self, nodes: &[Node], at: usize) -> Option<String> {
        let is_last = self.steps.range(at + 1..).next().is_none();
        let is_apart = !is_last && !self.groups.contains_key(&at) && self.layers.as_ref().is_none_or(|layers| layers.at != at);
        let refusal = self.refusals.iter().find(|refusal| refusal.form == Form::Layer && refusal.from == at);
        refusal.filter(|refusal| is_apart && refusal.len() > 0).map(|refusal| refusal.text(nodes))
    }
}

/// The plan of a device without such kernels.
pub(crate) struct NoKernels;

impl Describe for NoKernels {
    fn region(&self, nodes: Range<usize>, _is_of_rows: bool) -> String {
        format!("{} nodes", nodes.len())
    }

    fn why_single(&self, _nodes: &[Node], _at: usize) -> String {
        "the device has no fused kernels".to_owned()
    }
}

impl Describe for Plan {
    fn region(&self, nodes: Range<usize>, is_of_rows: bool) -> String {
        let whole = self.region_at(nodes.start).filter(|(_, end)| *end == nodes.end).map(|(form, _)| form);
        let form = whole.unwrap_or_else(|| join(self.steps.range(nodes).map(|(_, step)| step.form())));
        if is_of_rows { format!("several sequences: {form}") } else { form }
    }

    /// A node that a form must contain has the reason of the longest match of that form before it.
    /// Other nodes have the reason of the longest match that contains them.
    fn why_single(&self, nodes: &[Node], at: usize) -> String {
        if let Some((_, step)) = self.steps.range(..=at).next_back().filter(|(_, step)| at < step.end) {
            return format!("{}: the kernel does not support the step's sizes, such as more than one token", step.form());
        }
        let form = Form::of(&nodes[at]);
        let own = |refusal: &&Refusal| Some(refusal.form) == form && (refusal.from..refusal.from + MAX_NODES).contains(&at);
        let around = |refusal: &&Refusal| refusal.form != Form::Layer && refusal.len() >= MIN_MATCH && refusal.covers(at);
        let longest = self.refusals.iter().filter(own).max_by_key(|refusal| refusal.len());
        let longest = longest.or_else(|| self.refusals.iter().filter(around).max_by_key(|refusal| refusal.len()));
        longest.map_or_else(|| "no kernel takes it".to_owned(), |refusal| refusal.text(nodes))
    }
}

fn join(forms: impl Iterator<Item = String>) -> String {
    forms.collect::<Vec<_>>().join("; ")
}

impl FusedNodes {
    /// The computation in words.
    pub(super) fn form(&self) -> String {
        match &self.kind {
            Kind::Linear(linear) => {
                let norm = linear.norm.map(|_| "norm".to_owned());
                let joined = linear.joined.as_ref().map(|_| "norm, sum".to_owned());
                let count = linear.weights.len();
                let products = if count == 1 { "product".to_owned() } else { format!("{count} products") };
                let bias = linear.weights.iter().any(|weights| weights.bias.is_some()).then_some("bias");
                let updates = (!linear.updates.is_empty()).then_some("low-rank updates");
                let additions = [bias, updates].into_iter().flatten().collect::<Vec<_>>().join(" and ");
                let products = if additions.is_empty() { products } else { format!("{products} with {additions}") };
                let gate = (linear.gated || linear.gated_input.is_some()).then(|| match linear.activation {
                    Activation::Silu => "silu gate".to_owned(),
                    Activation::Gelu => "gelu gate".to_owned(),
                });
                let sum = linear.residual.map(|_| "sum".to_owned());
                let parts = [joined, norm, Some(products), gate, sum];
                parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
            }
            Kind::Attention(attention) => attention.form(),
            Kind::Mixture(mixture) => mixture.form(),
            Kind::Delta(_) => "delta net".to_owned(),
        }
    }
}
