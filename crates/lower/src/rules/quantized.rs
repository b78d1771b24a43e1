//! Quantized weights: packed constants behind a `Dequantize` node, which fusions merge into the product that reads it.

use std::sync::Arc;

use flambeau_ir::{Dequantize, In, QuantMode, Tid};
use flambeau_tensor::{DType, Shape};

use super::{RuleRow, one, row};
use crate::{Call, Constant, Item, Lower, Recipe, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Group sizes that packed products take, largest first.
const GROUPS: [usize; 4] = [128, 64, 32, 16];

fn constant(cx: &Lower, call: &Call, param: &str) -> Result<Arc<Constant>, Refuse> {
    let t = call.tensor(param)?;
    cx.flow().constant(t).cloned().ok_or_else(|| Refuse::Unsupported(format!("`{param}` is not a constant")))
}

/// Bits of a code range, if it is the full range of a signed integer of that many bits.
fn bits_of(low: i64, high: i64) -> Option<u8> {
    (2..=8).find(|&b| (low, high) == (-(1 << (b - 1)), (1 << (b - 1)) - 1)).map(|b| b as u8)
}

/// A constant's elements repeated along the last axis, itself for a factor of one.
fn repeated(c: Arc<Constant>, factor: usize) -> Arc<Constant> {
    if factor == 1 {
        return c;
    }
    let mut shape = c.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last *= factor;
    }
    Arc::new(Constant { name: format!("{}_regrouped", c.name), dtype: c.dtype, shape, recipe: Recipe::Repeat(c, factor) })
}

/// The packed form of `scale * (codes - zero_point)`: codes `[.., K]` i8, one scale per group of the last axis.
fn dequantize_affine(cx: &mut Lower, call: &Call) -> Items {
    let codes = constant(cx, call, "input")?;
    let block = call.ints("block_size")?;
    let rank = codes.shape.len();
    let last = *codes.shape.last().unwrap_or(&0);
    let Some(bits) = bits_of(call.int("quant_min")?, call.int("quant_max")?).filter(|&b| b != 7) else {
        return unsupported("codes are not a full signed range of 2, 3, 4, 5, 6 or 8 bits");
    };
    if codes.dtype != DType::I8 || rank < 2 || block.len() != rank || block[..rank - 1].iter().any(|&b| b != 1) {
        return unsupported("only i8 codes grouped along the last axis can be packed");
    }
    let stored = usize::try_from(block[rank - 1]).unwrap_or(0);
    let group = GROUPS.into_iter().find(|g| stored > 0 && stored % g == 0);
    let Some(group) = group.filter(|_| last % stored == 0 && last * usize::from(bits) % 32 == 0) else {
        return unsupported(format!("groups of {stored} over {last} elements cannot be packed"));
    };
    let factor = stored / group;
    let mut groups = codes.shape.clone();
    groups[rank - 1] = last / stored;
    let shaped = |c: Arc<Constant>| if c.shape == groups { c } else { Arc::new(c.reshaped(&groups)) };
    let scale = repeated(shaped(constant(cx, call, "scale")?), factor);
    let zero_point = match call.tensor_opt("zero_point")? {
        Some(_) => Some(repeated(shaped(constant(cx, call, "zero_point")?), factor)),
        None => None,
    };
    let dtype = call.dtype_opt("output_dtype")?.unwrap_or(DType::F32);
    let parts = packed(cx, &codes, scale, zero_point, bits);
    one(dequantize(cx, parts, group as i32, i32::from(bits), dtype)?)
}

/// Slots of a packed weight.
struct Packed {
    words: Tid,
    scales: Tid,
    biases: Tid,
}

fn packed(cx: &mut Lower, codes: &Arc<Constant>, scale: Arc<Constant>, zero_point: Option<Arc<Constant>>, bits: u8) -> Packed {
    let mut shape: Shape = codes.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = *last * usize::from(bits) / 32;
    }
    let name = format!("{}_to_packed", codes.name);
    let recipe = Recipe::PackSigned { codes: codes.clone(), bits };
    let words = cx.derived(Constant { name, dtype: DType::U32, shape, recipe });
    let bias_name = format!("{}_to_biases", zero_point.as_ref().unwrap_or(&scale).name);
    let recipe = Recipe::AffineBias { scale: scale.clone(), zero_point, bits };
    let biases = cx.derived(Constant { name: bias_name, dtype: scale.dtype, shape: scale.shape.clone(), recipe });
    let scales = cx.derived(Arc::unwrap_or_clone(scale));
    Packed { words, scales, biases }
}

fn dequantize(cx: &mut Lower, parts: Packed, group_size: i32, bits: i32, dtype: DType) -> Result<Tid, Refuse> {
    cx.emit(Dequantize {
        w: In(parts.words),
        scales: In(parts.scales),
        out: NEW,
        biases: Some(In(parts.biases)),
        group_size,
        bits,
        mode: QuantMode::Affine,
        global_scale: None,
        dtype: Some(dtype),
    })
}

/// A weight that is packed already, as model families store it.
fn dequantize_packed(cx: &mut Lower, call: &Call) -> Items {
    let mode = call.str_or("mode", "affine")?;
    let Some(mode) = QuantMode::from_name(mode) else { return unsupported(format!("quantization mode {mode:?}")) };
    one(cx.emit(Dequantize {
        w: In(call.tensor("words")?),
        scales: In(call.tensor("scales")?),
        out: NEW,
        biases: call.tensor_opt("biases")?.map(In),
        group_size: call.int("group_size")? as i32,
        bits: call.int("bits")? as i32,
        mode,
        global_scale: None,
        dtype: Some(call.out(0)?.dtype),
    })?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("flambeau.dequantize_packed.default", "words scales biases group_size bits mode output_dtype", dequantize_packed),
    row(
        "torchao.dequantize_affine.default",
        "input block_size scale zero_point input_dtype quant_min quant_max output_dtype",
        dequantize_affine,
    ),
];
