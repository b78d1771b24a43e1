//! GGUF's types with codebooks: IQ1, IQ2 and IQ3. An index selects four or eight small integers at
//! once, and each group has a scale.

use flambeau_tensor::{Bytes, DType, gguf::half};

use super::CodedRows;
use crate::codes::{Codes, Mode};

/// A type with a codebook. Names follow GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the names by which files and people call the formats")]
pub enum Codebook {
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
}

/// Elements of a block of any of the types.
pub(crate) const ELEMENTS: usize = 256;

/// The integers of all codebooks, one byte each. `codebooks.py` writes the file.
const TABLES: &[u8] = include_bytes!("codebooks.bin");

/// Sizes of a type.
struct Layout {
    /// Bytes of a block.
    bytes: usize,
    /// Elements that share a scale.
    group: usize,
    /// Offset of the codebook in [`TABLES`], in bytes.
    table: usize,
    /// Number of integers in an entry of the codebook.
    entry: usize,
}

/// Codes are the integers plus this number.
const MIDDLE: i16 = 128;

fn word(block: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Seven signs, and an eighth that makes the number of negative ones even.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

impl Codebook {
    fn layout(self) -> Layout {
        let (bytes, group, table, entry) = match self {
            Codebook::IQ1_S => (50, 32, 0, 8),
            Codebook::IQ1_M => (56, 16, 0, 8),
            Codebook::IQ2_XXS => (66, 32, 16_384, 8),
            Codebook::IQ2_XS => (74, 16, 18_432, 8),
            Codebook::IQ2_S => (82, 16, 22_528, 8),
            Codebook::IQ3_XXS => (98, 32, 30_720, 4),
            Codebook::IQ3_S => (110, 32, 31_744, 4),
        };
        Layout { bytes, group, table, entry }
    }

    /// Bytes of a block.
    pub(crate) fn bytes(self) -> usize {
        self.layout().bytes
    }

    /// Elements that share a scale.
    fn group(self) -> usize {
        self.layout().group
    }

    /// The integers of an entry.
    fn entry(self, index: usize) -> &'static [u8] {
        let Layout { table, entry, .. } = self.layout();
        &TABLES[table + index * entry..][..entry]
    }

    /// Index and signs of each part of a block. A part has as many elements as an entry.
    fn part(self, block: &[u8], part: usize) -> (usize, u8) {
        match self {
            Codebook::IQ1_S => (usize::from(block[2 + part]) | (word(block, 34 + part / 4 * 2) >> (part % 4 * 3) & 7) << 8, 0),
            Codebook::IQ1_M => (usize::from(block[part]) | usize::from(block[32 + part / 2] >> (part % 2 * 4) & 7) << 8, 0),
            Codebook::IQ2_XXS => {
                let at = 2 + part / 4 * 8;
                (usize::from(block[at + part % 4]), even_signs(long(block, at + 4) >> (part % 4 * 7)))
            }
            Codebook::IQ2_XS => {
                let both = word(block, 2 + part * 2);
                (both & 511, even_signs((both >> 9) as u32))
            }
            Codebook::IQ2_S => {
                let high = block[66 + part / 4] >> (part % 4 * 2) & 3;
                (usize::from(block[2 + part]) | usize::from(high) << 8, block[34 + part])
            }
            Codebook::IQ3_XXS => {
                let signs = even_signs(long(block, 66 + part / 8 * 4) >> (part % 8 / 2 * 7));
                (usize::from(block[2 + part]), signs >> (part % 2 * 4))
            }
            Codebook::IQ3_S => {
                let high = block[66 + part / 8] >> (part % 8) & 1;
                (usize::from(block[2 + part]) | usize::from(high) << 8, block[74 + part / 2] >> (part % 2 * 4))
            }
        }
    }

    /// The integer of an entry in a program: IQ1 adds or subtracts an eighth, so its integers are
    /// eight times as large.
    fn integer(self, block: &[u8], part: usize, stored: u8) -> i16 {
        let value = i16::from(stored as i8);
        let shifted_down = match self {
            Codebook::IQ1_S => word(block, 34 + part / 4 * 2) & 0x8000 != 0,
            Codebook::IQ1_M => block[32 + part / 2] >> (part % 2 * 4) & 8 != 0,
            _ => return value,
        };
        8 * value + if shifted_down { -1 } else { 1 }
    }

    /// Writes the codes of a block, one byte each.
    fn codes(self, block: &[u8], out: &mut [u8]) {
        for (part, out) in out.chunks_exact_mut(self.layout().entry).enumerate() {
            let (index, signs) = self.part(block, part);
            for (i, (code, &stored)) in out.iter_mut().zip(self.entry(index)).enumerate() {
                let value = self.integer(block, part, stored);
                *code = (MIDDLE + if signs >> i & 1 == 1 { -value } else { value }) as u8;
            }
        }
    }

    /// The scale of group `i` of a block.
    fn scale(self, block: &[u8], i: usize) -> f32 {
        let nibble = |at: usize| f32::from(block[at + i / 2] >> (i % 2 * 4) & 15);
        let top = |at: usize| (long(block, at) >> 28) as f32;
        match self {
            Codebook::IQ1_S => half(block, 0) * (2 * (word(block, 34 + i * 2) >> 12 & 7) + 1) as f32 / 8.0,
            Codebook::IQ1_M => {
                // The block's scale is divided among the highest four bits of four words.
                let bits = (0..4).fold(0, |bits, j| bits | (word(block, 48 + 2 * j) >> 12) << (4 * j));
                let whole = half(&(bits as u16).to_le_bytes(), 0);
                whole * (2 * (word(block, 48 + i / 4 * 2) >> (i % 4 * 3) & 7) + 1) as f32 / 8.0
            }
            Codebook::IQ2_XXS => half(block, 0) * (0.5 + top(2 + i * 8 + 4)) * 0.25,
            Codebook::IQ2_XS => half(block, 0) * (0.5 + nibble(66)) * 0.25,
            Codebook::IQ2_S => half(block, 0) * (0.5 + nibble(74)) * 0.25,
            Codebook::IQ3_XXS => half(block, 0) * (0.5 + top(66 + i * 4)) * 0.5,
            Codebook::IQ3_S => half(block, 0) * (1.0 + 2.0 * nibble(106)),
        }
    }
}

