//! Matrices of torchao in its safetensors form, as in ExecuTorch's bundles.

use safetensors::Dtype;

use super::{
    Stored, fp8,
    grouped::{Grouped, Layout, Zeros},
    parts::{Tensors, finished, matrix, numbers, part, stored_group},
};
use crate::{CheckpointTensor, Error, Result};

/// Suffix of the names of codes.
pub(super) const BUNDLED: &str = "._weight_qdata";

/// torchao's numbers. Nibbles [out, in/2] have scales and zero points [groups, out]. Signed bytes
/// [out, in] have scales [out, groups], and zero points of this shape unless all are 0. Small
/// floats [out, in] have one scale for each row or for all.
pub(super) fn bundled(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let name = format!("{module}{BUNDLED}");
    let [rows, width] = matrix(&name, lead)?;
    if all.contains_key(&format!("{module}._weight_act_pre_scale")) {
        return Err(Error::tensor(name, "weights alone", "factors on activations beside them"));
    }
    let scales = part(module, "_weight_scale", all)?;
    let (nibbles, cols) = match lead.dtype {
        Dtype::U8 => (true, width.saturating_mul(2)),
        Dtype::I8 => (false, width),
        Dtype::F8_E4M3 => return fp8::with_scales(&name, lead, scales, None),
        _ => return Err(Error::tensor(name, "nibbles, signed bytes or 8-bit floats", format!("{:?}", lead.dtype))),
    };
    let zeros = match all.get(&format!("{module}._weight_zero_point")) {
        None if nibbles => Some(part(module, "_weight_zero_point", all)?),
        found => found,
    };
    let groups = scales.count() / rows;
    let shape = if nibbles { [groups, rows] } else { [rows, groups] };
    let plain_column = |stored: &Stored| groups == 1 && stored.shape == [rows];
    let fits = |stored: &Stored| stored.shape == shape || plain_column(stored);
    if !fits(scales) || zeros.is_some_and(|zeros| !fits(zeros)) {
        let found = format!("{:?} and {:?}", scales.shape, zeros.map(|zeros| &zeros.shape));
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
        zeros: match zeros {
            None => Zeros::Middle,
            Some(zeros) if zeros.dtype == Dtype::I8 && !nibbles => Zeros::Bytes(zeros.bytes.clone()),
            Some(zeros) => Zeros::Floats(numbers_of("_weight_zero_point", zeros)?),
        },
        group: stored_group,
    };
    finished(&name, stored, None)
}
