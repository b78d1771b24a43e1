//! Losses, which some models return with their results.

use flambeau_ir::{Exp, In, Log1p, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow,
    elementwise::promoted,
    one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Reduces the elements to their mean or sum, or returns them unreduced.
pub(super) fn reduced(cx: &mut Lower, call: &Call, elements: Tid) -> Emitted {
    match call.int_or("reduction", 1)? {
        0 => Ok(elements),
        1 => ops::mean(cx, elements, &[], false),
        2 => ops::sum(cx, elements, &[], false),
        other => unsupported(format!("reduction {other}")),
    }
}

fn pair(cx: &mut Lower, call: &Call) -> Result<(Tid, Tid), Refuse> {
    let dtype = call.out(0)?.dtype;
    Ok((cx.operand(call, "self", dtype)?, cx.operand(call, "target", dtype)?))
}

fn mse(cx: &mut Lower, call: &Call) -> Items {
    let (x, target) = pair(cx, call)?;
    let apart = ops::sub(cx, x, target)?;
    let squares = ops::square(cx, apart)?;
    one(reduced(cx, call, squares)?)
}

fn l1(cx: &mut Lower, call: &Call) -> Items {
    let (x, target) = pair(cx, call)?;
    let apart = ops::sub(cx, x, target)?;
    let apart = ops::abs(cx, apart)?;
    one(reduced(cx, call, apart)?)
}

/// A parabola up to `bound`, a line beyond. `huber` multiplies both by `bound`, as PyTorch's Huber
/// loss does.
fn rounded_l1(cx: &mut Lower, call: &Call, bound: f64, huber: bool) -> Items {
    let (x, target) = pair(cx, call)?;
    let apart = ops::sub(cx, x, target)?;
    let apart = ops::abs(cx, apart)?;
    if bound == 0.0 && !huber {
        return one(reduced(cx, call, apart)?);
    }
    let squares = ops::square(cx, apart)?;
    let parabola = ops::mul_number(cx, squares, if huber { 0.5 } else { 0.5 / bound })?;
    let shifted = ops::add_number(cx, apart, -0.5 * bound)?;
    let line = if huber { ops::mul_number(cx, shifted, bound)? } else { shifted };
    let bound = ops::number_like(cx, apart, bound)?;
    let near = if huber { ops::le(cx, apart, bound)? } else { ops::lt(cx, apart, bound)? };
    let elements = ops::select(cx, near, parabola, line)?;
    one(reduced(cx, call, elements)?)
}

fn smooth_l1(cx: &mut Lower, call: &Call) -> Items {
    rounded_l1(cx, call, call.float_or("beta", 1.0)?, false)
}

fn huber(cx: &mut Lower, call: &Call) -> Items {
    rounded_l1(cx, call, call.float_or("delta", 1.0)?, true)
}

/// `target (ln(target) - x)`, or `e^target (target - x)` for a target given as a logarithm.
fn kl_div(cx: &mut Lower, call: &Call) -> Items {
    let (x, target) = pair(cx, call)?;
    if call.bool_or("log_target", false)? {
        let apart = ops::sub(cx, target, x)?;
        let weight = cx.emit(Exp { x: In(target), out: NEW })?;
        let elements = ops::mul(cx, weight, apart)?;
        return one(reduced(cx, call, elements)?);
    }
    let zero = ops::number_like(cx, target, 0.0)?;
    let log = ops::log(cx, target)?;
    let own = ops::mul(cx, target, log)?;
    let none = ops::eq(cx, target, zero)?;
    let own = ops::select(cx, none, zero, own)?;
    let cross = ops::mul(cx, target, x)?;
    let elements = ops::sub(cx, own, cross)?;
    one(reduced(cx, call, elements)?)
}

/// `ln(1 + e^(-target x))`; infinite where the power overflows, as in PyTorch.
fn soft_margin(cx: &mut Lower, call: &Call) -> Items {
    let (x, target) = pair(cx, call)?;
    let product = ops::mul(cx, x, target)?;
    let negative = ops::neg(cx, product)?;
    let power = cx.emit(Exp { x: In(negative), out: NEW })?;
    let elements = cx.emit(Log1p { x: In(power), out: NEW })?;
    one(reduced(cx, call, elements)?)
}

fn weighted(cx: &mut Lower, call: &Call, elements: Tid) -> Emitted {
    match call.arg("weight") {
        Some(_) => {
            let weight = cx.operand(call, "weight", cx.spec(elements).dtype)?;
            ops::mul(cx, elements, weight)
        }
        None => Ok(elements),
    }
}

/// `-(y ln(x) + (1 - y) ln(1 - x))`, with logarithms clipped at -100.
fn binary_cross_entropy(cx: &mut Lower, call: &Call) -> Items {
    let (x, target) = pair(cx, call)?;
    let floor = ops::number_like(cx, x, -100.0)?;
    let (rest, unlikely) = (ops::number_minus(cx, 1.0, x)?, ops::number_minus(cx, 1.0, target)?);
    let (hit, miss) = (ops::log(cx, x)?, ops::log(cx, rest)?);
    let (hit, miss) = (ops::maximum(cx, hit, floor)?, ops::maximum(cx, miss, floor)?);
    let (a, b) = (ops::mul(cx, target, hit)?, ops::mul(cx, unlikely, miss)?);
    let sum = ops::add(cx, a, b)?;
    let elements = ops::neg(cx, sum)?;
    let elements = weighted(cx, call, elements)?;
    one(reduced(cx, call, elements)?)
}

/// `(1 - y) x + (1 + (p - 1) y) ln(1 + e^-x)`.
fn binary_cross_entropy_with_logits(cx: &mut Lower, call: &Call) -> Items {
    let (x, target) = pair(cx, call)?;
    let negative = ops::neg(cx, x)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    let mut soft = ops::logaddexp(cx, negative, zero)?;
    if call.arg("pos_weight").is_some() {
        let weight = cx.operand(call, "pos_weight", cx.spec(x).dtype)?;
        let excess = ops::add_number(cx, weight, -1.0)?;
        let scale = ops::mul(cx, excess, target)?;
        let scale = ops::add_number(cx, scale, 1.0)?;
        soft = ops::mul(cx, soft, scale)?;
    }
    let unlikely = ops::number_minus(cx, 1.0, target)?;
    let line = ops::mul(cx, unlikely, x)?;
    let elements = ops::add(cx, line, soft)?;
    let elements = weighted(cx, call, elements)?;
    one(reduced(cx, call, elements)?)
}

/// The target's class at each entry, and the weight of this class, 0 for an ignored target.
fn class_weights(cx: &mut Lower, call: &Call, target: Tid, dtype: DType) -> Result<(Tid, Tid), Refuse> {
    let ignored = ops::number_like(cx, target, call.int_or("ignore_index", -100)? as f64)?;
    let counts = ops::ne(cx, target, ignored)?;
    let zero = ops::number_like(cx, target, 0.0)?;
    let class = ops::select(cx, counts, target, zero)?;
    let weight = match call.arg("weight") {
        Some(_) => {
            let weight = cx.operand(call, "weight", dtype)?;
            let own = ops::take(cx, weight, class, 0)?;
            let none = ops::number_like(cx, own, 0.0)?;
            ops::select(cx, counts, own, none)?
        }
        None => cx.cast(counts, dtype)?,
    };
    Ok((class, weight))
}

/// Reduces elements; the mean divides by the sum of the weights.
fn weighted_mean(cx: &mut Lower, call: &Call, elements: Tid, weights: Tid) -> Emitted {
    if call.int_or("reduction", 1)? != 1 {
        return reduced(cx, call, elements);
    }
    let (total, weight) = (ops::sum(cx, elements, &[], false)?, ops::sum(cx, weights, &[], false)?);
    ops::div(cx, total, weight)
}

/// `-weight[target] x[target]` over the class axis: the first axis for a single entry, else the
/// second.
fn nll_of(cx: &mut Lower, call: &Call, x: Tid, target: Tid) -> Result<(Tid, Tid), Refuse> {
    let axis = usize::from(cx.spec(x).rank() > 1);
    let (class, weights) = class_weights(cx, call, target, cx.spec(x).dtype)?;
    let index = cx.unsqueeze(class, axis)?;
    let found = ops::take_along(cx, x, index, axis)?;
    let dims = cx.spec(weights).dims.to_vec();
    let found = cx.reshape(found, &dims)?;
    let cost = ops::mul(cx, found, weights)?;
    Ok((ops::neg(cx, cost)?, weights))
}

fn nll(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "self", call.out(0)?.dtype)?;
    let (elements, weights) = nll_of(cx, call, x, call.tensor("target")?)?;
    let mut items = vec![Item::Tensor(weighted_mean(cx, call, elements, weights)?)];
    if call.outputs.len() > 1 {
        items.push(Item::Tensor(match call.int_or("reduction", 1)? {
            0 => ops::number_like(cx, x, 0.0)?,
            _ => ops::sum(cx, weights, &[], false)?,
        }));
    }
    Ok(items)
}

