//! Quantization operators of PyTorch's export flow (PT2E): scales per tensor, channel, row or
//! group.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr, normalize_axis};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    qparams::{Mapping, at_least, codes, parameters, rounded},
    quantized::by_blocks,
    row,
};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

fn range(call: &Call) -> Result<(i64, i64), Refuse> {
    Ok((call.int("quant_min")?, call.int("quant_max")?))
}

/// A scale or zero point of the whole tensor as a rank-0 tensor; the argument is a number or a
/// one-element tensor.
fn of_whole(cx: &mut Lower, call: &Call, param: &str, dtype: DType) -> Emitted {
    let t = cx.operand(call, param, dtype)?;
    cx.reshape(t, &[])
}

/// Parameters `[n]` along an axis, shaped to broadcast over a tensor of rank `rank`.
fn of_channels(cx: &mut Lower, call: &Call, param: &str, dtype: DType, (axis, rank): (usize, usize)) -> Emitted {
    let t = cx.operand(call, param, dtype)?;
    ops::along(cx, t, axis, rank)
}

fn channel_axis(cx: &Lower, call: &Call) -> Result<(usize, usize), Refuse> {
    let rank = cx.spec(call.tensor("input")?).rank();
    let axis = call.int("axis")?;
    let axis = normalize_axis(axis, rank).ok_or(Refuse::Infer(flambeau_ir::InferError::Axis { axis, rank }))?;
    Ok((axis, rank))
}

/// `(code - zero_point) * scale`, in f32.
fn numbers(cx: &mut Lower, call: &Call, scale: Tid, zero_point: Option<Tid>) -> Items {
    let mut x = cx.operand(call, "input", DType::F32)?;
    if let Some(zero_point) = zero_point {
        x = ops::sub(cx, x, zero_point)?;
    }
    one(ops::mul(cx, x, scale)?)
}

fn quantize_per_tensor(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "input", DType::F32)?;
    let scale = of_whole(cx, call, "scale", DType::F32)?;
    let zero_point = of_whole(cx, call, "zero_point", DType::F32)?;
    one(codes(cx, x, scale, Some(zero_point), range(call)?)?)
}

fn dequantize_per_tensor(cx: &mut Lower, call: &Call) -> Items {
    let scale = of_whole(cx, call, "scale", DType::F32)?;
    let zero_point = of_whole(cx, call, "zero_point", DType::F32)?;
    numbers(cx, call, scale, Some(zero_point))
}

fn quantize_per_channel(cx: &mut Lower, call: &Call) -> Items {
    let at = channel_axis(cx, call)?;
    let x = cx.operand(call, "input", DType::F32)?;
    let scale = of_channels(cx, call, "scales", DType::F32, at)?;
    let zero_point = of_channels(cx, call, "zero_points", DType::F32, at)?;
    one(codes(cx, x, scale, Some(zero_point), range(call)?)?)
}

/// Dequantizes with one scale per index of an axis; a constant weight is packed.
fn dequantize_per_channel(cx: &mut Lower, call: &Call) -> Items {
    let (axis, rank) = channel_axis(cx, call)?;
    let dims = cx.spec(call.tensor("input")?).dims.to_vec();
    let block: Vec<Expr> = (0..rank).map(|a| if a == axis { Expr::Int(1) } else { dims[a].clone() }).collect();
    by_blocks(cx, &blocked(call, block, &[("scales", "scale"), ("zero_points", "zero_point")])?)
}

/// Dequantizes with one scale per group of the last axis.
fn dequantize_per_channel_group(cx: &mut Lower, call: &Call) -> Items {
    let rank = cx.spec(call.tensor("input")?).rank();
    let mut block = vec![Expr::Int(1); rank];
    if let Some(last) = block.last_mut() {
        *last = call.size("group_size")?;
    }
    by_blocks(cx, &blocked(call, block, &[("scales", "scale"), ("zero_points", "zero_point")])?)
}

/// The call in the form with block sizes, its parameters renamed.
fn blocked(call: &Call, block: Vec<Expr>, names: &[(&str, &str)]) -> Result<Call, Refuse> {
    let renamed = |name: &str| names.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new).to_owned();
    let mut args: Vec<(String, Arg)> = call.args.iter().map(|(name, arg)| (renamed(name), arg.clone())).collect();
    args.retain(|(name, _)| name != "output_dtype");
    args.push(("block_size".to_owned(), Arg::Ints(block)));
    args.push(("output_dtype".to_owned(), Arg::DType(call.out(0)?.dtype)));
    Ok(Call { args, ..call.clone() })
}

