//! Finds the nodes of linear steps in a graph.

use flambeau_ir::{Node, QuantMode, Slice, Tid};
use flambeau_tensor::DType;

use super::{
    super::{FusedNodes, Kind, find::Scope, low_rank, refusal::Form},
    Activation, Format, Joined, Linear, MOST, Weights,
};

/// A product of `x` with a constant matrix.
struct Product {
    x: Tid,
    weights: Weights,
    /// The slot of the product without its bias.
    raw: Tid,
    out: Tid,
}

/// Matches a product at a node. Returns it with the index of the next node.
fn product(scope: &Scope<'_>, at: usize) -> Option<(Product, usize)> {
    match scope.nodes.get(at)? {
        Node::QuantizedMatmul(q) if q.transpose && q.mode == QuantMode::Affine => {
            let slots = vec![q.w.0, q.scales.0, q.biases?.0];
            let (bits, group) = (usize::try_from(q.bits).ok()?, usize::try_from(q.group_size).ok()?);
            let fits = matches!(bits, 4 | 8) && group >= 32 && slots.iter().all(|&t| scope.is_constant(t));
            scope.require(fits, "the matrix is not stored in affine codes of 4 or 8 bits in groups of 32 or more")?;
            let weights = Weights { format: Format::Coded { bits, group }, slots, bias: None };
            Some(biased(scope, at + 1, Product { x: q.x.0, weights, raw: q.out.0, out: q.out.0 }))
        }
        Node::Transpose(t) if t.perm[..] == [1, 0] && scope.is_constant(t.x.0) => {
            let Node::Addmm(mm) = scope.nodes.get(at + 1)? else { return None };
            let bias = mm.bias.map(|bias| bias.0);
            let plain_bias = bias.is_none_or(|bias| scope.is_constant(bias) && mm.beta == 1.0);
            let plain = mm.mat2.0 == t.out.0 && mm.mat1.0 != t.out.0 && plain_bias && mm.alpha == 1.0;
            let unread = t.out.0 == mm.out.0 || scope.is_dead(t.out.0, at + 2);
            let weights = Weights { format: Format::Float, slots: vec![t.x.0], bias };
            scope.require(plain && unread, "the product has factors or a computed bias, or its matrix has other readers")?;
            Some((Product { x: mm.mat1.0, weights, raw: mm.out.0, out: mm.out.0 }, at + 2))
        }
        _ => None,
    }
}

/// A product with the constant row that the node at `at` adds to it, if it is such a node. Returns
/// it with the index of the next node.
fn biased(scope: &Scope<'_>, at: usize, product: Product) -> (Product, usize) {
    let Some(Node::Add(add)) = scope.nodes.get(at) else { return (product, at) };
    let bias = match (add.a.0 == product.out, add.b.0 == product.out) {
        (true, false) => add.b.0,
        (false, true) => add.a.0,
        _ => return (product, at),
    };
    if !scope.is_constant(bias) {
        return (product, at);
    }
    (Product { weights: Weights { bias: Some(bias), ..product.weights }, out: add.out.0, ..product }, at + 1)
}

/// Finds a linear step that begins at a node.
pub(in crate::fused) fn find(scope: &Scope<'_>, at: usize) -> Option<FusedNodes> {
    let (Node::RMSNorm(_) | Node::QuantizedMatmul(_) | Node::Transpose(_)) = scope.nodes.get(at)? else { return None };
    scope.candidate(Form::Linear, at, |_| low_rank::find(scope, at).map(step).or_else(|| find_from(scope, at)))
}

fn step((linear, end): (Linear, usize)) -> FusedNodes {
    FusedNodes { end, kind: Kind::Linear(Box::new(linear)) }
}

