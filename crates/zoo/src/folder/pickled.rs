//! Weights in files of `torch.save`, as folders held them before safetensors.

use flambeau_pt2::load_map;
use flambeau_tensor::{Bytes, DType};
use indexmap::IndexMap;
use safetensors::Dtype;

use super::Stored;
use crate::{Error, Result};

pub(super) const WEIGHTS: &str = "pytorch_model.bin";
pub(super) const INDEX: &str = "pytorch_model.bin.index.json";

/// First bytes of a zip archive, which `torch.save` writes since PyTorch 1.6.
const ZIP: &[u8] = b"PK";

/// Whether a file of a folder holds weights of `torch.save`.
pub(crate) fn is_weights(name: &str) -> bool {
    name == WEIGHTS || name.starts_with("pytorch_model-") && name.ends_with(".bin")
}

/// The tensors of a file. Tensors of types that programs do not have are left out.
///
/// # Errors
/// [`Error::File`] for a file of an older PyTorch, [`Error::Graph`] for a damaged file.
pub(super) fn tensors(file: &str, bytes: &Bytes) -> Result<IndexMap<String, Stored>> {
    if !bytes.starts_with(ZIP) {
        return Err(Error::file(file, "expected a zip archive, as PyTorch writes since 1.6; save the weights as safetensors"));
    }
    let mut out = IndexMap::new();
    for (name, weight) in load_map(bytes.clone(), file)? {
        let tensor = weight.tensor()?;
        if let Some(dtype) = dtype(tensor.dtype()) {
            out.insert(name, Stored { dtype, shape: tensor.shape().to_vec(), bytes: tensor.bytes().clone() });
        }
    }
    Ok(out)
}

fn dtype(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        _ => return None,
    })
}
