use flambeau_tensor::{Bytes, DType, f16, gguf::Block};

use super::{BlockMatrix, Part};
use crate::{CheckpointTensor, gguf::Gguf, source::RowOrder};

/// All values by way of bit stream, scales and biases.
fn through_affine(m: &BlockMatrix, scales: DType) -> Vec<f32> {
    let (words, bits, group) = (m.words(), m.block.bits(), m.block.group());
    let part = |part| -> Vec<f32> {
        let bytes = m.params(part, scales).unwrap();
        match scales {
            DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        }
    };
    let (scale, bias) = (part(Part::Scale), part(Part::Bias));
    let row_bytes = m.cols * bits / 8;
    let value = |i: usize| {
        let (row, col) = (i / m.cols, i % m.cols);
        let bit = |k: usize| u32::from(words[row * row_bytes + (col * bits + k) / 8] >> ((col * bits + k) % 8) & 1) << k;
        let code: u32 = (0..bits).map(bit).sum();
        let at = row * (m.cols / group) + col / group;
        scale[at] * code as f32 + bias[at]
    };
    (0..m.rows * m.cols).map(value).collect()
}

#[test]
fn every_format_agrees_with_the_reference_package() {
    let file = Gguf::parse(Bytes::from_static(include_bytes!("../../tests/data/blocks.gguf"))).unwrap();
    for block in Block::all() {
        let stored = &file.tensors[&format!("{block:?}")];
        assert_eq!(stored.kind.block(), Some((block.elements(), block.bytes())));
        let matrix = BlockMatrix { block, bytes: stored.bytes.clone(), rows: 1, cols: 256, order: RowOrder::Plain };
        let name = format!("{block:?}.values");
        let want = file.source(&name).unwrap().unwrap().values(&name).unwrap();
        assert_eq!(through_affine(&matrix, block.exact_scales()), want, "{block:?}");
    }
}

#[test]
fn biases_beyond_half_precision_are_refused_there_and_exact_in_single() {
    let mut bytes = vec![0u8; 34];
    bytes[..2].copy_from_slice(&f16::from_f32(600.0).to_le_bytes());
    let matrix = BlockMatrix { block: Block::Q8_0, bytes: bytes.into(), rows: 1, cols: 32, order: RowOrder::Plain };
    let message = matrix.params(Part::Bias, DType::F16).unwrap_err().to_string();
    assert_eq!(message, "row 0 has the bias -76800, too large for f16");
    assert_eq!(through_affine(&matrix, DType::F32), vec![0.0; 32]);
}

#[test]
fn blocks_must_fill_the_shape() {
    let check = |shape: &[usize], len: usize| {
        assert!(CheckpointTensor::blocks("w", Block::Q4_0, shape.to_vec(), vec![0; len].into()).is_err())
    };
    check(&[1, 33], 18);
    check(&[2, 32], 18);
    check(&[], 18);
    check(&[usize::MAX, 32], 18);
}

#[test]
fn interleaved_rows_take_their_places() {
    // Four rows of one block each; the first byte of a row's scale tells them apart.
    let bytes: Vec<u8> = (0..4u8).flat_map(|row| [vec![row, 0x3c], vec![0; 32]].concat()).collect();
    let matrix = BlockMatrix { block: Block::Q8_0, bytes: bytes.into(), rows: 4, cols: 32, order: RowOrder::Interleaved(4) };
    let scales = matrix.params(Part::Scale, DType::F16).unwrap();
    assert_eq!(scales.iter().step_by(2).copied().collect::<Vec<_>>(), [0, 2, 1, 3]);
}
