//! Normalisations, softmax and rotary embedding.

use flambeau_ir as ir;
use flambeau_kernels::{
    Pool, norm,
    rope::{Rope, rope},
};
use flambeau_tensor::{DType, Shape};

use super::{
    copy::{cast, cast_into, contiguous},
    float_dtype,
    linalg::float_view,
    shape::{axis_of, reshape},
};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
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
pub(crate) fn rms_norm(pool: &Pool, x: &Array, weight: Option<&Array>, eps: f32, y: &mut Array) -> Result<()> {
    let weight = weight.map(float_view).transpose()?;
    by_rows!(pool, |x, width, y| norm::rms_norm(pool, x, width, weight.as_ref(), eps, y))
}

/// Normalisation of the rows of `x`, which is row-major.
pub(crate) fn layer_norm(pool: &Pool, x: &Array, affine: [Option<&Array>; 2], eps: f32, y: &mut Array) -> Result<()> {
    let [weight, bias] = affine;
    let (weight, bias) = (weight.map(float_view).transpose()?, bias.map(float_view).transpose()?);
    by_rows!(pool, |x, width, y| norm::layer_norm(pool, x, width, (weight.as_ref(), bias.as_ref()), eps, y))
}

/// Softmax of the rows of `x`, which is row-major and of the type of `y`.
pub(crate) fn softmax(pool: &Pool, x: &Array, y: &mut Array) -> Result<()> {
    by_rows!(pool, |x, width, y| norm::softmax(pool, x, width, y))
}

impl Eval for ir::RMSNorm {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (spec, weight) = (cx.out(self.out)?, cx.get_opt(self.weight)?);
        let x = cx.get(self.x)?;
        let x = contiguous(cx, x)?;
        let mut y = cx.alloc(spec.dtype, &spec.shape)?;
        rms_norm(&cx.pool(), &x, weight.as_ref(), self.eps, &mut y)?;
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::LayerNorm {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let (weight, bias) = (cx.get_opt(self.weight)?, cx.get_opt(self.bias)?);
        let x = cx.get(self.x)?;
        let x = contiguous(cx, x)?;
        let mut y = cx.alloc(spec.dtype, &spec.shape)?;
        layer_norm(&cx.pool(), &x, [weight.as_ref(), bias.as_ref()], self.eps, &mut y)?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// A row-major copy of `x` in `dtype` with `axis` innermost, and how to see it in the old order.
fn axis_last(cx: &mut Cx<'_>, x: &Array, axis: usize, dtype: DType) -> Result<(Array, Shape)> {
    let last = x.rank() - 1;
    let perm: Shape = (0..x.rank()).filter(|&i| i != axis).chain([axis]).collect();
    let back: Shape = (0..x.rank()).map(|i| if i == axis { last } else { i - usize::from(i > axis) }).collect();
    let x = x.permute(&perm);
    let mut rows = cx.alloc(dtype, &x.shape)?;
    cast_into(&cx.pool(), &x, &mut rows)?;
    Ok((rows, back))
}

impl Eval for ir::Softmax {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let x = cx.get(self.x)?;
        let axis = axis_of(self.axis.into(), x.rank())?;
        let through = if spec.dtype.is_float() { spec.dtype } else { DType::F32 };
        let is_last = axis + 1 == x.rank();
        let (x, back) = if is_last {
            let x = cast(cx, &x, through)?;
            (contiguous(cx, x)?, Shape::new())
        } else {
            axis_last(cx, &x, axis, through)?
        };
        let mut y = cx.alloc(through, &x.shape)?;
        softmax(&cx.pool(), &x, &mut y)?;
        let y = cast(cx, &y, spec.dtype)?;
        cx.put(self.out, if is_last { y } else { y.permute(&back) });
        Ok(())
    }
}

/// Positions of the first rows: one, or one a batch.
fn offsets(cx: &mut Cx<'_>, offset: ir::VidOrTid) -> Result<smallvec::SmallVec<[i32; 8]>> {
    let tid = match offset {
        ir::VidOrTid::Vid(vid) => return Ok(std::iter::once(cx.value(vid)?).collect()),
        ir::VidOrTid::Tid(tid) => tid,
    };
    let offset = cx.get_slot(tid)?;
    Ok(super::index::integers(cx, &offset)?.iter().map(|&v| v as i32).collect())
}

/// `[B, .., T, D]` as `[B, H, T, D]`.
pub(crate) fn heads(shape: &[usize]) -> Result<[usize; 4]> {
    let [batch, ref middle @ .., time, depth] = *shape else {
        return Err(OpError::value(format!("the operand has rank {}, expected at least 3", shape.len())));
    };
    Ok([batch, middle.iter().product(), time, depth])
}

/// Rotates `x` `[B, H, T, D]` into `y` of the same sizes; `periods` are f32 and row-major.
pub(crate) fn rotate(
    pool: &Pool,
    node: &ir::Rope,
    x: &Array,
    offsets: &[i32],
    periods: Option<&Array>,
    y: &mut Array,
) -> Result<()> {
    let rotation = Rope {
        dims: usize::try_from(node.dims).map_err(|_| OpError::value("dims is negative"))?,
        traditional: node.traditional,
        base: node.base,
        scale: node.scale,
        periods: periods.map(|p| p.slice::<f32>()).transpose()?,
    };
    float_dtype!(y.dtype, T => Ok(rope::<T>(pool, &x.view()?, offsets, &rotation, &mut y.view_mut()?)?))
}

impl Eval for ir::Rope {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let offsets = offsets(cx, self.offset)?;
        let periods = match cx.get_opt(self.freqs)? {
            Some(freqs) => {
                let freqs = cast(cx, &freqs, DType::F32)?;
                Some(contiguous(cx, freqs)?)
            }
            None => None,
        };
        let x = cx.get(self.x)?;
        let x = reshape(cx, &x, &heads(&x.shape)?)?;
        let mut y = cx.alloc(spec.dtype, &x.shape)?;
        rotate(&cx.pool(), self, &x, &offsets, periods.as_ref(), &mut y)?;
        y.set_shape(&spec.shape);
        cx.put(self.out, y);
        Ok(())
    }
}
