//! The text of kernels for CUDA.

use std::sync::OnceLock;

use flambeau_tensor::DType;

const COMMON: &str = include_str!("../kernels/cuda/common.cuh");
const GEMV: &str = include_str!("../kernels/cuda/gemv.cuh");
const ATTEND: &str = include_str!("../kernels/cuda/attend.cuh");
const LAYERS: &str = include_str!("../kernels/cuda/layers.cuh");

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
