//! Metal kernels that the engine knows: those that ExecuTorch's exporter emits, by name, operands and template arguments.

mod delta;
mod gguf;
mod turbo;

use flambeau_ir as ir;
use flambeau_tensor::DType;

use super::copy::{cast, cast_into, contiguous};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// A known kernel.
struct Known {
    name: &'static str,
    /// Names of the operands; those after the first `required` may be absent.
    inputs: &'static [&'static str],
    required: usize,
    outputs: usize,
    templates: &'static [&'static str],
    run: fn(&ir::MetalKernel, &mut Cx<'_>) -> Result<()>,
}

const fn known(
    name: &'static str,
    inputs: &'static [&'static str],
    templates: &'static [&'static str],
    run: fn(&ir::MetalKernel, &mut Cx<'_>) -> Result<()>,
) -> Known {
    Known { name, inputs, required: inputs.len(), outputs: 1, templates, run }
}

const fn linear(
    name: &'static str,
    templates: &'static [&'static str],
    run: fn(&ir::MetalKernel, &mut Cx<'_>) -> Result<()>,
) -> Known {
    Known { required: 2, ..known(name, &["x", "weight", "bias"], templates, run) }
}

const KNOWN: &[Known] = &[
    Known {
        outputs: 2,
        ..known(
            "gated_delta_step",
            &["q", "k", "v", "g", "beta", "state_in", "T"],
            &["InT", "Dk", "Dv", "Hk", "Hv"],
            delta::gated_delta_step,
        )
    },
    known("tq_norm", &["x"], &["InT", "D"], turbo::norm),
    known("tq4_compress", &["values", "boundaries"], &["InT", "B"], turbo::compress),
    known("tq_dequant", &["packed", "norms", "centroids"], &["InT", "D"], turbo::dequantize),
    linear("gguf_q4k_matvec", &["InT", "OutT", "N", "K", "NSG"], gguf::linear::<gguf::Q4K>),
    linear("gguf_q5k_matvec", &["InT", "OutT", "N", "K", "NSG"], gguf::linear::<gguf::Q5K>),
    linear("gguf_q6k_matvec", &["InT", "N", "K", "NSG"], gguf::linear::<gguf::Q6K>),
    linear("gguf_q4k_matmul", &["InT", "OutT", "N", "K"], gguf::linear::<gguf::Q4K>),
    linear("gguf_q5k_matmul", &["InT", "OutT", "N", "K"], gguf::linear::<gguf::Q5K>),
    linear("gguf_q6k_matmul", &["InT", "N", "K"], gguf::linear::<gguf::Q6K>),
    known("gguf_q4k_embedding", &["weight", "indices"], &["OutT", "K", "V"], gguf::embedding::<gguf::Q4K>),
    known("gguf_q5k_embedding", &["weight", "indices"], &["OutT", "K"], gguf::embedding::<gguf::Q5K>),
    known("gguf_q6k_embedding", &["weight", "indices"], &["OutT", "K"], gguf::embedding::<gguf::Q6K>),
];

/// The element-wise sum of ExecuTorch's tests. A name so plain says little, so the text, without its spaces, must be this.
const SUM_TEXT: &str = "uintidx=thread_position_in_grid.x;if(idx<a_shape[0]){out[idx]=a[idx]+b[idx];}";
const SUM: Known = known("vadd", &["a", "b"], &[], add);

fn find(node: &ir::MetalKernel) -> Option<&'static Known> {
    let fits = |k: &&Known| {
        k.name == node.name
            && (k.required..=k.inputs.len()).contains(&node.inputs.len())
            && node.input_names == k.inputs[..node.inputs.len()]
            && node.template_arg_names == k.templates
            && node.outputs.len() == k.outputs
    };
    let is_sum = || node.source.split_whitespace().collect::<String>() == SUM_TEXT;
    KNOWN.iter().find(fits).or_else(|| Some(&SUM).filter(|k| fits(k) && is_sum()))
}

impl Eval for ir::MetalKernel {
    fn is_supported(&self) -> bool {
        find(self).is_some()
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let known = find(self).ok_or_else(|| OpError::value(format!("kernel `{}` is not known", self.name)))?;
        (known.run)(self, cx)
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
    let at = node.template_arg_names.iter().position(|n| n == name);
    let value = at.and_then(|i| node.template_arg_values.get(i)).and_then(|&v| usize::try_from(v).ok());
    value.filter(|&v| v > 0).ok_or_else(|| OpError::value(format!("template argument `{name}` is not a size")))
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
