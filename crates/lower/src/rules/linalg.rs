//! Matrix products.

use flambeau_ir::{Addmm, In, Tid};

use super::{RuleRow, one, ops, row};
use crate::{Call, Item, Lower, Refuse, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// `a @ b` with neither bias nor scaling.
pub(super) fn product(cx: &mut Lower, a: Tid, b: Tid) -> Result<Tid, Refuse> {
    cx.emit(Addmm { mat1: In(a), mat2: In(b), out: NEW, bias: None, alpha: 1.0, beta: 1.0 })
}

/// `x @ wᵀ + bias`, w `[N, K]`; the transposition is a view that engines see through.
pub(super) fn linear_of(cx: &mut Lower, x: Tid, w: Tid, bias: Option<Tid>) -> Result<Tid, Refuse> {
    let transposed = if cx.spec(w).rank() == 2 { cx.permute(w, &[1, 0])? } else { w };
    cx.emit(Addmm { mat1: In(x), mat2: In(transposed), out: NEW, bias: bias.map(In), alpha: 1.0, beta: 1.0 })
}

fn linear(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (x, w) = (cx.operand(call, "input", dtype)?, cx.operand(call, "weight", dtype)?);
    let bias = call.arg("bias").map(|_| cx.operand(call, "bias", dtype)).transpose()?;
    one(linear_of(cx, x, w, bias)?)
}

fn matmul(cx: &mut Lower, call: &Call) -> Items {
    let param = if call.arg("mat2").is_some() { "mat2" } else { "other" };
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, param, dtype)?);
    one(product(cx, a, b)?)
}

/// `beta * bias + alpha * (a @ b)`.
fn addmm_of(cx: &mut Lower, call: &Call, a: &str, b: &str) -> Items {
    let dtype = call.out(0)?.dtype;
    let (alpha, beta) = (call.float_or("alpha", 1.0)? as f32, call.float_or("beta", 1.0)? as f32);
    let (mat1, mat2) = (In(cx.operand(call, a, dtype)?), In(cx.operand(call, b, dtype)?));
    let bias = Some(In(cx.operand(call, "self", dtype)?));
    one(cx.emit(Addmm { mat1, mat2, out: NEW, bias, alpha, beta })?)
}

fn addmm(cx: &mut Lower, call: &Call) -> Items {
    addmm_of(cx, call, "mat1", "mat2")
}

fn baddbmm(cx: &mut Lower, call: &Call) -> Items {
    addmm_of(cx, call, "batch1", "batch2")
}

fn addmv(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "mat", dtype)?, cx.operand(call, "vec", dtype)?);
    let (mv, bias) = (product(cx, a, b)?, cx.operand(call, "self", dtype)?);
    one(weighted_sum(cx, call, mv, bias)?)
}

/// `alpha * product + beta * bias`.
fn weighted_sum(cx: &mut Lower, call: &Call, product: Tid, bias: Tid) -> Result<Tid, Refuse> {
    let product = ops::mul_number(cx, product, call.float_or("alpha", 1.0)?)?;
    let bias = ops::mul_number(cx, bias, call.float_or("beta", 1.0)?)?;
    ops::add(cx, product, bias)
}

fn addr(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b, bias) = (cx.operand(call, "vec1", dtype)?, cx.operand(call, "vec2", dtype)?, cx.operand(call, "self", dtype)?);
    let a = cx.unsqueeze(a, 1)?;
    let product = ops::mul(cx, a, b)?;
    one(weighted_sum(cx, call, product, bias)?)
}

fn addbmm(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "batch1", dtype)?, cx.operand(call, "batch2", dtype)?);
    let bias = cx.operand(call, "self", dtype)?;
    let products = product(cx, a, b)?;
    let total = ops::sum(cx, products, &[0], false)?;
    one(weighted_sum(cx, call, total, bias)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.addmm.default", "self mat1 mat2 beta alpha", addmm),
    row("aten.addmv.default", "self mat vec beta alpha", addmv),
    row("aten.baddbmm.default", "self batch1 batch2 beta alpha", baddbmm),
    row("aten.bmm.default", "self mat2", matmul),
    row("aten.linear.default", "input weight bias", linear),
    row("aten.matmul.default", "self other", matmul),
    row("aten.mm.default", "self mat2", matmul),
    row("aten.addbmm.default", "self batch1 batch2 beta alpha", addbmm),
    row("aten.addr.default", "self vec1 vec2 beta alpha", addr),
    row("aten.linalg_matmul.default", "self other", matmul),
];
