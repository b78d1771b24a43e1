//! Nodes over packed weights.

use flambeau_ir as ir;
use flambeau_kernels::{
    Pool,
    gemm::quantized::{self, Gather},
    quant::{self, Format, QMatrix, Scales},
};
use flambeau_tensor::{DType, Shape};

use super::{
    copy::{cast, contiguous},
    float_dtype,
    linalg::gather_indices,
};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// The nvfp4 global scale counts in units of the largest product of a code and a scale.
const NVFP4_RANGE: f32 = 448.0 * 6.0;

/// The packing that a node's attributes name.
pub(crate) fn format_of(mode: ir::QuantMode, group: i32, bits: i32) -> Format {
    match mode {
        ir::QuantMode::Affine => Format::Affine { bits: bits as u32, group: group as usize },
        ir::QuantMode::Nvfp4 => Format::Nvfp4,
        ir::QuantMode::Mxfp4 => Format::Mxfp4,
        ir::QuantMode::Mxfp8 => Format::Mxfp8,
    }
}

/// Packed weights and what unpacks them, row-major, as one matrix.
pub(crate) fn matrix<'a>(format: Format, [w, scale]: [&'a Array; 2], biases: Option<&'a Array>) -> Result<QMatrix<'a>> {
    let cols = scale.shape.last().map_or(0, |groups| groups * format.group());
    let rows = w.shape[..w.rank() - 1].iter().product();
    let biases = biases.map(scales).transpose()?;
    Ok(QMatrix::new(format, w.slice()?, scales(scale)?, biases, [rows, cols])?)
}

/// `y = x · w`, or `x · wᵀ` if `transpose`, all row-major.
pub(crate) fn multiply(pool: &Pool, x: &Array, w: &QMatrix<'_>, transpose: bool, y: &mut Array) -> Result<()> {
    float_dtype!(y.dtype, T => {
        let multiply = if transpose { quantized::linear::<T, T> } else { quantized::matmul::<T, T> };
        Ok(multiply(pool, x.slice()?, w, y.slice_mut()?)?)
    })
}

/// The unpacked elements of `w` in the type of `y`, which is row-major.
pub(crate) fn dequantize(pool: &Pool, w: &QMatrix<'_>, y: &mut Array) -> Result<()> {
    float_dtype!(y.dtype, T => Ok(quant::dequantize::<T>(pool, w, y.slice_mut()?)?))
}

/// Packed weights and what unpacks them, row-major.
struct Packed {
    format: Format,
    w: Array,
    scales: Array,
    biases: Option<Array>,
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

impl Packed {
    fn new(
        cx: &mut Cx<'_>,
        [w, scales]: [ir::In; 2],
        biases: Option<ir::In>,
        (mode, group, bits): (ir::QuantMode, i32, i32),
    ) -> Result<Packed> {
        let format = format_of(mode, group, bits);
        let mut read = |slot: ir::In| {
            let x = cx.get(slot)?;
            contiguous(cx, x)
        };
        let (w, scales) = (read(w)?, read(scales)?);
        Ok(Packed { format, w, scales, biases: biases.map(read).transpose()? })
    }

    /// All rows as one matrix.
    fn matrix(&self) -> Result<QMatrix<'_>> {
        matrix(self.format, [&self.w, &self.scales], self.biases.as_ref())
    }
}

impl Eval for ir::Dequantize {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let packed = Packed::new(cx, [self.w, self.scales], self.biases, (self.mode, self.group_size, self.bits))?;
        let global = match cx.get_opt(self.global_scale)? {
            Some(global) => {
                let global = cast(cx, &global, DType::F32)?;
                Some(contiguous(cx, global)?.slice::<f32>()?.first().copied().unwrap_or(1.0) / NVFP4_RANGE)
            }
            None => None,
        };
        let through = if global.is_some() { DType::F32 } else { spec.dtype };
        let mut y = cx.alloc(through, &spec.shape)?;
        let pool = cx.pool();
        dequantize(&pool, &packed.matrix()?, &mut y)?;
        if let Some(global) = global {
            flambeau_kernels::elementwise::map_in_place::<f32, _>(&pool, y.slice_mut()?, |v| v * global);
        }
        let y = cast(cx, &y, spec.dtype)?;
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::QuantizedMatmul {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let packed = Packed::new(cx, [self.w, self.scales], self.biases, (self.mode, self.group_size, self.bits))?;
        let x = cx.get(self.x)?;
        let x = cast(cx, &x, spec.dtype)?;
        let y = if packed.w.rank() == 2 {
            let x = contiguous(cx, x)?;
            let mut y = cx.alloc(spec.dtype, &spec.shape)?;
            multiply(&cx.pool(), &x, &packed.matrix()?, self.transpose, &mut y)?;
            y
        } else {
            gathered(cx, &x, &packed, (None, None), self.transpose, &spec.shape)?
        };
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::GatherQmm {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let packed = Packed::new(cx, [self.w, self.scales], self.biases, (self.mode, self.group_size, self.bits))?;
        let x = cx.get(self.x)?;
        let x = cast(cx, &x, spec.dtype)?;
        let y = gathered(cx, &x, &packed, (self.lhs_indices, self.rhs_indices), self.transpose, &spec.shape)?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// `x[lhs] · w[rhs]` over flattened batch axes, in the type of `x`.
fn gathered(
    cx: &mut Cx<'_>,
    x: &Array,
    packed: &Packed,
    (lhs, rhs): (Option<ir::In>, Option<ir::In>),
    transpose: bool,
    shape: &[usize],
) -> Result<Array> {
    let mut x = contiguous(cx, x.clone())?;
    // A vector counts as one row, which the result lacks.
    let matrix_axes = if x.rank() == 1 { 1 } else { 2 };
    if x.rank() == 1 {
        x.set_shape(&[1, x.numel()]);
    }
    let lead = &shape[..shape.len().saturating_sub(matrix_axes)];
    let batch = |s: &[usize]| Shape::from_slice(&s[..s.len().saturating_sub(2)]);
    let (batch_x, batch_w) = (batch(&x.shape), batch(&packed.w.shape));
    let [lhs, rhs] = gather_indices(cx, (lhs, &batch_x), (rhs, &batch_w), lead)?;
    let mut y = cx.alloc(x.dtype, shape)?;
    let rows = x.shape[x.rank() - 2];
    let gather = Gather { lhs: &lhs, rhs: &rhs, rows, experts: batch_w.iter().product(), transpose };
    let matrix = packed.matrix()?;
    float_dtype!(x.dtype, T => {
        Ok(quantized::gather_linear::<T, T>(&cx.pool(), x.slice()?, &matrix, &gather, y.slice_mut()?)?)
    })?;
    Ok(y)
}
