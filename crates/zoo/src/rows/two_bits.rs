//! GGUF's types with one scale a block and codes of at most two bits: ternary types, bits and pairs
//! of bits.

use flambeau_tensor::{Bytes, DType, gguf::half};

use super::CodedRows;
use crate::codes::{Codes, Mode};

/// A type with codes of at most two bits. Names follow GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwoBits {
    TQ1_0,
    TQ2_0,
    Q1_0,
    Q2_0,
}

/// (type, elements of a block, its bytes, elements of a group, place of the scale)
const KINDS: [(TwoBits, usize, usize, usize, usize); 4] = [
    (TwoBits::TQ1_0, 256, 54, 128, 52),
    (TwoBits::TQ2_0, 256, 66, 128, 64),
    (TwoBits::Q1_0, 128, 18, 128, 0),
    (TwoBits::Q2_0, 64, 18, 64, 0),
];

impl TwoBits {
    #[cfg(test)]
    pub(crate) const ALL: [TwoBits; 4] = [TwoBits::TQ1_0, TwoBits::TQ2_0, TwoBits::Q1_0, TwoBits::Q2_0];

    fn row(self) -> &'static (TwoBits, usize, usize, usize, usize) {
        &KINDS[self as usize]
    }

    /// Elements of a block.
    pub(crate) fn elements(self) -> usize {
        self.row().1
    }

    /// Bytes of a block.
    pub(crate) fn bytes(self) -> usize {
        self.row().2
    }

    /// Writes the codes of a block.
    fn codes(self, block: &[u8], out: &mut [u8]) {
        match self {
            TwoBits::TQ1_0 => trits(block, out),
            TwoBits::TQ2_0 => {
                for (i, code) in out.iter_mut().enumerate() {
                    *code = block[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
                }
            }
            TwoBits::Q1_0 => out.iter_mut().enumerate().for_each(|(i, code)| *code = block[2 + i / 8] >> (i % 8) & 1),
            TwoBits::Q2_0 => out.iter_mut().enumerate().for_each(|(i, code)| *code = block[2 + i / 4] >> (2 * (i % 4)) & 3),
        }
    }

    /// Scale and bias of a block. Code 0 means minus the scale. The two codes of Q1_0 mean
    /// minus and plus the scale.
    fn affine(self, block: &[u8]) -> (f32, f32) {
        let scale = half(block, self.row().4);
        (if self == TwoBits::Q1_0 { 2.0 * scale } else { scale }, -scale)
    }
}

/// Ternary digits: five to a byte in the first 48 bytes, four to a byte in the next 4. Bytes of a
/// run hold the first digits of the elements of one run, then the second digits of the next.
fn trits(block: &[u8], out: &mut [u8]) {
    let (mut at, mut rest) = (0, out);
    for (bytes, digits) in [(32, 5), (16, 5), (4, 4)] {
        for digit in 0..digits {
            let (run, after) = rest.split_at_mut(bytes);
            run.iter_mut().zip(&block[at..at + bytes]).for_each(|(code, &byte)| *code = trit(byte, digit));
            rest = after;
        }
        at += bytes;
    }
}

/// Ternary digit `digit` of a byte. The byte is a fraction of 256 in base 3.
fn trit(byte: u8, digit: u32) -> u8 {
    let left = byte.wrapping_mul(3u8.pow(digit));
    ((u16::from(left) * 3) >> 8) as u8
}

/// Blocks in rows of `cols` elements.
#[derive(Clone, Debug)]
pub(crate) struct TwoBitBlocks {
    pub(crate) kind: TwoBits,
    pub(crate) bytes: Bytes,
    pub(crate) cols: usize,
}

impl TwoBitBlocks {
    fn row(&self, row: usize) -> std::slice::ChunksExact<'_, u8> {
        let stride = self.cols / self.kind.elements() * self.kind.bytes();
        self.bytes[row * stride..(row + 1) * stride].chunks_exact(self.kind.bytes())
    }
}

impl CodedRows for TwoBitBlocks {
    fn codes(&self) -> Codes {
        Codes { mode: Mode::Affine, bits: 2, group: self.kind.row().3 }
    }

    fn exact_scales(&self) -> DType {
        DType::F16
    }

    fn kind(&self) -> String {
        format!("{:?}", self.kind)
    }

    fn read_codes(&self, row: usize, out: &mut [u8]) {
        self.row(row).zip(out.chunks_exact_mut(self.kind.elements())).for_each(|(block, out)| self.kind.codes(block, out));
    }

    fn read_numbers(&self, row: usize, out: &mut [(f32, f32)]) {
        let groups = self.kind.elements() / self.kind.row().3;
        self.row(row).zip(out.chunks_exact_mut(groups)).for_each(|(block, out)| out.fill(self.kind.affine(block)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_in_the_order_of_the_variants() {
        for (row, kind) in KINDS.iter().zip(TwoBits::ALL) {
            assert_eq!((row.0, row.0 as usize), (kind, kind as usize));
        }
    }

    #[test]
    fn every_byte_holds_five_ternary_digits() {
        for number in 0..243u32 {
            // The smallest byte that is at least the number's share of 256.
            let byte = (number * 256).div_ceil(243) as u8;
            let digits: Vec<u32> = (0..5).map(|digit| u32::from(trit(byte, digit))).collect();
            assert_eq!(digits.iter().fold(0, |value, digit| value * 3 + digit), number);
        }
    }
}
