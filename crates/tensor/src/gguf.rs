//! GGUF's block formats: positions of codes, scales and minima in a block.
//!
//! Every format here has an affine form: value = scale · code + bias, with unsigned codes and one
//! (scale, bias) pair a group.

use half::f16;

use crate::DType;

/// A quantized block format with an affine form. Names follow GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "the names by which files and people call the formats")]
pub enum Block {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

/// Elements of the largest block.
pub const MAX_ELEMENTS: usize = 256;

/// (format, elements of a block, its bytes, bits of a code, elements of a group, type that holds
/// scales and biases exactly)
const TABLE: [(Block, usize, usize, usize, usize, DType); 12] = [
    (Block::Q4_0, 32, 18, 4, 32, DType::F16),
    (Block::Q4_1, 32, 20, 4, 32, DType::F16),
    (Block::Q5_0, 32, 22, 5, 32, DType::F16),
    (Block::Q5_1, 32, 24, 5, 32, DType::F16),
    (Block::Q8_0, 32, 34, 8, 32, DType::F16),
    (Block::Q2_K, 256, 84, 2, 16, DType::F32),
    (Block::Q3_K, 256, 110, 3, 16, DType::F32),
    (Block::Q4_K, 256, 144, 4, 32, DType::F32),
    (Block::Q5_K, 256, 176, 5, 32, DType::F32),
    (Block::Q6_K, 256, 210, 6, 16, DType::F32),
    (Block::IQ4_NL, 32, 18, 8, 32, DType::F16),
    (Block::IQ4_XS, 256, 136, 8, 32, DType::F32),
];

/// The values of the four-bit codes of IQ4_NL and IQ4_XS, plus 128. Their steps are uneven, so only
/// eight bits are affine.
const UNEVEN: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// Little-endian half-precision number at byte `at`.
///
/// # Panics
/// If the block ends before it.
#[inline]
pub fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Six-bit scale and minimum of sub-block `j` out of the twelve bytes that Q4_K and Q5_K share.
///
/// # Panics
/// If `s` has fewer than 12 bytes or `j` is not below 8.
#[inline]
pub fn scale_min(s: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = match j {
        0..4 => (s[j] & 63, s[j + 4] & 63),
        _ => (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4),
    };
    (f32::from(scale), f32::from(min))
}

/// Six-bit scale `i` of sixteen out of the twelve bytes of Q3_K.
fn q3_scale(s: &[u8], i: usize) -> f32 {
    let low = if i < 8 { s[i] & 15 } else { s[i - 8] >> 4 };
    let high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
    f32::from(low | high << 4) - 32.0
}

impl Block {
    fn row(self) -> &'static (Block, usize, usize, usize, usize, DType) {
        &TABLE[self as usize]
    }

    /// Every format.
    pub fn all() -> impl Iterator<Item = Block> {
        TABLE.iter().map(|row| row.0)
    }

    /// The format of that name, such as `q4_k`, in any case.
    pub fn from_name(name: &str) -> Option<Block> {
        Block::all().find(|block| block.name().eq_ignore_ascii_case(name))
    }

    /// GGUF's name of the format.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Elements of a block.
    pub fn elements(self) -> usize {
        self.row().1
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.row().2
    }

    /// Bits of a code.
    pub fn bits(self) -> usize {
        self.row().3
    }

    /// Elements that share a scale.
    pub fn group(self) -> usize {
        self.row().4
    }

    /// The narrowest float type that holds every scale and bias of ordinary size exactly.
    pub fn exact_scales(self) -> DType {
        self.row().5
    }

    /// Groups of a block.
    pub fn groups(self) -> usize {
        self.elements() / self.group()
    }

    /// Writes the codes of one block in element order, one byte each.
    ///
    /// # Panics
    /// Unless `block` has [`Block::bytes`] bytes and `out` [`Block::elements`].
    pub fn codes(self, block: &[u8], out: &mut [u8]) {
        match self {
            Block::Q4_0 => nibbles(&block[2..], out),
            Block::Q4_1 => nibbles(&block[4..], out),
            Block::Q5_0 => five_bits(&block[2..6], &block[6..], out),
            Block::Q5_1 => five_bits(&block[4..8], &block[8..], out),
            Block::Q8_0 => out.iter_mut().zip(&block[2..]).for_each(|(code, &b)| *code = b ^ 0x80),
            Block::Q2_K => crumbs(&block[16..80], out),
            Block::Q3_K => {
                crumbs(&block[32..96], out);
                for (i, code) in out.iter_mut().enumerate() {
                    *code |= (block[i % 32] >> (i / 32) & 1) << 2;
                }
            }
            Block::Q4_K => sub_blocks(&block[16..], out),
            Block::Q5_K => {
                sub_blocks(&block[48..], out);
                for (i, code) in out.iter_mut().enumerate() {
                    *code |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
                }
            }
            Block::Q6_K => six_bits(&block[..128], &block[128..192], out),
            Block::IQ4_NL => uneven(&block[2..], out),
            Block::IQ4_XS => uneven(&block[8..], out),
        }
    }

