//! Matrix products.

use flambeau_ir::{Add, Addmm, In, Tid};

use super::{RuleRow, one, row};
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
    one(cx.emit(Add { a: In(mv), b: In(bias), out: NEW })?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.addmm.default", "self mat1 mat2 beta alpha", addmm),
    row("aten.addmv.default", "self mat vec beta alpha", addmv),
    row("aten.baddbmm.default", "self batch1 batch2 beta alpha", baddbmm),
    row("aten.bmm.default", "self mat2", matmul),
    row("aten.linear.default", "input weight bias", linear),
    row("aten.matmul.default", "self other", matmul),
    row("aten.mm.default", "self mat2", matmul),
];
