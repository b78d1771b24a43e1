//! Linear layers, deferred until it is known what follows them: an activation, a gate or a residual that nobody else reads is
//! done while the product is at hand, and layers of one input run as one call. Results have the bits of the nodes one by one.

use std::sync::Arc;

use flambeau_ir::{self as ir, In, Node, Out, SlotClass, Tid};
use flambeau_kernels::{
    Pool,
    linear::{Epilogue, Gate, Layer, Residual, Weight, layers},
    math::Unary,
    quant::Format,
};
use flambeau_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::{
    Flops, Work,
    memref::{MemRef, Place},
    planner::{Deferred, Planner},
};
use crate::{
    array::Array,
    error::Result,
    ops::{
        elementwise::pointwise,
        float_dtype,
        linalg::float_view,
        quantized::{format_of, matrix},
    },
};

/// How a weight is stored; its operands follow one another.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `[N, K]`
    Float,
    /// Words, scales and, if `true`, biases.
    Codes(Format, bool),
}

/// A weight and what is added to its product.
#[derive(Clone, Debug)]
struct Part {
    kind: Kind,
    weight: Vec<MemRef>,
    bias: Option<MemRef>,
}

/// A linear layer that no step computes yet.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    /// `[M, K]`, row-major.
    x: MemRef,
    part: Part,
    activation: Option<Unary>,
    gate: Option<(Part, Unary)>,
    residual: Option<MemRef>,
    dtype: DType,
    /// Of the result, `[.., N]`.
    shape: Shape,
}

impl Linear {
    fn is_bare(&self) -> bool {
        self.activation.is_none() && self.gate.is_none() && self.residual.is_none()
    }

    /// Floating-point operations of its products.
    fn flops(&self) -> u64 {
        let [m, n] = self.size();
        let k = self.x.array.shape.last().copied().unwrap_or(0);
        2 * (m * n * k) as u64 * (1 + u64::from(self.gate.is_some()))
    }

    /// The nodes that it stands for.
    fn name(&self) -> String {
        let product = |part: &Part| match part.kind {
            Kind::Float => "Addmm".to_owned(),
            Kind::Codes(format, _) => format!("QuantizedMatmul {} bit", format.bits()),
        };
        let mut name = product(&self.part);
        for op in self.activation.iter().chain(self.gate.as_ref().map(|(_, op)| op)) {
            name += &format!(" + {op:?}");
        }
        let gate = self.gate.as_ref().map(|(part, _)| format!(" × {}", product(part)));
        name + gate.as_deref().unwrap_or_default() + if self.residual.is_some() { " + Add" } else { "" }
    }

    /// `[M, N]`
    fn size(&self) -> [usize; 2] {
        let n = self.shape.last().copied().unwrap_or(1);
        [self.x.array.shape[0], n]
    }
}

impl Part {
    fn narrow(&mut self, row: usize) {
        if let Some(bias) = &mut self.bias {
            bias.array = bias.array.narrow(0, row, 1, 1);
        }
    }
}

impl Linear {
    /// Leaves out all rows but the last, if they are all of one matrix.
    pub(super) fn keep_last(&mut self) {
        let rows = self.x.array.shape[0];
        let Some(axis) = self.shape.len().checked_sub(2).filter(|&axis| self.shape[axis] == rows && rows > 0) else { return };
        self.shape[axis] = 1;
        self.x.array = self.x.array.narrow(0, rows - 1, 1, 1);
        self.part.narrow(rows - 1);
        if let Some((gate, _)) = &mut self.gate {
            gate.narrow(rows - 1);
        }
        if let Some(residual) = &mut self.residual {
            residual.array = residual.array.narrow(0, rows - 1, 1, 1);
        }
    }
}

