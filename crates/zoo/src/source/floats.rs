//! Rows of stored tensors as floats.

use flambeau_tensor::{Bytes, DType, Tensor, cast};

use super::{CheckpointTensor, Codes, Data, Mode, ValueForm};

impl CheckpointTensor {
    /// Whether [`read_float_row`](Self::read_float_row) reads this matrix: floats of at least 16
    /// bits, computed floats, and affine codes.
    pub(crate) fn has_float_rows(&self) -> bool {
        let are_floats = match &self.data {
            Data::Plain { dtype, .. } => dtype.is_float() && dtype.size() > 1,
            Data::Floats(_) => true,
            Data::Coded(stored) => stored.codes().mode == Mode::Affine,
            Data::Packed { codes, .. } => codes.mode == Mode::Affine,
            Data::Stack(_) => false,
        };
        are_floats && self.shape.len() == 2 && self.form == ValueForm::Values
    }

    /// The row of the file that row `row` of the program is read from.
    pub(crate) fn file_row(&self, row: usize) -> usize {
        self.rows.source(row)
    }

    /// Writes row `row` of the program. Writes nothing if [`has_float_rows`](Self::has_float_rows)
    /// is false.
    pub(crate) fn read_float_row(&self, row: usize, out: &mut [f32]) {
        let row = self.file_row(row);
        match &self.data {
            Data::Plain { dtype, bytes } => read_numbers(*dtype, bytes, row, out),
            Data::Floats(stored) => stored.read(row, out),
            Data::Coded(stored) => {
                let group = stored.codes().group;
                let (mut codes, mut pairs) = (vec![0; out.len()], vec![(0.0, 0.0); out.len() / group]);
                stored.read_codes(row, &mut codes);
                stored.read_numbers(row, &mut pairs);
                for ((out, codes), (scale, bias)) in out.chunks_mut(group).zip(codes.chunks(group)).zip(pairs) {
                    out.iter_mut().zip(codes).for_each(|(value, &code)| *value = scale * f32::from(code) + bias);
                }
            }
            Data::Packed { words, scales, biases: Some(biases), dtype, codes: Codes { bits, group, .. } } => {
                let groups = out.len() / group;
                let (mut scale, mut bias) = (vec![0.0; groups], vec![0.0; groups]);
                read_numbers(*dtype, scales, row, &mut scale);
                read_numbers(*dtype, biases, row, &mut bias);
                let stream = &words[row * out.len() * bits / 8..];
                for (i, value) in out.iter_mut().enumerate() {
                    *value = scale[i / group] * f32::from(code_at(stream, *bits, i)) + bias[i / group];
                }
            }
            Data::Packed { .. } | Data::Stack(_) => {}
        }
    }
}

/// Row `row` of stored floats.
fn read_numbers(dtype: DType, bytes: &Bytes, row: usize, out: &mut [f32]) {
    let width = out.len() * dtype.size();
    let wide = Tensor::new(dtype, &[out.len()], bytes.slice(row * width..(row + 1) * width)).and_then(|t| cast(&t, DType::F32));
    if let Some(values) = wide.as_ref().ok().and_then(|wide| wide.as_slice::<f32>().ok()) {
        out.copy_from_slice(values);
    }
}

/// Code `i` of a stream of codes with at most 8 bits, lowest bits first.
fn code_at(stream: &[u8], bits: usize, i: usize) -> u8 {
    let (at, shift) = (i * bits / 8, i * bits % 8);
    let pair = u16::from_le_bytes([stream[at], stream.get(at + 1).copied().unwrap_or(0)]);
    (pair >> shift) as u8 & u8::MAX >> (8 - bits)
}
