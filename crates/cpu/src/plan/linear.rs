//! Linear layers, deferred until their readers are known. An activation, a gate or a residual
//! without other readers is fused into the product. Layers of one input run as one call. Results
//! are bit-identical to separate nodes, with one exception. If a cast directly narrows an `f32`
//! product of packed weights, a kernel may round the weights as for 16-bit results.

use std::sync::Arc;

use flambeau_ir::{In, Out, infer::run::OutSpec};
use flambeau_kernels::{math::Unary, quant::Format};
use flambeau_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::{
    fused::Fusible,
    layers::{LayerArgs, Layers, ProductArgs, WeightStorage},
    memref::MemRef,
    planner::{Cost, Deferred, Planner},
};
use crate::{
    error::Result,
    obstacle::{Obstacle, Prepared},
};

/// A weight and its bias.
#[derive(Clone, Debug)]
struct Product {
    storage: WeightStorage,
    weight: Vec<MemRef>,
    bias: Option<MemRef>,
}

/// A linear layer that no step computes yet.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    /// `[M, K]`, row-major.
    x: MemRef,
    product: Product,
    activation: Option<Unary>,
    gate: Option<(Product, Unary)>,
    residual: Option<MemRef>,
    pub(super) dtype: DType,
    /// Shape of the result, `[.., N]`.
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

    /// The names of the fused nodes.
    fn name(&self) -> String {
        let product = |product: &Product| match product.storage {
            WeightStorage::Float => "Addmm".to_owned(),
            WeightStorage::Codes(format, _) => format!("QuantizedMatmul {} bit", format.bits()),
        };
        let mut name = product(&self.product);
        for op in self.activation.iter().chain(self.gate.as_ref().map(|(_, op)| op)) {
            name += &format!(" + {op:?}");
        }
        let gate = self.gate.as_ref().map(|(gate, _)| format!(" × {}", product(gate)));
        name + gate.as_deref().unwrap_or_default() + if self.residual.is_some() { " + Add" } else { "" }
    }

    /// `[M, N]`
    fn size(&self) -> [usize; 2] {
        let n = self.shape.last().copied().unwrap_or(1);
        [self.x.array.shape[0], n]
    }
}

impl Product {
    fn is_packed(&self) -> bool {
        matches!(self.storage, WeightStorage::Codes(..))
    }

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
        self.product.narrow(rows - 1);
        if let Some((gate, _)) = &mut self.gate {
            gate.narrow(rows - 1);
        }
        if let Some(residual) = &mut self.residual {
            residual.array = residual.array.narrow(0, rows - 1, 1, 1);
        }
    }
}

/// The deferred layer that absorbs this node, if there is one.
pub(super) fn followed_by(p: &mut Planner<'_>, op: Fusible, ins: &[In], out: Out) -> Prepared<Option<Linear>> {
    if p.recorder().is_none() {
        return Ok(None);
    }
    let OutSpec { dtype, shape } = p.spec(out)?;
    match (op, ins) {
        (Fusible::Cast, &[x]) => Ok(narrowed(p, x, dtype)),
        (Fusible::Function(function), &[x]) => Ok(activated(p, function, x, dtype)),
        (Fusible::Multiply, &[a, b]) => Ok(gated(p, [a, b], (dtype, &shape))),
        (Fusible::Add, &[a, b]) => match residual(p, a, b, (dtype, &shape))? {
            Some(layer) => Ok(Some(layer)),
            None => Ok(residual(p, b, a, (dtype, &shape))?),
        },
        _ => Ok(None),
    }
}

