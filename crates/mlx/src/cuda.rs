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
const CHOSEN: &str = include_str!("../kernels/cuda/chosen.cuh");
const EXPERTS: &str = include_str!("../kernels/cuda/experts.cuh");

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

/// Products with one row.
pub(crate) fn gemv() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([COMMON, GEMV]))
}

/// Attention at one position.
pub(crate) fn attend() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([COMMON, ATTEND]))
}

/// Decoder layers in one launch.
pub(crate) fn layers() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([COMMON, GEMV, ATTEND, LAYERS]))
}

/// The gated delta rule.
pub(crate) fn delta() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([DELTA]))
}

/// Rows grouped by the matrices that they are multiplied with.
pub(crate) fn experts() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([COMMON, EXPERTS]))
}

/// One row's products with the experts that are chosen for it.
pub(crate) fn chosen() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| packed([COMMON, GEMV, CHOSEN]))
}

/// Launches the kernel of that text, which the session keeps under its name and body.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_text_keeps_code_and_loses_comments() {
        assert_eq!(packed(["// a\n  int x; // b\n\n", "y\n"]), "int x;\ny\n");
        assert!(gemv().contains("asm volatile(\"ld.global.nc"));
        assert!(!attend().contains("//"));
    }
}
