//! Quantization at run time: scales and zero points from the range of a tensor, and codes from
//! floats.

use flambeau_ir::{In, Round, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    quantized::{Blocks, code_range},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Rounds to the nearest whole number, ties to even.
pub(super) fn rounded(cx: &mut Lower, x: Tid) -> Emitted {
    cx.emit(Round { x: In(x), out: NEW, decimals: 0 })
}

/// `max(x, low)`.
pub(super) fn at_least(cx: &mut Lower, x: Tid, low: f64) -> Emitted {
    let low = ops::number_like(cx, x, low)?;
    ops::maximum(cx, x, low)
}

/// The smallest normal number of a float type: the default lower bound of scales.
fn smallest_normal(dtype: DType) -> f64 {
    if dtype == DType::F16 { 2f64.powi(-14) } else { f64::from(f32::MIN_POSITIVE) }
}

/// Mapping of the value range to codes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mapping {
    /// Zero has the middle code; the end with the larger magnitude sets the scale.
    Symmetric,
    /// Zero has the middle code; each end is divided by its own extreme code, and the larger
    /// quotient is the scale.
    SymmetricWithoutClipping,
    Asymmetric,
}

/// Scale and zero point that map values from `low` to `high` to the codes in `range`, in the type
/// of `low` and `high`.
pub(super) fn parameters(
    cx: &mut Lower,
    (low, high): (Tid, Tid),
    mapping: Mapping,
    range: (i64, i64),
    eps: f64,
) -> Result<(Tid, Tid), Refuse> {
    let (first, last) = (range.0 as f64, range.1 as f64);
    let zero = ops::number_like(cx, low, 0.0)?;
    let (low, high) = (ops::minimum(cx, low, zero)?, ops::maximum(cx, high, zero)?);
    let scale = match mapping {
        Mapping::Symmetric => {
            let low = ops::neg(cx, low)?;
            let most = ops::maximum(cx, low, high)?;
            ops::div_number(cx, most, (last - first) / 2.0)?
        }
        Mapping::SymmetricWithoutClipping => {
            let (low, high) = (ops::div_number(cx, low, first)?, ops::div_number(cx, high, last)?);
            ops::maximum(cx, low, high)?
        }
        Mapping::Asymmetric => {
            let width = ops::sub(cx, high, low)?;
            ops::div_number(cx, width, last - first)?
        }
    };
    let scale = at_least(cx, scale, eps)?;
    if mapping != Mapping::Asymmetric {
        let dims = cx.spec(scale).dims.to_vec();
        let dtype = cx.spec(scale).dtype;
        let middle = ops::full(cx, ((last + first + 1.0) / 2.0).trunc(), &dims, dtype)?;
        return Ok((scale, middle));
    }
    let steps = ops::div(cx, low, scale)?;
    let steps = rounded(cx, steps)?;
    let zero_point = ops::number_minus(cx, first, steps)?;
    Ok((scale, ops::clip(cx, zero_point, first, last)?))
}

/// Scale and zero point of each block of a tensor.
fn choose_qparams_affine(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("input")?;
    let mapping = match call.str_or("mapping_type", "")? {
        "SYMMETRIC" => Mapping::Symmetric,
        "SYMMETRIC_NO_CLIPPING_ERR" => Mapping::SymmetricWithoutClipping,
        "ASYMMETRIC" => Mapping::Asymmetric,
        other => return unsupported(format!("the mapping {other:?}")),
    };
    let target = call.dtype_opt("target_dtype")?.unwrap_or(DType::I8);
    let range = code_range(call, target)?;
    let blocks = Blocks::new(cx, x, call.sizes("block_size")?)?;
    let split = cx.reshape(x, &blocks.split)?;
    let (low, high) = (ops::min(cx, split, &blocks.inner(), true)?, ops::max(cx, split, &blocks.inner(), true)?);
    let eps = call.float_or("eps", smallest_normal(cx.spec(x).dtype))?;
    let (scale, zero_point) = parameters(cx, (low, high), mapping, range, eps)?;
    let shaped = |cx: &mut Lower, t: Tid, i: usize| cx.reshape(t, &call.out(i)?.dims);
    Ok(vec![Item::Tensor(shaped(cx, scale, 0)?), Item::Tensor(shaped(cx, zero_point, 1)?)])
}

/// `clamp(round(x / scale) + zero_point)`, computed as a product with the reciprocal. Scale and
/// zero point broadcast.
pub(super) fn codes(cx: &mut Lower, x: Tid, scale: Tid, zero_point: Option<Tid>, range: (i64, i64)) -> Emitted {
    let one = ops::number_like(cx, scale, 1.0)?;
    let inverse = ops::div(cx, one, scale)?;
    let steps = ops::mul(cx, x, inverse)?;
    let mut steps = rounded(cx, steps)?;
    if let Some(zero_point) = zero_point {
        steps = ops::add(cx, steps, zero_point)?;
    }
    ops::clip(cx, steps, range.0 as f64, range.1 as f64)
}

/// The wider of two float types.
fn common(a: DType, b: DType) -> DType {
    if a == b { a } else { DType::F32 }
}

fn quantize_affine(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("input")?;
    let range = code_range(call, call.out(0)?.dtype)?;
    let dims = cx.spec(x).dims.to_vec();
    let blocks = Blocks::new(cx, x, call.sizes("block_size")?)?;
    let dtype = common(cx.spec(x).dtype, cx.spec(call.tensor("scale")?).dtype);
    let x = cx.cast(x, dtype)?;
    let x = cx.reshape(x, &blocks.split)?;
    let scale = blocks.parameter(cx, call, "scale", dtype)?;
    let zero_point = match call.tensor_opt("zero_point")? {
        Some(_) => Some(blocks.parameter(cx, call, "zero_point", dtype)?),
        None => None,
    };
    let codes = codes(cx, x, scale, zero_point, range)?;
    one(cx.reshape(codes, &dims)?)
}

/// The scale that maps each block's largest magnitude to the largest number of an 8-bit float type.
fn choose_scale_float8(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("tensor")?;
    if call.dtype_opt("scale_dtype")?.unwrap_or(DType::F32) != DType::F32 {
        return unsupported("scales that are powers of two");
    }
    let most = match call.dtype_opt("float8_dtype")?.unwrap_or(DType::F8E4M3) {
        DType::F8E4M3 => 448.0,
        DType::F8E5M2 => 57344.0,
        other => return unsupported(format!("codes of type {other}")),
    };
    let blocks = Blocks::new(cx, x, call.sizes("block_size")?)?;
    let split = cx.reshape(x, &blocks.split)?;
    let magnitude = ops::abs(cx, split)?;
    let mut largest = ops::max(cx, magnitude, &blocks.inner(), true)?;
    if let Some(low) = call.float_opt("hp_value_lb")? {
        largest = at_least(cx, largest, low)?;
    }
    if let Some(high) = call.float_opt("hp_value_ub")? {
        let high = ops::number_like(cx, largest, high)?;
        largest = ops::minimum(cx, largest, high)?;
    }
    let scale = ops::div_number(cx, largest, most)?;
    let dims: Vec<Expr> = call.out(0)?.dims.clone();
    one(cx.reshape(scale, &dims)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("torchao.choose_qparams_affine.default", choose_qparams_affine),
    row("torchao.choose_scale_float8.default", choose_scale_float8),
    row("torchao.quantize_affine.default", quantize_affine),
];
