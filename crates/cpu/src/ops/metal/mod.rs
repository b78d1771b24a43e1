//! The Metal kernels that are known without their text.

mod delta;
mod gguf;
mod turbo;

use flambeau_ir::{self as ir, GgufBlock, KnownKernel};
use flambeau_tensor::DType;

use super::copy::{cast, cast_into, contiguous};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

impl Eval for ir::MetalKernel {
    fn is_supported(&self) -> bool {
        self.known().is_some()
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        match self.known() {
            Some(KnownKernel::GatedDeltaStep) => delta::gated_delta_step(self, cx),
            Some(KnownKernel::RowNorm) => turbo::norm(self, cx),
            Some(KnownKernel::CodebookCompress) => turbo::compress(self, cx),
            Some(KnownKernel::CodebookExpand) => turbo::dequantize(self, cx),
            Some(KnownKernel::GgufLinear(GgufBlock::Q4K)) => gguf::linear::<gguf::Q4K>(self, cx),
            Some(KnownKernel::GgufLinear(GgufBlock::Q5K)) => gguf::linear::<gguf::Q5K>(self, cx),
            Some(KnownKernel::GgufLinear(GgufBlock::Q6K)) => gguf::linear::<gguf::Q6K>(self, cx),
            Some(KnownKernel::GgufEmbedding(GgufBlock::Q4K)) => gguf::embedding::<gguf::Q4K>(self, cx),
            Some(KnownKernel::GgufEmbedding(GgufBlock::Q5K)) => gguf::embedding::<gguf::Q5K>(self, cx),
            Some(KnownKernel::GgufEmbedding(GgufBlock::Q6K)) => gguf::embedding::<gguf::Q6K>(self, cx),
            Some(KnownKernel::Sum) => add(self, cx),
            None => Err(OpError::value(format!("kernel `{}` is not known", self.name))),
        }
    }
}

fn add(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let (a, b) = (input(node, cx, 0)?, input(node, cx, 1)?);
    let out = ir::Out(node.outputs[0].0);
    let spec = cx.out(out)?;
    let (a, b) = (cast(cx, &a, DType::F32)?, cast(cx, &b, DType::F32)?);
    let mut y = cx.alloc(DType::F32, &spec.shape)?;
    flambeau_kernels::elementwise::zip_float::<f32, f32, f32, _>(
        &cx.pool(),
        &a.view()?,
        &b.view()?,
        &mut y.view_mut()?,
        |a, b| a + b,
    )?;
    let y = cast(cx, &y, spec.dtype)?;
    cx.put(out, y);
    Ok(())
}

/// An operand.
fn input(node: &ir::MetalKernel, cx: &Cx<'_>, index: usize) -> Result<Array> {
    node.inputs.get(index).ok_or_else(|| OpError::value("an operand is missing")).and_then(|&slot| cx.get(slot))
}

/// An operand's elements in `dtype`, row-major.
fn input_as(node: &ir::MetalKernel, cx: &mut Cx<'_>, index: usize, dtype: DType) -> Result<Array> {
    let x = input(node, cx, index)?;
    let x = cast(cx, &x, dtype)?;
    contiguous(cx, x)
}

/// Converts and binds a result, which has as many elements as its rule says.
fn output(node: &ir::MetalKernel, cx: &mut Cx<'_>, index: usize, y: &Array) -> Result<()> {
    let out = *node.outputs.get(index).ok_or_else(|| OpError::value("a result is missing"))?;
    let spec = cx.out(out)?;
    let mut to = cx.alloc(spec.dtype, &spec.shape)?;
    if y.numel() != to.numel() {
        return Err(OpError::value(format!("the kernel makes {:?}, the program expects {:?}", y.shape, spec.shape)));
    }
    to.set_shape(&y.shape);
    cast_into(&cx.pool(), y, &mut to)?;
    to.set_shape(&spec.shape);
    cx.put(out, to);
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
