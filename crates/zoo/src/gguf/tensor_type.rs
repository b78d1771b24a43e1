//! GGUF's tensor types.

use flambeau_tensor::{DType, gguf::Block};

use crate::rows::{
    Mxfp4Blocks, Nvfp4Blocks,
    codebooks::{self, Codebook},
    two_bits::TwoBits,
};

/// A tensor type of a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    Plain(DType),
    Blocks(Block),
    /// Indices of entries of a codebook, with scales.
    Codebook(Codebook),
    /// Codes of at most two bits, with one scale a block.
    TwoBits(TwoBits),
    /// Small floats with one scale byte per 32 elements.
    Mxfp4,
    /// Small floats with one scale byte per 16 elements.
    Nvfp4,
    /// A type without an affine form. Its name may be known.
    Other(u32),
}

/// (number, type). Missing numbers are in [`NAMES`] or unknown.
const KINDS: [(u32, TensorType); 33] = [
    (0, TensorType::Plain(DType::F32)),
    (1, TensorType::Plain(DType::F16)),
    (2, TensorType::Blocks(Block::Q4_0)),
    (3, TensorType::Blocks(Block::Q4_1)),
    (6, TensorType::Blocks(Block::Q5_0)),
    (7, TensorType::Blocks(Block::Q5_1)),
    (8, TensorType::Blocks(Block::Q8_0)),
    (10, TensorType::Blocks(Block::Q2_K)),
    (11, TensorType::Blocks(Block::Q3_K)),
    (12, TensorType::Blocks(Block::Q4_K)),
    (13, TensorType::Blocks(Block::Q5_K)),
    (14, TensorType::Blocks(Block::Q6_K)),
    (16, TensorType::Codebook(Codebook::IQ2_XXS)),
    (17, TensorType::Codebook(Codebook::IQ2_XS)),
    (18, TensorType::Codebook(Codebook::IQ3_XXS)),
    (19, TensorType::Codebook(Codebook::IQ1_S)),
    (20, TensorType::Blocks(Block::IQ4_NL)),
    (21, TensorType::Codebook(Codebook::IQ3_S)),
    (22, TensorType::Codebook(Codebook::IQ2_S)),
    (23, TensorType::Blocks(Block::IQ4_XS)),
    (24, TensorType::Plain(DType::I8)),
    (25, TensorType::Plain(DType::I16)),
    (26, TensorType::Plain(DType::I32)),
    (27, TensorType::Plain(DType::I64)),
    (28, TensorType::Plain(DType::F64)),
    (29, TensorType::Codebook(Codebook::IQ1_M)),
    (30, TensorType::Plain(DType::BF16)),
    (34, TensorType::TwoBits(TwoBits::TQ1_0)),
    (35, TensorType::TwoBits(TwoBits::TQ2_0)),
    (39, TensorType::Mxfp4),
    (40, TensorType::Nvfp4),
    (41, TensorType::TwoBits(TwoBits::Q1_0)),
    (42, TensorType::TwoBits(TwoBits::Q2_0)),
];

const NAMES: [(u32, &str); 10] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl TensorType {
    /// The type with this number.
    pub fn from_number(number: u32) -> TensorType {
        KINDS.iter().find(|row| row.0 == number).map_or(TensorType::Other(number), |row| row.1)
    }

    /// Name in messages and listings.
    pub fn name(self) -> String {
        match self {
            TensorType::Plain(dtype) => dtype.name().to_uppercase(),
            TensorType::Blocks(block) => block.name(),
            TensorType::Codebook(kind) => format!("{kind:?}"),
            TensorType::TwoBits(kind) => format!("{kind:?}"),
            TensorType::Mxfp4 => "MXFP4".into(),
            TensorType::Nvfp4 => "NVFP4".into(),
            TensorType::Other(number) => {
                NAMES.iter().find(|row| row.0 == number).map_or_else(|| format!("type {number}"), |row| row.1.to_owned())
            }
        }
    }

    /// Elements and bytes of a block. Plain types have one element.
    pub fn block(self) -> Option<(usize, usize)> {
        match self {
            TensorType::Plain(dtype) => Some((1, dtype.size())),
            TensorType::Blocks(block) => Some((block.elements(), block.bytes())),
            TensorType::Codebook(kind) => Some((codebooks::ELEMENTS, kind.bytes())),
            TensorType::TwoBits(kind) => Some((kind.elements(), kind.bytes())),
            TensorType::Mxfp4 => Some((Mxfp4Blocks::ELEMENTS, Mxfp4Blocks::BYTES)),
            TensorType::Nvfp4 => Some((Nvfp4Blocks::ELEMENTS, Nvfp4Blocks::BYTES)),
            TensorType::Other(_) => None,
        }
    }
}
