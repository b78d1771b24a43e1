//! Matrix products.

use flambeau_ir::{Addmm, AsType, In, Node, Tid};
use flambeau_tensor::{DType, Expr};

use super::{RuleRow, one, ops, row};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Maximum number of elementwise products of an integer matrix product, to bound its memory.
const MAX_PAIRS: i64 = 1 << 24;

/// `a @ b` without bias or scaling.
pub(super) fn product(cx: &mut Lower, a: Tid, b: Tid) -> Result<Tid, Refuse> {
    if !cx.spec(a).dtype.is_float() {
        return integer_product(cx, a, b);
    }
    cx.emit(Addmm { mat1: In(a), mat2: In(b), out: NEW, bias: None, alpha: 1.0, beta: 1.0 })
}

/// Multiplies and sums integers, which is exact. The matrix product node takes only floats.
fn integer_product(cx: &mut Lower, a: Tid, b: Tid) -> Result<Tid, Refuse> {
    let (dtype, n, m) = (cx.spec(a).dtype, cx.spec(a).rank(), cx.spec(b).rank());
    // [.., M, K, 1] by [.., 1, K, N]; a vector lacks its own axis.
    let b = if n >= 2 && m >= 2 { cx.unsqueeze(b, m - 2)? } else { b };
    let a = if m >= 2 { cx.unsqueeze(a, n)? } else { a };
    let pairs = ops::mul(cx, a, b)?;
    if let Some(count) = cx.spec(pairs).numel().as_int().filter(|&c| c > MAX_PAIRS) {
        return unsupported(format!("a product of integers with {count} pairs; compute it in floats"));
    }
    let axis = cx.spec(pairs).rank() - if m >= 2 { 2 } else { 1 };
    let total = ops::sum(cx, pairs, &[axis], false)?;
    cx.cast(total, dtype)
}

/// Products of 8-bit integers as 32-bit integers. A float sum of up to 512 of them is exact.
fn int_mm(cx: &mut Lower, call: &Call) -> Items {
    const EXACT: i64 = 512;
    let (a, b) = (call.tensor("self")?, call.tensor("mat2")?);
    let inner = cx.spec(a).dims.last().and_then(Expr::as_int);
    let Some(inner) = inner else { return unsupported("a product of integers over an axis of unknown size") };
    let mut widened = |t: Tid| {
        // Weights stay bytes in the file.
        ops::first(&cx.emit_all(Node::AsType(AsType { x: In(t), out: NEW, scalar_type: DType::F32 }))?)
    };
    let (a, b) = (widened(a)?, widened(b)?);
    let lengths: Vec<Expr> = (0..inner).step_by(EXACT as usize).map(|at| Expr::Int(EXACT.min(inner - at))).collect();
    let (rows, columns) = (ops::split(cx, a, &lengths, 1)?, ops::split(cx, b, &lengths, 0)?);
    let mut total = None;
    for (a, b) in rows.into_iter().zip(columns) {
        let part = product(cx, a, b)?;
        let part = cx.cast(part, DType::I32)?;
        total = Some(match total {
            None => part,
            Some(sum) => ops::add(cx, sum, part)?,
        });
    }
    total.map_or_else(|| unsupported("a product over an axis of no elements"), one)
}

/// `x @ wᵀ + bias`, w `[N, K]`; engines recognize the transposition as a view.
pub(super) fn linear_of(cx: &mut Lower, x: Tid, w: Tid, bias: Option<Tid>) -> Result<Tid, Refuse> {
    let transposed = if cx.spec(w).rank() == 2 { cx.permute(w, &[1, 0])? } else { w };
    if !cx.spec(x).dtype.is_float() {
        let y = product(cx, x, transposed)?;
        return bias.map_or(Ok(y), |b| ops::add(cx, y, b));
    }
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
    let (a, b) = (cx.operand(call, a, dtype)?, cx.operand(call, b, dtype)?);
    if beta == 0.0 || !dtype.is_float() {
        let product = product(cx, a, b)?;
        return one(weighted_sum(cx, call, product)?);
    }
    let (mat1, mat2) = (In(a), In(b));
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
    let mv = product(cx, a, b)?;
    one(weighted_sum(cx, call, mv)?)
}

