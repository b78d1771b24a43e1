//! Tensor contractions over arbitrary axes.

use flambeau_ir::Tid;
use flambeau_tensor::Expr;

use super::{
    RuleRow,
    linalg::product,
    one,
    ops::{self, Emitted},
    row,
};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// A tensor with a label on each axis.
#[derive(Clone)]
struct Labelled {
    t: Tid,
    labels: Vec<u32>,
}

impl Labelled {
    fn size(&self, cx: &Lower, label: u32) -> Expr {
        let at = self.labels.iter().position(|&l| l == label);
        at.and_then(|a| cx.spec(self.t).dims.get(a).cloned()).unwrap_or(Expr::Int(1))
    }

    /// Permutes the axes to the order of the labels; missing labels become axes of size 1.
    fn arranged(&self, cx: &mut Lower, order: &[u32]) -> Emitted {
        let own: Vec<u32> = order.iter().copied().filter(|l| self.labels.contains(l)).collect();
        let perm: Vec<usize> = own.iter().filter_map(|l| self.labels.iter().position(|k| k == l)).collect();
        let moved = cx.permute(self.t, &perm)?;
        let dims: Vec<Expr> = order.iter().map(|&l| self.size(cx, l)).collect();
        cx.reshape(moved, &dims)
    }

    /// Sums over the labels that the result lacks.
    fn reduced(self, cx: &mut Lower, wanted: impl Fn(u32) -> bool) -> Result<Labelled, Refuse> {
        let axes: Vec<usize> = (0..self.labels.len()).filter(|&a| !wanted(self.labels[a])).collect();
        if axes.is_empty() {
            return Ok(self);
        }
        let t = ops::sum(cx, self.t, &axes, false)?;
        Ok(Labelled { t, labels: self.labels.into_iter().filter(|&l| wanted(l)).collect() })
    }

    /// Drops a summed axis of size 1 if the other operand has more elements there. Each sum is then
    /// over that operand alone.
    fn without_units(self, cx: &mut Lower, other: &Labelled, wanted: &dyn Fn(u32) -> bool) -> Result<Labelled, Refuse> {
        let unit = |t: &Labelled, l: u32| t.size(cx, l) == Expr::Int(1);
        let drops = |l: &u32| other.labels.contains(l) && !wanted(*l) && unit(&self, *l) && !unit(other, *l);
        let kept: Vec<u32> = self.labels.iter().copied().filter(|l| !drops(l)).collect();
        let dims: Vec<Expr> = kept.iter().map(|&l| self.size(cx, l)).collect();
        Ok(Labelled { t: cx.reshape(self.t, &dims)?, labels: kept })
    }

    /// Replaces axes with equal labels by their diagonal.
    fn without_repeats(mut self, cx: &mut Lower) -> Result<Labelled, Refuse> {
        while let Some((a, b)) = first_repeat(&self.labels) {
            let label = self.labels[a];
            self.t = super::diagonal::diagonal_of(cx, self.t, 0, a, b)?;
            self.labels.remove(b);
            self.labels.remove(a);
            self.labels.push(label);
        }
        Ok(self)
    }
}

fn first_repeat(labels: &[u32]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|a| (a + 1..labels.len()).find(|&b| labels[b] == labels[a]).map(|b| (a, b)))
}

/// Contracts the labels that both operands have and the result lacks.
fn contract(cx: &mut Lower, a: Labelled, b: Labelled, wanted: &dyn Fn(u32) -> bool) -> Result<Labelled, Refuse> {
    let (a, b) = (a.clone().without_units(cx, &b, wanted)?, b.without_units(cx, &a, wanted)?);
    let a = a.reduced(cx, |l| wanted(l) || b.labels.contains(&l))?;
    let b = b.reduced(cx, |l| wanted(l) || a.labels.contains(&l))?;
    let shared: Vec<u32> = a.labels.iter().copied().filter(|l| b.labels.contains(l)).collect();
    let batch: Vec<u32> = shared.iter().copied().filter(|&l| wanted(l)).collect();
    let inner: Vec<u32> = shared.into_iter().filter(|&l| !wanted(l)).collect();
    let rows: Vec<u32> = a.labels.iter().copied().filter(|l| !b.labels.contains(l)).collect();
    let columns: Vec<u32> = b.labels.iter().copied().filter(|l| !a.labels.contains(l)).collect();
    let labels = [&batch[..], &rows, &columns].concat();
    if inner.is_empty() {
        let (x, y) = (a.arranged(cx, &labels)?, b.arranged(cx, &labels)?);
        return Ok(Labelled { t: ops::mul(cx, x, y)?, labels });
    }
    let sizes = |cx: &Lower, t: &Labelled, ls: &[u32]| ls.iter().map(|&l| t.size(cx, l)).collect::<Vec<_>>();
    let (m, k, n) = (sizes(cx, &a, &rows), sizes(cx, &a, &inner), sizes(cx, &b, &columns));
    let (batch_a, batch_b) = (sizes(cx, &a, &batch), sizes(cx, &b, &batch));
    let x = a.arranged(cx, &[&batch[..], &rows, &inner].concat())?;
    let x = cx.reshape(x, &[&batch_a[..], &[ops::volume(&m), ops::volume(&k)]].concat())?;
    let y = b.arranged(cx, &[&batch[..], &inner, &columns].concat())?;
    let y = cx.reshape(y, &[&batch_b[..], &[ops::volume(&k), ops::volume(&n)]].concat())?;
    let xy = product(cx, x, y)?;
    let lead = cx.spec(xy).dims[..batch.len()].to_vec();
    Ok(Labelled { t: cx.reshape(xy, &[&lead[..], &m, &n].concat())?, labels })
}

