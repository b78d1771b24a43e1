//! Matrices of torchao in ExecuTorch's bundles.

use safetensors::Dtype;

use super::{
    Stored,
    grouped::{Grouped, Layout, Zeros},
    parts::{Tensors, finished, matrix, numbers, part, stored_group},
};
use crate::{CheckpointTensor, Error, Result};

/// Suffix of the names of codes in a bundle.
pub(super) const BUNDLED: &str = "._weight_qdata";

/// torchao's integers. Nibbles [out, in/2] have scales and zero points [groups, out], and signed
/// bytes [out, in] have them as [out, groups].
pub(super) fn bundled(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let name = format!("{module}{BUNDLED}");
    let [rows, width] = matrix(&name, lead)?;
    let [scales, zeros] = ["_weight_scale", "_weight_zero_point"].map(|name| part(module, name, all));
    let (scales, zeros) = (scales?, zeros?);
    let groups = scales.count() / rows;
    let (nibbles, cols) = match lead.dtype {
        Dtype::U8 => (true, width.saturating_mul(2)),
        Dtype::I8 => (false, width),
        _ => return Err(Error::tensor(name, "nibbles or signed bytes", format!("{:?}", lead.dtype))),
    };
    let shape = if nibbles { [groups, rows] } else { [rows, groups] };
    if scales.shape != shape || zeros.shape != shape {
        let found = format!("{:?} and {:?}", scales.shape, zeros.shape);
        return Err(Error::tensor(name, format!("scales and zero points of shape {shape:?}"), found));
    }
    let numbers_of = |name: &str, stored| numbers(&format!("{module}.{name}"), stored, rows * groups);
    let stored_group = stored_group(&name, cols, groups)?;
    let stored = Grouped {
        name: "torchao",
        shape: [rows, cols],
        bits: if nibbles { 4 } else { 8 },
        layout: if nibbles { Layout::Along } else { Layout::Bytes },
        words: lead.bytes.clone(),
        scales: numbers_of("_weight_scale", scales)?,
        scales_along: !nibbles,
        zeros: match zeros.dtype {
            Dtype::I8 if !nibbles => Zeros::Bytes(zeros.bytes.clone()),
            _ => Zeros::Floats(numbers_of("_weight_zero_point", zeros)?),
        },
        group: stored_group,
    };
    finished(&name, stored, None)
}
