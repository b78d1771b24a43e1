//! Matrices of compressed-tensors.

use super::{
    Stored,
    grouped::{Grouped, Layout, Zeros},
    parts::{Tensors, finished, input_groups, matrix, numbers, part, stored_group, words},
};
use crate::{CheckpointTensor, Error, Result};

/// compressed-tensors' integers of 4 or 8 bits in words.
pub(super) fn packed(module: &str, lead: &Stored, all: &Tensors, known: &[usize]) -> Result<CheckpointTensor> {
    let name = format!("{module}.weight_packed");
    let [rows, width] = matrix(&name, lead)?;
    let stated = part(module, "weight_shape", all)?.integers();
    let cols = match stated[..] {
        [r, c] if r == rows as i64 => usize::try_from(c).ok().filter(|&c| c > 0 && (width * 32).is_multiple_of(c)),
        _ => None,
    };
    let cols = cols.ok_or_else(|| {
        Error::tensor(format!("{module}.weight_shape"), format!("{rows} rows of codes in {width} words"), format!("{stated:?}"))
    })?;
    let bits = width * 32 / cols;
    if !matches!(bits, 4 | 8) {
        return Err(Error::tensor(name, "4 or 8 bits", format!("{bits} bits")));
    }
    let by_input = all.get(&format!("{module}.weight_g_idx"));
    let scales = part(module, "weight_scale", all)?;
    let groups = scales.count().checked_div(rows).filter(|&groups| groups > 0).unwrap_or(1);
    let stored_group = stored_group(&name, cols, groups)?;
    if groups > 1 && !known.contains(&stored_group) {
        return Err(Error::tensor(name, format!("groups of {known:?} inputs, as the config has it"), stored_group.to_string()));
    }
    let order = by_input.map(|stored| input_groups(module, stored, cols, groups)).transpose()?;
    let zeros = match all.get(&format!("{module}.weight_zero_point")) {
        None => Zeros::Middle,
        Some(stored) => {
            Zeros::Down(words(&format!("{module}.weight_zero_point"), stored, Some((rows * bits).div_ceil(32) * groups))?)
        }
    };
    let stored = Grouped {
        name: "compressed-tensors",
        shape: [rows, cols],
        bits,
        layout: Layout::Along,
        words: words(&name, lead, Some(rows * width))?,
        scales: numbers(&format!("{module}.weight_scale"), scales, rows * groups)?,
        scales_along: true,
        zeros,
        group: stored_group,
    };
    finished(&name, stored, order)
}

/// compressed-tensors' signed bytes with one scale per row or group.
pub(super) fn bytes(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let name = format!("{module}.weight");
    let [rows, cols] = matrix(&name, lead)?;
    if all.contains_key(&format!("{module}.weight_zero_point")) {
        return Err(Error::tensor(name, "symmetric bytes", "zero points"));
    }
    let scales = part(module, "weight_scale", all)?;
    let groups = scales.count() / rows;
    let stored_group = stored_group(&name, cols, groups)?;
    let scales = numbers(&format!("{module}.weight_scale"), scales, rows * groups)?;
    finished(&name, Grouped::signed_bytes("compressed-tensors", [rows, cols], lead.bytes.clone(), scales, stored_group), None)
}
