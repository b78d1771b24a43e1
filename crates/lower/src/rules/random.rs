//! Random numbers. They have PyTorch's distributions, not its sequences.

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

/// Box and Muller's transform of two uniform numbers.
fn randn(cx: &mut Lower, call: &Call) -> Items {
    let dims = call.out(0)?.dims.clone();
    let (a, b) = (uniform(cx, &dims)?, uniform(cx, &dims)?);
    // 1 - u is never 0.
    let a = ops::number_minus(cx, 1.0, a)?;
    let log = ops::log(cx, a)?;
    let log = ops::mul_number(cx, log, -2.0)?;
    let radius = ops::sqrt(cx, log)?;
    let angle = ops::mul_number(cx, b, std::f64::consts::TAU)?;
    let cos = ops::cos(cx, angle)?;
    one(ops::mul(cx, radius, cos)?)
}

fn bernoulli(cx: &mut Lower, call: &Call) -> Items {
    let chance = match call.arg("p") {
        Some(_) => cx.operand(call, "p", DType::F32)?,
        None => cx.operand(call, "self", DType::F32)?,
    };
    let u = uniform(cx, &call.out(0)?.dims.clone())?;
    one(ops::lt(cx, u, chance)?)
}

/// Integers from `low` up to `high`.
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

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.bernoulli.default", bernoulli),
    row("aten.bernoulli.p", bernoulli),
    row("aten.rand.default", rand),
    row("aten.rand_like.default", rand),
    row("aten.randint.default", randint),
    row("aten.randint.low", randint),
    row("aten.randint_like.default", randint),
    row("aten.randint_like.low_dtype", randint),
    row("aten.randn.default", randn),
    row("aten.randn_like.default", randn),
    row("aten.randperm.default", randperm),
];
