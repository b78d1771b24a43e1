//! Tensors made from nothing.

use flambeau_ir::{ARange, Float, Full, FullLike, In, Int};
use flambeau_tensor::{DType, Expr};

use super::{RuleRow, one, row};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// The fill value of a call: a number, or a symbolic integer through a value slot.
fn fill(cx: &mut Lower, call: &Call, param: &str) -> Result<Float, Refuse> {
    match call.arg(param) {
        Some(Arg::Int(e)) if e.as_int().is_none() => cx.vid(e).map(Float::Vid),
        _ => call.float_or(param, 0.0).map(Float::Lit),
    }
}

fn full_of(cx: &mut Lower, call: &Call, v: Float, sizes: &[Expr]) -> Items {
    let shape = cx.ints(sizes)?;
    one(cx.emit(Full { out: NEW, shape, v, scalar_type: call.out(0)?.dtype })?)
}

fn full(cx: &mut Lower, call: &Call) -> Items {
    let v = fill(cx, call, "fill_value")?;
    full_of(cx, call, v, &call.sizes("size")?)
}

fn zeros(cx: &mut Lower, call: &Call) -> Items {
    full_of(cx, call, Float::Lit(0.0), &call.sizes("size")?)
}

fn ones(cx: &mut Lower, call: &Call) -> Items {
    full_of(cx, call, Float::Lit(1.0), &call.sizes("size")?)
}

fn scalar_tensor(cx: &mut Lower, call: &Call) -> Items {
    let v = fill(cx, call, "s")?;
    full_of(cx, call, v, &[])
}

fn like(cx: &mut Lower, call: &Call, v: Float) -> Items {
    let x = In(call.tensor("self")?);
    let dtype = call.out(0)?.dtype;
    let scalar_type = (cx.spec(x.0).dtype != dtype).then_some(dtype);
    one(cx.emit(FullLike { x, out: NEW, v, scalar_type })?)
}

fn full_like(cx: &mut Lower, call: &Call) -> Items {
    let v = fill(cx, call, "fill_value")?;
    like(cx, call, v)
}

fn zeros_like(cx: &mut Lower, call: &Call) -> Items {
    like(cx, call, Float::Lit(0.0))
}

fn ones_like(cx: &mut Lower, call: &Call) -> Items {
    like(cx, call, Float::Lit(1.0))
}

/// A bound of a range: an integer, or a float that is one.
fn whole(call: &Call, param: &str, default: i64) -> Result<Expr, Refuse> {
    match call.arg(param) {
        None => Ok(Expr::Int(default)),
        Some(Arg::Float(v)) if v.fract() == 0.0 => Ok(Expr::Int(*v as i64)),
        Some(Arg::Float(_)) => unsupported("a range with fractional bounds"),
        Some(_) => call.size(param),
    }
}

fn arange(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let fractional = |p: &str| matches!(call.arg(p), Some(Arg::Float(v)) if v.fract() != 0.0);
    if ["start", "end", "step"].into_iter().any(fractional) {
        return fractional_range(cx, call, dtype);
    }
    let (start, stop, step) = (whole(call, "start", 0)?, whole(call, "end", 0)?, whole(call, "step", 1)?);
    let (start, stop, step) = (cx.int(&start)?, cx.int(&stop)?, cx.int(&step)?);
    one(cx.emit(ARange { out: NEW, start, stop, step, scalar_type: Some(dtype) })?)
}

/// Known fractional bounds: the elements are a constant.
fn fractional_range(cx: &mut Lower, call: &Call, dtype: DType) -> Items {
    let (start, stop, step) = (call.float_or("start", 0.0)?, call.float_or("end", 0.0)?, call.float_or("step", 1.0)?);
    let n = ((stop - start) / step).ceil().max(0.0) as usize;
    let values: Vec<f32> = (0..n).map(|i| (start + i as f64 * step) as f32).collect();
    let range = cx.floats(&format!("_arange_{start}_{stop}_{step}"), &values, &[n])?;
    one(cx.cast(range, dtype)?)
}

fn eye(cx: &mut Lower, call: &Call) -> Items {
    let n = call.size("n")?;
    let m = call.size_opt("m")?.unwrap_or_else(|| n.clone());
    let range = |cx: &mut Lower, size: &Expr| {
        let stop = cx.int(size)?;
        cx.emit(ARange { out: NEW, start: Int::Lit(0), stop, step: Int::Lit(1), scalar_type: Some(DType::I32) })
    };
    let (rows, columns) = (range(cx, &n)?, range(cx, &m)?);
    let rows = cx.unsqueeze(rows, 1)?;
    let diagonal = cx.emit(flambeau_ir::Equal { a: In(rows), b: In(columns), out: NEW })?;
    one(cx.cast(diagonal, call.out(0)?.dtype)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.arange.default", "end", arange),
    row("aten.arange.start", "start end", arange),
    row("aten.arange.start_step", "start end step", arange),
    row("aten.eye.default", "n", eye),
    row("aten.eye.m", "n m", eye),
    row("aten.full.default", "size fill_value", full),
    row("aten.full_like.default", "self fill_value", full_like),
    row("aten.new_full.default", "self size fill_value", full),
    row("aten.new_ones.default", "self size", ones),
    row("aten.new_zeros.default", "self size", zeros),
    row("aten.ones.default", "size", ones),
    row("aten.ones_like.default", "self", ones_like),
    row("aten.scalar_tensor.default", "s", scalar_tensor),
    row("aten.zeros.default", "size", zeros),
    row("aten.zeros_like.default", "self", zeros_like),
];
