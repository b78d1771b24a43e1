use flambeau_tensor::{Bytes, DType, f16};
use proptest::prelude::*;

use super::{Block, TABLE};
use crate::{
    CheckpointTensor, Data,
    affine::{BlockMatrix, Part},
    gguf::Gguf,
    source::RowOrder,
};

/// Value of element `i` by the format's own formula, written out apart from the tables under test.
fn naive(kind: Block, b: &[u8], i: usize) -> f32 {
    let half = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
    let nibble = |at: usize, i: usize| if i < 16 { i32::from(b[at + i] & 15) } else { i32::from(b[at + i - 16] >> 4) };
    let fifth = |at: usize, i: usize| (u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]) >> i & 1) as i32 * 16;
    let pair = |j: usize| {
        let s = &b[4..16];
        if j < 4 {
            (s[j] & 63, s[j + 4] & 63)
        } else {
            ((s[j + 4] & 15) + (s[j - 4] / 64) * 16, (s[j + 4] / 16) + (s[j] / 64) * 16)
        }
    };
    let (n, l, j) = (i / 128, i % 32, i % 128 / 32);
    match kind {
        Block::Q4_0 => half(0) * (nibble(2, i) - 8) as f32,
        Block::Q4_1 => half(0) * nibble(4, i) as f32 + half(2),
        Block::Q5_0 => half(0) * (nibble(6, i) + fifth(2, i) - 16) as f32,
        Block::Q5_1 => half(0) * (nibble(8, i) + fifth(4, i)) as f32 + half(2),
        Block::Q8_0 => half(0) * f32::from(b[2 + i] as i8),
        Block::Q2_K => {
            let (q, s) = (b[16 + 32 * n + l] >> (2 * j) & 3, b[8 * n + 2 * j + l / 16]);
            half(80) * f32::from(s & 15) * f32::from(q) - half(82) * f32::from(s >> 4)
        }
        Block::Q3_K => {
            let q = i32::from(b[32 + 32 * n + l] >> (2 * j) & 3) - if b[l] >> (4 * n + j) & 1 == 1 { 0 } else { 4 };
            let at = 8 * n + 2 * j + l / 16;
            let low = if at < 8 { b[96 + at] & 15 } else { b[96 + at - 8] >> 4 };
            let scale = i32::from(low) + i32::from(b[104 + at % 4] >> (2 * (at / 4)) & 3) * 16 - 32;
            half(108) * scale as f32 * q as f32
        }
        Block::Q4_K | Block::Q5_K => {
            let (at, sub) = (if kind == Block::Q4_K { 16 } else { 48 }, i / 32);
            let byte = b[at + 32 * (sub / 2) + l];
            let q = if sub % 2 == 0 { byte & 15 } else { byte >> 4 };
            let q = if kind == Block::Q5_K { q + (b[16 + l] >> sub & 1) * 16 } else { q };
            let (scale, min) = pair(sub);
            half(0) * f32::from(scale) * f32::from(q) - half(2) * f32::from(min)
        }
        Block::Q6_K => {
            let low = b[64 * n + 32 * (j % 2) + l] >> (4 * (j / 2)) & 15;
            let q = i32::from(low) + i32::from(b[128 + 32 * n + l] >> (2 * j) & 3) * 16 - 32;
            half(208) * f32::from(b[192 + 8 * n + 2 * j + l / 16] as i8) * q as f32
        }
    }
}

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
fn rows_of_the_table_stand_in_the_order_of_the_variants() {
    for (i, row) in TABLE.iter().enumerate() {
        assert_eq!(row.0 as usize, i);
        assert_eq!(row.1 * row.3 % 32, 0, "{:?} does not fill whole words", row.0);
    }
}

#[test]
fn every_format_agrees_with_the_reference_package() {
    let file = Gguf::parse(Bytes::from_static(include_bytes!("../../tests/data/blocks.gguf"))).unwrap();
    for (block, ..) in TABLE {
        let source = file.source(&format!("{block:?}")).unwrap().unwrap();
        let Data::Blocks { bytes, .. } = source.data() else { panic!("{block:?} is {}", source.kind()) };
        let matrix = BlockMatrix { block, bytes: bytes.clone(), rows: 1, cols: 256, order: RowOrder::Plain };
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
    let message = matrix.params(Part::Bias, DType::F16).unwrap_err();
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

proptest! {
    #[test]
    fn affine_form_is_exact(kind in 0..TABLE.len(), raw in prop::collection::vec(any::<u8>(), 2 * 210 * 8), d in -4f32..4.0, m in -4f32..4.0, swap: bool) {
        let block = TABLE[kind].0;
        let halves: &[usize] = match block {
            Block::Q4_1 | Block::Q5_1 | Block::Q4_K | Block::Q5_K => &[0, 2],
            Block::Q2_K => &[80, 82],
            Block::Q3_K => &[108],
            Block::Q6_K => &[208],
            _ => &[0],
        };
        let mut bytes = raw[..2 * 256 / block.elements() * block.bytes()].to_vec();
        for b in bytes.chunks_exact_mut(block.bytes()) {
            for (&at, v) in halves.iter().zip([d, m]) {
                b[at..at + 2].copy_from_slice(&f16::from_f32(v).to_le_bytes());
            }
        }
        let order = if swap { RowOrder::Interleaved(2) } else { RowOrder::Plain };
        let matrix = BlockMatrix { block, bytes: bytes.clone().into(), rows: 2, cols: 256, order };
        let value = |i: usize| naive(block, &bytes[i / block.elements() * block.bytes()..][..block.bytes()], i % block.elements());
        let want: Vec<f32> = (0..512).map(value).collect();
        prop_assert_eq!(through_affine(&matrix, block.exact_scales()), want);
    }
}