/// `alpha * product + beta * self`; with `beta` 0, `self` is ignored, even NaN.
fn weighted_sum(cx: &mut Lower, call: &Call, product: Tid) -> Result<Tid, Refuse> {
    let product = ops::mul_number(cx, product, call.float_or("alpha", 1.0)?)?;
    plus_scaled_self(cx, call, product)
}

/// `product + beta * self`.
fn plus_scaled_self(cx: &mut Lower, call: &Call, product: Tid) -> Result<Tid, Refuse> {
    let beta = call.float_or("beta", 1.0)?;
    if beta == 0.0 {
        return super::shape::expand_to(cx, product, &call.out(0)?.dims);
    }
    let bias = cx.operand(call, "self", cx.spec(product).dtype)?;
    let bias = ops::mul_number(cx, bias, beta)?;
    ops::add(cx, product, bias)
}

fn addr(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "vec1", dtype)?, cx.operand(call, "vec2", dtype)?);
    // PyTorch's order of operations, with each product rounded.
    let a = ops::mul_number(cx, a, call.float_or("alpha", 1.0)?)?;
    let a = cx.unsqueeze(a, 1)?;
    let product = ops::mul(cx, a, b)?;
    one(plus_scaled_self(cx, call, product)?)
}

/// Maximum number of products that `addbmm` adds one by one, with each sum rounded as in PyTorch.
const MAX_ADDED: i64 = 32;

fn addbmm(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "batch1", dtype)?, cx.operand(call, "batch2", dtype)?);
    if let Some(count @ 1..=MAX_ADDED) = cx.spec(a).dims[0].as_int().filter(|_| dtype.is_float()) {
        return one(add_products(cx, call, [a, b], count)?);
    }
    let products = product(cx, a, b)?;
    let products = cx.cast(products, ops::wide(dtype))?;
    let total = ops::sum(cx, products, &[0], false)?;
    let total = cx.cast(total, dtype)?;
    one(weighted_sum(cx, call, total)?)
}

/// `beta * self + alpha * (a[0] b[0] + a[1] b[1] + ..)`.
fn add_products(cx: &mut Lower, call: &Call, [a, b]: [Tid; 2], count: i64) -> Result<Tid, Refuse> {
    let (alpha, mut beta) = (call.float_or("alpha", 1.0)? as f32, call.float_or("beta", 1.0)? as f32);
    let mut bias = if beta == 0.0 { None } else { Some(cx.operand(call, "self", call.out(0)?.dtype)?) };
    let mut total = None;
    for i in 0..count {
        let (mat1, mat2) = (ops::take_one(cx, a, i, 0)?, ops::take_one(cx, b, i, 0)?);
        let (mat1, mat2) = (In(mat1), In(mat2));
        let sum = match bias {
            Some(bias) => cx.emit(Addmm { mat1, mat2, out: NEW, bias: Some(In(bias)), alpha, beta })?,
            None => {
                let product = cx.emit(Addmm { mat1, mat2, out: NEW, bias: None, alpha: 1.0, beta: 1.0 })?;
                ops::mul_number(cx, product, f64::from(alpha))?
            }
        };
        (bias, beta, total) = (Some(sum), 1.0, Some(sum));
    }
    total.ok_or_else(|| Refuse::Missing("batch1".to_owned()))
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.addmm.default", addmm),
    row("aten.addmv.default", addmv),
    row("aten.baddbmm.default", baddbmm),
    row("aten._int_mm.default", int_mm),
    row("aten.bmm.default", matmul),
    row("aten.linear.default", linear),
    row("aten.matmul.default", matmul),
    row("aten.mm.default", matmul),
    row("aten.addbmm.default", addbmm),
    row("aten.addr.default", addr),
    row("aten.linalg_matmul.default", matmul),
];