impl Planner<'_> {
    /// Defers `x · wᵀ` with packed weights; `false` if the weights are not constants.
    pub(crate) fn packed_layer(&mut self, x: &MemRef, weight: &[MemRef], format: Format, out: Out) -> Prepared<bool> {
        let OutSpec { dtype, shape } = self.spec(out)?;
        let is_constant = |w: &MemRef| w.is_constant() && w.array.is_contiguous();
        // Wider scales give an f32 product and so widen `x`; the kernels widen it while reading.
        let is_typed = x.array.dtype == dtype || x.array.dtype.is_float() && dtype == DType::F32;
        if !weight.iter().all(is_constant) || weight[0].array.rank() != 2 || !is_typed {
            return Ok(false);
        }
        let product = Product { storage: WeightStorage::Codes(format, weight.len() > 2), weight: weight.to_vec(), bias: None };
        self.layer(x, product, (dtype, shape), out)
    }

    /// Defers `x · w + bias`; `false` if the weight is not constant.
    pub(crate) fn dense_layer(&mut self, x: &MemRef, w: &MemRef, bias: Option<&MemRef>, out: Out) -> Prepared<bool> {
        let OutSpec { dtype, shape } = self.spec(out)?;
        let is_plain = w.is_constant() && w.array.rank() == 2 && w.array.dtype.is_float();
        if !is_plain || x.array.dtype != dtype || x.array.rank() < 2 {
            return Ok(false);
        }
        let bias = match bias {
            Some(bias) if !bias.array.dtype.is_float() || !self.stays(bias) => return Ok(false),
            Some(bias) => match as_rows(bias, &shape) {
                None => return Ok(false),
                bias => bias,
            },
            None => None,
        };
        let product = Product { storage: WeightStorage::Float, weight: vec![w.seen(w.array.permute(&[1, 0]))], bias };
        self.layer(x, product, (dtype, shape), out)
    }

    fn layer(&mut self, x: &MemRef, product: Product, (dtype, shape): (DType, Shape), out: Out) -> Prepared<bool> {
        if !self.stays(x) || x.array.shape.contains(&0) {
            return Ok(false);
        }
        let mut x = self.contiguous(x.clone())?;
        let width = x.array.shape.last().copied().unwrap_or(1);
        x.array.set_shape(&[x.array.numel() / width, width]);
        let layer = Linear { x, product, activation: None, gate: None, residual: None, dtype, shape };
        self.defer(out, Deferred::Linear(Box::new(layer)))?;
        Ok(true)
    }
}

/// An operand that broadcasts to `shape` `[.., N]`, seen as `[M, N]`.
fn as_rows(x: &MemRef, shape: &[usize]) -> Option<MemRef> {
    let n = shape.last().copied()?;
    let m = shape.iter().product::<usize>().checked_div(n)?;
    let full = x.array.broadcast(shape)?;
    // A bias is the same in every row, and most that are not are row-major.
    let seen = if x.array.numel() == n && x.array.is_contiguous() && x.array.shape.last() == Some(&n) {
        let mut flat = x.array.clone();
        flat.set_shape(&[n]);
        flat.broadcast(&[m, n])?
    } else {
        full.reshaped(&[m, n])?
    };
    Some(x.seen(seen))
}

/// The layer deferred in a slot that the node alone reads, once.
fn taken(p: &mut Planner<'_>, slot: In) -> Option<Linear> {
    let recorder = p.recorder()?;
    recorder.linear(slot).filter(|_| recorder.is_dying(slot.0)).cloned()
}

/// The cast of an `f32` product, which the layer rounds once either way.
fn narrowed(p: &mut Planner<'_>, x: In, dtype: DType) -> Option<Linear> {
    let layer = taken(p, x).filter(|layer| layer.is_bare() && layer.dtype == DType::F32)?;
    Some(Linear { dtype, ..layer })
}

fn activated(p: &mut Planner<'_>, op: Unary, x: In, dtype: DType) -> Option<Linear> {
    let layer = taken(p, x).filter(|layer| layer.is_bare() && layer.dtype == dtype)?;
    Some(Linear { activation: Some(op), ..layer })
}

fn gated(p: &mut Planner<'_>, [a, b]: [In; 2], (dtype, shape): (DType, &[usize])) -> Option<Linear> {
    let (first, second) = (taken(p, a)?, taken(p, b)?);
    let fits = |l: &Linear| l.dtype == dtype && l.shape[..] == *shape && l.gate.is_none() && l.residual.is_none();
    // Many rows of f16 are multiplied in bf16 if all weights are packed, and in f32 if some are
    // dense.
    let are_alike = dtype != DType::F16 || first.product.is_packed() == second.product.is_packed();
    if a == b || !are_alike || !fits(&first) || !fits(&second) || !first.x.is_same(&second.x) {
        return None;
    }
    let (main, gate) = if first.activation.is_some() { (second, first) } else { (first, second) };
    gate.activation.map(|op| Linear { gate: Some((gate.product, op)), ..main })
}

