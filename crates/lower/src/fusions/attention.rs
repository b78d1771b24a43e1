//! Fuses the attention formula, and removes repeats of keys and values per query head.

use flambeau_ir::{In, Node, Sdpa, Tid};

use super::Rewrite;
use crate::lower::NEW;

/// `softmax(q @ kᵀ * scale + mask) @ v` over four axes. The mask and the scale are optional; the
/// softmax may compute in f32.
pub(super) fn expanded(m: &mut Rewrite<'_>, root: &Node) -> Option<()> {
    let Node::Addmm(product) = root else { return None };
    let (p, v) = (product.mat1.0, product.mat2.0);
    if product.bias.is_some() || m.dims(v).len() != 4 {
        return None;
    }
    let Node::Softmax(softmax) = m.def(m.uncast(p))? else { return None };
    if softmax.axis != 3 && softmax.axis != -1 {
        return None;
    }
    let (scores, mask) = match m.def(m.uncast(softmax.x.0))? {
        Node::Add(sum) => (sum.a.0, Some(sum.b)),
        _ => (m.uncast(softmax.x.0), None),
    };
    let (scores, scale) = scaled(m, scores)?;
    let Node::Addmm(dot) = m.def(scores)? else { return None };
    let Node::Transpose(swap) = m.def(dot.mat2.0)? else { return None };
    let (q, k) = (dot.mat1.0, swap.x.0);
    let heads_agree = m.dims(q).len() == 4 && m.dims(k)[..2] == m.dims(q)[..2] && m.dims(v)[..2] == m.dims(q)[..2];
    let mask_fits = mask.is_none_or(|mask| m.dtype(mask.0) == m.dtype(q) && m.dims(mask.0).len() <= 4);
    if dot.bias.is_some() || swap.perm != [0, 1, 3, 2] || !heads_agree || !mask_fits {
        return None;
    }
    m.finish(product.out, Sdpa { q: In(q), k: In(k), v: In(v), out: NEW, scale, mask, causal: false })
}

/// Splits a multiplication or division by a number into the operand and the factor.
fn scaled(m: &Rewrite<'_>, t: Tid) -> Option<(Tid, f32)> {
    match m.def(t)? {
        Node::Multiply(n) => m.scalar(n.b.0).map(|s| (n.a.0, s as f32)).or_else(|| m.scalar(n.a.0).map(|s| (n.b.0, s as f32))),
        Node::Divide(n) => m.scalar(n.b.0).map(|s| (n.a.0, (1.0 / s) as f32)),
        Node::Addmm(_) => Some((t, 1.0)),
        _ => None,
    }
}

/// Attention over keys and values repeated per query head of a group: reads the originals instead.
pub(super) fn grouped_heads(m: &mut Rewrite<'_>, root: &Node) -> Option<()> {
    let Node::Sdpa(n) = root else { return None };
    let (k, v) = (repeated_heads(m, n.k.0)?, repeated_heads(m, n.v.0)?);
    if m.dims(k)[1] != m.dims(v)[1] {
        return None;
    }
    m.finish(n.out, Sdpa { k: In(k), v: In(v), out: NEW, ..n.clone() })
}

