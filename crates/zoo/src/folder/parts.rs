//! Reads the tensors that make up a quantized weight, and checks their types and sizes.

use flambeau_tensor::{Bytes, DType};
use indexmap::IndexMap;
use safetensors::Dtype;

use super::{
    Stored, dtype,
    grouped::{Grouped, Regrouped, Reordered},
};
use crate::{CheckpointTensor, Error, Result, rows::numbers::Numbers};

/// The tensors of a folder by name.
pub(super) type Tensors = IndexMap<String, Stored>;

/// Sizes of a non-empty matrix.
pub(super) fn matrix(name: &str, stored: &Stored) -> Result<[usize; 2]> {
    match stored.shape[..] {
        [rows, cols] if rows > 0 && cols > 0 => Ok([rows, cols]),
        _ => Err(Error::tensor(name, "a matrix", format!("shape {:?}", stored.shape))),
    }
}

/// A tensor of a module.
pub(super) fn part<'a>(module: &str, part: &str, all: &'a Tensors) -> Result<&'a Stored> {
    let name = format!("{module}.{part}");
    all.get(&name).ok_or(Error::MissingTensor(name))
}

/// Reads exactly `want` floats.
pub(super) fn numbers(name: &str, stored: &Stored, want: usize) -> Result<Numbers> {
    let dtype = match stored.dtype {
        Dtype::F8_E8M0 => Some(DType::U8),
        other => dtype(other).filter(|dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::F32)),
    };
    match dtype {
        Some(dtype) if stored.count() == want => Ok(Numbers { dtype, bytes: stored.bytes.clone() }),
        _ => Err(Error::tensor(name, format!("{want} floats"), format!("{:?} of shape {:?}", stored.dtype, stored.shape))),
    }
}

/// Reads the only float of a tensor.
pub(super) fn one_float(name: &str, stored: &Stored) -> Result<f32> {
    Ok(numbers(name, stored, 1)?.get(0))
}

/// Reads exactly `want` words of 32 bits.
pub(super) fn words(name: &str, stored: &Stored, want: Option<usize>) -> Result<Bytes> {
    if matches!(stored.dtype, Dtype::I32 | Dtype::U32) && Some(stored.count()) == want {
        return Ok(stored.bytes.clone());
    }
    let found = format!("{:?} of shape {:?}", stored.dtype, stored.shape);
    Err(Error::tensor(name, want.map_or("whole words of codes".into(), |want| format!("{want} words of 32 bits")), found))
}

/// Number of words that hold `codes` codes, if it is an integer.
pub(super) fn whole_words(codes: usize, bits: usize) -> Option<usize> {
    codes.checked_mul(bits).filter(|all| all.is_multiple_of(32)).map(|all| all / 32)
}

/// The tensor of a matrix with input groups `order`, or with consecutive groups.
pub(super) fn finished(name: &str, stored: Grouped, order: Option<Vec<usize>>) -> Result<CheckpointTensor> {
    let (shape, size) = (stored.shape, stored.group);
    if let Some(groups) = order.filter(|list| list.iter().enumerate().any(|(i, &group)| group != i / size)) {
        return Ok(CheckpointTensor::floats(shape.to_vec(), Reordered { stored, groups }));
    }
    let cols = shape[1];
    let fits = |group: &usize| size.is_multiple_of(*group) && cols.is_multiple_of(*group);
    let group = [128, 64, 32, 16].into_iter().find(fits).ok_or_else(|| {
        Error::tensor(name, "groups of 16, 32, 64 or 128 inputs, or multiples of these", format!("groups of {size} of {cols}"))
    })?;
    CheckpointTensor::coded(name, shape, Regrouped { stored, group })
}

/// Number of inputs that share a scale. `groups` must divide the number of inputs.
pub(super) fn stored_group(name: &str, cols: usize, groups: usize) -> Result<usize> {
    if groups > 0 && cols.is_multiple_of(groups) {
        return Ok(cols / groups);
    }
    Err(Error::tensor(name, format!("scales for equal groups of the {cols} inputs"), format!("{groups} groups")))
}

/// The group of each input, below the number of groups.
pub(super) fn input_groups(module: &str, stored: &Stored, cols: usize, groups: usize) -> Result<Vec<usize>> {
    let name = format!("{module}.g_idx");
    let bytes = words(&name, stored, Some(cols))?;
    let group = |word: &[u8; 4]| usize::try_from(i32::from_le_bytes(*word)).ok().filter(|&group| group < groups);
    let list: Option<Vec<usize>> = bytes.as_chunks::<4>().0.iter().map(group).collect();
    list.ok_or_else(|| Error::tensor(name, format!("groups below {groups}"), "others"))
}