fn residual(p: &mut Planner<'_>, added: In, product: In, (dtype, shape): (DType, &[usize])) -> Result<Option<Linear>> {
    let fits = |l: &Linear| l.residual.is_none() && l.dtype == dtype && l.shape[..] == *shape;
    if added == product || taken(p, product).filter(fits).is_none() {
        return Ok(None);
    }
    let x = p.get(added)?;
    if !x.is_fixed() || x.array.dtype != dtype || !p.stays(&x) {
        return Ok(None);
    }
    // Reading the residual may have computed the deferred layer.
    let (Some(x), Some(layer)) = (as_rows(&x, shape), taken(p, product)) else { return Ok(None) };
    Ok(Some(Linear { residual: Some(x), ..layer }))
}

fn list_one<'a>(ins: &mut Vec<&'a MemRef>, x: Option<&'a MemRef>) -> Option<usize> {
    x.map(|x| {
        ins.push(x);
        ins.len() - 1
    })
}

fn list<'a>(product: &'a Product, ins: &mut Vec<&'a MemRef>) -> ProductArgs {
    let weight = ins.len();
    ins.extend(&product.weight);
    ProductArgs { storage: product.storage, weight, bias: list_one(ins, product.bias.as_ref()) }
}

fn name(linears: &[Linear]) -> Arc<str> {
    match linears {
        [first, _, ..] => format!("{} of one input: {}", linears.len(), first.name()).into(),
        _ => linears.iter().map(Linear::name).collect::<String>().into(),
    }
}

/// Computes layers of one input in one step; the results in their order.
pub(super) fn emit(p: &mut Planner<'_>, linears: &[Linear]) -> Prepared<SmallVec<[MemRef; 2]>> {
    let Some(first) = linears.first() else { return Ok(SmallVec::new()) };
    let (mut ins, mut args) = (vec![&first.x], Vec::with_capacity(linears.len()));
    for linear in linears {
        let product = list(&linear.product, &mut ins);
        let gate = linear.gate.as_ref().map(|(gate, op)| (list(gate, &mut ins), *op));
        let residual = list_one(&mut ins, linear.residual.as_ref());
        args.push(LayerArgs { product, activation: linear.activation, gate, residual });
    }
    let sizes: Vec<[usize; 2]> = linears.iter().map(Linear::size).collect();
    let outs: Vec<(DType, &[usize])> = linears.iter().zip(&sizes).map(|(linear, size)| (linear.dtype, &size[..])).collect();
    let (layers, flops) = (Layers { args, dtype: first.dtype }, linears.iter().map(Linear::flops).sum());
    let mut results = p.call_layers((name(linears), Cost::Flops(flops)), &ins, &outs, layers)?;
    for (y, linear) in results.iter_mut().zip(linears) {
        y.array.set_shape(&linear.shape);
    }
    Ok(results)
}

/// Computes the layer deferred in `slot` together with the unfused layers of the same input.
pub(super) fn emit_with_siblings(p: &mut Planner<'_>, slot: In) -> Result<()> {
    let Some(recorder) = p.recorder() else { return Ok(()) };
    let Some(asked) = recorder.linear(slot).cloned() else { return Ok(()) };
    let fits = |linear: &Linear| linear.is_bare() && linear.dtype == asked.dtype && linear.x.is_same(&asked.x);
    let (mut slots, mut linears) = (vec![slot.0], Vec::new());
    if asked.is_bare() {
        for (tid, linear) in recorder.linears().filter(|(tid, linear)| *tid != slot.0 && fits(linear)) {
            slots.push(tid);
            linears.push(linear.clone());
        }
    }
    linears.insert(0, asked);
    for (tid, y) in slots.into_iter().zip(emit(p, &linears).map_err(Obstacle::at_run)?) {
        p.put(Out(tid), y);
    }
    Ok(())
}
