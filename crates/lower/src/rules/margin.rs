//! Losses with a margin over distances, scores and classes, and the fused loss of a linear layer
//! and cross-entropy.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow,
    distance::distance,
    elementwise::promoted,
    linalg::linear_of,
    loss::{cross_entropy_of, reduced},
    one,
    ops::{self, Emitted},
    row,
};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// PyTorch's addend to squared lengths before a division.
const COSINE_EPS: f64 = 1e-12;

/// An operand in the type in which PyTorch computes the result.
fn wide_operand(cx: &mut Lower, call: &Call, param: &str) -> Emitted {
    cx.operand(call, param, ops::wide(call.out(0)?.dtype))
}

/// `max(0, x)`; NaN stays NaN.
fn positive_part(cx: &mut Lower, x: Tid) -> Emitted {
    let zero = ops::number_like(cx, x, 0.0)?;
    ops::maximum(cx, x, zero)
}

/// The labels in a type that can hold -1.
fn labels_of(cx: &mut Lower, call: &Call) -> Emitted {
    let labels = call.tensor("target")?;
    if cx.spec(labels).dtype == DType::Bool { cx.cast(labels, DType::I32) } else { Ok(labels) }
}

/// `x` where the labels equal `label`, 0 elsewhere.
fn where_label(cx: &mut Lower, labels: Tid, label: f64, x: Tid) -> Emitted {
    let (label, zero) = (ops::number_like(cx, labels, label)?, ops::number_like(cx, x, 0.0)?);
    let hit = ops::eq(cx, labels, label)?;
    ops::select(cx, hit, x, zero)
}

/// `1 - cos` of pairs labelled 1, `max(0, cos - margin)` of pairs labelled -1.
fn cosine_embedding(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = (wide_operand(cx, call, "input1")?, wide_operand(cx, call, "input2")?);
    let labels = labels_of(cx, call)?;
    let axis = [usize::from(cx.spec(labels).rank() > 0)];
    let mut sum_of = |a: Tid, b: Tid, eps: f64| {
        let product = ops::mul(cx, a, b)?;
        let sum = ops::sum(cx, product, &axis, false)?;
        ops::add_number(cx, sum, eps)
    };
    let (dot, a, b) = (sum_of(a, b, 0.0)?, sum_of(a, a, COSINE_EPS)?, sum_of(b, b, COSINE_EPS)?);
    let lengths = ops::mul(cx, a, b)?;
    let lengths = ops::sqrt(cx, lengths)?;
    let cosine = ops::div(cx, dot, lengths)?;
    let apart = ops::number_minus(cx, 1.0, cosine)?;
    let beyond = ops::add_number(cx, cosine, -call.float_or("margin", 0.0)?)?;
    let beyond = positive_part(cx, beyond)?;
    let (alike, unlike) = (where_label(cx, labels, 1.0, apart)?, where_label(cx, labels, -1.0, beyond)?);
    let elements = ops::add(cx, alike, unlike)?;
    one(reduced(cx, call, elements)?)
}

/// `x` where the label is not -1, plus `max(0, margin - x)` where it is not 1.
fn hinge_embedding(cx: &mut Lower, call: &Call) -> Items {
    // PyTorch rounds the elements before it takes their mean.
    let x = cx.operand(call, "self", call.out(0)?.dtype)?;
    let labels = labels_of(cx, call)?;
    let short = ops::number_minus(cx, call.float_or("margin", 1.0)?, x)?;
    let short = positive_part(cx, short)?;
    let mut unless = |label: f64, value: Tid| {
        let (label, zero) = (ops::number_like(cx, labels, label)?, ops::number_like(cx, value, 0.0)?);
        let other = ops::ne(cx, labels, label)?;
        ops::select(cx, other, value, zero)
    };
    let (own, short) = (unless(-1.0, x)?, unless(1.0, short)?);
    let elements = ops::add(cx, own, short)?;
    one(reduced(cx, call, elements)?)
}

