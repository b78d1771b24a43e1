//! Writes by index.
//!
//! PyTorch leaves open which of several writes to one element wins. Here the last along the axis
//! wins, except for sums.

use flambeau_ir::{In, IndexCopy, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, lifted, one,
    ops::{self, Emitted},
    row,
    scan::{LoopStep, scan},
    shape::{expand_to, slice_axis},
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Maximum number of (index, element) pairs per row that are compared all at once.
const MAX_PAIRS: i64 = 1 << 17;

/// A scatter's operands, with `x` cut to the extents of the index.
struct Scatter {
    x: Tid,
    /// i64 or smaller, as given.
    index: Tid,
    axis: usize,
    /// Tensors to write the result back into, innermost last: tensor, axis, extent.
    outer: Vec<(Tid, usize, Expr)>,
}

impl Scatter {
    fn new(cx: &mut Lower, call: &Call) -> Result<Scatter, Refuse> {
        let dtype = call.out(0)?.dtype;
        let (mut x, mut index) = (cx.operand(call, "self", dtype)?, call.tensor("index")?);
        let axis = cx.axis(call, "dim", 0, cx.spec(x).rank().max(1))?;
        if cx.spec(x).rank() == 0 {
            x = cx.unsqueeze(x, 0)?;
        }
        if cx.spec(index).rank() == 0 {
            index = cx.unsqueeze(index, 0)?;
        }
        let rank = cx.spec(x).rank();
        if cx.spec(index).rank() != rank {
            return unsupported("index and tensor have different ranks");
        }
        let mut outer = Vec::new();
        for other in (0..rank).filter(|&a| a != axis) {
            let extent = cx.spec(index).dims[other].clone();
            if cx.spec(x).dims[other] != extent {
                outer.push((x, other, extent.clone()));
                x = slice_axis(cx, x, other, &Expr::Int(0), &extent, 1)?;
            }
        }
        Ok(Scatter { x, index, axis, outer })
    }

    /// The source cut to the extents of the index.
    fn source(&self, cx: &mut Lower, call: &Call) -> Emitted {
        let mut src = cx.operand(call, "src", cx.spec(self.x).dtype)?;
        if cx.spec(src).rank() == 0 {
            src = cx.unsqueeze(src, 0)?;
        }
        for axis in 0..cx.spec(self.index).rank() {
            let extent = cx.spec(self.index).dims[axis].clone();
            if cx.spec(src).dims[axis] != extent {
                src = slice_axis(cx, src, axis, &Expr::Int(0), &extent, 1)?;
            }
        }
        Ok(src)
    }

    /// Writes the result back to the region that `x` was cut from.
    fn finish(self, cx: &mut Lower, call: &Call, mut result: Tid) -> Items {
        for (whole, axis, extent) in self.outer.into_iter().rev() {
            let stop = cx.int(&extent)?;
            result = super::attention::update_axis(cx, whole, result, axis as i64, flambeau_ir::Int::Lit(0), stop)?;
        }
        one(cx.reshape(result, &call.out(0)?.dims)?)
    }

    /// Number of indices that select each element.
    fn counts(&self, cx: &mut Lower) -> Emitted {
        let spec = cx.spec(self.x).clone();
        let zeros = ops::full(cx, 0.0, &spec.dims, DType::F32)?;
        let index_dims = cx.spec(self.index).dims.to_vec();
        let ones = ops::full(cx, 1.0, &index_dims, DType::F32)?;
        ops::scatter_add(cx, zeros, self.index, ones, self.axis)
    }

    /// Whether any index selects each element.
    fn hits(&self, cx: &mut Lower) -> Emitted {
        let counts = self.counts(cx)?;
        let zero = ops::number_like(cx, counts, 0.0)?;
        ops::gt(cx, counts, zero)
    }

    /// Whether a loop takes the indices one by one: their number is known only at run time, or a
    /// table of all pairs is too large. Loops that take minutes are left out.
    fn is_looped(&self, cx: &Lower) -> bool {
        const MAX_STEPS: i64 = 1 << 30;
        let size = |t: Tid| cx.spec(t).dims[self.axis].as_int();
        let (Some(n), Some(places)) = (size(self.index), size(self.x)) else { return true };
        let steps = cx.spec(self.x).numel().as_int().map(|all| n.saturating_mul(all));
        n.saturating_mul(places) > MAX_PAIRS && steps.is_none_or(|steps| steps <= MAX_STEPS)
    }

    /// `[.., S, P, ..]`: whether index `s` selects element `p` of the axis.
    fn pairs(&self, cx: &mut Lower) -> Emitted {
        let (n, places) = (&cx.spec(self.index).dims[self.axis], &cx.spec(self.x).dims[self.axis]);
        match (n.as_int(), places.as_int()) {
            (Some(n), Some(places)) if n.saturating_mul(places) <= MAX_PAIRS => {}
            _ => return unsupported(format!("a scatter of {n} elements into {places} places")),
        }
        let (places, rank) = (places.clone(), cx.spec(self.x).rank());
        let index = wrapped(cx, self.index, &places)?;
        let index = cx.unsqueeze(index, self.axis + 1)?;
        let dtype = cx.spec(index).dtype;
        let range = ops::count(cx, &places, dtype)?;
        let range = ops::along(cx, range, self.axis + 1, rank + 1)?;
        ops::eq(cx, index, range)
    }
}

/// Maps negative indices, which count from the end.
fn wrapped(cx: &mut Lower, index: Tid, size: &Expr) -> Emitted {
    let dtype = cx.spec(index).dtype;
    let size = match size.as_int() {
        Some(n) => cx.number(n as f64, dtype)?,
        None => {
            let v = flambeau_ir::Float::Vid(cx.vid(size)?);
            cx.emit(flambeau_ir::Full { out: NEW, shape: Vec::new(), v, scalar_type: dtype })?
        }
    };
    ops::remainder(cx, index, size)
}

fn scatter_add(cx: &mut Lower, call: &Call) -> Items {
    let scatter = Scatter::new(cx, call)?;
    let src = scatter.source(cx, call)?;
    let sum = ops::scatter_add(cx, scatter.x, scatter.index, src, scatter.axis)?;
    scatter.finish(cx, call, sum)
}

fn scatter_value(cx: &mut Lower, call: &Call) -> Items {
    let scatter = Scatter::new(cx, call)?;
    let value = cx.operand(call, "value", cx.spec(scatter.x).dtype)?;
    let hits = scatter.hits(cx)?;
    let result = ops::select(cx, hits, value, scatter.x)?;
    scatter.finish(cx, call, result)
}

/// Each element takes its value from the last index that selects it.
fn scatter_src(cx: &mut Lower, call: &Call) -> Items {
    let scatter = Scatter::new(cx, call)?;
    let src = scatter.source(cx, call)?;
    let result = last_written(cx, &scatter, src)?;
    scatter.finish(cx, call, result)
}

/// A loop over the indices: the selected element becomes `combine` of the source and the current
/// value.
fn one_by_one(
    cx: &mut Lower,
    scatter: &Scatter,
    base: Tid,
    src: Tid,
    combine: impl Fn(&mut Lower, Tid, Tid) -> Emitted,
) -> Emitted {
    let (axis, rank) = (scatter.axis, cx.spec(scatter.x).rank());
    let places = cx.spec(scatter.x).dims[axis].clone();
    let index = wrapped(cx, scatter.index, &places)?;
    let range = ops::count(cx, &places, cx.spec(index).dtype)?;
    let range = ops::along(cx, range, axis, rank)?;
    let (carried, _) = scan(cx, &[index, src], axis, &[base], |cx, slices, carried| {
        let (index, src) = (cx.unsqueeze(slices[0], axis)?, cx.unsqueeze(slices[1], axis)?);
        let named = ops::eq(cx, index, range)?;
        let combined = combine(cx, src, carried[0])?;
        let next = ops::select(cx, named, combined, carried[0])?;
        Ok(LoopStep { carry: vec![next], collect: Vec::new() })
    })?;
    carried.first().copied().ok_or_else(|| Refuse::Missing("self".to_owned()))
}

fn last_written(cx: &mut Lower, scatter: &Scatter, src: Tid) -> Emitted {
    let (axis, rank) = (scatter.axis, cx.spec(scatter.x).rank());
    if scatter.is_looped(cx) {
        return one_by_one(cx, scatter, scatter.x, src, |_, src, _| Ok(src));
    }
    let pairs = scatter.pairs(cx)?;
    let n = cx.spec(scatter.index).dims[axis].clone();
    let positions = ops::count(cx, &n, DType::I32)?;
    let positions = ops::along(cx, positions, axis, rank + 1)?;
    let none = cx.number(-1.0, DType::I32)?;
    let candidates = ops::select(cx, pairs, positions, none)?;
    let last = ops::max(cx, candidates, &[axis], false)?;
    let zero = cx.number(0.0, DType::I32)?;
    let hit = ops::ge(cx, last, zero)?;
    let value = ops::take_along(cx, src, last, axis)?;
    ops::select(cx, hit, value, scatter.x)
}

fn scatter_reduce(cx: &mut Lower, call: &Call) -> Items {
    let scatter = Scatter::new(cx, call)?;
    let src = match call.arg("src") {
        Some(_) => scatter.source(cx, call)?,
        None => {
            let value = cx.operand(call, "value", cx.spec(scatter.x).dtype)?;
            let dims = cx.spec(scatter.index).dims.to_vec();
            expand_to(cx, value, &dims)?
        }
    };
    let reduced = reduced(cx, call, &scatter, src)?;
    scatter.finish(cx, call, reduced)
}

/// Applies the call's reduction.
fn reduced(cx: &mut Lower, call: &Call, scatter: &Scatter, src: Tid) -> Emitted {
    let own = call.bool_or("include_self", true)?;
    let dtype = cx.spec(scatter.x).dtype;
    let reduced = match call.str_or("reduce", "")? {
        "sum" | "add" => reduce_sum(cx, scatter, src, own)?,
        "mean" => reduce_mean(cx, scatter, src, own)?,
        "prod" | "multiply" => reduce_pairs(cx, scatter, src, own, 1.0, ops::prod, ops::mul)?,
        "amax" => reduce_pairs(cx, scatter, src, own, ops::lowest(dtype), ops::max, ops::maximum)?,
        "amin" => reduce_pairs(cx, scatter, src, own, ops::highest(dtype), ops::min, ops::minimum)?,
        other => return unsupported(format!("reduction {other:?}")),
    };
    cx.cast(reduced, dtype)
}

/// Reduces rows of the source into the indexed elements.
fn index_reduce(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (x, src) = (cx.operand(call, "self", dtype)?, cx.operand(call, "source", dtype)?);
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    let index = index_list(cx, call)?;
    let dims = cx.spec(src).dims.to_vec();
    let index = ops::along(cx, index, axis, dims.len())?;
    let index = expand_to(cx, index, &dims)?;
    let scatter = Scatter { x, index, axis, outer: Vec::new() };
    let reduced = reduced(cx, call, &scatter, src)?;
    scatter.finish(cx, call, reduced)
}

/// `x` with written elements reset, unless `own` includes them in the reduction.
fn base(cx: &mut Lower, scatter: &Scatter, own: bool) -> Emitted {
    if own {
        return Ok(scatter.x);
    }
    let hits = scatter.hits(cx)?;
    let zero = ops::number_like(cx, scatter.x, 0.0)?;
    ops::select(cx, hits, zero, scatter.x)
}

fn reduce_sum(cx: &mut Lower, scatter: &Scatter, src: Tid, own: bool) -> Emitted {
    let base = base(cx, scatter, own)?;
    ops::scatter_add(cx, base, scatter.index, src, scatter.axis)
}

fn reduce_mean(cx: &mut Lower, scatter: &Scatter, src: Tid, own: bool) -> Emitted {
    let sum = reduce_sum(cx, scatter, src, own)?;
    let counts = scatter.counts(cx)?;
    let counts = if own {
        ops::add_number(cx, counts, 1.0)?
    } else {
        let unit = ops::number_like(cx, counts, 1.0)?;
        ops::maximum(cx, counts, unit)?
    };
    let dtype = cx.spec(scatter.x).dtype;
    let counts = cx.cast(counts, dtype)?;
    if dtype.is_float() { ops::div(cx, sum, counts) } else { ops::floor_div(cx, sum, counts) }
}

fn reduce_pairs(
    cx: &mut Lower,
    scatter: &Scatter,
    src: Tid,
    own: bool,
    neutral: f64,
    reduce: fn(&mut Lower, Tid, &[usize], bool) -> Emitted,
    combine: fn(&mut Lower, Tid, Tid) -> Emitted,
) -> Emitted {
    let neutral = ops::number_like(cx, scatter.x, neutral)?;
    if scatter.is_looped(cx) {
        let base = match own {
            true => scatter.x,
            false => {
                let hits = scatter.hits(cx)?;
                ops::select(cx, hits, neutral, scatter.x)?
            }
        };
        return one_by_one(cx, scatter, base, src, combine);
    }
    let pairs = scatter.pairs(cx)?;
    let spread = cx.unsqueeze(src, scatter.axis + 1)?;
    let candidates = ops::select(cx, pairs, spread, neutral)?;
    let reduced = reduce(cx, candidates, &[scatter.axis], false)?;
    let reduced = cx.cast(reduced, cx.spec(scatter.x).dtype)?;
    if own {
        return combine(cx, scatter.x, reduced);
    }
    let hits = ops::any(cx, pairs, &[scatter.axis], false)?;
    ops::select(cx, hits, reduced, scatter.x)
}

/// Puts elements back at the indices found by a pooling over the last `n` axes; zeros elsewhere.
fn max_unpool(cx: &mut Lower, call: &Call, n: usize) -> Items {
    let (x, index) = (call.tensor("self")?, call.tensor("indices")?);
    let (dims, out) = (cx.spec(x).dims.to_vec(), call.out(0)?.dims.clone());
    let lead = dims.len().saturating_sub(n);
    let flat = |dims: &[Expr]| [&dims[..lead], &[ops::volume(&dims[lead..])]].concat();
    let (src, index) = (cx.reshape(x, &flat(&dims))?, cx.reshape(index, &flat(&dims))?);
    let zeros = ops::full(cx, 0.0, &flat(&out), cx.spec(src).dtype)?;
    let scatter = Scatter { x: zeros, index, axis: lead, outer: Vec::new() };
    let result = last_written(cx, &scatter, src)?;
    one(cx.reshape(result, &out)?)
}

/// A list of indices along one axis, as i64 of rank 1.
fn index_list(cx: &mut Lower, call: &Call) -> Emitted {
    let index = call.tensor("index")?;
    let index = cx.cast(index, DType::I64)?;
    if cx.spec(index).rank() == 0 { cx.unsqueeze(index, 0) } else { Ok(index) }
}

fn index_add(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (x, source) = (cx.operand(call, "self", dtype)?, cx.operand(call, "source", dtype)?);
    let rank = cx.spec(x).rank();
    let axis = cx.axis(call, "dim", 0, rank)?;
    let source = ops::mul_number(cx, source, call.float_or("alpha", 1.0)?)?;
    let index = index_list(cx, call)?;
    one(add_at(cx, x, index, source, axis)?)
}

/// `x[.., index[i], ..] += source[.., i, ..]`.
fn add_at(cx: &mut Lower, x: Tid, index: Tid, source: Tid, axis: usize) -> Emitted {
    let dims = cx.spec(source).dims.to_vec();
    let index = ops::along(cx, index, axis, dims.len())?;
    let index = expand_to(cx, index, &dims)?;
    ops::scatter_add(cx, x, index, source, axis)
}

/// `x[.., index[i], ..] = update[.., i, ..]`.
fn copy_at(cx: &mut Lower, x: Tid, index: Tid, update: Tid, axis: usize) -> Emitted {
    cx.emit(IndexCopy { dst: In(x), update: In(update), indices: In(index), out: NEW, axis: axis as i32 })
}

fn index_fill(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let rank = cx.spec(x).rank();
    let axis = cx.axis(call, "dim", 0, rank)?;
    let index = index_list(cx, call)?;
    let value = cx.operand(call, "value", cx.spec(x).dtype)?;
    let mut dims = cx.spec(x).dims.to_vec();
    dims[axis] = cx.spec(index).dims[0].clone();
    let update = expand_to(cx, value, &dims)?;
    one(copy_at(cx, x, index, update, axis)?)
}

/// `x[indices] = values`. Indices of non-adjacent axes put their dims first in `values`, so these
/// axes are moved to the front first.
pub(super) fn index_put(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let dtype = cx.spec(x).dtype;
    let values = cx.operand(call, "values", dtype)?;
    let indices = call.tensors_opt("indices")?;
    let given: Vec<(usize, Tid)> = indices.iter().enumerate().filter_map(|(a, t)| t.map(|t| (a, t))).collect();
    if given.is_empty() {
        return one(x);
    }
    if given.iter().any(|(_, t)| matches!(cx.spec(*t).dtype, DType::Bool | DType::U8)) {
        return masked_put(cx, call, x, &given, values);
    }
    let accumulate = call.bool_or("accumulate", false)?;
    if given.windows(2).all(|w| w[1].0 == w[0].0 + 1) {
        return one(put_at(cx, x, &given, values, accumulate)?);
    }
    let axes: Vec<usize> = given.iter().map(|g| g.0).collect();
    let perm: Vec<usize> = axes.iter().copied().chain((0..cx.spec(x).rank()).filter(|a| !axes.contains(a))).collect();
    let leading: Vec<(usize, Tid)> = given.iter().enumerate().map(|(at, g)| (at, g.1)).collect();
    let moved = cx.permute(x, &perm)?;
    let put = put_at(cx, moved, &leading, values, accumulate)?;
    let back: Vec<usize> = (0..perm.len()).filter_map(|a| perm.iter().position(|&p| p == a)).collect();
    one(cx.permute(put, &back)?)
}

/// Writes by indices of adjacent axes, joined into one axis.
pub(super) fn put_at(cx: &mut Lower, x: Tid, given: &[(usize, Tid)], values: Tid, accumulate: bool) -> Emitted {
    let Some(&(first, head)) = given.first() else { return Ok(x) };
    let spec = cx.spec(x).clone();
    let (lead, rest) = (&spec.dims[..first], &spec.dims[first + given.len()..]);
    let joined = &spec.dims[first..first + given.len()];
    let index = if given.len() == 1 { head } else { linear_index(cx, given, joined)? };
    let index = cx.cast(index, DType::I64)?;
    let index_dims = cx.spec(index).dims.to_vec();
    let values = expand_to(cx, values, &[lead, &index_dims, rest].concat())?;
    let n = ops::volume(&index_dims);
    let index = cx.reshape(index, std::slice::from_ref(&n))?;
    let values = cx.reshape(values, &[lead, &[n], rest].concat())?;
    let flat = cx.reshape(x, &[lead, &[ops::volume(joined)], rest].concat())?;
    let put = if accumulate { add_at } else { copy_at };
    let result = put(cx, flat, index, values, first)?;
    cx.reshape(result, &spec.dims)
}

/// Indices of several axes combined into an index of the joined axis.
fn linear_index(cx: &mut Lower, given: &[(usize, Tid)], sizes: &[Expr]) -> Emitted {
    let mut linear: Option<Tid> = None;
    for (&(_, index), size) in given.iter().zip(sizes) {
        let index = cx.cast(index, DType::I64)?;
        let index = wrapped(cx, index, size)?;
        linear = Some(match linear {
            None => index,
            Some(outer) => {
                let size = match size.as_int() {
                    Some(size) => cx.integer(size, DType::I64)?,
                    None => {
                        let size = cx.size_tensor(size)?;
                        cx.cast(size, DType::I64)?
                    }
                };
                let outer = ops::mul(cx, outer, size)?;
                ops::add(cx, outer, index)?
            }
        });
    }
    linear.ok_or_else(|| Refuse::Missing("indices[0]".to_owned()))
}

/// `x[mask] = values`: one value for all selected elements, or consecutive values.
fn masked_put(cx: &mut Lower, call: &Call, x: Tid, given: &[(usize, Tid)], values: Tid) -> Items {
    let &[(axis, mask)] = given else { return unsupported("a write by several masks") };
    let dims = cx.spec(x).dims.to_vec();
    if axis != 0 {
        return unsupported("a write by a mask of other than the first axes");
    }
    let mut mask = cx.cast(mask, DType::Bool)?;
    let rest = dims.len().saturating_sub(cx.spec(mask).rank());
    while cx.spec(mask).rank() < dims.len() {
        mask = cx.unsqueeze(mask, cx.spec(mask).rank())?;
    }
    // Values without an axis for the selected elements apply to every one of them.
    let mut values = values;
    if cx.spec(values).rank() > rest && cx.spec(values).dims[0] == Expr::Int(1) {
        let dims = cx.spec(values).dims[1..].to_vec();
        values = cx.reshape(values, &dims)?;
    }
    if cx.spec(values).rank() > rest {
        if call.bool_or("accumulate", false)? {
            return unsupported("a sum of several values by a mask");
        }
        return one(scatter_by_mask(cx, x, mask, values)?);
    }
    if call.bool_or("accumulate", false)? {
        values = ops::add(cx, x, values)?;
    }
    one(ops::select(cx, mask, values, x)?)
}

/// The `n`-th selected element takes the `n`-th element of the source.
fn masked_scatter(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (x, source) = (cx.operand(call, "self", dtype)?, cx.operand(call, "source", dtype)?);
    let dims = call.out(0)?.dims.clone();
    let mask = call.tensor("mask")?;
    let x = expand_to(cx, x, &dims)?;
    one(scatter_by_mask(cx, x, mask, source)?)
}

fn scatter_by_mask(cx: &mut Lower, x: Tid, mask: Tid, source: Tid) -> Emitted {
    let dims = cx.spec(x).dims.to_vec();
    let mask = expand_to(cx, mask, &dims)?;
    let flat = cx.reshape(mask, &[ops::volume(&dims)])?;
    let numbers = cx.cast(flat, DType::I32)?;
    let totals = ops::cumsum(cx, numbers, 0)?;
    let places = ops::add_number(cx, totals, -1.0)?;
    let n = cx.spec(source).numel();
    let source = cx.reshape(source, &[n])?;
    let taken = ops::take(cx, source, places, 0)?;
    let taken = cx.reshape(taken, &dims)?;
    ops::select(cx, mask, taken, x)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._unsafe_index_put.default", index_put),
    row("aten.index_add.default", |cx, call| lifted(cx, call, &["self", "source"], index_add)),
    row("aten.index_fill.int_Scalar", |cx, call| lifted(cx, call, &["self"], index_fill)),
    row("aten.index_fill.int_Tensor", |cx, call| lifted(cx, call, &["self"], index_fill)),
    row("aten.index_put.default", index_put),
    row("aten.index_reduce.default", |cx, call| lifted(cx, call, &["self", "source"], index_reduce)),
    row("aten.masked_scatter.default", masked_scatter),
    row("aten.max_unpool2d.default", |cx, call| max_unpool(cx, call, 2)),
    row("aten.max_unpool3d.default", |cx, call| max_unpool(cx, call, 3)),
    row("aten.scatter.reduce", scatter_reduce),
    row("aten.scatter.src", scatter_src),
    row("aten.scatter.value", scatter_value),
    row("aten.scatter.value_reduce", scatter_reduce),
    row("aten.scatter_add.default", scatter_add),
    row("aten.scatter_reduce.two", scatter_reduce),
];
