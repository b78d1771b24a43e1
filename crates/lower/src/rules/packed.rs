//! Weights stored packed: GGUF blocks, 4-bit integers, and small floats with shared scales.

use std::sync::Arc;

use flambeau_ir::{Dequantize, In, QuantMode, Tid};
use flambeau_tensor::{DType, Shape, gguf::Block};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    quantized::{GROUPS, Packed, constant, dequantize, output_dtype, repeated},
    row,
};
use crate::{
    Call, ConstExpr, Constant, Formula, Item, Lower, QuantPart, Refuse, call::unsupported, formula::with_last, lower::NEW,
};

type Items = Result<Vec<Item>, Refuse>;

/// Reinterprets a constant's bytes as another type.
fn reinterpreted(cx: &mut Lower, c: &Arc<Constant>, dtype: DType, suffix: &str) -> Emitted {
    if c.dtype == dtype {
        return Ok(cx.constant(Constant::clone(c)));
    }
    let bytes = c.shape.last().map_or(0, |n| n * c.dtype.size());
    if !bytes.is_multiple_of(dtype.size()) {
        return unsupported(format!("rows of {bytes} bytes as {dtype}"));
    }
    let shape = with_last(&c.shape, bytes / dtype.size());
    Ok(cx.constant(Constant { name: format!("{}_{suffix}", c.name), dtype, shape, expr: ConstExpr::Reinterpret(c.clone()) }))
}

/// The block formats of torchao's operator.
const GGUF: [Block; 5] = [Block::Q4_0, Block::Q8_0, Block::Q4_K, Block::Q5_K, Block::Q6_K];

/// Repacks blocks `[N, bytes]` as codes with a scale and a bias per group, in the output's type.
fn dequantize_gguf(cx: &mut Lower, call: &Call) -> Items {
    let blocks = constant(cx, call, "weight")?;
    let name = call.str_or("ggml_type", "")?;
    let Some(block) = Block::from_name(name).filter(|block| GGUF.contains(block)) else {
        return unsupported(format!("GGUF type {name:?}"));
    };
    let dtype = output_dtype(call, DType::BF16)?;
    let bytes = blocks.shape.last().copied().unwrap_or(0);
    if blocks.dtype != DType::U8 || blocks.shape.len() < 2 || bytes % block.bytes() != 0 {
        return unsupported(format!("{} {:?} as blocks of {} bytes", blocks.dtype, blocks.shape, block.bytes()));
    }
    let weights = bytes / block.bytes() * block.elements();
    let mut part = |part: QuantPart, dtype: DType, last: usize, suffix: &str| {
        let expr = ConstExpr::Formula(Formula::Gguf { block, part }, vec![blocks.clone()]);
        cx.constant(Constant { name: format!("{}_{suffix}", blocks.name), dtype, shape: with_last(&blocks.shape, last), expr })
    };
    let (bits, group) = (block.bits(), block.group());
    let parts = Packed {
        words: part(QuantPart::Codes, DType::U32, weights * bits / 32, "packed"),
        scales: part(QuantPart::Scales, dtype, weights / group, "scales"),
        biases: part(QuantPart::Biases, dtype, weights / group, "biases"),
    };
    one(dequantize(cx, parts, group as i32, bits as i32, dtype)?)
}

/// `scale * (code - zero_point)`, with codes `[N, K / 2]`, lower half first, and scale and zero
/// point `[K / group, N]`.
fn dequantize_int4(cx: &mut Lower, call: &Call) -> Items {
    let (codes, scale, zero_point) =
        (constant(cx, call, "qdata")?, constant(cx, call, "scale")?, constant(cx, call, "zero_point")?);
    let stored = usize::try_from(call.int("group_size")?).unwrap_or(0);
    let Some(group) = GROUPS.into_iter().find(|g| stored > 0 && stored % g == 0) else {
        return unsupported(format!("groups of {stored}"));
    };
    if codes.dtype != DType::U8 || codes.shape.len() != 2 || scale.shape.len() != 2 || scale.shape != zero_point.shape {
        return unsupported("codes, scales and zero points do not go together");
    }
    let turned = |c: Arc<Constant>| {
        let shape = Shape::from_slice(&[c.shape[1], c.shape[0]]);
        let turned = Constant { name: format!("{}_last", c.name), dtype: c.dtype, shape, expr: ConstExpr::Permute(c, vec![1, 0]) };
        repeated(Arc::new(turned), stored / group)
    };
    let name = format!("{}_to_biases", zero_point.name);
    let (scale, zero_point) = (turned(scale), turned(zero_point));
    let expr = ConstExpr::Formula(Formula::NegatedProduct, vec![scale.clone(), zero_point]);
    let biases = cx.constant(Constant { name, dtype: scale.dtype, shape: scale.shape.clone(), expr });
    let words = reinterpreted(cx, &codes, DType::U32, "int4_to_packed")?;
    let scales = cx.constant(Arc::unwrap_or_clone(scale));
    one(dequantize(cx, Packed { words, scales, biases }, group as i32, 4, output_dtype(call, DType::BF16)?)?)
}

