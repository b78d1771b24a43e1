//! Tensor factories.

use flambeau_ir::{ARange, Float, Full, FullLike, In, Int, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
    shape::expand_to,
};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// A call's fill value: a number, or a symbolic integer in a value slot.
fn fill(cx: &mut Lower, call: &Call, param: &str) -> Result<Float, Refuse> {
    match call.arg(param) {
        Some(Arg::Int(e)) if e.as_int().is_none() => cx.vid(e).map(Float::Vid),
        _ => call.float_or(param, 0.0).map(Float::Lit),
    }
}

/// Maximum number of elements of a constant in a type without nodes.
const MAX_FOREIGN: usize = 1 << 16;

/// A filled constant of a type without nodes; `None` for other types, unknown sizes or unknown
/// values.
fn foreign(cx: &mut Lower, dtype: DType, v: &Float, dims: &[Expr]) -> Result<Option<Tid>, Refuse> {
    let sizes: Option<Vec<usize>> = dims.iter().map(|d| d.as_int().and_then(|n| usize::try_from(n).ok())).collect();
    match (v, sizes) {
        (Float::Lit(value), Some(sizes)) if !dtype.is_node_dtype() && sizes.iter().product::<usize>() <= MAX_FOREIGN => {
            cx.filled(*value, dtype, &sizes).map(Some)
        }
        _ => Ok(None),
    }
}

fn full_of(cx: &mut Lower, call: &Call, v: Float, sizes: &[Expr]) -> Items {
    if let Some(t) = foreign(cx, call.out(0)?.dtype, &v, sizes)? {
        return one(t);
    }
    let shape = cx.ints(sizes)?;
    one(cx.emit(Full { out: NEW, shape, v, scalar_type: call.out(0)?.dtype })?)
}

/// A fill value as a tensor of rank 0. `None` if a fill node can take it: a number that a float
/// represents.
fn computed_fill(cx: &mut Lower, call: &Call, param: &str) -> Result<Option<Tid>, Refuse> {
    let dtype = call.out(0)?.dtype;
    match call.arg(param) {
        Some(Arg::Tensor(t)) => {
            let t = cx.cast(*t, dtype)?;
            cx.reshape(t, &[]).map(Some)
        }
        Some(Arg::Int(Expr::Int(v))) if !dtype.is_float() && v.unsigned_abs() > EXACT => cx.integer(*v, dtype).map(Some),
        _ => Ok(None),
    }
}

/// Integers up to this magnitude are floats of 64 bits, and fill nodes take such floats.
const EXACT: u64 = 1 << 53;

fn full(cx: &mut Lower, call: &Call) -> Items {
    let sizes = call.sizes("size")?;
    if let Some(t) = computed_fill(cx, call, "fill_value")? {
        return one(expand_to(cx, t, &sizes)?);
    }
    let v = fill(cx, call, "fill_value")?;
    full_of(cx, call, v, &sizes)
}

fn zeros(cx: &mut Lower, call: &Call) -> Items {
    full_of(cx, call, Float::Lit(0.0), &call.sizes("size")?)
}

fn ones(cx: &mut Lower, call: &Call) -> Items {
    full_of(cx, call, Float::Lit(1.0), &call.sizes("size")?)
}

fn scalar_tensor(cx: &mut Lower, call: &Call) -> Items {
    if let Some(t) = computed_fill(cx, call, "s")? {
        return one(t);
    }
    let v = fill(cx, call, "s")?;
    full_of(cx, call, v, &[])
}

fn like(cx: &mut Lower, call: &Call, v: Float) -> Items {
    let x = In(call.tensor("self")?);
    let dtype = call.out(0)?.dtype;
    let dims = cx.spec(x.0).dims.to_vec();
    if let Some(t) = foreign(cx, dtype, &v, &dims)? {
        return one(t);
    }
    let scalar_type = (cx.spec(x.0).dtype != dtype).then_some(dtype);
    one(cx.emit(FullLike { x, out: NEW, v, scalar_type })?)
}

fn full_like(cx: &mut Lower, call: &Call) -> Items {
    if let Some(t) = computed_fill(cx, call, "fill_value")? {
        let dims = cx.spec(call.tensor("self")?).dims.to_vec();
        return one(expand_to(cx, t, &dims)?);
    }
    let v = fill(cx, call, "fill_value")?;
    like(cx, call, v)
}

fn zeros_like(cx: &mut Lower, call: &Call) -> Items {
    like(cx, call, Float::Lit(0.0))
}

fn ones_like(cx: &mut Lower, call: &Call) -> Items {
    like(cx, call, Float::Lit(1.0))
}

