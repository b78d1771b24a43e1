//! Stored floats by index.

use flambeau_tensor::{Bytes, DType, bf16, f16};

/// Stored floats of 16 or 32 bits, or powers of two as exponent bytes.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// `u8` for exponent bytes.
    pub(crate) dtype: DType,
    pub(crate) bytes: Bytes,
}

impl Numbers {
    /// Number `at`, or 0 beyond the end.
    pub(crate) fn get(&self, at: usize) -> f32 {
        let size = self.dtype.size();
        match (self.dtype, self.bytes.get(at * size..(at + 1) * size)) {
            (DType::F16, Some(b)) => f16::from_le_bytes([b[0], b[1]]).to_f32(),
            (DType::BF16, Some(b)) => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            // The byte is the exponent of an f32. Byte 0 is 2^-127, below the ordinary numbers.
            (DType::U8, Some(b)) => f32::from_bits(if b[0] == 0 { 1 << 22 } else { u32::from(b[0]) << 23 }),
            (DType::F32, Some(b)) => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            _ => 0.0,
        }
    }
}