/// Quantizes with one scale and zero point per row of the last axis.
fn quantize_per_token(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "input", DType::F32)?;
    let (scale, zero_point) = of_rows(cx, call)?;
    let one_over = ops::number_like(cx, scale, 1.0)?;
    let inverse = ops::div(cx, one_over, scale)?;
    let steps = ops::mul(cx, x, inverse)?;
    let steps = ops::add(cx, steps, zero_point)?;
    let steps = rounded(cx, steps)?;
    let (first, last) = range(call)?;
    one(ops::clip(cx, steps, first as f64, last as f64)?)
}

fn of_rows(cx: &mut Lower, call: &Call) -> Result<(Tid, Tid), Refuse> {
    let mut dims = cx.spec(call.tensor("input")?).dims.to_vec();
    if let Some(last) = dims.last_mut() {
        *last = Expr::Int(1);
    }
    let mut shaped = |param: &str| {
        let t = cx.operand(call, param, DType::F32)?;
        cx.reshape(t, &dims)
    };
    Ok((shaped("scales")?, shaped("zero_points")?))
}

fn dequantize_per_token(cx: &mut Lower, call: &Call) -> Items {
    let (scale, zero_point) = of_rows(cx, call)?;
    numbers(cx, call, scale, Some(zero_point))
}

/// Scale and zero point `[1]` of a whole tensor, from its range.
fn of_range(cx: &mut Lower, call: &Call, mapping: Mapping) -> Items {
    let x = call.tensor("input")?;
    let axes: Vec<usize> = (0..cx.spec(x).rank()).collect();
    let (low, high) = (ops::min(cx, x, &axes, false)?, ops::max(cx, x, &axes, false)?);
    let (low, high) = (cx.cast(low, DType::F32)?, cx.cast(high, DType::F32)?);
    let (scale, mut zero_point) = parameters(cx, (low, high), mapping, range(call)?, call.float_or("eps", 0.0)?)?;
    if mapping == Mapping::Symmetric {
        let middle = if call.dtype_opt("dtype")? == Some(DType::U8) { 128.0 } else { 0.0 };
        zero_point = ops::number_like(cx, scale, middle)?;
    }
    let one = [Expr::Int(1)];
    Ok(vec![Item::Tensor(cx.reshape(scale, &one)?), Item::Tensor(cx.reshape(zero_point, &one)?)])
}

/// Symmetric scales of rows; the zero points are 0.
fn choose_qparams_per_token(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "input", DType::F32)?;
    let last = cx.spec(x).rank().saturating_sub(1);
    let magnitude = ops::abs(cx, x)?;
    let most = ops::max(cx, magnitude, &[last], true)?;
    let most = at_least(cx, most, 1e-5)?;
    let scale = ops::div_number(cx, most, 127.0)?;
    let zero_point = ops::mul_number(cx, scale, 0.0)?;
    Ok(vec![Item::Tensor(scale), Item::Tensor(zero_point)])
}

/// Scales and zero points of rows. The zero point is computed from the end of the range with the
/// smaller error.
fn choose_qparams_per_token_asymmetric(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "input", DType::F32)?;
    if call.dtype_opt("dtype")? != Some(DType::I8) {
        return unsupported("codes of another type than int8");
    }
    let last = cx.spec(x).rank().saturating_sub(1);
    let zero = ops::number_like(cx, x, 0.0)?;
    let (low, high) = (ops::min(cx, x, &[last], true)?, ops::max(cx, x, &[last], true)?);
    let (low, high) = (ops::minimum(cx, low, zero)?, ops::maximum(cx, high, zero)?);
    let width = ops::sub(cx, high, low)?;
    let scale = ops::div_number(cx, width, 255.0)?;
    let scale = at_least(cx, scale, f64::from(f32::EPSILON))?;
    let (low, high) = (ops::div(cx, low, scale)?, ops::div(cx, high, scale)?);
    let (from_low, from_high) = (ops::add_number(cx, low, -128.0)?, ops::add_number(cx, high, 127.0)?);
    let both = ops::add(cx, from_low, from_high)?;
    let by_low = ops::gt(cx, both, zero)?;
    let (from_low, from_high) = (ops::number_minus(cx, -128.0, low)?, ops::number_minus(cx, 127.0, high)?);
    let zero_point = ops::select(cx, by_low, from_low, from_high)?;
    let zero_point = ops::clip(cx, zero_point, -128.0, 127.0)?;
    Ok(vec![Item::Tensor(scale), Item::Tensor(rounded(cx, zero_point)?)])
}

