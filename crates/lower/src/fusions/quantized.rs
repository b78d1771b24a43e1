//! Fuses the dequantization of packed weights into the nodes that read them.

use flambeau_ir::{Add, Dequantize, GatherQmm, In, Index, Node, QuantMode, QuantizedMatmul, Take, Tid};

use super::Rewrite;
use crate::lower::NEW;

/// The `Dequantize` that produces a slot, possibly through a cast to a wider type.
fn dequantized(m: &Rewrite<'_>, t: Tid) -> Option<Dequantize> {
    match m.def(m.uncast(t))? {
        Node::Dequantize(d) if d.global_scale.is_none() => Some(d.clone()),
        _ => None,
    }
}

/// Whether matrix products support these codes: affine codes need groups of at least 32. Lookups
/// support smaller groups too.
fn multiplies(d: &Dequantize) -> bool {
    d.mode != QuantMode::Affine || d.group_size >= 32
}

/// `x @ dequantize(w)ᵀ [+ bias]`, w `[N, K * bits / 32]`.
pub(super) fn linear(m: &mut Rewrite<'_>, root: &Node) -> Option<()> {
    let Node::Addmm(n) = root else { return None };
    let Node::Transpose(t) = m.def(n.mat2.0)? else { return None };
    let swapped = t.perm == [1, 0] || t.perm == [-1, -2];
    let plain = n.bias.is_none() || (n.alpha == 1.0 && n.beta == 1.0);
    let d = dequantized(m, t.x.0).filter(|d| swapped && plain && multiplies(d))?;
    let product = QuantizedMatmul {
        x: n.mat1,
        w: d.w,
        scales: d.scales,
        out: NEW,
        biases: d.biases,
        group_size: d.group_size,
        bits: d.bits,
        mode: d.mode,
        transpose: true,
    };
    match n.bias {
        None => m.finish(n.out, product),
        Some(bias) => {
            let product = m.emit(product)?;
            m.finish(n.out, Add { a: In(product), b: bias, out: NEW })
        }
    }
}

/// `x @ dequantize(w[i])ᵀ` for indices `i`, w `[E, N, K * bits / 32]`: only the indexed matrices
/// are read.
pub(super) fn experts(m: &mut Rewrite<'_>, root: &Node) -> Option<()> {
    let Node::GatherMm(n) = root else { return None };
    let Node::Transpose(t) = m.def(n.b.0)? else { return None };
    let swapped = t.perm == [0, 2, 1];
    let d = dequantized(m, t.x.0).filter(|d| swapped && multiplies(d))?;
    let product = GatherQmm {
        x: n.a,
        w: d.w,
        scales: d.scales,
        out: NEW,
        mode: d.mode,
        biases: d.biases,
        lhs_indices: n.lhs_indices,
        rhs_indices: n.rhs_indices,
        transpose: true,
        group_size: d.group_size,
        bits: d.bits,
        sorted_indices: n.sorted_indices,
        sorted_indices_flag: n.sorted_indices_flag,
    };
    m.finish(n.out, product)
}

/// Lookup of rows in a packed table: looks up the packed rows, then unpacks only these.
pub(super) fn embedding(m: &mut Rewrite<'_>, root: &Node) -> Option<()> {
    let Node::Take(n) = root else { return None };
    let (Index::Tid(_), 0) = (n.index, n.axis) else { return None };
    let d = dequantized(m, n.x.0)?;
    let rows = |m: &mut Rewrite<'_>, x: In| m.emit(Take { x, out: NEW, index: n.index, axis: 0 }).map(In);
    let (w, scales) = (rows(m, d.w)?, rows(m, d.scales)?);
    let biases = match d.biases {
        Some(b) => Some(rows(m, b)?),
        None => None,
    };
    m.finish(n.out, Dequantize { w, scales, biases, out: NEW, dtype: Some(m.dtype(n.out.0)), ..d })
}

#[cfg(test)]
mod tests {
    use flambeau_ir::Tid;
    use flambeau_tensor::{
        DType::{self, BF16, I8, I64, U32},
        Expr,
    };

    use crate::{Arg, fusions::testing::Program};

