//! Fuses the cosine and sine arithmetic of model code into rotary embedding.

use flambeau_ir::{In, Int, Node, Reshape, Rope, Tid, Transpose, VidOrTid};
use flambeau_tensor::{DType, Expr, Shape};

use super::Rewrite;
use crate::{ConstExpr, Constant, lower::NEW};

/// `x * cos(a) + rotate_half(x) * sin(a)`, x `[1, H, T, D]`, where `a` is `positions ⊗ frequencies`
/// concatenated with itself.
///
/// Positions need not be consecutive. The time axis therefore becomes the node's batch axis,
/// `[T, H, 1, D]`, and the node's offset gives one position per row. Moving the axes is a view.
pub(super) fn rope(m: &mut Rewrite<'_>, root: &Node) -> Option<()> {
    let Node::Add(sum) = root else { return None };
    let (x, angles) =
        [(sum.a.0, sum.b.0), (sum.b.0, sum.a.0)].into_iter().find_map(|(plain, rotated)| rotation(m, plain, rotated))?;
    let (positions, frequencies) = angles_of(m, angles)?;
    let dims = m.dims(x).to_vec();
    let (batch, time) = (dims.first()?.as_int()?, dims.get(2)?.clone());
    let head_dim = dims.last()?.as_int()?;
    let fits = dims.len() == 4 && batch == 1 && m.dims(positions) == [time];
    let c = m.constant(frequencies).filter(|c| fits && c.shape.iter().product::<usize>() as i64 * 2 == head_dim)?.clone();
    let shape = Shape::from_slice(&[c.shape.iter().product()]);
    let flat = std::sync::Arc::new(c.reshaped(&shape));
    let name = format!("{}_periods", c.name);
    let periods = m.add_constant(Constant { name, dtype: DType::F32, shape, expr: ConstExpr::Reciprocal(flat) });
    let rows = time_to_batch(m, x, &dims)?;
    let rotated = m.emit(Rope {
        x: In(rows),
        out: NEW,
        dims: head_dim as i32,
        offset: VidOrTid::Tid(positions),
        freqs: Some(In(periods)),
        traditional: false,
        base: 0.0,
        scale: 1.0,
    })?;
    m.finish(sum.out, Transpose { x: In(rotated), out: NEW, perm: vec![2, 1, 0, 3] })
}

/// `[1, H, T, D]` as `[T, H, 1, D]`: a reshape where the tensor is the usual transposition of
/// `[1, T, H, D]`.
fn time_to_batch(m: &mut Rewrite<'_>, x: Tid, dims: &[Expr]) -> Option<Tid> {
    let usual = match m.def(x) {
        Some(Node::Transpose(t)) if t.perm == [0, 2, 1, 3] => Some(t.x.0),
        _ => None,
    };
    let (heads, head_dim) = (dims[1].as_int(), dims[3].as_int());
    if let (Some(source), Some(heads), Some(head_dim)) = (usual, heads, head_dim) {
        let source = m.unview(source);
        let shape = [-1, heads, 1, head_dim].map(Int::Lit).to_vec();
        return m.emit(Reshape { x: In(source), out: NEW, shape });
    }
    m.emit(Transpose { x: In(x), out: NEW, perm: vec![2, 1, 0, 3] })
}

/// The operand and the angles of `x * cos(angles)` plus `rotate_half(x) * sin(angles)`.
fn rotation(m: &Rewrite<'_>, plain: Tid, rotated: Tid) -> Option<(Tid, Tid)> {
    let (Node::Multiply(plain), Node::Multiply(rotated)) = (m.def(plain)?, m.def(rotated)?) else { return None };
    let (x, cos) = pick(plain.a.0, plain.b.0, |t| trig(m, t, true))?;
    let (half, sin) = pick(rotated.a.0, rotated.b.0, |t| trig(m, t, false))?;
    (cos == sin && rotates_half(m, half, x)).then_some((x, cos))
}