fn cross_entropy(cx: &mut Lower, call: &Call) -> Items {
    let x = cx.operand(call, "self", call.out(0)?.dtype)?;
    one(cross_entropy_of(cx, call, x)?)
}

/// The cross-entropy of logits `x` with the call's targets.
pub(super) fn cross_entropy_of(cx: &mut Lower, call: &Call, x: Tid) -> Emitted {
    let axis = usize::from(cx.spec(x).rank() > 1);
    // The logarithm cancels digits, so halves are computed in f32.
    let (dtype, wide) = (cx.spec(x).dtype, cx.cast(x, ops::wide(cx.spec(x).dtype))?);
    let logs = ops::log_softmax(cx, wide, axis)?;
    let logs = cx.cast(logs, dtype)?;
    let (target, smoothing) = (call.tensor("target")?, call.float_or("label_smoothing", 0.0)?);
    if cx.spec(target).dtype.is_float() {
        return soft_targets(cx, call, logs, target, axis, smoothing);
    }
    let (elements, weights) = nll_of(cx, call, logs, target)?;
    let hard = weighted_mean(cx, call, elements, weights)?;
    if smoothing == 0.0 {
        return Ok(hard);
    }
    let classes = cx.spec(x).dims[axis].clone();
    let Some(n) = classes.as_int() else { return unsupported(format!("label smoothing over {classes} classes")) };
    let spread = class_costs(cx, call, logs, axis)?;
    let spread = ops::sum(cx, spread, &[axis], false)?;
    let counted = class_weights(cx, &without_weight(call), target, cx.spec(x).dtype)?.1;
    let spread = ops::mul(cx, spread, counted)?;
    let spread = ops::neg(cx, spread)?;
    let spread = weighted_mean(cx, call, spread, weights)?;
    let hard = ops::mul_number(cx, hard, 1.0 - smoothing)?;
    let soft = ops::mul_number(cx, spread, smoothing / n as f64)?;
    ops::add(cx, hard, soft)
}