fn small_floats(cx: &mut Lower, words: Tid, scales: Tid, mode: QuantMode, dtype: DType) -> Emitted {
    let (group_size, bits) = match mode {
        QuantMode::Nvfp4 => (16, 4),
        QuantMode::Mxfp4 => (32, 4),
        _ => (32, 8),
    };
    let (w, scales) = (In(words), In(scales));
    cx.emit(Dequantize { w, scales, out: NEW, biases: None, group_size, bits, mode, global_scale: None, dtype: Some(dtype) })
}

/// `e2m1(code) * e4m3(scale) * per_tensor_scale`, with one scale per 16 codes.
fn dequantize_nvfp4(cx: &mut Lower, call: &Call) -> Items {
    if call.int_or("block_size", 16)? != 16 {
        return unsupported("blocks of other than 16 elements");
    }
    let dtype = output_dtype(call, DType::F32)?;
    let (codes, scale) = (constant(cx, call, "qdata")?, constant(cx, call, "scale")?);
    let words = reinterpreted(cx, &codes, DType::U32, "nvfp4_packed")?;
    let scale = if call.bool_or("is_swizzled", false)? { in_rows(&scale, &codes.shape)? } else { scale };
    let scales = reinterpreted(cx, &scale, DType::U8, "nvfp4_u8")?;
    let weight = small_floats(cx, words, scales, QuantMode::Nvfp4, dtype)?;
    if call.arg("per_tensor_scale").is_none() {
        return one(weight);
    }
    let global = cx.operand(call, "per_tensor_scale", dtype)?;
    let global = cx.reshape(global, &[])?;
    one(ops::mul(cx, weight, global)?)
}

/// Reorders tiled scales into rows `[N, K / 16]` for codes `[N, K / 2]`.
fn in_rows(scale: &Arc<Constant>, codes: &[usize]) -> Result<Arc<Constant>, Refuse> {
    let [rows, bytes] = *codes else { return unsupported("tiled scales of a weight that is no matrix") };
    let shape = Shape::from_slice(&[rows, bytes / 8]);
    let expr = ConstExpr::Formula(Formula::Untiled, vec![scale.clone()]);
    Ok(Arc::new(Constant { name: format!("{}_rows", scale.name), dtype: DType::U8, shape, expr }))
}

/// `e4m3(code) * 2^(scale - 127)`, with one scale per 32 codes.
fn dequantize_mx(cx: &mut Lower, call: &Call) -> Items {
    let (codes, scale) = (constant(cx, call, "qdata")?, constant(cx, call, "scale")?);
    let block = call.int_or("block_size", 32)?;
    if codes.dtype != DType::F8E4M3 || block != 32 {
        return unsupported(format!("MX blocks of {block} {} elements", codes.dtype));
    }
    let words = reinterpreted(cx, &codes, DType::U32, "mx_packed")?;
    let scales = reinterpreted(cx, &scale, DType::U8, "mx_u8")?;
    one(small_floats(cx, words, scales, QuantMode::Mxfp8, output_dtype(call, DType::F32)?)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("torchao.dequantize_gguf.default", dequantize_gguf),
    row("torchao.dequantize_int4_tensor.default", dequantize_int4),
    row("torchao.dequantize_mx.default", dequantize_mx),
    row("torchao.dequantize_nvfp4.default", dequantize_nvfp4),
];
