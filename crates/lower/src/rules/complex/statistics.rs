//! Variances, norms and predicates of complex numbers, whose results are real.

use super::{Items, first, halves, ops, real_call};
use crate::{Arg, Call, Item, Lower, OutMeta, Refuse, call::unsupported};
use flambeau_ir::Tid;

/// A call of one operand with a real result, on the tensor `x`.
fn real(cx: &mut Lower, call: &Call, target: String, x: Tid) -> Result<Tid, Refuse> {
    let mut inner = Call { target, args: call.args.clone(), outputs: vec![OutMeta { used: true, ..call.out(0)?.clone() }] };
    inner.args.retain(|(name, _)| name != "dtype");
    inner.args.iter_mut().filter(|(name, _)| name == "self").for_each(|(_, arg)| *arg = Arg::Tensor(x));
    match cx.inner_call(&inner)?.first() {
        Some(Item::Tensor(t)) => Ok(*t),
        _ => unsupported("it has no tensor result"),
    }
}

/// The sum of the variances of both parts.
fn variance(cx: &mut Lower, call: &Call) -> Result<Tid, Refuse> {
    let pair = first(cx, call)?;
    let (re, im) = halves(cx, pair)?;
    let target = call.target.replacen("aten.std", "aten.var", 1);
    let (re, im) = (real(cx, call, target.clone(), re)?, real(cx, call, target, im)?);
    ops::add(cx, re, im)
}

/// A predicate of both parts, joined by `join`.
pub(super) fn of_parts(cx: &mut Lower, call: &Call, join: fn(&mut Lower, Tid, Tid) -> Result<Tid, Refuse>) -> Items {
    let pair = first(cx, call)?;
    let (re, im) = halves(cx, pair)?;
    let (re, im) = (real(cx, call, call.target.clone(), re)?, real(cx, call, call.target.clone(), im)?);
    Ok(vec![Item::Tensor(join(cx, re, im)?)])
}

/// Whether the imaginary part is zero.
pub(super) fn is_real(cx: &mut Lower, call: &Call) -> Items {
    let pair = first(cx, call)?;
    let (_, im) = halves(cx, pair)?;
    let zero = ops::number_like(cx, im, 0.0)?;
    Ok(vec![Item::Tensor(ops::eq(cx, im, zero)?)])
}

pub(super) fn var(cx: &mut Lower, call: &Call) -> Items {
    Ok(vec![Item::Tensor(variance(cx, call)?)])
}

pub(super) fn std(cx: &mut Lower, call: &Call) -> Items {
    let variance = variance(cx, call)?;
    Ok(vec![Item::Tensor(ops::sqrt(cx, variance)?)])
}

/// A norm that only the magnitudes of elements decide.
pub(super) fn norm(cx: &mut Lower, call: &Call) -> Items {
    let pair = first(cx, call)?;
    if norms_matrices(call, cx.spec(pair).rank() - 1) && needs_singular_values(call) {
        return unsupported("a norm of complex matrices that singular values define");
    }
    let (re, im) = halves(cx, pair)?;
    let (dims, dtype) = (cx.spec(re).dims.to_vec(), cx.spec(re).dtype);
    let length = real_call(cx, "aten.hypot.default", &[("self", re), ("other", im)], dims, dtype)?;
    Ok(vec![Item::Tensor(real(cx, call, call.target.clone(), length)?)])
}

fn norms_matrices(call: &Call, rank: usize) -> bool {
    match (call.target.starts_with("aten.linalg_matrix_norm"), call.arg("dim")) {
        (true, _) => true,
        (false, Some(Arg::Ints(axes))) => axes.len() == 2 && call.target.starts_with("aten.linalg_norm"),
        (false, None) => rank == 2 && call.target.starts_with("aten.linalg_norm"),
        (false, Some(_)) => false,
    }
}

/// Whether the order of a matrix norm is the spectral or the nuclear one.
fn needs_singular_values(call: &Call) -> bool {
    match call.arg("ord") {
        None => false,
        Some(Arg::Str(name)) => name == "nuc",
        Some(_) => call.float_or("ord", 2.0).is_ok_and(|order| order.abs() == 2.0),
    }
}
