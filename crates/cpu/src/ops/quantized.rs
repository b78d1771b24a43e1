//! Nodes over packed weights.

use flambeau_ir as ir;
use flambeau_kernels::{
    Pool, elementwise,
    gemm::quantized::{self, Gather},
    quant::{self, Format, QMatrix, Scales},
};
use flambeau_tensor::DType;
use smallvec::SmallVec;

use super::{
    float_dtype,
    linalg::{batch_of, broadcast_lists, gather_lists, numbers},
};
use crate::{
    array::Array,
    error::{OpError, Result},
    obstacle::Prepared,
    plan::{MemRef, Planner},
    prepare::Prepare,
};

/// The nvfp4 global scale counts in units of the largest product of a code and a scale.
const NVFP4_RANGE: f32 = 448.0 * 6.0;

/// The packing that a node's attributes name.
fn format_of(mode: ir::QuantMode, group: i32, bits: i32) -> Format {
    match mode {
        ir::QuantMode::Affine => Format::Affine { bits: bits as u32, group: group as usize },
        ir::QuantMode::Nvfp4 => Format::Nvfp4,
        ir::QuantMode::Mxfp4 => Format::Mxfp4,
        ir::QuantMode::Mxfp8 => Format::Mxfp8,
    }
}

/// Packed weights with scales and biases, row-major, as one matrix.
pub(crate) fn matrix<'a>(format: Format, [w, scale]: [&'a Array; 2], biases: Option<&'a Array>) -> Result<QMatrix<'a>> {
    let cols = scale.shape.last().map_or(0, |groups| groups * format.group());
    let rows = w.shape[..w.rank() - 1].iter().product();
    let biases = biases.map(scales).transpose()?;
    Ok(QMatrix::new(format, w.slice()?, scales(scale)?, biases, [rows, cols])?)
}

/// `y = x · w`, or `x · wᵀ` if `transpose`, all row-major.
fn multiply(pool: &Pool, x: &Array, w: &QMatrix<'_>, transpose: bool, y: &mut Array) -> Result<()> {
    float_dtype!(y.dtype, T => {
        let multiply = if transpose { quantized::linear::<T, T> } else { quantized::matmul::<T, T> };
        Ok(multiply(pool, x.slice()?, w, y.slice_mut()?)?)
    })
}

/// The unpacked elements of `w` in the type of `y`, which is row-major.
pub(crate) fn dequantize(pool: &Pool, w: &QMatrix<'_>, y: &mut Array) -> Result<()> {
    float_dtype!(y.dtype, T => Ok(quant::dequantize::<T>(pool, w, y.slice_mut()?)?))
}

fn scales(x: &Array) -> Result<Scales<'_>> {
    Ok(match x.dtype {
        DType::F32 => Scales::F32(x.slice()?),
        DType::F16 => Scales::F16(x.slice()?),
        DType::BF16 => Scales::BF16(x.slice()?),
        DType::U8 => Scales::U8(x.slice()?),
        other => return Err(OpError::DType(other)),
    })
}

/// Packed weights, row-major: words, scales and, if the format has them, biases. The format is the
/// node's, or one with the same values that needs no biases.
fn packed(
    p: &mut Planner<'_>,
    format: Format,
    [w, scales]: [ir::In; 2],
    biases: Option<ir::In>,
) -> Prepared<(Format, SmallVec<[MemRef; 3]>)> {
    let slots: SmallVec<[ir::In; 3]> = [w, scales].into_iter().chain(biases).collect();
    let parts = p.operands(&slots)?;
    let mut parts = parts.into_iter().map(|part| p.contiguous(part)).collect::<Prepared<SmallVec<[MemRef; 3]>>>()?;
    match p.symmetric(format, &slots, &parts)? {
        Some(symmetric) => {
            parts.truncate(2);
            Ok((symmetric, parts))
        }
        None => Ok((format, parts)),
    }
}