/// Follows a linear layer, or a node that goes into one deferred before. `false` if it is neither.
pub(super) fn lower(b: &mut Planner<'_>, node: &Node) -> Result<bool> {
    let found = match node {
        Node::QuantizedMatmul(n) => packed(b, n)?.map(|linear| (n.out, linear)),
        Node::Addmm(n) => dense(b, n)?.map(|linear| (n.out, linear)),
        Node::Multiply(n) => gated(b, n.a, n.b, n.out)?.map(|linear| (n.out, linear)),
        Node::Add(n) => {
            let found = match residual(b, n.a, n.b, n.out)? {
                Some(linear) => Some(linear),
                None => residual(b, n.b, n.a, n.out)?,
            };
            found.map(|linear| (n.out, linear))
        }
        _ => activated(b, node)?,
    };
    let Some((out, linear)) = found else { return Ok(false) };
    if b.m.graph.slots.class(out.0) == Some(SlotClass::Buffer) {
        return Ok(false);
    }
    b.defer(out, Deferred::Linear(Box::new(linear)))?;
    Ok(true)
}

/// Whether a step may read the value later than its node stands.
pub(super) fn stays(b: &Planner<'_>, val: &MemRef) -> bool {
    match val.place {
        Place::Slot(tid) => b.m.graph.slots.class(tid) != Some(SlotClass::Buffer),
        _ => true,
    }
}

/// The input as `[M, K]`.
fn rows(b: &mut Planner<'_>, x: MemRef) -> Result<Option<MemRef>> {
    if !stays(b, &x) || x.array.shape.contains(&0) {
        return Ok(None);
    }
    let mut x = b.contiguous(x)?;
    let width = x.array.shape.last().copied().unwrap_or(1);
    x.array.set_shape(&[x.array.numel() / width, width]);
    Ok(Some(x))
}

fn packed(b: &mut Planner<'_>, n: &ir::QuantizedMatmul) -> Result<Option<Linear>> {
    let (Some(x), Some((dtype, shape))) = (b.fixed(n.x)?, b.spec(n.out)) else { return Ok(None) };
    let mut weight = Vec::with_capacity(3);
    for slot in [Some(n.w), Some(n.scales), n.biases].into_iter().flatten() {
        let Some(val) = b.fixed(slot)? else { return Ok(None) };
        if !matches!(val.place, Place::Constant) || !val.array.is_contiguous() {
            return Ok(None);
        }
        weight.push(val);
    }
    if !n.transpose || weight[0].array.rank() != 2 || x.array.dtype != dtype {
        return Ok(None);
    }
    let Some(x) = rows(b, x)? else { return Ok(None) };
    let part = Part { kind: Kind::Codes(format_of(n.mode, n.group_size, n.bits), n.biases.is_some()), weight, bias: None };
    Ok(Some(Linear { x, part, activation: None, gate: None, residual: None, dtype, shape }))
}

fn dense(b: &mut Planner<'_>, n: &ir::Addmm) -> Result<Option<Linear>> {
    let (Some(x), Some(w), Some(bias)) = (b.fixed(n.mat1)?, b.fixed(n.mat2)?, b.fixed_opt(n.bias)?) else { return Ok(None) };
    let Some((dtype, shape)) = b.spec(n.out) else { return Ok(None) };
    let is_plain = matches!(w.place, Place::Constant) && w.array.rank() == 2 && w.array.dtype.is_float();
    if !is_plain || x.array.dtype != dtype || x.array.rank() < 2 {
        return Ok(None);
    }
    let bias = match bias {
        Some(bias) => {
            if n.alpha != 1.0 || n.beta != 1.0 || !bias.array.dtype.is_float() || !stays(b, &bias) {
                return Ok(None);
            }
            let Some(bias) = as_rows(&bias, &shape) else { return Ok(None) };
            Some(bias)
        }
        None => None,
    };
    let weight = vec![w.seen(w.array.permute(&[1, 0]))];
    let Some(x) = rows(b, x)? else { return Ok(None) };
    Ok(Some(Linear {
        x,
        part: Part { kind: Kind::Float, weight, bias },
        activation: None,
        gate: None,
        residual: None,
        dtype,
        shape,
    }))
}

