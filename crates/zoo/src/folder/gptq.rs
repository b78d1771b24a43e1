//! Matrices of GPTQ and AWQ.

use super::{
    Stored,
    grouped::{Grouped, Layout, Zeros},
    parts::{Tensors, finished, input_groups, matrix, numbers, part, stored_group, whole_words, words},
};
use crate::{CheckpointTensor, Error, Result};

/// Supported bits of GPTQ's codes.
pub(super) const BITS: [usize; 4] = [2, 3, 4, 8];

/// Settings of a GPTQ config.
pub(super) struct Settings {
    pub(super) bits: usize,
    /// Zero points are stored minus this number.
    pub(super) stored_less: u32,
    /// Number of inputs that share a scale, or all inputs if `None`.
    pub(super) group: Option<usize>,
    /// Whether modules may have other bits and groups. Their shapes tell them.
    pub(super) varies: bool,
}

/// A matrix of GPTQ: words [in·bits/32, out], and scales and zero points for each group.
pub(super) fn gptq(module: &str, lead: &Stored, all: &Tensors, settings: &Settings) -> Result<CheckpointTensor> {
    let name = format!("{module}.qweight");
    let [height, rows] = matrix(&name, lead)?;
    let stored_less = settings.stored_less;
    let bits = if settings.varies { bits_by_shape(module, height, all)? } else { settings.bits };
    let cols = (height * 32).is_multiple_of(bits).then(|| height * 32 / bits).filter(|cols| cols.is_multiple_of(32));
    let cols =
        cols.ok_or_else(|| Error::tensor(&name, format!("whole inputs of {bits} bits"), format!("shape {:?}", lead.shape)))?;
    let scales = part(module, "scales", all)?;
    let groups = matrix(&format!("{module}.scales"), scales)?[0];
    let stored_group = match settings.group {
        _ if settings.varies => stored_group(&name, cols, groups)?,
        group => group.unwrap_or(cols),
    };
    if cols.div_ceil(stored_group) != groups {
        let found = format!("{groups} for {cols} inputs in groups of {stored_group}");
        return Err(Error::tensor(format!("{module}.scales"), "scales for every group", found));
    }
    let zeros =
        words(&format!("{module}.qzeros"), part(module, "qzeros", all)?, whole_words(rows, bits).map(|width| groups * width))?;
    let middle = |word: [u8; 4]| u32::from_le_bytes(word) == middle_word(bits, stored_less);
    let all_middle = 32 % bits == 0 && zeros.as_chunks::<4>().0.iter().copied().all(middle);
    let by_input = all.get(&format!("{module}.g_idx")).map(|stored| input_groups(module, stored, cols, groups)).transpose()?;
    let stored = Grouped {
        name: "GPTQ",
        shape: [rows, cols],
        bits,
        layout: Layout::Down,
        words: words(&name, lead, whole_words(cols, bits).map(|width| width * rows))?,
        scales: numbers(&format!("{module}.scales"), scales, groups * rows)?,
        scales_along: false,
        zeros: if all_middle { Zeros::Middle } else { Zeros::Streams { words: zeros, less: stored_less } },
        group: stored_group,
    };
    finished(&name, stored, by_input)
}

/// The bits of codes in `height` words for each output. The list of groups tells the inputs.
fn bits_by_shape(module: &str, height: usize, all: &Tensors) -> Result<usize> {
    let inputs = part(module, "g_idx", all)?.count();
    let bits = BITS.into_iter().find(|bits| inputs.checked_mul(*bits) == Some(height * 32));
    bits.ok_or_else(|| {
        Error::tensor(format!("{module}.qweight"), "2, 3, 4 or 8 bits", format!("{height} words for {inputs} inputs"))
    })
}

/// A word of zero points that are all the middle code.
pub(super) fn middle_word(bits: usize, less: u32) -> u32 {
    let code = (1u32 << (bits - 1)) - less;
    (0..32 / bits).fold(0, |word, i| word | code << (i * bits))
}

pub(super) fn awq(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let name = format!("{module}.qweight");
    let [cols, width] = matrix(&name, lead)?;
    let rows = width.saturating_mul(8);
    let scales = part(module, "scales", all)?;
    let groups = matrix(&format!("{module}.scales"), scales)?[0];
    let stored_group = stored_group(&name, cols, groups)?;
    let stored = Grouped {
        name: "AWQ",
        shape: [rows, cols],
        bits: 4,
        layout: Layout::Across,
        words: words(&name, lead, Some(cols * width))?,
        scales: numbers(&format!("{module}.scales"), scales, groups * rows)?,
        scales_along: false,
        zeros: Zeros::Across(words(&format!("{module}.qzeros"), part(module, "qzeros", all)?, Some(groups * width))?),
        group: stored_group,
    };
    finished(&name, stored, None)
}
