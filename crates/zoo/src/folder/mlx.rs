//! Folders with MLX's quantization.

use super::{
    Stored, dtype,
    parts::{Tensors, part},
};
use crate::{
    CheckpointTensor, Error, Result,
    codes::{Codes, Mode},
    fields::Fields,
};

/// Packing of MLX's checkpoints: defaults, and exceptions for single modules.
pub(super) struct Packing<'a> {
    fields: Option<Fields<'a>>,
}

impl<'a> Packing<'a> {
    pub(super) fn new(f: &Fields<'a>) -> Result<Packing<'a>> {
        Ok(Packing { fields: f.child("quantization")? })
    }

    /// The packed tensor of a module `[rows, words]` with its scales and biases.
    pub(super) fn source(&self, module: &str, words: &Stored, tensors: &Tensors) -> Result<CheckpointTensor> {
        let name = format!("{module}.weight");
        let Some(all) = &self.fields else {
            return Err(Error::tensor(name, "floats, for there is no `quantization` in config.json", "u32 words"));
        };
        let own = all.get(module).filter(|v| v.is_object()).map(|_| all.child(module)).transpose()?.flatten();
        let fields = own.as_ref().unwrap_or(all);
        let mode = fields.text("mode")?.unwrap_or(Mode::Affine.name());
        let mode = Mode::from_name(mode).ok_or_else(|| fields.error("mode", "affine, mxfp4, mxfp8 or nvfp4"))?;
        let (bits, group) = (fields.size("bits")?, fields.size("group_size")?);
        let scales = part(module, "scales", tensors)?;
        let biases = if mode == Mode::Affine { Some(part(module, "biases", tensors)?) } else { None };
        let other = biases.map(|b| b.dtype).filter(|&other| other != scales.dtype);
        let scale = dtype(scales.dtype).filter(|_| other.is_none());
        let scale = scale
            .ok_or_else(|| Error::tensor(&name, "scales and biases of one type", format!("{:?} and {other:?}", scales.dtype)))?;
        let mut shape = words.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = last.saturating_mul(32) / bits;
        }
        let parts = [words.bytes.clone(), scales.bytes.clone()];
        CheckpointTensor::packed(&name, shape, parts, biases.map(|b| b.bytes.clone()), scale, Codes { mode, bits, group })
    }
}
