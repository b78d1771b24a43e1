//! Custom kernels. Metal runs their source text; other devices run equivalent operations.

mod delta;
mod gguf;
mod turbo;

use flambeau_ir::{self as ir, KnownKernel};
use flambeau_tensor::{DType, Shape};
use sha2::{Digest, Sha256};

use crate::{
    cx::Cx,
    cx::Support,
    error::{OpError, Result},
    eval::Eval,
    ffi::{Array, Binary, Kernel, KernelText, Launch, Template},
    values::{Slot, cast},
};

/// Digests and names of the kernels that ExecuTorch's exporter emits
/// (`scripts/trusted-kernels.py`): their text may run.
const TRUSTED: &str = include_str!("trusted.txt");

fn digest(node: &ir::MetalKernel) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [&node.name, node.header.as_deref().unwrap_or_default(), &node.source] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Whether the node's text may be executed.
fn may_run(node: &ir::MetalKernel, support: &Support) -> bool {
    let is_trusted = || {
        let digest: String = digest(node).iter().map(|b| format!("{b:02x}")).collect();
        TRUSTED.lines().any(|line| line.starts_with(&digest))
    };
    support.has_metal && (support.allows_custom || is_trusted())
}

impl Eval for ir::MetalKernel {
    fn is_supported(&self, support: &Support) -> bool {
        self.known().is_some() || may_run(self, support)
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        if may_run(self, &cx.m.support) {
            return run_source(self, cx);
        }
        match self.known() {
            Some(KnownKernel::GatedDeltaStep) => delta::gated_delta_step(self, cx),
            Some(KnownKernel::RowNorm) => turbo::norm(self, cx),
            Some(KnownKernel::CodebookCompress) => turbo::compress(self, cx),
            Some(KnownKernel::CodebookExpand) => turbo::expand(self, cx),
            Some(KnownKernel::GgufLinear(block)) => gguf::linear(self, cx, block),
            Some(KnownKernel::GgufEmbedding(block)) => gguf::embedding(self, cx, block),
            Some(KnownKernel::Sum) => {
                let y = input_as(self, cx, 0, DType::F32)?.binary(Binary::Add, &input_as(self, cx, 1, DType::F32)?)?;
                output(self, cx, 0, &y)
            }
            None => Err(OpError::value(format!("kernel `{}` is not known", self.name))),
        }
    }
}

/// Runs the node's own text.
fn run_source(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let inputs = node.inputs.iter().map(|&i| cx.get(i)).collect::<Result<Vec<_>>>()?;
    let specs = node.outputs.iter().map(|&o| cx.out(o).map(|s| (s.dtype, s.shape))).collect::<Result<Vec<(DType, Shape)>>>()?;
    let axes = |list: &[ir::Int]| -> Result<[i32; 3]> {
        let sizes = list.iter().map(|&v| cx.int(v).map(|v| v as i32)).collect::<Result<Vec<_>>>()?;
        sizes.try_into().map_err(|_| OpError::value("a grid does not have three axes"))
    };
    let (grid, threads) = (axes(&node.grid)?, axes(&node.threadgroup)?);
    let templates = templates_of(node)?;
    let key = digest(node);
    if !cx.m.kernels.contains_key(&key) {
        let text = KernelText {
            is_cuda: false,
            name: &node.name,
            source: &node.source,
            header: node.header.as_deref().unwrap_or_default(),
            inputs: &node.input_names,
            outputs: &node.output_names,
            row_contiguous: node.ensure_row_contiguous,
            atomic_outputs: node.atomic_outputs,
            shared_memory: 0,
        };
        let kernel = Kernel::new(cx.api(), &text)?;
        cx.m.kernels.insert(key, kernel);
    }
    let launch = Launch { outputs: &specs, grid, threads, templates: &templates, init: node.init_value };
    let operands: Vec<&Array> = inputs.iter().map(|slot| &slot.array).collect();
    let results = cx.m.kernels[&key].launch(&operands, &launch)?;
    node.outputs.iter().zip(results).try_for_each(|(&out, result)| cx.put(out, result))
}

fn templates_of(node: &ir::MetalKernel) -> Result<Vec<(String, Template)>> {
    let kinds = node.template_arg_kinds.iter().zip(&node.template_arg_values);
    let arguments = node.template_arg_names.iter().zip(kinds).map(|(name, (&kind, &value))| {
        let template = match kind {
            0 => Template::Int(value),
            1 => Template::Bool(value != 0),
            _ => {
                let dtype = i8::try_from(value).ok().and_then(DType::from_code);
                Template::DType(dtype.ok_or_else(|| OpError::value(format!("template argument `{name}` is no element type")))?)
            }
        };
        Ok((name.clone(), template))
    });
    arguments.collect()
}

/// An operand.
fn input(node: &ir::MetalKernel, cx: &Cx<'_>, index: usize) -> Result<Slot> {
    node.inputs.get(index).ok_or_else(|| OpError::value("an operand is missing")).and_then(|&slot| cx.get(slot))
}

/// An operand's elements in `dtype`.
fn input_as(node: &ir::MetalKernel, cx: &Cx<'_>, index: usize, dtype: DType) -> Result<Array> {
    cast(&input(node, cx, index)?, dtype)
}

/// Binds a result. It has the number of elements that the node's rule infers.
fn output(node: &ir::MetalKernel, cx: &mut Cx<'_>, index: usize, y: &Array) -> Result<()> {
    let out = *node.outputs.get(index).ok_or_else(|| OpError::value("a result is missing"))?;
    let spec = cx.out(out)?;
    cx.put(out, y.reshape(&spec.shape)?)
}

/// A template argument that is a size.
fn size(node: &ir::MetalKernel, name: &str) -> Result<usize> {
    node.template_size(name).ok_or_else(|| OpError::value(format!("template argument `{name}` is not a size")))
}

/// Refuses an operand of another shape.
fn need_shape(name: &str, x: &Slot, expected: &[usize]) -> Result<()> {
    if x.shape[..] == *expected {
        return Ok(());
    }
    Err(OpError::value(format!("`{name}` has shape {:?}, expected {expected:?}", x.shape)))
}
