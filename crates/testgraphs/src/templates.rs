//! Templates for nodes with dependent operands.

use flambeau_ir::{
    Addmm, ChainId, Convolution, Dequantize, Gather, GatherMm, GatherQmm, IdCopy, If, In, Index, IndexCopy, Int, LayerNorm, Neg,
    Node, NodeKind, Out, QuantMode, QuantizedMatmul, RMSNorm, RandomBits, Rope, ScatterAdd, Sdpa, SliceUpdate, Split, Square, Take,
    TakeAlongAxis, Tid, VidOrTid,
};
use flambeau_tensor::{DType, WindowAxis};

use crate::Generator;

/// A node of this kind over fresh and existing operands. The outer `None` means no template, the
/// inner `None` means that nothing fits now.
pub(crate) fn draw(g: &mut Generator, kind: NodeKind) -> Option<Option<Node>> {
    Some(match kind {
        NodeKind::Addmm => Some(addmm(g)),
        NodeKind::Conv1D => conv(g, 1, false),
        NodeKind::Conv2D => conv(g, 2, false),
        NodeKind::Conv3D => conv(g, 3, false),
        NodeKind::ConvTranspose1D => conv(g, 1, true),
        NodeKind::ConvTranspose2D => conv(g, 2, true),
        NodeKind::ConvTranspose3D => conv(g, 3, true),
        NodeKind::Dequantize => Some(dequantize(g)),
        NodeKind::QuantizedMatmul => Some(quantized_matmul(g)),
        NodeKind::GatherQmm => Some(gather_qmm(g)),
        NodeKind::GatherMm => Some(gather_mm(g)),
        NodeKind::RMSNorm => norm(g, false),
        NodeKind::LayerNorm => norm(g, true),
        NodeKind::Rope => Some(rope(g)),
        NodeKind::Sdpa => Some(sdpa(g)),
        NodeKind::Take => take(g),
        NodeKind::TakeAlongAxis => take_along_axis(g),
        NodeKind::Gather => gather(g),
        NodeKind::ScatterAdd => scatter_add(g),
        NodeKind::IndexCopy => index_copy(g),
        NodeKind::SliceUpdate => slice_update(g),
        NodeKind::Split => split(g),
        NodeKind::If => branch(g),
        NodeKind::RandomBits => Some(random_bits(g)),
        _ => return None,
    })
}

fn addmm(g: &mut Generator) -> Node {
    let dtype = g.float();
    let [m, k, n] = [0; 3].map(|_| g.rng.usize(1..7));
    let batch: Vec<usize> = if g.rng.bool() { vec![g.rng.usize(1..4)] } else { Vec::new() };
    let mat1 = g.input(dtype, &[&batch[..], &[m, k]].concat());
    let mat2 = g.input(dtype, &[k, n]);
    let bias = g.rng.bool().then(|| In(g.input(dtype, &[n])));
    let [alpha, beta] = [0; 2].map(|_| g.rng.i32(-2..3) as f32);
    Addmm { mat1: In(mat1), mat2: In(mat2), out: Out(g.out()), bias, alpha, beta }.into()
}

/// Operands of a convolution over `dims` axes, and its number of groups.
fn conv_operands(g: &mut Generator, dims: usize, grouped: bool) -> (In, In, i32) {
    let dtype = g.float();
    let groups = if grouped { g.rng.usize(1..3) } else { 1 };
    let (ci, co) = (groups * g.rng.usize(1..4), groups * g.rng.usize(1..4));
    let spatial: Vec<usize> = (0..dims).map(|_| g.rng.usize(4..8)).collect();
    let kernel: Vec<usize> = (0..dims).map(|_| g.rng.usize(1..4)).collect();
    let batch = g.rng.usize(1..3);
    let x = g.input(dtype, &[&[batch], &spatial[..], &[ci]].concat());
    let w = g.input(dtype, &[&[co], &kernel[..], &[ci / groups]].concat());
    (In(x), In(w), groups as i32)
}

fn conv(g: &mut Generator, dims: usize, transposed: bool) -> Option<Node> {
    let (x, w, groups) = conv_operands(g, dims, dims < 3);
    let axis = |_| {
        let [stride, padding, dilation] = [1, 0, 1].map(|from| g.rng.i32(from..from + 2)).map(i64::from);
        let output_padding = if transposed && stride > 1 { g.rng.i32(0..2).into() } else { 0 };
        WindowAxis { stride, padding, dilation, output_padding }
    };
    let axes = (0..dims).map(axis).collect();
    Convolution { x, w, out: Out(g.out()), axes, groups, transposed }.node()
}

