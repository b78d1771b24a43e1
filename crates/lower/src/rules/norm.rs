//! Normalization layers and softmax.

use flambeau_ir::{In, LayerNorm, RMSNorm, Softmax, Tid};
use flambeau_tensor::{DType, Expr};

use super::{RuleRow, lifted, one, ops, row};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Joins the last `n` axes of `x`; also returns the original sizes.
fn join_last(cx: &mut Lower, x: Tid, n: usize) -> Result<(Tid, Vec<Expr>), Refuse> {
    let dims = cx.spec(x).dims.to_vec();
    let lead =
        dims.len().checked_sub(n).ok_or_else(|| Refuse::Unsupported("normalized shape is longer than the input's".into()))?;
    let joined = dims[lead..].iter().cloned().fold(Expr::Int(1), |p, d| p * d);
    let flat = [&dims[..lead], &[joined]].concat();
    Ok((cx.reshape(x, &flat)?, dims))
}

fn layer_norm_parts(cx: &mut Lower, call: &Call) -> Result<Tid, Refuse> {
    let x = call.tensor("input")?;
    let n = call.sizes("normalized_shape")?.len();
    let eps = call.float_or("eps", 1e-5)? as f32;
    let dtype = cx.spec(x).dtype;
    let weight = call.tensor_opt("weight")?.map(|w| cx.cast(w, dtype)).transpose()?;
    let bias = call.tensor_opt("bias")?.map(|b| cx.cast(b, dtype)).transpose()?;
    let (flat, dims) = join_last(cx, x, n)?;
    let mut joined = |t: Option<Tid>| t.map(|t| join_last(cx, t, n).map(|(t, _)| In(t))).transpose();
    let (weight, bias) = (joined(weight)?, joined(bias)?);
    let y = cx.emit(LayerNorm { x: In(flat), out: NEW, weight, bias, eps })?;
    cx.reshape(y, &dims)
}

/// Mean and reciprocal deviation over the last `n` axes, which keep size 1, in f32.
fn layer_statistics(cx: &mut Lower, call: &Call, eps: f64) -> Result<[Tid; 2], Refuse> {
    let x = call.tensor("input")?;
    let (n, rank) = (call.sizes("normalized_shape")?.len(), cx.spec(x).rank());
    let x = cx.cast(x, DType::F32)?;
    let axes: Vec<usize> = (rank.saturating_sub(n)..rank).collect();
    super::statistics::moments(cx, x, &axes, eps)
}

fn layer_norm(cx: &mut Lower, call: &Call) -> Items {
    one(layer_norm_parts(cx, call)?)
}

fn native_layer_norm(cx: &mut Lower, call: &Call) -> Items {
    let mut items = vec![Item::None; 3];
    if call.is_used(0) {
        items[0] = Item::Tensor(layer_norm_parts(cx, call)?);
    }
    if call.is_used(1) || call.is_used(2) {
        let [mean, deviation] = layer_statistics(cx, call, call.float_or("eps", 1e-5)?)?;
        (items[1], items[2]) = (Item::Tensor(mean), Item::Tensor(deviation));
    }
    Ok(items)
}

fn rms_norm(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("input")?;
    let n = call.sizes("normalized_shape")?.len();
    let dtype = cx.spec(x).dtype;
    let eps = call.float_opt("eps")?.map_or(f32::EPSILON, |e| e as f32);
    // A wider weight multiplies before the result is rounded; the node does the same.
    let weight = call.tensor_opt("weight")?;
    let weight = weight.map(|w| if ops::wide(dtype) == cx.spec(w).dtype { Ok(w) } else { cx.cast(w, dtype) }).transpose()?;
    let (flat, dims) = join_last(cx, x, n)?;
    let weight = weight.map(|w| join_last(cx, w, n)).transpose()?.map(|(w, _)| In(w));
    let y = cx.emit(RMSNorm { x: In(flat), weight, out: NEW, eps })?;
    one(cx.reshape(y, &dims)?)
}

/// Softmax in the result's type.
fn softmax(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let x = cx.cast(x, call.out(0)?.dtype)?;
    if cx.spec(x).rank() == 0 {
        return one(cx.number(1.0, call.out(0)?.dtype)?);
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    one(cx.emit(Softmax { x: In(x), out: NEW, axis: axis as i32, precise: true })?)
}

fn log_softmax(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    // The logarithm cancels digits, so halves are computed in f32.
    let x = cx.cast(x, ops::wide(call.out(0)?.dtype))?;
    if cx.spec(x).numel().as_int() == Some(0) {
        return one(x);
    }
    one(ops::log_softmax(cx, x, axis)?)
}

fn fused_rms_norm(cx: &mut Lower, call: &Call) -> Items {
    if call.is_used(1) {
        return unsupported("the reciprocal deviation is used");
    }
    let mut items = rms_norm(cx, call)?;
    items.push(Item::None);
    Ok(items)
}

/// Softmax that gives 0 for rows of minus infinity only.
fn safe_softmax(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "self", call.out(0)?.dtype)?;
    if cx.spec(x).rank() == 0 {
        return unsupported("a masked softmax over a rank-0 tensor");
    }
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    let lowest = ops::number_like(cx, x, f64::NEG_INFINITY)?;
    let masked = ops::eq(cx, x, lowest)?;
    let empty = ops::all(cx, masked, &[axis], true)?;
    let y = ops::softmax(cx, x, axis)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    one(ops::select(cx, empty, zero, y)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._log_softmax.default", |cx, call| lifted(cx, call, &["self"], log_softmax)),
    row("aten._softmax.default", softmax),
    row("aten.layer_norm.default", layer_norm),
    row("aten.log_softmax.int", |cx, call| lifted(cx, call, &["self"], log_softmax)),
    row("aten.native_layer_norm.default", native_layer_norm),
    row("aten.rms_norm.default", rms_norm),
    row("aten.softmax.int", softmax),
    row("aten.special_log_softmax.default", |cx, call| lifted(cx, call, &["self"], log_softmax)),
    row("aten.special_softmax.default", softmax),
    row("aten._fused_rms_norm.default", fused_rms_norm),
    row("aten._safe_softmax.default", safe_softmax),
];