/// Rounds to the values of codes. The second result marks the elements within the range of codes.
fn fake_quantized(cx: &mut Lower, call: &Call, scale: Tid, zero_point: Tid) -> Items {
    let dtype = call.out(0)?.dtype;
    let (low, high) = range(call)?;
    let x = cx.operand(call, "self", DType::F32)?;
    let unit = ops::number_like(cx, scale, 1.0)?;
    let inverse = ops::div(cx, unit, scale)?;
    let steps = ops::mul(cx, x, inverse)?;
    let steps = rounded(cx, steps)?;
    let codes = ops::add(cx, steps, zero_point)?;
    let inside = ops::clip(cx, codes, low as f64, high as f64)?;
    let centred = ops::sub(cx, inside, zero_point)?;
    let y = ops::mul(cx, centred, scale)?;
    let mut items = one(cx.cast(y, dtype)?)?;
    if call.outputs.len() == 2 {
        items.push(if call.is_used(1) { Item::Tensor(ops::eq(cx, codes, inside)?) } else { Item::None });
    }
    Ok(items)
}

fn fake_quantize_per_tensor(cx: &mut Lower, call: &Call) -> Items {
    let (scale, zero_point) = (of_whole(cx, call, "scale", DType::F32)?, of_whole(cx, call, "zero_point", DType::F32)?);
    fake_quantized(cx, call, scale, zero_point)
}

fn fake_quantize_per_channel(cx: &mut Lower, call: &Call) -> Items {
    let rank = cx.spec(call.tensor("self")?).rank();
    let at = (cx.axis(call, "axis", 0, rank)?, rank);
    let scale = of_channels(cx, call, "scale", DType::F32, at)?;
    let zero_point = of_channels(cx, call, "zero_point", DType::F32, at)?;
    fake_quantized(cx, call, scale, zero_point)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.fake_quantize_per_channel_affine.default", fake_quantize_per_channel),
    row("aten.fake_quantize_per_channel_affine_cachemask.default", fake_quantize_per_channel),
    row("aten.fake_quantize_per_tensor_affine.default", fake_quantize_per_tensor),
    row("aten.fake_quantize_per_tensor_affine.tensor_qparams", fake_quantize_per_tensor),
    row("aten.fake_quantize_per_tensor_affine_cachemask.default", fake_quantize_per_tensor),
    row("quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default", choose_qparams_per_token_asymmetric),
    row("quantized_decomposed.choose_qparams.tensor", |cx, call| of_range(cx, call, Mapping::Asymmetric)),
    row("quantized_decomposed.choose_qparams_per_token.default", choose_qparams_per_token),
    row("quantized_decomposed.choose_qparams_per_token_asymmetric.default", choose_qparams_per_token_asymmetric),
    row("quantized_decomposed.choose_qparams_symmetric.tensor", |cx, call| of_range(cx, call, Mapping::Symmetric)),
    row("quantized_decomposed.dequantize_per_channel.default", dequantize_per_channel),
    row("quantized_decomposed.dequantize_per_channel_group.default", dequantize_per_channel_group),
    row("quantized_decomposed.dequantize_per_tensor.default", dequantize_per_tensor),
    row("quantized_decomposed.dequantize_per_tensor.tensor", dequantize_per_tensor),
    row("quantized_decomposed.dequantize_per_token.default", dequantize_per_token),
    row("quantized_decomposed.quantize_per_channel.default", quantize_per_channel),
    row("quantized_decomposed.quantize_per_tensor.default", quantize_per_tensor),
    row("quantized_decomposed.quantize_per_tensor.tensor", quantize_per_tensor),
    row("quantized_decomposed.quantize_per_token.default", quantize_per_token),
];
