//! GGUF's tensor types.

use flambeau_tensor::DType;

use crate::Block;

/// A tensor type of a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain(DType),
    Blocks(Block),
    /// A type whose name may be known, but which no affine form represents.
    Other(u32),
}

/// (number, type). The numbers that are missing are [`NAMES`] or unknown.
const KINDS: [(u32, Kind); 18] = [
    (0, Kind::Plain(DType::F32)),
    (1, Kind::Plain(DType::F16)),
    (2, Kind::Blocks(Block::Q4_0)),
    (3, Kind::Blocks(Block::Q4_1)),
    (6, Kind::Blocks(Block::Q5_0)),
    (7, Kind::Blocks(Block::Q5_1)),
    (8, Kind::Blocks(Block::Q8_0)),
    (10, Kind::Blocks(Block::Q2_K)),
    (11, Kind::Blocks(Block::Q3_K)),
    (12, Kind::Blocks(Block::Q4_K)),
    (13, Kind::Blocks(Block::Q5_K)),
    (14, Kind::Blocks(Block::Q6_K)),
    (24, Kind::Plain(DType::I8)),
    (25, Kind::Plain(DType::I16)),
    (26, Kind::Plain(DType::I32)),
    (27, Kind::Plain(DType::I64)),
    (28, Kind::Plain(DType::F64)),
    (30, Kind::Plain(DType::BF16)),
];

const NAMES: [(u32, &str); 15] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl Kind {
    /// The type with that number.
    pub fn from_number(number: u32) -> Kind {
        KINDS.iter().find(|row| row.0 == number).map_or(Kind::Other(number), |row| row.1)
    }

    /// Its name in messages and listings.
    pub fn name(self) -> String {
        match self {
            Kind::Plain(dtype) => dtype.name().to_uppercase(),
            Kind::Blocks(block) => format!("{block:?}"),
            Kind::Other(number) => {
                NAMES.iter().find(|row| row.0 == number).map_or_else(|| format!("type {number}"), |row| row.1.to_owned())
            }
        }
    }

    /// Elements and bytes of a block; one element for plain types.
    pub fn block(self) -> Option<(usize, usize)> {
        match self {
            Kind::Plain(dtype) => Some((1, dtype.size())),
            Kind::Blocks(block) => Some((block.elements(), block.bytes())),
            Kind::Other(_) => None,
        }
    }
}
