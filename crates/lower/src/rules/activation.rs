//! Activation functions.

use flambeau_ir::{Clip, Gelu, In, Silu, Tid};
use flambeau_tensor::Expr;

use super::{
    RuleRow,
    arithmetic::bounded,
    one,
    ops::{self, Emitted},
    row,
};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Above this, `ln(1 + e^x)` and `x` are the same f32.
const SOFTPLUS_IS_LINEAR: f64 = 18.0;

/// The argument `self` in the result's type.
pub(super) fn input(cx: &mut Lower, call: &Call) -> Emitted {
    cx.operand(call, "self", call.out(0)?.dtype)
}

fn hardtanh(cx: &mut Lower, call: &Call) -> Items {
    // Absent bounds take the operator's defaults.
    let mut call = call.clone();
    for (param, default) in [("min_val", -1.0), ("max_val", 1.0)] {
        if call.arg(param).is_none() {
            call.args.push((param.to_owned(), Arg::Float(default)));
        }
    }
    bounded(cx, &call, ["min_val", "max_val"])
}

fn relu6(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    one(ops::clip(cx, x, 0.0, 6.0)?)
}

fn relu(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let zero = ops::number_like(cx, x, 0.0)?;
    one(ops::maximum(cx, x, zero)?)
}

/// `x` where it is positive, `slope * x` elsewhere.
fn leaky(cx: &mut Lower, x: Tid, slope: f64) -> Emitted {
    let scaled = ops::mul_number(cx, x, slope)?;
    if 0.0 < slope && slope <= 1.0 {
        return ops::maximum(cx, x, scaled);
    }
    let zero = ops::number_like(cx, x, 0.0)?;
    let positive = ops::ge(cx, x, zero)?;
    ops::select(cx, positive, x, scaled)
}

fn leaky_relu(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    one(leaky(cx, x, call.float_or("negative_slope", 0.01)?)?)
}

/// In inference the slope is the middle of its range.
fn rrelu(cx: &mut Lower, call: &Call) -> Items {
    if call.bool_or("training", false)? {
        return unsupported("random slopes in training mode");
    }
    let x = input(cx, call)?;
    let (lower, upper) = (call.float_or("lower", 1.0 / 8.0)?, call.float_or("upper", 1.0 / 3.0)?);
    one(leaky(cx, x, (lower + upper) / 2.0)?)
}

/// The functional form also returns the noise, which inference leaves as it is.
fn functional_rrelu(cx: &mut Lower, call: &Call) -> Items {
    let mut items = rrelu(cx, call)?;
    items.push(Item::Tensor(call.tensor("noise")?));
    Ok(items)
}

fn gelu(cx: &mut Lower, call: &Call) -> Items {
    let approximate = call.str_or("approximate", "none")?.to_owned();
    one(cx.emit(Gelu { x: In(call.tensor("self")?), out: NEW, approximate })?)
}

fn silu(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    one(cx.emit(Silu { x: In(x), out: NEW })?)
}

/// `x > 0 ? scale * x : alpha * scale * (e^(input_scale * x) - 1)`.
fn elu_of(cx: &mut Lower, x: Tid, alpha: f64, scale: f64, input_scale: f64) -> Items {
    let zero = ops::number_like(cx, x, 0.0)?;
    let positive = ops::gt(cx, x, zero)?;
    let inner = ops::mul_number(cx, x, input_scale)?;
    let curve = ops::expm1(cx, inner)?;
    let curve = ops::mul_number(cx, curve, alpha * scale)?;
    let line = ops::mul_number(cx, x, scale)?;
    one(ops::select(cx, positive, line, curve)?)
}

fn elu(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    elu_of(cx, x, call.float_or("alpha", 1.0)?, call.float_or("scale", 1.0)?, call.float_or("input_scale", 1.0)?)
}

fn selu(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    elu_of(cx, x, 1.673_263_242_354_377_2, 1.050_700_987_355_480_5, 1.0)
}

fn celu(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let alpha = call.float_or("alpha", 1.0)?;
    elu_of(cx, x, alpha, 1.0, 1.0 / alpha)
}

/// `min(max(x + 3, 0), 6)`.
fn hard_ramp(cx: &mut Lower, x: Tid) -> Emitted {
    let shifted = ops::add_number(cx, x, 3.0)?;
    ops::clip(cx, shifted, 0.0, 6.0)
}

fn hardsigmoid(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let ramp = hard_ramp(cx, x)?;
    one(ops::div_number(cx, ramp, 6.0)?)
}

fn hardswish(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let ramp = hard_ramp(cx, x)?;
    let product = ops::mul(cx, x, ramp)?;
    one(ops::div_number(cx, product, 6.0)?)
}

/// `ln(1 + e^x)`.
fn softplus_of(cx: &mut Lower, x: Tid) -> Emitted {
    let zero = ops::number_like(cx, x, 0.0)?;
    ops::logaddexp(cx, x, zero)
}

