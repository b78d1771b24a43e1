//! Bounds of the rounding differences between two correct engines, from the operations of a graph.
//!
//! Every rounding of a result costs up to half a unit in the last place on either side, so one unit
//! in all. Inner sums are held in f32 on both sides. A sum of `n` terms that are at most `m` in
//! magnitude is off by up to `n · n · m` units of f32. Well-conditioned nodes pass differences on
//! without growth, except sums and differences, which add those of their operands.

use std::collections::HashMap;

use flambeau_ir::{In, Node, NodeKind, Role, Slot, Tid, engine::Value};
use flambeau_tensor::{DType, Tensor, cast};

use crate::{RandomGraph, Rounding};

impl RandomGraph {
    /// For each output, the largest difference that rounding explains between two engines, given
    /// the results of [`RandomGraph::every`]. Zero for outputs that are the same bit by bit.
    pub fn bounds(&self, every: &[Value]) -> Vec<f64> {
        let inputs = self.every.inputs.iter().zip(&self.inputs);
        let written = self.every.outputs.iter().zip(every);
        let tensors = inputs.chain(written).filter_map(|(slot, value)| match (slot, value) {
            (Slot::Tensor(tid), Value::Tensor(tensor)) => Some((*tid, Contents::read(tensor))),
            _ => None,
        });
        let mut bounds = Bounds { contents: tensors.collect(), differences: HashMap::new() };
        for node in &self.every.chains[0] {
            bounds.visit(node, self.rounding);
        }
        self.results.iter().map(|tid| bounds.differences.get(tid).copied().unwrap_or(0.0)).collect()
    }
}

/// A tensor's elements in f64, in row-major order.
struct Contents {
    dtype: DType,
    shape: Vec<usize>,
    values: Vec<f64>,
    /// The largest finite magnitude.
    largest: f64,
}

impl Contents {
    fn read(tensor: &Tensor) -> Contents {
        let wide = cast(tensor, DType::F64).expect("every type has a value in f64").aligned();
        let values = wide.as_slice::<f64>().expect("f64 elements").to_vec();
        let largest = values.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
        Contents { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), values, largest }
    }

    fn last(&self) -> f64 {
        self.shape.last().copied().unwrap_or(1) as f64
    }

    /// The smallest standard deviation over the last axis.
    fn smallest_deviation(&self, eps: f64) -> f64 {
        let variance = |row: &[f64]| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / row.len() as f64
        };
        let rows = self.values.chunks(self.last().max(1.0) as usize);
        rows.map(|row| (variance(row) + eps).sqrt()).fold(f64::INFINITY, f64::min)
    }
}

/// Distance of 1 from the next number of a type.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => 0.0,
    }
}

struct Bounds {
    contents: HashMap<Tid, Contents>,
    /// Differences between engines, of slots that are not the same bit by bit.
    differences: HashMap<Tid, f64>,
}

