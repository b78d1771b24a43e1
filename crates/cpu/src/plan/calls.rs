//! Nodes that become kernel calls.

use flambeau_ir::{self as ir, In, Index, Node, Out, VidOrTid};
use flambeau_kernels::Pool;
use flambeau_tensor::DType;
use smallvec::SmallVec;

use super::{memref::MemRef, planner::Planner, views::reshaped};
use crate::{
    array::Array,
    error::Result,
    ops::{
        attention::{attend_into, mask_of},
        elementwise::pointwise,
        index::{listed, take_listed},
        linalg::{affine, as_bias, as_matrices},
        norm::{heads, layer_norm, rms_norm, rotate, softmax},
        quantized::{dequantize, format_of, matrix, multiply},
        shape::{axis_of, join},
    },
};

/// Follows a node that computes. `false` if it has no call here, or its operands' sizes are open.
pub(super) fn lower(b: &mut Planner<'_>, node: &Node) -> Result<bool> {
    let lowered = match node {
        Node::QuantizedMatmul(n) => packed(b, n)?.map(|val| (n.out, val)),
        Node::Addmm(n) => addmm(b, n)?.map(|val| (n.out, val)),
        Node::RMSNorm(n) => rms(b, n)?.map(|val| (n.out, val)),
        Node::LayerNorm(n) => layer(b, n)?.map(|val| (n.out, val)),
        Node::Softmax(n) => soft(b, n)?.map(|val| (n.out, val)),
        Node::Rope(n) => rope(b, n)?.map(|val| (n.out, val)),
        Node::Sdpa(n) => sdpa(b, n)?.map(|val| (n.out, val)),
        Node::Take(n) => take(b, n)?.map(|val| (n.out, val)),
        Node::Dequantize(n) => unpack(b, n)?.map(|val| (n.out, val)),
        Node::Concatenate(n) => concatenate(b, n)?.map(|val| (n.out, val)),
        Node::AsType(n) => match b.fixed(n.x)? {
            Some(x) => Some((n.out, b.in_type(x, n.scalar_type)?)),
            None => None,
        },
        _ => each(b, node)?,
    };
    let Some((out, val)) = lowered else { return Ok(false) };
    // A buffer takes only what a node as it is leaves in its slot.
    if b.m.graph.slots.class(out.0) == Some(ir::SlotClass::Buffer) {
        return Ok(false);
    }
    b.put(out, val)?;
    Ok(true)
}

/// Element by element.
fn each(b: &mut Planner<'_>, node: &Node) -> Result<Option<(Out, MemRef)>> {
    let Some(parts) = pointwise(node) else { return Ok(None) };
    let Some((dtype, shape)) = b.spec(parts.out) else { return Ok(None) };
    let mut ins: SmallVec<[MemRef; 3]> = SmallVec::new();
    for &slot in &parts.ins {
        let Some(val) = b.fixed(slot)? else { return Ok(None) };
        ins.push(val);
    }
    let types: SmallVec<[DType; 3]> = ins.iter().map(|x| x.array.dtype).collect();
    for (i, val) in ins.iter_mut().enumerate() {
        *val = b.in_type(val.clone(), parts.operand_type(&types, i, dtype))?;
    }
    let run = parts.run;
    let refs: SmallVec<[&MemRef; 3]> = ins.iter().collect();
    let val = b.call(&refs, (dtype, &shape), move |pool, ins, y| {
        let refs: SmallVec<[&Array; 3]> = ins.iter().collect();
        run(pool, &refs, y)
    })?;
    Ok(Some((parts.out, val)))
}

/// Packed weights and what unpacks them, row-major: words, scales and, where the format has them, biases.
fn packed_operands(b: &mut Planner<'_>, slots: [Option<In>; 3]) -> Result<Option<Vec<MemRef>>> {
    let mut out = Vec::with_capacity(3);
    for slot in slots.into_iter().flatten() {
        let Some(val) = b.fixed(slot)? else { return Ok(None) };
        out.push(b.contiguous(val)?);
    }
    Ok(Some(out))
}

fn packed(b: &mut Planner<'_>, n: &ir::QuantizedMatmul) -> Result<Option<MemRef>> {
    let (Some(x), Some((dtype, shape))) = (b.fixed(n.x)?, b.spec(n.out)) else { return Ok(None) };
    let Some(weights) = packed_operands(b, [Some(n.w), Some(n.scales), n.biases])? else { return Ok(None) };
    if weights[0].array.rank() != 2 || x.array.dtype != dtype {
        return Ok(None);
    }
    let x = b.contiguous(x)?;
    let (format, transpose) = (format_of(n.mode, n.group_size, n.bits), n.transpose);
    let ins: Vec<&MemRef> = std::iter::once(&x).chain(&weights).collect();
    let val = b.call(&ins, (dtype, &shape), move |pool, ins, y| {
        multiply(pool, &ins[0], &matrix(format, [&ins[1], &ins[2]], ins.get(3))?, transpose, y)
    })?;
    Ok(Some(val))
}