impl Prepare for ir::Dequantize {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (spec, global) = (p.spec(self.out)?, p.operand_opt(self.global_scale)?);
        let format = format_of(self.mode, self.group_size, self.bits);
        let (format, weight) = packed(p, format, [self.w, self.scales], self.biases)?;
        if global.is_none() && p.packed_matrix(&weight, format, self.out)? {
            return Ok(());
        }
        let through = if global.is_some() { DType::F32 } else { spec.dtype };
        let ins: SmallVec<[&MemRef; 3]> = weight.iter().collect();
        let mut y = p.call(&ins, (through, &spec.shape), move |cx, ins, y| {
            dequantize(&cx.pool, &matrix(format, [&ins[0], &ins[1]], ins.get(2))?, y)
        })?;
        if let Some(global) = global {
            let global = p.rows_in_type(global, DType::F32)?;
            y = p.call(&[&y, &global], (through, &spec.shape), |cx, ins, y| {
                let global = ins[1].slice::<f32>()?.first().copied().unwrap_or(1.0) / NVFP4_RANGE;
                Ok(elementwise::map_float::<f32, f32, _>(&cx.pool, &ins[0].view()?, &mut y.view_mut()?, |v| v * global)?)
            })?;
        }
        let y = p.in_type(y, spec.dtype)?;
        p.put(self.out, y);
        Ok(())
    }
}

impl Prepare for ir::QuantizedMatmul {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
        let format = format_of(self.mode, self.group_size, self.bits);
        let ((format, weight), transpose) = (packed(p, format, [self.w, self.scales], self.biases)?, self.transpose);
        if transpose && p.packed_layer(&x, &weight, format, self.out)? {
            return Ok(());
        }
        let x = p.in_type(x, spec.dtype)?;
        let y = if weight[0].array.rank() == 2 {
            let x = p.contiguous(x)?;
            let ins: SmallVec<[&MemRef; 4]> = std::iter::once(&x).chain(&weight).collect();
            p.call(&ins, (spec.dtype, &spec.shape), move |cx, ins, y| {
                multiply(&cx.pool, &ins[0], &matrix(format, [&ins[1], &ins[2]], ins.get(3))?, transpose, y)
            })?
        } else {
            gathered(p, x, &weight, [None, None], (format, transpose), &spec.shape)?
        };
        p.put(self.out, y);
        Ok(())
    }
}

impl Prepare for ir::GatherQmm {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
        let lists = gather_lists(p, [self.lhs_indices, self.rhs_indices])?;
        let format = format_of(self.mode, self.group_size, self.bits);
        let (format, weight) = packed(p, format, [self.w, self.scales], self.biases)?;
        let x = p.in_type(x, spec.dtype)?;
        let y = gathered(p, x, &weight, lists, (format, self.transpose), &spec.shape)?;
        p.put(self.out, y);
        Ok(())
    }
}

/// `x[lhs] · w[rhs]` over flattened batch axes, in the type of `x`.
fn gathered(
    p: &mut Planner<'_>,
    x: MemRef,
    weight: &[MemRef],
    lists: [Option<MemRef>; 2],
    (format, transpose): (Format, bool),
    shape: &[usize],
) -> Prepared<MemRef> {
    let mut x = p.contiguous(x)?;
    // A vector counts as one row, which the result lacks.
    let matrix_axes = if x.array.rank() == 1 { 1 } else { 2 };
    if x.array.rank() == 1 {
        x.array.set_shape(&[1, x.array.numel()]);
    }
    let lead = &shape[..shape.len().saturating_sub(matrix_axes)];
    let batches = [batch_of(&x.array.shape), batch_of(&weight[0].array.shape)];
    let [count_x, experts] = batches.each_ref().map(|batch| batch.iter().product());
    let [lhs, rhs] = broadcast_lists(p, lists, [&batches[0], &batches[1]], lead)?;
    let rows = x.array.shape[x.array.rank() - 2];
    let ins: SmallVec<[&MemRef; 6]> = [&x, &lhs, &rhs].into_iter().chain(weight).collect();
    p.call(&ins, (x.array.dtype, shape), move |cx, ins, y| {
        let (lhs, rhs) = (numbers(&ins[1], count_x)?, numbers(&ins[2], experts)?);
        let gather = Gather { lhs: &lhs, rhs: &rhs, rows, experts, transpose };
        let matrix = matrix(format, [&ins[3], &ins[4]], ins.get(5))?;
        float_dtype!(y.dtype, T => {
            Ok(quantized::gather_linear::<T, T>(&cx.pool, ins[0].slice()?, &matrix, &gather, y.slice_mut()?)?)
        })
    })
}
