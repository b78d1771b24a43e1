//! Normalization by statistics over channels and groups, and weight normalization.

use std::sync::Arc;

use flambeau_ir::{In, LayerNorm, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, ConstExpr, Constant, Formula, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// A `[C]` parameter shaped to broadcast along the channel axis.
fn along_channels(cx: &mut Lower, call: &Call, param: &str, x: Tid) -> Result<Option<Tid>, Refuse> {
    if call.arg(param).is_none() {
        return Ok(None);
    }
    let vector = cx.operand(call, param, cx.spec(x).dtype)?;
    ops::along(cx, vector, 1, cx.spec(x).rank()).map(Some)
}

/// `x * weight + bias`; either may be absent.
fn affine(cx: &mut Lower, call: &Call, x: Tid) -> Emitted {
    let (weight, bias) = (along_channels(cx, call, "weight", x)?, along_channels(cx, call, "bias", x)?);
    let scaled = weight.map_or(Ok(x), |w| ops::mul(cx, x, w))?;
    bias.map_or(Ok(scaled), |b| ops::add(cx, scaled, b))
}

/// `(x - mean) / sqrt(variance + eps)`.
fn standardised(cx: &mut Lower, x: Tid, mean: Tid, variance: Tid, eps: f64) -> Emitted {
    let centred = ops::sub(cx, x, mean)?;
    let shifted = ops::add_number(cx, variance, eps)?;
    let scale = ops::rsqrt(cx, shifted)?;
    ops::mul(cx, centred, scale)
}

fn constant(cx: &Lower, call: &Call, param: &str) -> Result<Option<Arc<Constant>>, Refuse> {
    Ok(call.tensor_opt(param)?.and_then(|t| cx.graph().constant(t).cloned()))
}

/// The whole layer as one scale and one shift per channel, computed while the program is written.
fn folded(cx: &mut Lower, call: &Call, x: Tid, names: [&str; 2], eps: f64) -> Result<Option<Tid>, Refuse> {
    let (Some(mean), Some(variance)) = (constant(cx, call, names[0])?, constant(cx, call, names[1])?) else { return Ok(None) };
    let (weight, bias) = (constant(cx, call, "weight")?, constant(cx, call, "bias")?);
    if weight.is_none() != call.arg("weight").is_none() || bias.is_none() != call.arg("bias").is_none() {
        return Ok(None);
    }
    let named = |suffix: &str, of: &Constant, expr| Constant {
        name: format!("{}_{suffix}", of.name),
        dtype: DType::F32,
        shape: of.shape.clone(),
        expr,
    };
    let operands = [variance.clone()].into_iter().chain(weight).collect();
    let scale = Arc::new(named("norm_scale", &variance, ConstExpr::Formula(Formula::NormScale { eps: eps as f32 }, operands)));
    let operands = [mean.clone(), scale.clone()].into_iter().chain(bias).collect();
    let shift = named("norm_shift", &mean, ConstExpr::Formula(Formula::NormShift, operands));
    let (scale, shift) = (cx.constant(Arc::unwrap_or_clone(scale)), cx.constant(shift));
    let (dtype, rank) = (cx.spec(x).dtype, cx.spec(x).rank());
    let mut place = |t: Tid| {
        let t = cx.cast(t, dtype)?;
        ops::along(cx, t, 1, rank)
    };
    let (scale, shift) = (place(scale)?, place(shift)?);
    let scaled = ops::mul(cx, x, scale)?;
    ops::add(cx, scaled, shift).map(Some)
}

fn by_running_statistics(cx: &mut Lower, call: &Call, x: Tid) -> Emitted {
    let eps = call.float_or("eps", 1e-5)?;
    if let Some(y) = folded(cx, call, x, ["running_mean", "running_var"], eps)? {
        return Ok(y);
    }
    let mean = along_channels(cx, call, "running_mean", x)?;
    let variance = along_channels(cx, call, "running_var", x)?;
    let (Some(mean), Some(variance)) = (mean, variance) else { return unsupported("running statistics are missing") };
    let y = standardised(cx, x, mean, variance, eps)?;
    affine(cx, call, y)
}

/// Mean and reciprocal deviation `1 / sqrt(variance + eps)` over axes that keep size 1.
pub(super) fn moments(cx: &mut Lower, x: Tid, axes: &[usize], eps: f64) -> Result<[Tid; 2], Refuse> {
    let (mean, variance) = (ops::mean(cx, x, axes, true)?, ops::variance(cx, x, axes, true, 0)?);
    let shifted = ops::add_number(cx, variance, eps)?;
    Ok([mean, ops::rsqrt(cx, shifted)?])
}

/// All axes except the channels.
fn axes_but_channels(cx: &Lower, x: Tid) -> Vec<usize> {
    (0..cx.spec(x).rank()).filter(|&a| a != 1).collect()
}

/// The type in which PyTorch stores a batch's statistics: the type of the layer's parameters, or
/// else of its input.
fn statistics_type(cx: &Lower, call: &Call) -> Result<DType, Refuse> {
    for param in ["weight", "running_mean"] {
        if let Some(t) = call.tensor_opt(param)? {
            return Ok(cx.spec(t).dtype);
        }
    }
    Ok(cx.spec(call.tensor("input")?).dtype)
}

/// [`moments`] rounded to their stored type. In bf16, the sum of squares and the variance are
/// rounded too.
fn rounded_moments(cx: &mut Lower, call: &Call, x: Tid, axes: &[usize]) -> Result<[Tid; 2], Refuse> {
    let (kept, eps) = (statistics_type(cx, call)?, call.float_or("eps", 1e-5)?);
    let round = |cx: &mut Lower, t: Tid, dtype: DType| {
        let t = cx.cast(t, dtype)?;
        cx.cast(t, DType::F32)
    };
    let (mean, mut variance) = (ops::mean(cx, x, axes, true)?, ops::variance(cx, x, axes, true, 0)?);
    if kept == DType::BF16 {
        let sizes: Vec<Expr> = axes.iter().map(|&a| cx.spec(x).dims[a].clone()).collect();
        if let Some(count) = ops::volume(&sizes).as_int() {
            let total = ops::mul_number(cx, variance, count as f64)?;
            let total = round(cx, total, kept)?;
            variance = ops::div_number(cx, total, count as f64)?;
        }
        variance = round(cx, variance, kept)?;
    }
    let shifted = ops::add_number(cx, variance, eps)?;
    let scale = ops::rsqrt(cx, shifted)?;
    Ok([round(cx, mean, kept)?, round(cx, scale, kept)?])
}

/// Normalizes by the input's own statistics over `axes`.
fn by_own_statistics(cx: &mut Lower, call: &Call, x: Tid, axes: &[usize]) -> Emitted {
    let [mean, scale] = rounded_moments(cx, call, x, axes)?;
    let centred = ops::sub(cx, x, mean)?;
    let y = ops::mul(cx, centred, scale)?;
    affine(cx, call, y)
}

/// The operand in f32, in which PyTorch scales and shifts halves too.
fn wide_input(cx: &mut Lower, call: &Call) -> Emitted {
    cx.operand(call, "input", DType::F32)
}

fn batch_input(cx: &mut Lower, call: &Call) -> Emitted {
    let x = wide_input(cx, call)?;
    if cx.spec(x).rank() < 2 { unsupported("an input without channels") } else { Ok(x) }
}

fn batch_norm(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("input")?;
    if cx.spec(x).dims[..] == [Expr::Int(0)] {
        // An empty batch leaves the running statistics unchanged.
        let kept = ["running_mean", "running_var"].map(|param| call.tensor_opt(param));
        let kept = kept.into_iter().filter_map(Result::transpose).map(|t| t.map(Item::Tensor));
        let is_training = call.bool_or("training", false)?;
        return std::iter::once(Ok(Item::Tensor(x))).chain(kept.filter(|_| is_training)).collect();
    }
    let x = batch_input(cx, call)?;
    if call.arg("running_mean").is_none() {
        let axes = axes_but_channels(cx, x);
        return one(by_own_statistics(cx, call, x, &axes)?);
    }
    if call.bool_or("training", false)? {
        let axes = axes_but_channels(cx, x);
        let y = by_own_statistics(cx, call, x, &axes)?;
        let [mean, variance] = running_after(cx, call, x, &axes)?;
        return Ok(vec![Item::Tensor(y), Item::Tensor(mean), Item::Tensor(variance)]);
    }
    one(by_running_statistics(cx, call, x)?)
}

/// The running statistics after a batch: `(1 - momentum) * running + momentum * batch`, with the
/// sample variance.
fn running_after(cx: &mut Lower, call: &Call, x: Tid, axes: &[usize]) -> Result<[Tid; 2], Refuse> {
    let momentum = call.float_or("momentum", 0.1)?;
    let own = [ops::mean(cx, x, axes, false)?, ops::variance(cx, x, axes, false, 1)?];
    let mut after = |param: &str, own: Tid| {
        let before = cx.operand(call, param, DType::F32)?;
        let (kept, new) = (ops::mul_number(cx, before, 1.0 - momentum)?, ops::mul_number(cx, own, momentum)?);
        ops::add(cx, kept, new)
    };
    Ok([after("running_mean", own[0])?, after("running_var", own[1])?])
}

/// [`batch_norm`] with saved statistics: the batch's in training mode, empty otherwise.
fn native_batch_norm(cx: &mut Lower, call: &Call) -> Items {
    let mut items = batch_norm(cx, call)?;
    // New running statistics follow the saved ones.
    let after = items.split_off(1);
    items.resize(3, Item::None);
    items.extend(after);
    items.resize(call.outputs.len().max(1), Item::None);
    if !call.is_used(1) && !call.is_used(2) {
        return Ok(items);
    }
    let channels = call.out(1)?.dims.clone();
    let saved = if channels.iter().any(|d| d.as_int() == Some(0)) {
        let empty = ops::full(cx, 0.0, &channels, call.out(1)?.dtype)?;
        [empty, empty]
    } else {
        let x = batch_input(cx, call)?;
        let axes = axes_but_channels(cx, x);
        rounded_moments(cx, call, x, &axes)?
    };
    for (item, t) in items[1..].iter_mut().zip(saved) {
        *item = Item::Tensor(cx.reshape(t, &channels)?);
    }
    Ok(items)
}

/// [`native_batch_norm`] in training mode. Bytes that only a backward pass reads follow the saved
/// statistics.
fn batch_norm_with_update(cx: &mut Lower, call: &Call) -> Items {
    let reserved = ops::full(cx, 0.0, &call.out(3)?.dims.clone(), call.out(3)?.dtype)?;
    let mut inner = call.clone();
    inner.args.push(("training".to_owned(), crate::Arg::Bool(true)));
    inner.outputs.remove(3);
    let mut items = native_batch_norm(cx, &inner)?;
    items.insert(3, Item::Tensor(reserved));
    Ok(items)
}

/// Normalizes by statistics over each group of channels of each batch entry.
fn grouped(cx: &mut Lower, call: &Call, x: Tid, groups: Expr) -> Emitted {
    let dims = cx.spec(x).dims.to_vec();
    if dims.len() < 2 {
        return unsupported("an input without channels");
    }
    let Some(per_group) = ops::share(&dims[1], &groups) else {
        return unsupported(format!("{} channels in {groups} groups", dims[1]));
    };
    let flat = cx.reshape(x, &[dims[0].clone(), groups, per_group * ops::volume(&dims[2..])])?;
    let eps = call.float_or("eps", 1e-5)? as f32;
    let normed = cx.emit(LayerNorm { x: In(flat), out: NEW, weight: None, bias: None, eps })?;
    let y = cx.reshape(normed, &dims)?;
    affine(cx, call, y)
}

fn group_norm(cx: &mut Lower, call: &Call) -> Items {
    let x = wide_input(cx, call)?;
    one(grouped(cx, call, x, call.size("num_groups")?)?)
}

fn native_group_norm(cx: &mut Lower, call: &Call) -> Items {
    let x = wide_input(cx, call)?;
    let groups = call.size("group")?;
    let mut items = vec![Item::Tensor(grouped(cx, call, x, groups)?), Item::None, Item::None];
    if call.is_used(1) || call.is_used(2) {
        let dims = call.out(1)?.dims.clone();
        let numel = cx.spec(x).numel();
        let [n, g] = &dims[..] else { return unsupported("statistics of other than batch and groups") };
        let Some(rest) = ops::share(&numel, &(n.clone() * g.clone())) else { return unsupported("groups of unknown size") };
        let flat = cx.reshape(x, &[n.clone(), g.clone(), rest])?;
        let saved = moments(cx, flat, &[2], call.float_or("eps", 1e-5)?)?;
        for (item, t) in items[1..].iter_mut().zip(saved) {
            *item = Item::Tensor(cx.reshape(t, &dims)?);
        }
    }
    Ok(items)
}

fn instance_norm(cx: &mut Lower, call: &Call) -> Items {
    let x = batch_input(cx, call)?;
    if !call.bool_or("use_input_stats", true)? {
        return one(by_running_statistics(cx, call, x)?);
    }
    if statistics_type(cx, call)? != DType::F32 {
        let axes: Vec<usize> = (2..cx.spec(x).rank()).collect();
        return one(by_own_statistics(cx, call, x, &axes)?);
    }
    let channels = cx.spec(x).dims[1].clone();
    one(grouped(cx, call, x, channels)?)
}

/// `v * g / |v|`, with the length over every axis except `dim` (over all axes for -1).
fn weight_norm(cx: &mut Lower, call: &Call) -> Items {
    let v = cx.operand(call, "v", call.out(0)?.dtype)?;
    let g = cx.operand(call, "g", cx.spec(v).dtype)?;
    let kept = usize::try_from(call.int_or("dim", 0)?).ok();
    let axes: Vec<usize> = (0..cx.spec(v).rank()).filter(|&a| Some(a) != kept).collect();
    let weight = match (cx.graph().constant(v).cloned(), cx.graph().constant(g).cloned()) {
        (Some(v), Some(g)) => {
            let name = format!("{}_normed", v.name);
            let (dtype, shape) = (v.dtype, v.shape.clone());
            cx.constant(Constant { name, dtype, shape, expr: ConstExpr::Formula(Formula::WeightNorm { dim: kept }, vec![v, g]) })
        }
        _ => {
            let squares = ops::square(cx, v)?;
            let total = ops::sum(cx, squares, &axes, true)?;
            let length = ops::rsqrt(cx, total)?;
            let factor = ops::mul(cx, g, length)?;
            ops::mul(cx, v, factor)?
        }
    };
    if call.is_used(1) {
        return unsupported("the lengths themselves are used");
    }
    let mut items = vec![Item::Tensor(weight)];
    items.resize(call.outputs.len().max(1), Item::None);
    Ok(items)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._batch_norm_with_update.default", batch_norm_with_update),
    row("aten._native_batch_norm_legit.default", native_batch_norm),
    row("aten._native_batch_norm_legit.no_stats", native_batch_norm),
    row("aten._native_batch_norm_legit_functional.default", native_batch_norm),
    row("aten._native_batch_norm_legit_no_training.default", native_batch_norm),
    row("aten._weight_norm.default", weight_norm),
    row("aten._weight_norm_interface.default", weight_norm),
    row("aten.batch_norm.default", batch_norm),
    row("aten.group_norm.default", group_norm),
    row("aten.instance_norm.default", instance_norm),
    row("aten.native_batch_norm.default", native_batch_norm),
    row("aten.native_group_norm.default", native_group_norm),
];