fn unpack(b: &mut Planner<'_>, n: &ir::Dequantize) -> Result<Option<MemRef>> {
    let Some((dtype, shape)) = b.spec(n.out) else { return Ok(None) };
    if n.global_scale.is_some() {
        return Ok(None);
    }
    let Some(weights) = packed_operands(b, [Some(n.w), Some(n.scales), n.biases])? else { return Ok(None) };
    let format = format_of(n.mode, n.group_size, n.bits);
    let ins: Vec<&MemRef> = weights.iter().collect();
    let val =
        b.call(&ins, (dtype, &shape), move |pool, ins, y| dequantize(pool, &matrix(format, [&ins[0], &ins[1]], ins.get(2))?, y))?;
    Ok(Some(val))
}

fn is_float(val: &MemRef) -> bool {
    val.array.dtype.is_float()
}

fn addmm(b: &mut Planner<'_>, n: &ir::Addmm) -> Result<Option<MemRef>> {
    let (Some(x), Some(w), Some(bias)) = (b.fixed(n.mat1)?, b.fixed(n.mat2)?, b.fixed_opt(n.bias)?) else { return Ok(None) };
    let Some((dtype, whole)) = b.spec(n.out) else { return Ok(None) };
    if !is_float(&w) || bias.as_ref().is_some_and(|bias| !is_float(bias)) {
        return Ok(None);
    }
    let x = b.in_type(x, dtype)?;
    let (x_view, w_view, shape) = as_matrices(x.array.clone(), w.array.clone(), &whole);
    let mut operands = vec![x.seen(x_view), w.seen(w_view)];
    if let Some(bias) = bias {
        operands.push(bias.seen(as_bias(&bias.array, &whole, &shape)?));
    }
    let factors = [n.alpha, n.beta];
    let ins: Vec<&MemRef> = operands.iter().collect();
    let mut val = b.call(&ins, (dtype, &shape), move |pool, ins, y| affine(pool, [&ins[0], &ins[1]], ins.get(2), factors, y))?;
    val.array.set_shape(&whole);
    Ok(Some(val))
}

fn rms(b: &mut Planner<'_>, n: &ir::RMSNorm) -> Result<Option<MemRef>> {
    let (Some(x), Some(weight), Some((dtype, shape))) = (b.fixed(n.x)?, b.fixed_opt(n.weight)?, b.spec(n.out)) else {
        return Ok(None);
    };
    let x = b.contiguous(x)?;
    let ins: Vec<&MemRef> = std::iter::once(&x).chain(&weight).collect();
    let eps = n.eps;
    b.call(&ins, (dtype, &shape), move |pool, ins, y| rms_norm(pool, &ins[0], ins.get(1), eps, y)).map(Some)
}

fn layer(b: &mut Planner<'_>, n: &ir::LayerNorm) -> Result<Option<MemRef>> {
    let (Some(x), Some(weight), Some(bias)) = (b.fixed(n.x)?, b.fixed_opt(n.weight)?, b.fixed_opt(n.bias)?) else {
        return Ok(None);
    };
    let Some((dtype, shape)) = b.spec(n.out) else { return Ok(None) };
    let x = b.contiguous(x)?;
    let ins: Vec<&MemRef> = std::iter::once(&x).chain(&weight).chain(&bias).collect();
    let (eps, has_weight, has_bias) = (n.eps, weight.is_some(), bias.is_some());
    let work = move |pool: &Pool, ins: &[Array], y: &mut Array| {
        let weight = ins.get(1).filter(|_| has_weight);
        layer_norm(pool, &ins[0], [weight, ins.last().filter(|_| has_bias)], eps, y)
    };
    b.call(&ins, (dtype, &shape), work).map(Some)
}

/// Along the last axis.
fn soft(b: &mut Planner<'_>, n: &ir::Softmax) -> Result<Option<MemRef>> {
    let (Some(x), Some((dtype, shape))) = (b.fixed(n.x)?, b.spec(n.out)) else { return Ok(None) };
    if !dtype.is_float() || axis_of(n.axis.into(), shape.len())? + 1 != shape.len() {
        return Ok(None);
    }
    let x = b.in_type(x, dtype)?;
    let x = b.contiguous(x)?;
    b.call(&[&x], (dtype, &shape), |pool, ins, y| softmax(pool, &ins[0], y)).map(Some)
}