    fn packed(p: &mut Program, group: i64) -> Tid {
        let codes = p.weight("codes", I8, &[32, 64]);
        let scale = p.weight("scale", BF16, &[32, (64 / group) as usize]);
        let args = [
            ("input", Arg::Tensor(codes)),
            ("block_size", Arg::Ints(vec![Expr::Int(1), Expr::Int(group)])),
            ("scale", Arg::Tensor(scale)),
            ("quant_min", Arg::Int(Expr::Int(-8))),
            ("quant_max", Arg::Int(Expr::Int(7))),
            ("output_dtype", Arg::DType(BF16)),
        ];
        let args = args.into_iter().map(|(n, a)| (n.to_owned(), a)).collect();
        p.call_args("torchao.dequantize_affine.default", args, BF16, &[32, 64])
    }

    fn linear(group: i64, with_bias: bool) -> Vec<&'static str> {
        let mut p = Program::new();
        let (x, w, b) = (p.input("x", BF16, &[1, 0, 64]), packed(&mut p, group), p.weight("b", BF16, &[32]));
        let operands = [("input", x), ("weight", w), ("bias", b)];
        let out = p.call("aten.linear.default", &operands[..if with_bias { 3 } else { 2 }], BF16, &[1, 0, 32]);
        p.result(out);
        p.fused()
    }

    #[test]
    fn a_linear_reads_packed_words() {
        assert_eq!(linear(32, false), ["QuantizedMatmul"]);
        assert_eq!(linear(64, true), ["QuantizedMatmul", "Add"]);
    }

    #[test]
    fn groups_too_small_for_products_are_unpacked() {
        assert_eq!(linear(16, false), ["Dequantize", "Transpose", "Addmm"]);
    }

    /// Experts `[4, 32, 64]` in `group`s; `swapped` transposes each matrix `[32, 64]`.
    fn expert_nodes(group: i64, swapped: bool) -> Vec<&'static str> {
        let mut p = Program::new();
        let words = p.weight("words", U32, &[4, 32, 8]);
        let [scales, biases] = ["scales", "biases"].map(|n| p.weight(n, BF16, &[4, 32, (64 / group) as usize]));
        let args = [
            ("words", Arg::Tensor(words)),
            ("scales", Arg::Tensor(scales)),
            ("biases", Arg::Tensor(biases)),
            ("group_size", Arg::Int(Expr::Int(group))),
            ("bits", Arg::Int(Expr::Int(4))),
        ];
        let args = args.into_iter().map(|(n, a)| (n.to_owned(), a)).collect();
        let mut w = p.call_args("flambeau.dequantize_packed.default", args, BF16, &[4, 32, 64]);
        let (rows, columns) = if swapped { (64, 32) } else { (32, 64) };
        if swapped {
            let dim = |d: i64| Arg::Int(Expr::Int(d));
            let args = vec![("self".into(), Arg::Tensor(w)), ("dim0".into(), dim(1)), ("dim1".into(), dim(2))];
            w = p.call_args("aten.transpose.int", args, BF16, &[4, 64, 32]);
        }
        let (x, i) = (p.input("x", BF16, &[0, 1, 1, rows]), p.input("i", I64, &[0, 2]));
        let out = p.call("mlx.gather_mm", &[("a", x), ("b", w), ("rhs_indices", i)], BF16, &[0, 2, 1, columns]);
        p.result(out);
        p.fused()
    }

    #[test]
    fn chosen_experts_read_packed_words() {
        assert_eq!(expert_nodes(32, true), ["GatherQmm"]);
    }

    #[test]
    fn experts_by_columns_or_in_small_groups_are_unpacked() {
        assert_eq!(expert_nodes(32, false), ["Dequantize", "GatherMm"]);
        assert_eq!(expert_nodes(16, true), ["Dequantize", "Transpose", "GatherMm"]);
    }

    fn lookup(dtype: DType) -> Vec<&'static str> {
        let mut p = Program::new();
        let (w, i) = (packed(&mut p, 16), p.input("i", I64, &[1, 0]));
        let out = p.call("aten.embedding.default", &[("weight", w), ("indices", i)], dtype, &[1, 0, 64]);
        p.result(out);
        p.fused()
    }

    #[test]
    fn a_lookup_unpacks_only_its_rows() {
        assert_eq!(lookup(BF16), ["Take", "Take", "Take", "Dequantize"]);
    }
}
