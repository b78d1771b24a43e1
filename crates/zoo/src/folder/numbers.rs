//! Stored floats by index, and 8-bit floats in blocks with a shared scale.

use flambeau_tensor::{Bytes, DType, bf16, e4m3, f16};

use crate::rows::FloatRows;

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

/// 8-bit floats [rows, cols] with one scale per block.
#[derive(Clone, Debug)]
pub(super) struct Scaled {
    pub(super) bytes: Bytes,
    pub(super) cols: usize,
    /// Rows and columns of a block. The last blocks may be smaller.
    pub(super) block: [usize; 2],
    /// [blocks of rows, blocks of columns].
    pub(super) scales: Numbers,
}

/// The number that a byte encodes, including NaN.
fn value_of(byte: u8) -> f32 {
    if byte & 0x7f == 0x7f { f32::NAN } else { e4m3(byte) }
}

impl FloatRows for Scaled {
    fn kind(&self) -> String {
        format!("8-bit floats in blocks of {:?}", self.block)
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        let [height, width] = self.block;
        let first = row / height * self.cols.div_ceil(width);
        let bytes = &self.bytes[row * self.cols..(row + 1) * self.cols];
        for (i, (out, bytes)) in out.chunks_mut(width).zip(bytes.chunks(width)).enumerate() {
            let scale = self.scales.get(first + i);
            out.iter_mut().zip(bytes).for_each(|(value, &byte)| *value = value_of(byte) * scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_are_the_published_ones() {
        let check = |byte: u8, want: f32| assert_eq!(value_of(byte), want, "{byte:#x}");
        check(0, 0.0);
        check(0x01, 2f32.powi(-9));
        check(0x08, 2f32.powi(-6));
        check(0x38, 1.0);
        check(0xb9, -1.125);
        check(0x7e, 448.0);
        assert!(value_of(0x7f).is_nan());
    }

    #[test]
    fn blocks_share_scales_and_the_last_ones_are_cut_off() {
        let scales: Vec<u8> = [1f32, 2.0, 4.0, 8.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let scales = Numbers { dtype: DType::F32, bytes: scales.into() };
        let scaled = Scaled { bytes: vec![0x38; 9].into(), cols: 3, block: [2, 2], scales };
        let rows: Vec<[f32; 3]> = (0..3)
            .map(|row| {
                let mut out = [0.0; 3];
                scaled.read(row, &mut out);
                out
            })
            .collect();
        assert_eq!(rows, [[1.0, 1.0, 2.0], [1.0, 1.0, 2.0], [4.0, 4.0, 8.0]]);
    }
}