fn find_from(scope: &Scope<'_>, at: usize) -> Option<FusedNodes> {
    let (linear, end, spent) = match scope.nodes.get(at)? {
        Node::RMSNorm(_) if joined(scope, at).is_some() => {
            let (x, joined, next) = joined(scope, at)?;
            let mut normed = Vec::new();
            let (norm, narrows, row, next) = match scope.nodes.get(next)? {
                Node::RMSNorm(norm) if norm.x.0 == joined.out => {
                    let weight = norm.weight.filter(|w| scope.is_constant(w.0))?.0;
                    let (row, narrows, next) = narrowed(scope, next + 1, norm.out.0);
                    normed.extend([norm.out.0, row]);
                    (Some((weight, norm.eps)), narrows, row, next)
                }
                _ => (None, None, joined.out, next),
            };
            let (mut linear, end, mut spent) = products(scope, next, row)?;
            spent.extend(normed);
            if linear.outs.contains(&joined.out) || spent.contains(&joined.out) {
                return None;
            }
            (linear.x, linear.norm, linear.narrows, linear.joined) = (x, norm, narrows, Some(joined));
            (linear, end, spent)
        }
        Node::RMSNorm(norm) => {
            let weight = norm.weight.filter(|w| scope.is_constant(w.0))?.0;
            let (row, narrows, next) = narrowed(scope, at + 1, norm.out.0);
            let (mut linear, end, mut spent) = products(scope, next, row)?;
            linear.x = norm.x.0;
            linear.norm = Some((weight, norm.eps));
            linear.narrows = narrows;
            spent.extend([norm.out.0, row]);
            (linear, end, spent)
        }
        _ => {
            let (first, end) = product(scope, at)?;
            with_residual(scope, first, end)
        }
    };
    let dead = spent.iter().all(|&t| linear.outs.contains(&t) || scope.is_dead(t, end));
    scope.require(dead, "a later node reads a result inside")?;
    scope.require(linear.has_known_formats(), "the matrices have too many formats")?;
    Some(step((linear, end)))
}

/// Matches `(row + norm(product)) * scale` from a node on. Returns the product, the sum and the
/// index of the next node.
fn joined(scope: &Scope<'_>, at: usize) -> Option<(Tid, Joined, usize)> {
    let Node::RMSNorm(norm) = scope.nodes.get(at)? else { return None };
    let weight = norm.weight.filter(|w| scope.is_constant(w.0))?.0;
    let (normed, narrows, sum) = narrowed(scope, at + 1, norm.out.0);
    let Node::Add(add) = scope.nodes.get(sum)? else { return None };
    let row = match (add.a.0 == normed, add.b.0 == normed) {
        (true, false) => add.b.0,
        (false, true) => add.a.0,
        _ => return None,
    };
    let (mut out, mut next, mut scale) = (add.out.0, sum + 1, None);
    if let Some(Node::Multiply(mul)) = scope.nodes.get(next)
        && mul.a.0 == out
        && scope.is_constant(mul.b.0)
    {
        (out, next, scale) = (mul.out.0, next + 1, Some(mul.b.0));
    }
    let dead = [norm.out.0, normed, add.out.0].iter().all(|&t| t == out || t == norm.x.0 || scope.is_dead(t, next));
    let joined = Joined { row, norm: (weight, norm.eps), narrows, scale, out };
    (dead && row != norm.out.0).then_some((norm.x.0, joined, next))
}

/// The slot of a normalised row after an optional conversion, the converted type, and the index of
/// the next node.
fn narrowed(scope: &Scope<'_>, at: usize, norm: Tid) -> (Tid, Option<DType>, usize) {
    match scope.nodes.get(at) {
        Some(Node::AsType(cast)) if cast.x.0 == norm => (cast.out.0, Some(cast.scalar_type), at + 1),
        _ => (norm, None, at),
    }
}

