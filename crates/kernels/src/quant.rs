//! Matrices of packed codes: formats, dequantization, and products of few rows that read codes
//! straight into registers. [`gemm`](crate::gemm) multiplies them.

mod code;
mod dequant;
mod gemv;
mod pairs;

use std::sync::atomic::{AtomicBool, Ordering};

use flambeau_tensor::DType;
use half::{bf16, f16};

use crate::{Error, Pool, error::same};
pub(crate) use dequant::read;
pub use dequant::{dequantize, dequantize_rows};
pub(crate) use gemv::{Kind, Prepared, number_words, rows_times};
pub(crate) use pairs::read_pairs;

/// Format of packed values. A row is one little-endian bit stream, lowest bits first, in whole
/// `u32` words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// value = code · scale + bias, one float scale and bias a group.
    Affine {
        /// 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Codes of a group: 16, 32, 64 or 128.
        group: usize,
    },
    /// value = (code − 2^(bits − 1)) · scale, one float scale a group.
    Symmetric {
        /// 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Codes of a group: 16, 32, 64 or 128.
        group: usize,
    },
    /// E2M1 codes, groups of 16 with an E4M3 scale.
    Nvfp4,
    /// E2M1 codes, groups of 32 with an E8M0 scale.
    Mxfp4,
    /// E4M3 codes, groups of 32 with an E8M0 scale. The two NaN codes read as ±480.
    Mxfp8,
}

impl Format {
    /// Bits of a code.
    pub fn bits(self) -> u32 {
        match self {
            Format::Affine { bits, .. } | Format::Symmetric { bits, .. } => bits,
            Format::Nvfp4 | Format::Mxfp4 => 4,
            Format::Mxfp8 => 8,
        }
    }

    /// Codes of a group.
    pub fn group(self) -> usize {
        match self {
            Format::Affine { group, .. } | Format::Symmetric { group, .. } => group,
            Format::Nvfp4 => 16,
            Format::Mxfp4 | Format::Mxfp8 => 32,
        }
    }

    /// The code of zero, where it is the same in every group and not 0.
    fn zero(self) -> f32 {
        match self {
            Format::Symmetric { bits, .. } => (1u32 << (bits - 1)) as f32,
            _ => 0.0,
        }
    }

    fn check(self) -> Result<(), Error> {
        if !matches!(self.bits(), 2 | 3 | 4 | 5 | 6 | 8) {
            return Err(Error::Parameter { what: "bits of a code", found: i64::from(self.bits()) });
        }
        if !matches!(self.group(), 16 | 32 | 64 | 128) {
            return Err(Error::Parameter { what: "group size", found: self.group() as i64 });
        }
        Ok(())
    }
}