fn long(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Blocks of a type with a codebook, in rows of `cols` elements.
#[derive(Clone, Debug)]
pub(crate) struct CodebookBlocks {
    pub(crate) kind: Codebook,
    pub(crate) bytes: Bytes,
    pub(crate) cols: usize,
}

impl CodebookBlocks {
    fn row(&self, row: usize) -> std::slice::ChunksExact<'_, u8> {
        let stride = self.cols / ELEMENTS * self.kind.bytes();
        self.bytes[row * stride..(row + 1) * stride].chunks_exact(self.kind.bytes())
    }
}

impl CodedRows for CodebookBlocks {
    fn codes(&self) -> Codes {
        Codes { mode: Mode::Affine, bits: 8, group: self.kind.group() }
    }

    fn exact_scales(&self) -> DType {
        DType::F32
    }

    fn kind(&self) -> String {
        format!("{:?}", self.kind)
    }

    fn read_codes(&self, row: usize, out: &mut [u8]) {
        self.row(row).zip(out.chunks_exact_mut(ELEMENTS)).for_each(|(block, out)| self.kind.codes(block, out));
    }

    fn read_numbers(&self, row: usize, out: &mut [(f32, f32)]) {
        for (block, out) in self.row(row).zip(out.chunks_exact_mut(ELEMENTS / self.kind.group())) {
            for (i, pair) in out.iter_mut().enumerate() {
                let scale = self.kind.scale(block, i);
                *pair = (scale, -f32::from(MIDDLE) * scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Per type: its number of blocks, the blocks, and their values as gguf-py decodes them.
    const CASES: &[u8] = include_bytes!("../../tests/data/codebooks.bin");

    #[test]
    fn values_are_those_of_gguf_py() {
        let mut rest = CASES;
        let mut take = |len: usize| {
            let (head, tail) = rest.split_at(len);
            rest = tail;
            head
        };
        use Codebook::*;
        for kind in [IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S] {
            let count = usize::from(take(1)[0]);
            let cols = count * ELEMENTS;
            let rows = CodebookBlocks { kind, bytes: take(count * kind.bytes()).to_vec().into(), cols };
            let expected: Vec<f32> = take(cols * 4).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            let (mut codes, mut pairs) = (vec![0; cols], vec![(0.0, 0.0); cols / kind.group()]);
            rows.read_codes(0, &mut codes);
            rows.read_numbers(0, &mut pairs);
            for (i, (&code, expected)) in codes.iter().zip(expected).enumerate() {
                let (scale, bias) = pairs[i / kind.group()];
                assert_eq!(f32::from(code).mul_add(scale, bias), expected, "{kind:?} at {i}");
            }
        }
        assert_eq!(rest.len(), 0);
    }
}
