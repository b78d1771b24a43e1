//! Rewrites of an SSA graph: a pattern of nodes replaced by fewer.
//!
//! Laws: a fusion never gives more nodes than it takes away, never changes a result beyond the rounding that the fused node's
//! definition allows, and looks through nothing that another reader still needs computed. Each stands in a file of its own with
//! its tests. They run in the order of [`FUSIONS`], each over the whole graph; what they leave without a reader is dropped.

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

/// One rewrite: given a root node, emit what replaces it, or decline.
#[derive(Clone, Copy, Debug)]
pub struct Fusion {
    pub name: &'static str,
    apply: fn(&mut Rewrite<'_>, &Node) -> Option<()>,
}

/// Every fusion, in the order in which they run.
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

/// Applies every fusion wherever it fits, then drops nodes that nothing reads.
pub fn fuse(ssa: &mut SsaGraph) {
    for fusion in FUSIONS {
        rewrite::apply_everywhere(ssa, fusion.apply);
        rewrite::drop_unread(ssa);
    }
}
