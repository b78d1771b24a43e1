//! Kernels for CUDA: their text, and those that a session keeps.

use std::sync::OnceLock;

use flambeau_tensor::DType;
use sha2::{Digest, Sha256};

use crate::{
    cx::Machine,
    error::Result,
    ffi::{Array, Kernel, KernelText, Launch},
};

const COMMON: &str = include_str!("../kernels/cuda/common.cuh");
const GEMV: &str = include_str!("../kernels/cuda/gemv.cuh");
const ATTEND: &str = include_str!("../kernels/cuda/attend.cuh");
const LAYERS: &str = include_str!("../kernels/cuda/layers.cuh");
const DELTA: &str = include_str!("../kernels/cuda/delta.cuh");
const BARRIER: &str = include_str!("../kernels/cuda/barrier.cuh");
const MIXTURE: &str = include_str!("../kernels/cuda/mixture.cuh");
const DELTA_TOKEN: &str = include_str!("../kernels/cuda/delta_token.cuh");
const TILES: &str = include_str!("../kernels/cuda/tiles.cuh");
const EXPERTS: &str = include_str!("../kernels/cuda/experts.cuh");
const ROWS: &str = include_str!("../kernels/cuda/rows.cuh");

/// MLX writes a kernel's signature. This adds a launch bound so that a block of 16 warps fits the
/// registers.
const BOUND: &str = "#undef __global__\n#define __global__ __attribute__((global)) __launch_bounds__(512, 1)\n";

/// Comments and indentation removed: MLX hashes the text at every launch.
fn packed<const N: usize>(parts: [&str; N]) -> String {
    let mut text = String::new();
    for line in parts.iter().flat_map(|part| part.lines()) {
        let code = line.split("//").next().unwrap_or_default().trim();
        if !code.is_empty() {
            text.push_str(code);
            text.push('\n');
        }
    }
    text
}

/// Source text of the kernels for a step of one row.
pub(crate) fn steps() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([COMMON, GEMV, ATTEND, MIXTURE, DELTA_TOKEN, BARRIER]))
}

/// The same, for blocks that have a multiprocessor to themselves.
pub(crate) fn resident_steps() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("{}{BOUND}", steps()))
}

/// Decoder layers in one launch.
pub(crate) fn layers() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("{}{BOUND}", packed([COMMON, GEMV, ATTEND, BARRIER, LAYERS])))
}

/// The gated delta rule.
pub(crate) fn delta() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([DELTA]))
}

/// Rows grouped by the matrices that they are multiplied with.
pub(crate) fn experts() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([COMMON, TILES, EXPERTS]))
}

/// Source text of the kernels for a step of several sequences, one row each.
pub(crate) fn rows() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([COMMON, TILES, ATTEND, ROWS, BARRIER]))
}

/// The same, for blocks that have a multiprocessor to themselves.
pub(crate) fn resident_rows() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("{}{BOUND}", rows()))
}

/// Launches the kernel with this text. The session caches kernels by name and body.
///
/// # Errors
/// If MLX refuses the kernel or the launch.
pub(crate) fn launch(m: &mut Machine, text: &KernelText<'_>, inputs: &[&Array], launch: &Launch<'_>) -> Result<Vec<Array>> {
    let mut hash = Sha256::new();
    hash.update(text.name);
    hash.update([0]);
    hash.update(text.source);
    let key = hash.finalize().into();
    if !m.kernels.contains_key(&key) {
        let kernel = Kernel::new(m.api, text)?;
        m.kernels.insert(key, kernel);
    }
    Ok(m.kernels[&key].launch(inputs, launch)?)
}

/// CUDA's name of a 16-bit float type.
pub(crate) fn type_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::BF16 => Some("__nv_bfloat16"),
        DType::F16 => Some("__half"),
        _ => None,
    }
}

/// CUDA's name of an element type that kernels leave to one another.
pub(crate) fn value_type(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("float"),
        DType::I32 => Some("int"),
        _ => type_name(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_text_keeps_code_and_loses_comments() {
        assert_eq!(packed(["// a\n  int x; // b\n\n", "y\n"]), "int x;\ny\n");
        assert!(steps().contains("asm volatile(\"ld.global.nc"));
        assert!(!steps().contains("//"));
    }
}