impl Bounds {
    fn visit(&mut self, node: &Node, rounding: Rounding) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        node.walk(&mut |role, slot| {
            if let Slot::Tensor(tid) = slot {
                if role != Role::Write {
                    reads.push(tid)
                }
                if role != Role::Read {
                    writes.push(tid)
                }
            }
        });
        let given: Vec<f64> = reads.iter().filter_map(|tid| self.differences.get(tid).copied()).collect();
        let adds = matches!(node, Node::Add(_) | Node::Subtract(_));
        let given = if adds { given.iter().sum() } else { given.iter().copied().fold(0.0, f64::max) };
        for out in writes {
            let is_float = self.contents.get(&out).is_some_and(|y| y.dtype.is_float());
            if given > 0.0 || rounding.includes(node, is_float) {
                let own = if moves(node) { 0.0 } else { self.own(node, &reads, out) };
                self.differences.insert(out, given + own);
            }
        }
    }

    fn largest(&self, tid: Tid) -> f64 {
        self.contents.get(&tid).map_or(0.0, |c| c.largest)
    }

    /// Largest magnitude of an operand that may be missing.
    fn magnitude(&self, slot: Option<In>) -> f64 {
        slot.map_or(0.0, |In(tid)| self.largest(tid))
    }

    /// The difference that a node adds to its result.
    fn own(&self, node: &Node, reads: &[Tid], out: Tid) -> f64 {
        let Some(y) = self.contents.get(&out) else { return 0.0 };
        let (result, f32_unit) = (unit(y.dtype) * y.largest, f64::from(f32::EPSILON));
        let x = reads.iter().map(|&tid| self.largest(tid)).fold(0.0, f64::max);
        let of = |slot: In| self.largest(slot.0);
        let last = |slot: In| self.contents.get(&slot.0).map_or(1.0, Contents::last);
        // A sum of `terms` products below `m` each.
        let sum = |terms: f64, m: f64| f32_unit * (terms + 8.0) * terms * m;
        let inner = match node {
            Node::LayerNorm(n) => {
                let deviation = self.contents.get(&n.x.0).map_or(1.0, |c| c.smallest_deviation(n.eps.into()));
                let weight = if n.weight.is_some() { self.magnitude(n.weight) } else { 1.0 };
                // The mean is off by `n` units of the largest element, divided by the deviation.
                f32_unit * (last(n.x) + 8.0) * (of(n.x) / deviation * weight + self.magnitude(n.bias) + y.largest)
            }
            Node::RMSNorm(n) => f32_unit * (last(n.x) + 8.0) * y.largest + if n.weight.is_some() { result } else { 0.0 },
            // Exponents of differences: their relative error is the absolute one of the difference.
            Node::Softmax(n) => f32_unit * (self.longest(n.x) + 8.0) * (1.0 + of(n.x)),
            Node::LogSumExp(n) => f32_unit * (self.longest(n.x) + 8.0) * (1.0 + of(n.x)),
            // Angles are at most 12, and their sines are off by as many units.
            Node::Rope(n) => f32_unit * 32.0 * of(n.x),
            Node::Sdpa(n) => {
                let scores = sum(last(n.q), f64::from(n.scale) * of(n.q) * of(n.k)) + f32_unit * self.magnitude(n.mask);
                let keys = self.contents.get(&n.k.0).map_or(1, |k| k.shape[k.shape.len() - 2]) as f64;
                2.0 * scores * of(n.v) + sum(keys, of(n.v))
            }
            Node::QuantizedMatmul(n) => sum(last(n.x), of(n.x) * self.weight(n.scales, n.biases, n.bits)),
            Node::GatherQmm(n) => sum(last(n.x), of(n.x) * self.weight(n.scales, n.biases, n.bits)),
            Node::Addmm(n) => {
                let bias = f64::from(n.beta.abs()) * self.magnitude(n.bias);
                sum(last(n.mat1), f64::from(n.alpha.abs()) * of(n.mat1) * of(n.mat2)) + unit(y.dtype) * bias
            }
            Node::GatherMm(n) => sum(last(n.a), of(n.a) * of(n.b)),
            // The operand is multiplied by a sum below 2, which MLX rounds to the result's type.
            Node::Gelu(n) => unit(y.dtype) * of(n.x),
            _ if is_convolution(node) => {
                let [x, w] = [reads[0], reads[1]];
                let terms = self.contents.get(&w).map_or(0, |w| w.values.len() / w.shape[0].max(1)) as f64;
                sum(terms, self.largest(x) * self.largest(w))
            }
            _ => return self.element(node.kind(), y, reads, x),
        };
        result + inner
    }

    /// The difference of functions of elements and of reductions. A few steps are rounded to the
    /// result's type, each off by a unit of the largest operand or result.
    fn element(&self, kind: NodeKind, y: &Contents, reads: &[Tid], x: f64) -> f64 {
        let terms = reads.first().and_then(|tid| self.contents.get(tid)).map_or(1.0, |c| c.values.len() as f64);
        let one = 4.0 * unit(y.dtype) * y.largest;
        match kind {
            NodeKind::Sum | NodeKind::Mean | NodeKind::Cumsum => one + f64::from(f32::EPSILON) * terms * terms * x,
            NodeKind::Prod => one + terms * unit(y.dtype) * y.largest,
            NodeKind::Var | NodeKind::Std => one + 4.0 * unit(y.dtype) * terms * x.max(x * x),
            // MLX reduces the argument in f32. Beyond 90, results are infinite.
            NodeKind::Exp | NodeKind::Expm1 | NodeKind::Sinh | NodeKind::Cosh => one + one / 4.0 * x.min(90.0),
            // MLX's formula has an absolute bound.
            NodeKind::Erf => 4.0 * unit(y.dtype),
            NodeKind::LogAddExp => one + 4.0 * unit(y.dtype) * x,
            _ => one,
        }
    }

    /// The longest axis: no reduction over one axis has more terms.
    fn longest(&self, slot: In) -> f64 {
        self.contents.get(&slot.0).map_or(1.0, |c| c.values.len() as f64)
    }

    /// A bound of quantized weights: the largest code times the largest scale.
    fn weight(&self, scales: In, biases: Option<In>, bits: i32) -> f64 {
        match biases {
            Some(_) => f64::from((1 << bits) - 1) * self.largest(scales.0) + self.magnitude(biases),
            // Templates draw scales of at most 2. Codes of 4 bits are at most 6, of 8 bits 448.
            None if bits == 4 => 12.0,
            None => 896.0,
        }
    }
}

fn is_convolution(node: &Node) -> bool {
    use NodeKind::{Conv1D, Conv2D, Conv3D, ConvTranspose1D, ConvTranspose2D, ConvTranspose3D};
    matches!(node.kind(), Conv1D | Conv2D | Conv3D | ConvTranspose1D | ConvTranspose2D | ConvTranspose3D)
}

/// Whether a node only moves elements, changes their sign or picks one of two.
fn moves(node: &Node) -> bool {
    use NodeKind::{
        Abs, AsStrided, BroadcastTo, Concatenate, Contiguous, ExpandDims, Flip, IdCopy, Maximum, Minimum, Neg, Noop, Pad, Repeat,
        Reshape, Roll, Slice, Split, Squeeze, Stack, Tile, Transpose, Tril, Triu,
    };
    matches!(
        node.kind(),
        Abs | AsStrided
            | BroadcastTo
            | Concatenate
            | Contiguous
            | ExpandDims
            | Flip
            | IdCopy
            | Maximum
            | Minimum
            | Neg
            | Noop
            | Pad
            | Repeat
            | Reshape
            | Roll
            | Slice
            | Split
            | Squeeze
            | Stack
            | Tile
            | Transpose
            | Tril
            | Triu
    )
}
