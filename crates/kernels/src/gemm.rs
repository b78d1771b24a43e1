//! Dense matrix products over strided operands, `f32` accumulation.

mod block;
mod gemv;
mod micro;
mod operand;

use flambeau_tensor::Shape;

use crate::{Error, Float, Pool, View, ViewMut, convert::FloatPtr, error::same, view::Walk};
pub(crate) use block::{Sink, Source, multiply};
pub(crate) use micro::{accumulate, tile};
pub(crate) use operand::{Dense, dense_linear, pack_columns};

/// A float view of any of the three types.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FloatView<'a> {
    /// 32 bits.
    F32(View<'a, f32>),
    /// IEEE half.
    F16(View<'a, half::f16>),
    /// bfloat16.
    BF16(View<'a, half::bf16>),
}

macro_rules! from_view {
    ($($t:ty => $v:ident),*) => { $(impl<'a> From<View<'a, $t>> for FloatView<'a> {
        fn from(view: View<'a, $t>) -> FloatView<'a> { FloatView::$v(view) }
    })* };
}
from_view!(f32 => F32, half::f16 => F16, half::bf16 => BF16);

impl<'a> FloatView<'a> {
    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        match self {
            FloatView::F32(v) => v.shape(),
            FloatView::F16(v) => v.shape(),
            FloatView::BF16(v) => v.shape(),
        }
    }

    /// The same data seen in `shape`.
    ///
    /// # Errors
    /// [`Error::Broadcast`] if the shapes do not fit.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<FloatView<'a>, Error> {
        Ok(match self {
            FloatView::F32(v) => FloatView::F32(v.broadcast_to(shape)?),
            FloatView::F16(v) => FloatView::F16(v.broadcast_to(shape)?),
            FloatView::BF16(v) => FloatView::BF16(v.broadcast_to(shape)?),
        })
    }

    /// Element 0, for reading.
    pub(crate) fn origin(&self) -> FloatPtr {
        match self {
            FloatView::F32(v) => FloatPtr::reading(v.origin()),
            FloatView::F16(v) => FloatPtr::reading(v.origin()),
            FloatView::BF16(v) => FloatPtr::reading(v.origin()),
        }
    }

    pub(crate) fn strides(&self) -> &[isize] {
        match self {
            FloatView::F32(v) => v.strides(),
            FloatView::F16(v) => v.strides(),
            FloatView::BF16(v) => v.strides(),
        }
    }

    /// The element `offset` elements from the origin.
    ///
    /// # Safety
    /// Some index inside the shape lies at that offset.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, offset: isize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                FloatView::F32(v) => *v.origin().offset(offset),
                FloatView::F16(v) => Float::to_f32(*v.origin().offset(offset)),
                FloatView::BF16(v) => Float::to_f32(*v.origin().offset(offset)),
            }
        }
    }
}

/// What happens to a product before it is stored: `alpha · (a·b) + beta · bias`.
#[derive(Clone, Debug)]
pub struct Epilogue<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the bias.
    pub beta: f32,
    /// Added; broadcasts to the output.
    pub bias: Option<FloatView<'a>>,
}

impl Default for Epilogue<'_> {
    fn default() -> Self {
        Epilogue { alpha: 1.0, beta: 1.0, bias: None }
    }
}

/// `out[..., M, N] = alpha · a[..., M, K] · b[..., K, N] + beta · bias`; leading axes of `a`, `b` and `bias` broadcast.
///
/// Strides are free: a linear layer passes its weight `[N, K]` permuted, and nothing is transposed in memory.
///
/// # Errors
/// [`Error::Size`] or [`Error::Broadcast`] if the operands do not fit, or a rank is below 2.
pub fn matmul<A: Float, B: Float, C: Float>(
    pool: &Pool,
    a: &View<A>,
    b: &View<B>,
    out: &mut ViewMut<C>,
    epilogue: &Epilogue,
) -> Result<(), Error> {
    let rank = out.shape().len();
    if rank < 2 || a.rank() < 2 || b.rank() < 2 {
        return Err(Error::Size { what: "rank of a matrix product", expected: 2, found: rank.min(a.rank()).min(b.rank()) });
    }
    let shape = Shape::from_slice(out.shape());
    let (m, n, k) = (shape[rank - 2], shape[rank - 1], a.shape()[a.rank() - 1]);
    same("rows of b", k, b.shape()[b.rank() - 2])?;
    let with = |d: [usize; 2]| shape[..rank - 2].iter().copied().chain(d).collect::<Shape>();
    let (a, b) = (a.broadcast_to(&with([m, k]))?, b.broadcast_to(&with([k, n]))?);
    let bias = epilogue.bias.as_ref().map(|v| v.broadcast_to(&shape)).transpose()?;
    let (lead, none) = (rank - 2, [0isize; 16]);
    if lead > none.len() {
        return Err(Error::Size { what: "rank of a matrix product", expected: none.len() + 2, found: rank });
    }
    let bias_strides = bias.as_ref().map_or(&none[..lead], |v| &v.strides()[..lead]);
    let batch = Walk::new(&shape[..lead], [&a.strides()[..lead], &b.strides()[..lead], &out.strides()[..lead], bias_strides]);
    if shape.contains(&0) {
        return Ok(());
    }
    let last = |s: &[isize]| [s[rank - 2], s[rank - 1]];
    let (a_step, b_step, out_step) = (last(a.strides()), last(b.strides()), last(out.strides()));
    let out_origin = out.origin();
    let step = batch.inner();
    let rows_fold = fold_batch(&batch, [m, k], a_step, out_step, bias.as_ref().map(|v| last(v.strides())));
    batch.runs(0, if rows_fold { 1 } else { batch.len() }, |at, count| {
        for i in 0..if rows_fold { 1 } else { count as isize } {
            // SAFETY: `at` and `step` walk the leading axes of the views, so each origin is inside its data.
            let product = unsafe {
                operand::Product {
                    size: [if rows_fold { m * batch.len() } else { m }, n, k],
                    a: Dense::new(FloatPtr::reading(a.origin().offset(at[0] + i * step[0])), a_step),
                    b: Dense::new(FloatPtr::reading(b.origin().offset(at[1] + i * step[1])), b_step),
                    out: operand::Output {
                        origin: FloatPtr::of(out_origin.offset(at[2] + i * step[2])),
                        step: out_step,
                        alpha: epilogue.alpha,
                        beta: epilogue.beta,
                        bias: bias.as_ref().map(|v| (v, at[3] + i * step[3], last(v.strides()))),
                    },
                }
            };
            product.run(pool);
        }
    });
    Ok(())
}

/// Whether the batch is only more rows of `a` against one `b`, as in a linear layer over `[batch, time, features]`.
fn fold_batch(batch: &Walk<4>, [m, _]: [usize; 2], a: [isize; 2], out: [isize; 2], bias: Option<[isize; 2]>) -> bool {
    let step = batch.inner();
    let follows = |outer: isize, row: isize| m == 1 || outer == row * m as isize;
    batch.is_single_axis()
        && batch.len() > 1
        && step[1] == 0
        && m > 1
        && follows(step[0], a[0])
        && follows(step[2], out[0])
        && bias.is_none_or(|b| follows(step[3], b[0]))
}

#[cfg(test)]
mod tests;