/// Applies `find` to one of two operands; returns the other operand and the result.
fn pick<T>(a: Tid, b: Tid, find: impl Fn(Tid) -> Option<T>) -> Option<(Tid, T)> {
    find(b).map(|f| (a, f)).or_else(|| find(a).map(|f| (b, f)))
}

/// The angles of a cosine or sine, through casts and axes of size 1.
fn trig(m: &Rewrite<'_>, t: Tid, cosine: bool) -> Option<Tid> {
    match m.def(t)? {
        Node::Cos(n) if cosine => Some(n.x.0),
        Node::Sin(n) if !cosine => Some(n.x.0),
        Node::AsType(n) => trig(m, n.x.0, cosine),
        Node::ExpandDims(n) => trig(m, n.x.0, cosine),
        _ => None,
    }
}

/// Whether `t` is `concat(-x[half..], x[..half])` on the last axis.
fn rotates_half(m: &Rewrite<'_>, t: Tid, x: Tid) -> bool {
    let find = || {
        let Node::Concatenate(join) = m.def(t)? else { return None };
        let [upper, lower] = join.tensors[..] else { return None };
        let Node::Neg(upper) = m.def(upper.0)? else { return None };
        let half = m.dims(x).last()?.as_int()? / 2;
        let last = m.dims(x).len() as i64 - 1;
        let (low, high) = (halves(m, lower.0, x, last)?, halves(m, upper.x.0, x, last)?);
        let axis_fits = i64::from(join.axis) == last || join.axis == -1;
        Some(axis_fits && low == (0, half) && high.0 == half && high.1 >= 2 * half)
    };
    find().unwrap_or(false)
}

/// Bounds of a slice of `x` along its last axis, or of its part of an even split.
fn halves(m: &Rewrite<'_>, t: Tid, x: Tid, last: i64) -> Option<(i64, i64)> {
    match m.def(t)? {
        Node::Slice(s) if s.x.0 == x && s.step == 1 => match (s.axis, s.start, s.stop) {
            (Int::Lit(axis), Int::Lit(start), Int::Lit(stop)) if axis == last => Some((start, stop)),
            _ => None,
        },
        Node::Split(s) if s.x.0 == x && i64::from(s.axis) == last && s.outs.len() == 2 => {
            let half = m.dims(x).last()?.as_int()? / 2;
            let even = m.dims(s.outs[0].0).last()?.as_int()? == half;
            let first = s.outs[0].0 == t;
            even.then_some(if first { (0, half) } else { (half, 2 * half) })
        }
        _ => None,
    }
}

/// The positions `[T]` and constant frequencies of angles `[.., T, D]` whose two halves are equal.
fn angles_of(m: &Rewrite<'_>, angles: Tid) -> Option<(Tid, Tid)> {
    let Node::Concatenate(join) = m.def(angles)? else { return None };
    let [first, second] = join.tensors[..] else { return None };
    if first != second || (join.axis != -1 && join.axis as usize + 1 != m.dims(angles).len()) {
        return None;
    }
    let swapped = match m.def(first.0)? {
        Node::Transpose(t) => t.x.0,
        _ => first.0,
    };
    let (a, b) = match m.def(swapped)? {
        Node::Addmm(n) if n.bias.is_none() => (n.mat1.0, n.mat2.0),
        Node::Multiply(n) => (n.a.0, n.b.0),
        _ => return None,
    };
    let is_frequency =
        |t: Tid| m.constant(t).is_some_and(|c| c.dtype == DType::F32 && c.shape.iter().filter(|&&d| d != 1).count() <= 1);
    let (frequencies, positions) = if is_frequency(a) { (a, b) } else { (b, a) };
    let positions = m.unview(m.uncast(m.unview(positions)));
    let integers = matches!(m.dtype(positions), DType::I64 | DType::I32) && m.dims(positions).len() == 1;
    (is_frequency(frequencies) && integers).then_some((positions, frequencies))
}