/// Scores `[N, C]`, and whether the call has a batch axis.
fn scores(cx: &mut Lower, call: &Call) -> Result<(Tid, bool), Refuse> {
    let x = wide_operand(cx, call, "self")?;
    match cx.spec(x).rank() {
        2 => Ok((x, true)),
        0 | 1 => {
            let n = cx.spec(x).numel();
            Ok((cx.reshape(x, &[Expr::Int(1), n])?, false))
        }
        rank => unsupported(format!("scores of rank {rank}")),
    }
}

/// Losses `[N]` divided by the number of classes, reduced.
fn over_classes(cx: &mut Lower, call: &Call, losses: Tid, classes: &Expr, entries: bool) -> Emitted {
    let classes = cx.size_tensor(classes)?;
    let classes = cx.cast(classes, cx.spec(losses).dtype)?;
    let losses = ops::div(cx, losses, classes)?;
    let loss = reduced(cx, call, losses)?;
    if entries { Ok(loss) } else { cx.reshape(loss, &call.out(0)?.dims.clone()) }
}

/// `max(0, margin - x[target] + x[j])^p`, weighted by the target's class and summed over the other
/// classes `j`.
fn multi_margin(cx: &mut Lower, call: &Call) -> Items {
    let (x, entries) = scores(cx, call)?;
    let classes = cx.spec(x).dims[1].clone();
    let target = call.tensor("target")?;
    let n = cx.spec(target).numel();
    let index = cx.reshape(target, &[n, Expr::Int(1)])?;
    let index = cx.cast(index, DType::I64)?;
    let own = ops::take_along(cx, x, index, 1)?;
    let apart = ops::sub(cx, x, own)?;
    let short = ops::add_number(cx, apart, call.float_or("margin", 1.0)?)?;
    let mut losses = positive_part(cx, short)?;
    if call.float_or("p", 1.0)? == 2.0 {
        losses = ops::square(cx, losses)?;
    }
    if call.arg("weight").is_some() {
        let weight = cx.operand(call, "weight", cx.spec(x).dtype)?;
        let weight = ops::take(cx, weight, index, 0)?;
        losses = ops::mul(cx, losses, weight)?;
    }
    let range = ops::count(cx, &classes, DType::I64)?;
    let others = ops::ne(cx, range, index)?;
    let zero = ops::number_like(cx, losses, 0.0)?;
    let losses = ops::select(cx, others, losses, zero)?;
    let losses = ops::sum(cx, losses, &[1], false)?;
    one(over_classes(cx, call, losses, &classes, entries)?)
}

/// Sums `max(0, 1 - (x[j] - x[k]))` over listed classes `j` and unlisted classes `k`. A list ends
/// at its first negative class.
fn multilabel_margin(cx: &mut Lower, call: &Call) -> Items {
    let (x, entries) = scores(cx, call)?;
    let (dims, dtype) = (cx.spec(x).dims.to_vec(), cx.spec(x).dtype);
    let target = call.tensor("target")?;
    let target = cx.reshape(target, &dims)?;
    let zero = ops::number_like(cx, target, 0.0)?;
    let ends = ops::lt(cx, target, zero)?;
    let ends = cx.cast(ends, DType::I32)?;
    let ended = ops::cumsum(cx, ends, 1)?;
    let none = ops::number_like(cx, ended, 0.0)?;
    let listed = ops::eq(cx, ended, none)?;
    let class = ops::maximum(cx, target, zero)?;
    let class = cx.cast(class, DType::I64)?;
    let own = ops::take_along(cx, x, class, 1)?;

    // [N, listed, class]
    let (listed, class, own) = (cx.unsqueeze(listed, 2)?, cx.unsqueeze(class, 2)?, cx.unsqueeze(own, 2)?);
    let range = ops::count(cx, &dims[1], DType::I64)?;
    let hits = ops::eq(cx, class, range)?;
    let hits = ops::logical_and(cx, hits, listed)?;
    let is_target = ops::any(cx, hits, &[1], true)?;
    let others = ops::logical_not(cx, is_target)?;
    let pairs = ops::logical_and(cx, listed, others)?;
    let x = cx.unsqueeze(x, 1)?;
    let apart = ops::sub(cx, x, own)?;
    let short = ops::add_number(cx, apart, 1.0)?;
    let short = positive_part(cx, short)?;
    let zero = ops::number_like(cx, short, 0.0)?;
    let losses = ops::select(cx, pairs, short, zero)?;
    let losses = ops::sum(cx, losses, &[1, 2], false)?;
    let mut items = vec![Item::Tensor(over_classes(cx, call, losses, &dims[1], entries)?)];
    if call.outputs.len() > 1 {
        let is_target = cx.cast(is_target, dtype)?;
        items.push(Item::Tensor(cx.reshape(is_target, &call.out(1)?.dims.clone())?));
    }
    Ok(items)
}

