use flambeau_tensor::e4m3;

use super::*;
use crate::{
    CheckpointTensor,
    gguf::Gguf,
    rows::two_bits::{TwoBitBlocks, TwoBits},
};

/// GGUF blocks as a matrix.
fn blocks(block: Block, bytes: Bytes, [rows, cols]: [usize; 2], order: RowOrder) -> CodedMatrix {
    CodedMatrix { stored: Arc::new(Blocks { block, bytes, cols }), rows, cols, order }
}

/// All values, decoded from the bit stream, scales and biases.
fn through_affine(m: &CodedMatrix, scales: DType) -> Vec<f32> {
    let (words, Codes { bits, group, .. }) = (m.words(), m.stored.codes());
    let part = |part| -> Vec<f32> {
        let bytes = m.numbers(part, scales).unwrap();
        match scales {
            DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        }
    };
    let (scale, bias) = (part(GroupParameter::Scale), part(GroupParameter::Bias));
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
        let matrix = blocks(block, stored.bytes.clone(), [1, 256], RowOrder::Plain);
        let name = format!("{block:?}.values");
        let want = file.source(&name).unwrap().unwrap().values(&name).unwrap();
        assert_eq!(through_affine(&matrix, block.exact_scales()), want, "{block:?}");
    }
}

#[test]
fn codes_of_two_bits_agree_with_the_reference_package() {
    let file = Gguf::parse(Bytes::from_static(include_bytes!("../../tests/data/blocks.gguf"))).unwrap();
    for kind in TwoBits::ALL {
        let bytes = file.tensors[&format!("{kind:?}")].bytes.clone();
        assert_eq!(bytes.len(), 256 / kind.elements() * kind.bytes());
        let stored = Arc::new(TwoBitBlocks { kind, bytes, cols: 256 });
        let matrix = CodedMatrix { stored, rows: 1, cols: 256, order: RowOrder::Plain };
        let name = format!("{kind:?}.values");
        let want = file.source(&name).unwrap().unwrap().values(&name).unwrap();
        assert_eq!(through_affine(&matrix, DType::F16), want, "{kind:?}");
    }
}

#[test]
fn biases_beyond_half_precision_are_refused_there_and_exact_in_single() {
    let mut bytes = vec![0u8; 34];
    bytes[..2].copy_from_slice(&f16::from_f32(600.0).to_le_bytes());
    let matrix = blocks(Block::Q8_0, bytes.into(), [1, 32], RowOrder::Plain);
    let message = matrix.numbers(GroupParameter::Bias, DType::F16).unwrap_err().to_string();
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
    // Four rows of one block each, identified by the first byte of the row's scale.
    let bytes: Vec<u8> = (0..4u8).flat_map(|row| [vec![row, 0x3c], vec![0; 32]].concat()).collect();
    let matrix = blocks(Block::Q8_0, bytes.into(), [4, 32], RowOrder::Interleaved(4));
    let scales = matrix.numbers(GroupParameter::Scale, DType::F16).unwrap();
    assert_eq!(scales.iter().step_by(2).copied().collect::<Vec<_>>(), [0, 2, 1, 3]);
}

/// The value of a four-bit float.
fn small_float(code: u8) -> f32 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    if code & 8 == 0 { MAGNITUDES[usize::from(code)] } else { -MAGNITUDES[usize::from(code & 7)] }
}

#[test]
fn mxfp4_blocks_become_mlx_codes() {
    let file = Gguf::parse(Bytes::from_static(include_bytes!("../../tests/data/blocks.gguf"))).unwrap();
    let bytes = file.tensors["MXFP4"].bytes.clone();
    let matrix = CodedMatrix { stored: Arc::new(Mxfp4Blocks { bytes, cols: 256 }), rows: 1, cols: 256, order: RowOrder::Plain };
    let (words, scales) = (matrix.words(), matrix.numbers(GroupParameter::Scale, DType::U8).unwrap());
    let want = file.source("MXFP4.values").unwrap().unwrap().values("MXFP4.values").unwrap();
    let value = |i: usize| small_float(words[i / 2] >> (4 * (i % 2)) & 15) * 2f32.powi(i32::from(scales[i / 32]) - 127);
    assert_eq!((0..256).map(value).collect::<Vec<_>>(), want);
}

#[test]
fn nvfp4_blocks_become_mlx_codes() {
    let file = Gguf::parse(Bytes::from_static(include_bytes!("../../tests/data/blocks.gguf"))).unwrap();
    let bytes = file.tensors["NVFP4"].bytes.clone();
    let matrix = CodedMatrix { stored: Arc::new(Nvfp4Blocks { bytes, cols: 256 }), rows: 1, cols: 256, order: RowOrder::Plain };
    let (words, scales) = (matrix.words(), matrix.numbers(GroupParameter::Scale, DType::U8).unwrap());
    let want = file.source("NVFP4.values").unwrap().unwrap().values("NVFP4.values").unwrap();
    let value = |i: usize| small_float(words[i / 2] >> (4 * (i % 2)) & 15) * e4m3(scales[i / 16]);
    assert_eq!((0..256).map(value).collect::<Vec<_>>(), want);
}

#[test]
fn factors_multiply_codes_small_floats_and_floats() {
    let file = Gguf::parse(Bytes::from_static(include_bytes!("../../tests/data/blocks.gguf"))).unwrap();
    // Factors that are powers of two leave no rounding.
    for name in ["Q4_K", "TQ2_0", "MXFP4", "NVFP4", "Q4_K.values"] {
        let reference = format!("{}.values", name.trim_end_matches(".values"));
        let want = file.source(&reference).unwrap().unwrap().values(&reference).unwrap();
        let stored = file.source(name).unwrap().unwrap().with_shape(vec![1, 1, 256]);
        let scaled = stored.clone().scaled(name, vec![0.25]).unwrap().with_shape(vec![1, 256]);
        assert!(scaled.has_float_rows(), "{name}");
        let mut found = vec![0.0; 256];
        scaled.read_float_row(0, &mut found);
        assert_eq!(found, want.iter().map(|v| v * 0.25).collect::<Vec<_>>(), "{name}");
        assert_eq!(stored.clone().scaled(name, vec![1.0]).unwrap().kind(), stored.kind());
        assert!(stored.scaled(name, vec![1.0; 3]).is_err());
    }
}

#[test]
fn each_matrix_of_a_stack_has_its_factor() {
    let values: Vec<u8> = (0..8u8).flat_map(|v| f32::from(v).to_le_bytes()).collect();
    let stack = CheckpointTensor::plain("w", DType::F32, vec![2, 2, 2], values.into()).unwrap();
    let scaled = stack.scaled("w", vec![1.0, 10.0]).unwrap().with_shape(vec![4, 2]);
    let mut row = [0.0; 2];
    scaled.read_float_row(1, &mut row);
    assert_eq!(row, [2.0, 3.0]);
    scaled.read_float_row(2, &mut row);
    assert_eq!(row, [40.0, 50.0]);
}
