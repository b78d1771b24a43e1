//! Repacks quantized blocks: codes into bit streams, scales and biases into float matrices.

use flambeau_tensor::{
    AlignedBytes, Bytes, DType, bf16, f16,
    gguf::{Block, MAX_ELEMENTS, MAX_GROUPS},
    pack_codes,
};

use crate::source::RowOrder;

/// Which number of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Scale,
    Bias,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Scale => "scale",
            Part::Bias => "bias",
        }
    }
}

/// A scale or bias that is finite in the file but overflows the requested type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("row {row} has the {part} {value}, too large for {dtype}")]
pub(crate) struct TooLarge {
    row: usize,
    part: &'static str,
    value: f32,
    dtype: DType,
}

/// A matrix of blocks, `rows` of `cols` elements each; `bytes` has exactly their length.
#[derive(Clone, Debug)]
pub(crate) struct BlockMatrix {
    pub(crate) block: Block,
    pub(crate) bytes: Bytes,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) order: RowOrder,
}

impl BlockMatrix {
    /// `u32` words of a row of codes.
    pub(crate) fn words_per_row(&self) -> usize {
        self.cols / 32 * self.block.bits()
    }

    /// Groups of a row.
    pub(crate) fn groups_per_row(&self) -> usize {
        self.cols / self.block.group()
    }

    /// The blocks of result row `row`.
    fn row(&self, row: usize) -> std::slice::ChunksExact<'_, u8> {
        let stride = self.cols / self.block.elements() * self.block.bytes();
        let at = self.order.source(row) * stride;
        self.bytes[at..at + stride].chunks_exact(self.block.bytes())
    }

    /// The codes `[rows, words_per_row]` u32: each row one bit stream, lowest bits first.
    pub(crate) fn words(&self) -> Bytes {
        let width = self.words_per_row() * 4;
        let per_block = self.block.elements() * self.block.bits() / 8;
        let mut out = AlignedBytes::zeroed(self.rows * width);
        let mut codes = [0u8; MAX_ELEMENTS];
        let codes = &mut codes[..self.block.elements()];
        if width > 0 {
            for (r, out) in out.as_mut_slice().chunks_exact_mut(width).enumerate() {
                for (block, out) in self.row(r).zip(out.chunks_exact_mut(per_block)) {
                    self.block.codes(block, codes);
                    pack_codes(codes, self.block.bits(), out);
                }
            }
        }
        out.into_bytes()
    }

    /// Scales or biases `[rows, groups_per_row]` in `dtype`.
    ///
    /// # Errors
    /// [`TooLarge`] for a number that is finite in the file and not in `dtype`.
    pub(crate) fn params(&self, part: Part, dtype: DType) -> Result<Bytes, TooLarge> {
        let size = dtype.size();
        let width = self.groups_per_row() * size;
        let per_block = self.block.groups();
        let mut out = AlignedBytes::zeroed(self.rows * width);
        let mut pairs = [(0f32, 0f32); MAX_GROUPS];
        let pairs = &mut pairs[..per_block];
        if width > 0 {
            for (r, out) in out.as_mut_slice().chunks_exact_mut(width).enumerate() {
                for (block, out) in self.row(r).zip(out.chunks_exact_mut(per_block * size)) {
                    self.block.affine(block, pairs);
                    for (&(scale, bias), out) in pairs.iter().zip(out.chunks_exact_mut(size)) {
                        let value = if part == Part::Scale { scale } else { bias };
                        store(value, dtype, out).ok_or_else(|| TooLarge { row: r, part: part.name(), value, dtype })?;
                    }
                }
            }
        }
        Ok(out.into_bytes())
    }
}

/// Writes a float; `None` if it becomes infinite only by being narrowed.
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
        _ => {
            out.copy_from_slice(&value.to_le_bytes());
            value
        }
    };
    (narrowed.is_finite() || !value.is_finite()).then_some(())
}

#[cfg(test)]
mod tests;