    /// Writes (scale, bias) of each group of one block.
    ///
    /// # Panics
    /// Unless `block` has [`Block::bytes`] bytes and `out` [`Block::groups`].
    pub fn affine(self, block: &[u8], out: &mut [(f32, f32)]) {
        match self {
            Block::Q4_0 => out[0] = (half(block, 0), -8.0 * half(block, 0)),
            Block::Q5_0 => out[0] = (half(block, 0), -16.0 * half(block, 0)),
            Block::Q8_0 | Block::IQ4_NL => out[0] = (half(block, 0), -128.0 * half(block, 0)),
            Block::Q4_1 | Block::Q5_1 => out[0] = (half(block, 0), half(block, 2)),
            Block::Q2_K => {
                let (d, min) = (half(block, 80), half(block, 82));
                for (pair, &s) in out.iter_mut().zip(&block[..16]) {
                    *pair = (d * f32::from(s & 15), -(min * f32::from(s >> 4)));
                }
            }
            Block::Q3_K => {
                let d = half(block, 108);
                for (i, pair) in out.iter_mut().enumerate() {
                    let scale = d * q3_scale(&block[96..108], i);
                    *pair = (scale, -4.0 * scale);
                }
            }
            Block::Q4_K | Block::Q5_K => {
                let (d, min) = (half(block, 0), half(block, 2));
                for (j, pair) in out.iter_mut().enumerate() {
                    let (s, m) = scale_min(&block[4..16], j);
                    *pair = (d * s, -(min * m));
                }
            }
            Block::Q6_K => {
                let d = half(block, 208);
                for (pair, &s) in out.iter_mut().zip(&block[192..208]) {
                    let scale = d * f32::from(s as i8);
                    *pair = (scale, -32.0 * scale);
                }
            }
            Block::IQ4_XS => {
                let (d, high) = (half(block, 0), u16::from_le_bytes([block[2], block[3]]));
                for (i, pair) in out.iter_mut().enumerate() {
                    let low = block[4 + i / 2] >> (4 * (i % 2)) & 15;
                    let six = u16::from(low) | (high >> (2 * i) & 3) << 4;
                    let scale = d * (f32::from(six) - 32.0);
                    *pair = (scale, -128.0 * scale);
                }
            }
        }
    }
}

/// Low nibbles are the first half of the elements, high nibbles the second.
fn nibbles(bytes: &[u8], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &b) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (b & 15, b >> 4);
    }
}

/// 16 bytes of nibbles for 32 elements, decoded to their codes.
fn uneven(bytes: &[u8], out: &mut [u8]) {
    for (out, bytes) in out.chunks_exact_mut(32).zip(bytes.chunks_exact(16)) {
        nibbles(bytes, out);
        out.iter_mut().for_each(|code| *code = UNEVEN[usize::from(*code)]);
    }
}

/// As [`nibbles`], with bit `i` of a 32-bit number as the fifth of element `i`.
fn five_bits(fifth: &[u8], bytes: &[u8], out: &mut [u8]) {
    nibbles(bytes, out);
    for (i, code) in out.iter_mut().enumerate() {
        *code |= (fifth[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// Two bits an element: 32 bytes carry 128 elements, their lowest pairs first.
fn crumbs(bytes: &[u8], out: &mut [u8]) {
    for (half, bytes) in out.chunks_exact_mut(128).zip(bytes.chunks_exact(32)) {
        for (i, code) in half.iter_mut().enumerate() {
            *code = bytes[i % 32] >> (2 * (i / 32)) & 3;
        }
    }
}

/// 32 bytes carry 64 elements, low nibbles first.
fn sub_blocks(bytes: &[u8], out: &mut [u8]) {
    for (pair, bytes) in out.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
        for (i, code) in pair.iter_mut().enumerate() {
            *code = bytes[i % 32] >> (4 * (i / 32)) & 15;
        }
    }
}

/// 64 bytes of nibbles and 32 of bit pairs carry 128 elements.
fn six_bits(low: &[u8], high: &[u8], out: &mut [u8]) {
    for ((half, low), high) in out.chunks_exact_mut(128).zip(low.chunks_exact(64)).zip(high.chunks_exact(32)) {
        for (i, code) in half.iter_mut().enumerate() {
            *code = low[i % 64] >> (4 * (i / 64)) & 15 | (high[i % 32] >> (2 * (i / 32)) & 3) << 4;
        }
    }
}

#[cfg(test)]
mod tests;