/// First label of an ellipsis's axes; it is above all letters.
const ELLIPSIS: u32 = 0x11_0000;

/// Labels of one operand's axes; ellipsis axes count from the right.
fn labels_of(term: &str, rank: usize) -> Result<Vec<u32>, Refuse> {
    let term: String = term.chars().filter(|c| !c.is_whitespace()).collect();
    let letters = |s: &str| s.chars().map(|c| c as u32).collect::<Vec<_>>();
    match term.split_once("...") {
        None => Ok(letters(&term)),
        Some((before, after)) => {
            let (before, after) = (letters(before), letters(after));
            let n = rank.checked_sub(before.len() + after.len());
            let Some(n) = n else { return unsupported(format!("{term:?} has more labels than axes")) };
            let dots = (0..n as u32).rev().map(|i| ELLIPSIS + i);
            Ok(before.into_iter().chain(dots).chain(after).collect())
        }
    }
}

/// Labels of the result of an equation without an arrow: the ellipsis, then the labels that occur
/// once, in order.
fn implied_output(all: &[u32]) -> Vec<u32> {
    let mut out: Vec<u32> =
        all.iter().copied().filter(|&l| l >= ELLIPSIS || all.iter().filter(|&&k| k == l).count() == 1).collect();
    out.sort_by_key(|&l| (l < ELLIPSIS, if l < ELLIPSIS { i64::from(l) } else { -i64::from(l) }));
    out.dedup();
    out
}

fn einsum(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let equation = call.str_or("equation", "")?.to_owned();
    let tensors = call.tensors("tensors")?;
    let (inputs, output) = equation.split_once("->").map_or((&equation[..], None), |(i, o)| (i, Some(o)));
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != tensors.len() {
        return unsupported(format!("{} terms for {} operands", terms.len(), tensors.len()));
    }
    let (mut operands, mut all) = (Vec::new(), Vec::new());
    for (term, t) in terms.into_iter().zip(tensors) {
        let t = cx.cast(t, dtype)?;
        let labels = labels_of(term, cx.spec(t).rank())?;
        if labels.len() != cx.spec(t).rank() {
            return unsupported(format!("{term:?} does not label {} axes", cx.spec(t).rank()));
        }
        all.extend(labels.iter().copied());
        operands.push(Labelled { t, labels }.without_repeats(cx)?);
    }
    let n_dots = operands.iter().flat_map(|o| &o.labels).filter(|&&l| l >= ELLIPSIS).map(|&l| (l - ELLIPSIS) as usize + 1).max();
    let output = match output {
        Some(o) => labels_of(o, o.chars().filter(|c| c.is_alphabetic()).count() + n_dots.unwrap_or(0))?,
        None => implied_output(&all),
    };
    let mut rest = operands.into_iter();
    let Some(mut total) = rest.next() else { return unsupported("an equation without operands") };
    let mut rest: Vec<Labelled> = rest.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let wanted = |l: u32| output.contains(&l) || rest.iter().any(|o| o.labels.contains(&l));
        total = contract(cx, total, next, &wanted)?;
    }
    let total = total.reduced(cx, |l| output.contains(&l))?;
    one(total.arranged(cx, &output)?)
}

