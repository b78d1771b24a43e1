//! Formats of packed codes, and orders of rows in files.

use std::sync::Arc;

use flambeau_tensor::DType;

/// Format of packed codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codes {
    pub(crate) mode: Mode,
    pub(crate) bits: usize,
    /// Number of codes that share a scale.
    pub(crate) group: usize,
}

/// Decoding of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `scale * code + bias`, with float scales and biases.
    Affine,
    /// Small floats with one scale byte per group.
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Affine, Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4];

    /// Name in MLX's configs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Mxfp8 => "mxfp8",
            Mode::Nvfp4 => "nvfp4",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

impl Codes {
    /// Whether these codes fill rows of `cols` elements with whole groups and words.
    pub(crate) fn fill(self, cols: usize) -> bool {
        cols.is_multiple_of(self.group) && (cols % 32 * self.bits).is_multiple_of(32)
    }

    /// Whether MLX supports these codes with scales of this type.
    pub(crate) fn exist(self, scales: DType) -> bool {
        match self.mode {
            Mode::Affine => {
                let sizes = matches!(self.bits, 2 | 3 | 4 | 5 | 6 | 8) && matches!(self.group, 16 | 32 | 64 | 128);
                sizes && scales.is_float() && scales.size() > 1
            }
            Mode::Mxfp4 => (self.bits, self.group, scales) == (4, 32, DType::U8),
            Mode::Mxfp8 => (self.bits, self.group, scales) == (8, 32, DType::U8),
            Mode::Nvfp4 => (self.bits, self.group, scales) == (4, 16, DType::U8),
        }
    }
}

/// Order of a matrix's rows in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// The program's order.
    Plain,
    /// Adjacent rotary partners in each head with this many rows. The program takes the first
    /// partners of all pairs, then the second partners.
    Interleaved(usize),
    /// The stored row of each row in the program. The program may use fewer rows.
    Listed(Arc<[usize]>),
}

impl RowOrder {
    /// The stored row for row `row` of the program.
    pub(crate) fn source(&self, row: usize) -> usize {
        match *self {
            RowOrder::Plain => row,
            RowOrder::Interleaved(head) => {
                let (start, at, pairs) = (row / head * head, row % head, head / 2);
                start + at % pairs * 2 + at / pairs
            }
            RowOrder::Listed(ref rows) => rows.get(row).copied().unwrap_or(row),
        }
    }
}
