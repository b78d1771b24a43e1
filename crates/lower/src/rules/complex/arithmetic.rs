//! Sums, products, powers and exponentials of complex numbers.

use flambeau_ir::Tid;

use super::{Items, Operand, halves, mapped, ops, real_call, result, stack};
use crate::{Call, Lower, Refuse, call::unsupported};

pub(super) fn conjugate(cx: &mut Lower, pair: Tid) -> Result<Tid, Refuse> {
    let (re, im) = halves(cx, pair)?;
    let im = ops::neg(cx, im)?;
    stack(cx, re, im)
}

/// `length · (cos angle, sin angle)`.
pub(super) fn from_polar(cx: &mut Lower, length: Tid, angle: Tid) -> Result<Tid, Refuse> {
    let (cos, sin) = (ops::cos(cx, angle)?, ops::sin(cx, angle)?);
    let (re, im) = (ops::mul(cx, length, cos)?, ops::mul(cx, length, sin)?);
    stack(cx, re, im)
}

pub(super) fn exponential(cx: &mut Lower, pair: Tid) -> Result<Tid, Refuse> {
    let (re, im) = halves(cx, pair)?;
    let (dims, dtype) = (cx.spec(re).dims.to_vec(), cx.spec(re).dtype);
    let length = real_call(cx, "aten.exp.default", &[("self", re)], dims, dtype)?;
    from_polar(cx, length, im)
}

pub(super) fn logarithm(cx: &mut Lower, pair: Tid) -> Result<Tid, Refuse> {
    let (re, im) = halves(cx, pair)?;
    let (dims, dtype) = (cx.spec(re).dims.to_vec(), cx.spec(re).dtype);
    let length = real_call(cx, "aten.hypot.default", &[("self", re), ("other", im)], dims.clone(), dtype)?;
    let angle = real_call(cx, "aten.atan2.default", &[("self", im), ("other", re)], dims, dtype)?;
    let length = ops::log(cx, length)?;
    stack(cx, length, angle)
}

/// `a + weight · b`.
pub(super) fn added(cx: &mut Lower, a: Operand, b: Operand, weight: f64) -> Result<Tid, Refuse> {
    let (a, b) = (a.pair(cx)?, b.pair(cx)?);
    let b = ops::mul_number(cx, b, weight)?;
    ops::add(cx, a, b)
}

pub(super) fn sum(cx: &mut Lower, call: &Call, sign: f64) -> Items {
    let (a, b) = (Operand::of(cx, call, "self")?, Operand::of(cx, call, "other")?);
    let made = match (a, b, sign < 0.0 && call.arg("alpha").is_none()) {
        (Operand::Complex(a), Operand::Complex(b), true) => ops::sub(cx, a, b),
        _ => added(cx, a, b, sign * call.float_or("alpha", 1.0)?),
    };
    result(cx, call, made)
}

fn scaled(cx: &mut Lower, pair: Tid, by: Tid, f: fn(&mut Lower, Tid, Tid) -> Result<Tid, Refuse>) -> Result<Tid, Refuse> {
    let rank = cx.spec(by).rank();
    let by = cx.unsqueeze(by, rank)?;
    f(cx, pair, by)
}

pub(super) fn product(cx: &mut Lower, a: Operand, b: Operand) -> Result<Tid, Refuse> {
    match (a, b) {
        (Operand::Complex(a), Operand::Complex(b)) => {
            let ((ar, ai), (br, bi)) = (halves(cx, a)?, halves(cx, b)?);
            let (rr, ii) = (ops::mul(cx, ar, br)?, ops::mul(cx, ai, bi)?);
            let (ri, ir) = (ops::mul(cx, ar, bi)?, ops::mul(cx, ai, br)?);
            let (re, im) = (ops::sub(cx, rr, ii)?, ops::add(cx, ri, ir)?);
            stack(cx, re, im)
        }
        (Operand::Complex(z), Operand::Real(x)) | (Operand::Real(x), Operand::Complex(z)) => scaled(cx, z, x, ops::mul),
        (Operand::Real(a), Operand::Real(b)) => {
            let product = ops::mul(cx, a, b)?;
            Operand::Real(product).pair(cx)
        }
    }
}

pub(super) fn divided(cx: &mut Lower, a: Operand, b: Operand) -> Result<Tid, Refuse> {
    match b {
        Operand::Real(b) => {
            let a = a.pair(cx)?;
            scaled(cx, a, b, ops::div)
        }
        Operand::Complex(b) => {
            let (re, im) = halves(cx, b)?;
            let (re, im) = (ops::square(cx, re)?, ops::square(cx, im)?);
            let length = ops::add(cx, re, im)?;
            let conjugated = conjugate(cx, b)?;
            let above = product(cx, a, Operand::Complex(conjugated))?;
            scaled(cx, above, length, ops::div)
        }
    }
}

pub(super) fn quotient(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = (Operand::of(cx, call, "self")?, Operand::of(cx, call, "other")?);
    let made = divided(cx, a, b);
    result(cx, call, made)
}

pub(super) fn power(cx: &mut Lower, call: &Call) -> Items {
    if call.float_or("exponent", 0.0).ok() != Some(2.0) {
        return unsupported("a power of complex numbers other than the second");
    }
    mapped(cx, call, |cx, x| product(cx, Operand::Complex(x), Operand::Complex(x)))
}
