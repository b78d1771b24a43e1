use half::f16;
use proptest::prelude::*;

use super::{Block, TABLE};

/// The values of the codes of the uneven formats.
const STEPS: [f32; 16] = [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

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
        Block::IQ4_NL => half(0) * STEPS[nibble(2, i) as usize],
        Block::IQ4_XS => {
            let (sub, at) = (i / 32, 8 + 16 * (i / 32));
            let six = i32::from(b[4 + sub / 2] >> (4 * (sub % 2)) & 15) + (i32::from(b[2 + sub / 4] >> (2 * (sub % 4)) & 3) << 4);
            half(0) * (six - 32) as f32 * STEPS[nibble(at, l) as usize]
        }
        Block::Q6_K => {
            let low = b[64 * n + 32 * (j % 2) + l] >> (4 * (j / 2)) & 15;
            let q = i32::from(low) + i32::from(b[128 + 32 * n + l] >> (2 * j) & 3) * 16 - 32;
            half(208) * f32::from(b[192 + 8 * n + 2 * j + l / 16] as i8) * q as f32
        }
    }
}

/// The values of one block by its codes, scales and biases.
fn through_affine(block: Block, bytes: &[u8]) -> Vec<f32> {
    let (mut codes, mut groups) = (vec![0; block.elements()], vec![(0.0, 0.0); block.groups()]);
    block.codes(bytes, &mut codes);
    block.affine(bytes, &mut groups);
    codes.iter().enumerate().map(|(i, &code)| groups[i / block.group()].0 * f32::from(code) + groups[i / block.group()].1).collect()
}

#[test]
fn rows_of_the_table_stand_in_the_order_of_the_variants() {
    for (i, row) in TABLE.iter().enumerate() {
        assert_eq!(row.0 as usize, i);
        assert_eq!(row.1 * row.3 % 32, 0, "{:?} does not fill whole words", row.0);
    }
}

#[test]
fn formats_are_found_by_name() {
    assert_eq!(Block::from_name("q4_k"), Some(Block::Q4_K));
    assert_eq!(Block::from_name("Q8_0"), Some(Block::Q8_0));
    assert_eq!(Block::from_name("q9_0"), None);
}

proptest! {
    #[test]
    fn the_affine_form_is_exact(kind in 0..TABLE.len(), raw in prop::collection::vec(any::<u8>(), 210), d in -4f32..4.0, m in -4f32..4.0) {
        let block = TABLE[kind].0;
        let halves: &[usize] = match block {
            Block::Q4_1 | Block::Q5_1 | Block::Q4_K | Block::Q5_K => &[0, 2],
            Block::Q2_K => &[80, 82],
            Block::Q3_K => &[108],
            Block::Q6_K => &[208],
            _ => &[0],
        };
        let mut bytes = raw[..block.bytes()].to_vec();
        for (&at, v) in halves.iter().zip([d, m]) {
            bytes[at..at + 2].copy_from_slice(&f16::from_f32(v).to_le_bytes());
        }
        let want: Vec<f32> = (0..block.elements()).map(|i| naive(block, &bytes, i)).collect();
        let close = |(a, b): (&f32, &f32)| a == b || block == Block::IQ4_XS && (a - b).abs() <= b.abs() * f32::EPSILON;
        let found = through_affine(block, &bytes);
        prop_assert!(found.iter().zip(&want).all(close), "{found:?} is not {want:?}");
    }
}
