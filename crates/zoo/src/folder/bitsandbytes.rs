//! Reads matrices that bitsandbytes quantized to 4 or 8 bits.

use std::sync::Arc;

use flambeau_tensor::{Bytes, DType};
use safetensors::Dtype;
use serde_json::Value;

use super::{
    Stored,
    grouped::Grouped,
    parts::{Tensors, finished, matrix, numbers, part},
};
use crate::{
    CheckpointTensor, Error, Result,
    rows::{FloatRows, numbers::Numbers},
};

/// Suffix of the tensor with the JSON description of a 4-bit matrix. A type of [`TYPES`] follows.
const STATE: &str = "quant_state.bitsandbytes__";
/// Names of the 4-bit types.
const TYPES: [&str; 2] = ["nf4", "fp4"];

/// A matrix of 4-bit codes [out·in/2, 1], high bits first. Each block of codes shares a scale, and
/// blocks may cross rows. `None` for a tensor without a description, which is not quantized.
pub(super) fn four_bits(module: &str, lead: &Stored, all: &Tensors) -> Result<Option<CheckpointTensor>> {
    let name = format!("{module}.weight");
    let Some(state) = TYPES.iter().find_map(|kind| all.get(&format!("{name}.{STATE}{kind}"))) else { return Ok(None) };
    let state = State::read(&name, state)?;
    let [rows, cols] = state.shape;
    let count = rows.checked_mul(cols).filter(|&count| count > 0 && count.div_ceil(2) == lead.count() && lead.dtype == Dtype::U8);
    let count = count.ok_or_else(|| {
        Error::tensor(&name, format!("two codes of {:?} in a byte", state.shape), format!("{:?} {:?}", lead.dtype, lead.shape))
    })?;
    let blocks = count.div_ceil(state.block);
    let table = |part_name: &str, len| numbers(&format!("{name}.{part_name}"), part(&name, part_name, all)?, len);
    let values = table("quant_map", 16)?;
    let scales = match state.nested {
        None => Scales::Plain(table("absmax", blocks)?),
        Some(Nested { block, offset }) => {
            let codes = part(&name, "absmax", all)?;
            if codes.dtype != Dtype::U8 || codes.count() != blocks {
                let found = format!("{:?} of shape {:?}", codes.dtype, codes.shape);
                return Err(Error::tensor(format!("{name}.absmax"), format!("{blocks} bytes"), found));
            }
            let scales = table("nested_absmax", blocks.div_ceil(block))?;
            Scales::Nested { codes: codes.bytes.clone(), values: table("nested_quant_map", 256)?, scales, block, offset }
        }
    };
    let values = std::array::from_fn(|i| values.get(i));
    let rows_of =
        FourBits { kind: state.kind, cols, codes: lead.bytes.clone(), values, block: state.block, scales: Arc::new(scales) };
    Ok(Some(CheckpointTensor::floats(vec![rows, cols], rows_of)))
}

/// A matrix of signed bytes [out, in] with the largest magnitude of each row, which is byte 127.
pub(super) fn eight_bits(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let name = format!("{module}.weight");
    let [rows, cols] = matrix(&name, lead)?;
    let largest = numbers(&format!("{module}.SCB"), part(module, "SCB", all)?, rows)?;
    let scales: Vec<u8> = (0..rows).flat_map(|row| (largest.get(row) / 127.0).to_le_bytes()).collect();
    let scales = Numbers { dtype: DType::F32, bytes: scales.into() };
    finished(&name, Grouped::signed_bytes("bitsandbytes", [rows, cols], lead.bytes.clone(), scales, cols), None)
}

/// The description of a 4-bit matrix.
struct State {
    kind: String,
    shape: [usize; 2],
    /// Number of codes that share a scale.
    block: usize,
    nested: Option<Nested>,
}

/// The description of quantized scales.
struct Nested {
    /// Number of scales that share a scale.
    block: usize,
    /// Mean of the scales.
    offset: f32,
}

impl State {
    fn read(name: &str, stored: &Stored) -> Result<State> {
        let fault = |found: String| Error::tensor(name, "a description with `quant_type`, `blocksize` and `shape`", found);
        let state: Value = serde_json::from_slice(&stored.bytes).map_err(|error| fault(error.to_string()))?;
        let size = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
        let shape: Option<Vec<usize>> = state["shape"].as_array().and_then(|list| list.iter().map(size).collect());
        let nested = size(&state["nested_blocksize"]).map(|block| {
            let offset = state["nested_offset"].as_f64().unwrap_or(0.0) as f32;
            Nested { block, offset }
        });
        match (state["quant_type"].as_str(), size(&state["blocksize"]), shape.as_deref()) {
            (Some(kind), Some(block), Some(&[rows, cols])) => {
                Ok(State { kind: kind.to_owned(), shape: [rows, cols], block, nested })
            }
            _ => Err(fault(state.to_string())),
        }
    }
}

/// The scale of each block.
#[derive(Debug)]
enum Scales {
    Plain(Numbers),
    /// `values[code] * scale + offset`, one scale for `block` codes.
    Nested {
        codes: Bytes,
        values: Numbers,
        scales: Numbers,
        block: usize,
        offset: f32,
    },
}

impl Scales {
    fn get(&self, at: usize) -> f32 {
        match self {
            Scales::Plain(scales) => scales.get(at),
            Scales::Nested { codes, values, scales, block, offset } => {
                values.get(usize::from(codes[at])) * scales.get(at / block) + offset
            }
        }
    }
}

/// A matrix of 4-bit codes for listed values.
#[derive(Clone, Debug)]
struct FourBits {
    kind: String,
    cols: usize,
    codes: Bytes,
    values: [f32; 16],
    /// Number of codes that share a scale.
    block: usize,
    scales: Arc<Scales>,
}

impl FloatRows for FourBits {
    fn kind(&self) -> String {
        format!("bitsandbytes {}", self.kind)
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        let (mut block, mut scale) = (usize::MAX, 0.0);
        for (value, at) in out.iter_mut().zip(row * self.cols..) {
            if at / self.block != block {
                block = at / self.block;
                scale = self.scales.get(block);
            }
            let byte = self.codes[at / 2];
            let code = if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
            *value = self.values[usize::from(code)] * scale;
        }
    }
}