#[cfg(test)]
mod tests {
    use flambeau_ir::Tid;
    use flambeau_tensor::{
        DType::{self, BF16, F32, I64},
        Expr,
    };

    use crate::{Arg, Call, Item, OutMeta, fusions::testing::Program};

    fn call(p: &mut Program, target: &str, x: Tid, args: &[(&str, i64)], dtype: DType, shape: &[i64]) -> Tid {
        let ints = args.iter().map(|(n, v)| ((*n).to_owned(), Arg::Int(Expr::Int(*v))));
        p.call_args(target, [("self".to_owned(), Arg::Tensor(x))].into_iter().chain(ints).collect(), dtype, shape)
    }

    fn cat(p: &mut Program, a: Tid, b: Tid, dtype: DType, shape: &[i64]) -> Tid {
        let tensors = Arg::Tensors(vec![Some(a), Some(b)]);
        p.call_args("aten.cat.default", vec![("tensors".into(), tensors), ("dim".into(), Arg::Int(Expr::Int(-1)))], dtype, shape)
    }

    /// Elements `start..end` of each head, `[B, 3, s, 8]`.
    fn slice(p: &mut Program, x: Tid, start: i64, end: i64) -> Tid {
        let batch = p.lower.spec(x).dims[0].as_int().unwrap();
        let args = [("dim", 3), ("start", start), ("end", end)];
        call(p, "aten.slice.Tensor", x, &args, BF16, &[batch, 3, 0, end.min(8) - start])
    }

    /// The halves of each head, `[B, 3, s, 8]`, as two results of one call.
    fn split(p: &mut Program, x: Tid) -> (Tid, Tid) {
        let number = |name: &str, n: i64| (name.to_owned(), Arg::Int(Expr::Int(n)));
        let args = vec![("self".to_owned(), Arg::Tensor(x)), number("split_size", 4), number("dim", -1)];
        let mut dims = p.lower.spec(x).dims.to_vec();
        dims[3] = Expr::Int(4);
        let outputs = vec![OutMeta { dtype: BF16, dims, used: true }; 2];
        match &p.lower.call(&Call { target: "aten.split.Tensor".to_owned(), args, outputs }, 0).unwrap()[..] {
            [Item::Tensors(parts)] => (parts[0], parts[1]),
            other => panic!("{other:?}"),
        }
    }

    /// A difference from the usual arithmetic.
    #[derive(Clone, Copy)]
    enum But {
        Nothing,
        TwoRows,
        OtherSecondAngles,
        FloatPositions,
    }

