//! Tensor files, by extension: `.bin` (ExecuTorch's op tests), `.npy`, `.npz` and `.safetensors`.

use std::{collections::HashMap, path::Path};

use anyhow::{Context, Result};
use flambeau::tensor::{AlignedBytes, Bytes, DType, Tensor, tensor_list};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::{failure::usage, files, npy};

/// A tensor with its name in the file.
#[derive(Clone, Debug)]
pub struct NamedTensor {
    pub name: Option<String>,
    pub tensor: Tensor,
}

/// Element types that both formats support.
const TYPES: [(Dtype, DType); 13] = [
    (Dtype::F32, DType::F32),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::F64, DType::F64),
    (Dtype::I8, DType::I8),
    (Dtype::I16, DType::I16),
    (Dtype::I32, DType::I32),
    (Dtype::I64, DType::I64),
    (Dtype::U8, DType::U8),
    (Dtype::U16, DType::U16),
    (Dtype::U32, DType::U32),
    (Dtype::U64, DType::U64),
    (Dtype::BOOL, DType::Bool),
];

/// A tensor file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// An unnamed list, as in ExecuTorch's op tests.
    Bin,
    /// NumPy's array.
    Npy,
    /// A zip file of NumPy's arrays.
    Npz,
    Safetensors,
}

fn format_of(path: &Path) -> Result<Format> {
    if files::is_standard(path) {
        return Ok(Format::Bin);
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("bin") => Ok(Format::Bin),
        Some("npy") => Ok(Format::Npy),
        Some("npz") => Ok(Format::Npz),
        Some("safetensors") => Ok(Format::Safetensors),
        _ => Err(usage(format!("{}: expected a .bin, .npy, .npz or .safetensors file", path.display()))),
    }
}

/// Reads all tensors of a file, or of a `.bin` stream on stdin.
pub(crate) fn read(path: &Path) -> Result<Vec<NamedTensor>> {
    let format = format_of(path)?;
    parse(format, &files::read(path)?).with_context(|| path.display().to_string())
}

/// All tensors of a file's bytes.
///
/// # Errors
/// Fails if the bytes are malformed or a tensor has an unsupported type.
pub fn parse(format: Format, bytes: &Bytes) -> Result<Vec<NamedTensor>> {
    let unnamed = |tensor| NamedTensor { name: None, tensor };
    match format {
        Format::Bin => Ok(tensor_list::read(bytes)?.into_iter().map(unnamed).collect()),
        Format::Npy => Ok(vec![unnamed(npy::read(bytes)?)]),
        Format::Npz => {
            let named = |(name, tensor)| NamedTensor { name: Some(name), tensor };
            Ok(npy::read_archive(bytes)?.into_iter().map(named).collect())
        }
        Format::Safetensors => read_safetensors(bytes),
    }
}

fn read_safetensors(bytes: &Bytes) -> Result<Vec<NamedTensor>> {
    let file = SafeTensors::deserialize(bytes).context("not a safetensors file")?;
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        let dtype = TYPES.iter().find(|row| row.0 == view.dtype()).map(|row| row.1);
        let dtype = dtype.with_context(|| format!("tensor `{}`: type {:?} is not read", name.escape_debug(), view.dtype()))?;
        let data = AlignedBytes::copy_of(view.data()).into_bytes();
        tensors.push(NamedTensor { name: Some(name), tensor: Tensor::new(dtype, view.shape(), data)? });
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

/// Checks that [`write`] can write to a path and supports its extension.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    format_of(path)?;
    files::check_writable(path)
}

/// Writes tensors to a file, or as a `.bin` stream to stdout.
pub(crate) fn write(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let format = format_of(path)?;
    let fill = |out: &mut dyn std::io::Write| match (format, tensors) {
        (Format::Bin, _) => {
            let list: Vec<Tensor> = tensors.iter().map(|(_, t)| t.clone()).collect();
            Ok(out.write_all(&tensor_list::write(&list)?)?)
        }
        (Format::Npy, [(_, only)]) => npy::write(only, out),
        (Format::Npy, _) => Err(usage(format!("a .npy file holds one tensor, found {}; write a .npz file", tensors.len()))),
        (Format::Npz, _) => npy::write_archive(tensors, out),
        (Format::Safetensors, _) => Ok(out.write_all(&to_safetensors(tensors)?)?),
    };
    files::write(path, |out| fill(out).with_context(|| path.display().to_string()))
}

fn to_safetensors(tensors: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let mut views = HashMap::new();
    for (name, tensor) in tensors {
        let dtype = TYPES.iter().find(|row| row.1 == tensor.dtype()).map(|row| row.0);
        let dtype = dtype.with_context(|| format!("safetensors has no type {}", tensor.dtype()))?;
        views.insert(name.as_str(), TensorView::new(dtype, tensor.shape().to_vec(), tensor.bytes())?);
    }
    Ok(safetensors::serialize(views, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let tensor = Tensor::from_slice(&[1.5f32, -2.0], &[1, 2]).unwrap();
        for name in ["a.bin", "a.npy", "a.npz", "a.safetensors"] {
            let path = dir.path().join(name);
            write(&path, &[("x".into(), tensor.clone())]).unwrap();
            let back = read(&path).unwrap();
            assert_eq!((back.len(), back[0].tensor.shape(), back[0].tensor.bytes()), (1, tensor.shape(), tensor.bytes()), "{name}");
        }
        assert!(read(Path::new("a.txt")).unwrap_err().to_string().contains(".safetensors"));
    }
}