fn without_weight(call: &Call) -> Call {
    let mut call = call.clone();
    call.args.retain(|(name, _)| name != "weight");
    call
}

/// Logarithms times the weights of their classes.
fn class_costs(cx: &mut Lower, call: &Call, logs: Tid, axis: usize) -> Emitted {
    if call.arg("weight").is_none() {
        return Ok(logs);
    }
    let weight = cx.operand(call, "weight", cx.spec(logs).dtype)?;
    let weight = ops::along(cx, weight, axis, cx.spec(logs).rank())?;
    ops::mul(cx, logs, weight)
}

/// Targets given as class probabilities; the mean divides by the number of entries.
fn soft_targets(cx: &mut Lower, call: &Call, logs: Tid, target: Tid, axis: usize, smoothing: f64) -> Emitted {
    let mut target = cx.cast(target, cx.spec(logs).dtype)?;
    if smoothing > 0.0 {
        let classes = cx.spec(logs).dims[axis].clone();
        let Some(n) = classes.as_int() else { return unsupported(format!("label smoothing over {classes} classes")) };
        let kept = ops::mul_number(cx, target, 1.0 - smoothing)?;
        target = ops::add_number(cx, kept, smoothing / n as f64)?;
    }
    let costs = class_costs(cx, call, logs, axis)?;
    let products = ops::mul(cx, costs, target)?;
    let sums = ops::sum(cx, products, &[axis], false)?;
    let elements = ops::neg(cx, sums)?;
    reduced(cx, call, elements)
}

