//! Matrices of 4-bit floats.

use flambeau_tensor::DType;
use safetensors::Dtype;

use super::{Stored, parts::Tensors};
use crate::{
    CheckpointTensor, Error, Result,
    source::{Codes, Mode},
};

/// gpt-oss's blocks [.., cols/32, 16] with scales [.., cols/32], as MLX packs them.
pub(super) fn mxfp4(name: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let scales = format!("{name}_scales");
    let scales = all.get(&scales).ok_or(Error::MissingTensor(scales))?;
    let (Dtype::U8, Dtype::U8, [lead_shape @ .., groups, 16]) = (lead.dtype, scales.dtype, &lead.shape[..]) else {
        return Err(Error::tensor(name, "bytes of blocks and scales", format!("{:?} of shape {:?}", lead.dtype, lead.shape)));
    };
    let shape = lead_shape.iter().copied().chain([groups.saturating_mul(32)]).collect();
    let codes = Codes { mode: Mode::Mxfp4, bits: 4, group: 32 };
    CheckpointTensor::packed(name, shape, [lead.bytes.clone(), scales.bytes.clone()], None, DType::U8, codes)
}
