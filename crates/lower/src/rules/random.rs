//! Random numbers with PyTorch's distributions, but not its sequences.

use flambeau_ir::{RandomBits, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// The largest f32 below 1.
const BELOW_ONE: f64 = 1.0 - 1.0 / (1 << 24) as f64;

/// Uniform floats in `[0, 1)` from 32 random bits each.
pub(super) fn uniform_from_bits(cx: &mut Lower, bits: Tid) -> Emitted {
    let wide = cx.cast(bits, DType::F32)?;
    let part = ops::div_number(cx, wide, f64::from(u32::MAX))?;
    let top = cx.number(BELOW_ONE, DType::F32)?;
    ops::minimum(cx, part, top)
}

fn uniform(cx: &mut Lower, dims: &[Expr]) -> Emitted {
    let shape = cx.ints(dims)?;
    let bits = cx.emit(RandomBits { out: NEW, shape, seed: None, width: 4 })?;
    uniform_from_bits(cx, bits)
}

fn rand(cx: &mut Lower, call: &Call) -> Items {
    one(uniform(cx, &call.out(0)?.dims.clone())?)
}

fn randn(cx: &mut Lower, call: &Call) -> Items {
    one(standard_normal(cx, &call.out(0)?.dims.clone())?)
}

/// Box-Muller transform of two uniform numbers.
fn standard_normal(cx: &mut Lower, dims: &[Expr]) -> Emitted {
    let (a, b) = (uniform(cx, dims)?, uniform(cx, dims)?);
    // 1 - u is never 0.
    let a = ops::number_minus(cx, 1.0, a)?;
    let log = ops::log(cx, a)?;
    let log = ops::mul_number(cx, log, -2.0)?;
    let radius = ops::sqrt(cx, log)?;
    let angle = ops::mul_number(cx, b, std::f64::consts::TAU)?;
    let cos = ops::cos(cx, angle)?;
    ops::mul(cx, radius, cos)
}

/// A parameter of a distribution, in f32.
fn parameter(cx: &mut Lower, call: &Call, name: &str, default: f64) -> Emitted {
    if call.arg(name).is_some() { cx.operand(call, name, DType::F32) } else { cx.number(default, DType::F32) }
}

/// Uniform floats in `[from, to)`.
fn uniform_between(cx: &mut Lower, call: &Call) -> Items {
    let (from, to) = (parameter(cx, call, "from", 0.0)?, parameter(cx, call, "to", 1.0)?);
    let u = uniform(cx, &call.out(0)?.dims.clone())?;
    let width = ops::sub(cx, to, from)?;
    let way = ops::mul(cx, u, width)?;
    one(ops::add(cx, from, way)?)
}

/// Normal numbers with the given mean and deviation.
fn normal(cx: &mut Lower, call: &Call) -> Items {
    let (mean, deviation) = (parameter(cx, call, "mean", 0.0)?, parameter(cx, call, "std", 1.0)?);
    let z = standard_normal(cx, &call.out(0)?.dims.clone())?;
    let way = ops::mul(cx, z, deviation)?;
    one(ops::add(cx, mean, way)?)
}

/// `-ln(1 - u) / lambd`.
fn exponential(cx: &mut Lower, call: &Call) -> Items {
    let rate = parameter(cx, call, "lambd", 1.0)?;
    let u = uniform(cx, &call.out(0)?.dims.clone())?;
    let rest = ops::number_minus(cx, 1.0, u)?;
    let log = ops::log(cx, rest)?;
    let way = ops::neg(cx, log)?;
    one(ops::div(cx, way, rate)?)
}

fn bernoulli(cx: &mut Lower, call: &Call) -> Items {
    let chance = match call.arg("p") {
        Some(_) => cx.operand(call, "p", DType::F32)?,
        None => cx.operand(call, "self", DType::F32)?,
    };
    let u = uniform(cx, &call.out(0)?.dims.clone())?;
    one(ops::lt(cx, u, chance)?)
}

/// Random integers in `[low, high)`.
fn randint(cx: &mut Lower, call: &Call) -> Items {
    let (low, high) = (call.int_or("low", 0)?, call.int("high")?);
    let span = high.saturating_sub(low);
    if !(1..=1 << 24).contains(&span) {
        return unsupported(format!("random integers over a range of {span}"));
    }
    let u = uniform(cx, &call.out(0)?.dims.clone())?;
    let scaled = ops::mul_number(cx, u, span as f64)?;
    let whole = cx.cast(scaled, DType::I64)?;
    one(ops::add_number(cx, whole, low as f64)?)
}

fn randperm(cx: &mut Lower, call: &Call) -> Items {
    let u = uniform(cx, &call.out(0)?.dims.clone())?;
    one(ops::argsort(cx, u, 0)?)
}

/// Dropout in evaluation mode, or with `p` 0 or 1. Training mode drops random elements and is
/// refused.
fn dropout(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("input")?;
    match call.float_or("p", 0.5)? {
        _ if !call.bool_or("train", true)? => one(x),
        0.0 => one(x),
        1.0 => {
            let zero = ops::number_like(cx, x, 0.0)?;
            one(ops::mul(cx, x, zero)?)
        }
        _ => unsupported(TRAINING_DROPOUT),
    }
}

/// Reason for refusing dropout in training mode, and an alternative.
pub(super) const TRAINING_DROPOUT: &str =
    "dropout in training mode gives random results; call `model.eval()` before the export, or pass `training=False`";

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.alpha_dropout.default", dropout),
    row("aten.bernoulli.Tensor", bernoulli),
    row("aten.bernoulli.default", bernoulli),
    row("aten.bernoulli.p", bernoulli),
    row("aten.dropout.default", dropout),
    row("aten.exponential.default", exponential),
    row("aten.feature_alpha_dropout.default", dropout),
    row("aten.feature_dropout.default", dropout),
    row("aten.native_dropout.default", |cx, call| {
        if call.is_used(1) {
            return unsupported("the mask of a dropout is used");
        }
        let mut items = dropout(cx, call)?;
        items.push(Item::None);
        Ok(items)
    }),
    row("aten.normal.Tensor_Tensor", normal),
    row("aten.normal.Tensor_float", normal),
    row("aten.normal.float_Tensor", normal),
    row("aten.normal.float_float", normal),
    row("aten.normal_functional.default", normal),
    row("aten.rand.default", rand),
    row("aten.rand_like.default", rand),
    row("aten.randint.default", randint),
    row("aten.randint.low", randint),
    row("aten.randint_like.default", randint),
    row("aten.randint_like.low_dtype", randint),
    row("aten.randn.default", randn),
    row("aten.randn_like.default", randn),
    row("aten.randperm.default", randperm),
    row("aten.uniform.default", uniform_between),
];
