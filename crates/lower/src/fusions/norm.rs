//! Fuses the formulas of RMS normalization and SiLU.
//!
//! Both fused nodes compute in f32 and round once. A formula in half precision rounds after every
//! step and gives other results. Over bf16 values, PyTorch's `x * sigmoid(x)` differs from its
//! `silu(x)` in one of five, by up to one bf16 step. Formulas of that kind stay unfused.

use flambeau_ir::{In, Multiply, Node, RMSNorm, Silu, Tid, promote};
use flambeau_tensor::DType;

use super::Rewrite;
use crate::lower::NEW;

/// `w * cast(x' * rsqrt(mean(x'^2) + eps))`, where `x'` is f32: `x` or its cast. The outer cast is
/// optional.
///
/// The node rounds the normalized values to the promoted type of `x` and `w` before the product,
/// and the formula must round there too.
pub(super) fn rms_norm(m: &mut Rewrite<'_>, root: &Node) -> Option<()> {
    let Node::Multiply(outer) = root else { return None };
    for (weight, normed) in [(outer.a.0, outer.b.0), (outer.b.0, outer.a.0)] {
        let Some((x, eps)) = normalized(m, m.uncast(normed)) else { continue };
        let rounded = m.dtype(normed) == promote(m.dtype(x), m.dtype(weight));
        let vector = m.dims(weight).len() == 1 && m.dims(weight).last() == m.dims(x).last();
        if rounded && vector {
            return m.finish(outer.out, RMSNorm { x: In(x), weight: Some(In(weight)), out: NEW, eps });
        }
    }
    None
}

/// The operand and epsilon of `x' * rsqrt(mean(x'^2) + eps)`, in either order.
fn normalized(m: &Rewrite<'_>, t: Tid) -> Option<(Tid, f32)> {
    let Node::Multiply(product) = m.def(t)? else { return None };
    [(product.a.0, product.b.0), (product.b.0, product.a.0)].into_iter().find_map(|(wide, scale)| {
        let Node::Rsqrt(rsqrt) = m.def(scale).filter(|_| m.dtype(wide) == DType::F32)? else { return None };
        let Node::Add(sum) = m.def(rsqrt.x.0)? else { return None };
        let (mean, eps) = with_scalar(m, sum.a.0, sum.b.0)?;
        let Node::Mean(mean) = m.def(mean)? else { return None };
        let last = m.dims(wide).len() as i32 - 1;
        let over_last = mean.keepdims && matches!(mean.axes[..], [axis] if axis == last || axis == -1);
        (over_last && is_square_of(m, mean.x.0, wide)).then(|| (widened_from(m, wide), eps as f32))
    })
}

fn with_scalar(m: &Rewrite<'_>, a: Tid, b: Tid) -> Option<(Tid, f64)> {
    m.scalar(b).map(|s| (a, s)).or_else(|| m.scalar(a).map(|s| (b, s)))
}

fn is_square_of(m: &Rewrite<'_>, t: Tid, x: Tid) -> bool {
    match m.def(t) {
        Some(Node::Square(n)) => n.x.0 == x,
        Some(Node::Multiply(Multiply { a, b, .. })) => a.0 == x && b.0 == x,
        Some(Node::Power(n)) => n.a.0 == x && m.scalar(n.b.0) == Some(2.0),
        _ => false,
    }
}

/// The float operand of a cast to f32, because the node casts by itself; any other slot unchanged.
fn widened_from(m: &Rewrite<'_>, t: Tid) -> Tid {
    let x = m.uncast(t);
    if m.dtype(x).is_float() { x } else { t }
}

