//! Complex calls that move or sum elements: the same call on pairs of real and imaginary parts.

use flambeau_aten::{Literal, schema};
use flambeau_tensor::{Expr, normalize_axis};

use super::{Items, conjugate, expand_to, first, pair_of, part_type, result};
use crate::{Arg, Call, Item, Lower, call::unsupported};

/// Lowers a call that moves or sums elements as the same call on pairs. `sizes` names the parameter
/// with the result's sizes. `axes` names the parameters with axes; these count in the operand's
/// rank plus `more`.
pub(super) fn moved(cx: &mut Lower, call: &Call, sizes: Option<&str>, axes: &[&str], more: usize) -> Items {
    let dtype = part_type(cx, call)?;
    let of_rank = call.reads().find(|t| cx.spec(*t).dtype.part().is_some());
    let rank = of_rank.map_or(0, |t| cx.spec(t).rank()) + more;
    let front = |e: &Expr| match e.as_int().and_then(|axis| normalize_axis(axis, rank)) {
        Some(axis) => Ok(Expr::Int(axis as i64)),
        None => unsupported("an axis that the tensor does not have"),
    };
    let mut inner = call.clone();
    for name in axes {
        if call.arg(name).is_none()
            && let Some(Literal::Int(axis)) = schema(&call.target).and_then(|s| s.param(name)?.default.clone())
        {
            inner.args.push(((*name).to_owned(), Arg::Int(Expr::Int(axis))));
        }
    }
    for (name, arg) in &mut inner.args {
        *arg = match std::mem::replace(arg, Arg::None) {
            Arg::Tensor(t) if cx.spec(t).dtype.part().is_some() || matches!(&name[..], "self" | "src" | "values") => {
                Arg::Tensor(pair_of(cx, t, dtype)?)
            }
            Arg::Tensors(list) if name == "tensors" => {
                let pairs = list.into_iter().map(|t| t.map(|t| pair_of(cx, t, dtype)).transpose());
                Arg::Tensors(pairs.collect::<Result<_, _>>()?)
            }
            Arg::Ints(list) if sizes == Some(&name[..]) => Arg::Ints(list.into_iter().chain([two(name)]).collect()),
            Arg::Int(e) if axes.contains(&&name[..]) => Arg::Int(front(&e)?),
            Arg::Ints(list) if axes.contains(&&name[..]) => Arg::Ints(list.iter().map(front).collect::<Result<_, _>>()?),
            other => other,
        };
    }
    pairs(cx, inner)
}

/// The entry of the pairs' last axis in a list argument: 1 repeat, or size 2.
fn two(param: &str) -> Expr {
    Expr::Int(if param == "repeats" { 1 } else { 2 })
}

/// Lowers a call on pairs; its results are complex.
fn pairs(cx: &mut Lower, mut call: Call) -> Items {
    for out in &mut call.outputs {
        out.dtype = out.dtype.part().unwrap_or(out.dtype);
        out.dims.push(Expr::Int(2));
    }
    let items = cx.inner_call(&call)?;
    let whole = |cx: &mut Lower, item| match item {
        Item::Tensor(t) => Item::Tensor(cx.complex(t)),
        Item::Tensors(list) => Item::Tensors(list.into_iter().map(|t| cx.complex(t)).collect()),
        other => other,
    };
    Ok(items.into_iter().map(|item| whole(cx, item)).collect())
}

/// [`moved`] for a call with an optional list of axes: an absent or empty list becomes all axes.
pub(super) fn over_axes(cx: &mut Lower, call: &Call, param: &str) -> Items {
    let rank = cx.spec(call.tensor("self")?).rank() as i64;
    let mut inner = call.clone();
    let lists_none = call.arg(param).is_none() || matches!(call.arg(param), Some(Arg::Ints(list)) if list.is_empty());
    if lists_none {
        inner.args.retain(|(name, _)| name != param && name != "dtype");
        inner.args.push((param.to_owned(), Arg::Ints((0..rank).map(Expr::Int).collect())));
        inner.target = match &call.target[..] {
            "aten.sum.default" => "aten.sum.dim_IntList".to_owned(),
            "aten.mean.default" => "aten.mean.dim".to_owned(),
            other => other.to_owned(),
        };
    }
    inner.args.retain(|(name, _)| name != "dtype");
    moved(cx, &inner, None, &[param], 0)
}

pub(super) fn permuted(cx: &mut Lower, call: &Call) -> Items {
    let rank = cx.spec(call.tensor("self")?).rank();
    let axes = call.ints("dims")?.into_iter().map(|a| normalize_axis(a, rank)).collect::<Option<Vec<_>>>();
    let Some(mut axes) = axes else { return unsupported("an axis that the tensor does not have") };
    axes.push(rank);
    let pair = first(cx, call)?;
    let made = cx.permute(pair, &axes);
    result(cx, call, made)
}

/// Swaps the last two axes; `conjugated` conjugates the result too.
pub(super) fn transpose(cx: &mut Lower, call: &Call, conjugated: bool) -> Items {
    let pair = first(cx, call)?;
    let rank = cx.spec(pair).rank() - 1;
    let mut axes: Vec<usize> = (0..=rank).collect();
    if rank >= 2 {
        axes.swap(rank - 2, rank - 1);
    }
    let mut made = cx.permute(pair, &axes)?;
    if conjugated {
        made = conjugate(cx, made)?;
    }
    result(cx, call, Ok(made))
}

/// Expands or reshapes the operand to the recorded shape.
pub(super) fn sized_as_result(cx: &mut Lower, call: &Call) -> Items {
    let pair = first(cx, call)?;
    let dims: Vec<Expr> = call.out(0)?.dims.iter().cloned().chain([Expr::Int(2)]).collect();
    let made = if call.target.contains("expand") { expand_to(cx, pair, &dims) } else { cx.reshape(pair, &dims) };
    result(cx, call, made)
}

pub(super) fn unflattened(cx: &mut Lower, call: &Call) -> Items {
    sized_as_result(cx, call)
}

/// Pads with zeros; the pairs' last axis stays.
pub(super) fn padded(cx: &mut Lower, call: &Call) -> Items {
    if call.float_or("value", 0.0)? != 0.0 {
        return unsupported("complex tensors are padded with zeros alone");
    }
    let mut inner = call.clone();
    inner.args.retain(|(name, _)| name != "value");
    for (name, arg) in &mut inner.args {
        match arg {
            Arg::Ints(list) if name == "pad" => *list = [Expr::Int(0), Expr::Int(0)].into_iter().chain(list.drain(..)).collect(),
            _ => {}
        }
    }
    moved(cx, &inner, None, &[], 0)
}