/// An operand that broadcasts to `shape` `[.., N]`, seen as `[M, N]`.
fn as_rows(val: &MemRef, shape: &[usize]) -> Option<MemRef> {
    let n = shape.last().copied()?;
    let m = shape.iter().product::<usize>().checked_div(n)?;
    let full = val.array.broadcast(shape)?;
    // A bias is the same in every row, and most that are not are row-major.
    let seen = if val.array.numel() == n && val.array.is_contiguous() && val.array.shape.last() == Some(&n) {
        let mut flat = val.array.clone();
        flat.set_shape(&[n]);
        flat.broadcast(&[m, n])?
    } else {
        full.reshaped(&[m, n])?
    };
    Some(val.seen(seen))
}

/// The layer deferred in a slot that the node alone reads, once.
fn taken<'a>(b: &'a Planner<'_>, slot: In) -> Option<&'a Linear> {
    b.linear_in(slot).filter(|_| b.is_dying(slot.0))
}

fn activated(b: &mut Planner<'_>, node: &Node) -> Result<Option<(Out, Linear)>> {
    let Some(parts) = pointwise(node) else { return Ok(None) };
    let (Some(op), &[x]) = (parts.function, &parts.ins[..]) else { return Ok(None) };
    let Some((dtype, _)) = b.spec(parts.out) else { return Ok(None) };
    let linear = taken(b, x).filter(|linear| linear.is_bare() && linear.dtype == dtype);
    Ok(linear.map(|linear| (parts.out, Linear { activation: Some(op), ..linear.clone() })))
}

fn gated(b: &mut Planner<'_>, a: In, c: In, out: Out) -> Result<Option<Linear>> {
    let Some((dtype, shape)) = b.spec(out) else { return Ok(None) };
    let (Some(first), Some(second)) = (taken(b, a), taken(b, c)) else { return Ok(None) };
    let fits = |l: &Linear| l.dtype == dtype && l.shape == shape && l.gate.is_none() && l.residual.is_none();
    if a == c || !fits(first) || !fits(second) || !first.x.is_same(&second.x) {
        return Ok(None);
    }
    let (main, gate) = if first.activation.is_some() { (second, first) } else { (first, second) };
    Ok(gate.activation.map(|op| Linear { gate: Some((gate.part.clone(), op)), ..main.clone() }))
}

fn residual(b: &mut Planner<'_>, added: In, product: In, out: Out) -> Result<Option<Linear>> {
    let Some((dtype, shape)) = b.spec(out) else { return Ok(None) };
    let fits = |l: &&Linear| l.residual.is_none() && l.dtype == dtype && l.shape == shape;
    if added == product || taken(b, product).filter(fits).is_none() {
        return Ok(None);
    }
    let Some(val) = b.fixed(added)? else { return Ok(None) };
    if val.array.dtype != dtype || !stays(b, &val) {
        return Ok(None);
    }
    let (Some(val), Some(linear)) = (as_rows(&val, &shape), taken(b, product)) else { return Ok(None) };
    Ok(Some(Linear { residual: Some(val), ..linear.clone() }))
}

/// Where a layer's operands stand among those of its call.
struct At {
    kind: Kind,
    weight: usize,
    bias: Option<usize>,
}

/// A layer as its call sees it.
struct Entry {
    part: At,
    activation: Option<Unary>,
    gate: Option<(At, Unary)>,
    residual: Option<usize>,
}

fn operand<'a>(ins: &mut Vec<&'a MemRef>, val: Option<&'a MemRef>) -> Option<usize> {
    val.map(|val| {
        ins.push(val);
        ins.len() - 1
    })
}

fn list<'a>(part: &'a Part, ins: &mut Vec<&'a MemRef>) -> At {
    let weight = ins.len();
    ins.extend(&part.weight);
    At { kind: part.kind, weight, bias: operand(ins, part.bias.as_ref()) }
}

