//! Mixtures of experts: rows sorted by expert, gathered products, and restoration of the order.

use std::sync::Arc;

use flambeau_ir::{Float, Full, GatherMm, GatherQmm, If, In, Int, ItemInt, Node, QuantMode, Repeat, Spec, Squeeze, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow,
    linalg::product,
    one,
    ops::{self, Emitted},
    quantized::constant,
    row,
    scan::copy,
};
use crate::{
    Call, ConstExpr, Constant, Formula, Item, Lower, Origin, Refuse,
    call::unsupported,
    lower::{NEW, NEW_VALUE},
};

type Items = Result<Vec<Item>, Refuse>;

/// Whether the rows are sorted, as an integer; zero means no.
fn sortedness(cx: &mut Lower, flag: Tid) -> Result<Int, Refuse> {
    if let Some(known) = cx.flag(flag) {
        return Ok(known);
    }
    if let Some(value) = cx.graph().scalar(flag) {
        return Ok(Int::Lit(i64::from(value != 0.0)));
    }
    if let Some(Node::Full(Full { v: Float::Lit(v), .. })) = cx.producer(flag) {
        return Ok(Int::Lit(i64::from(*v != 0.0)));
    }
    Ok(Int::Vid(cx.emit_value(ItemInt { x: In(flag), out: NEW_VALUE })?))
}

/// Runs `then` or `other` by a condition: inline if it is known, else as two chains that write the
/// same slots.
fn either(
    cx: &mut Lower,
    cond: Int,
    specs: &[Spec],
    then: impl FnOnce(&mut Lower) -> Result<Vec<Tid>, Refuse>,
    other: impl FnOnce(&mut Lower) -> Result<Vec<Tid>, Refuse>,
) -> Result<Vec<Tid>, Refuse> {
    match cond {
        Int::Lit(0) => return other(cx),
        Int::Lit(_) => return then(cx),
        Int::Vid(_) => {}
    }
    let slots: Vec<Tid> = specs.iter().map(|s| cx.slot(s.clone(), Origin::Node)).collect();
    let write = |cx: &mut Lower, made: Vec<Tid>| made.into_iter().zip(&slots).try_for_each(|(from, &to)| copy(cx, from, to));
    let (then_chain_idx, ()) = cx.chain(|cx| then(cx).and_then(|made| write(cx, made)))?;
    let (else_chain_idx, ()) = cx.chain(|cx| other(cx).and_then(|made| write(cx, made)))?;
    let (then_chain_idx, else_chain_idx) = (flambeau_ir::ChainId(then_chain_idx), flambeau_ir::ChainId(else_chain_idx));
    cx.emit_all(Node::If(If { cond, then_chain_idx, else_chain_idx }))?;
    for (&slot, spec) in slots.iter().zip(specs) {
        cx.set_spec(slot, spec.clone());
    }
    Ok(slots)
}

/// Rows of `x` `[N, D]` for each of `top_k` experts. Returns rows `[N K, 1, D]`, experts `[N K]`, a
/// sorted flag, and the inverse permutation `[N K]`.
fn gather_inputs(cx: &mut Lower, call: &Call) -> Items {
    let (x, experts) = (call.tensor("x")?, call.tensor("expert_indices")?);
    let (top_k, cutoff) = (call.int("top_k")?, call.int("sort_cutoff")?);
    let [n, d] = &cx.spec(x).dims[..] else { return unsupported("rows are no matrix") };
    let (n, d) = (n.clone(), d.clone());
    if top_k < 1 || cutoff < 1 {
        return unsupported(format!("the {top_k} best experts, sorted from {cutoff} rows on"));
    }
    let cond = cx.int(&(n.clone() - Expr::Int(1)).floor_div(&Expr::Int(cutoff)))?;
    let total = n * Expr::Int(top_k);
    let flat = [total.clone()];
    let spec = |dtype, dims: &[Expr]| Spec { dtype, dims: dims.iter().cloned().collect() };
    let specs = [
        spec(cx.spec(x).dtype, &[total.clone(), Expr::Int(1), d]),
        spec(DType::I32, &flat),
        spec(DType::I32, &[]),
        spec(DType::I32, &flat),
    ];
    let made = either(
        cx,
        cond,
        &specs,
        |cx| {
            let experts = cx.reshape(experts, &flat)?;
            let order = ops::argsort(cx, experts, 0)?;
            let order = cx.cast(order, DType::I32)?;
            let back = ops::argsort(cx, order, 0)?;
            let back = cx.cast(back, DType::I32)?;
            let sorted = ops::take(cx, experts, order, 0)?;
            let sorted = cx.cast(sorted, DType::I32)?;
            let top_k = cx.number(top_k as f64, DType::I32)?;
            let rows = ops::floor_div(cx, order, top_k)?;
            let rows = ops::take(cx, x, rows, 0)?;
            Ok(vec![cx.unsqueeze(rows, 1)?, sorted, ops::full(cx, 1.0, &[], DType::I32)?, back])
        },
        |cx| {
            let rows = cx.emit(Repeat { x: In(x), out: NEW, repeats: Int::Lit(top_k), axis: 0 })?;
            let experts = cx.reshape(experts, &flat)?;
            let experts = cx.cast(experts, DType::I32)?;
            Ok(vec![cx.unsqueeze(rows, 1)?, experts, ops::full(cx, 0.0, &[], DType::I32)?, ops::count(cx, &total, DType::I32)?])
        },
    )?;
    cx.set_flag(made[2], cond);
    Ok(made.into_iter().map(Item::Tensor).collect())
}

