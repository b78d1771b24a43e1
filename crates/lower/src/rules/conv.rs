//! Convolutions. Nodes take channels-last operands; constant weights are permuted while the program
//! is written.

use flambeau_ir::{Convolution, In, Tid};
use flambeau_tensor::{Expr, WindowAxis};

use super::{
    RuleRow,
    geometry::per_axis_or,
    integer_conv::IntegerConvolution,
    one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW, simplify::permuted_constant};

type Items = Result<Vec<Item>, Refuse>;

/// Maximum number of groups of a 3-D convolution that become one node each.
const MAX_GROUP_NODES: usize = 64;

/// Geometry of a convolution, with one entry per spatial axis.
struct Walk {
    axes: Vec<WindowAxis>,
    groups: i32,
    transposed: bool,
}

fn walk(call: &Call, n: usize, transposed: bool) -> Result<Walk, Refuse> {
    let strings = matches!(call.arg("padding"), Some(crate::Arg::Str(_)));
    let padding = if strings { vec![0; n] } else { per_axis_or(call, "padding", 0, n)? };
    let (stride, dilation) = (per_axis_or(call, "stride", 1, n)?, per_axis_or(call, "dilation", 1, n)?);
    let grown = if transposed { per_axis_or(call, "output_padding", 0, n)? } else { vec![0; n] };
    let axis = |i| WindowAxis { stride: stride[i], padding: padding[i], dilation: dilation[i], output_padding: grown[i] };
    let groups = i32::try_from(call.int_or("groups", 1)?).unwrap_or(0);
    Ok(Walk { axes: (0..n).map(axis).collect(), groups, transposed })
}

/// Permutes a constant in its expression, any other tensor by a node.
fn permuted(cx: &mut Lower, t: Tid, perm: &[usize]) -> Emitted {
    match permuted_constant(cx, t, perm, "channel_last") {
        Some(t) => Ok(t),
        None => cx.permute(t, perm),
    }
}

/// `[N, C, S..]` to `[N, S.., C]`, or back.
fn channels_last(cx: &mut Lower, x: Tid, n: usize) -> Emitted {
    let perm: Vec<usize> = [0].into_iter().chain(2..n + 2).chain([1]).collect();
    cx.permute(x, &perm)
}

fn channels_first(cx: &mut Lower, x: Tid, n: usize) -> Emitted {
    let perm: Vec<usize> = [0, n + 1].into_iter().chain(1..n + 1).collect();
    cx.permute(x, &perm)
}

/// `[O, I/G, K..]` to `[O, K.., I/G]`.
fn weight_last(cx: &mut Lower, w: Tid, n: usize) -> Emitted {
    let perm: Vec<usize> = [0].into_iter().chain(2..n + 2).chain([1]).collect();
    permuted(cx, w, &perm)
}

/// `[I, O/G, K..]` to `[O, K.., I/G]`.
fn transposed_weight_last(cx: &mut Lower, w: Tid, n: usize, groups: i32) -> Emitted {
    if groups == 1 {
        let perm: Vec<usize> = [1].into_iter().chain(2..n + 2).chain([0]).collect();
        return permuted(cx, w, &perm);
    }
    let dims = cx.spec(w).dims.to_vec();
    let g = Expr::Int(i64::from(groups));
    let Some(per_group) = ops::share(&dims[0], &g) else { return unsupported("input channels do not divide into groups") };
    let split = [&[g.clone(), per_group.clone()], &dims[1..]].concat();
    let split = cx.reshape(w, &split)?;
    let perm: Vec<usize> = [0, 2].into_iter().chain(3..n + 3).chain([1]).collect();
    let moved = permuted(cx, split, &perm)?;
    let joined = [&[g * dims[1].clone()], &dims[2..], &[per_group]].concat();
    cx.reshape(moved, &joined)
}

/// One convolution node over channels-last operands.
fn node(cx: &mut Lower, x: Tid, w: Tid, walk: &Walk, groups: i32) -> Emitted {
    let axes = walk.axes.iter().copied().collect();
    let convolution = Convolution { x: In(x), w: In(w), out: NEW, axes, groups, transposed: walk.transposed };
    match convolution.node() {
        Some(node) => ops::first(&cx.emit_all(node)?),
        None => unsupported(format!("a convolution that walks over its axes by {:?}", walk.axes)),
    }
}

