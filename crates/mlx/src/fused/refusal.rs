//! Reasons why runs of nodes match no kernel.

use std::fmt;

use flambeau_ir::Node;

/// The computation of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Linear,
    Attention,
    Experts,
    DeltaNet,
    /// The steps of a decoder layer in one launch.
    Layer,
}

impl Form {
    /// The form that must contain such a node to fuse it.
    pub(super) fn of(node: &Node) -> Option<Form> {
        match node {
            Node::QuantizedMatmul(_) | Node::Addmm(_) => Some(Form::Linear),
            Node::Sdpa(_) => Some(Form::Attention),
            Node::GatherQmm(_) => Some(Form::Experts),
            Node::MetalKernel(_) => Some(Form::DeltaNet),
            _ => None,
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Linear => "linear",
            Form::Attention => "attention",
            Form::Experts => "experts",
            Form::DeltaNet => "delta net",
            Form::Layer => "layer",
        })
    }
}

/// A run of nodes that matches a form up to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub(super) form: Form,
    /// The first node of the run.
    pub(super) from: usize,
    /// The node at which the match ends.
    pub(super) at: usize,
    /// The reason, if it is not the kind of the node.
    pub(super) why: Option<&'static str>,
}

impl Refusal {
    /// Nodes that match.
    pub(super) fn len(&self) -> usize {
        self.at.saturating_sub(self.from)
    }

    pub(super) fn covers(&self, node: usize) -> bool {
        (self.from..=self.at).contains(&node)
    }

    /// The reason in words. It names nodes by kind and distance, so layers have equal reasons.
    pub(super) fn text(&self, nodes: &[Node]) -> String {
        let Refusal { form, from, at, why } = *self;
        let name = |at: usize| nodes.get(at).map_or("the end", Node::name);
        match why {
            Some(why) => format!("{form}: {why}"),
            None if at == from => format!("{form}: no kernel begins with {}", name(at)),
            None => {
                let count = at - from;
                let nodes = if count == 1 { "node" } else { "nodes" };
                format!("{form}: {} does not match, {count} {nodes} after {}", name(at), name(from))
            }
        }
    }
}
