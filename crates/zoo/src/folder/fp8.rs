//! Matrices of 8-bit floats in blocks with a shared scale.

use flambeau_tensor::{Bytes, e4m3};

use super::{
    Stored,
    parts::{Tensors, matrix, numbers},
};
use crate::{
    CheckpointTensor, Error, Result,
    rows::{FloatRows, numbers::Numbers},
};

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

/// 8-bit floats [rows, cols] with one scale per block, per row or in total.
pub(super) fn small_floats(module: &str, lead: &Stored, all: &Tensors, block: Option<[usize; 2]>) -> Result<CheckpointTensor> {
    let scales = ["weight_scale_inv", "weight_scale"].iter().find_map(|part| all.get(&format!("{module}.{part}")));
    let scales = scales.ok_or_else(|| Error::MissingTensor(format!("{module}.weight_scale_inv")))?;
    with_scales(&format!("{module}.weight"), lead, scales, block)
}

/// As [`small_floats`], with these scales.
pub(super) fn with_scales(name: &str, lead: &Stored, scales: &Stored, block: Option<[usize; 2]>) -> Result<CheckpointTensor> {
    let [rows, cols] = matrix(name, lead)?;
    let block = match (block, scales.count()) {
        (_, 1) => [rows, cols],
        (Some(block), _) => block,
        (_, count) if count == rows => [1, cols],
        (_, count) => {
            return Err(Error::tensor(name, "a scale for each row or for all", format!("{count} scales of {rows} rows")));
        }
    };
    let want = rows.div_ceil(block[0]) * cols.div_ceil(block[1]);
    let scales = numbers(&format!("{name}_scale"), scales, want)?;
    Ok(CheckpointTensor::floats(vec![rows, cols], Scaled { bytes: lead.bytes.clone(), cols, block, scales }))
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::DType;

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
