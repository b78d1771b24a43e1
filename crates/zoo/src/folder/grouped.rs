//! Matrices [out, in] with codes, scales and zero points in separate tensors: `scale * (code -
//! zero)`. GPTQ, AWQ, compressed-tensors and torchao write them.

use flambeau_tensor::{Bytes, DType};

use crate::rows::numbers::Numbers;
use crate::{
    codes::{Codes, Mode},
    rows::{CodedRows, FloatRows},
};

/// Layout of codes in `u32` words. 32 codes of `bits` bits fill `bits` words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One stream for each output: words [in·bits/32, out].
    Down,
    /// One stream for each output: words [out, in·bits/32].
    Along,
    /// Eight outputs per word, in the order of [`AWQ`]: words [in, out/8].
    Across,
    /// Signed bytes [out, in].
    Bytes,
}

/// Nibble of a word that holds output `i` of eight.
const AWQ: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The zero point of each group.
#[derive(Clone, Debug)]
pub(super) enum Zeros {
    /// The middle code for all groups.
    Middle,
    /// One stream for each group, words [groups, out·bits/32]. Each stored code is the zero point
    /// minus `less`.
    Streams { words: Bytes, less: u32 },
    /// Eight outputs per word as in [`Layout::Across`], words [groups, out/8].
    Across(Bytes),
    /// One stream for each group of eight outputs, words [out·bits/32, groups].
    Down(Bytes),
    /// Floats in the order of the scales.
    Floats(Numbers),
    /// Signed bytes in the order of the scales, for codes in signed bytes.
    Bytes(Bytes),
}

/// A matrix with grouped codes. All parts match its shape.
#[derive(Clone, Debug)]
pub(super) struct Grouped {
    pub(super) name: &'static str,
    pub(super) shape: [usize; 2],
    pub(super) bits: usize,
    pub(super) layout: Layout,
    pub(super) words: Bytes,
    /// [groups, out], or [out, groups] if `scales_along`.
    pub(super) scales: Numbers,
    pub(super) scales_along: bool,
    pub(super) zeros: Zeros,
    /// Number of inputs that share a scale.
    pub(super) group: usize,
}

fn word(words: &[u8], at: usize) -> u64 {
    words.get(4 * at..4 * at + 4).map_or(0, |b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
}

/// Code `i` of a stream with words `words(j)`.
fn of_stream(words: impl Fn(usize) -> u64, bits: usize, i: usize) -> u32 {
    let (at, shift) = (i * bits / 32, i * bits % 32);
    let next = if shift + bits > 32 { words(at + 1) << 32 } else { 0 };
    ((words(at) | next) >> shift) as u32 & ((1 << bits) - 1)
}

impl Grouped {
    /// Signed bytes [out, in] with one scale for each `group` inputs, [out, groups].
    pub(super) fn signed_bytes(name: &'static str, shape: [usize; 2], bytes: Bytes, scales: Numbers, group: usize) -> Grouped {
        Grouped {
            name,
            shape,
            bits: 8,
            layout: Layout::Bytes,
            words: bytes,
            scales,
            scales_along: true,
            zeros: Zeros::Middle,
            group,
        }
    }

    /// Number of groups of inputs.
    fn groups(&self) -> usize {
        self.shape[1].div_ceil(self.group)
    }

    /// Scale and zero point of one output and stored group.
    fn numbers(&self, row: usize, group: usize) -> (f32, f32) {
        let [rows, _] = self.shape;
        let at = if self.scales_along { row * self.groups() + group } else { group * rows + row };
        let scale = self.scales.get(at);
        let zero = match &self.zeros {
            Zeros::Middle => 1 << (self.bits - 1),
            Zeros::Floats(zeros) => return (scale, zeros.get(at)),
            Zeros::Bytes(zeros) => zeros.get(at).map_or(0, |&zero| u32::from(zero ^ 0x80)),
            Zeros::Streams { words, less } => {
                let width = rows * self.bits / 32;
                of_stream(|j| word(words, group * width + j), self.bits, row) + less
            }
            Zeros::Across(words) => (word(words, group * rows / 8 + row / 8) >> (4 * AWQ[row % 8])) as u32 & 15,
            Zeros::Down(words) => of_stream(|j| word(words, j * self.groups() + group), self.bits, row),
        };
        (scale, zero as f32)
    }

    fn code(&self, row: usize, col: usize) -> u8 {
        let [rows, cols] = self.shape;
        match self.layout {
            Layout::Down => of_stream(|j| word(&self.words, j * rows + row), self.bits, col) as u8,
            Layout::Along => of_stream(|j| word(&self.words, row * (cols * self.bits / 32) + j), self.bits, col) as u8,
            Layout::Across => (word(&self.words, col * rows / 8 + row / 8) >> (4 * AWQ[row % 8])) as u8 & 15,
            Layout::Bytes => self.words.get(row * cols + col).map_or(0, |code| code ^ 0x80),
        }
    }
}

/// A matrix in groups that programs support. Each is a part of one stored group.
#[derive(Clone, Debug)]
pub(super) struct Regrouped {
    pub(super) stored: Grouped,
    /// Number of inputs that share a scale in the program.
    pub(super) group: usize,
}

impl CodedRows for Regrouped {
    fn codes(&self) -> Codes {
        Codes { mode: Mode::Affine, bits: self.stored.bits, group: self.group }
    }

    /// The scales' type if every zero point is a power of two. Other products need more bits.
    fn exact_scales(&self) -> DType {
        if matches!(self.stored.zeros, Zeros::Middle) { self.stored.scales.dtype } else { DType::F32 }
    }

    fn kind(&self) -> String {
        format!("{} {} bits in groups of {}", self.stored.name, self.stored.bits, self.stored.group)
    }

    fn read_codes(&self, row: usize, out: &mut [u8]) {
        out.iter_mut().enumerate().for_each(|(col, code)| *code = self.stored.code(row, col));
    }

    fn read_numbers(&self, row: usize, out: &mut [(f32, f32)]) {
        for (i, pair) in out.iter_mut().enumerate() {
            let (scale, zero) = self.stored.numbers(row, i * self.group / self.stored.group);
            *pair = (scale, -scale * zero);
        }
    }
}

/// A matrix that lists the group of each input, in any order. Neighboring inputs do not share
/// scales, so its values are computed as floats.
#[derive(Clone, Debug)]
pub(super) struct Reordered {
    pub(super) stored: Grouped,
    /// Group of each input, below the number of groups.
    pub(super) groups: Vec<usize>,
}

impl FloatRows for Reordered {
    fn kind(&self) -> String {
        format!("{} {} bits in reordered groups", self.stored.name, self.stored.bits)
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        let numbers: Vec<_> = (0..self.stored.groups()).map(|group| self.stored.numbers(row, group)).collect();
        for (col, (value, &group)) in out.iter_mut().zip(&self.groups).enumerate() {
            let (scale, zero) = numbers[group];
            *value = scale * (f32::from(self.stored.code(row, col)) - zero);
        }
    }
}