/// Lowers a grouped convolution. Nodes over three axes support one group only, so more groups
/// become convolutions of slices.
fn grouped(cx: &mut Lower, x: Tid, w: Tid, walk: &Walk) -> Emitted {
    if !cx.spec(x).dtype.is_float() {
        let (axes, groups, transposed) = (&walk.axes[..], walk.groups.into(), walk.transposed);
        return IntegerConvolution { x, weight: w, axes, groups, transposed }.emit(cx);
    }
    let groups = usize::try_from(walk.groups).unwrap_or(0);
    if walk.axes.len() < 3 || groups <= 1 {
        return node(cx, x, w, walk, walk.groups);
    }
    if let Some(taps) = cx.spec(w).dims[1].as_int().filter(|&taps| !walk.transposed && taps < groups as i64) {
        return by_planes(cx, x, w, walk, taps);
    }
    if groups > MAX_GROUP_NODES {
        return unsupported(format!("a 3-D convolution in {groups} groups"));
    }
    let last = cx.spec(x).rank() - 1;
    let (xs, ws) = (ops::split_evenly(cx, x, groups, last)?, ops::split_evenly(cx, w, groups, 0)?);
    let parts = xs.into_iter().zip(ws).map(|(x, w)| node(cx, x, w, walk, 1)).collect::<Result<Vec<_>, _>>()?;
    ops::concat(cx, &parts, last)
}

/// A grouped convolution over three axes. It sums `taps` two-axis convolutions, one per kernel
/// index along the first axis, with planes as batch entries.
fn by_planes(cx: &mut Lower, x: Tid, w: Tid, walk: &Walk, taps: i64) -> Emitted {
    let dtype = cx.spec(x).dtype;
    let (mut x, w) = (cx.cast(x, ops::wide(dtype))?, cx.cast(w, ops::wide(dtype))?);
    let [depth, inner @ ..] = &walk.axes[..] else { return unsupported("a convolution without axes") };
    let planes = depth.windows(&cx.spec(x).dims[1].clone(), &Expr::Int(taps));
    if depth.padding != 0 {
        let (none, width) = ((Expr::Int(0), Expr::Int(0)), (Expr::Int(depth.padding), Expr::Int(depth.padding)));
        x = ops::pad(cx, x, &[none.clone(), width, none.clone(), none.clone(), none], "constant", 0.0)?;
    }
    let inner = Walk { axes: inner.to_vec(), ..*walk };
    let mut total = None;
    for tap in 0..taps {
        let start = Expr::Int(tap * depth.dilation);
        let stop = (planes.clone() - Expr::Int(1)) * Expr::Int(depth.stride) + start.clone() + Expr::Int(1);
        let seen = super::shape::slice_axis(cx, x, 1, &start, &stop, depth.stride as i32)?;
        let [n, _, sizes @ ..] = &cx.spec(seen).dims.to_vec()[..] else { return unsupported("a convolution without axes") };
        let flat = cx.reshape(seen, &[&[n.clone() * planes.clone()], sizes].concat())?;
        let kernel = ops::take_one(cx, w, tap, 1)?;
        let part = node(cx, flat, kernel, &inner, walk.groups)?;
        let dims = [&[n.clone(), planes.clone()], &cx.spec(part).dims.to_vec()[1..]].concat();
        let part = cx.reshape(part, &dims)?;
        total = Some(total.map_or(Ok(part), |sum| ops::add(cx, sum, part))?);
    }
    let total = total.ok_or_else(|| Refuse::Missing("weight".to_owned()))?;
    cx.cast(total, dtype)
}

