//! Rows of quantized values in file layouts, and their form in programs: bit streams, and matrices
//! of scales and biases.

pub(crate) mod codebooks;
pub(crate) mod numbers;
pub(crate) mod scaled;
pub(crate) mod two_bits;

use std::{fmt, sync::Arc};

use flambeau_tensor::{AlignedBytes, Bytes, DType, bf16, f16, gguf::Block, pack_codes};

use crate::codes::{Codes, Mode, RowOrder};

/// A matrix of codes in a file's layout.
pub(crate) trait CodedRows: fmt::Debug + Send + Sync {
    /// Format of the codes.
    fn codes(&self) -> Codes;

    /// The narrowest type that holds every scale and bias of ordinary size exactly.
    fn exact_scales(&self) -> DType;

    /// Name of the layout, for messages.
    fn kind(&self) -> String;

    /// Writes the codes of a row, one byte each.
    fn read_codes(&self, row: usize, out: &mut [u8]);

    /// Writes (scale, bias) of each group of a row. For modes with scale bytes, it writes the
    /// byte's value and no bias.
    fn read_numbers(&self, row: usize, out: &mut [(f32, f32)]);
}

/// A matrix of floats in a file's layout.
pub(crate) trait FloatRows: fmt::Debug + Send + Sync {
    /// Name of the layout, for messages.
    fn kind(&self) -> String;

    /// Writes the values of a row.
    fn read(&self, row: usize, out: &mut [f32]);
}

/// One number of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupParameter {
    Scale,
    Bias,
}

impl GroupParameter {
    fn name(self) -> &'static str {
        match self {
            GroupParameter::Scale => "scale",
            GroupParameter::Bias => "bias",
        }
    }
}

/// A scale or bias that is finite in the file, but overflows the requested type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("row {row} has the {part} {value}, too large for {dtype}")]
pub(crate) struct TooLarge {
    row: usize,
    part: &'static str,
    value: f32,
    dtype: DType,
}

/// Coded rows in the order and number that a program needs.
#[derive(Clone, Debug)]
pub(crate) struct CodedMatrix {
    pub(crate) stored: Arc<dyn CodedRows>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) order: RowOrder,
}

impl CodedMatrix {
    /// `u32` words of a row of codes.
    pub(crate) fn words_per_row(&self) -> usize {
        self.cols * self.stored.codes().bits / 32
    }

    /// Groups of a row.
    pub(crate) fn groups_per_row(&self) -> usize {
        self.cols / self.stored.codes().group
    }

    /// The codes `[rows, words_per_row]` u32. Each row is one bit stream, lowest bits first.
    pub(crate) fn words(&self) -> Bytes {
        let (width, bits) = (self.words_per_row() * 4, self.stored.codes().bits);
        let mut out = AlignedBytes::zeroed(self.rows * width);
        let mut codes = vec![0u8; self.cols];
        if width > 0 {
            for (row, out) in out.as_mut_slice().chunks_exact_mut(width).enumerate() {
                self.stored.read_codes(self.order.source(row), &mut codes);
                pack_codes(&codes, bits, out);
            }
        }
        out.into_bytes()
    }

    /// Scales or biases `[rows, groups_per_row]` in `dtype`.
    ///
    /// # Errors
    /// [`TooLarge`] for a number that is finite in the file, but not in `dtype`.
    pub(crate) fn numbers(&self, part: GroupParameter, dtype: DType) -> Result<Bytes, TooLarge> {
        let width = self.groups_per_row() * dtype.size();
        let mut out = AlignedBytes::zeroed(self.rows * width);
        let mut pairs = vec![(0f32, 0f32); self.groups_per_row()];
        if width > 0 {
            for (row, out) in out.as_mut_slice().chunks_exact_mut(width).enumerate() {
                self.stored.read_numbers(self.order.source(row), &mut pairs);
                for (&(scale, bias), out) in pairs.iter().zip(out.chunks_exact_mut(dtype.size())) {
                    let value = if part == GroupParameter::Scale { scale } else { bias };
                    store(value, dtype, out).ok_or_else(|| TooLarge { row, part: part.name(), value, dtype })?;
                }
            }
        }
        Ok(out.into_bytes())
    }
}

/// The values `[rows, cols]` of stored rows as f32, in the program's order.
pub(crate) fn values(stored: &dyn FloatRows, [rows, cols]: [usize; 2], order: &RowOrder) -> Bytes {
    let mut out = AlignedBytes::zeroed(rows * cols * 4);
    let mut row = vec![0f32; cols];
    if cols > 0 {
        for (i, out) in out.as_mut_slice().chunks_exact_mut(cols * 4).enumerate() {
            stored.read(order.source(i), &mut row);
            out.chunks_exact_mut(4).zip(&row).for_each(|(out, value)| out.copy_from_slice(&value.to_le_bytes()));
        }
    }
    out.into_bytes()
}

/// Writes a number. `None` if only the narrowing makes it infinite.
fn store(value: f32, dtype: DType, out: &mut [u8]) -> Option<()> {
    let narrowed = match dtype {
        DType::F16 => {
            let v = f16::from_f32(value);
            out.copy_from_slice(&v.to_le_bytes());
            v.to_f32()
        }
        DType::BF16 => {
            let v = bf16::from_f32(value);
            out.copy_from_slice(&v.to_le_bytes());
            v.to_f32()
        }
        DType::U8 => {
            out[0] = value as u8;
            value
        }
        _ => {
            out.copy_from_slice(&value.to_le_bytes());
            value
        }
    };
    (narrowed.is_finite() || !value.is_finite()).then_some(())
}