/// Packed weights `[lead.., N, K]`: codes, scales, biases and format.
struct Packed {
    w: In,
    scales: In,
    biases: Option<In>,
    mode: QuantMode,
    bits: i32,
    group_size: i32,
}

fn packed(g: &mut Generator, lead: &[usize], n: usize, k: usize, dtype: DType) -> Packed {
    let (mode, bits, group_size) = match g.rng.usize(..6) {
        0 => (QuantMode::Nvfp4, 4, 16),
        1 => (QuantMode::Mxfp4, 4, 32),
        2 => (QuantMode::Mxfp8, 8, 32),
        _ => (QuantMode::Affine, [2, 3, 4, 5, 6, 8][g.rng.usize(..6)], [32, 64][g.rng.usize(..2)]),
    };
    let rows = [lead, &[n]].concat();
    let words: Vec<u32> = (0..rows.iter().product::<usize>() * k * bits as usize / 32).map(|_| g.rng.u32(..)).collect();
    let words = mask_specials(words, mode);
    let w = flambeau_tensor::Tensor::from_slice(&words, &[&rows[..], &[k * bits as usize / 32]].concat()).expect("as many words");
    let w = g.given(w);
    let groups = [&rows[..], &[k / group_size as usize]].concat();
    let (scales, biases) = if mode == QuantMode::Affine {
        (g.input(dtype, &groups), Some(In(g.input(dtype, &groups))))
    } else {
        // Scales are powers of two around 1 (bias 127), or 8-bit floats around 1 (bias 7).
        let around = if mode == QuantMode::Nvfp4 { 0x38 } else { 127 };
        let codes: Vec<u8> = (0..groups.iter().product()).map(|_| around + g.rng.u8(..2)).collect();
        (g.given(flambeau_tensor::Tensor::from_slice(&codes, &groups).expect("as many codes")), None)
    };
    Packed { w: In(w), scales: In(scales), biases, mode, bits, group_size }
}

/// Clears bits so that no code of an 8-bit float is NaN or infinite.
fn mask_specials(words: Vec<u32>, mode: QuantMode) -> Vec<u32> {
    if mode == QuantMode::Mxfp8 { words.into_iter().map(|w| w & 0xbfbf_bfbf).collect() } else { words }
}

/// Sizes of a quantized product: `N`, `K` and `M`.
fn quantized_sizes(g: &mut Generator) -> [usize; 3] {
    [g.rng.usize(1..3) * 8, 64 * g.rng.usize(1..3), g.rng.usize(1..6)]
}

fn dequantize(g: &mut Generator) -> Node {
    let dtype = g.float();
    let [n, k, _] = quantized_sizes(g);
    let Packed { w, scales, biases, mode, bits, group_size } = packed(g, &[], n, k, dtype);
    let dtype = (biases.is_none() || g.rng.bool()).then_some(dtype);
    Dequantize { w, scales, out: Out(g.out()), biases, group_size, bits, mode, global_scale: None, dtype }.into()
}

fn quantized_matmul(g: &mut Generator) -> Node {
    let dtype = g.float();
    let [n, k, m] = quantized_sizes(g);
    let Packed { w, scales, biases, mode, bits, group_size } = packed(g, &[], n, k, dtype);
    let x = In(g.input(dtype, &[m, k]));
    QuantizedMatmul { x, w, scales, out: Out(g.out()), biases, group_size, bits, mode, transpose: true }.into()
}

fn gather_qmm(g: &mut Generator) -> Node {
    let dtype = g.float();
    let [n, k, _] = quantized_sizes(g);
    let [experts, tokens] = [0; 2].map(|_| g.rng.usize(1..4));
    let Packed { w, scales, biases, mode, bits, group_size } = packed(g, &[experts], n, k, dtype);
    let x = In(g.input(dtype, &[tokens, 1, k]));
    let rhs_indices = Some(In(g.indices(DType::U32, &[tokens], experts)));
    GatherQmm {
        x,
        w,
        scales,
        out: Out(g.out()),
        mode,
        biases,
        lhs_indices: None,
        rhs_indices,
        transpose: true,
        group_size,
        bits,
        sorted_indices: false,
        sorted_indices_flag: None,
    }
    .into()
}