/// The products of `x` from a node on, with an optional gate between two of them. Also returns the
/// end index and the slots that must be dead afterwards.
fn products(scope: &Scope<'_>, at: usize, x: Tid) -> Option<(Linear, usize, Vec<Tid>)> {
    let (first, mut end) = product(scope, at).filter(|(p, _)| p.x == x)?;
    let mut gate = activated(scope, end, first.out);
    let mut list = vec![first];
    if gate.is_some() {
        end += 1;
    }
    while list.len() < MOST
        && list.last().is_some_and(|p| p.raw != x && p.out != x)
        && gate.as_ref().is_none_or(|_| list.len() < 2)
        && let Some((next, after)) = product(scope, end).filter(|(p, _)| p.x == x)
    {
        if list.iter().any(|p| p.out == next.out) || gate.is_some_and(|(out, _)| out == next.out) {
            return None;
        }
        list.push(next);
        end = after;
        if list.len() == 2 && gate.is_none() {
            gate = activated(scope, end, list[0].out);
            end += usize::from(gate.is_some());
        }
    }
    let outs: Vec<Tid> = list.iter().map(|p| p.out).collect();
    let raw = list.iter().map(|p| p.raw).collect();
    let has_bias = list.iter().any(|p| p.weights.bias.is_some());
    let weights = list.into_iter().map(|p| p.weights).collect();
    let linear = Linear::plain(x, weights, outs);
    let Some((gate, activation)) = gate else { return Some((linear, end, raw)) };
    scope.require(!has_bias, "a gated product has a bias")?;
    if let ([product], Some((slice, out))) = (&linear.outs[..], gated_input(scope, end, gate)) {
        let spent = vec![*product, gate, slice.out.0];
        return Some((Linear { activation, gated_input: Some(slice), outs: vec![out], ..linear }, end + 2, spent));
    }
    let (Node::Multiply(mul), [low, high]) = (scope.nodes.get(end)?, &linear.outs[..]) else { return None };
    let factors = [mul.a.0, mul.b.0];
    if factors != [gate, *high] && factors != [*high, gate] {
        return None;
    }
    let spent = vec![*low, *high, gate];
    Some((Linear { gated: true, activation, outs: vec![mul.out.0], ..linear }, end + 1, spent))
}

/// Matches a slice of a row from a node on and its product with a gate. Returns the slice and the
/// slot of the result.
fn gated_input(scope: &Scope<'_>, at: usize, gate: Tid) -> Option<(Slice, Tid)> {
    let (Node::Slice(part), Node::Multiply(mul)) = (scope.nodes.get(at)?, scope.nodes.get(at + 1)?) else { return None };
    let factors = [mul.a.0, mul.b.0];
    let multiplies = factors == [gate, part.out.0] || factors == [part.out.0, gate];
    (multiplies && part.out.0 != gate && part.x.0 != gate && part.step == 1).then(|| (part.clone(), mul.out.0))
}

/// The result of an activation of `x` at a node.
fn activated(scope: &Scope<'_>, at: usize, x: Tid) -> Option<(Tid, Activation)> {
    match scope.nodes.get(at)? {
        Node::Silu(silu) if silu.x.0 == x => Some((silu.out.0, Activation::Silu)),
        Node::Gelu(gelu) if gelu.x.0 == x && gelu.approximate == "tanh" => Some((gelu.out.0, Activation::Gelu)),
        _ => None,
    }
}

/// One product, and the sum that it enters at once.
fn with_residual(scope: &Scope<'_>, p: Product, end: usize) -> (Linear, usize, Vec<Tid>) {
    let linear = Linear::plain(p.x, vec![p.weights], vec![p.out]);
    match scope.nodes.get(end) {
        Some(Node::Add(add)) if (add.a.0 == p.out) != (add.b.0 == p.out) => {
            let other = if add.a.0 == p.out { add.b.0 } else { add.a.0 };
            (Linear { residual: Some(other), outs: vec![add.out.0], ..linear }, end + 1, vec![p.raw, p.out])
        }
        _ => (linear, end, vec![p.raw]),
    }
}