/// The `[B, H, T, D]` tensor whose heads are repeated in place to give `t`.
fn repeated_heads(m: &Rewrite<'_>, t: Tid) -> Option<Tid> {
    match m.def(t)? {
        Node::Repeat(n) if n.axis == 1 && m.dims(n.x.0).len() == 4 => Some(n.x.0),
        Node::Reshape(n) => {
            let Node::BroadcastTo(b) = m.def(n.x.0)? else { return None };
            let base = m.unview(b.x.0);
            let (from, wide, out) = (m.dims(base), m.dims(b.out.0), m.dims(t));
            // [B, H, 1, T, D] broadcast to [B, H, n, T, D], then the two middle axes joined.
            let shapes_fit = from.len() == 4 && wide.len() == 5 && out.len() == 4;
            let joined = shapes_fit && wide[..2] == from[..2] && wide[3..] == from[2..] && out[2..] == from[2..];
            let unsqueezed = m.dims(b.x.0).len() == 5 && m.dims(b.x.0)[2].as_int() == Some(1);
            (joined && unsqueezed && out[0] == from[0]).then_some(base)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use flambeau_ir::{Node, Tid};
    use flambeau_tensor::{
        DType::{self, F32},
        Expr,
    };

    use crate::{Arg, fusions::testing::Program};

    fn sizes(list: &[i64]) -> Arg {
        Arg::Ints(list.iter().map(|&d| Expr::Int(d)).collect())
    }

    fn view(p: &mut Program, target: &str, param: &str, x: Tid, shape: &[i64]) -> Tid {
        p.call_args(target, vec![("self".into(), Arg::Tensor(x)), (param.into(), sizes(shape))], F32, shape)
    }

    /// `[1, 2, 8, 4]` repeated to `[1, 6, 8, 4]`: each head repeated in place, or the two heads
    /// alternating.
    fn repeated(p: &mut Program, x: Tid, in_place: bool) -> Tid {
        let (one, many) = if in_place { ([1, 2, 1, 8, 4], [1, 2, 3, 8, 4]) } else { ([1, 1, 2, 8, 4], [1, 3, 2, 8, 4]) };
        let x = view(p, "aten.view.default", "size", x, &one);
        let x = view(p, "aten.expand.default", "size", x, &many);
        view(p, "aten.reshape.default", "shape", x, &[1, 6, 8, 4])
    }

    fn attention(in_place: bool) -> Vec<&'static str> {
        let mut p = Program::new();
        let q = p.input("q", F32, &[1, 6, 5, 4]);
        let [k, v] = ["k", "v"].map(|n| p.input(n, F32, &[1, 2, 8, 4]));
        let (k, v) = (repeated(&mut p, k, in_place), repeated(&mut p, v, in_place));
        let operands = [("query", q), ("key", k), ("value", v)];
        let out = p.call("aten.scaled_dot_product_attention.default", &operands, F32, &[1, 6, 5, 4]);
        p.result(out);
        p.fused()
    }

    #[test]
    fn repeated_heads_are_read_from_their_origin() {
        assert_eq!(attention(true), ["Sdpa"]);
    }

    #[test]
    fn alternating_heads_are_not_grouped_heads() {
        assert!(attention(false).contains(&"BroadcastTo"));
    }

    /// Attention in primitive nodes, over keys and values of `heads` heads, with a mask of this
    /// type.
    fn formula_of(axis: i64, heads: [i64; 2], mask: Option<DType>) -> crate::SsaGraph {
        let mut p = Program::new();
        let q = p.input("q", F32, &[1, 2, 0, 4]);
        let [k, v] = heads.map(|heads| p.input("k or v", F32, &[1, heads, 0, 4]));
        let swap = |d: i64| Arg::Int(Expr::Int(d));
        let args = vec![("self".into(), Arg::Tensor(k)), ("dim0".into(), swap(2)), ("dim1".into(), swap(3))];
        let kt = p.call_args("aten.transpose.int", args, F32, &[1, heads[0], 4, 0]);
        let dot = p.call("aten.matmul.default", &[("self", q), ("other", kt)], F32, &[1, 2, 0, 0]);
        let scores = p.call_with_float("aten.mul.Tensor", dot, ("other", 0.5), F32, &[1, 2, 0, 0]);
        let scores = match mask {
            Some(dtype) => {
                let mask = p.input("mask", dtype, &[1, 1, 0, 0]);
                p.call("aten.add.Tensor", &[("self", scores), ("other", mask)], F32, &[1, 2, 0, 0])
            }
            None => scores,
        };
        let args = vec![("self".into(), Arg::Tensor(scores)), ("dim".into(), swap(axis))];
        let weights = p.call_args("aten.softmax.int", args, F32, &[1, 2, 0, 0]);
        let out = p.call("aten.matmul.default", &[("self", weights), ("other", v)], F32, &[1, 2, 0, 4]);
        p.result(out);
        p.fused_graph()
    }

    fn formula(axis: i64) -> crate::SsaGraph {
        formula_of(axis, [2, 2], Some(F32))
    }

    #[test]
    fn the_formula_becomes_one_node_with_its_scale_and_mask() {
        let ssa = formula(-1);
        let [entry] = &ssa.chains[0][..] else { panic!("{:?}", ssa.chains) };
        assert!(matches!(&entry.node, Node::Sdpa(n) if n.scale == 0.5 && n.mask.is_some() && !n.causal));
    }

    #[test]
    fn a_softmax_over_queries_is_not_attention() {
        assert!(formula(2).chains[0].iter().all(|n| n.node.name() != "Sdpa"));
    }

    #[test]
    fn the_formula_needs_no_mask_but_equal_heads() {
        let fuses = |heads, mask| {
            let ssa = formula_of(-1, heads, mask);
            ssa.chains[0].iter().any(|n| matches!(&n.node, Node::Sdpa(n) if n.mask.is_some() == mask.is_some()))
        };
        assert!(fuses([2, 2], None));
        assert!(fuses([2, 2], Some(F32)));
        assert!(!fuses([1, 2], None));
        assert!(!fuses([2, 1], None));
    }
}