fn gather_mm(g: &mut Generator) -> Node {
    let dtype = g.float();
    let [m, k, n, batch, experts] = [0; 5].map(|_| g.rng.usize(1..5));
    let a = In(g.input(dtype, &[batch, m, k]));
    let b = In(g.input(dtype, &[experts, k, n]));
    let rhs_indices = Some(In(g.indices(DType::U32, &[batch], experts)));
    let lhs_indices = g.rng.bool().then(|| In(g.indices(DType::U32, &[batch], batch)));
    GatherMm { a, b, out: Out(g.out()), lhs_indices, rhs_indices, sorted_indices: false, sorted_indices_flag: None }.into()
}

fn norm(g: &mut Generator, centers: bool) -> Option<Node> {
    let x = g.any_float();
    let width = *g.shape_of(x).last()?;
    let dtype = g.env.get(x)?.dtype;
    let vector = |g: &mut Generator| g.rng.bool().then(|| In(g.input(dtype, &[width])));
    let (weight, bias) = (vector(g), vector(g));
    let (x, out, eps) = (In(x), Out(g.out()), 1e-5);
    Some(if centers { LayerNorm { x, out, weight, bias, eps }.into() } else { RMSNorm { x, weight, out, eps }.into() })
}

fn rope(g: &mut Generator) -> Node {
    let dtype = g.float();
    let dims = 2 * g.rng.usize(1..4);
    let [batch, heads, steps, more] = [0; 4].map(|_| g.rng.usize(1..4));
    let x = In(g.input(dtype, &[batch, heads, steps, dims + more - 1]));
    let freqs = (g.rng.usize(..3) == 0).then(|| {
        let periods: Vec<f32> = (0..dims / 2).map(|_| 1.0 + g.rng.f32() * 9.0).collect();
        In(g.given(flambeau_tensor::Tensor::from_slice(&periods, &[dims / 2]).expect("as many periods")))
    });
    let offset = g.rng.i32(0..9);
    let offset = VidOrTid::Vid(g.fresh_value(Some(offset)));
    Rope { x, out: Out(g.out()), dims: dims as i32, offset, freqs, traditional: g.rng.bool(), base: 10000.0, scale: 1.0 }.into()
}

fn sdpa(g: &mut Generator) -> Node {
    let dtype = g.float();
    let [batch, kv_heads, group, tq, more, half] = [0; 6].map(|_| g.rng.usize(1..4));
    let (tk, width) = (tq + more - 1, 4 * half);
    let q = In(g.input(dtype, &[batch, kv_heads * group, tq, width]));
    let [k, v] = [0; 2].map(|_| In(g.input(dtype, &[batch, kv_heads, tk, width])));
    let (mask, causal) = match g.rng.usize(..4) {
        0 => (Some(In(g.input(dtype, &[1, 1, tq, tk]))), false),
        1 => (Some(In(g.input(DType::Bool, &[batch, 1, tq, tk]))), false),
        2 => (None, true),
        _ => (None, false),
    };
    Sdpa { q, k, v, out: Out(g.out()), scale: 0.5, mask, causal }.into()
}

/// An operand and the axis that indices refer to.
struct Indexed {
    x: Tid,
    dtype: DType,
    shape: Vec<usize>,
    axis: usize,
}

impl Indexed {
    fn draw(g: &mut Generator) -> Option<Indexed> {
        let x = g.any();
        let shape = g.shape_of(x);
        if shape.is_empty() || shape.contains(&0) {
            return None;
        }
        Some(Indexed { x, dtype: g.env.get(x)?.dtype, axis: g.rng.usize(..shape.len()), shape })
    }

    /// The axis, counted from either end.
    fn signed_axis(&self, g: &mut Generator) -> i32 {
        if g.rng.bool() { self.axis as i32 } else { self.axis as i32 - self.shape.len() as i32 }
    }

    /// Number of elements on the axis.
    fn size(&self) -> usize {
        self.shape[self.axis]
    }

    /// The operand's shape with `count` elements on the axis.
    fn shape_with(&self, count: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape[self.axis] = count;
        shape
    }
}

fn take(g: &mut Generator) -> Option<Node> {
    let of = Indexed::draw(g)?;
    let (count, rank) = (g.rng.usize(1..4), g.rng.usize(..3));
    let index = g.indices(DType::I32, &[count, 2][..rank], of.size());
    let axis = of.signed_axis(g);
    Some(Take { x: In(of.x), out: Out(g.out()), index: Index::Tid(index), axis }.into())
}