impl At {
    fn weight<'a>(&self, ins: &'a [Array]) -> Result<Weight<'a>> {
        let w = &ins[self.weight..];
        Ok(match self.kind {
            Kind::Float => Weight::Float(float_view(&w[0])?),
            Kind::Codes(format, has_biases) => Weight::Codes(matrix(format, [&w[0], &w[1]], has_biases.then(|| &w[2]))?),
        })
    }
}

impl Entry {
    fn epilogue<'a>(&self, ins: &'a [Array]) -> Result<Epilogue<'a>> {
        let view = |at: Option<usize>| at.map(|at| float_view(&ins[at])).transpose();
        let gate = match &self.gate {
            Some((at, activation)) => Some(Gate { weight: at.weight(ins)?, bias: view(at.bias)?, activation: *activation }),
            None => None,
        };
        let residual = view(self.residual)?.map_or(Residual::None, Residual::View);
        Ok(Epilogue { bias: view(self.part.bias)?, activation: self.activation, gate, residual })
    }
}

/// Runs the layers of `ins[0]`.
fn run(pool: &Pool, entries: &[Entry], dtype: DType, ins: &[Array], outs: &mut [Array]) -> Result<()> {
    float_dtype!(dtype, T => {
        let mut all: SmallVec<[Layer<'_, T>; 3]> = SmallVec::new();
        for (entry, out) in entries.iter().zip(outs) {
            all.push(Layer { weight: entry.part.weight(ins)?, epilogue: entry.epilogue(ins)?, out: out.view_mut()? });
        }
        Ok(layers::<T, T>(pool, &ins[0].view()?, &mut all)?)
    })
}

fn name(linears: &[Linear]) -> Arc<str> {
    match linears {
        [first, _, ..] => format!("{} of one input: {}", linears.len(), first.name()).into(),
        _ => linears.iter().map(Linear::name).collect::<String>().into(),
    }
}

/// Computes layers of one input in one step; the results in their order.
pub(super) fn compute(b: &mut Planner<'_>, linears: &[Linear]) -> Result<Vec<MemRef>> {
    let Some(first) = linears.first() else { return Ok(Vec::new()) };
    let (mut ins, mut entries) = (vec![&first.x], Vec::with_capacity(linears.len()));
    for linear in linears {
        let part = list(&linear.part, &mut ins);
        let gate = linear.gate.as_ref().map(|(gate, op)| (list(gate, &mut ins), *op));
        let residual = operand(&mut ins, linear.residual.as_ref());
        entries.push(Entry { part, activation: linear.activation, gate, residual });
    }
    let sizes: Vec<[usize; 2]> = linears.iter().map(Linear::size).collect();
    let outs: Vec<(DType, &[usize])> = linears.iter().zip(&sizes).map(|(linear, size)| (linear.dtype, &size[..])).collect();
    let dtype = first.dtype;
    let work: Work = Box::new(move |pool, ins, outs| run(pool, &entries, dtype, ins, outs));
    let mut results = b.call_many(&ins, &outs, work, (name(linears), Flops::Known(linears.iter().map(Linear::flops).sum())))?;
    for (val, linear) in results.iter_mut().zip(linears) {
        val.array.set_shape(&linear.shape);
    }
    Ok(results)
}

/// The slots whose layers run together with that in `slot`: those of the same input that nothing has gone into yet.
pub(super) fn together(b: &Planner<'_>, slot: In) -> Vec<Tid> {
    let Some(asked) = b.linear_in(slot) else { return Vec::new() };
    let fits = |linear: &Linear| linear.is_bare() && linear.dtype == asked.dtype && linear.x.is_same(&asked.x);
    let mut slots = vec![slot.0];
    if asked.is_bare() {
        slots.extend(b.linears().filter(|(tid, linear)| *tid != slot.0 && fits(linear)).map(|(tid, _)| tid));
    }
    slots
}
