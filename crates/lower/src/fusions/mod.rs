//! Fusions: rewrites that replace a pattern of nodes in an SSA graph by fewer nodes.
//!
//! A fusion never emits more nodes than it removes. It changes a result only by the rounding that
//! the fused node's definition allows. It never removes a node that another reader needs. Each
//! fusion has its own file, with its tests. Fusions run in the order of [`FUSIONS`], each over the
//! whole graph. Nodes left without a reader are dropped afterwards.

mod attention;
mod norm;
mod quantized;
mod rewrite;
mod rope;
#[cfg(test)]
mod testing;

use flambeau_ir::Node;
pub(crate) use rewrite::Rewrite;
pub use rewrite::drop_unread;

use crate::SsaGraph;

/// One fusion: `apply` takes a root node and emits its replacement, or declines.
#[derive(Clone, Copy, Debug)]
pub struct Fusion {
    pub name: &'static str,
    apply: fn(&mut Rewrite<'_>, &Node) -> Option<()>,
}

/// All fusions in the order in which they run.
pub const FUSIONS: &[Fusion] = &[
    Fusion { name: "quantized_linear", apply: quantized::linear },
    Fusion { name: "quantized_experts", apply: quantized::experts },
    Fusion { name: "quantized_embedding", apply: quantized::embedding },
    Fusion { name: "rms_norm", apply: norm::rms_norm },
    Fusion { name: "silu", apply: norm::silu },
    Fusion { name: "rope", apply: rope::rope },
    Fusion { name: "attention", apply: attention::expanded },
    Fusion { name: "grouped_heads", apply: attention::grouped_heads },
];

/// Applies every fusion wherever it fits, then drops unread nodes.
pub fn fuse(ssa: &mut SsaGraph) {
    for fusion in FUSIONS {
        rewrite::apply_everywhere(ssa, fusion.apply);
        rewrite::drop_unread(ssa);
    }
}