/// A bound of a range: an integer, or a float with an integer value.
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
    if !dtype.is_node_dtype() || ["start", "end", "step"].into_iter().any(fractional) {
        return fractional_range(cx, call, dtype);
    }
    let (start, stop, step) = (whole(call, "start", 0)?, whole(call, "end", 0)?, whole(call, "step", 1)?);
    let (start, stop, step) = (cx.int(&start)?, cx.int(&stop)?, cx.int(&step)?);
    one(cx.emit(ARange { out: NEW, start, stop, step, scalar_type: Some(dtype) })?)
}

/// Points from `start` to `end` inclusive.
fn closed_range(cx: &mut Lower, call: &Call) -> Items {
    let (start, end, step) = (call.float_or("start", 0.0)?, call.float_or("end", 0.0)?, call.float_or("step", 1.0)?);
    let n = ((end - start) / step).floor() as i64 + 1;
    if !(0..=1 << 24).contains(&n) {
        return unsupported(format!("a range of {n} elements"));
    }
    let values: Vec<f64> = (0..n).map(|i| start + i as f64 * step).collect();
    listed(cx, call, &format!("_range_{start}_{end}_{step}"), &values)
}

/// A range with fractional bounds known at compile time: the elements are a constant.
fn fractional_range(cx: &mut Lower, call: &Call, dtype: DType) -> Items {
    let (start, stop, step) = (call.float_or("start", 0.0)?, call.float_or("end", 0.0)?, call.float_or("step", 1.0)?);
    let n = ((stop - start) / step).ceil().max(0.0) as usize;
    // Integer ranges start at the truncated start and step by the truncated step; only their length
    // depends on the fractions.
    let at = |i: usize| if dtype.is_float() { start + i as f64 * step } else { start.trunc() + i as f64 * step.trunc() };
    let values: Vec<f64> = (0..n).map(at).collect();
    listed(cx, call, &format!("_arange_{start}_{stop}_{step}"), &values)
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

/// Uninitialized memory, here zeros.
fn empty(cx: &mut Lower, call: &Call) -> Items {
    full_of(cx, call, Float::Lit(0.0), &call.out(0)?.dims)
}

/// Fills the tensor's shape with a number or a rank-0 tensor.
fn fill_all(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    match call.arg("value") {
        Some(Arg::Tensor(_)) => {
            let value = cx.operand(call, "value", call.out(0)?.dtype)?;
            let dims = cx.spec(x).dims.to_vec();
            one(expand_to(cx, value, &dims)?)
        }
        _ => {
            let v = fill(cx, call, "value")?;
            like(cx, call, v)
        }
    }
}

/// A constant of known elements, truncated for integer types.
fn listed(cx: &mut Lower, call: &Call, name: &str, values: &[f64]) -> Items {
    let dtype = call.out(0)?.dtype;
    if dtype.is_float() {
        return one(cx.numbers(name, values, dtype, &[values.len()])?);
    }
    let whole: Vec<i64> = values.iter().map(|&v| v as i64).collect();
    one(cx.integers(name, &whole, dtype)?)
}

/// Evenly spaced points between two ends; each is computed from the nearer end.
fn line(call: &Call) -> Result<Vec<f64>, Refuse> {
    let (mut start, mut end) = (call.float_or("start", 0.0)?, call.float_or("end", 0.0)?);
    if !call.out(0)?.dtype.is_float() {
        (start, end) = (start.trunc(), end.trunc());
    }
    let steps = call.int("steps")?.clamp(0, 1 << 24);
    let step = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
    let point = |i: i64| if i < steps / 2 { start + step * i as f64 } else { end - step * (steps - 1 - i) as f64 };
    Ok(if steps == 1 { vec![start] } else { (0..steps).map(point).collect() })
}

/// An end of a line as a rank-0 tensor: cast to the type of the points, then to f32.
fn line_end(cx: &mut Lower, call: &Call, param: &str) -> Emitted {
    let end = cx.operand(call, param, call.out(0)?.dtype)?;
    let end = cx.reshape(end, &[])?;
    cx.cast(end, DType::F32)
}

/// [`line`] between ends that are tensors of one element, in f32.
fn line_between(cx: &mut Lower, call: &Call) -> Emitted {
    let (start, end) = (line_end(cx, call, "start")?, line_end(cx, call, "end")?);
    let steps = call.int("steps")?;
    if !(0..=1 << 24).contains(&steps) {
        return unsupported(format!("a line of {steps} points"));
    }
    if steps < 2 {
        return expand_to(cx, start, &[Expr::Int(steps)]);
    }
    let mut counted = |name: &str, value: &dyn Fn(i64) -> i64| {
        let values: Vec<f32> = (0..steps).map(|i| value(i) as f32).collect();
        cx.floats(name, &values, &[values.len()])
    };
    let up = counted("_line_up", &|i| i)?;
    let down = counted("_line_down", &|i| steps - 1 - i)?;
    let nearer = counted("_line_nearer", &|i| i64::from(i < steps / 2))?;
    let nearer = cx.cast(nearer, DType::Bool)?;
    let length = ops::sub(cx, end, start)?;
    let step = ops::div_number(cx, length, (steps - 1) as f64)?;
    let (up, down) = (ops::mul(cx, up, step)?, ops::mul(cx, down, step)?);
    let (from, to) = (ops::add(cx, start, up)?, ops::sub(cx, end, down)?);
    ops::select(cx, nearer, from, to)
}

/// Whether an end of a line is a tensor.
fn has_tensor_end(call: &Call) -> bool {
    ["start", "end"].iter().any(|p| matches!(call.arg(p), Some(Arg::Tensor(_))))
}

fn linspace(cx: &mut Lower, call: &Call) -> Items {
    if has_tensor_end(call) {
        return one(line_between(cx, call)?);
    }
    let points = line(call)?;
    listed(cx, call, "_linspace", &points)
}

fn logspace(cx: &mut Lower, call: &Call) -> Items {
    let base = call.float_or("base", 10.0)?;
    if has_tensor_end(call) {
        let points = line_between(cx, call)?;
        let base = ops::number_like(cx, points, base)?;
        return one(ops::power(cx, base, points)?);
    }
    let points: Vec<f64> = line(call)?.into_iter().map(|p| base.powf(p)).collect();
    listed(cx, call, "_logspace", &points)
}

/// Row and column indices of a triangle's elements, `[2, n]`.
fn triangle_indices(cx: &mut Lower, call: &Call, inside: fn(i64, i64) -> bool) -> Items {
    let (rows, columns, offset) = (call.int("row")?, call.int("col")?, call.int_or("offset", 0)?);
    if rows.saturating_mul(columns) > 1 << 24 {
        return unsupported(format!("a triangle of {rows} by {columns}"));
    }
    let places = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
    let places: Vec<(i64, i64)> = places.filter(|&(r, c)| inside(c - r, offset)).collect();
    let flat: Vec<i64> = places.iter().map(|p| p.0).chain(places.iter().map(|p| p.1)).collect();
    let flat = cx.integers("_triangle", &flat, DType::I64)?;
    one(cx.reshape(flat, &[Expr::Int(2), Expr::Int(places.len() as i64)])?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.arange.default", arange),
    row("aten.arange.start", arange),
    row("aten.arange.start_step", arange),
    row("aten.eye.default", eye),
    row("aten.eye.m", eye),
    row("aten.full.default", full),
    row("aten.full_like.default", full_like),
    row("aten.new_full.default", full),
    row("aten.new_ones.default", ones),
    row("aten.new_zeros.default", zeros),
    row("aten.ones.default", ones),
    row("aten.ones_like.default", ones_like),
    row("aten.scalar_tensor.default", scalar_tensor),
    row("aten.zeros.default", zeros),
    row("aten.zeros_like.default", zeros_like),
    row("aten.empty.memory_format", empty),
    row("aten.empty_like.default", empty),
    row("aten.empty_permuted.default", empty),
    row("aten.empty_strided.default", empty),
    row("aten.fill.Scalar", fill_all),
    row("aten.fill.Tensor", fill_all),
    row("aten.linspace.Scalar_Tensor", linspace),
    row("aten.linspace.Tensor_Scalar", linspace),
    row("aten.linspace.Tensor_Tensor", linspace),
    row("aten.linspace.default", linspace),
    row("aten.logspace.Scalar_Tensor", logspace),
    row("aten.logspace.Tensor_Scalar", logspace),
    row("aten.logspace.Tensor_Tensor", logspace),
    row("aten.logspace.default", logspace),
    row("aten.new_empty.default", empty),
    row("aten.new_empty_strided.default", empty),
    row("aten.range.default", closed_range),
    row("aten.range.step", closed_range),
    row("aten.tril_indices.default", |cx, call| triangle_indices(cx, call, |distance, offset| distance <= offset)),
    row("aten.triu_indices.default", |cx, call| triangle_indices(cx, call, |distance, offset| distance >= offset)),
    row("aten.zero.default", zeros_like),
];
