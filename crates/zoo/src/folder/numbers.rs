//! Stored floats by index.

use flambeau_tensor::{Bytes, DType, bf16, f16};

/// Stored floats of 16 or 32 bits.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    pub(super) dtype: DType,
    pub(super) bytes: Bytes,
}

impl Numbers {
    /// Number `at`, or 0 beyond the end.
    pub(super) fn get(&self, at: usize) -> f32 {
        let size = self.dtype.size();
        match (self.dtype, self.bytes.get(at * size..(at + 1) * size)) {
            (DType::F16, Some(b)) => f16::from_le_bytes([b[0], b[1]]).to_f32(),
            (DType::BF16, Some(b)) => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            (DType::F32, Some(b)) => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            _ => 0.0,
        }
    }
}
