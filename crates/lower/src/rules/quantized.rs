//! Quantized weights: packed constants and a `Dequantize` node. Fusions merge the node into the
//! product that reads it.

use std::sync::Arc;

use flambeau_ir::{Dequantize, In, QuantMode, Tid};
use flambeau_tensor::{DType, Expr, Shape};

use super::{RuleRow, one, ops, row};
use crate::{Call, ConstExpr, Constant, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Group sizes of packed products, largest first.
pub(super) const GROUPS: [usize; 4] = [128, 64, 32, 16];

pub(super) fn constant(cx: &Lower, call: &Call, param: &str) -> Result<Arc<Constant>, Refuse> {
    let t = call.tensor(param)?;
    cx.graph().constant(t).cloned().ok_or_else(|| Refuse::Unsupported(format!("`{param}` is not a constant")))
}

/// Number of bits of a code range, if it is the full range of a signed integer.
fn bits_of(low: i64, high: i64) -> Option<u8> {
    (2..=8).find(|&b| (low, high) == (-(1 << (b - 1)), (1 << (b - 1)) - 1)).map(|b| b as u8)
}

/// Repeats a constant's elements along the last axis; a factor of 1 returns the constant.
pub(super) fn repeated(c: Arc<Constant>, factor: usize) -> Arc<Constant> {
    if factor == 1 {
        return c;
    }
    let mut shape = c.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last *= factor;
    }
    Arc::new(Constant { name: format!("{}_regrouped", c.name), dtype: c.dtype, shape, expr: ConstExpr::Repeat(c, factor) })
}

/// Codes, block lengths and parameters of `dequantize_affine`.
struct Affine {
    codes: Arc<Constant>,
    block: Vec<usize>,
    bits: u8,
}

/// The range of codes; by default the whole range of their type.
pub(super) fn code_range(call: &Call, codes: DType) -> Result<(i64, i64), Refuse> {
    let whole = if codes == DType::U8 { (0, 255) } else { (-128, 127) };
    Ok((call.int_or("quant_min", whole.0)?, call.int_or("quant_max", whole.1)?))
}

/// The parts of a weight that can be packed; `None` if arithmetic must dequantize it.
fn packable(cx: &Lower, call: &Call) -> Result<Option<Affine>, Refuse> {
    let t = call.tensor("input")?;
    let Some(codes) = cx.graph().constant(t).cloned() else { return Ok(None) };
    let (low, high) = code_range(call, codes.dtype)?;
    let block: Option<Vec<usize>> = call.sizes("block_size")?.iter().map(|b| usize::try_from(b.as_int()?).ok()).collect();
    let Some(block) = block else { return Ok(None) };
    let params = ["scale", "zero_point"].map(|p| call.tensor_opt(p).map(|t| t.is_none_or(|t| cx.graph().constant(t).is_some())));
    let [scale, zero_point] = params;
    // Symmetric weights do not use the lowest 8-bit code.
    let range = if (low, high) == (-127, 127) { (-128, 127) } else { (low, high) };
    let Some(bits) = bits_of(range.0, range.1).filter(|&b| b != 7) else { return Ok(None) };
    let fits = codes.dtype == DType::I8 && codes.shape.len() >= 2 && block.len() == codes.shape.len() && scale? && zero_point?;
    Ok(fits.then_some(Affine { codes, block, bits }))
}

/// The only axis with more than one element per scale, if there is exactly one.
fn grouped_axis(block: &[usize]) -> Option<usize> {
    let mut axes = (0..block.len()).filter(|&a| block[a] != 1);
    axes.next().filter(|_| axes.next().is_none())
}

/// Permutes a constant's axes; returns the constant if nothing changes.
fn permuted(c: Arc<Constant>, perm: &[usize]) -> Arc<Constant> {
    if perm.iter().enumerate().all(|(i, &p)| i == p) {
        return c;
    }
    let shape: Shape = perm.iter().map(|&p| c.shape[p]).collect();
    Arc::new(Constant { name: format!("{}_last", c.name), dtype: c.dtype, shape, expr: ConstExpr::Permute(c, perm.to_vec()) })
}

/// `scale * (codes - zero_point)`: packed, with the grouped axis last, if the format allows it;
/// else by arithmetic.
pub(super) fn by_blocks(cx: &mut Lower, call: &Call) -> Items {
    let Some(affine) = packable(cx, call)? else { return by_arithmetic(cx, call) };
    let Some(axis) = grouped_axis(&affine.block) else { return by_arithmetic(cx, call) };
    let (size, stored) = (affine.codes.shape[axis], affine.block[axis]);
    // MLX joins groups of 16 in pairs.
    let group = GROUPS.into_iter().find(|g| stored > 0 && stored % g == 0 && size % (*g).max(32) == 0);
    let Some(group) = group.filter(|_| size % stored == 0 && size * usize::from(affine.bits) % 32 == 0) else {
        return by_arithmetic(cx, call);
    };
    let rank = affine.block.len();
    let perm: Vec<usize> = (0..rank).filter(|&a| a != axis).chain([axis]).collect();
    let mut grid = affine.codes.shape.clone();
    grid[axis] = size / stored;
    let parameter = |c: Arc<Constant>| {
        let shaped = if c.shape == grid { c } else { Arc::new(c.reshaped(&grid)) };
        repeated(permuted(shaped, &perm), stored / group)
    };
    let scale = parameter(constant(cx, call, "scale")?);
    let zero_point = match call.tensor_opt("zero_point")? {
        Some(_) => Some(parameter(constant(cx, call, "zero_point")?)),
        None => None,
    };
    let parts = packed(cx, &permuted(affine.codes, &perm), scale, zero_point, affine.bits);
    let last = dequantize(cx, parts, group as i32, i32::from(affine.bits), output_dtype(call, DType::F32)?)?;
    let back: Vec<usize> = (0..rank)
        .map(|a| {
            if a < axis {
                a
            } else if a == axis {
                rank - 1
            } else {
                a - 1
            }
        })
        .collect();
    one(cx.permute(last, &back)?)
}

