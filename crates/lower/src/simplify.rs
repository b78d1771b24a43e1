//! Removes nodes that change nothing as they are emitted.
//!
//! Each case returns a slot that already holds the result: the operand itself or a simpler node. A
//! constant's type and shape change in its expression, at no cost at run time.

use std::sync::Arc;

use flambeau_ir::{AsType, BroadcastTo, ExpandDims, In, Int, Multiply, Node, Reshape, Slice, Spec, Squeeze, Tid, Transpose};
use flambeau_tensor::{DType, Expr, Shape, normalize_axis};

use crate::{ConstExpr, Constant, Formula, Lower, Origin, Refuse, lower::NEW};

/// A slot that holds the result of `node` without it, if any.
pub(crate) fn simplify(lower: &mut Lower, node: &Node) -> Result<Option<Tid>, Refuse> {
    match node {
        Node::IdCopy(n) => Ok(Some(n.x.0)),
        // Storage order is up to the engine.
        Node::Contiguous(n) => Ok(Some(n.x.0)),
        Node::AsType(n) => Ok(as_type(lower, n)),
        Node::Reshape(n) => reshape(lower, n),
        Node::ExpandDims(n) => Ok(expand_dims(lower, n)),
        Node::Squeeze(n) => squeeze(lower, n),
        Node::Transpose(n) => transpose(lower, n),
        Node::BroadcastTo(n) => Ok(broadcast_to(lower, n)),
        Node::Slice(n) => Ok(slice(lower, n)),
        Node::Multiply(n) => {
            let same = neutral(lower, n.a, n.b, 1.0).or_else(|| neutral(lower, n.b, n.a, 1.0));
            Ok(same.or_else(|| scaled_constant(lower, n)))
        }
        Node::Divide(n) => Ok(neutral(lower, n.a, n.b, 1.0).filter(|t| lower.spec(*t).dtype.is_float())),
        // Adding 0 to an integer changes nothing; a float -0 would become +0.
        Node::Add(n) => Ok(neutral(lower, n.a, n.b, 0.0).filter(|t| !lower.spec(*t).dtype.is_float())),
        _ => Ok(None),
    }
}

/// The constant in a slot, if a derived constant is better than a node at run time.
fn constant(lower: &Lower, t: In) -> Option<Arc<Constant>> {
    match &lower.graph().tensors[t.0.0 as usize].origin {
        Origin::Constant(c) => Some(c.clone()),
        _ => None,
    }
}

/// The node of an open chain that writes a slot.
fn producer(lower: &Lower, t: In) -> Option<&Node> {
    lower.producer(t.0)
}

fn as_type(lower: &mut Lower, n: &AsType) -> Option<Tid> {
    let from = lower.spec(n.x.0).dtype;
    if from == n.scalar_type {
        return Some(n.x.0);
    }
    if let Some(c) = constant(lower, n.x) {
        return Some(lower.constant(c.cast(n.scalar_type)));
    }
    // Widening followed by narrowing is the identity.
    match producer(lower, n.x) {
        Some(Node::AsType(inner)) if lower.spec(inner.x.0).dtype == n.scalar_type && is_widening(n.scalar_type, from) => {
            Some(inner.x.0)
        }
        _ => None,
    }
}

/// Whether `to` can represent every value of `from`.
fn is_widening(from: DType, to: DType) -> bool {
    use DType::*;
    matches!((from, to), (F16 | BF16, F32) | (I32 | U32 | I16 | U8 | I8, I64) | (U8 | I8 | I16, I32) | (Bool, _))
}

fn known_shape(dims: &[Expr]) -> Option<Shape> {
    dims.iter().map(|d| d.as_int().and_then(|v| usize::try_from(v).ok())).collect()
}

fn reshape_constant(lower: &mut Lower, x: In, shape: &[usize]) -> Option<Tid> {
    let c = constant(lower, x)?;
    Some(lower.constant(c.reshaped(shape)))
}

