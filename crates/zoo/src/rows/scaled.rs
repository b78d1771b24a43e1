//! Stored rows times factors: one for the whole tensor, or one for each of its matrices.

use std::sync::Arc;

use flambeau_tensor::{DType, e4m3};

use super::{CodedRows, FloatRows, numbers::Numbers};
use crate::codes::{Codes, Mode};

/// Factors of runs of rows.
#[derive(Clone, Debug)]
pub(crate) struct Factors {
    pub(crate) list: Vec<f32>,
    /// Rows that share a factor.
    pub(crate) rows: usize,
}

impl Factors {
    fn of(&self, row: usize) -> f32 {
        self.list.get(row / self.rows.max(1)).copied().unwrap_or(1.0)
    }
}

/// Codes whose scales and biases are multiplied. Small floats become integers, since their scale
/// bytes cannot hold a product.
#[derive(Clone, Debug)]
pub(crate) struct ScaledRows {
    pub(crate) stored: Arc<dyn CodedRows>,
    pub(crate) factors: Factors,
}

/// Twice the magnitudes of four-bit floats, by their lowest three bits.
const DOUBLED: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
/// The code of 0.
const MIDDLE: u8 = 12;

impl CodedRows for ScaledRows {
    fn codes(&self) -> Codes {
        let codes = self.stored.codes();
        if codes.mode == Mode::Affine { codes } else { Codes { mode: Mode::Affine, bits: 5, group: codes.group } }
    }

    fn exact_scales(&self) -> DType {
        DType::F32
    }

    fn kind(&self) -> String {
        format!("{} with a scale", self.stored.kind())
    }

    fn read_codes(&self, row: usize, out: &mut [u8]) {
        self.stored.read_codes(row, out);
        if self.stored.codes().mode != Mode::Affine {
            for code in out {
                let magnitude = DOUBLED[usize::from(*code & 7)];
                *code = if *code & 8 == 0 { MIDDLE + magnitude } else { MIDDLE - magnitude };
            }
        }
    }

    fn read_numbers(&self, row: usize, out: &mut [(f32, f32)]) {
        self.stored.read_numbers(row, out);
        let (mode, factor) = (self.stored.codes().mode, self.factors.of(row));
        for (scale, bias) in out {
            match mode {
                Mode::Affine => (*scale, *bias) = (*scale * factor, *bias * factor),
                _ => {
                    let stored = if mode == Mode::Nvfp4 { e4m3(*scale as u8) } else { (*scale - 127.0).exp2() };
                    *scale = stored * 0.5 * factor;
                    *bias = -f32::from(MIDDLE) * *scale;
                }
            }
        }
    }
}

/// Floats times factors, in rows of `cols` elements.
#[derive(Clone, Debug)]
pub(crate) struct ScaledFloats {
    pub(crate) numbers: Numbers,
    pub(crate) cols: usize,
    pub(crate) factors: Factors,
}

impl FloatRows for ScaledFloats {
    fn kind(&self) -> String {
        format!("{} with a scale", self.numbers.dtype)
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        let factor = self.factors.of(row);
        out.iter_mut().enumerate().for_each(|(i, value)| *value = self.numbers.get(row * self.cols + i) * factor);
    }
}