/// Stirling's approximation of `ln(target!)`; 0 for targets up to 1.
fn stirling(cx: &mut Lower, target: Tid) -> Emitted {
    let (zero, unit) = (ops::number_like(cx, target, 0.0)?, ops::number_like(cx, target, 1.0)?);
    let log = ops::log(cx, target)?;
    let power = ops::mul(cx, target, log)?;
    let apart = ops::sub(cx, power, target)?;
    let scaled = ops::mul_number(cx, target, std::f64::consts::TAU)?;
    let log = ops::log(cx, scaled)?;
    let half = ops::mul_number(cx, log, 0.5)?;
    let term = ops::add(cx, apart, half)?;
    let counts = ops::gt(cx, target, unit)?;
    ops::select(cx, counts, term, zero)
}

/// `e^x - target x` or `x - target ln(x + eps)`, plus Stirling's term on request.
fn poisson_nll(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (x, target) = (cx.operand(call, "input", dtype)?, cx.operand(call, "target", dtype)?);
    let (rate, log) = if call.bool_or("log_input", true)? {
        (cx.emit(Exp { x: In(x), out: NEW })?, x)
    } else {
        let shifted = ops::add_number(cx, x, call.float_or("eps", 1e-8)?)?;
        (x, ops::log(cx, shifted)?)
    };
    let cross = ops::mul(cx, target, log)?;
    let mut elements = ops::sub(cx, rate, cross)?;
    if call.bool_or("full", false)? {
        let term = stirling(cx, target)?;
        elements = ops::add(cx, elements, term)?;
    }
    one(reduced(cx, call, elements)?)
}

/// `max(0, margin - target (a - b))`. The product has the operands' type, so integers wrap before
/// the margin is added.
fn margin_ranking(cx: &mut Lower, call: &Call) -> Items {
    let params = ["input1", "input2", "target"];
    let dtype = promoted(cx, call, &params)?;
    let [a, b, target] = params.map(|p| cx.operand(call, p, dtype));
    let apart = ops::sub(cx, b?, a?)?;
    let signed = ops::mul(cx, target?, apart)?;
    let signed = cx.cast(signed, call.out(0)?.dtype)?;
    let short = ops::add_number(cx, signed, call.float_or("margin", 0.0)?)?;
    let zero = ops::number_like(cx, short, 0.0)?;
    let elements = ops::maximum(cx, short, zero)?;
    one(reduced(cx, call, elements)?)
}

/// Tensors broadcast to their common shape.
fn broadcast_tensors(cx: &mut Lower, call: &Call) -> Items {
    let dims: Vec<Vec<Expr>> = call.outputs.iter().map(|o| o.dims.clone()).collect();
    let tensors = call.tensors("tensors")?;
    let spread = tensors.into_iter().zip(dims).map(|(t, dims)| super::shape::expand_to(cx, t, &dims));
    Ok(vec![Item::Tensors(spread.collect::<Result<_, _>>()?)])
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.binary_cross_entropy.default", binary_cross_entropy),
    row("aten.binary_cross_entropy_with_logits.default", binary_cross_entropy_with_logits),
    row("aten.broadcast_tensors.default", broadcast_tensors),
    row("aten.cross_entropy_loss.default", cross_entropy),
    row("aten.huber_loss.default", huber),
    row("aten.kl_div.default", kl_div),
    row("aten.l1_loss.default", l1),
    row("aten.margin_ranking_loss.default", margin_ranking),
    row("aten.mse_loss.default", mse),
    row("aten.nll_loss.default", nll),
    row("aten.nll_loss2d.default", nll),
    row("aten.nll_loss2d_forward.default", nll),
    row("aten.nll_loss_forward.default", nll),
    row("aten.nll_loss_nd.default", nll),
    row("aten.poisson_nll_loss.default", poisson_nll),
    row("aten.smooth_l1_loss.default", smooth_l1),
    row("aten.soft_margin_loss.default", soft_margin),
];