fn tensordot(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (a, b) = (cx.operand(call, "self", dtype)?, cx.operand(call, "other", dtype)?);
    let label = |cx: &Lower, t: Tid, param: &str, from: u32| {
        let rank = cx.spec(t).rank();
        let mut labels: Vec<u32> = (0..rank as u32).map(|i| from + i).collect();
        for (i, axis) in call.ints(param)?.into_iter().enumerate() {
            let axis = flambeau_tensor::normalize_axis(axis, rank).ok_or_else(|| Refuse::Missing(param.to_owned()))?;
            labels[axis] = i as u32;
        }
        Ok::<_, Refuse>(Labelled { t, labels })
    };
    let (a, b) = (label(cx, a, "dims_self", 1000)?, label(cx, b, "dims_other", 2000)?);
    let output: Vec<u32> = [&a.labels[..], &b.labels].concat().into_iter().filter(|&l| l >= 1000).collect();
    let total = contract(cx, a, b, &|l| l >= 1000)?;
    one(total.arranged(cx, &output)?)
}

/// The two named operands in the result's type.
pub(super) fn pair(cx: &mut Lower, call: &Call, a: &str, b: &str) -> Result<(Tid, Tid), Refuse> {
    let dtype = call.out(0)?.dtype;
    Ok((cx.operand(call, a, dtype)?, cx.operand(call, b, dtype)?))
}

fn outer(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = pair(cx, call, "self", "vec2")?;
    let a = cx.unsqueeze(a, 1)?;
    one(ops::mul(cx, a, b)?)
}

/// Dot product, also of integers.
fn dot(cx: &mut Lower, call: &Call) -> Items {
    let other = if call.arg("tensor").is_some() { "tensor" } else { "other" };
    let (a, b) = pair(cx, call, "self", other)?;
    if cx.spec(a).dtype.is_float() {
        return one(product(cx, a, b)?);
    }
    let products = ops::mul(cx, a, b)?;
    one(ops::sum(cx, products, &[], false)?)
}

fn mv(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = pair(cx, call, "self", "vec")?;
    one(product(cx, a, b)?)
}

/// Contracts the last axes of both.
fn inner(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = pair(cx, call, "self", "other")?;
    let label = |cx: &Lower, t: Tid, from: u32| {
        let mut labels: Vec<u32> = (0..cx.spec(t).rank() as u32).map(|i| from + i).collect();
        labels.pop();
        labels.push(0);
        Labelled { t, labels }
    };
    if cx.spec(a).rank() == 0 || cx.spec(b).rank() == 0 {
        return one(ops::mul(cx, a, b)?);
    }
    let (a, b) = (label(cx, a, 1000), label(cx, b, 2000));
    let output: Vec<u32> = [&a.labels[..], &b.labels].concat().into_iter().filter(|&l| l != 0).collect();
    let total = contract(cx, a, b, &|l| l != 0)?;
    one(total.arranged(cx, &output)?)
}

/// `input1[.., i] weight[o, i, j] input2[.., j] + bias[o]`.
fn bilinear(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = pair(cx, call, "input1", "input2")?;
    let weight = cx.operand(call, "weight", call.out(0)?.dtype)?;
    let lead: Vec<u32> = (1000..1000 + cx.spec(a).rank() as u32 - 1).collect();
    let labelled = |t: Tid, last: u32| Labelled { t, labels: lead.iter().copied().chain([last]).collect() };
    let (a, b) = (labelled(a, 1), labelled(b, 2));
    let weight = Labelled { t: weight, labels: vec![0, 1, 2] };
    let half = contract(cx, a, weight, &|l| l != 1)?;
    let total = contract(cx, half, b, &|l| l != 1 && l != 2)?;
    let y = total.arranged(cx, &lead.iter().copied().chain([0]).collect::<Vec<_>>())?;
    match call.arg("bias") {
        Some(_) => {
            let bias = cx.operand(call, "bias", cx.spec(y).dtype)?;
            one(ops::add(cx, y, bias)?)
        }
        None => one(y),
    }
}

/// Kronecker product: `[a0 b, a1 b, ..]` on every axis.
fn kron(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = pair(cx, call, "self", "other")?;
    let rank = cx.spec(a).rank().max(cx.spec(b).rank());
    let mut spread = |t: Tid, outer: bool| {
        let dims = cx.spec(t).dims.to_vec();
        let lead = vec![Expr::Int(1); rank - dims.len()];
        let pairs = lead.into_iter().chain(dims).flat_map(|d| if outer { [d, Expr::Int(1)] } else { [Expr::Int(1), d] });
        cx.reshape(t, &pairs.collect::<Vec<_>>())
    };
    let (a, b) = (spread(a, true)?, spread(b, false)?);
    let products = ops::mul(cx, a, b)?;
    one(cx.reshape(products, &call.out(0)?.dims)?)
}

fn vecdot(cx: &mut Lower, call: &Call) -> Items {
    let (a, b) = pair(cx, call, "x", "y")?;
    let products = ops::mul(cx, a, b)?;
    let axis = cx.axis(call, "dim", -1, cx.spec(products).rank())?;
    one(ops::sum(cx, products, &[axis], false)?)
}

