//! Normalisations, softmax and rotary embedding.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_kernels::{
    Pool, norm,
    rope::{Rope, rope},
};
use flambeau_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::{copy::cast_into, float_dtype, index::listed, linalg::float_view};
use crate::{
    array::Array,
    error::{OpError, Result},
    machine::Context,
    obstacle::Prepared,
    plan::{MemRef, Planner},
    prepare::Prepare,
};

/// Runs a kernel on the rows of `$x`, row-major.
macro_rules! by_rows {
    ($pool:expr, |$x:ident, $width:ident, $y:ident| $kernel:expr) => {{
        let $width = $x.shape.last().copied().unwrap_or(1);
        float_dtype!($x.dtype, X => float_dtype!($y.dtype, Y => {
            let ($x, $y) = ($x.slice::<X>()?, $y.slice_mut::<Y>()?);
            Ok($kernel?)
        }))
    }};
}

/// Root-mean-square normalisation of the rows of `x`, which is row-major.
fn rms_norm(pool: &Pool, x: &Array, weight: Option<&Array>, eps: f32, y: &mut Array) -> Result<()> {
    let weight = weight.map(float_view).transpose()?;
    by_rows!(pool, |x, width, y| norm::rms_norm(pool, x, width, weight.as_ref(), eps, y))
}

/// Normalisation of the rows of `x`, which is row-major.
fn layer_norm(pool: &Pool, x: &Array, affine: [Option<&Array>; 2], eps: f32, y: &mut Array) -> Result<()> {
    let [weight, bias] = affine;
    let (weight, bias) = (weight.map(float_view).transpose()?, bias.map(float_view).transpose()?);
    by_rows!(pool, |x, width, y| norm::layer_norm(pool, x, width, (weight.as_ref(), bias.as_ref()), eps, y))
}

/// Softmax of the rows of `x`, which is row-major and of the type of `y`.
fn softmax(pool: &Pool, x: &Array, y: &mut Array) -> Result<()> {
    by_rows!(pool, |x, width, y| norm::softmax(pool, x, width, y))
}

impl Prepare for ir::RMSNorm {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, weight, spec) = (p.operand(self.x)?, p.operand_opt(self.weight)?, p.spec(self.out)?);
        let x = p.contiguous(x)?;
        let ins: SmallVec<[&MemRef; 2]> = std::iter::once(&x).chain(&weight).collect();
        let eps = self.eps;
        let work = move |cx: &mut Context, ins: &[Array], y: &mut Array| rms_norm(&cx.pool, &ins[0], ins.get(1), eps, y);
        let y = p.call(&ins, (spec.dtype, &spec.shape), work)?;
        p.put(self.out, y);
        Ok(())
    }
}

impl Prepare for ir::LayerNorm {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
        let (weight, bias) = (p.operand_opt(self.weight)?, p.operand_opt(self.bias)?);
        let x = p.contiguous(x)?;
        let ins: SmallVec<[&MemRef; 3]> = std::iter::once(&x).chain(&weight).chain(&bias).collect();
        let (eps, has_weight, has_bias) = (self.eps, weight.is_some(), bias.is_some());
        let y = p.call(&ins, (spec.dtype, &spec.shape), move |cx, ins, y| {
            let affine = [ins.get(1).filter(|_| has_weight), ins.last().filter(|_| has_bias)];
            layer_norm(&cx.pool, &ins[0], affine, eps, y)
        })?;
        p.put(self.out, y);
        Ok(())
    }
}

/// `x` in `dtype` with `axis` innermost, row-major, and how to see it in the old order.
fn axis_last(p: &mut Planner<'_>, x: &MemRef, axis: usize, dtype: DType) -> Prepared<(MemRef, Shape)> {
    let rank = x.array.rank();
    let perm: Shape = (0..rank).filter(|&i| i != axis).chain([axis]).collect();
    let back: Shape = (0..rank).map(|i| if i == axis { rank - 1 } else { i - usize::from(i > axis) }).collect();
    let x = x.seen(x.array.permute(&perm));
    let rows = p.call(&[&x], (dtype, &x.array.shape), |cx, ins, y| cast_into(&cx.pool, &ins[0], y))?;
    Ok((rows, back))
}

impl Prepare for ir::Softmax {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
        let axis = axis_of(self.axis, x.array.rank())?;
        let through = if spec.dtype.is_float() { spec.dtype } else { DType::F32 };
        let is_last = axis + 1 == x.array.rank();
        let (x, back) = if is_last { (p.rows_in_type(x, through)?, Shape::new()) } else { axis_last(p, &x, axis, through)? };
        let y = p.call(&[&x], (through, &x.array.shape), |cx, ins, y| softmax(&cx.pool, &ins[0], y))?;
        let y = p.in_type(y, spec.dtype)?;
        let y = if is_last { y } else { y.seen(y.array.permute(&back)) };
        p.put(self.out, y);
        Ok(())
    }
}

/// `[B, .., T, D]` as `[B, H, T, D]`.
fn heads(shape: &[usize]) -> Result<[usize; 4]> {
    let [batch, ref middle @ .., time, depth] = *shape else {
        return Err(OpError::value(format!("the operand has rank {}, expected at least 3", shape.len())));
    };
    Ok([batch, middle.iter().product(), time, depth])
}

/// Rotates `x` `[B, H, T, D]` into `y` of the same sizes; `periods` are f32 and row-major.
fn rotate(pool: &Pool, node: &ir::Rope, x: &Array, offsets: &[i32], periods: Option<&Array>, y: &mut Array) -> Result<()> {
    let rotation = Rope {
        dims: usize::try_from(node.dims).map_err(|_| OpError::value("dims is negative"))?,
        traditional: node.traditional,
        base: node.base,
        scale: node.scale,
        periods: periods.map(|p| p.slice::<f32>()).transpose()?,
    };
    float_dtype!(y.dtype, T => Ok(rope::<T>(pool, &x.view()?, offsets, &rotation, &mut y.view_mut()?)?))
}

impl Prepare for ir::Rope {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, spec, periods) = (p.operand(self.x)?, p.spec(self.out)?, p.operand_opt(self.freqs)?);
        let offsets = match self.offset {
            ir::VidOrTid::Tid(tid) => Some(p.operand(ir::In(tid))?),
            ir::VidOrTid::Vid(_) => None,
        };
        let offsets = offsets.map(|offsets| p.contiguous(offsets)).transpose()?;
        let periods = periods.map(|periods| p.rows_in_type(periods, DType::F32)).transpose()?;
        let sizes = heads(&x.array.shape)?;
        let x = p.reshaped(x, &sizes)?;
        let ins: SmallVec<[&MemRef; 3]> = std::iter::once(&x).chain(&offsets).chain(&periods).collect();
        let (node, has_periods) = (self.clone(), periods.is_some());
        let mut y = p.call(&ins, (spec.dtype, &sizes), move |cx, ins, y| {
            // Positions of the first rows: one, or one a batch.
            let offsets: SmallVec<[i32; 8]> = match node.offset {
                ir::VidOrTid::Vid(vid) => std::iter::once(cx.value(vid)?).collect(),
                ir::VidOrTid::Tid(_) => listed(&ins[1])?.iter().map(|&v| v as i32).collect(),
            };
            rotate(&cx.pool, &node, &ins[0], &offsets, ins.last().filter(|_| has_periods), y)
        })?;
        y.array.set_shape(&spec.shape);
        p.put(self.out, y);
        Ok(())
    }
}