    /// Rotary embedding of `[B, 3, s, 8]` as model code writes it. `cut` returns the lower and
    /// the upper half of the heads. It takes the heads and another tensor of their shape.
    fn rotary(but: But, cut: impl Fn(&mut Program, Tid, Tid) -> (Tid, Tid)) -> Vec<&'static str> {
        let mut p = Program::new();
        let batch = if matches!(but, But::TwoRows) { 2 } else { 1 };
        let dtype = if matches!(but, But::FloatPositions) { F32 } else { I64 };
        let (q, positions) = (p.input("q", BF16, &[batch, 0, 24]), p.input("positions", dtype, &[0]));
        let frequencies = p.weight("inv_freq", F32, &[1, 4, 1]);
        let positions = call(&mut p, "aten.unsqueeze.default", positions, &[("dim", 0)], dtype, &[1, 0]);
        let positions = call(&mut p, "aten.unsqueeze.default", positions, &[("dim", 1)], dtype, &[1, 1, 0]);
        let positions = p.call("aten.to.dtype", &[("self", positions)], F32, &[1, 1, 0]);
        let angles = p.call("aten.matmul.default", &[("self", frequencies), ("other", positions)], F32, &[1, 4, 0]);
        let angles = call(&mut p, "aten.transpose.int", angles, &[("dim0", 1), ("dim1", 2)], F32, &[1, 0, 4]);
        let second = match but {
            But::OtherSecondAngles => p.call("aten.neg.default", &[("self", angles)], F32, &[1, 0, 4]),
            _ => angles,
        };
        let angles = cat(&mut p, angles, second, F32, &[1, 0, 8]);
        let [cos, sin] = ["aten.cos.default", "aten.sin.default"].map(|f| {
            let wide = p.call(f, &[("self", angles)], F32, &[1, 0, 8]);
            let narrow = p.call("aten.to.dtype", &[("self", wide)], BF16, &[1, 0, 8]);
            call(&mut p, "aten.unsqueeze.default", narrow, &[("dim", 1)], BF16, &[1, 1, 0, 8])
        });
        let sizes = Arg::Ints([batch, -1, 3, 8].map(Expr::Int).to_vec());
        let args = vec![("self".into(), Arg::Tensor(q)), ("size".into(), sizes)];
        let q = p.call_args("aten.view.default", args, BF16, &[batch, 0, 3, 8]);
        let q = call(&mut p, "aten.transpose.int", q, &[("dim0", 1), ("dim1", 2)], BF16, &[batch, 3, 0, 8]);
        let other = p.input("other", BF16, &[batch, 3, 0, 8]);
        let (low, high) = cut(&mut p, q, other);
        let [low_size, high_size] = [low, high].map(|t| p.lower.spec(t).dims[3].as_int().unwrap());
        let high = p.call("aten.neg.default", &[("self", high)], BF16, &[batch, 3, 0, high_size]);
        let half = cat(&mut p, high, low, BF16, &[batch, 3, 0, low_size + high_size]);
        let plain = p.call("aten.mul.Tensor", &[("self", q), ("other", cos)], BF16, &[batch, 3, 0, 8]);
        let rotated = p.call("aten.mul.Tensor", &[("self", half), ("other", sin)], BF16, &[batch, 3, 0, 8]);
        let out = p.call("aten.add.Tensor", &[("self", plain), ("other", rotated)], BF16, &[batch, 3, 0, 8]);
        p.result(out);
        p.fused()
    }

    #[test]
    fn arithmetic_becomes_one_node_between_views() {
        let fused = ["Reshape", "Rope", "Transpose"];
        assert_eq!(rotary(But::Nothing, |p, q, _| (slice(p, q, 0, 4), slice(p, q, 4, i64::MAX))), fused);
        assert_eq!(rotary(But::Nothing, |p, q, _| (slice(p, q, 0, 4), slice(p, q, 4, 8))), fused);
        assert_eq!(rotary(But::Nothing, |p, q, _| split(p, q)), fused);
    }

    #[test]
    fn a_cut_elsewhere_is_not_a_rotation() {
        let check = |cut: &dyn Fn(&mut Program, Tid, Tid) -> (Tid, Tid)| {
            assert!(!rotary(But::Nothing, cut).contains(&"Rope"));
        };
        check(&|p, q, _| (slice(p, q, 0, 2), slice(p, q, 2, 8)));
        check(&|p, q, _| (slice(p, q, 4, 8), slice(p, q, 4, 8)));
        check(&|p, q, _| (slice(p, q, 0, 4), slice(p, q, 0, 4)));
        check(&|p, q, _| (slice(p, q, 4, 8), slice(p, q, 0, 4)));
        check(&|p, q, other| (slice(p, other, 0, 4), slice(p, q, 4, 8)));
        check(&|p, q, other| (slice(p, q, 0, 4), slice(p, other, 4, 8)));
        check(&|p, _, other| split(p, other));
        check(&|p, q, _| {
            let (low, high) = split(p, q);
            (high, low)
        });
    }

    #[test]
    fn other_angles_positions_and_rows_are_left_alone() {
        for but in [But::TwoRows, But::OtherSecondAngles, But::FloatPositions] {
            assert!(!rotary(but, |p, q, _| split(p, q)).contains(&"Rope"));
        }
    }
}