fn take_along_axis(g: &mut Generator) -> Option<Node> {
    let of = Indexed::draw(g)?;
    let shape = of.shape_with(g.rng.usize(1..4));
    let indices = In(g.indices(DType::I64, &shape, of.size()));
    let axis = of.signed_axis(g);
    Some(TakeAlongAxis { x: In(of.x), indices, out: Out(g.out()), axis }.into())
}

fn gather(g: &mut Generator) -> Option<Node> {
    let of = Indexed::draw(g)?;
    let count = g.rng.usize(1..4);
    let indices = vec![In(g.indices(DType::I32, &[count], of.size()))];
    let slice_sizes = of.shape_with(1).iter().map(|&n| n as i32).collect();
    Some(Gather { x: In(of.x), indices, out: Out(g.out()), axes: vec![of.axis as i32], slice_sizes }.into())
}

fn scatter_add(g: &mut Generator) -> Option<Node> {
    let of = Indexed::draw(g)?;
    let shape = of.shape_with(g.rng.usize(1..4));
    let (indices, updates) = (In(g.indices(DType::I64, &shape, of.size())), In(g.input(of.dtype, &shape)));
    let axis = of.signed_axis(g);
    Some(ScatterAdd { x: In(of.x), indices, updates, out: Out(g.out()), axis }.into())
}

fn index_copy(g: &mut Generator) -> Option<Node> {
    let of = Indexed::draw(g)?;
    let count = g.rng.usize(1..4);
    let shape = of.shape_with(count);
    let (indices, update) = (In(g.indices(DType::I64, &[count], of.size())), In(g.input(of.dtype, &shape)));
    let axis = of.signed_axis(g);
    Some(IndexCopy { dst: In(of.x), update, indices, out: Out(g.out()), axis }.into())
}

fn slice_update(g: &mut Generator) -> Option<Node> {
    let dst = g.any();
    let mut shape = g.shape_of(dst);
    if shape.is_empty() || shape.contains(&0) {
        return None;
    }
    let axis = g.rng.usize(..shape.len());
    let start = g.rng.usize(..shape[axis]);
    let count = g.rng.usize(1..=shape[axis] - start);
    shape[axis] = count;
    let dtype = g.dtype();
    let update = In(g.input(dtype, &shape));
    let (start, stop) = (g.int(start as i64), g.int((start + count) as i64));
    Some(SliceUpdate { dst: In(dst), update, out: Out(g.out()), axis: Int::Lit(axis as i64), start, stop, step: 1 }.into())
}

fn split(g: &mut Generator) -> Option<Node> {
    let x = g.any();
    let shape = g.shape_of(x);
    if shape.is_empty() || shape.contains(&0) {
        return None;
    }
    let axis = g.rng.usize(..shape.len());
    let chunk = g.rng.usize(1..=shape[axis]);
    let outs = (0..shape[axis].div_ceil(chunk)).map(|_| Out(g.out())).collect();
    Some(Split { x: In(x), outs, sizes: vec![Int::Lit(chunk as i64)], axis: axis as i32 }.into())
}

/// Two branches that write a value of one shape to the same slot.
fn branch(g: &mut Generator) -> Option<Node> {
    let x = g.any_float();
    let spec = g.env.get(x)?.clone();
    if g.tainted.contains(&x) {
        return None;
    }
    let out = g.out();
    let one = |g: &mut Generator, x: Tid| -> Node {
        match g.rng.usize(..3) {
            0 => Neg { x: In(x), out: Out(out) }.into(),
            1 => Square { x: In(x), out: Out(out) }.into(),
            _ => IdCopy { x: In(x), out: Out(out) }.into(),
        }
    };
    let first = g.chains.len() as u32;
    for _ in 0..2 {
        let node = one(g, x);
        g.chains.push(vec![node]);
    }
    let condition = g.rng.i64(0..2);
    let cond = g.int(condition);
    g.env.replace(out, Some(spec));
    g.read.insert(x);
    Some(If { cond, then_chain_idx: ChainId(first), else_chain_idx: ChainId(first + 1) }.into())
}

fn random_bits(g: &mut Generator) -> Node {
    let seed = g.rng.i32(0..100);
    let shape = g.shape().into_iter().map(|n| Int::Lit(n as i64)).collect();
    let seed = Some(flambeau_ir::InVid(g.fresh_value(Some(seed))));
    RandomBits { out: Out(g.out()), shape, seed, width: [1, 2, 4][g.rng.usize(..3)] }.into()
}
