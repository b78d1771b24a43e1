//! Normalisations, softmax and rotary embedding.

use flambeau_ir as ir;
use flambeau_kernels::{
    norm,
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

/// Runs a kernel on the rows of `x` in the type of the result.
macro_rules! by_rows {
    ($cx:ident, $self:ident, |$x:ident, $width:ident, $y:ident| $kernel:expr) => {{
        let spec = $cx.out($self.out)?;
        let x = $cx.get($self.x)?;
        let x = contiguous($cx, x)?;
        let mut y = $cx.alloc(spec.dtype, &spec.shape)?;
        let $width = x.shape.last().copied().unwrap_or(1);
        float_dtype!(x.dtype, X => float_dtype!(spec.dtype, Y => {
            let ($x, $y) = (x.slice::<X>()?, y.slice_mut::<Y>()?);
            Ok($kernel?)
        }))?;
        $cx.put($self.out, y);
        Ok(())
    }};
}

impl Eval for ir::RMSNorm {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (pool, weight) = (cx.pool(), cx.get_opt(self.weight)?);
        let weight = weight.as_ref().map(float_view).transpose()?;
        by_rows!(cx, self, |x, width, y| norm::rms_norm(&pool, x, width, weight.as_ref(), self.eps, y))
    }
}

impl Eval for ir::LayerNorm {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (pool, weight, bias) = (cx.pool(), cx.get_opt(self.weight)?, cx.get_opt(self.bias)?);
        let weight = weight.as_ref().map(float_view).transpose()?;
        let bias = bias.as_ref().map(float_view).transpose()?;
        by_rows!(cx, self, |x, width, y| norm::layer_norm(&pool, x, width, (weight.as_ref(), bias.as_ref()), self.eps, y))
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
        let width = spec.shape[axis];
        float_dtype!(through, T => Ok(norm::softmax::<T, T>(&cx.pool(), x.slice()?, width, y.slice_mut()?)?))?;
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

/// `x` `[B, .., T, D]` as `[B, H, T, D]`.
fn heads(cx: &mut Cx<'_>, x: &Array) -> Result<Array> {
    let [batch, ref middle @ .., time, depth] = x.shape[..] else {
        return Err(OpError::value(format!("the operand has rank {}, expected at least 3", x.rank())));
    };
    reshape(cx, x, &[batch, middle.iter().product(), time, depth])
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
        let x = heads(cx, &x)?;
        let mut y = cx.alloc(spec.dtype, &x.shape)?;
        let dims = usize::try_from(self.dims).map_err(|_| OpError::value("dims is negative"))?;
        let rotation = Rope {
            dims,
            traditional: self.traditional,
            base: self.base,
            scale: self.scale,
            periods: periods.as_ref().map(|p| p.slice::<f32>()).transpose()?,
        };
        float_dtype!(spec.dtype, T => Ok(rope::<T>(&cx.pool(), &x.view()?, &offsets, &rotation, &mut y.view_mut()?)?))?;
        y.set_shape(&spec.shape);
        cx.put(self.out, y);
        Ok(())
    }
}