/// GGUF's blocks of affine codes, in rows of `cols` elements.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) block: Block,
    pub(crate) bytes: Bytes,
    pub(crate) cols: usize,
}

impl Blocks {
    /// The blocks of a row.
    fn row(&self, row: usize) -> std::slice::ChunksExact<'_, u8> {
        let stride = self.cols / self.block.elements() * self.block.bytes();
        self.bytes[row * stride..(row + 1) * stride].chunks_exact(self.block.bytes())
    }
}

impl CodedRows for Blocks {
    fn codes(&self) -> Codes {
        Codes { mode: Mode::Affine, bits: self.block.bits(), group: self.block.group() }
    }

    fn exact_scales(&self) -> DType {
        self.block.exact_scales()
    }

    fn kind(&self) -> String {
        self.block.name()
    }

    fn read_codes(&self, row: usize, out: &mut [u8]) {
        self.row(row).zip(out.chunks_exact_mut(self.block.elements())).for_each(|(block, out)| self.block.codes(block, out));
    }

    fn read_numbers(&self, row: usize, out: &mut [(f32, f32)]) {
        self.row(row).zip(out.chunks_exact_mut(self.block.groups())).for_each(|(block, out)| self.block.affine(block, out));
    }
}

/// GGUF's MXFP4 blocks: one scale byte, then the codes of 32 elements, with the first half in low
/// nibbles.
#[derive(Clone, Debug)]
pub(crate) struct Mxfp4Blocks {
    pub(crate) bytes: Bytes,
    pub(crate) cols: usize,
}

impl Mxfp4Blocks {
    pub(crate) const ELEMENTS: usize = 32;
    pub(crate) const BYTES: usize = 17;

    fn row(&self, row: usize) -> std::slice::ChunksExact<'_, u8> {
        let stride = self.cols / Self::ELEMENTS * Self::BYTES;
        self.bytes[row * stride..(row + 1) * stride].chunks_exact(Self::BYTES)
    }
}

impl CodedRows for Mxfp4Blocks {
    fn codes(&self) -> Codes {
        Codes { mode: Mode::Mxfp4, bits: 4, group: Self::ELEMENTS }
    }

    fn exact_scales(&self) -> DType {
        DType::U8
    }

    fn kind(&self) -> String {
        "MXFP4".into()
    }

    fn read_codes(&self, row: usize, out: &mut [u8]) {
        for (block, out) in self.row(row).zip(out.chunks_exact_mut(Self::ELEMENTS)) {
            let (low, high) = out.split_at_mut(Self::ELEMENTS / 2);
            low.iter_mut().zip(high).zip(&block[1..]).for_each(|((low, high), &b)| (*low, *high) = (b & 15, b >> 4));
        }
    }

    fn read_numbers(&self, row: usize, out: &mut [(f32, f32)]) {
        self.row(row).zip(out).for_each(|(block, out)| *out = (f32::from(block[0]), 0.0));
    }
}

/// GGUF's NVFP4 blocks: the scale bytes of four groups of 16 elements, then the codes, with the
/// first half of each group in low nibbles.
#[derive(Clone, Debug)]
pub(crate) struct Nvfp4Blocks {
    pub(crate) bytes: Bytes,
    pub(crate) cols: usize,
}

impl Nvfp4Blocks {
    pub(crate) const ELEMENTS: usize = 64;
    pub(crate) const BYTES: usize = 36;
    const GROUP: usize = 16;
    const GROUPS: usize = Self::ELEMENTS / Self::GROUP;

    fn row(&self, row: usize) -> std::slice::ChunksExact<'_, u8> {
        let stride = self.cols / Self::ELEMENTS * Self::BYTES;
        self.bytes[row * stride..(row + 1) * stride].chunks_exact(Self::BYTES)
    }
}

impl CodedRows for Nvfp4Blocks {
    fn codes(&self) -> Codes {
        Codes { mode: Mode::Nvfp4, bits: 4, group: Self::GROUP }
    }

    fn exact_scales(&self) -> DType {
        DType::U8
    }

    fn kind(&self) -> String {
        "NVFP4".into()
    }

    fn read_codes(&self, row: usize, out: &mut [u8]) {
        let groups = self.row(row).flat_map(|block| block[Self::GROUPS..].chunks_exact(Self::GROUP / 2));
        for (bytes, out) in groups.zip(out.chunks_exact_mut(Self::GROUP)) {
            let (low, high) = out.split_at_mut(Self::GROUP / 2);
            low.iter_mut().zip(high).zip(bytes).for_each(|((low, high), &b)| (*low, *high) = (b & 15, b >> 4));
        }
    }

    fn read_numbers(&self, row: usize, out: &mut [(f32, f32)]) {
        // The scales have no sign, and the byte of NaN means 0.
        let byte = |b: u8| if b & 127 == 127 { 0 } else { b & 127 };
        let bytes = self.row(row).flat_map(|block| &block[..Self::GROUPS]);
        bytes.zip(out).for_each(|(&b, out)| *out = (f32::from(byte(b)), 0.0));
    }
}

#[cfg(test)]
mod tests;