pub(super) fn output_dtype(call: &Call, default: DType) -> Result<DType, Refuse> {
    Ok(call.dtype_opt("output_dtype")?.unwrap_or(default))
}

/// Division of a tensor into blocks that share a scale. Each axis becomes two: the number of blocks
/// and the block size.
pub(super) struct Blocks {
    /// Sizes `[n0, b0, n1, b1, ..]`.
    pub(super) split: Vec<Expr>,
    /// Sizes of the parameters that broadcast over `split`: `[n0, 1, n1, 1, ..]`.
    grid: Vec<Expr>,
}

impl Blocks {
    /// Divides `x` into blocks with one size per axis.
    pub(super) fn new(cx: &Lower, x: Tid, block: Vec<Expr>) -> Result<Blocks, Refuse> {
        let dims = &cx.spec(x).dims;
        if block.len() != dims.len() || block.iter().any(|b| b.as_int().is_some_and(|b| b < 1)) {
            return unsupported(format!("blocks {block:?} of a tensor of rank {}", dims.len()));
        }
        let (mut split, mut grid) = (Vec::new(), Vec::new());
        for (d, b) in dims.iter().zip(block) {
            let Some(count) = d.exact_div(&b) else { return unsupported(format!("blocks of {b} over {d} elements")) };
            split.extend([count.clone(), b]);
            grid.extend([count, Expr::Int(1)]);
        }
        Ok(Blocks { split, grid })
    }

    /// The axes inside blocks, in a tensor of sizes `split`.
    pub(super) fn inner(&self) -> Vec<usize> {
        (1..self.split.len()).step_by(2).collect()
    }

    /// A scale or zero point, shaped to broadcast over a tensor of sizes `split`.
    pub(super) fn parameter(&self, cx: &mut Lower, call: &Call, param: &str, dtype: DType) -> Result<Tid, Refuse> {
        let t = cx.operand(call, param, dtype)?;
        cx.reshape(t, &self.grid)
    }
}

fn by_arithmetic(cx: &mut Lower, call: &Call) -> Items {
    let dtype = output_dtype(call, DType::F32)?;
    let x = call.tensor("input")?;
    let dims = cx.spec(x).dims.to_vec();
    let blocks = Blocks::new(cx, x, call.sizes("block_size")?)?;
    let codes = cx.cast(x, DType::F32)?;
    let mut y = cx.reshape(codes, &blocks.split)?;
    if call.arg("zero_point").is_some() {
        let zero_point = blocks.parameter(cx, call, "zero_point", DType::F32)?;
        y = ops::sub(cx, y, zero_point)?;
    }
    let scale = blocks.parameter(cx, call, "scale", DType::F32)?;
    let y = ops::mul(cx, y, scale)?;
    let y = cx.reshape(y, &dims)?;
    one(cx.cast(y, dtype)?)
}

/// Slots of a packed weight.
pub(super) struct Packed {
    pub(super) words: Tid,
    pub(super) scales: Tid,
    pub(super) biases: Tid,
}

fn packed(cx: &mut Lower, codes: &Arc<Constant>, scale: Arc<Constant>, zero_point: Option<Arc<Constant>>, bits: u8) -> Packed {
    let mut shape: Shape = codes.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = *last * usize::from(bits) / 32;
    }
    let name = format!("{}_to_packed", codes.name);
    let expr = ConstExpr::PackSigned { codes: codes.clone(), bits };
    let words = cx.constant(Constant { name, dtype: DType::U32, shape, expr });
    let bias_name = format!("{}_to_biases", zero_point.as_ref().unwrap_or(&scale).name);
    let expr = ConstExpr::AffineBias { scale: scale.clone(), zero_point, bits };
    let biases = cx.constant(Constant { name: bias_name, dtype: scale.dtype, shape: scale.shape.clone(), expr });
    let scales = cx.constant(Arc::unwrap_or_clone(scale));
    Packed { words, scales, biases }
}

pub(super) fn dequantize(cx: &mut Lower, parts: Packed, group_size: i32, bits: i32, dtype: DType) -> Result<Tid, Refuse> {
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

/// A weight stored in packed form by a model family.
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

pub(super) const ROWS: &[RuleRow] =
    &[row("flambeau.dequantize_packed.default", dequantize_packed), row("torchao.dequantize_affine.default", by_blocks)];