/// A chain of matrix products; either end may be a vector. With known sizes the order takes the
/// fewest multiplications, as in PyTorch; else it is from left to right.
fn multi_dot(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let list = if call.arg("matrices").is_some() { "matrices" } else { "tensors" };
    let factors = call.tensors(list)?.into_iter().map(|t| cx.cast(t, dtype)).collect::<Result<Vec<_>, _>>()?;
    let (Some(&first), Some(&last)) = (factors.first(), factors.last()) else {
        return Err(Refuse::Missing("tensors[0]".to_owned()));
    };
    let ends = |t: Tid, end: usize| if cx.spec(t).rank() == 2 { cx.spec(t).dims[end].as_int() } else { Some(1) };
    let inner = factors[1..].iter().map(|t| cx.spec(*t).dims[0].as_int());
    let sizes: Option<Vec<i64>> = std::iter::once(ends(first, 0)).chain(inner).chain([ends(last, 1)]).collect();
    let splits = sizes.map(|sizes| chain_splits(&sizes));
    one(chain(cx, &factors, splits.as_deref(), 0, factors.len() - 1)?)
}

/// For factors `i..=j` of a chain, the last factor of the left part. Matrix `i` has `sizes[i]` rows
/// and `sizes[i + 1]` columns.
fn chain_splits(sizes: &[i64]) -> Vec<Vec<usize>> {
    let count = sizes.len() - 1;
    let (mut costs, mut splits) = (vec![vec![0.0; count]; count], vec![vec![0; count]; count]);
    for length in 1..count {
        for i in 0..count - length {
            let j = i + length;
            let product = |k: usize| sizes[i] as f64 * sizes[k + 1] as f64 * sizes[j + 1] as f64;
            let cost = |k: usize| costs[i][k] + costs[k + 1][j] + product(k);
            // PyTorch takes the first of equal orders, but multiplies three factors from the left.
            let order: Vec<usize> = if count == 3 && length == 2 { vec![1, 0] } else { (i..j).collect() };
            let best = order.into_iter().min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(i);
            (costs[i][j], splits[i][j]) = (cost(best), best);
        }
    }
    splits
}

/// The product of factors `i..=j`.
fn chain(cx: &mut Lower, factors: &[Tid], splits: Option<&[Vec<usize>]>, i: usize, j: usize) -> Emitted {
    if i == j {
        return Ok(factors[i]);
    }
    let split = splits.map_or(j - 1, |splits| splits[i][j]);
    let (left, right) = (chain(cx, factors, splits, i, split)?, chain(cx, factors, splits, split + 1, j)?);
    product(cx, left, right)
}

/// Powers of square matrices, by squaring.
fn matrix_power(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let mut square = cx.operand(call, "self", dtype)?;
    let mut n = call.int("n")?;
    if n < 1 {
        return unsupported(format!("power {n} of a matrix"));
    }
    let mut total: Option<Tid> = None;
    while n > 0 {
        if n % 2 == 1 {
            total = Some(match total {
                None => square,
                Some(t) => product(cx, t, square)?,
            });
        }
        n /= 2;
        if n > 0 {
            square = product(cx, square, square)?;
        }
    }
    one(total.unwrap_or(square))
}

fn trilinear(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let mut total: Option<Tid> = None;
    for (input, expand) in [("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")] {
        let mut t = cx.operand(call, input, dtype)?;
        for axis in call.ints(expand)? {
            t = cx.unsqueeze(t, usize::try_from(axis).unwrap_or(0))?;
        }
        total = Some(match total {
            None => t,
            Some(product) => ops::mul(cx, product, t)?,
        });
    }
    let total = total.ok_or_else(|| Refuse::Missing("i1".to_owned()))?;
    let axes: Vec<usize> = call.ints("sumdim")?.into_iter().filter_map(|a| usize::try_from(a).ok()).collect();
    one(if axes.is_empty() { total } else { ops::sum(cx, total, &axes, false)? })
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._trilinear.default", trilinear),
    row("aten.bilinear.default", bilinear),
    row("aten.chain_matmul.default", multi_dot),
    row("aten.dot.default", dot),
    row("aten.einsum.default", einsum),
    row("aten.ger.default", outer),
    row("aten.inner.default", inner),
    row("aten.kron.default", kron),
    row("aten.linalg_matrix_power.default", matrix_power),
    row("aten.linalg_multi_dot.default", multi_dot),
    row("aten.linalg_vecdot.default", vecdot),
    row("aten.matrix_power.default", matrix_power),
    row("aten.mv.default", mv),
    row("aten.outer.default", outer),
    row("aten.tensordot.default", tensordot),
    row("aten.vdot.default", dot),
];