/// `down` `[N K, 1, H]` as `[N, K, H]`, in the order before the sort.
fn scatter_outputs(cx: &mut Lower, call: &Call) -> Items {
    let (down, flag, back) = (call.tensor("down")?, call.tensor("sort_experts")?, call.tensor("inv_order")?);
    let rank = cx.spec(down).rank();
    if rank < 2 {
        return unsupported("expert outputs without rows");
    }
    let out = call.out(0)?.clone();
    let cond = sortedness(cx, flag)?;
    let rows = cx.emit(Squeeze { x: In(down), out: NEW, dims: vec![rank as i32 - 2] })?;
    let spec = Spec { dtype: cx.spec(down).dtype, dims: out.dims.iter().cloned().collect() };
    let made = either(
        cx,
        cond,
        &[spec],
        |cx| {
            let ordered = ops::take(cx, rows, back, 0)?;
            Ok(vec![cx.reshape(ordered, &out.dims)?])
        },
        |cx| Ok(vec![cx.reshape(rows, &out.dims)?]),
    )?;
    one(made[0])
}

/// The sorted flag as the two fields of a gathered product.
fn sorted_fields(cx: &mut Lower, call: &Call) -> Result<(bool, Option<Int>), Refuse> {
    match call.tensor_opt("sorted_indices")? {
        None => Ok((false, None)),
        Some(flag) => match sortedness(cx, flag)? {
            Int::Lit(v) => Ok((v != 0, None)),
            vid => Ok((false, Some(vid))),
        },
    }
}

/// Refuses left indices: PyTorch's operator ignores them, the node would apply them.
fn refuse_lhs(call: &Call) -> Result<(), Refuse> {
    if call.arg("lhs_indices").is_some() {
        return unsupported("`lhs_indices` have no meaning in PyTorch's operator");
    }
    Ok(())
}

fn gather_mm(cx: &mut Lower, call: &Call) -> Items {
    refuse_lhs(call)?;
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "a", dtype)?, cx.operand(call, "b", dtype)?);
    let Some(rhs) = call.tensor_opt("rhs_indices")? else { return one(product(cx, a, b)?) };
    let (sorted_indices, sorted_indices_flag) = sorted_fields(cx, call)?;
    one(cx.emit(GatherMm {
        a: In(a),
        b: In(b),
        out: NEW,
        lhs_indices: None,
        rhs_indices: Some(In(rhs)),
        sorted_indices,
        sorted_indices_flag,
    })?)
}

/// Packs signed codes, stored one per byte or two per byte with the lower half first, into words.
fn packed_codes(cx: &mut Lower, codes: &Arc<Constant>, bits: u8) -> Emitted {
    let mut shape = codes.shape.clone();
    let Some(last) = shape.last_mut() else { return unsupported("codes without an axis") };
    let name = format!("{}_to_packed", codes.name);
    let (row_bits, expr) = match (codes.dtype, bits) {
        (DType::I8, _) => (*last * usize::from(bits), ConstExpr::PackSigned { codes: codes.clone(), bits }),
        (DType::U8, 4) => (*last * 8, ConstExpr::Reinterpret(codes.clone())),
        (other, bits) => return unsupported(format!("{bits}-bit codes stored as {other}")),
    };
    if row_bits % 32 != 0 {
        return unsupported("rows that are no whole number of words");
    }
    *last = row_bits / 32;
    Ok(cx.constant(Constant { name, dtype: DType::U32, shape, expr }))
}

/// `x @ (codes * scales + biases)` as PyTorch's operator defines it: codes are signed, and biases
/// are added.
fn gather_qmm(cx: &mut Lower, call: &Call) -> Items {
    refuse_lhs(call)?;
    if call.str_or("mode", "affine")? != "affine" {
        return unsupported("gathered products of other than affine codes");
    }
    let dtype = call.out(0)?.dtype;
    let x = cx.operand(call, "x", dtype)?;
    let (codes, scale) = (constant(cx, call, "w")?, constant(cx, call, "scales")?);
    let bits = u8::try_from(call.int_or("bits", 4)?).unwrap_or(0);
    if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) {
        return unsupported(format!("{bits}-bit codes"));
    }
    let w = packed_codes(cx, &codes, bits)?;
    let scale = if scale.dtype == dtype { scale } else { Arc::new(scale.cast(dtype)) };
    let (name, expr) = match call.tensor_opt("biases")? {
        Some(_) => {
            let bias = constant(cx, call, "biases")?;
            (bias.name.clone(), ConstExpr::Formula(Formula::ShiftedBias { bits }, vec![scale.clone(), bias]))
        }
        None => (scale.name.clone(), ConstExpr::AffineBias { scale: scale.clone(), zero_point: None, bits }),
    };
    let biases = cx.constant(Constant { name: format!("{name}_to_biases"), dtype, shape: scale.shape.clone(), expr });
    let scales = cx.constant(Arc::unwrap_or_clone(scale));
    let (sorted_indices, sorted_indices_flag) = sorted_fields(cx, call)?;
    one(cx.emit(GatherQmm {
        x: In(x),
        w: In(w),
        scales: In(scales),
        out: NEW,
        mode: QuantMode::Affine,
        biases: Some(In(biases)),
        lhs_indices: None,
        rhs_indices: call.tensor_opt("rhs_indices")?.map(In),
        transpose: call.bool_or("transpose", true)?,
        group_size: call.int_or("group_size", 32)? as i32,
        bits: i32::from(bits),
        sorted_indices,
        sorted_indices_flag,
    })?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("mlx.gather_mm.default", gather_mm),
    row("mlx.gather_qmm.default", gather_qmm),
    row("mlx.moe_gather_inputs.default", gather_inputs),
    row("mlx.moe_scatter_outputs.default", scatter_outputs),
];
