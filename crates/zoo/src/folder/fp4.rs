//! Matrices of 4-bit floats.

use flambeau_tensor::{Bytes, DType, e4m3};
use safetensors::Dtype;

use super::{
    Stored,
    parts::{Tensors, matrix, one_float, part},
};
use crate::{
    CheckpointTensor, Error, Result,
    codes::{Codes, Mode},
    rows::FloatRows,
};

/// The values of the codes, in e2m1: sign, two bits of exponent, one bit of fraction.
const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
/// Inputs that share a scale in NVFP4.
const GROUP: usize = 16;

/// gpt-oss's blocks [.., cols/32, 16] with scales [.., cols/32], as MLX packs them.
pub(super) fn mxfp4(name: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let scales = format!("{name}_scales");
    let scales = all.get(&scales).ok_or(Error::MissingTensor(scales))?;
    let [lead_shape @ .., groups, 16] = &lead.shape[..] else {
        return Err(Error::tensor(name, "blocks of 16 bytes", format!("shape {:?}", lead.shape)));
    };
    let shape = lead_shape.iter().copied().chain([groups.saturating_mul(32)]).collect();
    packed_mxfp4(name, shape, lead, scales)
}

/// A matrix of compressed-tensors: codes `weight_packed` [out, in/2] with one scale for 32 inputs
/// (MXFP4) or for 16 inputs (NVFP4). NVFP4 divides all scales by `weight_global_scale`.
pub(super) fn compressed(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let name = format!("{module}.weight_packed");
    let [rows, width] = matrix(&name, lead)?;
    let scales = part(module, "weight_scale", all)?;
    match all.get(&format!("{module}.weight_global_scale")) {
        Some(global) => {
            let global = one_float(&format!("{module}.weight_global_scale"), global)?;
            nvfp4(&name, lead, scales, |scale| scale / global)
        }
        None => packed_mxfp4(&name, vec![rows, width.saturating_mul(2)], lead, scales),
    }
}

/// A matrix of ModelOpt: codes `weight` [out, in/2] in NVFP4. All scales are multiplied by
/// `weight_scale_2`.
pub(super) fn modelopt(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let global = one_float(&format!("{module}.weight_scale_2"), part(module, "weight_scale_2", all)?)?;
    nvfp4(&format!("{module}.weight"), lead, part(module, "weight_scale", all)?, |scale| scale * global)
}

/// Codes two to a byte, lowest bits first, with one exponent byte for 32 inputs.
fn packed_mxfp4(name: &str, shape: Vec<usize>, lead: &Stored, scales: &Stored) -> Result<CheckpointTensor> {
    let is_byte = |stored: &Stored| matches!(stored.dtype, Dtype::U8 | Dtype::F8_E8M0);
    if !is_byte(lead) || !is_byte(scales) {
        return Err(Error::tensor(name, "bytes of codes and scales", format!("{:?} and {:?}", lead.dtype, scales.dtype)));
    }
    let codes = Codes { mode: Mode::Mxfp4, bits: 4, group: 32 };
    CheckpointTensor::packed(name, shape, [lead.bytes.clone(), scales.bytes.clone()], None, DType::U8, codes)
}

/// NVFP4 with scales that `scaled` computes from the stored ones. Programs have no place for the
/// scale of the whole matrix, so the values are computed as floats.
fn nvfp4(name: &str, lead: &Stored, scales: &Stored, scaled: impl Fn(f32) -> f32) -> Result<CheckpointTensor> {
    let [rows, width] = matrix(name, lead)?;
    let cols = width.saturating_mul(2);
    let fits = lead.dtype == Dtype::U8
        && scales.dtype == Dtype::F8_E4M3
        && cols.is_multiple_of(GROUP)
        && scales.count() == rows * (cols / GROUP);
    if !fits {
        let found = format!("{:?} {:?} and {:?} {:?}", lead.dtype, lead.shape, scales.dtype, scales.shape);
        return Err(Error::tensor(name, "NVFP4 codes [out, in/2] and 8-bit float scales [out, in/16]", found));
    }
    let scales = scales.bytes.iter().map(|&byte| scaled(e4m3(byte))).collect();
    Ok(CheckpointTensor::floats(vec![rows, cols], Nvfp4 { codes: lead.bytes.clone(), cols, scales }))
}

/// A matrix [rows, cols] of NVFP4.
#[derive(Clone, Debug)]
struct Nvfp4 {
    codes: Bytes,
    cols: usize,
    /// [rows, cols / 16].
    scales: Vec<f32>,
}

impl FloatRows for Nvfp4 {
    fn kind(&self) -> String {
        "NVFP4".into()
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        let codes = &self.codes[row * self.cols / 2..(row + 1) * self.cols / 2];
        let scales = self.scales[row * (self.cols / GROUP)..].iter();
        for ((out, codes), scale) in out.chunks_exact_mut(GROUP).zip(codes.chunks_exact(GROUP / 2)).zip(scales) {
            for (pair, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                *pair = [code & 15, code >> 4].map(|code| VALUES[usize::from(code)] * scale);
            }
        }
    }
}