/// `max(0, margin + |anchor - positive| - |anchor - negative|)`. With `swap`, the distance from
/// positive to negative replaces the last term if smaller.
fn triplet_margin(cx: &mut Lower, call: &Call) -> Items {
    let params = ["anchor", "positive", "negative"];
    let dtype = promoted(cx, call, &params)?;
    let [anchor, positive, negative] = params.map(|p| cx.operand(call, p, dtype));
    let (anchor, positive, negative) = (anchor?, positive?, negative?);
    let (p, eps) = (call.float_or("p", 2.0)?, call.float_or("eps", 1e-6)?);
    let near = distance(cx, [anchor, positive], p, eps)?;
    let mut far = distance(cx, [anchor, negative], p, eps)?;
    if call.bool_or("swap", false)? {
        let swapped = distance(cx, [positive, negative], p, eps)?;
        far = ops::minimum(cx, far, swapped)?;
    }
    let apart = ops::sub(cx, near, far)?;
    let short = ops::add_number(cx, apart, call.float_or("margin", 1.0)?)?;
    let elements = positive_part(cx, short)?;
    one(reduced(cx, call, elements)?)
}

/// The cross-entropy of a linear layer's results; PyTorch computes it in chunks of rows. The
/// gradients that follow the loss are for training only.
fn linear_cross_entropy(cx: &mut Lower, call: &Call) -> Items {
    if (1..call.outputs.len()).any(|i| call.is_used(i)) {
        return unsupported("the gradients of a loss are used; export the program under `torch.no_grad()`");
    }
    let [x, weight] = ["input", "linear_weight"].map(|p| wide_operand(cx, call, p));
    let bias = call.arg("linear_bias").map(|_| wide_operand(cx, call, "linear_bias")).transpose()?;
    let logits = linear_of(cx, x?, weight?, bias)?;
    let reduction = match call.str_or("reduction", "none")? {
        "none" => 0,
        "mean" => 1,
        "sum" => 2,
        other => return unsupported(format!("reduction {other:?}")),
    };
    let mut inner = call.clone();
    inner.args.retain(|(name, _)| name != "reduction");
    inner.args.push(("reduction".to_owned(), Arg::Int(Expr::Int(reduction))));
    let mut items = vec![Item::Tensor(cross_entropy_of(cx, &inner, logits)?)];
    items.resize(call.outputs.len().max(1), Item::None);
    Ok(items)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.cosine_embedding_loss.default", cosine_embedding),
    row("aten.hinge_embedding_loss.default", hinge_embedding),
    row("aten.multi_margin_loss.default", multi_margin),
    row("aten.multilabel_margin_loss.default", multilabel_margin),
    row("aten.multilabel_margin_loss_forward.default", multilabel_margin),
    row("aten.triplet_margin_loss.default", triplet_margin),
    row("torch_nn._linear_cross_entropy_batch_chunked.default", linear_cross_entropy),
    row("torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default", linear_cross_entropy),
];