fn reshape(lower: &mut Lower, n: &Reshape) -> Result<Option<Tid>, Refuse> {
    let literal: Option<Vec<i64>> = n.shape.iter().map(|i| if let Int::Lit(v) = i { Some(*v) } else { None }).collect();
    if let Some(inner) = match producer(lower, n.x) {
        Some(Node::Reshape(r)) => Some(r.x),
        Some(Node::ExpandDims(r)) => Some(r.x),
        Some(Node::Squeeze(r)) => Some(r.x),
        _ => None,
    } {
        return lower.emit(Reshape { x: inner, out: NEW, shape: n.shape.clone() }).map(Some);
    }
    let Some(target) = literal.and_then(|l| resolve_inferred(&lower.spec(n.x.0).clone(), &l)) else { return Ok(None) };
    if target == lower.spec(n.x.0).dims.to_vec() {
        return Ok(Some(n.x.0));
    }
    Ok(known_shape(&target).and_then(|shape| reshape_constant(lower, n.x, &shape)))
}

/// The sizes of a reshape to a literal target with at most one -1.
fn resolve_inferred(spec: &Spec, target: &[i64]) -> Option<Vec<Expr>> {
    let rest = target.iter().filter(|&&d| d != -1).fold(Expr::Int(1), |n, &d| n * Expr::Int(d));
    let inferred = spec.numel().exact_div(&rest).filter(|_| rest != Expr::Int(0));
    target.iter().map(|&d| if d == -1 { inferred.clone() } else { Some(Expr::Int(d)) }).collect()
}

fn expand_dims(lower: &mut Lower, n: &ExpandDims) -> Option<Tid> {
    let dims = &lower.spec(n.x.0).dims;
    let at = normalize_axis(i64::from(n.axis), dims.len() + 1)?;
    let mut shape = known_shape(dims)?;
    shape.insert(at, 1);
    reshape_constant(lower, n.x, &shape)
}

fn squeeze(lower: &mut Lower, n: &Squeeze) -> Result<Option<Tid>, Refuse> {
    let dims = lower.spec(n.x.0).dims.clone();
    let is_one = |i: usize| dims[i].as_int() == Some(1);
    let listed = |i: usize| n.dims.is_empty() || n.dims.iter().any(|&d| normalize_axis(i64::from(d), dims.len()) == Some(i));
    let kept: Vec<Expr> = (0..dims.len()).filter(|&i| !(listed(i) && is_one(i))).map(|i| dims[i].clone()).collect();
    if kept.len() == dims.len() {
        return Ok(Some(n.x.0));
    }
    if let Some(Node::ExpandDims(e)) = producer(lower, n.x)
        && lower.spec(e.x.0).dims.to_vec() == kept
    {
        return Ok(Some(e.x.0));
    }
    Ok(known_shape(&kept).and_then(|shape| reshape_constant(lower, n.x, &shape)))
}

fn transpose(lower: &mut Lower, n: &Transpose) -> Result<Option<Tid>, Refuse> {
    let rank = n.perm.len();
    let perm: Option<Vec<usize>> = n.perm.iter().map(|&p| normalize_axis(i64::from(p), rank)).collect();
    let Some(perm) = perm else { return Ok(None) };
    if perm.iter().enumerate().all(|(i, &p)| i == p) {
        return Ok(Some(n.x.0));
    }
    if let Some(dims) = moves_only_ones(&lower.spec(n.x.0).dims, &perm) {
        return lower.reshape(n.x.0, &dims).map(Some);
    }
    match producer(lower, n.x) {
        Some(Node::Transpose(inner)) => {
            let (x, inner) = (inner.x, inner.perm.clone());
            let composed: Option<Vec<usize>> =
                perm.iter().map(|&p| inner.get(p).and_then(|&q| normalize_axis(i64::from(q), rank))).collect();
            composed.map(|perm| lower.permute(x.0, &perm)).transpose()
        }
        // No engine permutes elements of types without nodes.
        _ if !lower.spec(n.x.0).dtype.is_node_dtype() => Ok(permuted_constant(lower, n.x.0, &perm, "permuted")),
        _ => Ok(None),
    }
}