/// Zero padding that keeps the sizes under stride 1; an odd total puts more at the end.
fn pad_same(cx: &mut Lower, x: Tid, w: Tid, walk: &mut Walk) -> Emitted {
    if walk.axes.iter().any(|axis| axis.stride != 1) {
        return unsupported("`same` padding with a stride");
    }
    let kernel = &cx.spec(w).dims[1..=walk.axes.len()];
    let totals: Vec<Expr> = kernel.iter().zip(&walk.axes).map(|(k, axis)| axis.span(k.clone()) - Expr::Int(1)).collect();
    let even = |t: &Expr| t.as_int().filter(|t| t % 2 == 0);
    if let Some(known) = totals.iter().map(even).collect::<Option<Vec<i64>>>() {
        walk.axes.iter_mut().zip(known).for_each(|(axis, t)| axis.padding = t / 2);
        return Ok(x);
    }
    let none = (Expr::Int(0), Expr::Int(0));
    let mut widths = vec![none.clone()];
    widths.extend(totals.iter().map(|t| {
        let before = t.floor_div(&Expr::Int(2));
        (before.clone(), t.clone() - before)
    }));
    widths.push(none);
    ops::pad(cx, x, &widths, "constant", 0.0)
}

/// A convolution over `n` axes, with or without a batch axis.
fn convolve(cx: &mut Lower, call: &Call, n: usize, transposed: bool) -> Items {
    // PyTorch adds the bias before it rounds to half precision. Except in transposed convolutions,
    // constant weights stay in half precision, for the sake of file size and GPUs. There the bias
    // follows the rounding, as in MLX's own layers.
    let is_constant = cx.graph().constant(call.tensor("weight")?).is_some();
    let is_wide = call.arg("bias").is_some() && (transposed || !is_constant);
    let dtype = if is_wide { ops::wide(call.out(0)?.dtype) } else { call.out(0)?.dtype };
    let (mut x, w) = (cx.operand(call, "input", dtype)?, cx.operand(call, "weight", dtype)?);
    let batched = cx.spec(x).rank() == n + 2;
    if !batched {
        x = cx.unsqueeze(x, 0)?;
    }
    if cx.spec(x).rank() != n + 2 || cx.spec(w).rank() != n + 2 {
        return unsupported(format!("operands do not have {n} spatial axes"));
    }
    let mut walk = walk(call, n, transposed)?;
    let w = if transposed { transposed_weight_last(cx, w, n, walk.groups)? } else { weight_last(cx, w, n)? };
    let mut x = channels_last(cx, x, n)?;
    match call.arg("padding") {
        Some(crate::Arg::Str(name)) if name == "same" => x = pad_same(cx, x, w, &mut walk)?,
        Some(crate::Arg::Str(name)) if name != "valid" => return unsupported(format!("padding {name:?}")),
        _ => {}
    }
    let mut y = grouped(cx, x, w, &walk)?;
    if call.arg("bias").is_some() {
        let bias = cx.operand(call, "bias", dtype)?;
        y = ops::add(cx, y, bias)?;
    }
    let y = channels_first(cx, y, n)?;
    one(if batched { y } else { cx.emit(flambeau_ir::Squeeze { x: In(y), out: NEW, dims: vec![0] })? })
}

macro_rules! convolutions {
    ($($name:ident($n:literal, $transposed:literal);)*) => { $(
        fn $name(cx: &mut Lower, call: &Call) -> Items {
            convolve(cx, call, $n, $transposed)
        }
    )* };
}

convolutions! {
    conv1d(1, false);
    conv2d(2, false);
    conv3d(3, false);
    conv_transpose1d(1, true);
    conv_transpose2d(2, true);
    conv_transpose3d(3, true);
}

fn convolution(cx: &mut Lower, call: &Call) -> Items {
    let n = cx.spec(call.tensor("weight")?).rank().saturating_sub(2);
    convolve(cx, call, n, call.bool_or("transposed", false)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._convolution.default", convolution),
    row("aten.conv1d.default", conv1d),
    row("aten.conv1d.padding", conv1d),
    row("aten.conv2d.default", conv2d),
    row("aten.conv2d.padding", conv2d),
    row("aten.conv3d.default", conv3d),
    row("aten.conv3d.padding", conv3d),
    row("aten.conv_transpose1d.default", conv_transpose1d),
    row("aten.conv_transpose2d.input", conv_transpose2d),
    row("aten.conv_transpose3d.input", conv_transpose3d),
    row("aten.convolution.default", convolution),
];