/// `x * sigmoid(x)` in f32.
pub(super) fn silu(m: &mut Rewrite<'_>, root: &Node) -> Option<()> {
    let Node::Multiply(n) = root else { return None };
    let is_gate = |x: Tid, gate: Tid| matches!(m.def(gate), Some(Node::Sigmoid(s)) if s.x.0 == x);
    let x = [(n.a.0, n.b.0), (n.b.0, n.a.0)].into_iter().find(|&(x, gate)| is_gate(x, gate))?.0;
    if m.dtype(x) != DType::F32 {
        return None;
    }
    m.finish(n.out, Silu { x: In(x), out: NEW })
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::DType::{self, BF16, F16, F32};

    use crate::fusions::testing::Program;

    /// RMS normalization as model code writes it, with a bf16 input computed in f32.
    fn formula(exponent: f64, cast_back: bool) -> Program {
        formula_in(F32, exponent, if cast_back { BF16 } else { F32 })
    }

    /// RMS normalization of a bf16 input, computed in `compute` and multiplied by a bf16 weight in
    /// `dtype`.
    fn formula_in(compute: DType, exponent: f64, dtype: DType) -> Program {
        let mut p = Program::new();
        let x = p.input("x", BF16, &[2, 8]);
        let w = p.weight("w", BF16, &[8]);
        let wide = p.call("aten.to.dtype", &[("self", x)], compute, &[2, 8]);
        let square = p.call_with_float("aten.pow.Tensor_Scalar", wide, ("exponent", exponent), compute, &[2, 8]);
        let mean = p.call_reduce("aten.mean.dim", square, -1, compute, &[2, 1]);
        let sum = p.call_with_float("aten.add.Tensor", mean, ("other", 1e-5), compute, &[2, 1]);
        let scale = p.call("aten.rsqrt.default", &[("self", sum)], compute, &[2, 1]);
        let normed = p.call("aten.mul.Tensor", &[("self", wide), ("other", scale)], compute, &[2, 8]);
        let normed = p.call("aten.to.dtype", &[("self", normed)], dtype, &[2, 8]);
        let out = p.call("aten.mul.Tensor", &[("self", w), ("other", normed)], dtype, &[2, 8]);
        p.result(out);
        p
    }

    /// RMS normalization in f32 with the mean of the squares, or of products with another
    /// input, over an axis.
    fn plain(squares_itself: bool, axis: i64, weight: &[usize]) -> Vec<&'static str> {
        let mut p = Program::new();
        let (x, y) = (p.input("x", F32, &[8, 8]), p.input("y", F32, &[8, 8]));
        let w = p.weight("w", F32, weight);
        let square = p.call("aten.mul.Tensor", &[("self", x), ("other", if squares_itself { x } else { y })], F32, &[8, 8]);
        let means = if axis == -1 { [8, 1] } else { [1, 8] };
        let mean = p.call_reduce("aten.mean.dim", square, axis, F32, &means);
        let sum = p.call_with_float("aten.add.Tensor", mean, ("other", 1e-5), F32, &means);
        let scale = p.call("aten.rsqrt.default", &[("self", sum)], F32, &means);
        let normed = p.call("aten.mul.Tensor", &[("self", x), ("other", scale)], F32, &[8, 8]);
        let out = p.call("aten.mul.Tensor", &[("self", w), ("other", normed)], F32, &[8, 8]);
        p.result(out);
        p.fused()
    }

    #[test]
    fn a_product_with_itself_over_the_last_axis_becomes_one_node() {
        assert_eq!(plain(true, -1, &[8]), ["RMSNorm"]);
        assert!(!plain(false, -1, &[8]).contains(&"RMSNorm"));
        assert!(!plain(true, 0, &[8]).contains(&"RMSNorm"));
        assert!(!plain(true, -1, &[8, 8]).contains(&"RMSNorm"));
        assert!(!plain(true, -1, &[1]).contains(&"RMSNorm"));
    }

    #[test]
    fn the_formula_becomes_one_node() {
        assert_eq!(formula(2.0, true).fused(), ["RMSNorm"]);
    }

    #[test]
    fn a_product_in_f32_keeps_its_rounding() {
        // The weight is cast to f32 for the product, so the node's promoted type is f32 as well.
        assert_eq!(formula(2.0, false).fused(), ["RMSNorm"]);
    }

    #[test]
    fn another_power_is_left_alone() {
        assert!(!formula(3.0, true).fused().contains(&"RMSNorm"));
    }

    #[test]
    fn a_formula_that_bf16_rounds_after_every_step_is_left_alone() {
        assert!(!formula_in(BF16, 2.0, BF16).fused().contains(&"RMSNorm"));
    }

    /// `x * sigmoid(x)` with the input in `stored`, computed in `compute`.
    fn gated(stored: DType, compute: DType) -> Vec<&'static str> {
        let mut p = Program::new();
        let mut x = p.input("x", stored, &[4]);
        if stored != compute {
            x = p.call("aten.to.dtype", &[("self", x)], compute, &[4]);
        }
        let gate = p.call("aten.sigmoid.default", &[("self", x)], compute, &[4]);
        let out = p.call("aten.mul.Tensor", &[("self", x), ("other", gate)], compute, &[4]);
        p.result(out);
        p.fused()
    }

    #[test]
    fn a_gate_in_half_precision_keeps_both_of_its_roundings() {
        assert_eq!(gated(BF16, BF16), ["Sigmoid", "Multiply"]);
        assert_eq!(gated(F16, F16), ["Sigmoid", "Multiply"]);
        assert_eq!(gated(F32, F32), ["Silu"]);
        assert_eq!(gated(BF16, F32), ["AsType", "Silu"]);
    }

    #[test]
    fn a_gate_becomes_silu_only_over_its_own_input() {
        for (gate_of_itself, want) in [(true, vec!["Silu"]), (false, vec!["Sigmoid", "Multiply"])] {
            let mut p = Program::new();
            let (x, y) = (p.input("x", F32, &[4]), p.input("y", F32, &[4]));
            let gate = p.call("aten.sigmoid.default", &[("self", if gate_of_itself { x } else { y })], F32, &[4]);
            let out = p.call("aten.mul.Tensor", &[("self", x), ("other", gate)], F32, &[4]);
            p.result(out);
            assert_eq!(p.fused(), want);
        }
    }
}
