//! Complex calls that are linear in each of two operands: the same call on their parts.

use flambeau_ir::Tid;

use super::{Items, Operand, halves, ops, pair_of, part_type, result, stack};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported};

/// The call with two real tensors in place of its operands.
fn of_parts(cx: &mut Lower, call: &Call, set: &dyn Fn(&mut Call, Tid, Tid), a: Tid, b: Tid) -> Result<Tid, Refuse> {
    let mut inner = call.clone();
    set(&mut inner, a, b);
    for out in &mut inner.outputs {
        out.dtype = out.dtype.part().unwrap_or(out.dtype);
    }
    match cx.inner_call(&inner)?.first() {
        Some(Item::Tensor(t)) => Ok(*t),
        _ => unsupported("it has no tensor result"),
    }
}

/// Lowers a call that is linear in each of two operands.
fn products(cx: &mut Lower, call: &Call, set: &dyn Fn(&mut Call, Tid, Tid), a: Operand, b: Operand) -> Result<Tid, Refuse> {
    match (a, b) {
        (Operand::Complex(a), Operand::Complex(b)) => {
            let ((ar, ai), (br, bi)) = (halves(cx, a)?, halves(cx, b)?);
            let (rr, ii) = (of_parts(cx, call, set, ar, br)?, of_parts(cx, call, set, ai, bi)?);
            let (ri, ir) = (of_parts(cx, call, set, ar, bi)?, of_parts(cx, call, set, ai, br)?);
            let (re, im) = (ops::sub(cx, rr, ii)?, ops::add(cx, ri, ir)?);
            stack(cx, re, im)
        }
        (Operand::Complex(a), Operand::Real(b)) => {
            let (re, im) = halves(cx, a)?;
            let (re, im) = (of_parts(cx, call, set, re, b)?, of_parts(cx, call, set, im, b)?);
            stack(cx, re, im)
        }
        (Operand::Real(a), Operand::Complex(b)) => {
            let (re, im) = halves(cx, b)?;
            let (re, im) = (of_parts(cx, call, set, a, re)?, of_parts(cx, call, set, a, im)?);
            stack(cx, re, im)
        }
        (Operand::Real(_), Operand::Real(_)) => unsupported("it has no complex operand"),
    }
}

pub(super) fn bilinear(cx: &mut Lower, call: &Call, names: [&str; 2]) -> Items {
    let (a, b) = (Operand::of(cx, call, names[0])?, Operand::of(cx, call, names[1])?);
    let set = |inner: &mut Call, a: Tid, b: Tid| {
        for (name, arg) in &mut inner.args {
            match &name[..] {
                name if name == names[0] => *arg = Arg::Tensor(a),
                name if name == names[1] => *arg = Arg::Tensor(b),
                _ => {}
            }
        }
    };
    let made = products(cx, call, &set, a, b);
    result(cx, call, made)
}

pub(super) fn linear(cx: &mut Lower, call: &Call) -> Items {
    let mut plain = call.clone();
    plain.args.retain(|(name, _)| name != "bias");
    let items = bilinear(cx, &plain, ["input", "weight"])?;
    let (Some(Item::Tensor(y)), Some(Arg::Tensor(bias))) = (items.first(), call.arg("bias")) else { return Ok(items) };
    let dtype = part_type(cx, call)?;
    let (y, bias) = (pair_of(cx, *y, dtype)?, pair_of(cx, *bias, dtype)?);
    let made = ops::add(cx, y, bias);
    result(cx, call, made)
}

pub(super) fn einsum(cx: &mut Lower, call: &Call) -> Items {
    let dtype = part_type(cx, call)?;
    let list = call.tensors("tensors")?;
    let operand = |cx: &mut Lower, t: Tid| match cx.spec(t).dtype.part() {
        Some(_) => pair_of(cx, t, dtype).map(Operand::Complex),
        None => cx.cast(t, dtype).map(Operand::Real),
    };
    let set = |inner: &mut Call, list: Vec<Tid>| {
        let all = list.into_iter().map(Some).collect();
        inner.args.iter_mut().filter(|(name, _)| name == "tensors").for_each(|(_, arg)| *arg = Arg::Tensors(Vec::clone(&all)));
    };
    match list[..] {
        [x] => {
            let Operand::Complex(pair) = operand(cx, x)? else { return unsupported("it has no complex operand") };
            let (re, im) = halves(cx, pair)?;
            let one_set = |inner: &mut Call, a: Tid, _: Tid| set(inner, vec![a]);
            let (re, im) = (of_parts(cx, call, &one_set, re, re)?, of_parts(cx, call, &one_set, im, im)?);
            let made = stack(cx, re, im);
            result(cx, call, made)
        }
        [a, b] => {
            let (a, b) = (operand(cx, a)?, operand(cx, b)?);
            let made = products(cx, call, &|inner: &mut Call, a: Tid, b: Tid| set(inner, vec![a, b]), a, b);
            result(cx, call, made)
        }
        _ => unsupported("a product of more than two complex tensors; multiply two at a time"),
    }
}