fn rope(b: &mut Planner<'_>, n: &ir::Rope) -> Result<Option<MemRef>> {
    let VidOrTid::Tid(offset) = n.offset else { return Ok(None) };
    let (Some(x), Some(offset), Some(periods)) = (b.fixed(n.x)?, b.fixed(In(offset))?, b.fixed_opt(n.freqs)?) else {
        return Ok(None);
    };
    let Some((dtype, whole)) = b.spec(n.out) else { return Ok(None) };
    if x.array.dtype != dtype {
        return Ok(None);
    }
    let offset = b.contiguous(offset)?;
    let periods = match periods {
        Some(periods) => {
            let periods = b.in_type(periods, DType::F32)?;
            Some(b.contiguous(periods)?)
        }
        None => None,
    };
    let sizes = heads(&x.array.shape)?;
    let x = reshaped(b, x, &sizes)?;
    let ins: Vec<&MemRef> = [&x, &offset].into_iter().chain(&periods).collect();
    let node = n.clone();
    let mut val = b.call(&ins, (dtype, &sizes), move |pool, ins, y| {
        let offsets: SmallVec<[i32; 8]> = listed(&ins[1])?.iter().map(|&v| v as i32).collect();
        rotate(pool, &node, &ins[0], &offsets, ins.get(2), y)
    })?;
    val.array.set_shape(&whole);
    Ok(Some(val))
}

/// Keys, values and mask may have sizes that only running tells.
fn sdpa(b: &mut Planner<'_>, n: &ir::Sdpa) -> Result<Option<MemRef>> {
    let (Some(q), k, v) = (b.fixed(n.q)?, b.get(n.k)?, b.get(n.v)?) else { return Ok(None) };
    let Some((dtype, shape)) = b.spec(n.out) else { return Ok(None) };
    let mask = n.mask.map(|mask| b.get(mask)).transpose()?;
    let type_of = |slot: In| b.env.get(slot.0).map(|spec| spec.dtype);
    let is_usable = |dtype: DType| dtype == DType::Bool || dtype.is_float();
    let kv = type_of(n.k).filter(|&dtype| dtype.is_float() && type_of(n.v) == Some(dtype));
    if q.array.dtype != dtype || kv.is_none() || n.mask.is_some_and(|mask| !type_of(mask).is_some_and(is_usable)) {
        return Ok(None);
    }
    let ins: Vec<&MemRef> = [&q, &k, &v].into_iter().chain(&mask).collect();
    let (scale, causal) = (n.scale, n.causal);
    let work = move |pool: &Pool, ins: &[Array], y: &mut Array| {
        attend_into(pool, [&ins[0], &ins[1], &ins[2]], scale, &mask_of(ins.get(3), causal)?, y)
    };
    b.call(&ins, (dtype, &shape), work).map(Some)
}

/// The rows that a tensor lists.
fn take(b: &mut Planner<'_>, n: &ir::Take) -> Result<Option<MemRef>> {
    let Index::Tid(indices) = n.index else { return Ok(None) };
    let (Some(x), Some(indices), Some((dtype, shape))) = (b.fixed(n.x)?, b.fixed(In(indices))?, b.spec(n.out)) else {
        return Ok(None);
    };
    let axis = axis_of(n.axis.into(), x.array.rank())?;
    let indices = b.contiguous(indices)?;
    b.call(&[&x, &indices], (dtype, &shape), move |pool, ins, y| take_listed(pool, &ins[0], axis, &ins[1], y)).map(Some)
}

fn concatenate(b: &mut Planner<'_>, n: &ir::Concatenate) -> Result<Option<MemRef>> {
    let Some((dtype, shape)) = b.spec(n.out) else { return Ok(None) };
    let mut parts = Vec::with_capacity(n.tensors.len());
    for &part in &n.tensors {
        let Some(val) = b.fixed(part)? else { return Ok(None) };
        parts.push(val);
    }
    let axis = axis_of(n.axis.into(), shape.len())?;
    if let [only] = &parts[..] {
        return Ok((only.array.dtype == dtype).then(|| only.clone()));
    }
    let ins: Vec<&MemRef> = parts.iter().collect();
    b.call(&ins, (dtype, &shape), move |pool, ins, y| join(pool, ins, axis, y)).map(Some)
}
