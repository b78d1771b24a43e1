//! Matrices of BitNet: one of -1, 0 and 1 for each weight, and one scale for all.

use std::sync::OnceLock;

use flambeau_tensor::{Bytes, DType};
use safetensors::Dtype;

use super::{
    Stored,
    parts::{Tensors, matrix, numbers, one_float, part},
};
use crate::{
    CheckpointTensor, Result,
    codes::{Codes, Mode},
    fields::Fields,
    rows::{CodedRows, FloatRows, numbers::Numbers},
};

/// Number of weights in a byte.
const PER_BYTE: usize = 4;
/// Smallest mean magnitude of a matrix.
const LEAST: f32 = 1e-5;

/// Settings of a BitNet folder.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Whether weights are stored as floats, which become ternary when the model is loaded.
    online: bool,
    /// Whether the stored scale is a divisor.
    divides: bool,
    /// Modules with plain weights.
    plain: Vec<String>,
}

impl Settings {
    /// Reads the quantization entry of a config.
    ///
    /// # Errors
    /// [`Error::Key`](crate::Error::Key) for unknown variants, and for norms inside of projections.
    pub(super) fn read(config: &Fields<'_>) -> Result<Settings> {
        config.expect_bool("use_rms_norm", false)?;
        let automatic = match config.text("linear_class")? {
            None | Some("bitlinear") => false,
            Some("autobitlinear") => true,
            Some(_) => return Err(config.error("linear_class", "bitlinear or autobitlinear")),
        };
        let online = match config.text("quantization_mode")? {
            None | Some("offline") => false,
            Some("online") => automatic,
            Some(_) => return Err(config.error("quantization_mode", "offline or online")),
        };
        let plain = config.texts("modules_to_not_convert", 0)?.unwrap_or_default();
        Ok(Settings { online, divides: !automatic, plain: plain.into_iter().map(str::to_owned).collect() })
    }

    /// Whether a module keeps its weights: embeddings, the head, and listed modules.
    fn is_plain(&self, module: &str) -> bool {
        let listed = |name: &str| format!(".{module}.").contains(&format!(".{name}."));
        module.rsplit('.').next().is_some_and(|last| last.starts_with("embed_tokens"))
            || if self.plain.is_empty() { listed("lm_head") } else { self.plain.iter().any(|name| listed(name)) }
    }

    /// The matrix of a module. `None` for a weight that is not ternary.
    ///
    /// # Errors
    /// [`Error::Tensor`](crate::Error::Tensor) for parts of other types or sizes.
    pub(super) fn read_matrix(&self, module: &str, lead: &Stored, all: &Tensors) -> Result<Option<CheckpointTensor>> {
        let name = format!("{module}.weight");
        let has_scale = all.contains_key(&format!("{module}.weight_scale"));
        if lead.shape.len() != 2 || !has_scale && (!self.online || self.is_plain(module)) {
            return Ok(None);
        }
        let [rows, cols] = matrix(&name, lead)?;
        let (rows, stored) = match lead.dtype {
            Dtype::U8 => (rows * PER_BYTE, Signs::Packed { bytes: lead.bytes.clone(), rows }),
            _ if has_scale => (rows, Signs::Floats(numbers(&name, lead, rows * cols)?)),
            _ => (rows, Signs::Unrounded(numbers(&name, lead, rows * cols)?)),
        };
        let scale = OnceLock::new();
        if has_scale {
            let stored = one_float(&format!("{module}.weight_scale"), part(module, "weight_scale", all)?)?;
            scale.get_or_init(|| if self.divides { stored.recip() } else { stored });
        }
        let ternary = Ternary { shape: [rows, cols], signs: stored, scale };
        let group = [128, 64, 32].into_iter().find(|group| cols.is_multiple_of(*group));
        match group.filter(|_| !matches!(ternary.signs, Signs::Floats(_))) {
            Some(group) => Ok(Some(CheckpointTensor::coded(&name, [rows, cols], TernaryCodes { ternary, group })?)),
            None => Ok(Some(CheckpointTensor::floats(vec![rows, cols], ternary))),
        }
    }
}

/// Stored weights without their scale.
#[derive(Debug)]
enum Signs {
    /// Codes 0 to 2. Byte row `r` holds the rows `r`, `r + rows`, `r + 2·rows` and `r + 3·rows`,
    /// lowest bits first.
    Packed { bytes: Bytes, rows: usize },
    /// The signs as floats.
    Floats(Numbers),
    /// Floats that are divided by their mean magnitude and rounded.
    Unrounded(Numbers),
}

/// A matrix of weights that are a sign times one scale.
#[derive(Debug)]
struct Ternary {
    shape: [usize; 2],
    signs: Signs,
    /// The stored scale, or the mean magnitude as soon as it is known.
    scale: OnceLock<f32>,
}

impl Ternary {
    fn scale(&self) -> f32 {
        *self.scale.get_or_init(|| match &self.signs {
            Signs::Packed { .. } | Signs::Floats(_) => 1.0,
            Signs::Unrounded(values) => {
                let count = self.shape[0] * self.shape[1];
                let total: f64 = (0..count).map(|at| f64::from(values.get(at).abs())).sum();
                ((total / count as f64) as f32).max(LEAST)
            }
        })
    }

    /// The weight without its scale.
    fn sign(&self, row: usize, col: usize) -> f32 {
        let cols = self.shape[1];
        match &self.signs {
            Signs::Packed { bytes, rows } => f32::from(bytes[row % rows * cols + col] >> (2 * (row / rows)) & 3) - 1.0,
            Signs::Floats(values) => values.get(row * cols + col),
            Signs::Unrounded(values) => {
                let ratio = values.get(row * cols + col) * self.scale().recip();
                ratio.round_ties_even().clamp(-1.0, 1.0)
            }
        }
    }
}

impl FloatRows for Ternary {
    fn kind(&self) -> String {
        "BitNet weights".into()
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        out.iter_mut().enumerate().for_each(|(col, out)| *out = self.scale() * self.sign(row, col));
    }
}

/// Ternary weights as codes of two bits.
#[derive(Debug)]
struct TernaryCodes {
    ternary: Ternary,
    group: usize,
}

impl CodedRows for TernaryCodes {
    fn codes(&self) -> Codes {
        Codes { mode: Mode::Affine, bits: 2, group: self.group }
    }

    fn exact_scales(&self) -> DType {
        DType::F32
    }

    fn kind(&self) -> String {
        "BitNet weights".into()
    }

    fn read_codes(&self, row: usize, out: &mut [u8]) {
        out.iter_mut().enumerate().for_each(|(col, code)| *code = (self.ternary.sign(row, col) + 1.0) as u8);
    }

    fn read_numbers(&self, _row: usize, out: &mut [(f32, f32)]) {
        out.fill((self.ternary.scale(), -self.ternary.scale()));
    }
}