/// One number a group, row-major `[rows, cols / group]`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Scales<'a> {
    /// Plain numbers.
    F32(&'a [f32]),
    /// Plain numbers.
    F16(&'a [f16]),
    /// Plain numbers.
    BF16(&'a [bf16]),
    /// E4M3 (nvfp4) or E8M0 (mxfp4, mxfp8) codes.
    U8(&'a [u8]),
}

impl Scales<'_> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        match self {
            Scales::F32(s) => s.len(),
            Scales::F16(s) => s.len(),
            Scales::BF16(s) => s.len(),
            Scales::U8(s) => s.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether both are the same memory of the same type.
    fn is_same(&self, other: &Scales) -> bool {
        match (self, other) {
            (Scales::F32(a), Scales::F32(b)) => std::ptr::eq(*a, *b),
            (Scales::F16(a), Scales::F16(b)) => std::ptr::eq(*a, *b),
            (Scales::BF16(a), Scales::BF16(b)) => std::ptr::eq(*a, *b),
            (Scales::U8(a), Scales::U8(b)) => std::ptr::eq(*a, *b),
            _ => false,
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Scales::F32(_) => DType::F32,
            Scales::F16(_) => DType::F16,
            Scales::BF16(_) => DType::BF16,
            Scales::U8(_) => DType::U8,
        }
    }
}

/// A matrix `[rows, cols]` of packed codes whose groups run along its rows. Sizes are checked on
/// construction.
#[derive(Clone, Copy, Debug)]
pub struct QMatrix<'a> {
    format: Format,
    words: &'a [u32],
    scales: Scales<'a>,
    biases: Option<Scales<'a>>,
    rows: usize,
    cols: usize,
}

impl<'a> QMatrix<'a> {
    /// `words` is `[rows, cols · bits / 32]`, `scales` and (affine only) `biases` are
    /// `[rows, cols / group]`.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a format outside the table, a missing or unwanted bias, or scales
    /// of the wrong kind. [`Error::Size`] if a length differs from the stated sizes.
    pub fn new(
        format: Format,
        words: &'a [u32],
        scales: Scales<'a>,
        biases: Option<Scales<'a>>,
        [rows, cols]: [usize; 2],
    ) -> Result<QMatrix<'a>, Error> {
        format.check()?;
        let affine = matches!(format, Format::Affine { .. });
        if affine != biases.is_some() {
            return Err(Error::Parameter { what: "presence of biases in this format", found: i64::from(biases.is_some()) });
        }
        let has_float_scales = affine || matches!(format, Format::Symmetric { .. });
        if has_float_scales == (scales.dtype() == DType::U8) || biases.is_some_and(|b| b.dtype() == DType::U8) {
            return Err(Error::Parameter { what: "dtype code of scales", found: i64::from(scales.dtype().code()) });
        }
        same("columns left over by groups", 0, cols % format.group())?;
        same("bits of a row left over by words", 0, cols % 32 * format.bits() as usize % 32)?;
        let row_words = cols / 32 * format.bits() as usize + cols % 32 * format.bits() as usize / 32;
        same("words", rows.saturating_mul(row_words), words.len())?;
        same("scales", rows.saturating_mul(cols / format.group()), scales.len())?;
        if let Some(biases) = biases {
            same("biases", scales.len(), biases.len())?;
        }
        Ok(QMatrix { format, words, scales, biases, rows, cols })
    }

    /// The equivalent symmetric format, if every bias equals the implied bias of that format.
    pub fn symmetric(&self, pool: &Pool) -> Option<Format> {
        let (Format::Affine { bits, group }, Some(biases)) = (self.format, self.biases) else { return None };
        let format = Format::Symmetric { bits, group };
        let symmetric = QMatrix { format, biases: None, ..*self };
        let differ = AtomicBool::new(false);
        pool.run_ranges(biases.len(), 1 << 16, |groups| {
            if !differ.load(Ordering::Relaxed) && !code::have_same_numbers(pool.cpu(), self, &symmetric, groups) {
                differ.store(true, Ordering::Relaxed);
            }
        });
        (!differ.into_inner()).then_some(format)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Coding of values.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether both are the same memory, read alike.
    pub(crate) fn is_same(&self, other: &QMatrix) -> bool {
        let biases = match (&self.biases, &other.biases) {
            (Some(a), Some(b)) => a.is_same(b),
            (None, None) => true,
            _ => false,
        };
        let is_read_alike = self.format == other.format && self.rows == other.rows && self.cols == other.cols;
        is_read_alike && biases && std::ptr::eq(self.words, other.words) && self.scales.is_same(&other.scales)
    }

    /// `count` rows from `start` on, both inside the matrix.
    pub(crate) fn rows_from(&self, start: usize, count: usize) -> QMatrix<'a> {
        let cut = |s: Scales<'a>| {
            let range = start * self.row_groups()..(start + count) * self.row_groups();
            match s {
                Scales::F32(s) => Scales::F32(&s[range]),
                Scales::F16(s) => Scales::F16(&s[range]),
                Scales::BF16(s) => Scales::BF16(&s[range]),
                Scales::U8(s) => Scales::U8(&s[range]),
            }
        };
        let words = &self.words[start * self.row_words()..(start + count) * self.row_words()];
        QMatrix { words, scales: cut(self.scales), biases: self.biases.map(cut), rows: count, ..*self }
    }

    fn row_words(&self) -> usize {
        self.cols * self.format.bits() as usize / 32
    }

    /// Bytes of a row's words.
    pub(crate) fn row_bytes(&self) -> usize {
        4 * self.row_words()
    }

    fn row_groups(&self) -> usize {
        self.cols / self.format.group()
    }
}

#[cfg(test)]
mod tests;
