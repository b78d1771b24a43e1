//! Identifies the kernels of `MetalKernel` nodes. ExecuTorch's exporter emits a few, identified by
//! name, operands and template arguments.

use crate::MetalKernel;

/// A kernel that engines can compute without its source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KnownKernel {
    /// The gated delta rule of linear attention: q, k `[B, T, Hk, Dk]`, v `[B, T, Hv, Dv]`, g, beta
    /// `[B, T, Hv]`, state `[B, Hv, Dv, Dk]`, T. Each step computes `S = g·S`, `S += (v − S·k)·beta
    /// ⊗ k`, `y = S·q` in f32. Results: y, and the last state.
    GatedDeltaStep,
    /// Euclidean length of each row of `D`: x `[.., D]`, result `[.., 1]`.
    RowNorm,
    /// Two codes per byte, with the even element in the high half. A value's code is the number of
    /// the 15 boundaries below it.
    CodebookCompress,
    /// Entries of a codebook of 16 times the row's norm: packed `[.., D/2]`, norms `[.., 1]`,
    /// result `[.., D]`.
    CodebookExpand,
    /// `x @ weightᵀ + bias` with rows in GGUF blocks: x `[.., K]`, weight `[N, ..]`, bias `[N]`.
    GgufLinear(GgufBlock),
    /// Rows of a table in GGUF blocks: weight `[V, ..]`, indices of any shape, result `[.., K]`.
    GgufEmbedding(GgufBlock),
    /// The element-wise sum of ExecuTorch's tests.
    Sum,
}

/// A block format of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GgufBlock {
    /// 4 bits, 8 groups with 6-bit scales and minima, 144 bytes.
    Q4K,
    /// As [`GgufBlock::Q4K`] with a fifth bit, 176 bytes.
    Q5K,
    /// 6 bits, 16 groups with 8-bit scales, 210 bytes.
    Q6K,
}

/// A row of the table: a kernel's name, operands, results and template arguments. Operands after
/// the first `required` ones are optional.
struct Row {
    kernel: KnownKernel,
    name: &'static str,
    inputs: &'static [&'static str],
    required: usize,
    outputs: usize,
    templates: &'static [&'static str],
}

const fn row(kernel: KnownKernel, name: &'static str, inputs: &'static [&'static str], templates: &'static [&'static str]) -> Row {
    Row { kernel, name, inputs, required: inputs.len(), outputs: 1, templates }
}

const fn linear(block: GgufBlock, name: &'static str, templates: &'static [&'static str]) -> Row {
    Row { required: 2, ..row(KnownKernel::GgufLinear(block), name, &["x", "weight", "bias"], templates) }
}

const fn embedding(block: GgufBlock, name: &'static str, templates: &'static [&'static str]) -> Row {
    row(KnownKernel::GgufEmbedding(block), name, &["weight", "indices"], templates)
}

const ROWS: &[Row] = &[
    Row {
        outputs: 2,
        ..row(
            KnownKernel::GatedDeltaStep,
            "gated_delta_step",
            &["q", "k", "v", "g", "beta", "state_in", "T"],
            &["InT", "Dk", "Dv", "Hk", "Hv"],
        )
    },
    row(KnownKernel::RowNorm, "tq_norm", &["x"], &["InT", "D"]),
    row(KnownKernel::CodebookCompress, "tq4_compress", &["values", "boundaries"], &["InT", "B"]),
    row(KnownKernel::CodebookExpand, "tq_dequant", &["packed", "norms", "centroids"], &["InT", "D"]),
    linear(GgufBlock::Q4K, "gguf_q4k_matvec", &["InT", "OutT", "N", "K", "NSG"]),
    linear(GgufBlock::Q5K, "gguf_q5k_matvec", &["InT", "OutT", "N", "K", "NSG"]),
    linear(GgufBlock::Q6K, "gguf_q6k_matvec", &["InT", "N", "K", "NSG"]),
    linear(GgufBlock::Q4K, "gguf_q4k_matmul", &["InT", "OutT", "N", "K"]),
    linear(GgufBlock::Q5K, "gguf_q5k_matmul", &["InT", "OutT", "N", "K"]),
    linear(GgufBlock::Q6K, "gguf_q6k_matmul", &["InT", "N", "K"]),
    embedding(GgufBlock::Q4K, "gguf_q4k_embedding", &["OutT", "K", "V"]),
    embedding(GgufBlock::Q5K, "gguf_q5k_embedding", &["OutT", "K"]),
    embedding(GgufBlock::Q6K, "gguf_q6k_embedding", &["OutT", "K"]),
];

/// This name is too common to identify a kernel, so the source without spaces must match as well.
const SUM: Row = row(KnownKernel::Sum, "vadd", &["a", "b"], &[]);
const SUM_TEXT: &str = "uintidx=thread_position_in_grid.x;if(idx<a_shape[0]){out[idx]=a[idx]+b[idx];}";

impl Row {
    fn fits(&self, node: &MetalKernel) -> bool {
        self.name == node.name
            && (self.required..=self.inputs.len()).contains(&node.inputs.len())
            && node.input_names == self.inputs[..node.inputs.len()]
            && node.template_arg_names == self.templates
            && node.outputs.len() == self.outputs
    }
}

impl MetalKernel {
    /// The known kernel of the node, if any.
    pub fn known(&self) -> Option<KnownKernel> {
        let is_sum = || SUM.fits(self) && self.source.split_whitespace().collect::<String>() == SUM_TEXT;
        let row = ROWS.iter().find(|row| row.fits(self)).or_else(|| is_sum().then_some(&SUM));
        row.map(|row| row.kernel)
    }

    /// A template argument with a positive size.
    pub fn template_size(&self, name: &str) -> Option<usize> {
        let at = self.template_arg_names.iter().position(|n| n == name)?;
        self.template_arg_values.get(at).and_then(|&v| usize::try_from(v).ok()).filter(|&v| v > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_apart_by_name_operands_and_templates() {
        let node = |text: &str| {
            text.parse::<crate::Node>().map(|node| match node {
                crate::Node::MetalKernel(kernel) => kernel,
                other => panic!("{}", other.name()),
            })
        };
        let norm = "MetalKernel name=tq_norm source=x inputs=[t0] outputs=[t1] grid=[1] threadgroup=[1] input_names=[x] \
                    template_arg_names=[InT,D] template_arg_kinds=[1,0] template_arg_values=[-1,64]";
        let kernel = node(norm).expect("a node");
        assert_eq!(kernel.known(), Some(KnownKernel::RowNorm));
        assert_eq!(["D", "InT", "K"].map(|name| kernel.template_size(name)), [Some(64), None, None]);
        for (from, to) in [("tq_norm", "tq_norms"), ("[x]", "[y]"), ("[InT,D]", "[InT,K]"), ("[t1]", "[t1,t2]")] {
            assert_eq!(node(&norm.replace(from, to)).expect("a node").known(), None, "{to}");
        }
    }
}