/// The sizes after a permutation that only moves axes of size 1; a reshape does the same.
fn moves_only_ones(dims: &[Expr], perm: &[usize]) -> Option<Vec<Expr>> {
    let long: Vec<usize> = perm.iter().copied().filter(|&p| dims.get(p).is_some_and(|d| d.as_int() != Some(1))).collect();
    long.windows(2).all(|w| w[0] < w[1]).then(|| perm.iter().map(|&p| dims[p].clone()).collect())
}

fn broadcast_to(lower: &Lower, n: &BroadcastTo) -> Option<Tid> {
    let dims = &lower.spec(n.x.0).dims;
    let same = |(int, dim): (&Int, &Expr)| match int {
        Int::Lit(-1) => true,
        Int::Lit(v) => dim.as_int() == Some(*v),
        Int::Vid(v) => lower.graph().values.get(v.0 as usize) == Some(dim),
    };
    (n.shape.len() == dims.len() && n.shape.iter().zip(dims).all(same)).then_some(n.x.0)
}

fn slice(lower: &Lower, n: &Slice) -> Option<Tid> {
    let (Int::Lit(axis), Int::Lit(0), 1) = (n.axis, n.start, n.step) else { return None };
    let dims = &lower.spec(n.x.0).dims;
    let size = &dims[normalize_axis(axis, dims.len())?];
    let whole = match n.stop {
        Int::Lit(stop) => stop >= i64::from(i32::MAX) || size.as_int().is_some_and(|s| stop >= s),
        Int::Vid(v) => lower.graph().values.get(v.0 as usize) == Some(size),
    };
    whole.then_some(n.x.0)
}

/// `x` if `other` is the given number in the same type and does not change the shape.
fn neutral(lower: &Lower, x: In, other: In, number: f64) -> Option<Tid> {
    let (x_spec, other_spec) = (lower.spec(x.0), lower.spec(other.0));
    let fits = other_spec.dtype == x_spec.dtype && other_spec.rank() <= x_spec.rank();
    (fits && lower.graph().scalar(other.0) == Some(number)).then_some(x.0)
}

/// The product of a stored weight and another constant, if no larger than the weight.
fn scaled_constant(lower: &mut Lower, n: &Multiply) -> Option<Tid> {
    let (a, b) = (constant(lower, n.a)?, constant(lower, n.b)?);
    let (weight, other) = if a.shape.len() >= b.shape.len() && a.shape.iter().product::<usize>() >= b.shape.iter().product() {
        (a, b)
    } else {
        (b, a)
    };
    let is_literal = |c: &Constant| matches!(c.expr, ConstExpr::Literal(_));
    let broadcasts = weight.shape.iter().rev().zip(other.shape.iter().rev()).all(|(w, o)| w == o || *o == 1);
    if !weight.dtype.is_float() || weight.dtype != other.dtype || is_literal(&weight) || !broadcasts {
        return None;
    }
    let (name, dtype, shape) = (format!("{}_scaled", weight.name), weight.dtype, weight.shape.clone());
    let expr = ConstExpr::Formula(Formula::Product, vec![weight, other]);
    Some(lower.constant(Constant { name, dtype, shape, expr }))
}

/// A constant with its axes permuted in its expression, for operators that dictate a weight's
/// layout.
pub(crate) fn permuted_constant(lower: &mut Lower, t: Tid, perm: &[usize], suffix: &str) -> Option<Tid> {
    let c = constant(lower, In(t))?;
    let shape: Shape = perm.iter().map(|&p| c.shape[p]).collect();
    let name = format!("{}_{suffix}", c.name);
    Some(lower.constant(Constant { name, dtype: c.dtype, shape, expr: ConstExpr::Permute(c, perm.to_vec()) }))
}