fn softplus(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let (beta, threshold) = (call.float_or("beta", 1.0)?, call.float_or("threshold", 20.0)?);
    let scaled = ops::mul_number(cx, x, beta)?;
    let curve = softplus_of(cx, scaled)?;
    let curve = ops::div_number(cx, curve, beta)?;
    if threshold >= SOFTPLUS_IS_LINEAR {
        return one(curve);
    }
    let threshold = ops::number_like(cx, x, threshold)?;
    let linear = ops::gt(cx, scaled, threshold)?;
    one(ops::select(cx, linear, x, curve)?)
}

fn mish(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let soft = softplus_of(cx, x)?;
    let gate = ops::tanh(cx, soft)?;
    one(ops::mul(cx, x, gate)?)
}

fn log_sigmoid(cx: &mut Lower, call: &Call) -> Items {
    if call.is_used(1) {
        return unsupported("the buffer that only a backward pass needs is used");
    }
    let x = input(cx, call)?;
    let negative = ops::neg(cx, x)?;
    let soft = softplus_of(cx, negative)?;
    one(ops::neg(cx, soft)?)
}

fn hardshrink(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let (zero, bound) = (ops::number_like(cx, x, 0.0)?, ops::number_like(cx, x, call.float_or("lambd", 0.5)?)?);
    let magnitude = ops::abs(cx, x)?;
    let small = ops::le(cx, magnitude, bound)?;
    one(ops::select(cx, small, zero, x)?)
}

/// The part of `x` outside `-lambd..lambd`: `x` minus `x` clipped to that range.
fn softshrink(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let bound = call.float_or("lambd", 0.5)?;
    let band = ops::clip(cx, x, -bound, bound)?;
    one(ops::sub(cx, x, band)?)
}

fn threshold(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let bound = cx.operand(call, "threshold", cx.spec(x).dtype)?;
    let value = cx.operand(call, "value", cx.spec(x).dtype)?;
    let below = ops::le(cx, x, bound)?;
    one(ops::select(cx, below, value, x)?)
}

fn glu(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let axis = cx.axis(call, "dim", -1, cx.spec(x).rank())?;
    let [a, b] = ops::split_evenly(cx, x, 2, axis)?[..] else { return unsupported("a split into two parts") };
    let gate = ops::sigmoid(cx, b)?;
    one(ops::mul(cx, a, gate)?)
}

/// One slope for all elements, or one per index of axis 1.
fn prelu(cx: &mut Lower, call: &Call) -> Items {
    let x = input(cx, call)?;
    let rank = cx.spec(x).rank();
    let weight = cx.operand(call, "weight", cx.spec(x).dtype)?;
    let weight = match (cx.spec(weight).numel() == Expr::Int(1), cx.spec(weight).rank()) {
        (true, _) => cx.reshape(weight, &[])?,
        (false, 1) if rank >= 2 => ops::along(cx, weight, 1, rank)?,
        _ => weight,
    };
    let zero = ops::number_like(cx, x, 0.0)?;
    let positive = ops::gt(cx, x, zero)?;
    let scaled = ops::mul(cx, x, weight)?;
    one(ops::select(cx, positive, x, scaled)?)
}

/// `ln(x / (1 - x))`, with `x` clipped to `eps..1 - eps`.
fn logit(cx: &mut Lower, call: &Call) -> Items {
    let mut x = input(cx, call)?;
    if let Some(eps) = call.float_opt("eps")?.filter(|&e| e >= 0.0) {
        let (low, high) = (ops::number_like(cx, x, eps)?, ops::number_like(cx, x, 1.0 - eps)?);
        let whole = x;
        x = cx.emit(Clip { x: In(x), out: NEW, a_min: Some(In(low)), a_max: Some(In(high)) })?;
        if eps > 0.5 {
            // `eps` is above 0.5 here, so the bounds are swapped; PyTorch tests the lower bound
            // first.
            let below = ops::lt(cx, whole, low)?;
            x = ops::select(cx, below, low, x)?;
        }
    }
    let rest = ops::number_minus(cx, 1.0, x)?;
    let odds = ops::div(cx, x, rest)?;
    one(ops::log(cx, odds)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._prelu_kernel.default", prelu),
    row("aten.celu.default", celu),
    row("aten.elu.default", elu),
    row("aten.gelu.default", gelu),
    row("aten.glu.default", glu),
    row("aten.hardshrink.default", hardshrink),
    row("aten.hardsigmoid.default", hardsigmoid),
    row("aten.hardswish.default", hardswish),
    row("aten.hardtanh.default", hardtanh),
    row("aten.leaky_relu.default", leaky_relu),
    row("aten.log_sigmoid.default", log_sigmoid),
    row("aten.log_sigmoid_forward.default", log_sigmoid),
    row("aten.logit.default", logit),
    row("aten.mish.default", mish),
    row("aten.prelu.default", prelu),
    row("aten.relu.default", relu),
    row("aten.relu6.default", relu6),
    row("aten.rrelu.default", rrelu),
    row("aten.rrelu_with_noise.default", rrelu),
    row("aten.rrelu_with_noise_functional.default", functional_rrelu),
    row("aten.selu.default", selu),
    row("aten.silu.default", silu),
    row("aten.softplus.default", softplus),
    row("aten.softshrink.default", softshrink),
    row("aten.special_logit.default", logit),
    row("aten.threshold.default", threshold),
];
