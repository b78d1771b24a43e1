//! The Metal kernels that are known without their text.

mod delta;
mod gguf;
mod turbo;

use flambeau_ir::{self as ir, GgufBlock, KnownKernel};
use flambeau_tensor::DType;

use smallvec::SmallVec;

use crate::{
    array::Array,
    error::{OpError, Result},
    obstacle::Prepared,
    plan::{MemRef, Planner},
    prepare::Prepare,
};

impl Prepare for ir::MetalKernel {
    fn is_supported(&self) -> bool {
        self.known().is_some()
    }

    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        match self.known() {
            Some(KnownKernel::GatedDeltaStep) => delta::gated_delta_step(self, p),
            Some(KnownKernel::RowNorm) => turbo::norm(self, p),
            Some(KnownKernel::CodebookCompress) => turbo::compress(self, p),
            Some(KnownKernel::CodebookExpand) => turbo::dequantize(self, p),
            Some(KnownKernel::GgufLinear(GgufBlock::Q4K)) => gguf::linear::<gguf::Q4K>(self, p),
            Some(KnownKernel::GgufLinear(GgufBlock::Q5K)) => gguf::linear::<gguf::Q5K>(self, p),
            Some(KnownKernel::GgufLinear(GgufBlock::Q6K)) => gguf::linear::<gguf::Q6K>(self, p),
            Some(KnownKernel::GgufEmbedding(GgufBlock::Q4K)) => gguf::embedding::<gguf::Q4K>(self, p),
            Some(KnownKernel::GgufEmbedding(GgufBlock::Q5K)) => gguf::embedding::<gguf::Q5K>(self, p),
            Some(KnownKernel::GgufEmbedding(GgufBlock::Q6K)) => gguf::embedding::<gguf::Q6K>(self, p),
            Some(KnownKernel::Sum) => sum(self, p),
            None => Err(OpError::value(format!("kernel `{}` is not known", self.name)).into()),
        }
    }
}

fn sum(node: &ir::MetalKernel, p: &mut Planner<'_>) -> Prepared {
    let (a, b) = (input(node, p, 0)?, input(node, p, 1)?);
    let spec = p.spec(result(node, 0)?)?;
    let (a, b) = (p.in_type(a, DType::F32)?, p.in_type(b, DType::F32)?);
    let y = p.call(&[&a, &b], (DType::F32, &spec.shape), |cx, ins, y| {
        let (a, b) = (ins[0].view()?, ins[1].view()?);
        Ok(flambeau_kernels::elementwise::zip_float::<f32, f32, f32, _>(&cx.pool, &a, &b, &mut y.view_mut()?, |a, b| a + b)?)
    })?;
    output(node, p, 0, y)
}

/// An operand.
fn input(node: &ir::MetalKernel, p: &mut Planner<'_>, index: usize) -> Prepared<MemRef> {
    let slot = *node.inputs.get(index).ok_or_else(|| OpError::value("an operand is missing"))?;
    p.operand(slot)
}

/// All operands; their contents must be known when the plan is made.
fn inputs<const N: usize>(node: &ir::MetalKernel, p: &mut Planner<'_>) -> Prepared<[MemRef; N]> {
    let inputs = (0..N).map(|i| input(node, p, i)).collect::<Prepared<SmallVec<[MemRef; N]>>>()?;
    inputs.into_inner().map_err(|_| OpError::value("an operand is missing").into())
}

fn result(node: &ir::MetalKernel, index: usize) -> Result<ir::Out> {
    node.outputs.get(index).copied().ok_or_else(|| OpError::value("a result is missing"))
}

/// Converts and binds a result. It has the number of elements that the node's rule infers.
fn output(node: &ir::MetalKernel, p: &mut Planner<'_>, index: usize, y: MemRef) -> Prepared {
    let out = result(node, index)?;
    let spec = p.spec(out)?;
    if y.array.numel() != spec.shape.iter().product::<usize>() {
        let what = format!("the kernel makes {:?}, the program expects {:?}", y.array.shape, spec.shape);
        return Err(OpError::value(what).into());
    }
    let mut y = p.rows_in_type(y, spec.dtype)?;
    y.array.set_shape(&spec.shape);
    p.put(out, y);
    Ok(())
}

/// A template argument that is a size.
fn template(node: &ir::MetalKernel, name: &str) -> Result<usize> {
    node.template_size(name).ok_or_else(|| OpError::value(format!("template argument `{name}` is not a size")))
}

/// Refuses an operand of another shape.
fn need_shape(name: &str, x: &Array, expected: &[usize]) -> Result<()> {
    if x.shape[..] == *expected {
        return Ok(());
    }
    Err(OpError::value(format!("`{name}` has shape {:?}, expected {expected:?}", x.shape)))
}

/// Sum of products in sixteen interleaved parts: fast, and more accurate than one.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut parts = [0.0f32; 16];
    for (a, b) in a.iter().zip(b) {
        (0..16).for_each(|i| parts[i] += a[i] * b[i]);
    }
    let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
    parts.iter().sum::<f32>() + tail
}
